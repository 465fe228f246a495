//! `[upstream.NAME]` in the file: what its keys mean, and how their mistakes are told.

use std::path::Path;
use std::time::Duration;

use gateway::config::{self, UpstreamConfig};
use gateway::upstream::balance::Balance;

fn text(endpoints: &str, lines: &str) -> String {
    format!("[[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = {endpoints}\n{lines}\n")
}

fn read(endpoints: &str, lines: &str) -> UpstreamConfig {
    let config = config::parse(&text(endpoints, lines), Path::new("."));
    config.unwrap_or_else(|errors| panic!("{errors:#?}")).upstreams.remove(0)
}

fn errors(endpoints: &str, lines: &str) -> Vec<String> {
    match config::parse(&text(endpoints, lines), Path::new(".")) {
        Ok(config) => panic!("accepted: {:?}", config.upstreams),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

const ONE: &str = "[\"127.0.0.1:1\"]";

#[test]
fn what_is_not_said_has_the_documented_default() {
    let up = read(ONE, "");
    assert_eq!(up.endpoints[0].weight, 1);
    assert_eq!((up.max_connections, up.max_pending, up.panic_percent), (1_024, 1_024, 0));
    assert_eq!((up.retry.attempts, up.retry.budget_percent, up.retry.per_second_min), (1, 20, 3));
    assert_eq!((up.total_timeout, up.slow_start), (None, Some(Duration::from_secs(10))));
    assert_eq!(up.balance, Balance::LeastRequest);
    let up = read(ONE, "total_timeout = \"none\"\nslow_start = \"0s\"\nretry = { attempts = 0 }");
    assert_eq!((up.total_timeout, up.slow_start, up.retry.attempts), (None, None, 0));
    assert_eq!(up.retry.budget_percent, 20);
}

#[test]
fn endpoints_may_have_weights_and_balancers_names() {
    let up = read("[\"a:1\", { address = \"b:2\", weight = 100 }, { address = \"c:3\" }]", "");
    let told: Vec<_> = up.endpoints.iter().map(|one| (one.name.as_str(), one.weight)).collect();
    assert_eq!(told, [("a:1", 1), ("b:2", 100), ("c:3", 1)]);
    let balance = |value: &str| read(ONE, &format!("balance = {value}")).balance;
    assert_eq!(balance("\"least_request\""), Balance::LeastRequest);
    assert_eq!(balance("\"round_robin\""), Balance::RoundRobin);
    let header = |name: &str| Balance::Hash(name.parse().unwrap());
    assert_eq!(balance("{ hash = \"header\", name = \"X-Cart\" }"), header("x-cart"));
    // Never the key itself: the name of its client, as services are told it.
    assert_eq!(balance("{ hash = \"key\" }"), header("x-weir-client"));
}

#[test]
fn every_mistake_is_named_with_its_path() {
    for (endpoints, lines, place) in [
        ("[]", "", "endpoints: "),
        ("[7]", "", "endpoints[0]: "),
        ("[\"a:1\", \"b\"]", "", "endpoints[1]: "),
        ("[{ weight = 2 }]", "", "endpoints[0].address: "),
        ("[{ address = \"b\" }]", "", "endpoints[0].address: "),
        ("[{ address = \"b:1\", weight = 0 }]", "", "endpoints[0].weight: "),
        ("[{ address = \"b:1\", weight = 101 }]", "", "endpoints[0].weight: "),
        ("[{ address = \"b:1\", wieght = 2 }]", "", "endpoints[0].wieght: "),
        (ONE, "balance = \"random\"", "balance: "),
        (ONE, "balance = 3", "balance: "),
        (ONE, "balance = { }", "balance.hash: "),
        (ONE, "balance = { hash = \"path\" }", "balance.hash: "),
        (ONE, "balance = { hash = \"header\" }", "balance.name: "),
        (ONE, "balance = { hash = \"header\", name = \"a b\" }", "balance.name: "),
        (ONE, "balance = { hash = \"header\", name = \"X-Api-Key\" }", "balance.name: "),
        (ONE, "balance = { hash = \"header\", name = \"authorization\" }", "balance.name: "),
        (ONE, "balance = { hash = \"key\", name = \"x-a\" }", "balance.name: "),
        (ONE, "retry = 1", "retry: "),
        (ONE, "retry = { attempts = 11 }", "retry.attempts: "),
        (ONE, "retry = { budget = 1.5 }", "retry.budget: "),
        (ONE, "retry = { per_second_min = -1 }", "retry.per_second_min: "),
        (ONE, "retry = { times = 1 }", "retry.times: "),
        (ONE, "panic_share = 2", "panic_share: "),
        (ONE, "max_pending = \"many\"", "max_pending: "),
        (ONE, "slow_start = \"soon\"", "slow_start: "),
        (ONE, "slow_start = 0", "slow_start: "),
        (ONE, "total_timeout = \"never\"", "total_timeout: "),
        (ONE, "resolve_every = \"0s\"", "resolve_every: "),
    ] {
        let found = errors(endpoints, lines);
        let start = format!("upstream.up.{place}");
        assert!(found.iter().any(|line| line.starts_with(&start)), "{start} in {found:?}");
    }
}
