//! What a server refuses and why: each refusal means that nothing was taken, few dials follow, and
//! calls are exact again within two seconds of the cure.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{Clock, Request, SystemClock};
use test_servers::{Port, Server, ServerOptions};

use crate::server::{key, meanwhile, plan, store_at, until, until_answered, until_told};

const RECOVERY_MAX: Duration = Duration::from_secs(2);
const CAPACITY: u64 = 1_000;

fn told(server: &Server, command: &str) {
    let _told: redis::Value = meanwhile(|| server.query(command)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_a_server_that_loads_is_like_one_that_is_down() {
    let options = ServerOptions::default()
        .setting("key-load-delay", "400")
        .setting("loading-process-events-interval-bytes", "1024");
    let mut server = meanwhile(|| options.start()).unwrap();
    let mut admin = server.connection().unwrap();
    let mut fill = redis::pipe();
    for number in 0..4_000 {
        fill.cmd("SET").arg(format!("other:{number}")).arg("x".repeat(64)).ignore();
    }
    meanwhile(|| fill.exec(&mut admin)).unwrap();
    let store = store_at(&server.url(), 2);
    until_answered(&store, &key("acme"), CAPACITY).await;
    told(&server, "SAVE");
    meanwhile(|| server.restart()).unwrap();
    until_told(&store, &["LOADING"]).await;
    let outcome = store.call(&key("acme"), &Request::take(plan(CAPACITY), 1, 1)).await;
    assert!(
        matches!(outcome, Err(StoreError::Tripped { .. } | StoreError::Unreachable(_))),
        "{outcome:?}"
    );
    until("it has loaded", || meanwhile(|| server.info("loading")).is_ok_and(|is| is == "0")).await;
    let (waited, reply) = until_answered(&store, &key("acme"), CAPACITY).await;
    assert!(waited <= RECOVERY_MAX, "{waited:?}");
    assert_eq!(reply.levels.burst.tokens, 998, "what was saved is known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_a_replica_without_its_primary_is_no_store_until_it_is_one_itself() {
    let server = meanwhile(Server::start).unwrap();
    let store = store_at(&server.url(), 2);
    until_answered(&store, &key("acme"), CAPACITY).await;
    let before = store.epoch(&key("acme"));
    let nobody = Port::free().unwrap();
    told(&server, "CONFIG SET replica-serve-stale-data no");
    told(&server, &format!("REPLICAOF 127.0.0.1 {}", nobody.number()));
    let outcome = store.call(&key("acme"), &Request::take(plan(CAPACITY), 1, 1)).await;
    let code = match outcome {
        Err(StoreError::Refused { code }) => code,
        other => panic!("{other:?}"),
    };
    assert!(code == "MASTERDOWN" || code == "READONLY", "{code}");
    until_told(&store, &["replica", "MASTERDOWN"]).await;
    let dials = store.counters().dials.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let dials = store.counters().dials.load(Ordering::Relaxed) - dials;
    assert!(dials <= 20, "{dials} dials in two seconds of two links");
    told(&server, "REPLICAOF NO ONE");
    let (waited, reply) = until_answered(&store, &key("acme"), CAPACITY).await;
    assert!(waited <= RECOVERY_MAX, "{waited:?}");
    assert_eq!(reply.levels.burst.tokens, 998, "the refused call took nothing");
    assert_eq!(store.epoch(&key("acme")), before, "it is the same run and has lost nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_a_server_without_room_for_connections_is_dialled_seldom_and_by_few() {
    let server = meanwhile(|| ServerOptions::default().setting("maxclients", "4").start()).unwrap();
    let store = store_at(&server.url(), 2);
    until_answered(&store, &key("acme"), CAPACITY).await;
    until("both links are there", || {
        meanwhile(|| server.info("connected_clients")).is_ok_and(|count| count == "3")
    })
    .await;
    let mut admin = server.connection().unwrap();
    let guest = server.connection().unwrap();
    let stranger = store_at(&server.url(), 2);
    // The server hangs up at once: what it says on the way is not always heard.
    until_told(&stranger, &[&server.address().to_string()]).await;
    let mut received = || -> u64 {
        let info: String = meanwhile(|| redis::cmd("INFO").arg("stats").query(&mut admin)).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse().unwrap()
    };
    let clock = SystemClock::new();
    let (before, started) = (received(), clock.now());
    while clock.now().since(started) < Duration::from_secs(3) {
        let reply = store.call(&key("acme"), &Request::take(plan(CAPACITY), 1, 1)).await.unwrap();
        assert_eq!(reply.granted, 1, "who is in stays in");
        let _refused = stranger.call(&key("acme"), &Request::take(plan(CAPACITY), 1, 1)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = clock.now().since(started).as_secs();
    let dials = received() - before;
    assert!(dials <= 10 * seconds, "{dials} connections in {seconds} s");
    drop(guest);
    let (waited, _) = until_answered(&stranger, &key("acme"), CAPACITY).await;
    assert!(waited <= RECOVERY_MAX, "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_killed_connections_come_back_one_by_one() {
    let server = meanwhile(Server::start).unwrap();
    let store = store_at(&server.url(), 2);
    until_answered(&store, &key("acme"), CAPACITY).await;
    let before = store.epoch(&key("acme"));
    for _ in 0..3 {
        told(&server, "CLIENT KILL TYPE normal");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (waited, _) = until_answered(&store, &key("acme"), CAPACITY).await;
        assert!(waited <= RECOVERY_MAX, "{waited:?}");
    }
    let dials = store.counters().dials.load(Ordering::Relaxed);
    assert!(dials <= 2 + 3 * 4, "{dials} dials for two links killed three times");
    assert_eq!(store.epoch(&key("acme")), before, "the server is the same run");
    meanwhile(|| drop(server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_another_epoch() {
    let mut server = meanwhile(Server::start).unwrap();
    let store = store_at(&server.url(), 2);
    until_answered(&store, &key("acme"), CAPACITY).await;
    let before = store.epoch(&key("acme"));
    meanwhile(|| server.restart()).unwrap();
    until_answered(&store, &key("acme"), CAPACITY).await;
    assert!(store.epoch(&key("acme")) > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_calls_of_one_key_that_overlap_go_over_two_connections() {
    let server = meanwhile(Server::start).unwrap();
    let store = store_at(&server.url(), 2);
    let linked = || meanwhile(|| server.info("connected_clients")).is_ok_and(|n| n == "3");
    until("both links are there", linked).await;
    until_answered(&store, &key("acme"), CAPACITY).await;
    let mut monitor = std::net::TcpStream::connect(server.address()).unwrap();
    monitor.set_read_timeout(Some(crate::server::PATIENCE)).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut welcome = [0; 5];
    monitor.read_exact(&mut welcome).unwrap();
    let missed = || store.counters().heartbeats_missed.load(Ordering::Relaxed);
    let mut overlapped = Vec::new();
    for round in 0..20 {
        let missed_before = missed();
        let (plan, key) = (plan(CAPACITY), key(&format!("{round}")));
        let request = Request::take(plan, 1, 1);
        // Calls of other keys between the two, so that turns alone would not do.
        let mut first = Box::pin(store.call(&key, &request));
        let is_out = poll_once(&mut first).await;
        let others: Vec<_> =
            (0..round % 3).map(|n| crate::server::key(&format!("other {n}"))).collect();
        let mut between: Vec<_> =
            others.iter().map(|other| Box::pin(store.call(other, &request))).collect();
        for other in &mut between {
            let _is_out = poll_once(other).await;
        }
        let second = store.call(&key, &request).await;
        assert_eq!(second.unwrap().granted, 1);
        // One poll may not have been enough to send it.
        if is_out {
            assert_eq!(first.await.unwrap().granted, 1);
        }
        for other in between {
            // One poll was enough to send it; that it is dropped now is nobody's fault.
            drop(other);
        }
        // On a busy machine the first may be answered already, or a link be out of use.
        if is_out && missed() == missed_before {
            overlapped.push(round);
        }
    }
    assert!(overlapped.len() >= 5, "{overlapped:?}");
    let mut seen = String::new();
    meanwhile(|| {
        // Everything that it was sent before this word.
        let _told: String = server.query("ECHO the-end").unwrap();
        while !seen.contains("the-end") {
            let mut bytes = [0; 65_536];
            let count = monitor.read(&mut bytes).unwrap();
            seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    for round in overlapped {
        let key = key(&format!("{round}")).to_string();
        let calls = seen.lines().filter(|line| line.contains("\"EVALSHA\"") && line.contains(&key));
        let from: Vec<&str> = calls.filter_map(|line| line.split(['[', ']']).nth(1)).collect();
        assert_eq!(from.len(), 2, "round {round}: {from:?}");
        assert_ne!(from[0], from[1], "round {round}: both over one connection");
    }
}

/// Whether it has not ended thereby.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
    })
    .await
}
