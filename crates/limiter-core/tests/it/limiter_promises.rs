//! What holds for limiters over a store, seen from outside: what a denial says is true, tokens are
//! neither made nor lost, and whoever asks is answered once, also when others have gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::store::memory::MemoryStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::testkit::ManualClock;
use limiter_core::{
    Basis, BucketKey, Capacity, Clock, Contract, Cost, Decision, FailurePolicy, Limit, Limiter,
    LimiterSettings, Limits, Outcome, PlanNumbers, PlanVersion, RefillRate, Reply, Request,
    ScopeId, SystemClock, Timestamp, VersionSource, Wait,
};
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

fn contract(limits: Limits) -> Contract {
    Contract {
        key: BucketKey::new(VersionSource::File, ScopeId::Client("one")),
        plan: PlanNumbers { version: PlanVersion(2), limits },
        reset: PlanVersion(0),
        failure: FailurePolicy::CLOSED,
    }
}

fn limit(capacity: u64, tokens: u64, per_us: u64) -> Limit {
    let refill = RefillRate::new(tokens, per_us).unwrap();
    Limit::new(Capacity::new(capacity).unwrap(), refill).unwrap()
}

/// The embedded store, with its calls counted.
#[derive(Debug)]
struct Counted {
    store: MemoryStore,
    calls: AtomicU64,
}

impl BucketStore for Counted {
    fn call(
        &self,
        key: &BucketKey,
        request: &Request,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        self.calls.fetch_add(u64::from(!request.peek), Ordering::SeqCst);
        self.store.call(key, request)
    }
}

/// Two limiters over one store, and a clock that stands until it is moved.
struct Bench {
    clock: Arc<ManualClock>,
    store: Arc<Counted>,
    limiters: [Limiter<Counted>; 2],
    contract: Contract,
    /// Only the first limiter is asked.
    alone: bool,
}

impl Bench {
    fn new(limits: Limits, alone: bool) -> Bench {
        let clock = Arc::new(ManualClock::default());
        let for_store: Arc<dyn Clock> = clock.clone();
        let store =
            Arc::new(Counted { store: MemoryStore::new(for_store), calls: AtomicU64::new(0) });
        let limiters = [(), ()].map(|()| {
            let clock: Arc<dyn Clock> = clock.clone();
            Limiter::new(Arc::clone(&store), clock, LimiterSettings::default())
        });
        Bench { clock, store, limiters, contract: contract(limits), alone }
    }

    async fn decide(&self, gateway: usize, cost: u64) -> Decision {
        self.limiters[gateway].decide(&self.contract, Cost::new(cost).unwrap()).await
    }

    /// What the store could give after `wait`, and what is lent then.
    async fn there_after(&self, wait: Duration) -> (u64, u64) {
        let now = self.clock.now();
        self.clock.set(now.after(wait));
        let seen = self.limiters[0].inspect(&self.contract).await.unwrap();
        self.clock.set(now);
        (seen.levels.available(&seen.plan.limits), seen.outstanding)
    }

    /// I6, I7, I8 about one denial.
    async fn denial_is_true(
        &self,
        gateway: usize,
        cost: u64,
        decision: &Decision,
    ) -> Result<(), TestCaseError> {
        let Outcome::Denied { wait } = decision.outcome else { return Ok(()) };
        prop_assert!(!matches!(decision.basis, Basis::Degraded(_)), "the store is there");
        // A poll's pause may deny a token that has just come, and others may give tokens back.
        let exact = decision.basis == Basis::Store && self.alone;
        let (now_there, lent) = self.there_after(Duration::ZERO).await;
        prop_assert!(now_there < cost || !exact, "denied {cost}, and {now_there} are there");
        tasks().await;
        let calls = self.store.calls.load(Ordering::SeqCst);
        let again = self.decide(gateway, cost).await;
        prop_assert!(!again.is_allowed(), "denied, and then allowed at the same moment");
        let more = self.store.calls.load(Ordering::SeqCst) - calls;
        prop_assert!(more == 0 || !self.alone, "asked again after {decision:?}");
        match wait {
            Wait::Never => prop_assert!(cost > self.contract.plan.limits.smallest_capacity()),
            Wait::Until(wait) => {
                prop_assert!(!wait.is_zero());
                // A part that the gateway holds may die before.
                let (then_there, _) = self.there_after(wait).await;
                let enough = then_there >= cost || !exact || lent > 0;
                prop_assert!(enough, "{then_there} of {cost} after {wait:?}");
            }
        }
        Ok(())
    }
}

/// Calls that follow from earlier ones are tasks: they come first.
async fn tasks() {
    for _task in 0..3 {
        tokio::task::yield_now().await;
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// One limiter, or two that share a bucket: a denial is never false and never repeated as a
    /// call; where nobody else takes tokens, it does not end before they are there.
    #[test]
    fn i06_i07_i08_a_denial_says_the_truth_and_costs_no_call(
        capacity in prop_oneof![1..10_u64, 10..2_000_u64],
        rate in prop_oneof![1..20_u64, 20..5_000_u64],
        alone in any::<bool>(),
        moves in prop::collection::vec(
            (prop_oneof![0..2_000_u64, 0..300_000_u64], 0..2_usize, prop_oneof![1..3_u64, 1..50_u64]),
            1..120,
        ),
    ) {
        block_on(async {
            let limits = Limits {
                burst: limit(capacity, 2 * rate, 1_000_000),
                sustained: Some(limit(2 * capacity, rate, 1_000_000)),
            };
            let bench = Bench::new(limits, alone);
            for (gap_us, gateway, cost) in moves {
                let gateway = if alone { 0 } else { gateway };
                bench.clock.advance(Duration::from_micros(gap_us));
                tasks().await;
                let decision = bench.decide(gateway, cost).await;
                bench.denial_is_true(gateway, cost, &decision).await?;
            }
            Ok::<(), TestCaseError>(())
        })?;
    }

    /// Who is denied for want of tokens could not have had them: what the limiter holds itself and
    /// what the store has are together less than the cost.
    #[test]
    fn i06_nobody_is_denied_what_lease_and_store_have_together(
        capacity in 20..200_u64,
        rate in 1..20_u64,
        moves in prop::collection::vec((0..200_000_u64, 1..12_u64), 20..120),
    ) {
        block_on(async {
            let burst = limit(capacity, rate, 1_000_000);
            let bench = Bench::new(Limits::burst_only(burst), true);
            for (gap_us, cost) in moves {
                bench.clock.advance(Duration::from_micros(gap_us));
                tasks().await;
                let decision = bench.decide(0, cost).await;
                if decision.is_allowed() || decision.basis != Basis::Store {
                    continue;
                }
                bench.limiters[0].drain().await;
                let (there, _) = bench.there_after(Duration::ZERO).await;
                prop_assert!(there < cost, "denied {cost}, and {there} are there: {decision:?}");
                break;
            }
            Ok::<(), TestCaseError>(())
        })?;
    }

    /// A slow store, many callers, some of whom leave: everybody who stays is answered in time, no
    /// more than two calls of the key are ever out, and in the end each token is either admitted
    /// or back in the bucket.
    #[test]
    fn i04_i13_callers_who_leave_take_no_token_with_them(seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(callers_come_and_go(seed))?;
    }
}

/// Tokio's clock, which jumps to the next timer when nothing else is to do.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::from_us(1_800_000_000_000_000).after(self.0.elapsed())
    }
}

/// A store at a distance.
#[derive(Debug)]
struct Far {
    store: MemoryStore,
    out: AtomicU64,
    most_out: AtomicU64,
    luck: std::sync::Mutex<fastrand::Rng>,
}

impl Far {
    fn way(&self) -> Duration {
        let mut luck = self.luck.lock().unwrap();
        let longest = if luck.u8(..20) == 0 { 15_000 } else { 1_500 };
        Duration::from_micros(luck.u64(50..longest))
    }
}

impl BucketStore for Far {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        let (there, back) = (self.way(), self.way());
        let out = 1 + self.out.fetch_add(1, Ordering::SeqCst);
        self.most_out.fetch_max(out, Ordering::SeqCst);
        sleep(there).await;
        let reply = self.store.call(key, request).await;
        sleep(back).await;
        self.out.fetch_sub(1, Ordering::SeqCst);
        reply
    }
}

const TOKENS: u64 = 400;

async fn callers_come_and_go(seed: u64) -> Result<(), TestCaseError> {
    let mut luck = fastrand::Rng::with_seed(seed);
    let clock: Arc<dyn Clock> = Arc::new(Paused(Instant::now()));
    let store = Arc::new(Far {
        store: MemoryStore::new(Arc::clone(&clock)),
        out: AtomicU64::new(0),
        most_out: AtomicU64::new(0),
        luck: std::sync::Mutex::new(luck.fork()),
    });
    let limiter = Limiter::new(Arc::clone(&store), clock, LimiterSettings::default());
    // One token an hour: what is missing at the end was not earned again. No lease dies by itself
    // in less than half a second.
    let contract = contract(Limits::burst_only(limit(TOKENS, 1, 3_600_000_000)));
    let mut callers = JoinSet::new();
    for _ in 0..luck.u64(50..600) {
        let (limiter, cost) = (limiter.clone(), Cost::new(luck.u64(1..=3)).unwrap());
        let comes = Duration::from_micros(luck.u64(..400_000));
        let stays = Duration::from_micros(luck.u64(..20_000));
        callers.spawn(async move {
            sleep(comes).await;
            let asked = Instant::now();
            let answer = timeout(stays, limiter.decide(&contract, cost)).await;
            (answer.ok().filter(Decision::is_allowed).map_or(0, |_| cost.get()), asked.elapsed())
        });
    }
    let mut admitted = 0;
    while let Some(caller) = callers.join_next().await {
        let (cost, waited) = caller.unwrap();
        prop_assert!(waited <= Duration::from_millis(7), "waited {waited:?}");
        admitted += cost;
    }
    // What is still out comes home first.
    sleep(Duration::from_millis(50)).await;
    limiter.drain().await;
    sleep(Duration::from_millis(100)).await;
    let most = store.most_out.load(Ordering::SeqCst);
    prop_assert!(most <= 2, "{most} calls of one key were out");
    let end = limiter.inspect(&contract).await.unwrap();
    let left = end.levels.available(&end.plan.limits);
    prop_assert_eq!(left + admitted, TOKENS);
    Ok(())
}

/// Threads see one clock in different order; none of them may take that for a wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_of_one_client_with_a_nearly_full_bucket_are_never_refused() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = Arc::new(MemoryStore::new(Arc::clone(&clock)));
    // A machine that stands still for a moment is nobody's refusal.
    let deadline = Duration::from_secs(5);
    let settings = LimiterSettings { leases: false, deadline, ..LimiterSettings::default() };
    let limiter = Limiter::new(store, clock, settings);
    let contract = contract(Limits::burst_only(limit(10_000_000, 50_000, 1_000_000)));
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            let mut refused = Vec::new();
            for _ in 0..50_000 {
                let decision = limiter.decide(&contract, Cost::new(1).unwrap()).await;
                refused.extend((!decision.is_allowed()).then_some(decision));
            }
            refused
        });
    }
    let refused = callers.join_all().await.concat();
    assert!(refused.is_empty(), "{} refused, such as {:?}", refused.len(), refused.first());
}
