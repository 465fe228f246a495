//! What a limiter promises when it borrows: few calls, nothing beyond the bucket, nothing kept that
//! others could use, and a store that forgets is reminded.

use super::*;

/// Requests at even distances for a time, with the limiter's own ticks between them.
async fn load(world: &World, per_s: u64, ms: u64) -> u64 {
    let mut allowed = 0;
    let began = Instant::now();
    for n in 0..per_s * ms / 1_000 {
        let due = Duration::from_micros(n * 1_000_000 / per_s);
        while began.elapsed() < due {
            let step = (due - began.elapsed()).min(TICK_EVERY);
            advance(step).await;
            world.limiter.tick();
            settle().await;
        }
        allowed += u64::from(world.take(1).await.is_allowed());
    }
    allowed
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_is_paid_from_leases_and_asks_a_dozen_times_a_second() {
    let world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 500, 1_000).await;
    let calls = world.calls();
    assert_eq!(load(&world, 500, 4_000).await, 2_000);
    let per_s = (world.calls() - calls) / 4;
    assert!(per_s <= 12, "{per_s} calls a second");
    let decision = world.take(1).await;
    assert_eq!(decision.basis, Basis::Lease);
}

#[tokio::test(start_paused = true)]
async fn a_lease_never_adds_itself_to_a_full_bucket() {
    let world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 900, 2_000).await;
    // A pause refills the bucket; what is held counts against it.
    advance(Duration::from_secs(3)).await;
    let reply = world.limiter.inspect(&world.contract).await.unwrap();
    let held = world.limiter.keys();
    assert_eq!(held, 1);
    let mut allowed = 0;
    for _ in 0..3_000 {
        allowed += u64::from(world.take(1).await.is_allowed());
    }
    assert!(allowed <= 1_000, "{allowed} at one instant; {reply:?}");
    assert!(allowed >= 990, "{allowed} at one instant");
}

#[tokio::test(start_paused = true)]
async fn an_idle_lease_goes_back_within_a_quarter_of_a_second() {
    let world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 900, 1_000).await;
    let lent = world.limiter.inspect(&world.contract).await.unwrap().outstanding;
    assert!(lent > 10, "{lent}");
    for _ in 0..6 {
        advance(TICK_EVERY).await;
        world.limiter.tick();
        settle().await;
    }
    let reply = world.limiter.inspect(&world.contract).await.unwrap();
    assert_eq!((reply.outstanding, reply.levels.burst.tokens), (0, 1_000));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_ends_gives_everything_back() {
    let world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 900, 1_000).await;
    let before = world.limiter.inspect(&world.contract).await.unwrap();
    world.limiter.drain().await;
    let after = world.limiter.inspect(&world.contract).await.unwrap();
    assert!(before.outstanding > 0 && after.outstanding == 0, "{before:?} {after:?}");
    // It may still be asked, and borrows no more.
    assert!(load(&world, 100, 500).await == 50);
    assert_eq!(world.limiter.inspect(&world.contract).await.unwrap().outstanding, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_spent_keeps_no_room_when_its_gateway_ends() {
    let world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 100, 300).await;
    let now = world.limiter.shared.clock.now();
    let entry = world.limiter.shared.entry(&world.contract.key, now);
    // All of it, without asking for more.
    while let Quick::Allowed { .. } = entry.quick(&world.contract, 1, now) {}
    settle().await;
    let before = world.limiter.inspect(&world.contract).await.unwrap();
    assert!(before.outstanding > 0, "{before:?}");
    world.limiter.drain().await;
    let after = world.limiter.inspect(&world.contract).await.unwrap();
    assert_eq!(after.outstanding, 0, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_while_its_gateway_ends_goes_back() {
    let world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 100, 300).await;
    world.limiter.drain().await;
    // Asked before the end, answered after it.
    world.limiter.shared.draining.store(false, Ordering::SeqCst);
    world.acts(&[Act::AnswerOnPermit]);
    let asked = world.ask(1);
    settle().await;
    world.limiter.drain().await;
    world.store.permits.add_permits(1);
    settle().await;
    let _decided = asked.await.unwrap();
    let after = world.limiter.inspect(&world.contract).await.unwrap();
    assert_eq!(after.outstanding, 0, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlives_a_store_that_dies_until_its_deadline_and_no_longer() {
    let world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 900, 1_000).await;
    *world.store.otherwise.lock() = Act::Trip;
    assert_eq!(world.take(1).await.basis, Basis::Lease);
    advance(Duration::from_millis(1_001)).await;
    let decision = world.take(1).await;
    assert_eq!(decision.basis, Basis::Degraded(DegradedReason::Tripped));
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_is_asked_again_and_what_both_grant_is_charged_once() {
    let world = World::leasing(100, "1/1000s", FailurePolicy::CLOSED);
    world.acts(&[Act::AnswerOnPermit, Act::Answer]);
    assert!(world.take(1).await.is_allowed());
    assert_eq!(world.calls(), 2);
    world.store.permits.add_permits(1);
    settle().await;
    assert_eq!(world.stored_tokens().await, 99);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_nearly_empty_is_not_asked_twice() {
    let world = World::leasing(10, "1/1000s", FailurePolicy::CLOSED);
    world.acts(&[Act::AnswerOnPermit, Act::Answer]);
    assert_eq!(world.take(1).await.basis, Basis::Degraded(DegradedReason::Deadline));
    assert_eq!(world.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_forgot_is_told_what_is_remembered() {
    let world = World::leasing(100, "1/1000s", FailurePolicy::CLOSED);
    for _ in 0..80 {
        assert!(world.take(1).await.is_allowed());
    }
    world.store.buckets.clear();
    let mut allowed = 80;
    for _ in 0..100 {
        allowed += u64::from(world.take(1).await.is_allowed());
        settle().await;
    }
    // Nobody can know before the first reply, and that one may lend a tenth of the capacity.
    assert!((100..=112).contains(&allowed), "{allowed}");
}

#[tokio::test(start_paused = true)]
async fn what_an_outage_admitted_beyond_the_plan_is_charged_when_it_ends() {
    let world = World::leasing(100, "10/s", FailurePolicy::Open);
    assert!(world.take(1).await.is_allowed());
    *world.store.otherwise.lock() = Act::Trip;
    for _ in 0..90 {
        assert!(world.take(1).await.is_allowed());
    }
    *world.store.otherwise.lock() = Act::Answer;
    assert!(world.take(1).await.is_allowed());
    settle().await;
    let reply = world.limiter.inspect(&world.contract).await.unwrap();
    let left = reply.levels.burst.tokens + reply.outstanding.cast_signed();
    assert!((8..=10).contains(&left), "{left}");
}

#[tokio::test(start_paused = true)]
async fn refused_callers_get_turns_and_a_caller_alone_the_time_of_its_token() {
    let world = World::leasing(10, "10/s", FailurePolicy::CLOSED);
    while world.take(1).await.is_allowed() {}
    let cost = Cost::new(1).unwrap();
    let base = Duration::from_millis(100);
    let turn = || world.limiter.turn(&world.contract, cost, base);
    assert_eq!([turn(), turn(), turn()], [base, 2 * base, 3 * base]);
}

#[tokio::test(start_paused = true)]
async fn a_newer_plan_ends_a_lease_of_the_older_one_at_once() {
    let mut world = World::leasing(1_000, "1000/s", FailurePolicy::CLOSED);
    load(&world, 900, 1_000).await;
    let tiny = Limit::new(Capacity::new(10).unwrap(), "1/1000s".parse().unwrap()).unwrap();
    world.contract.plan = PlanNumbers { version: PlanVersion(4), limits: Limits::burst_only(tiny) };
    let mut allowed = 0;
    for _ in 0..100 {
        allowed += u64::from(world.take(1).await.is_allowed());
    }
    assert_eq!(allowed, 10);
}
