//! What is valid in a file and most likely not meant. `check` says it; nothing is refused for it.

use edge::AuthMode;
use edge::limiter::FailurePolicy;

use super::{Config, PolicyChoice};
use crate::route::Route;

/// One line for each doubt, with its place.
pub(crate) fn doubts(config: &Config) -> Vec<String> {
    let mut routes: Vec<&Route> = config.routes.iter().collect();
    routes.sort_by_key(|route| route.number);
    let mut lines = Vec::new();
    if let PolicyChoice::File(own) = &config.policy {
        let missing = match (own.clients.is_empty(), own.keys.is_empty()) {
            (true, _) => Some("[client.ID]"),
            (false, true) => Some("[[key]]"),
            (false, false) => None,
        };
        let by_key = routes.iter().find(|route| route.terms.auth == AuthMode::Key);
        if let (Some(missing), Some(route)) = (missing, by_key) {
            lines.push(format!(
                "route[{}] wants a key (`auth = \"key\"` is the default) and the file has no \
                 {missing}: all its requests are 401",
                route.number
            ));
        }
    }
    let anybody = |route: &&&Route| match route.terms.auth {
        AuthMode::Anonymous => route.terms.failure == Some(FailurePolicy::Open),
        AuthMode::Key | AuthMode::None => false,
    };
    for route in routes.iter().filter(anybody) {
        lines.push(format!(
            "route[{}] is for callers without a key and its failure is `open`: without a store \
             nothing holds anybody; take coarse or a share",
            route.number
        ));
    }
    let mut seen: Vec<&Route> = Vec::new();
    for route in routes {
        match seen.iter().find(|earlier| fits_the_same(earlier, route)) {
            Some(earlier) => lines.push(format!(
                "route[{}] never serves a request: route[{}] has the same host, path, methods and \
                 headers",
                route.number, earlier.number
            )),
            None => seen.push(route),
        }
    }
    lines
}

/// Whether two routes fit the same requests; in which order methods and fields stand is no
/// difference.
fn fits_the_same(one: &Route, other: &Route) -> bool {
    let within = |a: &Route, b: &Route| {
        a.methods.iter().all(|method| b.methods.contains(method))
            && a.fields.iter().all(|field| b.fields.contains(field))
    };
    one.host == other.host
        && one.path == other.path
        && one.methods.is_empty() == other.methods.is_empty()
        && within(one, other)
        && within(other, one)
}
