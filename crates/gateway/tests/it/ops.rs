//! The operations port: alive, ready, counted, and one client's bucket for those with the token.

use std::sync::Arc;

use edge::limiter::Clock;
use edge::limiter::store::memory::MemoryStore;
use limiter_core::testkit::{Fault, FaultyStore, ManualClock};

use crate::support::{Gateway, Service, file, get, raw, tally};

const PLAN: &str = "burst = { capacity = 10, refill = \"1/s\" }";

#[tokio::test]
async fn it_answers_without_a_key_and_is_not_reachable_through_traffic() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    for (path, status) in [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/buildz", 200)] {
        assert_eq!(get(gateway.operations, path, &[]).await.status, status, "{path}");
        assert_eq!(get(gateway.traffic, path, &[]).await.status, 401, "{path} is a route there");
    }
}

#[tokio::test]
async fn c24_probes_are_free_and_live_without_a_store() {
    let service = Service::hello().await;
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let store = Arc::new(FaultyStore::new(memory));
    let route = "auth = \"anonymous\"\n[anonymous]\nplan = \"five\"\n[plan.five]\n\
        burst = { capacity = 5, refill = \"1/d\" }\nfailure = \"open\"\n";
    let text = file(PLAN, route, service.address);
    let gateway = Gateway::over(&text, Arc::clone(&store), clock).await;
    // From one address, a thousand on each connection.
    let probe = async |count: usize| {
        let one = "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n";
        let last = "GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        for _ in 0..count / 1_000 {
            let answers = raw(gateway.operations, (one.repeat(999) + last).as_bytes()).await;
            assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 1_000);
        }
    };
    probe(10_000).await;
    assert!(store.calls().is_empty(), "no bucket is touched");
    let mut replies = Vec::new();
    for _ in 0..6 {
        replies.push(get(gateway.traffic, "/", &[]).await);
    }
    assert_eq!(tally(&replies), [(200, 5), (429, 1)], "all tokens of the address were there");
    store.always(Fault::Hang);
    probe(10_000).await;
    let ready = get(gateway.operations, "/readyz", &[]).await;
    assert_eq!(ready.status, 200, "without a store the failure policy answers");
}

#[tokio::test]
async fn a_clients_bucket_is_shown_to_the_token_alone() {
    let service = Service::hello().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "ops-token\n").unwrap();
    let text = file(PLAN, "", service.address).replace(
        "[operations]\n",
        &format!("[operations]\ntoken_file = \"{}\"\n", token.display()),
    );
    let gateway = Gateway::start(&text).await;
    gateway.calls(4).await;
    let path = "/limits/acme";
    assert_eq!(get(gateway.operations, path, &[]).await.code(), "token_missing");
    let wrong = [("authorization", "Bearer other")];
    assert_eq!(get(gateway.operations, path, &wrong).await.code(), "token_invalid");
    let right = [("authorization", "Bearer ops-token")];
    let shown = get(gateway.operations, path, &right).await;
    assert_eq!(shown.status, 200);
    let shown = shown.json();
    assert_eq!((&shown["client"], &shown["plan"]), (&"acme".into(), &"pro".into()));
    assert_eq!(shown["burst"]["capacity"], 10);
    let left = shown["remaining"].as_u64().unwrap();
    assert!((6..=9).contains(&left), "six and what came back meanwhile: {left}");
    assert_eq!(get(gateway.operations, "/limits/nobody", &right).await.code(), "not_found");
    // Whoever knows the client's terms says them: the plan, and limits of its own.
    let own = r#"%7B%22burst%22:%7B%22capacity%22:50,%22tokens%22:1,%22per_us%22:1000000%7D"#;
    let ends = u64::MAX >> 1;
    let told =
        format!("{path}?plan=pro&revision=4000000000000&override={own},%22expires_at%22:{ends}%7D");
    let shown = get(gateway.operations, &told, &right).await.json();
    assert_eq!(shown["burst"]["capacity"], 50, "{shown}");
    let broken = format!("{path}?plan=pro&override=often");
    assert_eq!(get(gateway.operations, &broken, &right).await.code(), "bad_request");
}

#[tokio::test]
async fn without_a_token_no_client_is_shown() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    gateway.calls(1).await;
    let any = [("authorization", "Bearer any")];
    assert_eq!(get(gateway.operations, "/limits/acme", &any).await.status, 401);
}

#[tokio::test]
async fn requests_and_added_time_are_counted_without_a_callers_words() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "name = \"root\"", service.address)).await;
    gateway.calls(12).await;
    get(gateway.traffic, "/", &[("x-api-key", "some-secret-key")]).await;
    let text =
        String::from_utf8(get(gateway.operations, "/metrics", &[]).await.body.to_vec()).unwrap();
    assert!(text.contains("weir_gateway_requests_total{route=\"root\",class=\"2xx\"}"), "{text}");
    assert!(text.contains("weir_gateway_added_seconds_count 13"), "{text}");
    for secret in ["some-secret-key", "acme-key", "acme"] {
        assert!(!text.contains(secret), "{secret}");
    }
}
