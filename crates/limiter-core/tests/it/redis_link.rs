//! A Redis that stops, dies, forgets or loses answers: what calls say meanwhile, and how soon they
//! are exact again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{
    BucketKey, Capacity, Clock, Limit, Limits, PlanNumbers, PlanVersion, RefillRate, Reply,
    Request, ScopeId, SystemClock, VersionSource,
};
use rustix::process::Signal;
use test_servers::Port;
use tokio::task::JoinSet;

use crate::proxy::{Loss, Proxy};
use crate::server::{PATIENCE, Server, plan, store_at, until};

/// The promise: exact again so long after the server is healthy.
const RECOVERY_MAX: Duration = Duration::from_secs(2);

fn key() -> BucketKey {
    crate::server::key("acme")
}

async fn take(store: &RedisStore, capacity: u64) -> Result<Reply, StoreError> {
    let plan = plan(capacity);
    tokio::time::timeout(PATIENCE, store.call(&key(), &Request::take(plan, 1, 1)))
        .await
        .expect("every call ends")
}

async fn until_answered(store: &RedisStore, capacity: u64) -> (Duration, Reply) {
    crate::server::until_answered(store, &key(), capacity).await
}

/// How often the server was sent each command that has to do with buckets.
fn commands(admin: &mut redis::Connection) -> Vec<(String, u64)> {
    let info: String = redis::cmd("INFO").arg("commandstats").query(admin).unwrap();
    let counted = info.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        Some((name.to_owned(), calls))
    });
    let mut counted: Vec<_> = counted
        .filter(|(name, _)| !["ping", "client|setinfo", "info", "script|load"].contains(&&**name))
        .collect();
    counted.sort();
    counted
}

#[tokio::test]
async fn c07_two_limits_are_one_call_to_the_store() {
    let server = Server::start();
    let store = server.store(1).await;
    let mut admin = server.connection();
    redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut admin).unwrap();
    let limit = |text: &str, capacity| {
        Limit::new(Capacity::new(capacity).unwrap(), text.parse().unwrap()).unwrap()
    };
    let limits = Limits { burst: limit("1/d", 2), sustained: Some(limit("1/d", 10)) };
    let plan = PlanNumbers { version: PlanVersion(2), limits };
    let mut granted = 0;
    for _ in 0..10 {
        let reply = store.call(&key(), &Request::take(plan, 1, 1)).await.unwrap();
        granted += reply.granted;
    }
    assert_eq!(granted, 2);
    let sent: Vec<(String, u64)> = commands(&mut admin)
        .into_iter()
        .filter(|(name, _)| !["get", "set", "time", "config|resetstat"].contains(&&**name))
        .collect();
    // GET, SET and TIME are the script's own, inside that one call.
    assert_eq!(sent, [("evalsha".to_owned(), 10)]);
}

#[tokio::test]
async fn c03_the_largest_numbers_come_back_exactly_over_the_wire() {
    let server = Server::start();
    let store = server.store(1).await;
    for (client, capacity) in [("a", 1_000_000_000_000), ("b", 123_456_789_012)] {
        let refill = RefillRate::per_second(1_000_000_000).unwrap();
        let burst = Limit::new(Capacity::new(capacity).unwrap(), refill).unwrap();
        let plan = PlanNumbers { version: PlanVersion(2), limits: Limits::burst_only(burst) };
        let key = BucketKey::new(VersionSource::File, ScopeId::Client(client));
        let reply = store.call(&key, &Request::take(plan, 1, 1)).await.unwrap();
        assert_eq!(reply.levels.burst.tokens, i64::try_from(capacity).unwrap() - 1);
    }
    assert_eq!(store.counters().lost.load(Ordering::Relaxed), 0, "every reply could be read");
    assert_eq!(store.counters().refused().map(|(_, count)| count).sum::<u64>(), 0);
}

#[tokio::test]
async fn c13_a_server_that_forgot_the_script_is_taught_once_and_no_request_notices() {
    let server = Server::start();
    let store = server.store(2).await;
    let mut admin = server.connection();
    assert_eq!(take(&store, 1_000).await.unwrap().levels.burst.tokens, 999);
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
    assert_eq!(take(&store, 1_000).await.unwrap().levels.burst.tokens, 998);
    let loads_before = store.counters().script_loads.load(Ordering::Relaxed);
    assert_eq!(loads_before, 1);

    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
    let mut callers = JoinSet::new();
    for _ in 0..200 {
        let store = Arc::clone(&store);
        callers.spawn(async move { take(&store, 1_000).await });
    }
    let mut levels = Vec::new();
    while let Some(reply) = callers.join_next().await {
        let reply = reply.unwrap().unwrap();
        assert_eq!(reply.granted, 1);
        levels.push(reply.levels.burst.tokens);
    }
    levels.sort_unstable();
    let expected: Vec<i64> = (798..998).collect();
    assert_eq!(levels, expected, "200 calls take 200 tokens, one each");
    let loads = store.counters().script_loads.load(Ordering::Relaxed) - loads_before;
    assert!(loads <= 2, "the text went out {loads} times for two connections");
    assert_eq!(store.counters().lost.load(Ordering::Relaxed), 0);
    assert_eq!(store.counters().refused().map(|(_, count)| count).sum::<u64>(), 0);
}

#[tokio::test]
async fn c15_a_frozen_server_fails_few_calls_then_none_is_sent_until_it_answers_again() {
    let server = Server::start();
    let proxy = Proxy::before(server.port).await;
    let store = store_at(&proxy.url(), 2);
    until("the store is linked", || store.is_answering()).await;
    take(&store, 1_000).await.unwrap();

    // Five failures in a row open a breaker, and each of two connections has its own.
    const SENT_MAX: usize = 2 * 5;
    server.signal(Signal::STOP);
    let sent_before = store.counters().calls.load(Ordering::Relaxed);
    let mut outcomes = Vec::new();
    while store.is_answering() {
        outcomes.push(take(&store, 1_000).await.map(|reply| reply.granted));
        assert!(outcomes.len() <= SENT_MAX, "so many failed and a breaker is still closed");
    }
    for outcome in outcomes {
        assert!(
            matches!(outcome, Err(StoreError::Lost(_) | StoreError::Tripped { .. })),
            "no reply can have come: {outcome:?}"
        );
    }
    let sent = store.counters().calls.load(Ordering::Relaxed);
    assert!(sent - sent_before <= SENT_MAX as u64, "{} calls", sent - sent_before);

    let bytes_before = proxy.bytes_to_server();
    for _ in 0..2_000 {
        match take(&store, 1_000).await {
            Err(StoreError::Tripped { probe_in }) => {
                assert!(probe_in <= Duration::from_millis(1_300), "{probe_in:?}");
            }
            other => panic!("a call left although the breaker is open: {other:?}"),
        }
    }
    assert_eq!(store.counters().calls.load(Ordering::Relaxed), sent, "nothing was sent");
    let bytes = proxy.bytes_to_server() - bytes_before;
    assert!(bytes < 20_000, "{bytes} bytes for 2,000 calls that must not be sent");

    server.signal(Signal::CONT);
    let (waited, _) = until_answered(&store, 1_000).await;
    assert!(waited <= RECOVERY_MAX, "exact again only after {waited:?}");
}

/// The first call's answer is lost, the second call is answered: two debits in all, not three.
async fn a_lost_answer_costs_one_debit(loss: Loss) {
    let server = Server::start();
    let proxy = Proxy::before(server.port).await;
    let store = store_at(&proxy.url(), 1);
    until("the store is linked", || store.is_answering()).await;

    proxy.lose_next_answer(loss);
    let lost = take(&store, 10).await;
    assert!(matches!(lost, Err(StoreError::Lost(_))), "{lost:?}");
    assert_eq!(store.counters().lost.load(Ordering::Relaxed), 1);

    let (_, reply) = until_answered(&store, 10).await;
    assert_eq!((reply.granted, reply.levels.burst.tokens), (1, 8));
    assert_eq!(store.counters().script_loads.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn c12_a_call_whose_answer_is_lost_is_never_sent_again() {
    a_lost_answer_costs_one_debit(Loss::All).await;
}

#[tokio::test]
async fn c12_answers_that_come_one_too_late_are_taken_for_nobody_elses() {
    a_lost_answer_costs_one_debit(Loss::One).await;
}

#[tokio::test]
async fn f01_a_killed_server_is_found_again_when_it_returns() {
    let mut server = Server::start();
    let store = server.store(2).await;
    take(&store, 10).await.unwrap();
    server.kill();
    until("the loss is noticed", || !store.is_answering()).await;
    for _ in 0..1_000 {
        let outcome = take(&store, 10).await;
        assert!(
            matches!(
                outcome,
                Err(StoreError::Tripped { .. } | StoreError::Unreachable(_) | StoreError::Lost(_))
            ),
            "{outcome:?}"
        );
    }
    server.restart();
    let (waited, reply) = until_answered(&store, 10).await;
    assert!(waited <= RECOVERY_MAX, "exact again only after {waited:?}");
    assert_eq!(reply.levels.burst.tokens, 9, "the new server has forgotten the bucket");
    until("both links are back", || store.counters().reconnects.load(Ordering::Relaxed) >= 2).await;
}

#[tokio::test]
async fn a_store_without_a_server_starts_answers_at_once_and_heals() {
    let port = Port::free().unwrap();
    let store = store_at(&format!("redis://{}/", port.address()), 1);
    let outcome = take(&store, 10).await;
    assert!(
        matches!(outcome, Err(StoreError::Unreachable(_) | StoreError::Tripped { .. })),
        "{outcome:?}"
    );
    until("a dial failed", || store.counters().dials.load(Ordering::Relaxed) >= 2).await;
    let _server = Server::start_at(port);
    let (waited, reply) = until_answered(&store, 10).await;
    assert!(waited <= RECOVERY_MAX, "exact only after {waited:?}");
    assert_eq!(reply.granted, 1);
}

#[tokio::test]
async fn an_outage_causes_few_dials() {
    let port = Port::free().unwrap();
    let store = store_at(&format!("redis://{}/", port.address()), 2);
    let clock = SystemClock::new();
    let started = clock.now();
    while clock.now().since(started) < Duration::from_secs(5) {
        let outcome = take(&store, 10).await;
        assert!(outcome.is_err());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let dials = store.counters().dials.load(Ordering::Relaxed);
    assert!((4..=20).contains(&dials), "{dials} dials in five seconds of two connections");
}

#[tokio::test]
async fn a_demoted_server_refuses_without_taking_and_is_dialled_again() {
    let server = Server::start();
    let store = server.store(1).await;
    let mut admin = server.connection();
    take(&store, 10).await.unwrap();
    let closed = Port::free().unwrap();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(closed.number()).exec(&mut admin).unwrap();
    let outcome = take(&store, 10).await;
    assert!(
        matches!(&outcome, Err(StoreError::Refused { code }) if code == "READONLY"),
        "{outcome:?}"
    );
    let dials = store.counters().dials.load(Ordering::Relaxed);
    until("it is dialled again", || store.counters().dials.load(Ordering::Relaxed) > dials).await;
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut admin).unwrap();
    let (_, reply) = until_answered(&store, 10).await;
    assert_eq!(reply.levels.burst.tokens, 8, "the refused call took nothing");
    assert!(store.counters().refused().any(|(code, count)| code == "READONLY" && count >= 1));
}

#[tokio::test]
async fn f13_a_full_server_refuses_without_taking_and_may_still_be_looked_at() {
    let server = Server::start();
    let store = server.store(1).await;
    let mut admin = server.connection();
    take(&store, 10).await.unwrap();
    let epoch = store.epoch(&key());
    let mut set = |bytes: &str| {
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec(&mut admin).unwrap();
    };
    set("1");
    let outcome = take(&store, 10).await;
    assert!(matches!(&outcome, Err(StoreError::Refused { code }) if code == "OOM"), "{outcome:?}");
    assert!(store.counters().refused().any(|(code, count)| code == "OOM" && count == 1));
    let seen = store.call(&key(), &Request::peek(plan(10))).await.unwrap();
    assert_eq!(seen.levels.burst.tokens, 9, "a look writes nothing");
    set("0");
    let (_, reply) = until_answered(&store, 10).await;
    assert_eq!(reply.levels.burst.tokens, 8, "the refused call took nothing");
    assert_eq!(store.counters().reconnects.load(Ordering::Relaxed), 0, "nor is it left for that");
    assert_eq!(store.epoch(&key()), epoch);
}

#[tokio::test]
async fn a_server_that_may_drop_live_buckets_is_told_of_and_what_it_dropped_is_counted() {
    let server = Server::start();
    let store = server.store(1).await;
    let mut admin = server.connection();
    let told = |store: &RedisStore| store.counters().may_evict.load(Ordering::Relaxed);
    assert!(!told(&store), "a fresh server has no bound");
    let mut set = |name: &str, value: &str| {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut admin).unwrap();
    };
    set("maxmemory", "3mb");
    set("maxmemory-policy", "allkeys-lru");
    until("it is told while the connection lasts", || told(&store)).await;
    for number in 0..100 {
        redis::cmd("SET").arg(number).arg("x".repeat(40_000)).exec(&mut admin).unwrap();
    }
    until("the dropped keys are counted", || store.counters().evicted.load(Ordering::Relaxed) > 0)
        .await;
    let later = server.store(1).await;
    assert!(told(&later), "also by who comes later, at once");
    redis::cmd("CONFIG").arg(&["SET", "maxmemory-policy", "noeviction"]).exec(&mut admin).unwrap();
    until("the mended setting is told", || !told(&store)).await;
    assert_eq!(store.counters().reconnects.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn callers_who_leave_do_not_wear_the_breaker_out() {
    let server = Server::start();
    let store = server.store(1).await;
    for _ in 0..200 {
        let request = Request::take(plan(1_000), 1, 1);
        let key = key();
        let mut call = Box::pin(store.call(&key, &request));
        let polled_once = std::future::poll_fn(|context| {
            std::task::Poll::Ready(call.as_mut().poll(context).is_ready())
        });
        assert!(!polled_once.await, "no server answers within one poll");
    }
    let reply = take(&store, 1_000).await.unwrap();
    assert_eq!(reply.granted, 1);
    assert!(store.is_answering());
}

#[tokio::test]
async fn a_password_is_used_and_never_shown() {
    let server = Server::start();
    let mut admin = server.connection();
    redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("s3cret").exec(&mut admin).unwrap();
    let url = format!("redis://:s3cret@127.0.0.1:{}/", server.port);
    let settings = RedisSettings::new(url.clone());
    assert!(!format!("{settings:?}").contains("s3cret"));
    let store = store_at(&url, 1);
    until("the store is linked", || store.is_answering()).await;
    assert_eq!(take(&store, 10).await.unwrap().granted, 1);
    assert!(!format!("{store:?}").contains("s3cret"));

    let stranger = store_at(&server.url(), 1);
    until("dials fail", || stranger.counters().dials.load(Ordering::Relaxed) >= 2).await;
    assert!(take(&stranger, 10).await.is_err());
    until("the reason is told", || stranger.trouble().is_some()).await;
    let trouble = stranger.trouble().unwrap();
    assert!(trouble.contains("NOAUTH"), "{trouble}");
    assert_eq!(store.trouble(), None);
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_a_dial() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Handle::current();
    for (url, connections) in
        [("redis://127.0.0.1/", 0), ("redis://127.0.0.1/", 5), ("http://127.0.0.1/", 1), ("", 1)]
    {
        let settings = RedisSettings { connections, ..RedisSettings::new(url) };
        let refused = RedisStore::connect(&settings, &runtime, &clock);
        assert!(refused.is_err(), "{url} with {connections}");
    }
}

#[tokio::test]
async fn a_store_that_was_shut_down_holds_no_connection() {
    let server = Server::start();
    let proxy = Proxy::before(server.port).await;
    let store = store_at(&proxy.url(), 2);
    until("both links are there", || proxy.connections() == 2).await;
    until("the store is linked", || store.is_answering()).await;
    store.shut_down().await;
    let outcome = take(&store, 10).await;
    assert!(matches!(outcome, Err(StoreError::Unreachable(_))), "{outcome:?}");
    let mut admin = server.connection();
    let clock = SystemClock::new();
    let started = clock.now();
    loop {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut admin).unwrap();
        if clients.lines().count() == 1 {
            break;
        }
        assert!(clock.now().since(started) < PATIENCE, "{clients}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(proxy.connections(), 2, "nothing is dialled after the end");
}
