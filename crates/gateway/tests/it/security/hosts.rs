//! Whom a request is for: one host in one form, and a method that is a word. What is judged, what
//! is sent on and what is counted are the same.

use super::sizes::status_over_http2;
use super::{PLAN, SMUGGLED, head, text, world};
use crate::support::bytes::write;
use crate::support::caller::request;
use crate::support::frames::block;
use crate::support::service::text as answer;
use crate::support::{Gateway, KEY, Service, file, get, send, standing, tally};

#[tokio::test]
async fn s24_a_host_is_one_name_or_the_request_is_refused() {
    let (gateway, service) = world().await;
    let key = format!("x-api-key: {KEY}\r\n");
    for lines in [
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n",
        "GET / HTTP/1.1\r\nhost: a, b\r\n",
        "GET / HTTP/1.1\r\nhost: a,b\r\n",
        "GET / HTTP/1.1\r\nhost: a b\r\n",
        "GET / HTTP/1.1\r\nhost:\r\n",
        "GET / HTTP/1.1\r\nhost: u@a\r\n",
        "GET / HTTP/1.1\r\nhost: a/b\r\n",
        "GET / HTTP/1.1\r\nhost: http://a\r\n",
        "GET / HTTP/1.1\r\nhost: a?b\r\n",
        "GET / HTTP/1.1\r\nhost: a#b\r\n",
        "GET / HTTP/1.1\r\nhost: a:b\r\n",
        "GET / HTTP/1.1\r\nhost: a:80:80\r\n",
        "GET / HTTP/1.1\r\nhost: a:99999\r\n",
        "GET / HTTP/1.1\r\nhost: a:\r\n",
        "GET / HTTP/1.1\r\nhost: .\r\n",
        "GET / HTTP/1.1\r\nhost: [::1\r\n",
        "GET / HTTP/1.1\r\nhost: %61\r\n",
        "GET / HTTP/1.1\r\nhost : a\r\n",
        "GET http://a/ HTTP/1.1\r\nhost: b\r\n",
        "GET http://a/ HTTP/1.1\r\nhost: a:80\r\n",
        "GET http://u@a/ HTTP/1.1\r\nhost: a\r\n",
        "GET http://u@a/ HTTP/1.1\r\nhost: u@a\r\n",
    ] {
        let bytes = format!("{lines}{key}\r\n{SMUGGLED}");
        let came = write(gateway.traffic, bytes.as_bytes()).await;
        assert_eq!(came.statuses, [400], "{lines:?} → {}", came.text);
    }
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn s24_another_spelling_is_the_same_tenant_to_route_and_service() {
    let (one, two) = (Service::hello().await, Service::answering(|_| answer(200, "two")).await);
    let routes = format!(
        "[[route]]\nhost = \"two.test\"\nupstream = \"two\"\n[upstream.two]\nendpoints = [\"{}\"]\n",
        two.address
    );
    let gateway = Gateway::start(&file(PLAN, &routes, one.address)).await;
    for (host, told) in [
        ("two.test", "two.test"),
        ("TWO.Test", "two.test"),
        ("two.test.", "two.test"),
        ("two.test:8080", "two.test:8080"),
        ("Two.TEST.:08080", "two.test:8080"),
    ] {
        for line in ["GET /".to_owned(), format!("GET http://{host}/")] {
            let bytes = format!(
                "{line} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {KEY}\r\nconnection: close\r\n\r\n"
            );
            let came = write(gateway.traffic, bytes.as_bytes()).await;
            assert!(came.text.ends_with("two"), "{host}: {}", came.text);
            let seen = two.last().headers;
            assert_eq!(seen["host"], told, "{host}");
            assert_eq!(seen["x-forwarded-host"], told, "{host}");
        }
    }
    assert_eq!(one.requests(), 0, "no spelling leads to the other tenant");
}

/// A request over HTTP/2 with these hosts.
fn over_http2(hosts: &[(&str, &str)]) -> Vec<u8> {
    let first = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let (pseudo, fields): (Vec<_>, Vec<_>) =
        hosts.iter().copied().partition(|(name, _)| name.starts_with(':'));
    block(&[&first[..], &pseudo, &fields, &[("x-api-key", KEY)]].concat())
}

#[tokio::test]
async fn s24_over_http2_the_authority_is_the_host_and_another_beside_it_is_refused() {
    let (gateway, service) = world().await;
    let name = ":authority";
    for hosts in [
        &[(name, "a.test"), ("host", "b.test")][..],
        &[(name, "a.test"), ("host", "a.test:80")],
        &[(name, "a.test"), ("host", "a.test"), ("host", "a.test")],
        &[(name, "a.test"), ("host", "")],
        &[("host", "a.test"), ("host", "b.test")],
        &[("host", "a.test, b.test")],
        &[],
        &[(name, "")],
        &[(name, "u@a.test")],
        &[(name, "a.test/b")],
        &[(name, "a b")],
        &[(name, "a.test:99999")],
        &[(name, "a.test"), (name, "b.test")],
    ] {
        // What the engine does not take at all ends the stream without a status.
        let status = status_over_http2(gateway.traffic, &[over_http2(hosts)]).await;
        assert!([400, 0].contains(&status), "{hosts:?}: {status}");
    }
    assert_eq!(service.requests(), 0);
    for hosts in [
        &[(name, "a.test")][..],
        &[(name, "A.TEST.")],
        &[(name, "a.test"), ("host", "a.test")],
        &[("host", "a.test")],
    ] {
        assert_eq!(
            status_over_http2(gateway.traffic, &[over_http2(hosts)]).await,
            200,
            "{hosts:?}"
        );
        let seen = service.last().headers;
        for field in ["host", "x-forwarded-host"] {
            assert_eq!(seen[field], "a.test", "{field} of {hosts:?}");
        }
    }
}

#[tokio::test]
async fn s25_a_method_is_a_word_and_never_a_way_around_the_limit() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 3, refill = \"1/d\" }";
    let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
    let key = [("x-api-key", KEY)];
    for method in ["TRACE", "get", "Get", "GET_", "M!", "0", &"A".repeat(33), &"A".repeat(8_000)] {
        let reply = send(gateway.traffic, request(method, "/", &key)).await;
        let shown: String = method.chars().take(10).collect();
        assert_eq!((reply.status, &*reply.code()), (501, "not_implemented"), "{shown}");
    }
    for line in ["G\0T / HTTP/1.1", "G T / HTTP/1.1", " GET / HTTP/1.1", "GE{T / HTTP/1.1"] {
        let came = write(gateway.traffic, (head(line, "") + SMUGGLED).as_bytes()).await;
        assert_eq!(came.statuses, [400], "{line:?} → {}", came.text);
    }
    assert_eq!(service.requests(), 0);
    // OPTIONS and HEAD cost what others cost, and so does a method that nobody knows.
    let mut replies = Vec::new();
    for method in ["OPTIONS", "HEAD", "FROBNICATE", "OPTIONS", "HEAD", "FROBNICATE"] {
        replies.push(send(gateway.traffic, request(method, "/", &key)).await);
    }
    assert_eq!(tally(&replies), [(200, 3), (429, 3)]);
    let shown = get(gateway.operations, "/metrics", &[]).await.body;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    for word in ["TRACE", "FROBNICATE", "OPTIONS", "AAAA"] {
        assert!(!shown.contains(word), "{word} is a label");
    }
}

#[tokio::test]
async fn s25_a_preflight_is_free_only_where_a_route_asks_for_it_and_never_reaches_a_service() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&text(service.address)).await;
    let asking = [("origin", "https://app.example"), ("access-control-request-method", "GET")];
    let reply = send(gateway.traffic, request("OPTIONS", "/", &asking)).await;
    assert_eq!((reply.status, service.requests()), (401, 0));
}
