//! Host, path and method lead to one upstream, and the service gets what was judged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::caller::request;
use crate::support::service::text;
use crate::support::{Gateway, KEY, Service, file, get, raw, send};

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";

#[tokio::test]
async fn requests_go_where_their_route_says() {
    let root = Service::hello().await;
    let orders = Service::answering(|_head| text(200, "orders")).await;
    let route = "[[route]]\nhost = \"*.shop.test\"\npath = \"/orders\"\nupstream = \"orders\"\n\
        strip_prefix = true\nmethods = [\"GET\"]\n\
        [[route]]\nhost = \"only.test\"\npath = \"/post\"\nexact = true\nmethods = [\"POST\"]\n\
        upstream = \"up\"\n\
        [[route]]\npath = \"/open\"\nupstream = \"up\"\nauth = \"none\"\n";
    let config = file(PLAN, route, root.address)
        + &format!("[upstream.orders]\nendpoints = [\"{}\"]\n", orders.address);
    let gateway = Gateway::start(&config.replace("path = \"/\"", "path = \"/root\"")).await;
    let call = async |method: &str, host: &str, target: &str| {
        let mut request = request(method, target, &[("x-api-key", KEY)]);
        request.headers_mut().insert("host", http::HeaderValue::from_str(host).unwrap());
        send(gateway.traffic, request).await
    };
    assert_eq!(call("GET", "a.shop.test", "/orders/7?x=1").await.body, "orders");
    assert_eq!(orders.last().uri, "/7?x=1", "without the prefix");
    assert_eq!(call("GET", "a.shop.test", "/%6frders/%37").await.body, "orders");
    assert_eq!(orders.last().uri, "/7", "the canonical path is sent");
    assert_eq!(call("GET", "a.shop.test", "/root/x").await.body, "hello");
    let unknown = call("GET", "shop.test", "/orders/7").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "route_unknown"));
    let method = call("GET", "only.test", "/post").await;
    assert_eq!((method.status, method.header("allow")), (405, "POST"));
    assert_eq!(call("POST", "only.test", "/post").await.status, 200);
}

#[tokio::test]
async fn an_open_route_asks_nobody_and_passes_the_services_own_credentials() {
    let service = Service::hello().await;
    let route = "auth = \"none\"\n";
    let gateway =
        Gateway::start(&file("burst = { capacity = 1, refill = \"1/d\" }", route, service.address))
            .await;
    for _ in 0..5 {
        let headers = [("authorization", "Bearer jwt"), ("x-api-key", "weir_live_secret")];
        assert_eq!(get(gateway.traffic, "/", &headers).await.status, 200);
    }
    let seen = service.last().headers;
    assert_eq!(seen.get("authorization").unwrap(), "Bearer jwt");
    assert!(!seen.contains_key("x-api-key"), "a key of ours does not travel");
    assert!(!seen.contains_key("x-weir-client"));
}

#[tokio::test]
async fn http2_with_prior_knowledge_is_served_and_limited() {
    let service = Service::hello().await;
    let plan = "burst = { capacity = 3, refill = \"1/d\" }";
    let gateway = Gateway::start(&file(plan, "", service.address)).await;
    let stream = tokio::net::TcpStream::connect(gateway.traffic).await.unwrap();
    let (sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .unwrap();
    daemon::tasks::spawn("caller", connection);
    let calls = (0..10).map(|_| {
        let mut sender = sender.clone();
        async move {
            let request = http::Request::builder()
                .uri("http://api.test/")
                .header("x-api-key", KEY)
                .body(http_body_util::Empty::<bytes::Bytes>::new())
                .unwrap();
            sender.send_request(request).await.unwrap().status().as_u16()
        }
    });
    let statuses = futures_util::future::join_all(calls).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 7, "{statuses:?}");
    assert_eq!(service.requests(), 3);
    assert_eq!(service.last().headers.get("host").unwrap(), "api.test");
}

#[tokio::test]
async fn pipelined_requests_are_each_decided_and_answered_in_order() {
    let service = Service::hello().await;
    let plan = "burst = { capacity = 10, refill = \"1/d\" }";
    let gateway = Gateway::start(&file(plan, "", service.address)).await;
    let one = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    let last =
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\nconnection: close\r\n\r\n");
    let answer = crate::support::raw(gateway.traffic, (one.repeat(99) + &last).as_bytes()).await;
    let statuses: Vec<&str> =
        answer.split("HTTP/1.1 ").skip(1).map(|part| part.get(..3).unwrap()).collect();
    let expected: Vec<&str> = (0..100).map(|i| if i < 10 { "200" } else { "429" }).collect();
    assert_eq!(statuses, expected);
    assert_eq!(service.requests(), 10);
}

#[tokio::test]
async fn a_service_that_speaks_http2_gets_the_callers_host_over_one_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap()) + "protocol = \"http2\"\n";
    let accepted = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&accepted);
    let service = daemon::tasks::spawn("http2 service", async move {
        while let Ok((stream, _)) = listener.accept().await {
            counting.fetch_add(1, Ordering::SeqCst);
            let echo = service_fn(async |request: Request<hyper::body::Incoming>| {
                let uri = request.uri().to_string();
                let length = request.into_body().collect().await.unwrap().to_bytes().len();
                let body = Full::new(bytes::Bytes::from(format!("{uri} {length}")));
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            });
            let engine = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            daemon::tasks::spawn("http2", engine.serve_connection(TokioIo::new(stream), echo));
        }
    });
    let gateway = Gateway::start(&text).await;
    for _ in 0..5 {
        let mut posted = request("POST", "/a?b=1", &[("x-api-key", KEY)]);
        *posted.body_mut() = Full::from("12345");
        let reply = send(gateway.traffic, posted).await;
        assert_eq!((reply.status, reply.body.as_ref()), (200, &b"http://api.test/a?b=1 5"[..]));
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    service.abort();
}

#[tokio::test]
async fn a_port_that_another_gateway_has_is_not_shared_with_it() {
    let service = Service::hello().await;
    let text = file(PLAN, "", service.address);
    let first = Gateway::start(&text).await;
    let taken = text.replacen("127.0.0.1:0", &first.traffic.to_string(), 1);
    let (context, _) = daemon::Context::in_process(daemon::Drain::new());
    let ended = gateway::serve(crate::support::parse(&taken), context).await;
    let error = ended.expect_err("the port is taken").to_string();
    assert!(error.contains(&first.traffic.to_string()), "{error}");
}

#[tokio::test]
async fn two_workers_share_one_port_and_one_limit() {
    let service = Service::hello().await;
    let plan = "burst = { capacity = 20, refill = \"1/d\" }";
    let text = file(plan, "", service.address).replace("workers = 1", "workers = 3");
    let gateway = Gateway::start(&text).await;
    let replies = gateway.calls(60).await;
    assert_eq!(crate::support::tally(&replies), [(200, 20), (429, 40)]);
}

#[tokio::test]
async fn a_method_that_some_services_read_as_another_is_refused() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    for method in ["get", "Post", "GET_", "P0ST", &"A".repeat(33)] {
        let reply = send(gateway.traffic, request(method, "/", &[("x-api-key", KEY)])).await;
        assert_eq!((reply.status, &*reply.code()), (501, "not_implemented"), "{method}");
    }
    for method in ["M-SEARCH", "PROPFIND", "UPDATEREDIRECTREF"] {
        let reply = send(gateway.traffic, request(method, "/", &[("x-api-key", KEY)])).await;
        assert_eq!(reply.status, 200, "{method}");
    }
    assert_eq!(service.requests(), 3);
}

#[tokio::test]
async fn a_caller_that_says_nothing_loses_its_place() {
    let service = Service::hello().await;
    let top = "[limits]\nfirst_byte = \"200ms\"";
    let gateway = Gateway::start(&file(PLAN, top, service.address)).await;
    for first in ["", "PRI * HTTP/2.0\r\n\r\nSM"] {
        assert_eq!(raw(gateway.traffic, first.as_bytes()).await, "", "{first:?}");
    }
}
