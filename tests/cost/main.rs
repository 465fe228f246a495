//! Counts that do not depend on the machine: allocations of a decision, and how often a store is
//! asked. They gate every change; how long something takes is the lab's business.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests; what fails is shown")]

use std::future::{self, Future};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::store::memory::MemoryStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::testkit::ManualClock;
use limiter_core::{
    Basis, BucketKey, Clock, Contract, Cost, Decision, FailurePolicy, Limit, Limiter,
    LimiterSettings, Limits, Outcome, PlanNumbers, PlanVersion, Reply, Request, ScopeId,
    TICK_EVERY, VersionSource,
};

const MS: Duration = Duration::from_millis(1);

/// The embedded store, and how often it was asked.
#[derive(Debug)]
struct Counted {
    store: MemoryStore,
    calls: AtomicU64,
}

impl Counted {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl BucketStore for Counted {
    fn call(
        &self,
        key: &BucketKey,
        request: &Request,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // It answers at once, so nothing of the caller's is kept.
        let mut call = pin!(self.store.call(key, request));
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => future::ready(reply),
            Poll::Pending => unreachable!("the embedded store answers at once"),
        }
    }
}

/// Limiters over one store, on a clock that the test moves.
struct Bench {
    clock: Arc<ManualClock>,
    store: Arc<Counted>,
    limiters: Vec<Limiter<Counted>>,
    contract: Contract,
}

impl Bench {
    fn new(gateways: u32, capacity: u64, rate: &str) -> Bench {
        let clock = Arc::new(ManualClock::default());
        let own: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let memory = MemoryStore::new(Arc::clone(&own));
        let store = Arc::new(Counted { store: memory, calls: AtomicU64::new(0) });
        let limiters = (0..gateways).map(|_| {
            let settings = LimiterSettings::default();
            let limiter = Limiter::new(Arc::clone(&store), Arc::clone(&own), settings);
            limiter.set_fleet(gateways);
            limiter
        });
        let limiters = limiters.collect();
        let capacity = limiter_core::Capacity::new(capacity).unwrap();
        let burst = Limit::new(capacity, rate.parse().unwrap()).unwrap();
        let key = BucketKey::new(VersionSource::File, ScopeId::Client("acme"));
        let plan = PlanNumbers { version: PlanVersion(2), limits: Limits::burst_only(burst) };
        let reset = PlanVersion(0);
        let contract = Contract { key, plan, reset, failure: FailurePolicy::Open };
        Bench { clock, store, limiters, contract }
    }

    async fn ask(&self, number: usize) -> Decision {
        let limiter = &self.limiters[number % self.limiters.len()];
        limiter.decide(&self.contract, Cost::ONE).await
    }

    /// `per_ms` requests each millisecond, spread over the gateways; returns how many passed.
    async fn offer(&self, length: Duration, per_ms: usize) -> u64 {
        let mut admitted = 0;
        let ticks = TICK_EVERY.as_millis();
        for ms in 0..length.as_millis() {
            for number in 0..per_ms {
                let shift = usize::try_from(ms).unwrap();
                admitted += u64::from(self.ask(number + shift).await.is_allowed());
            }
            if ms % ticks == 0 {
                self.limiters.iter().for_each(Limiter::tick);
            }
            // Prefetches, renewals and returns are tasks.
            for _turn in 0..8 {
                tokio::task::yield_now().await;
            }
            self.clock.advance(MS);
        }
        admitted
    }
}

/// Polls once: what needs no store is decided then.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[test]
fn allocations_are_counted() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(counted.count_total, 1);
}

#[tokio::test]
async fn a_decision_from_a_warm_lease_allocates_nothing_and_asks_nobody() {
    let bench = Bench::new(1, 100_000, "100000/s");
    bench.offer(Duration::from_millis(300), 10).await;
    let calls = bench.store.calls();
    let mut paid = 0;
    let counted = allocation_counter::measure(|| {
        for _request in 0..100 {
            let decision = at_once(bench.limiters[0].decide(&bench.contract, Cost::ONE));
            paid += u64::from(decision.is_some_and(|decision| decision.basis == Basis::Lease));
        }
    });
    assert_eq!(paid, 100, "the lease pays");
    assert_eq!((counted.count_total, bench.store.calls() - calls), (0, 0));
}

#[tokio::test]
async fn a_denial_that_follows_from_the_last_reply_allocates_nothing_and_asks_nobody() {
    let bench = Bench::new(1, 5, "1/h");
    for _request in 0..8 {
        bench.ask(0).await;
    }
    let calls = bench.store.calls();
    let mut denied = 0;
    let counted = allocation_counter::measure(|| {
        for _request in 0..100 {
            let decision = at_once(bench.limiters[0].decide(&bench.contract, Cost::ONE));
            let outcome = decision.map(|decision| decision.outcome);
            denied += u64::from(matches!(outcome, Some(Outcome::Denied { .. })));
        }
    });
    assert_eq!(denied, 100);
    assert_eq!((counted.count_total, bench.store.calls() - calls), (0, 0));
}

#[tokio::test]
async fn a_busy_client_below_its_limit_costs_each_gateway_at_most_fifteen_calls_a_second() {
    let bench = Bench::new(3, 6_000, "6000/s");
    let warm_up = bench.offer(Duration::from_secs(2), 3).await;
    let calls = bench.store.calls();
    let admitted = bench.offer(Duration::from_secs(10), 3).await;
    let calls = bench.store.calls() - calls;
    assert_eq!((warm_up, admitted), (6_000, 30_000), "half of the limit");
    assert!(calls <= 3 * 15 * 10, "{calls} calls in 10 s of 3 gateways");
}

#[tokio::test]
async fn a_client_far_above_its_limit_is_polled_no_oftener_than_the_fleet_may() {
    let bench = Bench::new(3, 1_000, "1000/s");
    bench.offer(Duration::from_secs(2), 10).await;
    let calls = bench.store.calls();
    let admitted = bench.offer(Duration::from_secs(10), 10).await;
    let calls = bench.store.calls() - calls;
    assert!(admitted.abs_diff(10_000) <= 100, "{admitted} of 10,000 tokens");
    let most = 100 * 3 * 10 * 5 / 2;
    assert!(calls <= most, "{calls} calls in 10 s, at most {most}");
}

#[tokio::test]
async fn a_client_that_comes_once_costs_one_call() {
    let bench = Bench::new(1, 1_000, "1000/s");
    assert!(bench.ask(0).await.is_allowed());
    for _tick in 0..100 {
        bench.clock.advance(TICK_EVERY);
        bench.limiters[0].tick();
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.store.calls(), 1);
}
