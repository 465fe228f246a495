//! A denied request gets a 429 that tells the truth, and reaches nobody.

use std::sync::Arc;
use std::time::Duration;

use crate::support::caller::request;
use crate::support::{Gateway, KEY, Service, file, get, key_table, raw, send, standing, tally};

const TEN: &str = "burst = { capacity = 10, refill = \"10/s\" }";

#[tokio::test]
async fn c01_the_eleventh_request_of_ten_waits_a_whole_second() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let gateway = Gateway::over(&file(TEN, "", service.address), store, clock).await;
    let replies = gateway.calls(11).await;
    for (index, reply) in replies[..10].iter().enumerate() {
        assert_eq!(reply.status, 200);
        let standing = reply.header("ratelimit");
        assert!(standing.starts_with(&format!("\"burst\";r={}", 9 - index)), "{standing}");
    }
    let denied = &replies[10];
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), "1");
    assert_eq!(denied.header("retry-after-ms"), "100");
    assert_eq!(denied.header("x-ratelimit-remaining"), "0");
    assert_eq!(denied.header("x-ratelimit-limit"), "10");
    assert_eq!(denied.header("x-ratelimit-retry-after"), "1");
    assert_eq!(denied.header("ratelimit-policy"), "\"burst\";q=10;w=1");
    assert_eq!(denied.header("ratelimit"), "\"burst\";r=0;t=1");
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(denied.header("x-weir-source"), "edge");
    let body = denied.json();
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(body["violated-policies"], serde_json::json!(["burst"]));
    assert_eq!(body["retry_after"], 1);
    assert_eq!(body["request_id"], denied.header("x-request-id"));
    assert_eq!(service.requests(), 10, "the denied one reached nobody");
}

#[tokio::test]
async fn c01_a_slow_refill_is_never_told_as_zero_and_never_early() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 1, refill = \"1/10s\" }";
    let gateway =
        Gateway::over(&file(plan, "", service.address), store, Arc::clone(&clock) as _).await;
    assert_eq!(gateway.calls(1).await[0].status, 200);
    for second in 1..10_u64 {
        clock.advance(Duration::from_secs(1));
        let reply = &gateway.calls(1).await[0];
        assert_eq!(reply.status, 429, "after {second} s");
        assert_eq!(reply.header("retry-after"), (10 - second).to_string(), "after {second} s");
        assert_eq!(reply.header("x-ratelimit-remaining"), "0", "its numbers do not say enough");
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!(gateway.calls(1).await[0].status, 200, "after 10 s");
}

#[tokio::test]
async fn c03_the_largest_numbers_are_told_digit_by_digit() {
    let service = Service::hello().await;
    for (capacity, left, window) in
        [("1000000000000", "999999999999", 1_000), ("123456789012", "123456789011", 124)]
    {
        let (clock, store) = standing();
        let plan = format!("burst = {{ capacity = {capacity}, refill = \"1000000000/s\" }}");
        let gateway = Gateway::over(&file(&plan, "", service.address), store, clock).await;
        let reply = &gateway.calls(1).await[0];
        assert_eq!(reply.status, 200);
        let policy = format!("\"burst\";q={capacity};w={window}");
        assert_eq!(reply.header("ratelimit-policy"), policy);
        assert_eq!(reply.header("ratelimit"), format!("\"burst\";r={left};t=1"));
    }
}

#[tokio::test]
async fn c05_what_can_never_fit_is_not_told_to_come_back() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 10, refill = \"1/s\" }";
    let route = "[[route]]\npath = \"/dear\"\nupstream = \"up\"\ncost = 11\nname = \"dear\"\n\
        [[route]]\npath = \"/huge\"\nupstream = \"up\"\ncost = 200000000\nname = \"huge\"\n\
        [[route]]\npath = \"/ten\"\nupstream = \"up\"\ncost = 10\nname = \"ten\"\n\
        [[route]]\npath = \"/five\"\nupstream = \"up\"\ncost = 5\nname = \"five\"\n\
        [[route]]\npath = \"/eight\"\nupstream = \"up\"\ncost = 8\nname = \"eight\"\n";
    let text = file(plan, route, service.address);
    let gateway = Gateway::over(&text, store, Arc::clone(&clock) as _).await;
    let call = async |path: &str| get(gateway.traffic, path, &[("x-api-key", KEY)]).await;

    for path in ["/dear", "/huge"] {
        let never = call(path).await;
        assert_eq!((never.status, never.code().as_str()), (403, "cost_exceeds_capacity"));
        assert_eq!(never.header("retry-after"), "");
    }
    assert_eq!(service.requests(), 0);

    let all = call("/ten").await;
    assert_eq!(all.status, 200, "nothing was taken before");
    assert!(all.header("ratelimit").starts_with("\"burst\";r=0"), "{}", all.header("ratelimit"));

    clock.advance(Duration::from_secs(10));
    assert_eq!(call("/eight").await.status, 200);
    for _ in 0..3 {
        let denied = call("/five").await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, "3"));
        assert_eq!(denied.header("x-ratelimit-remaining"), "2", "a denial takes nothing");
    }
    assert_eq!(service.requests(), 2);
}

#[tokio::test]
async fn c07_the_tightest_limit_is_the_one_told() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 2, refill = \"2/s\" }\n\
        sustained = { capacity = 10, refill = \"10/h\" }";
    let gateway =
        Gateway::over(&file(plan, "", service.address), store, Arc::clone(&clock) as _).await;
    let replies = gateway.calls(10).await;
    assert_eq!(tally(&replies), [(200, 2), (429, 8)]);
    for denied in &replies[2..] {
        assert_eq!(denied.header("retry-after"), "1");
        assert_eq!(denied.header("x-ratelimit-limit"), "2");
        assert_eq!(denied.header("x-ratelimit-remaining"), "0");
        let policy = "\"burst\";q=2;w=1, \"sustained\";q=10;w=3600";
        assert_eq!(denied.header("ratelimit-policy"), policy);
        assert!(denied.header("ratelimit").starts_with("\"burst\";r=0"));
    }
    // Four more seconds with two each: the long bucket is then empty, and told.
    for _ in 0..4 {
        clock.advance(Duration::from_secs(1));
        assert_eq!(tally(&gateway.calls(2).await), [(200, 2)]);
    }
    clock.advance(Duration::from_secs(1));
    let denied = &gateway.calls(1).await[0];
    assert_eq!(denied.status, 429);
    let wait: u64 = denied.header("retry-after").parse().unwrap();
    assert!((1..=360).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-ratelimit-limit"), "10", "the long limit is what refuses");
    assert!(denied.header("ratelimit").starts_with("\"sustained\";r=0"));
}

#[tokio::test]
async fn c11_three_gateways_and_three_routes_share_one_limit() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 9, refill = \"1/d\" }";
    let route = "[[route]]\npath = \"/a\"\nupstream = \"up\"\nname = \"a\"\n\
        [[route]]\npath = \"/b\"\nupstream = \"up\"\nname = \"b\"\n";
    let text = file(plan, route, service.address);
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(Gateway::over(&text, Arc::clone(&store), Arc::clone(&clock) as _).await);
    }
    let mut replies = Vec::new();
    for _ in 0..9 {
        for gateway in &gateways {
            for path in ["/", "/a", "/b"] {
                replies.push(get(gateway.traffic, path, &[("x-api-key", KEY)]).await);
            }
        }
    }
    assert_eq!(tally(&replies), [(200, 9), (429, 72)]);
    assert_eq!(service.requests(), 9);
    assert_eq!(store.len(), 1, "one client, one bucket");
}

#[tokio::test]
async fn c08_a_fixed_allowance_ends_without_a_time() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 5, refill = \"0\" }";
    let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
    let replies = gateway.calls(7).await;
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    for denied in &replies[5..] {
        for name in ["retry-after", "retry-after-ms", "x-ratelimit-retry-after"] {
            assert_eq!(denied.header(name), "", "{name}");
        }
        assert_eq!(denied.header("ratelimit-policy"), "\"burst\";q=5");
    }
}

#[tokio::test]
async fn what_is_left_and_until_it_is_full_are_told_alike_with_every_status() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 3, refill = \"1/2s\" }";
    let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
    let told: Vec<_> = gateway
        .calls(5)
        .await
        .iter()
        .map(|reply| format!("{} {}", reply.status, reply.header("ratelimit")))
        .collect();
    // The wait of a denial is two seconds; the time until the bucket is full stays six.
    assert_eq!(
        told,
        [
            "200 \"burst\";r=2;t=2",
            "200 \"burst\";r=1;t=4",
            "200 \"burst\";r=0;t=6",
            "429 \"burst\";r=0;t=6",
            "429 \"burst\";r=0;t=6",
        ]
    );
}

#[tokio::test]
async fn c30_gateways_that_restart_one_after_the_other_hand_out_no_token() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let text = file("burst = { capacity = 10, refill = \"1/d\" }", "", service.address);
    let start = async || Gateway::over(&text, Arc::clone(&store), Arc::clone(&clock) as _).await;
    let mut gateways = [start().await, start().await];
    for gateway in &gateways {
        assert_eq!(tally(&gateway.calls(2).await), [(200, 2)]);
    }
    for gateway in &mut gateways {
        gateway.drain.start();
        (&mut gateway.ended).await.unwrap().unwrap();
        *gateway = start().await;
    }
    let mut replies = gateways[0].calls(5).await;
    replies.extend(gateways[1].calls(5).await);
    assert_eq!(tally(&replies), [(200, 6), (429, 4)]);
}

#[tokio::test]
async fn a_head_request_is_refused_with_the_same_headers_and_no_body() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let gateway = Gateway::over(&file(TEN, "", service.address), store, clock).await;
    gateway.calls(10).await;
    let headers = [("x-api-key", KEY)];
    let got = send(gateway.traffic, request("GET", "/", &headers)).await;
    let head = send(gateway.traffic, request("HEAD", "/", &headers)).await;
    assert_eq!((got.status, head.status), (429, 429));
    assert!(!got.body.is_empty());
    let asking =
        format!("HEAD / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\nconnection: close\r\n\r\n");
    let bytes = raw(gateway.traffic, asking.as_bytes()).await;
    assert!(bytes.starts_with("HTTP/1.1 429"), "{bytes}");
    assert_eq!(bytes.find("\r\n\r\n"), Some(bytes.len() - 4), "a head and nothing else: {bytes}");
    for name in ["retry-after", "ratelimit", "content-type", "content-length", "x-weir-source"] {
        assert_eq!(got.header(name), head.header(name), "{name}");
    }
}

#[tokio::test]
async fn unlimited_is_said_and_then_nothing_is_told() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file("unlimited = true", "", service.address)).await;
    for reply in gateway.calls(50).await {
        assert_eq!((reply.status, reply.header("ratelimit")), (200, ""));
    }
}

#[tokio::test]
async fn clients_do_not_share_a_limit() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let other = format!("[client.other]\nplan = \"pro\"\n{}", key_table("k2", "other", "other"));
    let text = file("burst = { capacity = 1, refill = \"1/d\" }", &other, service.address);
    // The tables of the other client stand behind a route; TOML does not mind.
    let gateway = Gateway::over(&text, store, clock).await;
    assert_eq!(tally(&gateway.calls(2).await), [(200, 1), (429, 1)]);
    let reply = get(gateway.traffic, "/", &[("authorization", "Bearer other")]).await;
    assert_eq!(reply.status, 200);
}
