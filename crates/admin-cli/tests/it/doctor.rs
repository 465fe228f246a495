//! `weir doctor` finds faults that are planted, one after the other, and says what to do.

use std::time::Duration;

use serde_json::{Value, json};
use wire::policy::Rejected;

use crate::control::Control;
#[cfg(feature = "dev")]
use crate::dev::Dev;
use crate::run::{Ran, alone};
use crate::stub::Stub;

/// The fault of this part with these words; the doctor must have ended with its code.
#[track_caller]
fn fault(ran: &Ran, part: &str, words: &str) -> Value {
    let document = ran.json();
    let items = document["items"].as_array().unwrap();
    let found = items.iter().find(|item| {
        let is_part = item["part"].as_str().unwrap().split(' ').next() == Some(part);
        is_part && item["state"] == "fail" && item["detail"].as_str().unwrap().contains(words)
    });
    let found = found.unwrap_or_else(|| panic!("no fault `{words}` of {part}: {document:#}"));
    assert!(!found["advice"].as_str().unwrap_or_default().is_empty(), "{found:#}");
    assert_eq!(ran.code, 14, "{ran:#?}");
    found.clone()
}

fn doctor(control: &Control) -> Ran {
    control.weir(&["doctor", "-o", "json"])
}

/// A system in which everything is well, but what the test says.
fn system(ready: Value, limit_at_ms: u64, metrics: &str) -> (Stub, Stub) {
    let gateway = Stub::start(vec![
        ("GET /readyz", 200, json!({ "ready": true, "detail": {} })),
        ("GET /metrics", 200, json!(metrics)),
    ]);
    let status = if ready["ready"] == true { 200 } else { 503 };
    let seen = json!({ "id": "eu-3", "boot": "b", "build": "1", "ops_url": gateway.addr(),
                       "routes": [], "applied": 320, "rejected": [], "seen_at": 1, "live": true });
    let client = json!({ "id": "acme", "plan": "pro", "state": "active", "reset_revision": 0,
                         "revision": 1 });
    let standing = json!({ "client": "acme", "gateway": "eu-3", "at_ms": limit_at_ms });
    let page = |items: Value| json!({ "items": items, "next": null });
    let plans = Stub::start(vec![
        ("GET /readyz", status, ready),
        ("GET /v1/plans", 200, page(json!([]))),
        ("GET /v1/gateways", 200, page(json!([seen]))),
        ("GET /v1/rollouts", 200, page(json!([]))),
        ("GET /v1/shadow/clients/top", 200, json!({ "items": [] })),
        ("GET /v1/clients", 200, page(json!([client]))),
        ("GET /v1/clients/acme/limit", 200, standing),
    ]);
    (plans, gateway)
}

fn now_ms() -> u64 {
    Control::minute() * 60_000 + 30_000
}

fn well(now: u64) -> Value {
    json!({ "ready": true, "detail": { "revision": 320, "now_ms": now, "listening": true,
                                       "migrations_missing": 0 } })
}

#[test]
fn a_store_whose_clock_is_ahead_is_named() {
    let now = now_ms();
    let (plans, _gateway) = system(well(now), now + 111_000, "");
    let found = fault(&plans.weir(&["doctor", "-o", "json"]), "clocks", "ahead of plans-api's");
    assert!(found["detail"].as_str().unwrap().contains("gateway eu-3"), "{found:#}");
}

#[test]
fn a_dead_listener_is_named() {
    let now = now_ms();
    let mut ready = well(now);
    ready["detail"]["listening"] = json!(false);
    let (plans, _gateway) = system(ready, now, "");
    fault(&plans.weir(&["doctor", "-o", "json"]), "database", "listening connection is dead");
}

#[test]
fn a_disk_that_takes_no_writes_is_named_at_plans_api_and_at_a_gateway() {
    let full = json!({ "ready": false, "detail": "writes fail: database or disk is full" });
    let (plans, _gateway) = system(full, now_ms(), "");
    let found = fault(&plans.weir(&["doctor", "-o", "json"]), "plans-api", "disk is full");
    assert!(found["advice"].as_str().unwrap().contains("make room"), "{found:#}");
    let (plans, _gateway) = system(well(now_ms()), now_ms(), "weir_state_unsaved 1\n");
    fault(&plans.weir(&["doctor", "-o", "json"]), "gateway", "state folder");
}

#[test]
fn a_system_that_is_well_has_no_fault() {
    // real clocks: the stub's time would be up to half a minute off
    let control = Control::start();
    control.gateway_follows("gw-1");
    let ran = doctor(&control).ends(0);
    assert_eq!(ran.json()["faults"], 0, "{ran:#?}");
}

#[test]
fn a_plans_api_that_is_not_there_is_named() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = alone(&["doctor", "-o", "json", "--addr", &format!("http://{unused}")]);
    fault(&ran, "plans-api", "cannot reach");
}

#[test]
fn a_gateway_that_is_behind_is_named() {
    let control = Control::start();
    control.gateway_says("gw-behind", 0);
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    fault(&doctor(&control), "gateways", "gw-behind");
}

#[test]
fn an_object_that_a_gateway_refuses_and_a_wrong_pepper_are_named() {
    let control = Control::start();
    let rejected = |kind: &str, id: &str, reason: &str| Rejected {
        kind: kind.to_owned(),
        id: id.to_owned(),
        revision: 1,
        reason: reason.to_owned(),
    };
    let refused = vec![
        rejected("plan", "odd", "capacity 0"),
        rejected("pepper", "0123456789abcdef", "this gateway's pepper is fedcba9876543210"),
    ];
    control.gateway_refuses("gw-1", refused);
    let ran = doctor(&control);
    fault(&ran, "gateway", "refuses plan odd of revision 1: capacity 0");
    let pepper = fault(&ran, "gateway", "another pepper than plans-api");
    assert!(pepper["advice"].as_str().unwrap().contains("copy plans-api's file"), "{pepper:#}");
}

#[test]
fn a_database_that_lacks_a_migration_is_named() {
    let control = Control::start();
    control.gateway_follows("gw-1");
    control.by_hand("delete from _sqlx_migrations where version = 2");
    // plans-api looks each second
    let ran = (0..100).map(|_| doctor(&control)).find(|ran| {
        std::thread::sleep(Duration::from_millis(50));
        ran.code == 14
    });
    fault(&ran.unwrap(), "database", "lacks 1 of the migrations");
}

#[cfg(feature = "dev")]
#[test]
fn a_redis_that_may_evict_live_buckets_is_a_warning_with_its_cure() {
    let redis = test_servers::ServerOptions::default()
        .setting("maxmemory", "50mb")
        .setting("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(folder.path(), &["--store", &redis.url(), "--log-level", "error"]);
    let ran = (0..100).map(|_| crate::run::within(folder.path(), &["doctor", "-o", "json"])).find(
        |ran| {
            std::thread::sleep(Duration::from_millis(50));
            ran.stdout.contains("maxmemory-policy")
        },
    );
    let document = ran.expect("the policy is never told").ends(0).json();
    let items = document["items"].as_array().unwrap();
    let warned = items.iter().find(|item| item["detail"].as_str().unwrap().contains("maxmemory"));
    let warned = warned.unwrap();
    assert_eq!(warned["state"], "warn", "{document:#}");
    assert!(warned["advice"].as_str().unwrap().contains("noeviction"), "{document:#}");
    dev.end();
}
