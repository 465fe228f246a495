//! `[upstream.NAME]`: where a service is, and how it is used.

use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use wire::name::Name;
use wire::strict::{Fields, Problems};

use super::UpstreamConfig;
use super::file::{ENTRIES_MAX, SECOND};
use super::read::{count, parsed, percent, size, texts, time, whole, wrong};
use crate::pairing::Pairing;
use crate::route::{canonical_host, canonical_path};
use crate::upstream::health::{EjectionRules, ProbeRules};

/// Reads `[upstream.NAME]`.
pub(super) fn upstream(name: &str, value: &Value, problems: &mut Problems) -> UpstreamConfig {
    let place = format!("upstream.{name}");
    if let Err(error) = Name::new(name) {
        wrong(problems, place.clone(), error);
    }
    let mut fields = Fields::of(value, &place, problems);
    let f = &mut fields;
    let endpoints = endpoints(f, problems);
    let http2 = parsed(f, "protocol", problems, |text| match text {
        "http1" => Ok(false),
        "http2" => Ok(true),
        _ => Err("must be http1 or http2"),
    });
    let config = UpstreamConfig {
        name: name.to_owned(),
        endpoints,
        http2: http2.unwrap_or(false),
        connect_timeout: time(f, "connect_timeout", problems, SECOND),
        head_timeout: time(f, "head_timeout", problems, 30 * SECOND),
        idle_timeout: time(f, "idle_timeout", problems, 60 * SECOND),
        keep_idle: time(f, "keep_idle", problems, 30 * SECOND),
        max_connections: size(f, "max_connections", problems, 1..=1_000_000, 1_024),
        health: f.get("health").map(|value| probes(&place, value, problems)),
        ejection: ejection(&place, f.get("ejection"), problems),
        pairing: f.get("pairing").and_then(|value| pairing(&place, value, problems)),
    };
    fields.finish(problems);
    config
}

fn endpoints(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<String> {
    let given = texts(fields, "endpoints", problems);
    if given.is_empty() || given.len() > ENTRIES_MAX {
        let what = "must be a list of at least one endpoint like \"127.0.0.1:9001\"";
        wrong(problems, fields.path("endpoints"), what);
    }
    for (index, endpoint) in given.iter().enumerate() {
        let has_port = endpoint.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !has_port || canonical_host(endpoint).is_err() {
            let path = format!("{}[{index}]", fields.path("endpoints"));
            wrong(problems, path, format!("must be `host:port`, not `{endpoint}`"));
        }
    }
    given.into_iter().map(ToOwned::to_owned).collect()
}

fn probes(place: &str, value: &Value, problems: &mut Problems) -> ProbeRules {
    let mut fields = Fields::of(value, &format!("{place}.health"), problems);
    let path = parsed(&mut fields, "path", problems, |text| {
        canonical_path(text).map(|path| path.into_owned())
    });
    let rules = ProbeRules {
        path: path.unwrap_or_else(|| "/healthz".to_owned()),
        every: time(&mut fields, "every", problems, 5 * SECOND),
        timeout: time(&mut fields, "timeout", problems, SECOND),
        fall: count(&mut fields, "fall", problems, 1..=100, 3),
        rise: count(&mut fields, "rise", problems, 1..=100, 2),
    };
    fields.finish(problems);
    rules
}

fn ejection(place: &str, value: Option<&Value>, problems: &mut Problems) -> EjectionRules {
    let rules = EjectionRules { consecutive: 5, period: 10 * SECOND, max_percent: 50 };
    let Some(value) = value else { return rules };
    let mut fields = Fields::of(value, &format!("{place}.ejection"), problems);
    let rules = EjectionRules {
        consecutive: count(&mut fields, "consecutive", problems, 0..=1_000, rules.consecutive),
        period: time(&mut fields, "for", problems, rules.period),
        max_percent: percent(&mut fields, "max_share", problems, rules.max_percent),
    };
    fields.finish(problems);
    rules
}

fn pairing(place: &str, value: &Value, problems: &mut Problems) -> Option<Pairing> {
    let mut fields = Fields::of(value, &format!("{place}.pairing"), problems);
    let header = |text: &str| HeaderName::try_from(text).map_err(|_bad| "is no header name");
    let status = whole(&mut fields, "deny_status", problems, 400..=599);
    let status = status.and_then(|status| u16::try_from(status).ok());
    let deny_status = status
        .map_or(Ok(StatusCode::TOO_MANY_REQUESTS), StatusCode::from_u16)
        .unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let decision_header = parsed(&mut fields, "decision_header", problems, header);
    let marker_path = fields.path("deny_header");
    let deny_header = fields.get("deny_header").map(|value| {
        let mut fields = Fields::of(value, &marker_path, problems);
        if fields.get("name").is_none() {
            fields.missing("name", problems);
        }
        let name = parsed(&mut fields, "name", problems, header);
        let value = parsed(&mut fields, "value", problems, HeaderValue::from_str);
        fields.finish(problems);
        name.map(|name| (name, value))
    });
    fields.finish(problems);
    Some(Pairing { deny_status, deny_header: deny_header.flatten(), decision_header })
}
