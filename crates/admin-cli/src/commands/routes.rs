//! `weir route`: which routes gateways have, and which one a request takes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

#[cfg(feature = "dev")]
use crate::args::RouteTest;
#[cfg(feature = "dev")]
use crate::failure::Exit;
use crate::failure::Failure;
#[cfg(feature = "dev")]
use crate::output::Shown;
use crate::output::{Report, text};
use crate::session::{Session, shortened};

/// Names of routes as live gateways report them.
pub(super) async fn list(session: &Session<'_>) -> Result<Report, Failure> {
    let gateways = session.items(session.api.gateways()).await?;
    let mut routes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let live = gateways.iter().filter(|gateway| gateway.get("live") == Some(&json!(true)));
    for gateway in live.clone() {
        for route in gateway.get("routes").and_then(Value::as_array).into_iter().flatten() {
            let route = route.as_str().unwrap_or_default().to_owned();
            routes.entry(route).or_default().push(text(gateway, "id"));
        }
    }
    let all = live.count();
    let items: Vec<Value> = routes
        .iter()
        .map(|(route, gateways)| json!({ "route": route, "gateways": gateways, "of": all }))
        .collect();
    Ok(Report::list(&items, &["ROUTE", "GATEWAYS"], "route", |item| {
        let names: Vec<String> = routes.get(&text(item, "route")).cloned().unwrap_or_default();
        let told = if names.len() == all { "all".to_owned() } else { shortened(&names) };
        vec![text(item, "route"), told]
    }))
}

/// Names of routes that live gateways have, each once.
pub(super) async fn known(session: &Session<'_>) -> Result<Vec<String>, Failure> {
    let gateways = session.items(session.api.gateways()).await?;
    let live = gateways.iter().filter(|gateway| gateway.get("live") == Some(&json!(true)));
    let mut names: Vec<String> = live
        .filter_map(|gateway| gateway.get("routes")?.as_array())
        .flatten()
        .filter_map(|route| route.as_str().map(ToOwned::to_owned))
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Which route a request takes, by a gateway's file; asks nobody.
#[cfg(feature = "dev")]
pub(super) fn test(flags: &RouteTest) -> Result<Report, Failure> {
    let config = gateway::config::load(&flags.config).map_err(|mistakes| {
        let failure = Failure::new(Exit::Invalid, "invalid_value", "the file has mistakes");
        mistakes.into_iter().fold(failure, Failure::and)
    })?;
    let (authority, path) = split(&flags.url)?;
    let route = config.routes.of_request(&flags.method, authority, path).map_err(|why| {
        Failure::new(Exit::NotFound, "route_unknown", format!("no route takes it: {why}"))
    })?;
    let upstream = config.upstreams.get(route.upstream).map(|upstream| upstream.name.clone());
    let (name, cost) = (route.terms.name.clone(), route.terms.cost.get());
    let json = json!({ "route": name, "upstream": upstream, "cost": cost });
    let fields = vec![
        ("route", name.clone()),
        ("upstream", upstream.unwrap_or_default()),
        ("cost", format!("{cost}, unless the plan says otherwise")),
    ];
    Ok(Report::new(json, Shown::Fields(fields)).named(name))
}

/// Host and path of a URL; a bare path has no host.
#[cfg(feature = "dev")]
fn split(url: &str) -> Result<(&str, &str), Failure> {
    let wrong = || Failure::usage(format!("`{url}` is neither a URL nor a path"));
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    match rest.find('/') {
        Some(at) => Ok(rest.split_at(at)),
        None if url.contains("://") && !rest.is_empty() => Ok((rest, "/")),
        None => Err(wrong()),
    }
}
