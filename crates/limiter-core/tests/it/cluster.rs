//! Slots that move and nodes that go: calls follow, and only the keys of a lost node notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::store::redis::RedisStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{BucketKey, Clock, Reply, Request, SystemClock};
use test_servers::Cluster;
use tokio::task::JoinSet;

use crate::server::{Stalls, key, meanwhile, plan, store_at, until, until_answered};

const RECOVERY_MAX: Duration = Duration::from_secs(2);
const CAPACITY: u64 = 1_000_000;
const PRIMARIES: usize = 3;

pub(crate) fn url(cluster: &Cluster) -> String {
    format!("redis+cluster://{}", cluster.addresses())
}

pub(crate) async fn store(cluster: &Cluster) -> Arc<RedisStore> {
    let store = store_at(&url(cluster), 2);
    let keys: Vec<BucketKey> = (0..PRIMARIES).map(|primary| key_of(cluster, primary)).collect();
    for key in keys {
        until_answered(&store, &key, CAPACITY).await;
    }
    store
}

/// A key of this primary's.
fn key_of(cluster: &Cluster, primary: usize) -> BucketKey {
    let mut keys = (0..1_000).map(|number| key(&format!("of {primary}, {number}")));
    let found = meanwhile(|| {
        keys.find(|key| cluster.owner(cluster.slot(&key.to_string()).unwrap()).unwrap() == primary)
    });
    found.expect("one in three keys is a primary's")
}

async fn take(store: &RedisStore, key: &BucketKey) -> Result<Reply, StoreError> {
    store.call(key, &Request::take(plan(CAPACITY), 1, 1)).await
}

/// Calls without pause until told to stop; what did not succeed, and how many did.
struct Callers {
    tasks: JoinSet<Vec<StoreError>>,
    stop: Arc<AtomicBool>,
    granted: Arc<AtomicU64>,
}

impl Callers {
    fn start(store: &Arc<RedisStore>, key: BucketKey, count: usize) -> Callers {
        let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let (store, stop, granted) =
                (Arc::clone(store), Arc::clone(&stop), Arc::clone(&granted));
            tasks.spawn(async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match take(&store, &key).await {
                        Ok(reply) => {
                            granted.fetch_add(reply.granted, Ordering::Relaxed);
                        }
                        Err(error) => failures.push(error),
                    }
                    tokio::time::sleep(Duration::from_micros(300)).await;
                }
                failures
            });
        }
        Callers { tasks, stop, granted }
    }

    /// Tokens granted, and calls of which nobody knows; none of those if the machine kept up, and
    /// no failure of another kind at all.
    async fn stop(mut self, stalls: &Stalls) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        while let Some(failed) = self.tasks.join_next().await {
            failures.extend(failed.unwrap());
        }
        // Nodes that have no time to hear of each other send callers to and fro.
        let late = |error: &&StoreError| match error {
            StoreError::Lost(_) | StoreError::Tripped { .. } => true,
            StoreError::Refused { code } => code == "MOVED",
            StoreError::Unreachable(_) => false,
        };
        let wrong: Vec<_> =
            failures.iter().filter(|error| !(late(error) && stalls.excuse())).collect();
        assert!(wrong.is_empty(), "{} failed, such as {:?}", wrong.len(), wrong[0]);
        let lost = failures.iter().filter(|error| matches!(error, StoreError::Lost(_))).count();
        (self.granted.load(Ordering::Relaxed), lost as u64)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_a_slot_that_moves_to_and_fro_fails_no_call_and_keeps_its_bucket() {
    let cluster = meanwhile(Cluster::start).unwrap();
    let store = store(&cluster).await;
    let key = key_of(&cluster, 0);
    let slot = meanwhile(|| cluster.slot(&key.to_string())).unwrap();
    let (_, before) = until_answered(&store, &key, CAPACITY).await;
    let epoch = store.epoch(&key);
    let redirected = || store.counters().redirects.load(Ordering::Relaxed);

    let stalls = Stalls::watch();
    let callers = Callers::start(&store, key, 4);
    for round in 0..10 {
        let to = if round % 2 == 0 { 1 } else { 0 };
        let migration = meanwhile(|| cluster.begin_migration(slot, to)).unwrap();
        meanwhile(|| migration.move_keys()).unwrap();
        let asked = redirected();
        until("calls are sent to the target, each of them", || redirected() > asked + 10).await;
        meanwhile(|| migration.finish()).unwrap();
        let at_target = callers.granted.load(Ordering::Relaxed);
        until("the target is called", || callers.granted.load(Ordering::Relaxed) > at_target + 20)
            .await;
    }
    let (granted, lost) = callers.stop(&stalls).await;
    let (_, after) = until_answered(&store, &key, CAPACITY).await;
    let taken = u64::try_from(before.levels.burst.tokens - after.levels.burst.tokens).unwrap();
    let may_be = granted + 1..=granted + 1 + lost;
    assert!(may_be.contains(&taken), "{taken} taken by {granted} calls, {lost} lost");
    assert!(store.epoch(&key) > epoch, "who remembers should testify");
    let settled = redirected();
    for _ in 0..100 {
        until_answered(&store, &key, CAPACITY).await;
    }
    assert_eq!(redirected(), settled, "calls go straight to the new node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_a_dead_primary_costs_its_own_keys_only_until_its_replica_takes_over() {
    let mut cluster = meanwhile(Cluster::start).unwrap();
    let store = store(&cluster).await;
    let keys: Vec<BucketKey> = (0..PRIMARIES).map(|primary| key_of(&cluster, primary)).collect();
    for key in &keys {
        until_answered(&store, key, CAPACITY).await;
    }
    let epochs: Vec<u64> = keys.iter().map(|key| store.epoch(key)).collect();
    let replica = meanwhile(|| cluster.replica_of(0)).unwrap();
    let stalls = Stalls::watch();
    let others: Vec<Callers> =
        keys[1..].iter().map(|key| Callers::start(&store, *key, 2)).collect();

    meanwhile(|| cluster.node_mut(0).kill());
    until("the loss is noticed", || {
        meanwhile(|| tokio::runtime::Handle::current().block_on(take(&store, &keys[0]))).is_err()
    })
    .await;
    meanwhile(|| cluster.until_primary(replica)).unwrap();
    let (waited, reply) = until_answered(&store, &keys[0], CAPACITY).await;
    assert!(waited <= RECOVERY_MAX, "exact again only {waited:?} after the promotion");
    assert_eq!(reply.granted, 1);
    for callers in others {
        let (granted, _) = callers.stop(&stalls).await;
        assert!(granted > 0);
    }
    let later: Vec<u64> = keys.iter().map(|key| store.epoch(key)).collect();
    assert!(later[0] > epochs[0], "its new node may have missed writes");
    assert_eq!(later[1..], epochs[1..], "nothing happened to the other nodes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_failover_is_followed_and_loses_nothing() {
    let cluster = meanwhile(Cluster::start).unwrap();
    let store = store(&cluster).await;
    let key = key_of(&cluster, 1);
    let (_, before) = until_answered(&store, &key, CAPACITY).await;
    let replica = meanwhile(|| cluster.replica_of(1)).unwrap();
    meanwhile(|| cluster.failover_to(replica)).unwrap();
    let (waited, after) = until_answered(&store, &key, CAPACITY).await;
    assert!(waited <= RECOVERY_MAX, "{waited:?}");
    assert_eq!(before.levels.burst.tokens - after.levels.burst.tokens, 1);
    assert_eq!(store.counters().lost.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_without_a_majority_calls_are_refused_and_none_is_sent_twice() {
    let mut cluster = meanwhile(Cluster::start).unwrap();
    let store = store(&cluster).await;
    let key = key_of(&cluster, 2);
    meanwhile(|| {
        for node in [0, 1, 3, 4, 5] {
            cluster.node_mut(node).kill();
        }
    });
    let clock = SystemClock::new();
    let refused = |outcome: &Result<Reply, StoreError>| matches!(outcome, Err(StoreError::Refused { code }) if code == "CLUSTERDOWN");
    let began = clock.now();
    while !refused(&take(&store, &key).await) {
        assert!(clock.now().since(began) < crate::server::PATIENCE, "never CLUSTERDOWN");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let processed = || -> u64 {
        let count = meanwhile(|| cluster.node(2).info("total_commands_processed")).unwrap();
        count.parse().unwrap()
    };
    const CALLS: u64 = 500;
    let (sent, started) = (processed(), clock.now());
    for _ in 0..CALLS {
        assert!(take(&store, &key).await.is_err());
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
    let seconds = clock.now().since(started).as_secs() + 1;
    // Besides calls: heartbeats, a look at the server and at the slots, some of each a second.
    let most = CALLS + seconds * 40;
    let sent = processed() - sent;
    assert!(sent <= most, "{sent} commands for {CALLS} calls in {seconds} s");
    meanwhile(|| {
        for node in [0, 1] {
            cluster.node_mut(node).restart().unwrap();
        }
    });
    let healed = |node: usize| cluster.node(node).query::<String>("CLUSTER INFO").unwrap();
    until("the Cluster is whole", || meanwhile(|| healed(2).contains("cluster_state:ok"))).await;
    let (waited, _) = until_answered(&store, &key, CAPACITY).await;
    assert!(waited <= RECOVERY_MAX, "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_nodes_that_forgot_the_script_are_taught_once_each_and_have_few_connections() {
    let cluster = meanwhile(Cluster::start).unwrap();
    let store = store(&cluster).await;
    let keys: Vec<BucketKey> = (0..PRIMARIES).map(|primary| key_of(&cluster, primary)).collect();
    meanwhile(|| {
        for node in 0..PRIMARIES {
            let _told: String = cluster.node(node).query("SCRIPT FLUSH").unwrap();
        }
    });
    let mut callers = JoinSet::new();
    for number in 0..150 {
        let (store, key) = (Arc::clone(&store), keys[number % PRIMARIES]);
        callers.spawn(async move { take(&store, &key).await.unwrap().granted });
    }
    let granted: u64 = callers.join_all().await.into_iter().sum();
    assert_eq!(granted, 150);
    let loads = store.counters().script_loads.load(Ordering::Relaxed);
    assert!(loads <= 6, "{loads} loads for two connections to each of three nodes");
    for node in 0..PRIMARIES {
        let clients: String =
            meanwhile(|| cluster.node(node).query("CLIENT LIST TYPE normal")).unwrap();
        // Two links, perhaps one that asks for slots, and this query.
        assert!(clients.lines().count() <= 4, "{clients}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_seed_that_answers_is_enough_and_none_is_told() {
    let cluster = meanwhile(|| Cluster::start_with(3, 0, Default::default)).unwrap();
    let dead = test_servers::Port::free().unwrap();
    let living = cluster.node(1).address();
    let store = store_at(&format!("redis+cluster://{},{living}", dead.address()), 1);
    for primary in 0..PRIMARIES {
        until_answered(&store, &key_of(&cluster, primary), CAPACITY).await;
    }
    let lonely = store_at(&format!("redis+cluster://{}", dead.address()), 1);
    let outcome = take(&lonely, &key("acme")).await;
    assert!(matches!(outcome, Err(StoreError::Unreachable(_))), "{outcome:?}");
    until("the reason is told", || lonely.trouble().is_some()).await;
    assert!(lonely.trouble().unwrap().contains(&dead.address().to_string()));
}
