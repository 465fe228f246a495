//! The end: not ready, what is under way finishes, nothing new is begun.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::program::{Program, is_alive};
use crate::support::{Gateway, KEY, PATIENCE, eventually, file, get};

const PLAN: &str = "burst = { capacity = 100, refill = \"100/s\" }";

#[tokio::test]
async fn a_request_under_way_is_finished_and_then_the_gateway_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap());
    let go = Arc::new(tokio::sync::Notify::new());
    let waiting = Arc::clone(&go);
    let service = daemon::tasks::spawn("slow service", async move {
        let (stream, _) = listener.accept().await.unwrap();
        let answer = hyper::service::service_fn(move |_request: Request<Incoming>| {
            let waiting = Arc::clone(&waiting);
            async move {
                waiting.notified().await;
                let body = http_body_util::Full::new(bytes::Bytes::from("late"));
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            }
        });
        let io = hyper_util::rt::TokioIo::new(stream);
        hyper::server::conn::http1::Builder::new().serve_connection(io, answer).await.ok();
    });
    let mut gateway = Gateway::start(&text).await;
    let traffic = gateway.traffic;
    let call =
        daemon::tasks::spawn("call", async move { get(traffic, "/", &[("x-api-key", KEY)]).await });
    let metrics = gateway.context.metrics.clone();
    eventually("the request is under way", async || {
        metrics.render().contains("weir_gateway_added_seconds_count 1\n")
    })
    .await;
    gateway.drain.start();
    eventually("no new connection is taken", async || TcpStream::connect(traffic).await.is_err())
        .await;
    assert!(!gateway.ended.is_finished(), "it waits for the request under way");
    assert_eq!(get(gateway.operations, "/readyz", &[]).await.status, 503);
    assert_eq!(get(gateway.operations, "/livez", &[]).await.status, 200);
    go.notify_one();
    let reply = call.await.unwrap();
    assert_eq!((reply.status, reply.body.as_ref()), (200, &b"late"[..]));
    assert_eq!(reply.header("connection"), "close");
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await.expect("it ends").unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    service.abort();
}

/// A program that would wait for an hour, its caller, and the service's end of the request.
async fn with_a_request_under_way() -> (Program, TcpStream, TcpStream) {
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text =
        file(PLAN, "", service.local_addr().unwrap()).replace("finish = \"2s\"", "finish = \"1h\"");
    let program = Program::start(&text).await;
    let mut caller = TcpStream::connect(program.traffic).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    caller.write_all(head.as_bytes()).await.unwrap();
    let (under_way, _) = service.accept().await.unwrap();
    (program, caller, under_way)
}

#[tokio::test]
async fn f39_a_second_signal_ends_the_program_at_once_whatever_is_under_way() {
    let (mut program, mut caller, _under_way) = with_a_request_under_way().await;
    program.signal(Signal::TERM);
    program.told("STOPPING=1").await;
    eventually("no new connection is taken", async || {
        TcpStream::connect(program.traffic).await.is_err()
    })
    .await;
    assert!(is_alive(program.pid), "it waits for the request under way");
    let pid = program.pid;
    eventually("a wish of its own ends it", async || {
        program.signal(Signal::TERM);
        !is_alive(pid)
    })
    .await;
    assert_eq!(program.ended(pid).await, Some(1), "not a clean end: {}", program.log());
    assert!(program.log().contains("a second signal"), "{}", program.log());
    let cut = tokio::time::timeout(PATIENCE, caller.read_to_end(&mut Vec::new())).await;
    assert!(cut.is_ok(), "the caller hears of it");
}

#[tokio::test]
async fn a_signal_that_comes_twice_at_once_still_drains() {
    let (mut program, mut caller, mut under_way) = with_a_request_under_way().await;
    // Of two kinds, so that the system does not make one of them.
    program.signal(Signal::TERM);
    program.signal(Signal::INT);
    program.logged("a signal again").await;
    assert!(is_alive(program.pid), "it waits for the request under way");
    under_way.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, caller.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"late"));
    let pid = program.pid;
    assert_eq!(program.ended(pid).await, Some(0), "a clean end: {}", program.log());
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_hold_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", silent.local_addr().unwrap())
        .replace("finish = \"2s\"", "finish = \"50ms\"");
    let mut gateway = Gateway::start(&text).await;
    let traffic = gateway.traffic;
    let held = daemon::tasks::spawn("held", async move {
        let mut stream = TcpStream::connect(traffic).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
        let mut end = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut end).await.ok();
    });
    let metrics = gateway.context.metrics.clone();
    eventually("the request is under way", async || {
        metrics.render().contains("weir_gateway_added_seconds_count 1\n")
    })
    .await;
    gateway.drain.start();
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await.expect("it ends").unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    let late = gateway.context.tasks.join(Duration::from_secs(5)).await;
    assert!(late.is_empty(), "{late:?}");
    held.abort();
}
