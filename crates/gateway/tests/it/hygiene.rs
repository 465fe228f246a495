//! Headers: what ends at the gateway, what only the gateway says, what passes.

use http::Response;
use http_body_util::{BodyExt, Full};

use crate::support::caller::{request, send_from};
use crate::support::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, frame};
use crate::support::service::{RawService, text};
use crate::support::{Gateway, KEY, Service, file, frames, get, raw};

const PLAN: &str = "burst = { capacity = 100, refill = \"100/s\" }";

#[tokio::test]
async fn a_service_is_told_who_calls_by_the_gateway_alone() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let headers = [
        ("x-api-key", KEY),
        ("x-weir-client", "victim"),
        ("x_weir_plan", "enterprise"),
        ("x-request-id", "chosen"),
        ("x-forwarded-for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("accept", "text/plain"),
    ];
    let reply = get(gateway.traffic, "/a?b=%2F", &headers).await;
    assert_eq!(reply.status, 200);
    let seen = service.last();
    let header = |name: &str| seen.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("x-weir-client"), Some("acme"));
    assert_eq!(header("x-weir-plan"), Some("pro"));
    assert_eq!(header("x_weir_plan"), None);
    assert_eq!(header("x-request-id"), Some(reply.header("x-request-id")));
    assert_ne!(header("x-request-id"), Some("chosen"));
    assert_eq!(header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(header("forwarded"), Some("for=127.0.0.1;proto=http"));
    assert_eq!(header("host"), Some("api.test"));
    assert_eq!(header("accept"), Some("text/plain"));
    assert_eq!(header("x-api-key"), None, "the key stays here");
    assert_eq!(seen.uri, "/a?b=%2F");
    assert_eq!(reply.header("x-weir-source"), "", "a service's answer");
}

#[tokio::test]
async fn how_a_request_came_is_believed_of_trusted_proxies_alone() {
    let service = Service::hello().await;
    let proxies = "trusted_proxies = [\"127.0.0.9\"]\n[operations]\n";
    let text = file(PLAN, "", service.address).replace("[operations]\n", proxies);
    let gateway = Gateway::start(&text).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("x-api-key", KEY),
        ("x-forwarded-for", "198.51.100.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.example"),
        ("x-forwarded-prefix", "/admin"),
        ("traceparent", trace),
        ("tracestate", "a=1"),
    ];
    for (from, address, proto, host, forwarded) in [
        (
            "127.0.0.9",
            "198.51.100.7, 127.0.0.9",
            "https",
            "shop.example",
            "for=198.51.100.7;proto=https, for=127.0.0.9;proto=http",
        ),
        ("127.0.0.50", "127.0.0.50", "http", "api.test", "for=127.0.0.50;proto=http"),
    ] {
        let reply = send_from(from, gateway.traffic, request("GET", "/", &headers)).await;
        assert_eq!(reply.status, 200);
        let seen = service.last().headers;
        let told = |name: &str| seen.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(told("x-forwarded-for"), Some(address));
        assert_eq!(told("x-forwarded-proto"), Some(proto));
        assert_eq!(told("x-forwarded-host"), Some(host));
        assert_eq!(told("forwarded"), Some(forwarded));
        assert_eq!(told("x-forwarded-prefix"), None);
        assert_eq!((told("traceparent"), told("tracestate")), (Some(trace), Some("a=1")));
    }
}

#[tokio::test]
async fn a_key_named_by_connection_still_counts_and_named_fields_end_here() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let headers = [
        ("connection", ""),
        ("connection", "x-api-key, X-Secret, x-weir-client, te"),
        ("x-api-key", KEY),
        ("x-secret", "s"),
        ("te", "gzip, trailers"),
        ("keep-alive", "timeout=9"),
        ("proxy-authorization", "Basic x"),
    ];
    assert_eq!(get(gateway.traffic, "/", &headers).await.status, 200);
    let seen = service.last().headers;
    for gone in ["x-api-key", "x-secret", "keep-alive", "proxy-authorization", "connection"] {
        assert!(!seen.contains_key(gone), "{gone} in {seen:?}");
    }
    assert_eq!(seen.get("x-weir-client").unwrap(), "acme");
    assert_eq!(seen.get("te").unwrap(), "trailers");
}

#[tokio::test]
async fn cookies_that_came_over_http2_in_pieces_are_one_field_to_a_service() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let mut caller = Frames::open(gateway.traffic).await;
    let pieces = [("x-api-key", KEY), ("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")];
    let head = frames::request("GET", "/", &pieces);
    assert!(caller.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)).await);
    caller.find(HEADERS).await.expect("an answer");
    let seen = service.last().headers;
    let cookies: Vec<_> = seen.get_all("cookie").iter().collect();
    assert_eq!(cookies, ["a=1; b=2; c=3"]);
}

#[tokio::test]
async fn a_response_keeps_one_set_of_limit_fields_and_loses_what_is_ours_to_say() {
    let service = Service::answering(|_head| {
        Response::builder()
            .status(200)
            .header("ratelimit", "\"theirs\";r=1")
            .header("ratelimit-policy", "\"theirs\";q=1")
            .header("x-ratelimit-remaining", "77")
            .header("x-weir-decision", "v1;d=allow")
            .header("x-weir-source", "edge")
            .header("connection", "x-internal")
            .header("x-internal", "1")
            .header("x-kept", "1")
            .body(Full::from("hello").boxed())
            .unwrap()
    })
    .await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!(reply.header("ratelimit-policy"), "\"burst\";q=100;w=1");
    assert!(reply.header("ratelimit").starts_with("\"burst\";r="));
    for gone in ["x-ratelimit-remaining", "x-weir-decision", "x-weir-source", "x-internal"] {
        assert_eq!(reply.header(gone), "", "{gone}");
    }
    assert_eq!(reply.header("x-kept"), "1");
    assert_eq!(reply.body, "hello");
}

#[tokio::test]
async fn a_services_own_refusal_passes_as_it_is() {
    let service = Service::answering(|_head| text(503, "mine")).await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!((reply.status, reply.body.as_ref()), (503, &b"mine"[..]));
    assert_eq!(reply.header("x-weir-source"), "", "not the gateway's");
}

#[tokio::test]
async fn what_has_two_readings_is_refused_and_reaches_nobody() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let key = format!("x-api-key: {KEY}\r\n");
    let cases = [
        ("GET /a/../b HTTP/1.1\r\nhost: a\r\n", "400"),
        ("GET /a%2fb HTTP/1.1\r\nhost: a\r\n", "400"),
        ("GET / HTTP/1.1\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n", "400"),
        ("GET http://a/ HTTP/1.1\r\nhost: b\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: a,b\r\n", "400"),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n", "400"),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n", "501"),
        ("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n", "501"),
    ];
    for (head, status) in cases {
        let close = if head.contains("connection:") { "" } else { "connection: close\r\n" };
        let close = if status == "501" && close.is_empty() { "x: y\r\n" } else { close };
        let bytes = format!("{head}{key}{close}\r\n");
        let answer = first_line(gateway.traffic, &bytes).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head} → {answer}");
    }
    assert_eq!(service.requests(), 0);
    let absolute = format!(
        "GET http://A.test:80/x HTTP/1.1\r\nhost: a.test:80\r\n{key}connection: close\r\n\r\n"
    );
    assert!(raw(gateway.traffic, absolute.as_bytes()).await.starts_with("HTTP/1.1 200"));
}

/// The status line, without waiting for the other side to close.
async fn first_line(to: std::net::SocketAddr, bytes: &str) -> String {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let mut stream = BufReader::new(tokio::net::TcpStream::connect(to).await.unwrap());
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut line = String::new();
    tokio::time::timeout(crate::support::PATIENCE, stream.read_line(&mut line))
        .await
        .expect("an answer in time")
        .unwrap();
    line
}

#[tokio::test]
async fn trailers_carry_nothing_that_a_header_may_not() {
    let service = RawService::answering(
        "HTTP/1.1 200 OK\r\ntrailer: x-sum, x-weir-source, ratelimit\r\n\
         transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\
         x-sum: 1\r\nx-weir-source: edge\r\nratelimit: \"x\";r=9\r\n\r\n",
        "0\r\nx-sum: 7\r\n\r\n",
    )
    .await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let request = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\nconnection: close\r\nte: trailers\r\n\
         trailer: x-sum, x-weir-client, x-api-key\r\ntransfer-encoding: chunked\r\n\r\n\
         2\r\nhi\r\n0\r\nx-weir-client: victim\r\nX-Sum: 7\r\nx-api-key: k\r\n\r\n"
    );
    let answer = raw(gateway.traffic, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(service.seen().contains("\r\nx-weir-client: acme\r\n"), "{}", service.seen());
    assert!(!service.seen().contains("victim"), "{}", service.seen());
    assert!(!service.seen().contains("x-api-key: "), "{}", service.seen());
    let (_, trailers) = answer.split_once("\r\n0\r\n").expect("a last chunk");
    assert_eq!(trailers, "x-sum: 1\r\n\r\n");
}

#[tokio::test]
async fn a_response_with_two_readings_is_no_response() {
    for response in [
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let service = RawService::answering(response, "\r\n\r\n").await;
        let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
        let reply = &gateway.calls(1).await[0];
        assert_eq!((reply.status, &*reply.code()), (502, "upstream_failed"), "{response}");
    }
}
