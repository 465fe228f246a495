//! Drain, tasks, addresses, settings and the operations port, in this process on port 0.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use daemon::ops::{self, Readiness};
use daemon::settings::{Problems, secret_file};
use daemon::{Context, Drain, Failure, Tasks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_panicking_task_is_told_with_its_name() {
    let tasks = Tasks::new();
    tasks.spawn("doomed", async { panic!("on purpose") });
    let what = tokio::time::timeout(Duration::from_secs(5), tasks.failed()).await.unwrap();
    assert_eq!(what, "the task doomed panicked");
    assert!(tasks.join(Duration::from_secs(5)).await.is_empty(), "it is not counted any more");
}

#[tokio::test]
async fn tasks_end_with_the_drain_or_are_named() {
    let (drain, tasks) = (Drain::new(), Tasks::new());
    tasks.spawn("well-behaved", drain.started());
    tasks.spawn("stuck", std::future::pending());
    assert!(!drain.is_started());
    drain.start();
    drain.start();
    drain.started().await;
    let mut late = tasks.join(Duration::from_millis(50)).await;
    for _ in 0..100 {
        if late == ["stuck"] {
            break;
        }
        late = tasks.join(Duration::from_millis(50)).await;
    }
    assert_eq!(late, ["stuck"]);
}

#[tokio::test]
async fn the_receiver_hears_all_addresses_or_that_there_are_none() {
    let (context, addresses) = Context::in_process(Drain::new());
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 4_711));
    context.announce("traffic", at);
    context.ready();
    context.ready();
    assert_eq!(addresses.wait().await.unwrap()["traffic"], at);
    let (context, addresses) = Context::in_process(Drain::new());
    drop(context);
    assert_eq!(addresses.wait().await, None);
}

#[tokio::test]
async fn the_operations_port_answers_and_ends_with_the_drain() {
    let (context, _addresses) = Context::in_process(Drain::new());
    let router = ops::router("test", context.metrics.clone(), || {
        Readiness::no(serde_json::json!("not yet"))
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let drain = context.drain.clone();
    let served = daemon::tasks::spawn("ops", async move {
        ops::serve(listener, router, &drain, Duration::from_secs(5)).await
    });
    for (path, status) in
        [("/livez", "200"), ("/readyz", "503"), ("/metrics", "200"), ("/x", "404")]
    {
        let answer = tokio::task::spawn_blocking(move || get(at, path)).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    // A caller that keeps its connection open without asking does not hold up the end.
    let idle = TcpStream::connect(at).unwrap();
    context.drain.start();
    let ended = tokio::time::timeout(Duration::from_secs(10), served).await;
    ended.expect("within the deadline").unwrap().unwrap();
    drop(idle);
}

fn get(at: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn every_mistake_is_told_with_its_place() {
    let mut problems = Problems::new();
    assert_eq!(problems.check("port", "70000".parse::<u16>()), None);
    assert_eq!(problems.check("workers", "4".parse::<u16>()), Some(4));
    problems.add("name", "is missing");
    match problems.none_or_err().unwrap_err() {
        Failure::Settings(lines) => {
            assert_eq!(lines.len(), 2);
            assert!(lines[0].starts_with("port: ") && lines[1] == "name: is missing", "{lines:?}");
        }
        Failure::Other(other) => panic!("{other}"),
    }
    assert!(Problems::new().none_or_err().is_ok());
    let missing = secret_file(std::path::Path::new("/nowhere/secret")).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/secret"));
}

/// An operations port in this runtime.
async fn operations_port() -> SocketAddr {
    let (context, _addresses) = Context::in_process(Drain::new());
    let router =
        ops::router("test", context.metrics.clone(), || Readiness::yes(serde_json::json!("ready")));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    daemon::tasks::spawn("operations port", async move {
        ops::serve(listener, router, &Drain::new(), Duration::from_secs(5)).await
    });
    at
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_asks_nothing_loses_its_connection() {
    let at = operations_port().await;
    for first in
        ["", "GET /livez HTTP/1.1\r\nhost: a\r\n", "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"]
    {
        let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        let (mut answer, mut piece, mut closed) = (Vec::new(), [0; 1_024], false);
        // The paused clock runs on while bytes are under way, so second by second.
        for _ in 0..600 {
            match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut piece)).await {
                Ok(Ok(0) | Err(_)) => {
                    closed = true;
                    break;
                }
                Ok(Ok(count)) => answer.extend_from_slice(&piece[..count]),
                Err(_elapsed) => {}
            }
        }
        assert!(closed, "{first:?}");
        assert_eq!(answer.starts_with(b"HTTP/1.1 200"), first.ends_with("\r\n\r\n"), "{first:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_without_end_ends() {
    let mut stream = tokio::net::TcpStream::connect(operations_port().await).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nx: ").await.unwrap();
    for _ in 0..600 {
        if stream.write_all(b"a").await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("a head of ten minutes");
}
