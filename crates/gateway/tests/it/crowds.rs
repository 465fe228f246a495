//! Very many at once: those that hang cost nobody else anything, and each ends at its own deadline.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::program::Program;
use crate::support::scripted::{Act, Scripted};
use crate::support::{Gateway, KEY, PATIENCE, Service, eventually, file, get, tally};

const PLAN: &str = "burst = { capacity = 10000, refill = \"10000/s\" }";
/// What the test, the gateway and the services need beside their connections.
const DESCRIPTORS_BESIDE: u64 = 200;

/// Room for both ends of so many connections, all in this process.
fn make_room(connections: usize) {
    let needed = 2 * connections as u64 + DESCRIPTORS_BESIDE;
    let files = getrlimit(Resource::Nofile);
    if files.current.is_some_and(|current| current < needed) {
        assert!(files.maximum.is_none_or(|most| needed <= most), "{needed} of {files:?}");
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..files }).unwrap();
    }
}

#[tokio::test]
async fn f36_five_hundred_requests_that_hang_are_nobody_elses_wait() {
    const HELD: usize = 500;
    make_room(2 * HELD);
    let (silent, well) = (Scripted::new(|_| Act::Keep).await, Service::hello().await);
    let route = "[[route]]\npath = \"/silent\"\nupstream = \"silent\"\n";
    let text = file(PLAN, route, well.address)
        + &format!(
            "[upstream.silent]\nendpoints = [\"{}\"]\nhead_timeout = \"6s\"\n",
            silent.address
        );
    let gateway = Gateway::start(&text).await;
    let traffic = gateway.traffic;
    let mut held = JoinSet::new();
    for _ in 0..HELD {
        held.spawn(async move { get(traffic, "/silent", &[("x-api-key", KEY)]).await });
    }
    eventually("all hang", async || silent.arrived().len() == HELD).await;
    assert_eq!(tally(&gateway.calls(200).await), [(200, 200)]);
    assert!(held.try_join_next().is_none(), "the others were answered while these hang");
    for reply in held.join_all().await {
        assert_eq!((reply.status, reply.code().as_str()), (504, "upstream_timeout"));
    }
    assert_eq!(silent.arrived().len(), HELD, "what timed out is not sent again");
}

#[tokio::test]
async fn s17_two_thousand_heads_that_never_end_end_at_their_deadline_and_nobody_notices() {
    const SLOW: usize = 2_000;
    make_room(SLOW);
    let service = Service::hello().await;
    let text = file(PLAN, "", service.address)
        + "[limits]\nhead_time = \"2s\"\nconnections_per_address = 4000\n";
    let gateway = Gateway::start(&text).await;
    let mut slow = JoinSet::new();
    for _ in 0..SLOW {
        let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\nx: ");
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.spawn(async move {
            let mut answer = Vec::new();
            let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            end.is_ok_and(|read| read.is_ok())
        });
    }
    assert_eq!(tally(&gateway.calls(50).await), [(200, 50)]);
    let ended = slow.join_all().await;
    assert!(ended.iter().all(|ended| *ended), "{} stay", ended.iter().filter(|it| !**it).count());
    assert_eq!(service.requests(), 50);
    // Nothing of them is left: as many find room again.
    assert_eq!(tally(&gateway.calls(50).await), [(200, 50)]);
    eventually("their places are free", async || {
        gateway.context.metrics.render().contains("weir_gateway_connections 0\n")
    })
    .await;
}

/// A caller that keeps its connection.
async fn ask(stream: &mut TcpStream) -> String {
    let asking = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    stream.write_all(asking.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = async {
        while !answer.ends_with(b"hello") && stream.read_buf(&mut answer).await.unwrap() > 0 {}
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("an answer in time");
    String::from_utf8(answer).unwrap()
}

/// Processor time of a process, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

async fn hold(to: SocketAddr) -> Option<TcpStream> {
    let connecting = TcpStream::connect(to);
    tokio::time::timeout(PATIENCE / 5, connecting).await.ok()?.ok()
}

#[tokio::test]
async fn f42_with_few_descriptors_who_is_in_is_served_and_the_rest_waits() {
    const CROWD: usize = 1_000;
    const IN: usize = 20;
    make_room(CROWD);
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let service = Service::hello().await;
    let text = file(PLAN, "", service.address) + "[limits]\nfirst_byte = \"1m\"\n";
    let words = ["--nofile=256", env!("CARGO_BIN_EXE_weir-gateway")];
    let program = Program::start_by(&text, "prlimit", &words, |_| {}).await;
    assert!(program.log().contains("few open files"), "{}", program.log());
    let mut known = Vec::new();
    for _ in 0..IN {
        let mut stream = TcpStream::connect(program.traffic).await.unwrap();
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
        known.push(stream);
    }
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        let (gate, to) = (std::sync::Arc::clone(&gate), program.traffic);
        crowd.spawn(async move {
            let held = hold(to).await;
            let _until_told = gate.acquire().await;
            drop(held);
        });
    }
    // As many as there is room for are in by now or soon; the others have cost nothing.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = ticks(program.pid);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let spent = ticks(program.pid) - before;
    assert!(spent <= 20, "{spent} % of a core to wait");
    assert!(!program.log().contains("cannot accept"), "{}", program.log());
    // Each needs a connection to the service, all at once: those were kept back for them.
    let asking = known.iter_mut().map(ask);
    for answer in futures_util::future::join_all(asking).await {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(get(program.operations, "/livez", &[]).await.status, 200);
    gate.close();
    while crowd.join_next().await.is_some() {}
    assert_eq!(get(program.traffic, "/", &[("x-api-key", KEY)]).await.status, 200);
}
