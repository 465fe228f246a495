//! `[upstream.NAME]`: where a service is, and how it is used.

use std::path::Path;

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use wire::name::Name;
use wire::strict::{Fields, Problems, shown};

use super::file::{ENTRIES_MAX, SECOND};
use super::read::{count, list, must_have, parsed, percent, size, time, time_unless, whole, wrong};
use super::{EndpointConfig, UpstreamConfig, tls};
use crate::headers::CLIENT;
use crate::pairing::Pairing;
use crate::route::{canonical_host, canonical_path};
use crate::upstream::balance::Balance;
use crate::upstream::health::{EjectionRules, ProbeRules};
use crate::upstream::retry::RetryRules;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Reads `[upstream.NAME]`.
pub(super) fn upstream(
    name: &str,
    value: &Value,
    beside: &Path,
    problems: &mut Problems,
) -> UpstreamConfig {
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
    let http2 = http2.unwrap_or(false);
    let tls = tls::upstream(f, &endpoints, http2, problems, beside);
    let config = UpstreamConfig {
        name: name.to_owned(),
        endpoints,
        http2,
        tls,
        connect_timeout: time(f, "connect_timeout", problems, SECOND),
        head_timeout: time(f, "head_timeout", problems, 30 * SECOND),
        idle_timeout: time(f, "idle_timeout", problems, 60 * SECOND),
        resolve_every: time(f, "resolve_every", problems, 5 * SECOND),
        total_timeout: time_unless(f, "total_timeout", "none", problems).flatten(),
        keep_idle: time(f, "keep_idle", problems, 30 * SECOND),
        max_connections: size(f, "max_connections", problems, 1..=1_000_000, 1_024),
        max_pending: size(f, "max_pending", problems, 0..=1_000_000, 1_024),
        balance: balance(&place, f.get("balance"), problems),
        retry: retry(&place, f.get("retry"), problems),
        panic_percent: percent(f, "panic_share", problems, 0),
        slow_start: time_unless(f, "slow_start", "0s", problems).unwrap_or(Some(10 * SECOND)),
        health: f.get("health").map(|value| probes(&place, value, problems)),
        ejection: ejection(&place, f.get("ejection"), problems),
        pairing: f.get("pairing").and_then(|value| pairing(&place, value, problems)),
    };
    fields.finish(problems);
    config
}

fn endpoints(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<EndpointConfig> {
    let given = list(fields, "endpoints", problems);
    let place = fields.path("endpoints");
    if given.is_empty() || given.len() > ENTRIES_MAX {
        let what = "must be a list of at least one endpoint like \"127.0.0.1:9001\"";
        wrong(problems, place.clone(), what);
    }
    let mut endpoints = Vec::new();
    for (index, value) in given.iter().enumerate() {
        endpoints.extend(endpoint(&format!("{place}[{index}]"), value, problems));
    }
    endpoints
}

/// `"host:port"`, or a table with its weight.
fn endpoint(place: &str, value: &Value, problems: &mut Problems) -> Option<EndpointConfig> {
    match value {
        Value::String(text) => match host_and_port(text) {
            Ok(name) => Some(EndpointConfig { name, weight: 1 }),
            Err(what) => {
                wrong(problems, place.to_owned(), what);
                None
            }
        },
        Value::Object(_) => {
            let mut fields = Fields::of(value, place, problems);
            must_have(&mut fields, "address", problems);
            let name = parsed(&mut fields, "address", problems, host_and_port);
            let weight = whole(&mut fields, "weight", problems, 1..=100).unwrap_or(1);
            fields.finish(problems);
            Some(EndpointConfig { name: name?, weight })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            let what =
                format!("must be `host:port` or a table with `address`, not {}", shown(value));
            wrong(problems, place.to_owned(), what);
            None
        }
    }
}

fn host_and_port(text: &str) -> Result<String, String> {
    let has_port = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if has_port && canonical_host(text).is_ok() {
        Ok(text.to_owned())
    } else {
        Err(format!("must be `host:port`, not `{text}`"))
    }
}

fn balance(place: &str, value: Option<&Value>, problems: &mut Problems) -> Balance {
    const WHAT: &str = "must be \"least_request\", \"round_robin\", { hash = \"key\" } or \
                        { hash = \"header\", name = \"x-…\" }";
    match value {
        None => Balance::LeastRequest,
        Some(Value::Object(_)) => hash(&format!("{place}.balance"), value, problems),
        Some(Value::String(text)) if text == "least_request" => Balance::LeastRequest,
        Some(Value::String(text)) if text == "round_robin" => Balance::RoundRobin,
        Some(other) => {
            wrong(problems, format!("{place}.balance"), format!("{WHAT}, not {}", shown(other)));
            Balance::LeastRequest
        }
    }
}

/// The key is told apart by its client, whom the service is told: the key itself goes nowhere.
fn hash(place: &str, value: Option<&Value>, problems: &mut Problems) -> Balance {
    let Some(value) = value else { return Balance::LeastRequest };
    let mut fields = Fields::of(value, place, problems);
    must_have(&mut fields, "hash", problems);
    let by_key = parsed(&mut fields, "hash", problems, |text| match text {
        "key" => Ok(true),
        "header" => Ok(false),
        _ => Err("must be key or header"),
    });
    let name = parsed(&mut fields, "name", problems, |text| {
        let name = HeaderName::try_from(text).map_err(|_bad| "is no header name")?;
        if name == AUTHORIZATION || name == X_API_KEY {
            return Err("no service sees keys; for one endpoint per client say hash = \"key\"");
        }
        Ok(name)
    });
    let by = match (by_key, name) {
        (Some(false), None) if fields.get("name").is_none() => {
            fields.missing("name", problems);
            None
        }
        (Some(true), Some(_)) => {
            wrong(problems, fields.path("name"), "belongs to hash = \"header\"");
            None
        }
        (Some(true), None) => Some(CLIENT),
        (Some(false) | None, name) => name,
    };
    fields.finish(problems);
    by.map_or(Balance::LeastRequest, Balance::Hash)
}

fn retry(place: &str, value: Option<&Value>, problems: &mut Problems) -> RetryRules {
    let rules = RetryRules { attempts: 1, budget_percent: 20, per_second_min: 3 };
    let Some(value) = value else { return rules };
    let mut fields = Fields::of(value, &format!("{place}.retry"), problems);
    let f = &mut fields;
    let rules = RetryRules {
        attempts: count(f, "attempts", problems, 0..=10, rules.attempts),
        budget_percent: u64::try_from(percent(f, "budget", problems, 20)).unwrap_or(0),
        per_second_min: whole(f, "per_second_min", problems, 0..=1_000_000)
            .unwrap_or(rules.per_second_min),
    };
    fields.finish(problems);
    rules
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
        must_have(&mut fields, "name", problems);
        let name = parsed(&mut fields, "name", problems, header);
        let value = parsed(&mut fields, "value", problems, HeaderValue::from_str);
        fields.finish(problems);
        name.map(|name| (name, value))
    });
    fields.finish(problems);
    Some(Pairing { deny_status, deny_header: deny_header.flatten(), decision_header })
}
