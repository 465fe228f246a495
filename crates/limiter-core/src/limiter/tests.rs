//! What a limiter promises whatever its store does: one call at a time for a key, an answer within
//! the deadline, and no token lost or charged twice.

mod crowds;
mod leases;
mod obedient;
mod outages;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, advance};

use super::*;
use crate::call::{PlanNumbers, PlanVersion};
use crate::decision::DegradedReason;
use crate::degraded::FailurePolicy;
use crate::key::{ScopeId, VersionSource};
use crate::limit::{Limit, Limits};
use crate::store::memory::MemoryStore;
use crate::units::{Capacity, RefillRate};

/// The runtime's paused time.
#[derive(Debug)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_us(1_000_000_000).after(self.0.elapsed())
    }
}

/// What the store does with the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Answer,
    /// Applies the call after the first time, and answers after the other.
    AnswerAfter(Duration, Duration),
    /// Applies the call, and answers when a permit is given.
    AnswerOnPermit,
    Hang,
    Refuse,
    Lose,
    Trip,
}

/// An embedded store behind a script of faults.
#[derive(Debug)]
struct Scripted {
    buckets: MemoryStore,
    acts: Mutex<VecDeque<Act>>,
    otherwise: Mutex<Act>,
    permits: Semaphore,
    calls: AtomicUsize,
    requests: Mutex<Vec<Request>>,
}

impl BucketStore for Scripted {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.requests.lock().push(*request);
        let act = self.acts.lock().pop_front().unwrap_or(*self.otherwise.lock());
        let source = || std::io::Error::other("scripted").into();
        match act {
            Act::Answer => self.buckets.call(key, request).await,
            Act::AnswerAfter(applied, answered) => {
                tokio::time::sleep(applied).await;
                let reply = self.buckets.call(key, request).await;
                // A sleep of nothing lasts until the next millisecond here.
                if !answered.is_zero() {
                    tokio::time::sleep(answered).await;
                }
                reply
            }
            Act::AnswerOnPermit => {
                let reply = self.buckets.call(key, request).await;
                self.permits.acquire().await.expect("the semaphore is never closed").forget();
                reply
            }
            Act::Hang => std::future::pending().await,
            Act::Refuse => Err(StoreError::Refused { code: "LOADING".to_owned() }),
            Act::Lose => Err(StoreError::Lost(source())),
            Act::Trip => Err(StoreError::Tripped { probe_in: Duration::from_millis(250) }),
        }
    }
}

struct World {
    limiter: Limiter<Scripted>,
    store: Arc<Scripted>,
    contract: Contract,
}

impl World {
    /// Exact: every admission is a call.
    fn new(capacity: u64, refill: &str, failure: FailurePolicy) -> World {
        let extras = Extras { hedge: false, ..Extras::default() };
        let settings = LimiterSettings { leases: false, extras, ..LimiterSettings::default() };
        World::with(capacity, refill, failure, settings)
    }

    /// As gateways run it.
    fn leasing(capacity: u64, refill: &str, failure: FailurePolicy) -> World {
        World::with(capacity, refill, failure, LimiterSettings::default())
    }

    fn with(
        capacity: u64,
        refill: &str,
        failure: FailurePolicy,
        settings: LimiterSettings,
    ) -> World {
        let clock: Arc<dyn Clock> = Arc::new(PausedClock(Instant::now()));
        let store = Arc::new(Scripted {
            buckets: MemoryStore::new(Arc::clone(&clock)),
            acts: Mutex::default(),
            otherwise: Mutex::new(Act::Answer),
            permits: Semaphore::new(0),
            calls: AtomicUsize::new(0),
            requests: Mutex::default(),
        });
        let refill: RefillRate = refill.parse().unwrap();
        let limit = Limit::new(Capacity::new(capacity).unwrap(), refill).unwrap();
        let contract = Contract {
            key: BucketKey::new(VersionSource::ControlPlane, ScopeId::Client("acme")),
            plan: PlanNumbers { version: PlanVersion(2), limits: Limits::burst_only(limit) },
            reset: PlanVersion(0),
            failure,
        };
        let limiter = Limiter::new(Arc::clone(&store), clock, settings);
        World { limiter, store, contract }
    }

    fn acts(&self, acts: &[Act]) {
        self.store.acts.lock().extend(acts);
    }

    fn calls(&self) -> usize {
        self.store.calls.load(Ordering::SeqCst)
    }

    async fn take(&self, cost: u64) -> Decision {
        self.limiter.decide(&self.contract, Cost::new(cost).unwrap()).await
    }

    /// A request in a task of its own.
    fn ask(&self, cost: u64) -> tokio::task::JoinHandle<Decision> {
        let (limiter, contract) = (self.limiter.clone(), self.contract);
        spawn_test(async move { limiter.decide(&contract, Cost::new(cost).unwrap()).await })
    }

    async fn stored_tokens(&self) -> i64 {
        self.limiter.inspect(&self.contract).await.unwrap().levels.burst.tokens
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's task ends with its runtime")]
fn spawn_test<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}

async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_at_the_same_time_share_a_call() {
    let world = World::new(100, "1/s", FailurePolicy::CLOSED);
    world.acts(&[Act::AnswerOnPermit]);
    let first = world.ask(1);
    settle().await;
    let rest: Vec<_> = (0..50).map(|_| world.ask(1)).collect();
    settle().await;
    assert_eq!(world.calls(), 1);
    world.store.permits.add_permits(1);
    assert!(first.await.unwrap().is_allowed());
    let mut remaining = Vec::new();
    for answer in rest {
        match answer.await.unwrap().outcome {
            Outcome::Allowed { remaining: left } => remaining.push(left),
            denied @ Outcome::Denied { .. } => panic!("{denied:?}"),
        }
    }
    assert_eq!(world.calls(), 2);
    assert_eq!(remaining, (49..=98).rev().collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_repeated_locally_until_the_token_exists_and_no_longer() {
    let world = World::new(1, "10/s", FailurePolicy::CLOSED);
    assert!(world.take(1).await.is_allowed());
    assert!(!world.take(1).await.is_allowed());
    let calls = world.calls();
    for _ in 0..99 {
        advance(Duration::from_millis(1)).await;
        let decision = world.take(1).await;
        assert!(!decision.is_allowed() && decision.basis == Basis::Store);
    }
    assert_eq!(world.calls(), calls);
    advance(Duration::from_millis(1)).await;
    assert!(world.take(1).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn an_allowance_that_others_give_back_is_found_within_a_second() {
    let world = World::new(1, "0", FailurePolicy::CLOSED);
    assert!(world.take(1).await.is_allowed());
    assert_eq!(world.take(1).await.outcome, Outcome::Denied { wait: Wait::Never });
    let back = Request { unused_need: 1, ..Request::take(world.contract.plan, 0, 0) };
    world.store.call(&world.contract.key, &back).await.unwrap();
    let calls = world.calls();
    advance(Duration::from_millis(999)).await;
    assert!(!world.take(1).await.is_allowed());
    assert_eq!(world.calls(), calls);
    advance(Duration::from_millis(1)).await;
    assert!(world.take(1).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_smaller_request_passes_where_a_larger_one_must_wait() {
    let world = World::new(5, "1/s", FailurePolicy::CLOSED);
    assert!(world.take(2).await.is_allowed());
    world.acts(&[Act::AnswerOnPermit]);
    let first = world.ask(1);
    settle().await;
    let (large, small) = (world.ask(3), world.ask(1));
    settle().await;
    world.store.permits.add_permits(1);
    assert!(first.await.unwrap().is_allowed());
    assert!(!large.await.unwrap().is_allowed());
    assert!(small.await.unwrap().is_allowed());
    settle().await;
    // What the large one could not use went back.
    assert_eq!(world.stored_tokens().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_can_never_fit_asks_nobody() {
    let world = World::new(10, "1/s", FailurePolicy::Open);
    assert_eq!(world.take(11).await.outcome, Outcome::Denied { wait: Wait::Never });
    assert_eq!(world.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_free_request_takes_nothing_and_asks_nobody() {
    let world = World::new(10, "1/s", FailurePolicy::CLOSED);
    assert_eq!(world.take(0).await.outcome, Outcome::Allowed { remaining: 10 });
    assert_eq!(world.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hung_store_is_decided_by_policy_at_the_deadline() {
    for (failure, allowed) in [
        (FailurePolicy::Open, true),
        (FailurePolicy::COARSE, true),
        (FailurePolicy::LOCAL, true),
        (FailurePolicy::CLOSED, false),
    ] {
        let world = World::new(10, "1/s", failure);
        *world.store.otherwise.lock() = Act::Hang;
        let asked = Instant::now();
        let decision = world.take(1).await;
        assert_eq!(decision.is_allowed(), allowed, "{failure}");
        assert_eq!(decision.basis, Basis::Degraded(DegradedReason::Deadline));
        assert!(asked.elapsed() <= Duration::from_millis(6), "{failure}: {:?}", asked.elapsed());
        // While that call is out, nobody makes another for this key.
        assert_eq!(world.take(1).await.basis, Basis::Degraded(DegradedReason::Deadline));
        assert_eq!(world.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_pays_for_the_request_that_the_policy_let_pass() {
    let world = World::new(10, "1/1000s", FailurePolicy::Open);
    world.acts(&[Act::AnswerOnPermit]);
    assert!(world.take(1).await.is_allowed());
    world.store.permits.add_permits(1);
    settle().await;
    assert_eq!(world.stored_tokens().await, 9);
    assert_eq!(world.take(1).await.outcome, Outcome::Allowed { remaining: 8 });
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_is_returned_for_a_request_that_the_policy_refused() {
    let world = World::new(10, "1/1000s", FailurePolicy::CLOSED);
    world.acts(&[Act::AnswerOnPermit]);
    assert!(!world.take(1).await.is_allowed());
    world.store.permits.add_permits(1);
    settle().await;
    assert_eq!(world.stored_tokens().await, 10);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_caller_who_has_gone_are_returned() {
    let world = World::new(10, "1/1000s", FailurePolicy::CLOSED);
    world.acts(&[Act::AnswerOnPermit]);
    let gone = world.ask(4);
    settle().await;
    gone.abort();
    settle().await;
    world.store.permits.add_permits(1);
    settle().await;
    assert_eq!(world.stored_tokens().await, 10);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_could_not_be_returned_in_time_are_not_granted_twice() {
    let world = World::new(100, "100/s", FailurePolicy::CLOSED);
    world.acts(&[Act::AnswerOnPermit]);
    let gone = world.ask(40);
    settle().await;
    gone.abort();
    settle().await;
    *world.store.otherwise.lock() = Act::Refuse;
    world.store.permits.add_permits(1);
    settle().await;
    for _tick in 0..60 {
        advance(TICK_EVERY).await;
        world.limiter.tick();
        settle().await;
        assert!(!world.take(1).await.is_allowed());
    }
    // The bucket is full again, and another gateway takes all of it.
    let all = Request::take(world.contract.plan, 100, 100);
    assert_eq!(world.store.buckets.call(&world.contract.key, &all).await.unwrap().granted, 100);
    *world.store.otherwise.lock() = Act::Answer;
    for _request in 0..60 {
        assert!(!world.take(1).await.is_allowed(), "more than the bucket at one instant");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_that_come_just_as_their_caller_goes_are_returned() {
    let world = World::leasing(100, "1/1000s", FailurePolicy::CLOSED);
    world.acts(&[Act::AnswerOnPermit]);
    let mut going = Box::pin(world.take(4));
    let first = poll_fn(|context| Poll::Ready(going.as_mut().poll(context))).await;
    assert!(first.is_pending());
    world.store.permits.add_permits(1);
    settle().await;
    assert!(world.limiter.standing(&world.contract.key).is_some(), "the answer has come");
    drop(going);
    for _tick in 0..20 {
        advance(TICK_EVERY).await;
        world.limiter.tick();
        settle().await;
    }
    assert_eq!(world.stored_tokens().await, 100);
}

#[tokio::test(start_paused = true)]
async fn every_error_of_the_store_is_decided_by_policy_and_named() {
    for (act, reason) in [
        (Act::Refuse, DegradedReason::Refused),
        (Act::Lose, DegradedReason::Lost),
        (Act::Trip, DegradedReason::Tripped),
    ] {
        let world = World::new(10, "1/s", FailurePolicy::CLOSED);
        world.acts(&[act]);
        let decision = world.take(1).await;
        assert_eq!(decision.basis, Basis::Degraded(reason));
        let wait = Duration::from_millis(if act == Act::Trip { 250 } else { 1_000 });
        assert_eq!(decision.outcome, Outcome::Denied { wait: Wait::Until(wait) });
        assert!(world.take(1).await.is_allowed(), "the next call is exact again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_without_a_store_admits_its_share_of_the_plan_and_no_more() {
    for (failure, gateways, at_once, after_ten_seconds) in [
        (FailurePolicy::LOCAL, 1, 50, 50),
        (FailurePolicy::LOCAL, 5, 10, 10),
        (FailurePolicy::COARSE, 1, 1_000, 1_000),
        (FailurePolicy::COARSE, 4, 250, 250),
        ("0.25".parse().unwrap(), 1, 25, 25),
    ] {
        let world = World::new(100, "10/s", failure);
        world.limiter.set_fleet(gateways);
        *world.store.otherwise.lock() = Act::Trip;
        let mut admitted = 0;
        for _ in 0..2_000 {
            admitted += usize::from(world.take(1).await.is_allowed());
        }
        assert_eq!(admitted, at_once, "{failure} with {gateways}");
        advance(Duration::from_secs(10)).await;
        for _ in 0..2_000 {
            admitted += usize::from(world.take(1).await.is_allowed());
        }
        assert_eq!(admitted, at_once + after_ten_seconds, "{failure} with {gateways}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_below_one_token_is_one_token_and_never_nothing() {
    // Half of two tokens over ten gateways, and half of one a second: one token in twenty seconds.
    let world = World::new(2, "1/s", FailurePolicy::LOCAL);
    world.limiter.set_fleet(10);
    *world.store.otherwise.lock() = Act::Trip;
    let at_first = world.take(1).await;
    for round in 0..3 {
        advance(Duration::from_secs(20)).await;
        assert!(world.take(1).await.is_allowed(), "round {round}, first: {at_first:?}");
        let denied = world.take(1).await.outcome;
        let Outcome::Denied { wait: Wait::Until(wait) } = denied else { panic!("{denied:?}") };
        assert!(wait <= Duration::from_secs(20), "{wait:?}");
    }
    // A request that costs more than the part is whole: it passes too, when the part is full.
    advance(Duration::from_secs(20)).await;
    assert!(world.take(2).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_a_plan_wins_in_an_outage_begins_with_its_share() {
    let mut world = World::new(100, "1/1000s", FailurePolicy::LOCAL);
    *world.store.otherwise.lock() = Act::Trip;
    let burst_only = world.contract.plan.limits;
    let sustained = Limit::new(Capacity::new(60).unwrap(), "1/1000s".parse().unwrap()).unwrap();
    let both = Limits { sustained: Some(sustained), ..burst_only };
    let mut admitted = Vec::new();
    for (version, limits, requests) in [(2, burst_only, 5), (4, both, 100), (6, burst_only, 100)] {
        world.contract.plan = PlanNumbers { version: PlanVersion(version), limits };
        let mut allowed = 0;
        for _ in 0..requests {
            allowed += usize::from(world.take(1).await.is_allowed());
        }
        admitted.push(allowed);
    }
    // Half of 60 under both; of half of 100, what the others left.
    assert_eq!(admitted, [5, 30, 15]);
}

#[tokio::test(start_paused = true)]
async fn a_newer_plan_or_a_reset_ends_a_local_denial() {
    let mut world = World::new(1, "1/1000s", FailurePolicy::CLOSED);
    assert!(world.take(1).await.is_allowed());
    assert!(!world.take(1).await.is_allowed());
    world.contract.plan.version = PlanVersion(4);
    world.contract.reset = PlanVersion(4);
    assert!(world.take(1).await.is_allowed());
    assert!(!world.take(1).await.is_allowed());
}

#[test]
fn a_call_that_died_with_its_runtime_leaves_its_key_usable() {
    let build = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    let first = build();
    let world = first.block_on(async {
        let world = World::new(10, "1/s", FailurePolicy::Open);
        world.acts(&[Act::Hang]);
        assert!(world.take(1).await.is_allowed());
        world
    });
    drop(first);
    build().block_on(async {
        let decision = world.take(1).await;
        assert_eq!(decision.basis, Basis::Store);
    });
}

#[tokio::test(start_paused = true)]
async fn idle_keys_are_forgotten() {
    let world = World::new(10, "1/s", FailurePolicy::Open);
    assert!(world.take(1).await.is_allowed());
    world.limiter.sweep();
    assert_eq!(world.limiter.keys(), 1);
    advance(Duration::from_secs(31)).await;
    world.limiter.sweep();
    assert_eq!(world.limiter.keys(), 0);
}

#[test]
fn an_entry_is_small() {
    let bytes = size_of::<Entry>();
    assert!(bytes <= 352, "{bytes} bytes for every active key");
}
