//! What a limiter promises of the time without its store, once that is back.

use super::*;

/// Thirty requests a second of a plan of fifty and ten a second, for so many tenths of a second.
async fn load(world: &World, tenths: u64) -> u64 {
    let mut allowed = 0;
    for request in 0..tenths * 3 {
        allowed += u64::from(world.take(1).await.is_allowed());
        advance(Duration::from_micros(33_333)).await;
        if request % 3 == 0 {
            world.limiter.tick();
            settle().await;
        }
    }
    allowed
}

async fn admitted(failure: FailurePolicy, during: Act, tenths: u64, forgets: bool) -> [u64; 3] {
    let world = World::leasing(50, "10/s", failure);
    let before = load(&world, 55).await;
    *world.store.otherwise.lock() = during;
    let meanwhile = load(&world, tenths).await;
    if forgets {
        world.store.buckets.clear();
    }
    *world.store.otherwise.lock() = Act::Answer;
    [before, meanwhile, load(&world, 40).await]
}

/// Before, meanwhile and after it are twelve and a half seconds.
const CONTRACT: u64 = 50 + 125;

#[tokio::test(start_paused = true)]
async fn what_an_outage_admitted_beyond_the_plan_is_charged_by_a_store_that_forgot_it_too() {
    for during in [Act::Trip, Act::Refuse] {
        for forgets in [false, true] {
            let seen = admitted(FailurePolicy::COARSE, during, 30, forgets).await;
            assert_eq!(seen[1], 89, "ten times the plan is more than was asked for");
            // As deep in debt as a bucket can be: the refill of a second.
            assert!((28..=32).contains(&seen[2]), "{during:?}, forgets {forgets}: {seen:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_below_one_of_the_plan_stays_within_the_plan_over_an_outage() {
    for (failure, lease) in [(FailurePolicy::LOCAL, 1), (FailurePolicy::CLOSED, 5)] {
        for during in [Act::Trip, Act::Refuse] {
            for forgets in [false, true] {
                let seen = admitted(failure, during, 30, forgets).await;
                let all: u64 = seen.iter().sum();
                let told = format!("{failure}, {during:?}, forgets {forgets}: {seen:?}");
                assert!((CONTRACT - 2..=CONTRACT + lease).contains(&all), "{told}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_its_plan_is_not_silenced_after_an_outage() {
    for failure in [FailurePolicy::COARSE, FailurePolicy::Open] {
        let world = World::leasing(50, "10/s", failure);
        for phase in [Act::Answer, Act::Trip, Act::Answer] {
            *world.store.otherwise.lock() = phase;
            for _ in 0..100 {
                assert!(world.take(1).await.is_allowed(), "{failure}, {phase:?}");
                advance(Duration::from_millis(101)).await;
                world.limiter.tick();
                settle().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_starts_from_what_the_bucket_held() {
    let world = World::new(100, "1/1000s", FailurePolicy::LOCAL);
    for _ in 0..80 {
        assert!(world.take(1).await.is_allowed());
    }
    *world.store.otherwise.lock() = Act::Trip;
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += usize::from(world.take(1).await.is_allowed());
    }
    // A fifth was left: a fifth of half the plan.
    assert_eq!(admitted, 10);
}

#[tokio::test(start_paused = true)]
async fn what_is_owed_leaks_only_from_when_the_bucket_of_the_last_answer_is_full() {
    let world = World::new(100, "10/s", FailurePolicy::COARSE);
    assert!(world.take(1).await.is_allowed());
    let fifty = Request::take(world.contract.plan, 50, 50);
    world.store.call(&world.contract.key, &fifty).await.unwrap();
    world.acts(&[Act::AnswerAfter(Duration::ZERO, Duration::from_millis(100))]);
    let first = world.ask(1);
    settle().await;
    let asked: Vec<_> = (0..48).map(|_| world.ask(1)).collect();
    let mut all = 51 + usize::from(first.await.unwrap().is_allowed());
    for one in asked {
        all += usize::from(one.await.unwrap().is_allowed());
    }
    tokio::time::sleep(Duration::from_millis(4_100)).await;
    while world.take(1).await.is_allowed() {
        all += 1;
    }
    assert!(all <= 100 + 42 + 1, "{all} in 4.1 s of a plan of 100 and 10/s");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_a_plan_it_got_in_the_outage_owes_nothing() {
    let mut world = World::new(50, "1/d", FailurePolicy::COARSE);
    for _ in 0..40 {
        assert!(world.take(1).await.is_allowed());
    }
    *world.store.otherwise.lock() = Act::Trip;
    let limit = Limit::new(Capacity::new(50).unwrap(), "10/s".parse().unwrap()).unwrap();
    world.contract.plan =
        PlanNumbers { version: PlanVersion(3), limits: Limits::burst_only(limit) };
    for phase in [Act::Trip, Act::Answer] {
        *world.store.otherwise.lock() = phase;
        for n in 0..300 {
            let decision = world.take(1).await;
            assert!(decision.is_allowed(), "{phase:?} {n}: {:?}", decision.outcome);
            advance(Duration::from_millis(101)).await;
        }
    }
}
