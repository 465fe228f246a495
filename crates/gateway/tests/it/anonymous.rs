//! Callers without a key: the address that counts is the one that trusted proxies saw.

use std::net::SocketAddr;
use std::sync::Arc;

use edge::PolicySource;
use edge::limiter::Clock;
use gateway::upstream::names::SystemNames;
use gateway::{Evidently, Parts};
use serde_json::json;
use wire::rollout::Phase;

use crate::support::caller::{request, send_from};
use crate::support::plane::Plane;
use crate::support::{Gateway, Reply, Service, eventually, file, get, parse, standing, tally};

const PROXY: &str = "127.0.0.9";
const STRANGER: &str = "127.0.0.50";
const ROUTE: &str = "auth = \"anonymous\"\n[anonymous]\nplan = \"free\"\n\
    [plan.free]\nburst = { capacity = 3, refill = \"1/d\" }\n";
const PRO: &str = "burst = { capacity = 100, refill = \"100/s\" }";

fn text(service: SocketAddr) -> String {
    let proxies = "trusted_proxies = [\"127.0.0.9\", \"10.0.0.0/8\"]\n[operations]\n";
    file(PRO, ROUTE, service).replace("[operations]\n", proxies)
}

async fn call(from: &str, gateway: &Gateway, forwarded: &[&str]) -> Reply {
    let headers: Vec<_> = forwarded.iter().map(|value| ("x-forwarded-for", *value)).collect();
    send_from(from, gateway.traffic, request("GET", "/", &headers)).await
}

#[tokio::test]
async fn c10_what_a_caller_writes_about_itself_chooses_no_bucket() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let gateway = Gateway::over(&text(service.address), Arc::clone(&store), clock).await;
    let mut replies = Vec::new();
    for n in 0..20 {
        let forwarded = format!("203.0.113.{n}, 198.51.100.7");
        replies.push(call(PROXY, &gateway, &[&forwarded]).await);
    }
    assert_eq!(tally(&replies), [(200, 3), (429, 17)]);
    assert_eq!(replies[3].code(), "quota_exceeded");
    assert_eq!(store.len(), 1, "one address, one bucket");
    // A stranger drains nobody else's bucket, and has one of its own.
    let told = |reply: &Reply| reply.header("ratelimit").split(';').nth(1).map(str::to_owned);
    let before = told(&call(PROXY, &gateway, &["198.51.100.7"]).await);
    for left in (0..3).rev() {
        let reply = call(STRANGER, &gateway, &["198.51.100.8"]).await;
        assert_eq!((reply.status, told(&reply)), (200, Some(format!("r={left}"))));
    }
    assert_eq!(call(STRANGER, &gateway, &["198.51.100.9"]).await.status, 429);
    assert_eq!(told(&call(PROXY, &gateway, &["198.51.100.7"]).await), before);
    assert_eq!(store.len(), 2);
    // What the stranger named is untouched: all three tokens are there.
    let reply = call(PROXY, &gateway, &["198.51.100.8"]).await;
    assert_eq!((reply.status, told(&reply)), (200, Some("r=2".to_owned())));
}

#[tokio::test]
async fn the_same_address_in_another_spelling_is_the_same_caller() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let gateway = Gateway::over(&text(service.address), Arc::clone(&store), clock).await;
    let spellings: [&[&str]; 5] = [
        &["::ffff:198.51.100.7"],
        &["198.51.100.7:443"],
        &["203.0.113.1", "198.51.100.7, 10.1.2.3"],
        &["198.51.100.7"],
        &["[::ffff:c633:6407]"],
    ];
    let mut replies = Vec::new();
    for spelling in spellings {
        replies.push(call(PROXY, &gateway, spelling).await);
    }
    assert_eq!(tally(&replies), [(200, 3), (429, 2)]);
    for n in 0..4 {
        let reply = call(PROXY, &gateway, &[&format!("2001:db8:1:2::{n}")]).await;
        assert_eq!(reply.status, if n < 3 { 200 } else { 429 }, "one customer's network");
    }
    assert_eq!(call(PROXY, &gateway, &["2001:db8:1:3::1"]).await.status, 200);
    assert_eq!(store.len(), 3);
}

#[tokio::test]
async fn a_control_planes_plan_holds_for_anonymous_callers_too() {
    let service = Service::hello().await;
    let plane = Plane::new(&json!({ "burst": { "capacity": 2, "refill": "1/d" } }), Phase::Enforce);
    let (clock, store) = standing();
    let parts = Parts {
        leases: false,
        store,
        clock: clock as Arc<dyn Clock>,
        source: PolicySource::ControlPlane(plane),
        evidence: Evidently(None),
        names: Arc::new(SystemNames),
    };
    let route = "auth = \"anonymous\"\n[anonymous]\nplan = \"pro\"\n";
    let config = parse(&file("unlimited = true", route, service.address));
    let gateway = Gateway::with(config, parts).await;
    eventually("the policy has arrived", async || {
        get(gateway.operations, "/readyz", &[]).await.status == 200
    })
    .await;
    let replies = [(), (), ()].map(|()| get(gateway.traffic, "/", &[("x-api-key", "theirs")]));
    let replies = futures_util::future::join_all(replies).await;
    assert_eq!(tally(&replies), [(200, 2), (429, 1)]);
    let seen = service.last().headers;
    assert_eq!(seen.get("x-weir-client").unwrap(), "anonymous.pro");
    assert_eq!(seen.get("x-api-key").unwrap(), "theirs", "it belongs to the service");
}
