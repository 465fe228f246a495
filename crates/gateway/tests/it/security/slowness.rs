//! Callers that take their time: each stage of a connection ends by a deadline of the gateway's
//! own, and who is quick does not notice.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::frames::{Frames, GOAWAY};
use crate::support::{Gateway, KEY, PATIENCE, Service, file, get};

const PLAN: &str = "burst = { capacity = 10000, refill = \"10000/s\" }";

async fn gateway(limits: &str) -> (Gateway, Service) {
    let service = Service::hello().await;
    let text = file(PLAN, "", service.address) + "idle_timeout = \"300ms\"\n[limits]\n" + limits;
    (Gateway::start(&text).await, service)
}

/// Writes bytes with pauses until the other side ends the connection; what was read.
async fn drip(to: SocketAddr, bytes: &[u8], pause: Duration) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let mut read = Vec::new();
    let dripping = async {
        let (mut reader, mut writer) = stream.split();
        let writing = async {
            for byte in bytes {
                if writer.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(pause).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = reader.read_to_end(&mut read) => {}
            () = writing => {}
        }
    };
    tokio::time::timeout(PATIENCE, dripping).await.expect("the connection ends");
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn s17_a_head_that_drips_ends_at_its_deadline_and_reaches_nobody() {
    let (gateway, service) = gateway("head_time = \"300ms\"\nidle = \"1h\"\n").await;
    let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n");
    let endless = head + &"x: y\r\n".repeat(1_000);
    let pause = Duration::from_millis(20);
    let (traffic, bytes) = (gateway.traffic, endless.as_bytes());
    let many = (0..50).map(|_| drip(traffic, bytes, pause));
    let quick = async {
        for _ in 0..20 {
            assert_eq!(get(traffic, "/", &[("x-api-key", KEY)]).await.status, 200);
        }
    };
    tokio::join!(futures_util::future::join_all(many), quick);
    assert_eq!(service.requests(), 20);
}

#[tokio::test]
async fn s17_the_second_head_of_a_connection_has_the_same_deadline_and_idleness_a_longer_one() {
    let (gateway, service) = gateway("head_time = \"300ms\"\nidle = \"2s\"\n").await;
    let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
    let whole = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    let mut answer = [0; 4_096];
    for _ in 0..2 {
        stream.write_all(whole.as_bytes()).await.unwrap();
        let count = stream.read(&mut answer).await.unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 200"));
        // Longer than a head may take, and no head has begun.
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n").await.unwrap();
    let began = Instant::now();
    let rest = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
    assert!(rest.is_ok(), "a head that does not end");
    assert!(began.elapsed() < Duration::from_secs(2), "it is not idleness that ended it");
    assert_eq!(service.requests(), 2);
}

#[tokio::test]
async fn s17_an_idle_connection_ends_in_both_versions_of_http() {
    let (gateway, service) = gateway("idle = \"300ms\"\n").await;
    let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
    let whole = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    stream.write_all(whole.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    assert!(read.expect("it ends").is_ok(), "without a reset");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(service.requests(), 1);

    let mut frames = Frames::open(gateway.traffic).await;
    let away = frames.find(GOAWAY).await.expect("a word before the end");
    assert_eq!(away.code(), 0, "nobody did anything wrong");
}

#[tokio::test]
async fn s17_a_body_that_stalls_ends_and_gives_its_service_back() {
    let (gateway, service) = gateway("").await;
    let head =
        format!("POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: 10\r\n\r\nabc");
    let stalled = (0..50).map(|_| async {
        let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().ok();
        answer
    });
    for answer in futures_util::future::join_all(stalled).await {
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert_eq!(service.take_targets(), Vec::<String>::new(), "none arrived whole");
    assert_eq!(get(gateway.traffic, "/", &[("x-api-key", KEY)]).await.status, 200);
}
