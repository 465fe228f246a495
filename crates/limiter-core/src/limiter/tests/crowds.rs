//! What a limiter promises a crowd: nobody is told of more tokens than are left, and when all calls
//! have ended just what was admitted is gone, whatever was asked twice, came late, or came in
//! another order than it was done.

use super::*;

const CAPACITY: u64 = 1_000;
const MS: Duration = Duration::from_millis(1);

/// A bucket that hardly refills, behind a gateway as it is run.
fn world(deadline: Duration) -> World {
    let settings = LimiterSettings { deadline, ..LimiterSettings::default() };
    World::with(CAPACITY, "1/1000s", FailurePolicy::CLOSED, settings)
}

/// Requests of which so many come in each millisecond.
async fn crowd(world: &World, count: usize, each_ms: usize) -> Vec<Decision> {
    let mut asked = Vec::new();
    for number in 1..=count {
        asked.push(world.ask(1));
        if number % each_ms == 0 {
            tokio::time::sleep(MS).await;
        }
    }
    let mut decisions = Vec::new();
    for answer in asked {
        decisions.push(answer.await.unwrap());
    }
    decisions
}

/// What those who were admitted were told to be left, the most first.
fn told(decisions: &[Decision]) -> Vec<u64> {
    let mut told: Vec<u64> = decisions
        .iter()
        .filter_map(|decision| match decision.outcome {
            Outcome::Allowed { remaining } => Some(remaining),
            Outcome::Denied { .. } => None,
        })
        .collect();
    told.sort_unstable_by(|a, b| b.cmp(a));
    told
}

/// Whoever was admitted as the n-th left room for so many at most.
fn assert_none_is_promised_twice(told: &[u64], what: &str) {
    for (number, told) in (1..).zip(told) {
        let left = CAPACITY - number;
        assert!(*told <= left, "{what}: admitted as one of {number}, told {told}; left are {left}");
    }
}

/// Tokens in the store and tokens lent, once every call has ended and nobody asks any more.
async fn at_last(world: &World) -> (i64, u64) {
    for _tick in 0..30 {
        tokio::time::sleep(TICK_EVERY).await;
        world.limiter.tick();
    }
    let reply = world.limiter.inspect(&world.contract).await.unwrap();
    (reply.levels.burst.tokens, reply.outstanding)
}

fn left_after(admitted: usize) -> (i64, u64) {
    (i64::try_from(CAPACITY).unwrap() - i64::try_from(admitted).unwrap(), 0)
}

#[tokio::test(start_paused = true)]
async fn two_hundred_at_once_are_told_two_hundred_different_remainders() {
    let world = world(5 * MS);
    // The first goes alone; the others share a call, and wait for both.
    *world.store.otherwise.lock() = Act::AnswerAfter(MS, MS);
    let decisions = crowd(&world, 200, 200).await;
    assert_eq!(told(&decisions), (800..1_000).rev().collect::<Vec<_>>());
    assert_eq!(world.calls(), 2);
    assert_eq!(at_last(&world).await, left_after(200));
}

#[tokio::test(start_paused = true)]
async fn who_is_paid_from_a_lease_as_it_comes_is_not_told_of_what_was_lent() {
    let world = world(50 * MS);
    *world.store.otherwise.lock() = Act::AnswerAfter(2 * MS, 2 * MS);
    // Those who come while a call is out find more lent than it was asked for.
    let decisions = crowd(&world, 120, 6).await;
    let of_lease = decisions.iter().filter(|decision| decision.basis == Basis::Lease).count();
    assert!(of_lease > 10, "{of_lease} paid from a lease");
    let told = told(&decisions);
    assert_eq!(told.len(), 120);
    assert_none_is_promised_twice(&told, "steady calls");
    assert_eq!(at_last(&world).await, left_after(120));
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_overtaken_does_not_bring_back_what_was_taken_since() {
    let world = world(50 * MS);
    // The first call is done first and heard of last; its twin, for all forty, is done and heard of
    // in between. One more request comes then, and is paid by what both were granted.
    let twin = Act::AnswerAfter(2 * MS, MS);
    world.acts(&[Act::AnswerAfter(MS, 9 * MS), twin, Act::AnswerAfter(20 * MS, MS)]);
    let first = crowd(&world, 40, 40).await;
    assert_eq!(told(&first), (959..=998).rev().collect::<Vec<_>>(), "one token is in flight");
    let needs: Vec<u64> = world.store.requests.lock().iter().map(|asked| asked.need).collect();
    assert_eq!(needs, [1, 40]);
    assert_eq!(world.take(1).await.outcome, Outcome::Allowed { remaining: 959 });
    assert_eq!(at_last(&world).await, left_after(41));
}

#[tokio::test(start_paused = true)]
async fn after_any_crowd_just_what_was_admitted_is_gone() {
    let (mut by_lease, mut late, mut given_back) = (0, 0, 0);
    for seed in 0..400 {
        let world = world(5 * MS);
        let mut random = fastrand::Rng::with_seed(seed);
        let slowest = random.u32(1..=8);
        let acts: Vec<Act> = (0..400)
            .map(|_| Act::AnswerAfter(random.u32(0..=slowest) * MS, random.u32(0..=slowest) * MS))
            .collect();
        world.acts(&acts);
        let decisions = crowd(&world, 200, random.usize(1..=200)).await;
        let told = told(&decisions);
        assert_none_is_promised_twice(&told, &format!("seed {seed}"));
        assert_eq!(at_last(&world).await, left_after(told.len()), "seed {seed}");
        by_lease += decisions.iter().filter(|decision| decision.basis == Basis::Lease).count();
        late += decisions.len() - told.len();
        let returned = |asked: &&Request| asked.unused_need > 0;
        given_back += world.store.requests.lock().iter().filter(returned).count();
    }
    // All that may go wrong was there.
    assert!(by_lease > 1_000 && late > 1_000 && given_back > 100, "{by_lease} {late} {given_back}");
}

#[tokio::test(start_paused = true)]
async fn an_older_answer_does_not_silence_a_bucket_that_has_tokens() {
    let world = World::leasing(100, "1/3600s", FailurePolicy::CLOSED);
    assert!(world.take(1).await.is_allowed());
    let (plan, key) = (world.contract.plan, world.contract.key);
    // Another gateway has all of it while the main call is applied, ...
    world.store.call(&key, &Request::take(plan, 99, 99)).await.unwrap();
    world.acts(&[Act::AnswerOnPermit]);
    let first = world.ask(1);
    settle().await;
    // ... gives it back, and the hedge finds it.
    let back = Request { unused_need: 99, ..Request::take(plan, 0, 0) };
    world.store.call(&key, &back).await.unwrap();
    tokio::time::sleep(Duration::from_millis(4)).await;
    assert!(first.await.unwrap().is_allowed());
    // The main call's answer, older than the hedge's, comes last.
    world.store.permits.add_permits(1);
    settle().await;
    assert_eq!(world.stored_tokens().await, 98);
    let then = world.take(1).await;
    assert!(then.is_allowed(), "{:?}", then.outcome);
}
