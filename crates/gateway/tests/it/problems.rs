//! Refusals as programs read them: each is a problem document with its type, its request's id and
//! the word that the gateway gave it.

use http_body_util::Full;

use crate::support::caller::request;
use crate::support::scripted::{Act, Scripted};
use crate::support::service::nobody;
use crate::support::{Gateway, KEY, Reply, Service, file, get, key_table, send, standing};

/// Checks what all refusals have in common.
fn assert_is_problem(reply: &Reply, status: u16, code: &str) {
    assert_eq!(reply.status, status, "{code}: {reply:?}");
    for (name, value) in [
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
        ("x-weir-source", "edge"),
    ] {
        assert_eq!(reply.header(name), value, "{code}: {name}");
    }
    let body = reply.json();
    assert_eq!((&body["status"], &body["code"]), (&status.into(), &code.into()));
    assert_eq!(body["request_id"], reply.header("x-request-id"), "{code}");
    assert_eq!(reply.header("x-request-id").len(), 32, "{code}");
    assert!(body["title"].as_str().is_some_and(|title| !title.is_empty()), "{code}");
    assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{code}");
    let (problem_type, policies) = (&body["type"], &body["violated-policies"]);
    if code == "quota_exceeded" {
        let registered = "https://iana.org/assignments/http-problem-types#quota-exceeded";
        assert_eq!(problem_type, registered);
        assert_eq!(policies, &serde_json::json!(["burst"]));
    } else {
        assert_eq!(problem_type, &format!("urn:weir:problem:{code}"));
        assert!(policies.is_null(), "{code}");
    }
    let told = body["retry_after"].as_u64().map_or_else(String::new, |wait| wait.to_string());
    assert_eq!(reply.header("retry-after"), told, "{code}");
}

#[tokio::test]
async fn every_refusal_is_a_problem_with_its_type_and_its_requests_id() {
    let service = Service::hello().await;
    let silent = Scripted::new(|_| Act::Keep).await;
    let more = format!(
        "methods = [\"GET\", \"POST\"]\n\
         [[route]]\npath = \"/dear\"\nupstream = \"up\"\ncost = 100\n\
         [[route]]\npath = \"/away\"\nupstream = \"away\"\nauth = \"none\"\n\
         [[route]]\npath = \"/silent\"\nupstream = \"silent\"\nauth = \"none\"\n\
         [[route]]\nhost = \"only.test\"\npath = \"/x\"\nexact = true\nupstream = \"up\"\n\
         [client.late]\nplan = \"pro\"\nstate = \"suspended\"\n{}\
         [upstream.away]\nendpoints = [\"{}\"]\n\
         [upstream.silent]\nendpoints = [\"{}\"]\nhead_timeout = \"50ms\"\n",
        key_table("k2", "late", "late-key"),
        nobody().await,
        silent.address,
    );
    let plan = "burst = { capacity = 1, refill = \"1/d\" }";
    let text = file(plan, &more, service.address).replacen("path = \"/\"", "path = \"/v1\"", 1)
        + "[limits]\nbody_bytes = 3\n";
    let (clock, store) = standing();
    let gateway = Gateway::over(&text, store, clock).await;
    let key = ("x-api-key", KEY);
    assert_eq!(get(gateway.traffic, "/v1", &[key]).await.status, 200);
    let long = format!("/v1?{}", "q".repeat(8_200));
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16, &'a str);
    let cases: [Case<'_>; 14] = [
        ("GET", "/v1/../x", &[key], 400, "bad_request"),
        ("GET", "/v1", &[("x-api-key", "a b")], 400, "key_malformed"),
        ("GET", "/v1", &[key, key], 400, "key_ambiguous"),
        ("GET", "/v1", &[], 401, "key_missing"),
        ("GET", "/v1", &[("x-api-key", "nobodys")], 401, "key_invalid"),
        ("GET", "/v1", &[("x-api-key", "late-key")], 403, "client_suspended"),
        ("GET", "/dear", &[key], 403, "cost_exceeds_capacity"),
        ("GET", "/nowhere", &[key], 404, "route_unknown"),
        ("PUT", "/v1", &[key], 405, "method_not_allowed"),
        ("GET", &long, &[key], 414, "target_too_long"),
        ("GET", "/v1", &[key], 429, "quota_exceeded"),
        ("TRACE", "/v1", &[key], 501, "not_implemented"),
        ("GET", "/away", &[], 502, "upstream_failed"),
        ("GET", "/silent", &[], 504, "upstream_timeout"),
    ];
    for (method, target, headers, status, code) in cases {
        let reply = send(gateway.traffic, request(method, target, headers)).await;
        assert_is_problem(&reply, status, code);
    }
    let posted = request("POST", "/v1", &[key]).map(|_| Full::from("four"));
    assert_is_problem(&send(gateway.traffic, posted).await, 413, "body_too_large");
    assert_eq!(service.requests(), 1);
}
