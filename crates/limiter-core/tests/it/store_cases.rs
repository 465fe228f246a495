//! Faults of stores that users of other limiters met, for limiters over each of the four stores: in
//! this process, and real servers alone, under Sentinels and in a Cluster. The list is in
//! `tests/CASES.md`.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::memory::MemoryStore;
use limiter_core::store::redis::RedisStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::testkit::{Fault, FaultyStore};
use limiter_core::{
    Basis, BucketKey, Clock, Contract, Cost, Decision, FailurePolicy, Limiter, LimiterSettings,
    Outcome, PlanVersion, Reply, Request, SystemClock, TICK_EVERY, Wait,
};
use test_servers::{Cluster, SentinelSet, Server};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::server::{PATIENCE, Stalls, key, meanwhile, plan, store_at, until};

/// The promise: exact again so long after the store is whole.
const RECOVERY_MAX: Duration = Duration::from_secs(2);
/// Every one of so many requests is decided, whatever the store does.
const REQUESTS: usize = 200;

enum AnyStore {
    Memory(Box<FaultyStore<MemoryStore>>),
    Redis(Arc<RedisStore>),
}

impl BucketStore for AnyStore {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        match self {
            AnyStore::Memory(store) => store.call(key, request).await,
            AnyStore::Redis(store) => store.call(key, request).await,
        }
    }

    fn epoch(&self, key: &BucketKey) -> u64 {
        match self {
            AnyStore::Memory(store) => store.epoch(key),
            AnyStore::Redis(store) => store.epoch(key),
        }
    }
}

enum Servers {
    None,
    Single(Server),
    Sentinel(SentinelSet),
    Cluster(Cluster),
}

/// One store, and what is behind it.
struct Bed {
    name: &'static str,
    store: Arc<AnyStore>,
    servers: Servers,
}

/// Every store; those over servers are linked.
async fn beds() -> [Bed; 4] {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let memory = AnyStore::Memory(Box::new(FaultyStore::new(MemoryStore::new(clock))));
    let single = meanwhile(Server::start).unwrap();
    let alone = store_at(&single.url(), 2);
    until("the store is linked", || alone.is_answering()).await;
    let set = meanwhile(|| SentinelSet::start(1)).unwrap();
    let watched = crate::sentinel::store(&set).await;
    let cluster = meanwhile(Cluster::start).unwrap();
    let sharded = crate::cluster::store(&cluster).await;
    let bed = |name, store, servers| Bed { name, store: Arc::new(store), servers };
    [
        bed("memory", memory, Servers::None),
        bed("single", AnyStore::Redis(alone), Servers::Single(single)),
        bed("sentinel", AnyStore::Redis(watched), Servers::Sentinel(set)),
        bed("cluster", AnyStore::Redis(sharded), Servers::Cluster(cluster)),
    ]
}

impl Bed {
    fn limiter(&self) -> Limiter<AnyStore> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Limiter::new(Arc::clone(&self.store), clock, LimiterSettings::default())
    }

    /// The server that holds `key`, if there is one.
    fn server(&self, key: &BucketKey) -> Option<&Server> {
        match &self.servers {
            Servers::None => None,
            Servers::Single(server) => Some(server),
            Servers::Sentinel(set) => Some(set.server(meanwhile(|| set.primary()).unwrap())),
            Servers::Cluster(cluster) => {
                let owner = meanwhile(|| cluster.owner(cluster.slot(&key.to_string())?)).unwrap();
                Some(cluster.node(owner))
            }
        }
    }

    /// From now on calls are executed and not answered, or not yet.
    fn freeze(&self, key: &BucketKey) {
        match (&*self.store, self.server(key)) {
            (AnyStore::Memory(store), _) => store.always(Fault::LostAfter),
            (AnyStore::Redis(_), server) => server.unwrap().freeze().unwrap(),
        }
    }

    /// The same server as was frozen, since a frozen one cannot be asked who it is.
    fn thaw(&self) {
        let thaw = |server: &Server| server.thaw().unwrap();
        match (&*self.store, &self.servers) {
            (AnyStore::Memory(store), _) => store.always(Fault::None),
            (AnyStore::Redis(_), Servers::None) => unreachable!("a server is behind it"),
            (AnyStore::Redis(_), Servers::Single(server)) => thaw(server),
            (AnyStore::Redis(_), Servers::Sentinel(set)) => {
                (0..set.servers()).for_each(|index| thaw(set.server(index)));
            }
            (AnyStore::Redis(_), Servers::Cluster(cluster)) => {
                (0..cluster.nodes()).for_each(|index| thaw(cluster.node(index)));
            }
        }
    }

    /// What the store has for the contract, once it answers.
    async fn inspected(&self, limiter: &Limiter<AnyStore>, contract: &Contract) -> Reply {
        let clock = SystemClock::new();
        let started = clock.now();
        loop {
            match limiter.inspect(contract).await {
                Ok(reply) => return reply,
                Err(error) => {
                    let waited = clock.now().since(started);
                    assert!(waited < PATIENCE, "{}: {error:?} for {waited:?}", self.name);
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

fn contract(client: &str, capacity: u64, failure: FailurePolicy) -> Contract {
    Contract { key: key(client), plan: plan(capacity), reset: PlanVersion(0), failure }
}

fn is_degraded(decision: &Decision) -> bool {
    matches!(decision.basis, Basis::Degraded(_))
}

fn remaining(decision: &Decision) -> Option<u64> {
    match decision.outcome {
        Outcome::Allowed { remaining } => Some(remaining),
        Outcome::Denied { .. } => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c12_an_outcome_that_is_unknown_is_one_debit_on_every_store() {
    for bed in beds().await {
        let limiter = bed.limiter();
        let contract = contract("c12", 10, FailurePolicy::Open);
        bed.freeze(&contract.key);
        let first = limiter.decide(&contract, Cost::ONE).await;
        assert!(first.is_allowed() && is_degraded(&first), "{}: {first:?}", bed.name);
        bed.thaw();
        let found = bed.inspected(&limiter, &contract).await;
        assert_eq!(found.levels.burst.tokens, 9, "{}: it was executed once", bed.name);
        let second = limiter.decide(&contract, Cost::ONE).await;
        assert!(!is_degraded(&second), "{}: {second:?}", bed.name);
        assert_eq!(remaining(&second), Some(8), "{}: two debits, not three", bed.name);
        assert_eq!(bed.inspected(&limiter, &contract).await.granted_total, 2, "{}", bed.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_a_script_that_was_lost_is_no_fault_on_any_store() {
    for bed in beds().await {
        let contract = contract("c13", 1_000, FailurePolicy::Open);
        let forget = || {
            if let Some(server) = bed.server(&contract.key) {
                let _ok: String = meanwhile(|| server.query("SCRIPT FLUSH")).unwrap();
            }
        };
        let take = Request::take(contract.plan, 1, 1);
        let before = bed.store.call(&contract.key, &take).await.unwrap();
        assert_eq!(before.levels.burst.tokens, 999, "{}", bed.name);
        forget();
        let after = bed.store.call(&contract.key, &take).await.unwrap();
        assert_eq!(after.levels.burst.tokens, 998, "{}", bed.name);
        forget();
        let mut callers = JoinSet::new();
        for _ in 0..REQUESTS {
            let store = Arc::clone(&bed.store);
            callers.spawn(async move { store.call(&contract.key, &take).await });
        }
        let replies = callers.join_all().await;
        let mut levels: Vec<i64> =
            replies.into_iter().map(|reply| reply.unwrap().levels.burst.tokens).collect();
        levels.sort_unstable();
        assert_eq!(levels, (798..998).collect::<Vec<_>>(), "{}: one token each", bed.name);
    }
}

/// Whoever has the bucket must not be written to any more, or has refused for a while; when that is
/// over.
async fn replace_primary(bed: &Bed, key: &BucketKey) {
    match (&*bed.store, &bed.servers) {
        (AnyStore::Memory(store), _) => store.then(vec![Fault::Refused("READONLY"); 20]),
        (AnyStore::Redis(_), Servers::None) => unreachable!("a server is behind it"),
        (AnyStore::Redis(_), Servers::Single(server)) => {
            let nobody = test_servers::Port::free().unwrap();
            let demote = format!("REPLICAOF 127.0.0.1 {}", nobody.number());
            let _ok: String = meanwhile(|| server.query(&demote)).unwrap();
            sleep(Duration::from_millis(500)).await;
            let _ok: String = meanwhile(|| server.query("REPLICAOF NO ONE")).unwrap();
        }
        (AnyStore::Redis(_), Servers::Sentinel(set)) => {
            meanwhile(|| set.failover()).unwrap();
        }
        (AnyStore::Redis(_), Servers::Cluster(cluster)) => {
            meanwhile(|| {
                let owner = cluster.owner(cluster.slot(&key.to_string())?)?;
                let replica = cluster.replica_of(owner)?;
                cluster.failover_to(replica)?;
                cluster.until_primary(replica)
            })
            .unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_a_node_that_was_demoted_is_left_within_two_seconds_on_every_store() {
    for bed in beds().await {
        let stalls = Stalls::watch();
        let limiter = bed.limiter();
        // Small enough to be asked each time.
        let contract = contract("c14", 39, FailurePolicy::Open);
        let whole = limiter.decide(&contract, Cost::new(39).unwrap()).await;
        assert!(whole.is_allowed() && !is_degraded(&whole), "{}: {whole:?}", bed.name);
        let clock = SystemClock::new();
        let asking = async {
            // One token more than the bucket has: allowed only by policy, refused by the store.
            let mut by_policy = 0_usize;
            let mut last_by_policy = clock.now();
            let mut exact_in_a_row = 0_usize;
            while exact_in_a_row < REQUESTS {
                let decision = limiter.decide(&contract, Cost::ONE).await;
                if is_degraded(&decision) {
                    assert!(decision.is_allowed(), "{}: the policy is open", bed.name);
                    (by_policy, exact_in_a_row) = (by_policy + 1, 0);
                    last_by_policy = clock.now();
                } else {
                    assert!(!decision.is_allowed(), "{}: the bucket is empty", bed.name);
                    exact_in_a_row += 1;
                }
                sleep(Duration::from_millis(10)).await;
            }
            (by_policy, last_by_policy)
        };
        let replacing = async {
            replace_primary(&bed, &contract.key).await;
            clock.now()
        };
        let ((by_policy, last), replaced) = tokio::join!(asking, replacing);
        let late = last.since(replaced);
        assert!(late <= RECOVERY_MAX || stalls.excuse(), "{}: {late:?}, {by_policy}", bed.name);
        let found = bed.inspected(&limiter, &contract).await;
        assert!(found.levels.burst.tokens <= 0, "{}: {found:?}", bed.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c15_a_frozen_store_is_decided_by_policy_and_no_further_on_every_store() {
    // The plan is ten tokens: shares of it that pass without the store.
    let policies = [
        ("open", FailurePolicy::Open, REQUESTS..=REQUESTS),
        ("coarse", FailurePolicy::COARSE, 90..=100),
        ("local", FailurePolicy::LOCAL, 5..=5),
        ("closed", FailurePolicy::CLOSED, 0..=0),
    ];
    for bed in beds().await {
        for (name, failure, expected) in &policies {
            let limiter = bed.limiter();
            let contract = contract("c15", 10, *failure);
            bed.freeze(&contract.key);
            let mut admitted = 0;
            for _ in 0..REQUESTS {
                let decision = limiter.decide(&contract, Cost::ONE).await;
                assert!(is_degraded(&decision), "{} {name}: {decision:?}", bed.name);
                admitted += usize::from(decision.is_allowed());
            }
            assert!(expected.contains(&admitted), "{} {name}: {admitted} admitted", bed.name);
            if let AnyStore::Redis(store) = &*bed.store {
                let sent = store.counters().calls.load(std::sync::atomic::Ordering::Relaxed);
                let decision = limiter.decide(&contract, Cost::ONE).await;
                assert!(is_degraded(&decision), "{} {name}: {decision:?}", bed.name);
                let now = store.counters().calls.load(std::sync::atomic::Ordering::Relaxed);
                assert_eq!(sent, now, "{} {name}: nobody is asked any more", bed.name);
            }
            bed.thaw();
            bed.inspected(&limiter, &contract).await;
        }
    }
}

/// A limiter that is looked after, as a gateway does it.
struct Gateway {
    limiter: Limiter<AnyStore>,
    _ticking: JoinSet<()>,
}

impl Gateway {
    fn start(bed: &Bed, gateways: u32) -> Gateway {
        let limiter = bed.limiter();
        limiter.set_fleet(gateways);
        let mut ticking = JoinSet::new();
        let ticked = limiter.clone();
        ticking.spawn(async move {
            loop {
                sleep(TICK_EVERY).await;
                ticked.tick();
            }
        });
        Gateway { limiter, _ticking: ticking }
    }
}

/// Until nothing is lent any more.
async fn until_given_back(bed: &Bed, limiter: &Limiter<AnyStore>, contract: &Contract) {
    let clock = SystemClock::new();
    let started = clock.now();
    while bed.inspected(limiter, contract).await.outstanding > 0 {
        assert!(clock.now().since(started) < PATIENCE, "{}: leases stay", bed.name);
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c16_leases_never_add_up_to_more_than_the_bucket_on_any_store() {
    const CAPACITY: u64 = 100;
    const CALLERS: usize = 60;
    for bed in beds().await {
        let contract = contract("c16", CAPACITY, FailurePolicy::CLOSED);
        let gateways: Vec<Gateway> = (0..4).map(|_| Gateway::start(&bed, 4)).collect();
        let mut admitted = 0;
        for wave in 0..3 {
            let mut callers = JoinSet::new();
            for gateway in &gateways {
                for _ in 0..CALLERS {
                    let limiter = gateway.limiter.clone();
                    callers.spawn(async move { limiter.decide(&contract, Cost::ONE).await });
                }
            }
            for decision in callers.join_all().await {
                match decision.outcome {
                    Outcome::Allowed { .. } => admitted += 1,
                    Outcome::Denied { wait: Wait::Until(wait) } => {
                        assert!(!wait.is_zero() || is_degraded(&decision), "{}", bed.name);
                    }
                    Outcome::Denied { wait: Wait::Never } => panic!("{}: a rate is set", bed.name),
                }
            }
            assert!(admitted <= CAPACITY, "{}: {admitted} after wave {wave}", bed.name);
            until_given_back(&bed, &gateways[0].limiter, &contract).await;
        }
        assert!(admitted >= CAPACITY * 95 / 100, "{}: only {admitted}", bed.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c30_gateways_that_end_one_after_the_other_return_their_leases_and_mint_none() {
    const CAPACITY: u64 = 100;
    for bed in beds().await {
        let contract = contract("c30", CAPACITY, FailurePolicy::CLOSED);
        let mut gateways = [Gateway::start(&bed, 2), Gateway::start(&bed, 2)];
        let mut admitted = 0;
        // Enough in a row that both have borrowed.
        for request in 0..40 {
            let decision = gateways[request % 2].limiter.decide(&contract, Cost::ONE).await;
            admitted += u64::from(decision.is_allowed());
        }
        for gateway in &mut gateways {
            gateway.limiter.drain().await;
            *gateway = Gateway::start(&bed, 2);
        }
        let found = bed.inspected(&gateways[0].limiter, &contract).await;
        let left = CAPACITY.cast_signed() - i64::try_from(admitted).unwrap();
        assert_eq!(found.outstanding, 0, "{}: all is given back", bed.name);
        assert_eq!(found.levels.burst.tokens, left, "{}: and nothing else", bed.name);
        for request in 0..CAPACITY {
            let gateway = &gateways[usize::try_from(request % 2).unwrap()];
            admitted += u64::from(gateway.limiter.decide(&contract, Cost::ONE).await.is_allowed());
        }
        assert!((CAPACITY - 5..=CAPACITY).contains(&admitted), "{}: {admitted}", bed.name);
    }
}
