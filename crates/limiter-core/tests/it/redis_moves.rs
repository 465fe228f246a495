//! A limiter over a server that changes under it: an address that leads to another one, a store
//! that forgets in the middle of the traffic, answers that come after the deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fault_proxy::{FaultProxy, Toxic};
use limiter_core::store::redis::RedisStore;
use limiter_core::{
    Basis, Capacity, Clock, Contract, Cost, Extras, FailurePolicy, Limit, Limiter, LimiterSettings,
    Limits, PlanNumbers, PlanVersion, RefillRate, SystemClock,
};
use test_servers::{Cluster, Server};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::server::{PATIENCE, Stalls, key, meanwhile, plan, store_at, until};

const RECOVERY_MAX: Duration = Duration::from_secs(2);
const LINKS: usize = 2;

async fn linked(url: &str) -> Arc<RedisStore> {
    let store = store_at(url, LINKS);
    until("the store is linked", || store.is_answering()).await;
    store
}

fn limiter(store: &Arc<RedisStore>, settings: LimiterSettings) -> Limiter<RedisStore> {
    Limiter::new(Arc::clone(store), Arc::new(SystemClock::new()), settings)
}

fn contract(client: &str, capacity: u64, failure: FailurePolicy) -> Contract {
    Contract { key: key(client), plan: plan(capacity), reset: PlanVersion(0), failure }
}

fn told(server: &Server, command: &str) {
    let _told: redis::Value = meanwhile(|| server.query(command)).unwrap();
}

/// Callers of a server, but for the one that asks.
fn callers(server: &Server) -> usize {
    let clients: String = meanwhile(|| server.query("CLIENT LIST TYPE normal")).unwrap();
    clients.lines().count() - 1
}

/// The old server goes on, with its connections open, as a replica of the new one; nobody is
/// restarted, and both have been at the same address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_an_address_that_leads_to_another_server_is_followed_and_the_old_one_is_left() {
    let (old, new) = (meanwhile(Server::start).unwrap(), meanwhile(Server::start).unwrap());
    told(&new, &format!("REPLICAOF 127.0.0.1 {}", old.port()));
    let proxy = FaultProxy::start(old.address()).unwrap();
    let store = linked(&proxy.url()).await;
    let limiter = limiter(&store, LimiterSettings::default());
    let contract = contract("c14", 39, FailurePolicy::Open);
    let whole = limiter.decide(&contract, Cost::new(39).unwrap()).await;
    assert!(whole.is_allowed() && whole.basis == Basis::Store, "{whole:?}");
    let name = contract.key.to_string();
    until("the replica has the bucket", || {
        meanwhile(|| new.query_words::<i64>(&["EXISTS", &name])).unwrap() == 1
    })
    .await;
    assert_eq!(callers(&old), LINKS);

    let (stalls, clock) = (Stalls::watch(), SystemClock::new());
    told(&new, "REPLICAOF NO ONE");
    told(&old, &format!("REPLICAOF 127.0.0.1 {}", new.port()));
    proxy.retarget(new.address());
    let moved = clock.now();
    let mut last_by_policy = moved;
    for _ in 0..500 {
        let decision = limiter.decide(&contract, Cost::ONE).await;
        let by_policy = matches!(decision.basis, Basis::Degraded(_));
        assert_eq!(decision.is_allowed(), by_policy, "{decision:?}: the bucket is empty");
        if by_policy {
            last_by_policy = clock.now();
        }
        sleep(Duration::from_millis(10)).await;
    }
    let late = last_by_policy.since(moved);
    assert!(late <= RECOVERY_MAX || stalls.excuse(), "by policy for {late:?}");
    // No refusal tells of a server whose links nobody used: they notice by themselves.
    until("the old server is left", || callers(&old) == 0).await;
    until("all links lead to the new one", || callers(&new) == LINKS).await;
    let refused = || store.counters().refused().map(|(_, count)| count).sum::<u64>();
    let before = refused();
    for _ in 0..50 {
        assert_eq!(limiter.decide(&contract, Cost::ONE).await.basis, Basis::Store);
    }
    assert_eq!(refused(), before, "refusals end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_a_store_that_is_emptied_under_load_costs_one_bucket_each_time() {
    const CAPACITY: u64 = 500;
    const PER_SECOND: u64 = 200;
    const FLUSHES: u64 = 3;
    let server = meanwhile(Server::start).unwrap();
    let store = linked(&server.url()).await;
    // Told to be patient: a busy machine is not what this is about.
    let settings =
        LimiterSettings { deadline: Duration::from_millis(50), ..LimiterSettings::default() };
    let limiter = limiter(&store, settings);
    // It refills, so that nobody is refused from memory for long.
    let refill = RefillRate::per_second(PER_SECOND).unwrap();
    let burst = Limit::new(Capacity::new(CAPACITY).unwrap(), refill).unwrap();
    let numbers = PlanNumbers { limits: Limits::burst_only(burst), ..plan(CAPACITY) };
    let contract = Contract { plan: numbers, ..contract("f15", CAPACITY, FailurePolicy::CLOSED) };
    let (admitted, degraded) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let (stalls, mut callers) = (Stalls::watch(), JoinSet::new());
    for _ in 0..8 {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        let (admitted, degraded) = (Arc::clone(&admitted), Arc::clone(&degraded));
        callers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let decision = limiter.decide(&contract, Cost::ONE).await;
                admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                let without = matches!(decision.basis, Basis::Degraded(_));
                degraded.fetch_add(u64::from(without), Ordering::Relaxed);
                sleep(Duration::from_micros(300)).await;
            }
        });
    }
    let all = || admitted.load(Ordering::Relaxed);
    let (clock, calls) = (SystemClock::new(), || store.counters().calls.load(Ordering::Relaxed));
    let (began, mut asked) = (clock.now(), 0);
    for flushes in 0..=FLUSHES {
        sleep(Duration::from_millis(500)).await;
        let earned = PER_SECOND * (clock.now().since(began).as_secs() + 1);
        let most = CAPACITY * (1 + flushes) + earned;
        assert!(all() <= most, "{} of {most} after {flushes} flushes", all());
        assert!(all() >= CAPACITY, "{}: not even a whole bucket", all());
        assert!(calls() > asked, "the store is asked all the time");
        asked = calls();
        if flushes < FLUSHES {
            told(&server, "FLUSHALL");
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let without = degraded.load(Ordering::Relaxed);
    assert!(without == 0 || stalls.excuse(), "{without} decisions without the store");
    let refused: u64 = store.counters().refused().map(|(_, count)| count).sum();
    assert_eq!(refused, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_a_reply_after_the_deadline_is_no_failure_and_pays_for_its_request() {
    let server = meanwhile(Server::start).unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let (direct, store) = (linked(&server.url()).await, linked(&proxy.url()).await);
    // The figures of the promise, ten times as slow: a deadline, and replies that are just later.
    let settings = LimiterSettings {
        deadline: Duration::from_millis(40),
        leases: false,
        extras: Extras { hedge: false, ..Extras::default() },
    };
    let (slow, exact) = (limiter(&store, settings), limiter(&direct, settings));
    let contract = contract("f04", 10_000, FailurePolicy::Open);
    let taken = async || {
        let found = exact.inspect(&contract).await.unwrap();
        10_000 - u64::try_from(found.levels.burst.tokens).unwrap()
    };
    let stalls = Stalls::watch();
    proxy.set(Toxic::delay(Duration::from_millis(60)));
    let mut admitted = 0;
    for _ in 0..25 {
        let decision = slow.decide(&contract, Cost::ONE).await;
        assert!(decision.is_allowed(), "the policy is open: {decision:?}");
        assert!(matches!(decision.basis, Basis::Degraded(_)), "{decision:?} came in time?");
        admitted += 1;
        // Its reply is there before the next one asks.
        sleep(Duration::from_millis(100)).await;
    }
    assert!(store.breaker_openings() == 0 || stalls.excuse(), "what is slow has not failed");
    let counters = store.counters();
    assert!(counters.lost.load(Ordering::Relaxed) == 0 || stalls.excuse());
    let paid = taken().await;
    assert!(paid <= admitted, "{paid} paid for {admitted}");
    assert!(paid == admitted || stalls.excuse(), "{paid} paid for {admitted}");

    proxy.clear();
    let (clock, mut in_a_row) = (SystemClock::new(), 0);
    let healed = clock.now();
    while in_a_row < 50 {
        let decision = slow.decide(&contract, Cost::ONE).await;
        admitted += 1;
        in_a_row = if decision.basis == Basis::Store { in_a_row + 1 } else { 0 };
        assert!(clock.now().since(healed) < PATIENCE, "{decision:?}");
        sleep(Duration::from_millis(5)).await;
    }
    let paid = taken().await;
    assert!(paid <= admitted && (paid == admitted || stalls.excuse()), "{paid} for {admitted}");
}

/// Replication does not wait for replicas: a new primary begins where the old one's word ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_what_a_replica_had_not_seen_is_all_that_a_failover_can_cost() {
    const CAPACITY: u64 = 200;
    const SEEN: u64 = 60;
    const UNSEEN: u64 = 40;
    let mut cluster = meanwhile(Cluster::start).unwrap();
    let store = crate::cluster::store(&cluster).await;
    let settings = LimiterSettings {
        deadline: Duration::from_millis(50),
        leases: false,
        ..LimiterSettings::default()
    };
    let limiter = limiter(&store, settings);
    let contract = contract("f21", CAPACITY, FailurePolicy::CLOSED);
    let name = contract.key.to_string();
    let (owner, replica) = meanwhile(|| {
        let owner = cluster.owner(cluster.slot(&name).unwrap()).unwrap();
        (owner, cluster.replica_of(owner).unwrap())
    });
    let stalls = Stalls::watch();
    let mut admitted = 0;
    let take = async |count: u64| {
        let mut allowed = 0;
        for _ in 0..count {
            let decision = limiter.decide(&contract, Cost::ONE).await;
            assert!(decision.is_allowed() || stalls.excuse(), "{decision:?}");
            allowed += u64::from(decision.is_allowed());
        }
        allowed
    };
    admitted += take(SEEN).await;
    let offset = |node: usize, field: &str| {
        meanwhile(|| cluster.node(node).info(field)).unwrap().parse::<u64>().unwrap()
    };
    let written = offset(owner, "master_repl_offset");
    until("the replica has seen that", || offset(replica, "slave_repl_offset") >= written).await;
    meanwhile(|| cluster.node(replica).freeze()).unwrap();
    admitted += take(UNSEEN).await;
    meanwhile(|| cluster.node_mut(owner).kill());
    meanwhile(|| cluster.node(replica).thaw()).unwrap();
    meanwhile(|| cluster.until_primary(replica)).unwrap();
    let (clock, began) = (SystemClock::new(), SystemClock::new().now());
    loop {
        let decision = limiter.decide(&contract, Cost::ONE).await;
        admitted += u64::from(decision.is_allowed());
        if !decision.is_allowed() && decision.basis == Basis::Store {
            break;
        }
        assert!(clock.now().since(began) < 3 * PATIENCE, "{decision:?} after {admitted}");
        sleep(Duration::from_millis(2)).await;
    }
    let expected = CAPACITY..=CAPACITY + UNSEEN;
    assert!(expected.contains(&admitted) || stalls.excuse(), "{admitted} of {expected:?}");
}
