//! What operators ask of a running gateway: what is in force, who asks most, more or fewer logs.

use std::sync::Arc;
use std::time::Duration;

use edge::limiter::Clock;
use gateway::config;
use http_body_util::Full;

use crate::support::caller::request;
use crate::support::{Gateway, Reply, Service, file, get, send, standing};

const MANY: &str = "burst = { capacity = 10000, refill = \"1000/s\" }";
const TOKEN: [(&str, &str); 1] = [("authorization", "Bearer ops-token")];

/// A file with an operations token, in a folder of its own.
fn page(plan: &str, service: &Service) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "ops-token\n").unwrap();
    let text = file(plan, "", service.address);
    let text = text.replace("[operations]\n", "[operations]\ntoken_file = \"token\"\n");
    std::fs::write(folder.path().join("gateway.toml"), text).unwrap();
    folder
}

async fn put_level(gateway: &Gateway, level: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = request("PUT", "/log-level", headers);
    *request.body_mut() = Full::from(level.to_owned());
    send(gateway.operations, request).await
}

#[tokio::test]
async fn what_is_in_force_is_shown_whole_and_without_hashes() {
    let service = Service::hello().await;
    let folder = page(MANY, &service);
    let gateway = Gateway::of_file(&folder.path().join("gateway.toml")).await;
    let shown = get(gateway.operations, "/configz", &TOKEN).await.json();
    assert_eq!(shown["stale"], false);
    assert!(shown["last_reload"].is_null());
    let force = &shown["in_force"];
    assert_eq!(force["workers"], 1);
    assert_eq!(force["upstream"]["up"]["head_timeout"], "30s", "a default");
    assert_eq!(force["plan"]["pro"]["burst"]["capacity"], 10_000);
    assert_eq!(force["key"][0]["client"], "acme");
    assert!(force["key"][0].get("hash").is_none(), "{force:#}");
}

#[tokio::test]
async fn the_busiest_keys_are_shown_to_the_token_alone() {
    let service = Service::hello().await;
    let folder = page("burst = { capacity = 10, refill = \"1/d\" }", &service);
    let (clock, store) = standing();
    let config = config::load(&folder.path().join("gateway.toml")).unwrap();
    let gateway = Gateway::of(config, store, Arc::clone(&clock) as Arc<dyn Clock>).await;
    // One in sixteen is looked at: none of 400 in one of 10¹¹ runs.
    gateway.calls(400).await;
    assert_eq!(get(gateway.operations, "/top", &[]).await.status, 401);
    let shown = get(gateway.operations, "/top", &TOKEN).await.json();
    assert_eq!(shown["keys"], serde_json::json!([]), "the window is not whole yet");
    clock.advance(Duration::from_secs(10));
    let shown = get(gateway.operations, "/top", &TOKEN).await.json();
    let first = &shown["keys"][0];
    assert_eq!((&first["client"], &first["key"]), (&"acme".into(), &"k1".into()));
    let count = |name: &str| first[name].as_u64().unwrap();
    assert!(count("requests") >= 16 && count("denied") <= count("requests"), "{shown}");
    assert_eq!(shown["seconds"], 10);
}

#[tokio::test]
async fn a_level_of_logs_that_nobody_has_is_refused() {
    let service = Service::hello().await;
    let folder = page(MANY, &service);
    let gateway = Gateway::of_file(&folder.path().join("gateway.toml")).await;
    assert_eq!(put_level(&gateway, "debug", &[]).await.status, 401);
    let refused = put_level(&gateway, "debugg", &TOKEN).await;
    assert_eq!(refused.status, 422);
    assert!(refused.json()["detail"].as_str().unwrap().contains("`debugg`"), "{refused:?}");
    assert_eq!(put_level(&gateway, &"x".repeat(2_000), &TOKEN).await.status, 413);
    let others = put_level(&gateway, "debug", &TOKEN).await;
    assert_eq!(others.status, 501, "the logs of this process are the test's: {others:?}");
}
