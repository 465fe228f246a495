//! A primary that is replaced: calls follow it, and nothing goes to the old one any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use limiter_core::store::BucketStore;
use limiter_core::store::redis::RedisStore;
use limiter_core::{Clock, Request, SystemClock};
use test_servers::{SentinelSet, Server};

use crate::server::{key, meanwhile, plan, store_at, until, until_answered};

const RECOVERY_MAX: Duration = Duration::from_secs(2);
const CAPACITY: u64 = 1_000_000;

pub(crate) fn url(set: &SentinelSet) -> String {
    format!("redis+sentinel://{}/{}", set.addresses(), set.service())
}

pub(crate) async fn store(set: &SentinelSet) -> Arc<RedisStore> {
    let store = store_at(&url(set), 2);
    until("the store is linked", || store.is_answering()).await;
    store
}

/// Connections that have called the script, or could.
fn callers_of(server: &Server) -> usize {
    let clients: String = server.query("CLIENT LIST TYPE normal").unwrap();
    clients.lines().filter(|line| line.contains("lib-name=redis-rs") || is_ours(line)).count()
}

/// Servers before 7.2 do not tell the library; ours sent a script or a heartbeat last.
fn is_ours(client: &str) -> bool {
    ["cmd=ping", "cmd=evalsha", "cmd=script|load", "cmd=role", "cmd=info"]
        .iter()
        .any(|last| client.contains(last))
        && !client.contains("name=sentinel")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_replaced_within_two_seconds_of_a_promotion() {
    let mut set = meanwhile(|| SentinelSet::start(2)).unwrap();
    let store = store(&set).await;
    let key = key("acme");
    until_answered(&store, &key, CAPACITY).await;
    let before = store.epoch(&key);

    let clock = SystemClock::new();
    let first = meanwhile(|| set.primary()).unwrap();
    meanwhile(|| set.server_mut(first).kill());
    // The promise counts from when some server takes writes, whoever has been told of it.
    let promoted = meanwhile(|| {
        test_servers::until("a replica is promoted", || {
            let mut living = (0..set.servers()).filter(|index| *index != first);
            Ok(living.find(|index| set.server(*index).is_primary().is_ok_and(|is| is)))
        })
    });
    let writable_since = clock.now();
    let (_, reply) = until_answered(&store, &key, CAPACITY).await;
    let waited = clock.now().since(writable_since);
    assert!(waited <= RECOVERY_MAX, "exact again only {waited:?} after {promoted:?} took over");
    assert_eq!(reply.granted, 1);
    assert!(store.epoch(&key) > before, "the new primary may have missed writes");
    assert_eq!(store.trouble(), None);

    // It comes back as a primary of old, and is told its place by the sentinels.
    meanwhile(|| set.server_mut(first).restart()).unwrap();
    for _ in 0..50 {
        let request = Request::take(plan(CAPACITY), 1, 1);
        let answer = store.call(&key, &request).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
    assert_eq!(meanwhile(|| callers_of(set.server(first))), 0, "nobody believes it any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_primary_is_left_although_it_goes_on() {
    let set = meanwhile(|| SentinelSet::start(1)).unwrap();
    let store = store(&set).await;
    let key = key("acme");
    let (_, reply) = until_answered(&store, &key, CAPACITY).await;
    assert_eq!(reply.levels.burst.tokens, 999_999);
    let first = meanwhile(|| set.primary()).unwrap();
    assert_eq!(meanwhile(|| callers_of(set.server(first))), 2);

    // What the replica has not seen, no orderly failover can keep.
    let name = key.to_string();
    until("the replica has the bucket", || {
        meanwhile(|| set.server(1 - first).query_words::<i64>(&["EXISTS", &name])).unwrap() == 1
    })
    .await;
    // Nobody calls meanwhile, so no refusal tells.
    let second = meanwhile(|| set.failover()).unwrap();
    let clock = SystemClock::new();
    let started = clock.now();
    until("the links go over by themselves", || {
        meanwhile(|| callers_of(set.server(first)) == 0 && callers_of(set.server(second)) == 2)
    })
    .await;
    let waited = clock.now().since(started);
    assert!(waited <= 2 * RECOVERY_MAX, "{waited:?}");
    let (_, reply) = until_answered(&store, &key, CAPACITY).await;
    assert_eq!(reply.levels.burst.tokens, 999_998, "an orderly failover loses nothing");
    let refused: u64 = store.counters().refused().map(|(_, count)| count).sum();
    assert_eq!(refused, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_is_enough_and_none_is_told() {
    let mut set = meanwhile(|| SentinelSet::start(1)).unwrap();
    set.kill_sentinel(0).unwrap();
    set.kill_sentinel(1).unwrap();
    let store = store(&set).await;
    until_answered(&store, &key("acme"), CAPACITY).await;

    let stranger = store_at(&format!("redis+sentinel://{}/other", set.addresses()), 1);
    until("the reason is told", || {
        stranger.trouble().is_some_and(|trouble| trouble.contains("sentinel"))
    })
    .await;
    set.kill_sentinel(2).unwrap();
    let late = store_at(&url(&set), 1);
    until("the reason is told", || late.trouble().is_some()).await;
    assert!(late.trouble().unwrap().contains("sentinel"), "{:?}", late.trouble());
    // Who has found the primary goes on without them.
    until_answered(&store, &key("acme"), CAPACITY).await;
    assert_eq!(store.counters().lost.load(Ordering::Relaxed), 0);
}
