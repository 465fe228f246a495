//! gRPC: calls and their trailers pass, and a refusal is one that its callers understand.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use edge::limiter::Clock;
use edge::limiter::store::memory::MemoryStore;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use limiter_core::testkit::{Fault, FaultyStore, ManualClock};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Gateway, KEY, PATIENCE, file, standing};

const MESSAGE: &[u8] = b"\0\0\0\0\x02\x08\x01";

/// What came back from a call.
struct Answer {
    status: u16,
    head: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

impl Answer {
    fn told(&self, name: &str) -> &str {
        self.head.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// One call over HTTP/2 with prior knowledge: a message, and a trailer behind it.
async fn call(to: SocketAddr, path: &str, key: Option<&str>) -> Answer {
    let stream = TcpStream::connect(to).await.unwrap();
    let shaken =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.unwrap();
    daemon::tasks::spawn("caller", connection);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    let pieces: [Result<_, Infallible>; 2] =
        [Ok(Frame::data(Bytes::from_static(MESSAGE))), Ok(Frame::trailers(trailers))];
    let mut request = Request::builder()
        .method("POST")
        .uri(format!("http://api.test{path}"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let body = StreamBody::new(futures_util::stream::iter(pieces));
    let exchange = async {
        let response = sender.send_request(request.body(body).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        let (status, head) = (head.status.as_u16(), head.headers);
        Answer { status, head, body: body.to_bytes(), trailers }
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
}

/// Echoes a message; the trailers tell the call's status and what trailer came with it.
async fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    daemon::tasks::spawn("grpc service", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let echo = service_fn(async |request: Request<Incoming>| {
                assert_eq!(request.headers().get("te").unwrap(), "trailers");
                let body = request.into_body().collect().await.unwrap();
                let sum = body.trailers().unwrap().get("x-sum").unwrap().clone();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                trailers.insert("x-sum-seen", sum);
                let pieces: [Result<_, Infallible>; 2] =
                    [Ok(Frame::data(body.to_bytes())), Ok(Frame::trailers(trailers))];
                let body = StreamBody::new(futures_util::stream::iter(pieces));
                let response = Response::builder().header("content-type", "application/grpc+proto");
                Ok::<_, Infallible>(response.body(body).unwrap())
            });
            let engine = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            daemon::tasks::spawn("grpc", engine.serve_connection(TokioIo::new(stream), echo));
        }
    });
    address
}

fn text(plan: &str, service: SocketAddr) -> String {
    let dear = "[[route]]\npath = \"/dear\"\nupstream = \"up\"\ncost = 50\nname = \"dear\"\n";
    let known = file(plan, dear, service).replacen("path = \"/\"", "path = \"/echo\"", 1);
    known + "protocol = \"http2\"\n"
}

#[tokio::test]
async fn a_call_and_its_trailers_pass_both_ways() {
    let plan = "burst = { capacity = 10, refill = \"1/s\" }";
    let gateway = Gateway::start(&text(plan, service().await)).await;
    let answer = call(gateway.traffic, "/echo", Some(KEY)).await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, MESSAGE));
    assert_eq!(answer.told("content-type"), "application/grpc+proto");
    let trailers = answer.trailers.expect("trailers");
    assert_eq!(trailers.get("grpc-status").unwrap(), "0");
    assert_eq!(trailers.get("x-sum-seen").unwrap(), "7");
}

#[tokio::test]
async fn a_refusal_is_a_grpc_status_with_the_time_to_try_again() {
    let (clock, store) = standing();
    let plan = "burst = { capacity = 2, refill = \"2/3s\" }";
    let gateway = Gateway::over(&text(plan, service().await), store, clock).await;
    for _ in 0..2 {
        assert_eq!(call(gateway.traffic, "/echo", Some(KEY)).await.body, MESSAGE);
    }
    let denied = call(gateway.traffic, "/echo", Some(KEY)).await;
    assert_eq!((denied.status, denied.body.len()), (200, 0));
    assert!(denied.trailers.is_none(), "the head says all");
    for (name, value) in [
        ("content-type", "application/grpc+proto"),
        ("grpc-status", "8"),
        ("grpc-message", "the client's limit is used up for now"),
        ("grpc-retry-pushback-ms", "1500"),
        ("retry-after", "2"),
        ("ratelimit", "\"burst\";r=0;t=3"),
        ("x-weir-source", "edge"),
        ("content-length", ""),
    ] {
        assert_eq!(denied.told(name), value, "{name}");
    }
    for (path, key, status) in [
        ("/echo", None, "16"),
        ("/echo", Some("nobodys"), "16"),
        ("/echo", Some("two words"), "3"),
        ("/dear", Some(KEY), "7"),
        ("/nowhere", Some(KEY), "12"),
    ] {
        let refused = call(gateway.traffic, path, key).await;
        assert_eq!((refused.status, refused.told("grpc-status")), (200, status), "{path} {key:?}");
        assert_eq!(refused.told("grpc-retry-pushback-ms"), "", "{path} {key:?}");
    }
}

#[tokio::test]
async fn without_a_store_a_closed_plan_is_told_as_unavailable() {
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let store = Arc::new(FaultyStore::new(memory));
    store.always(Fault::Unreachable);
    let plan = "burst = { capacity = 10, refill = \"1/d\" }\nfailure = \"closed\"";
    let gateway = Gateway::over(&text(plan, service().await), store, clock).await;
    let refused = call(gateway.traffic, "/echo", Some(KEY)).await;
    assert_eq!((refused.status, refused.told("grpc-status")), (200, "14"));
    assert!(refused.told("grpc-retry-pushback-ms").parse::<u64>().unwrap() >= 1);
}
