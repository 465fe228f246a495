//! From the text of `gateway.toml` to a [`Config`], or to every mistake in it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edge::limiter::{Cost, FailurePolicy};
use edge::{AuthMode, RegionShare, RouteTerms};
use http::Method;
use serde_json::Value;
use wire::error::{ErrorCode, FieldError};
use wire::name::Name;
use wire::strict::{Fields, Problems, shown};

use super::read::{
    address, base_url, count, flag_or_true, list, named, needed, object_of, parsed, path, secret,
    size, table, texts, time, wrong,
};
use super::upstream::upstream;
use super::{
    Bounds, Config, ControlConfig, DrainRules, Listener, Operations, PolicyChoice, UpstreamConfig,
    access_log, anonymous, cors, judge, limits, matching, overload, proxies, standalone, store,
    tls,
};
use crate::route::{HostRule, PathRule, Route, RouteTable, canonical_host};

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
/// Where a mistake stands that leaves nothing to be read; no key can have this name.
pub(super) const WHOLE_FILE: &str = "the file";
/// Most entries of any list in the file.
pub(super) const ENTRIES_MAX: usize = 10_000;

/// Reads and checks the file; the lines say where and what.
pub fn load(file: &Path) -> Result<Config, Vec<String>> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| vec![format!("{}: {error}", file.display())])?;
    let lines = |errors: Vec<FieldError>| errors.iter().map(ToString::to_string).collect();
    judge(&text, file).map_err(lines)
}

/// Checks the text; relative paths in it stand `beside` it.
pub fn parse(text: &str, beside: &Path) -> Result<Config, Vec<FieldError>> {
    let mut problems = Problems::new();
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            problems.add(WHOLE_FILE, ErrorCode::InvalidValue, place_and_message(text, &error));
            return Err(problems.into_vec());
        }
    };
    let whole_file = Value::Object(object_of(table));
    let mut fields = Fields::of(&whole_file, "", &mut problems);
    let config = read(&mut fields, beside, &mut problems);
    fields.finish(&mut problems);
    problems.none_or(Some(config))
}

fn read(fields: &mut Fields<'_>, beside: &Path, problems: &mut Problems) -> Config {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = size(fields, "workers", problems, 1..=1_024, cores);
    let (store, deadline) = store::read(table(fields, "store"), beside, problems);
    let upstreams: Vec<UpstreamConfig> = named(fields, "upstream", problems)
        .into_iter()
        .map(|(name, value)| upstream(name, value, beside, problems))
        .collect();
    let routes = routes(list(fields, "route", problems), &upstreams, problems);
    let operations = operations(table(fields, "operations"), beside, problems);
    refuse_own_port(&operations, &upstreams, problems);
    let policy = policy(fields, beside, problems);
    let anonymous = anonymous::read(table(fields, "anonymous"), &routes, &policy, problems);
    Config {
        workers,
        listeners: listeners(named(fields, "listen", problems), beside, problems),
        operations,
        limits: bounds(table(fields, "limits"), problems),
        overload: overload::read(table(fields, "overload"), problems),
        access_log: access_log::read(table(fields, "access_log"), beside, problems),
        drain: drain(table(fields, "drain"), problems),
        store,
        deadline,
        policy,
        anonymous,
        routes,
        upstreams,
        origin: None,
    }
}

/// The operations port must not be reachable through the traffic port.
fn refuse_own_port(operations: &Operations, upstreams: &[UpstreamConfig], problems: &mut Problems) {
    for upstream in upstreams {
        for (index, endpoint) in upstream.endpoints.iter().enumerate() {
            let address = endpoint.name.parse::<SocketAddr>();
            if address.is_ok_and(|address| address == operations.address) {
                let path = format!("upstream.{}.endpoints[{index}]", upstream.name);
                wrong(
                    problems,
                    path,
                    format!("`{}` is the gateway's operations port", endpoint.name),
                );
            }
        }
    }
}

fn listeners(tables: Vec<(&str, &Value)>, beside: &Path, problems: &mut Problems) -> Vec<Listener> {
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
    let mut listeners: Vec<Listener> = tables
        .into_iter()
        .map(|(name, value)| {
            let mut fields = Fields::of(value, &format!("listen.{name}"), problems);
            let address = address(&mut fields, "address", problems, default);
            let http2 = flag_or_true(&mut fields, "http2", problems);
            let tls = tls::listener(&mut fields, problems, beside);
            let (proxy_protocol, trusted_proxies) = proxies::listener(&mut fields, problems);
            fields.finish(problems);
            let name = name.to_owned();
            Listener { name, address, http2, tls, proxy_protocol, trusted_proxies }
        })
        .collect();
    if listeners.is_empty() {
        listeners.push(Listener {
            name: "main".to_owned(),
            address: default,
            http2: true,
            tls: None,
            proxy_protocol: false,
            trusted_proxies: Vec::new(),
        });
    }
    // `main` first, so that it is the one announced.
    listeners.sort_by_key(|listener| (listener.name != "main", listener.name.clone()));
    listeners
}

fn operations(value: Option<&Value>, beside: &Path, problems: &mut Problems) -> Operations {
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, 9080));
    let Some(value) = value else { return Operations { address: default, token: None } };
    let mut fields = Fields::of(value, "operations", problems);
    let address = address(&mut fields, "address", problems, default);
    let token = secret(&mut fields, "token_file", problems, beside);
    fields.finish(problems);
    Operations { address, token }
}

fn bounds(value: Option<&Value>, problems: &mut Problems) -> Bounds {
    let nothing = Value::Object(serde_json::Map::new());
    let mut fields = Fields::of(value.unwrap_or(&nothing), "limits", problems);
    let f = &mut fields;
    let bounds = Bounds {
        head_bytes: size(f, "head_bytes", problems, 8_192..=1_048_576, 16_384),
        head_fields: size(f, "head_fields", problems, 1..=1_000, 100),
        body_bytes: limits::body_bytes(f, problems).flatten(),
        first_byte: time(f, "first_byte", problems, 10 * SECOND),
        head_time: time(f, "head_time", problems, 10 * SECOND),
        idle: time(f, "idle", problems, 60 * SECOND),
        handshake_time: time(f, "handshake_time", problems, 10 * SECOND),
        connections_per_worker: size(f, "connections_per_worker", problems, 1..=1_000_000, 10_000),
        connections_per_address: size(f, "connections_per_address", problems, 1..=1_000_000, 1_000),
        h2_streams: count(f, "h2_streams", problems, 1..=1_000, 100),
        upgrades: limits::upgrades(f, problems),
        x_ratelimit: limits::x_ratelimit(f, problems),
        region_share: region_share(f, problems),
    };
    fields.finish(problems);
    bounds
}

fn region_share(fields: &mut Fields<'_>, problems: &mut Problems) -> RegionShare {
    const NAME: &str = "region_share";
    let Some(value) = fields.get(NAME) else { return RegionShare::default() };
    // Through text: a float must not be cut to an integer in passing.
    let parts = value.as_f64().map(|share| format!("{:.6}", share * 10_000.0));
    let parts = parts.as_deref().and_then(|text| text.strip_suffix(".000000")?.parse().ok());
    parts.and_then(RegionShare::of_ten_thousand).unwrap_or_else(|| {
        let what =
            format!("must be above 0 and at most 1, with at most 4 decimals, not {}", shown(value));
        wrong(problems, fields.path(NAME), what);
        RegionShare::default()
    })
}

fn drain(value: Option<&Value>, problems: &mut Problems) -> DrainRules {
    let rules = DrainRules { grace: 2 * SECOND, finish: 30 * SECOND };
    let Some(value) = value else { return rules };
    let mut fields = Fields::of(value, "drain", problems);
    let rules = DrainRules {
        grace: time(&mut fields, "grace", problems, rules.grace),
        finish: time(&mut fields, "finish", problems, rules.finish),
    };
    fields.finish(problems);
    rules
}

/// Where and what, without the line itself: it may be the one with a password.
fn place_and_message(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start);
    let before = text.get(..start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let message = error.message().trim_end();
    let place = format!("line {line}, column {column}: {message}");
    match hint(text, error) {
        Some(hint) => format!("{place}; {hint}"),
        None => place,
    }
}

/// What is most likely meant. Of the file it shows names of keys alone.
fn hint(text: &str, error: &toml::de::Error) -> Option<String> {
    let is_name = |name: &str| {
        let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        (1..=60).contains(&name.len()) && name.bytes().all(named)
    };
    let span = error.span()?;
    if error.message().starts_with("duplicate key") {
        let name = text.get(span)?.trim();
        return is_name(name).then(|| format!("`{name}` stands twice"));
    }
    let before = text.get(..span.start)?;
    let rest = text.get(span.start..)?.lines().next().unwrap_or_default();
    let line = format!("{}{rest}", before.rsplit('\n').next().unwrap_or_default());
    let (name, value) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()))?;
    let bare = value.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/');
    let number = value.parse::<f64>().is_ok(); // one that is too large
    (is_name(name) && bare && !number).then(|| format!("a text needs quotes: {name} = \"…\""))
}

fn policy(fields: &mut Fields<'_>, beside: &Path, problems: &mut Problems) -> PolicyChoice {
    match table(fields, "control") {
        Some(value) => {
            if standalone::is_given(fields) {
                let what = "a file has either [control] or its own plans, clients and keys";
                wrong(problems, fields.path("control"), what);
            }
            match control(value, beside, problems) {
                Some(control) => PolicyChoice::Control(Box::new(control)),
                None => PolicyChoice::File(standalone::read(fields, beside, problems)),
            }
        }
        None => PolicyChoice::File(standalone::read(fields, beside, problems)),
    }
}

fn control(value: &Value, beside: &Path, problems: &mut Problems) -> Option<ControlConfig> {
    let mut fields = Fields::of(value, "control", problems);
    let f = &mut fields;
    for name in ["plans_api", "token_file", "pepper_file"] {
        if f.get(name).is_none() {
            f.missing(name, problems);
        }
    }
    let plans_api = parsed(f, "plans_api", problems, base_url);
    let shadow_compare = parsed(f, "shadow_compare", problems, base_url);
    let token = secret(f, "token_file", problems, beside);
    let pepper = standalone::pepper_file(f, beside, problems);
    let state_dir = path(f, "state_dir", problems, beside);
    let bootstrap_file = path(f, "bootstrap_file", problems, beside);
    let records_per_s = count(f, "records_per_s", problems, 0..=1_000_000, 1_000);
    let gateway = parsed(f, "gateway", problems, Name::new).map(|name| name.to_string());
    fields.finish(problems);
    Some(ControlConfig {
        plans_api: plans_api?,
        shadow_compare,
        token: token?,
        pepper: pepper?,
        state_dir,
        bootstrap_file,
        records_per_s,
        gateway,
    })
}

fn routes(items: &[Value], upstreams: &[UpstreamConfig], problems: &mut Problems) -> RouteTable {
    if items.is_empty() || items.len() > ENTRIES_MAX {
        wrong(problems, "route".to_owned(), "at least one [[route]] is needed");
    }
    let indices: BTreeMap<&str, usize> =
        upstreams.iter().enumerate().map(|(index, up)| (up.name.as_str(), index)).collect();
    let mut routes = Vec::new();
    for (number, value) in items.iter().enumerate() {
        routes.extend(route(number, value, upstreams, &indices, problems));
    }
    RouteTable::new(routes)
}

fn route(
    number: usize,
    value: &Value,
    upstreams: &[UpstreamConfig],
    indices: &BTreeMap<&str, usize>,
    problems: &mut Problems,
) -> Option<Route> {
    let mut fields = Fields::of(value, &format!("route[{number}]"), problems);
    let f = &mut fields;
    let service = needed(f, "upstream", problems);
    let index = service.and_then(|name| indices.get(name).copied());
    if let (Some(name), None) = (service, index) {
        wrong(problems, f.path("upstream"), format!("there is no [upstream.{name}]"));
    }
    let host = parsed(f, "host", problems, host_rule).unwrap_or(HostRule::Any);
    let exact = f.flag("exact", problems);
    let path = parsed(f, "path", problems, |text| path_rule(text, exact));
    let name = parsed(f, "name", problems, Name::new);
    let methods = methods(f, problems);
    let cost = match f.whole("cost", ErrorCode::CostOutOfRange, problems).map(Cost::new) {
        None => Cost::ONE,
        Some(Ok(cost)) => cost,
        Some(Err(error)) => {
            problems.add(f.path("cost"), ErrorCode::CostOutOfRange, error.to_string());
            Cost::ONE
        }
    };
    let auth = parsed(f, "auth", problems, |text| match text {
        "key" => Ok(AuthMode::Key),
        "anonymous" => Ok(AuthMode::Anonymous),
        "none" => Ok(AuthMode::None),
        _ => Err("must be key, anonymous or none"),
    });
    let failure = parsed(f, "failure", problems, |text| match text {
        "plan" => Ok(None),
        _ => text.parse::<FailurePolicy>().map(Some),
    });
    let fields_wanted = matching::fields(f, problems);
    let rewrite = matching::rewrite(f, exact, problems);
    let bounds = matching::bounds(f, problems);
    let place = f.path("cors");
    let cors = f.get("cors").and_then(|value| cors::read(value, &place, &methods, problems));
    fields.finish(problems);
    let upstream = upstreams.get(index?)?;
    Some(Route {
        host,
        path: path.unwrap_or_else(|| PathRule::Prefix(String::new())),
        methods,
        upstream: index?,
        fields: fields_wanted,
        rewrite,
        bounds,
        cors: cors.map(Box::new),
        number,
        terms: Arc::new(RouteTerms {
            name: name.map_or_else(|| upstream.name.clone(), |name| name.to_string()),
            service: upstream.name.clone(),
            cost,
            auth: auth.unwrap_or(AuthMode::Key),
            failure: failure.flatten(),
            pairing: upstream.pairing.is_some(),
        }),
    })
}

fn methods(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<Method> {
    let mut methods = Vec::new();
    for text in texts(fields, "methods", problems) {
        match Method::from_bytes(text.as_bytes()) {
            Ok(method) if text.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                methods.push(method);
            }
            Ok(_) | Err(_) => {
                let shown = shown(&Value::String(text.to_owned()));
                wrong(problems, fields.path("methods"), format!("{shown} is no method"));
            }
        }
    }
    methods
}

fn host_rule(text: &str) -> Result<HostRule, &'static str> {
    let what = "must be a name like `api.example.com` or `*.example.com`, without a port";
    let (wild, name) = match text.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, text),
    };
    let canonical = canonical_host(name).map_err(|_bad| what)?;
    if !canonical.eq_ignore_ascii_case(name.trim_end_matches('.')) {
        return Err(what); // it had a port
    }
    Ok(if wild {
        HostRule::Under(format!(".{canonical}"))
    } else {
        HostRule::Exact(canonical.into_owned())
    })
}

fn path_rule(text: &str, exact: bool) -> Result<PathRule, String> {
    let prefix = matching::plain_path(text)?;
    Ok(if exact { PathRule::Exact(text.to_owned()) } else { PathRule::Prefix(prefix) })
}
