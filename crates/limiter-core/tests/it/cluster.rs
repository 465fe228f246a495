//! Slots that move and nodes that go: calls follow, and only the keys of a lost node notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{BucketKey, Clock, Reply, Request, SystemClock};
use test_servers::Cluster;
use tokio::task::JoinSet;

use crate::server::{PATIENCE, key, meanwhile, plan, store_at, store_with, until, until_answered};

const RECOVERY_MAX: Duration = Duration::from_secs(2);
const CAPACITY: u64 = 1_000_000;
const PRIMARIES: usize = 3;

pub(crate) fn url(cluster: &Cluster) -> String {
    format!("redis+cluster://{}", cluster.addresses())
}

pub(crate) async fn store(cluster: &Cluster) -> Arc<RedisStore> {
    linked(cluster, store_at(&url(cluster), 2)).await
}

async fn linked(cluster: &Cluster, store: Arc<RedisStore>) -> Arc<RedisStore> {
    let keys: Vec<BucketKey> = (0..PRIMARIES).map(|primary| key_of(cluster, primary)).collect();
    for key in keys {
        until_answered(&store, &key, CAPACITY).await;
    }
    store
}

/// A key of this primary's.
fn key_of(cluster: &Cluster, primary: usize) -> BucketKey {
    key_called("of", cluster, primary)
}

fn key_called(name: &str, cluster: &Cluster, primary: usize) -> BucketKey {
    let mut keys = (0..1_000).map(|number| key(&format!("{name} {primary}, {number}")));
    let found = meanwhile(|| {
        keys.find(|key| cluster.owner(cluster.slot(&key.to_string()).unwrap()).unwrap() == primary)
    });
    found.expect("one in three keys is a primary's")
}

async fn take(store: &RedisStore, key: &BucketKey) -> Result<Reply, StoreError> {
    store.call(key, &Request::take(plan(CAPACITY), 1, 1)).await
}

/// From so long on a call without an answer counts as a failure of its node, and more of them keep
/// calls back from it.
const SILENCE: Duration = Duration::from_millis(100);

/// Call without pause until told to stop.
struct Callers {
    tasks: JoinSet<Vec<StoreError>>,
    stop: Arc<AtomicBool>,
    granted: Arc<AtomicU64>,
    /// Calls answered, of each caller.
    answered: Vec<Arc<AtomicU64>>,
    longest_us: Arc<AtomicU64>,
}

impl Callers {
    fn start(store: &Arc<RedisStore>, key: BucketKey, count: usize) -> Callers {
        let mut callers = Callers {
            tasks: JoinSet::new(),
            stop: Arc::default(),
            granted: Arc::default(),
            answered: (0..count).map(|_| Arc::default()).collect(),
            longest_us: Arc::default(),
        };
        for answered in &callers.answered {
            let (store, stop, answered) =
                (Arc::clone(store), Arc::clone(&callers.stop), Arc::clone(answered));
            let (granted, longest_us) =
                (Arc::clone(&callers.granted), Arc::clone(&callers.longest_us));
            callers.tasks.spawn(async move {
                let (mut failures, clock) = (Vec::new(), SystemClock::new());
                while !stop.load(Ordering::Relaxed) {
                    let began = clock.now();
                    let outcome = take(&store, &key).await;
                    let took = u64::try_from(clock.now().since(began).as_micros()).unwrap();
                    longest_us.fetch_max(took, Ordering::Relaxed);
                    match outcome {
                        Ok(reply) => {
                            granted.fetch_add(reply.granted, Ordering::Relaxed);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => failures.push(error),
                    }
                    tokio::time::sleep(Duration::from_micros(300)).await;
                }
                failures
            });
        }
        callers
    }

    /// Waits until each of them has begun a call and been answered: whatever was under way before is
    /// over.
    async fn until_each_was_answered(&self, what: &str) {
        let calls = |count: &Arc<AtomicU64>| count.load(Ordering::Relaxed);
        let before: Vec<u64> = self.answered.iter().map(calls).collect();
        // The first may have been under way.
        let whole =
            || self.answered.iter().map(calls).zip(&before).all(|(now, was)| now >= was + 2);
        until(what, whole).await;
    }

    /// Tokens granted, and calls of which nobody knows. Nodes that answer fail no call; only where
    /// one was silent, to a call or to heartbeats, may calls be lost, or kept back.
    async fn stop(mut self, heartbeats_missed: bool) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        while let Some(failed) = self.tasks.join_next().await {
            failures.extend(failed.unwrap());
        }
        let longest = Duration::from_micros(self.longest_us.load(Ordering::Relaxed));
        let silent = longest >= SILENCE || heartbeats_missed;
        let wrong = |error: &&StoreError| match error {
            StoreError::Refused { .. } | StoreError::Unreachable(_) => true,
            StoreError::Lost(_) | StoreError::Tripped { .. } => !silent,
        };
        let wrong: Vec<_> = failures.iter().filter(wrong).collect();
        assert!(wrong.is_empty(), "{} failed, such as {:?}", wrong.len(), wrong[0]);
        let lost = failures.iter().filter(|error| matches!(error, StoreError::Lost(_))).count();
        (self.granted.load(Ordering::Relaxed), lost as u64)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_a_slot_that_moves_to_and_fro_fails_no_call_and_keeps_its_bucket() {
    let cluster = meanwhile(Cluster::start).unwrap();
    // A machine that gives nobody the processor for a while must not look like a dead node.
    meanwhile(|| {
        for node in 0..cluster.nodes() {
            let _ok: String =
                cluster.node(node).query("CONFIG SET cluster-node-timeout 30000").unwrap();
        }
    });
    let settings =
        RedisSettings { response_timeout: PATIENCE, ..RedisSettings::new(url(&cluster)) };
    let store = linked(&cluster, store_with(&settings)).await;
    let key = key_of(&cluster, 0);
    let slot = meanwhile(|| cluster.slot(&key.to_string())).unwrap();
    let (_, before) = until_answered(&store, &key, CAPACITY).await;
    let epoch = store.epoch(&key);
    let redirected = || store.counters().redirects.load(Ordering::Relaxed);

    let callers = Callers::start(&store, key, 4);
    for round in 0..20 {
        // The slot takes its next step when every call has seen the last one: none is sent to and
        // fro because it took longer than a slot may take to come back.
        let to = if round % 2 == 0 { 1 } else { 0 };
        let migration = meanwhile(|| cluster.begin_migration(slot, to)).unwrap();
        callers.until_each_was_answered("calls go on while the slot is open").await;
        meanwhile(|| migration.move_keys()).unwrap();
        let asked = redirected();
        callers.until_each_was_answered("calls are sent to the target").await;
        let sent_on = redirected() - asked;
        assert!(sent_on >= 4, "{sent_on} calls were sent on, one by one");
        meanwhile(|| migration.finish()).unwrap();
        callers.until_each_was_answered("the target is called").await;
    }
    let missed = store.counters().heartbeats_missed.load(Ordering::Relaxed) > 0;
    let (granted, lost) = callers.stop(missed).await;
    let (_, after) = until_answered(&store, &key, CAPACITY).await;
    let taken = u64::try_from(before.levels.burst.tokens - after.levels.burst.tokens).unwrap();
    let may_be = granted + 1..=granted + 1 + lost;
    assert!(may_be.contains(&taken), "{taken} taken by {granted} calls, {lost} lost");
    assert!(store.epoch(&key) > epoch, "who remembers should testify");
    assert!(go_straight(&store, &key).await, "calls go straight to the new node");
}

/// Whether no call is redirected any more. A look at the map that began before the last change may
/// end after it, and is put right by the next call.
async fn go_straight(store: &RedisStore, key: &BucketKey) -> bool {
    for _look in 0..3 {
        let redirected = || store.counters().redirects.load(Ordering::Relaxed);
        let before = redirected();
        for _ in 0..100 {
            until_answered(store, key, CAPACITY).await;
        }
        if redirected() == before {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_sent_to_a_silent_node_is_kept_back_and_not_refused() {
    let cluster = meanwhile(|| Cluster::start_with(PRIMARIES, 0, Default::default)).unwrap();
    let store = store(&cluster).await;
    // Nobody has called for it yet: a node that holds a key does not let its slot go.
    let moved = key_called("moved", &cluster, 0);
    let slot = meanwhile(|| cluster.slot(&moved.to_string())).unwrap();
    let target: String = meanwhile(|| cluster.node(1).query("CLUSTER MYID")).unwrap();
    let give = format!("CLUSTER SETSLOT {slot} NODE {target}");
    cluster.node(1).freeze().unwrap();
    let of_target = key_of(&cluster, 1);
    let kept_back =
        |outcome: &Result<Reply, StoreError>| matches!(outcome, Err(StoreError::Tripped { .. }));
    let clock = SystemClock::new();
    let began = clock.now();
    while !kept_back(&take(&store, &of_target).await) {
        assert!(clock.now().since(began) < PATIENCE, "a silent node is called for ever");
    }
    let _ok: String = meanwhile(|| cluster.node(0).query(&give)).unwrap();
    let outcome = take(&store, &moved).await;
    assert!(kept_back(&outcome), "{outcome:?}");
    cluster.node(1).thaw().unwrap();
    let _ok: String = meanwhile(|| cluster.node(1).query(&give)).unwrap();
    let (_, reply) = until_answered(&store, &moved, CAPACITY).await;
    assert_eq!(reply.granted, 1);
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
        // Those of the dead node are none of theirs.
        let (granted, _) = callers.stop(false).await;
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
