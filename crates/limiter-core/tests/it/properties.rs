//! What holds for every bucket, whatever is asked of it in whatever order.
//!
//! The promise itself is judged by an outside observer: an [`ExactBucket`] is fed with what was
//! really spent and when, and must never fall below zero. Each property is a function of the
//! arithmetic, so that the last test can show which planted mistake it notices.

use limiter_core::bucket::{State, apply, fresh};
use limiter_core::testkit::mutants::{Apply, Mutant};
use limiter_core::{
    EXACT_BOUND, Found, Limit, Limits, Owed, PlanNumbers, Reply, Request, Timestamp, Wait, Witness,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRng, TestRunner};

use crate::histories::{ExactBucket, Gateway, Move, START, any_limit, any_limits, moves, version};

/// I1, I5, I15: level and lent tokens never pass the capacity, nor a debt one second of refill; the
/// part of a token is a part; all is exact in a double.
fn check_state(state: &State) -> Result<(), TestCaseError> {
    let outstanding = (state.lent_now + state.lent_before).cast_signed();
    for (level, limit) in state.levels.with(&state.plan.limits) {
        let capacity = limit.capacity().get().cast_signed();
        prop_assert!(level.tokens <= capacity, "{state:?}");
        prop_assert!(level.tokens + outstanding <= capacity || level.tokens <= 0, "{state:?}");
        prop_assert!(level.tokens >= -limit.debt_floor().cast_signed(), "{state:?}");
        prop_assert!(level.remainder < limit.refill().per_us(), "{state:?}");
    }
    prop_assert!(state.granted_total < EXACT_BOUND && state.incarnation < EXACT_BOUND);
    Ok(())
}

/// A store: the arithmetic, and what it has kept.
struct Store {
    apply: Apply,
    state: Option<State>,
}

impl Store {
    fn call(&mut self, request: &Request, now: Timestamp) -> Result<Reply, TestCaseError> {
        let found = if self.state.is_some() { Found::Known } else { Found::Nothing };
        let before = self.state;
        let applied = (self.apply)(self.state, found, request, now);
        check_state(&applied.state)?;
        prop_assert!(applied.reply.granted <= request.need);
        if applied.keep_ms.is_some() {
            self.state = Some(applied.state);
        }
        if let Some(before) = before {
            prop_assert!(applied.state.incarnation >= before.incarnation, "it fell: {before:?}");
        }
        Ok(applied.reply)
    }
}

/// I1, I5, I15, with debts and changing plans.
fn books_hold(apply: Apply, limits: Limits, moves: Vec<Move>) -> Result<(), TestCaseError> {
    let mut plan = PlanNumbers { version: version(2), limits };
    let mut store = Store { apply, state: None };
    let mut now = START;
    let mut gateways = [Gateway::default(); 3];
    for step in moves {
        now = Timestamp::from_us(now.us() + step.gap_us);
        if let Some(limits) = step.new_limits {
            plan = PlanNumbers { version: version(plan.version.0 + 2), limits };
        }
        let gateway = &mut gateways[step.gateway];
        gateway.spend(step.spend_percent, now);
        let request = Request {
            demand_per_s: step.demand,
            lease: Some(gateway.report(step.return_percent)),
            owed: Owed { burst: step.owed, sustained: step.owed },
            ..Request::take(plan, step.need, step.need.min(1))
        };
        let before = store.state;
        let reply = store.call(&request, now)?;
        gateway.hear(&reply, step.answer_lost);
        debts_are_charged(before, &request, &reply, now, apply)?;
    }
    Ok(())
}

/// I15: what is owed is taken once, down to the floor and no further.
fn debts_are_charged(
    before: Option<State>,
    request: &Request,
    reply: &Reply,
    now: Timestamp,
    apply: Apply,
) -> Result<(), TestCaseError> {
    let Some(before) = before else { return Ok(()) };
    let forgiven = Request { owed: Owed::default(), need: 0, demand_per_s: 0, ..*request };
    let without = apply(Some(before), Found::Known, &forgiven, now).reply;
    let owed = [request.owed.burst, request.owed.sustained];
    let taken = (reply.granted + reply.lent).cast_signed();
    let levels =
        reply.levels.with(&reply.plan.limits).zip(without.levels.with(&without.plan.limits));
    for (((after, limit), (free, _)), owed) in levels.zip(owed) {
        let floor = -limit.debt_floor().cast_signed();
        let expected = (free.tokens - owed.cast_signed()).max(floor.min(free.tokens));
        prop_assert_eq!(after.tokens, expected - taken, "owed {} of {:?}", owed, free);
    }
    Ok(())
}

/// I2, I3, I4: three gateways with leases, lost answers and idle times never admit more than the
/// contract, hold no more than the store has on its books, and no token is made or unmade.
fn fleet_keeps_the_contract(
    apply: Apply,
    limits: Limits,
    moves: Vec<Move>,
) -> Result<(), TestCaseError> {
    let plan = PlanNumbers { version: version(2), limits };
    let mut exact: Vec<ExactBucket> = limits.iter().map(ExactBucket::full).collect();
    let mut store = Store { apply, state: None };
    let mut now = START;
    let mut gateways = [Gateway::default(); 3];
    let (mut lent, mut granted) = (0, 0);
    for step in moves {
        now = Timestamp::from_us(now.us() + step.gap_us);
        let gateway = &mut gateways[step.gateway];
        let mut spent = gateway.spend(step.spend_percent, now);
        let request = Request {
            demand_per_s: step.demand,
            lease: Some(gateway.report(step.return_percent)),
            ..Request::take(plan, step.need, step.need.min(1))
        };
        let reply = store.call(&request, now)?;
        gateway.hear(&reply, step.answer_lost);
        if !step.answer_lost {
            spent += reply.granted;
        }
        for bucket in &mut exact {
            bucket.spend(spent, now);
            prop_assert!(bucket.excess() <= 0, "{} tokens too many", bucket.excess());
        }
        let unspent: u64 = gateways.iter().map(|gateway| gateway.spendable(now)).sum();
        prop_assert!(unspent <= reply.outstanding, "{unspent} of {}", reply.outstanding);
        (lent, granted) = (lent + reply.lent, granted + reply.granted);
        prop_assert_eq!(reply.granted_total, lent + granted);
    }
    Ok(())
}

/// I8: a denial names the first microsecond at which the tokens are there.
fn waits_are_exact(
    apply: Apply,
    limits: Limits,
    used: Vec<(u64, u64)>,
    cost: u64,
) -> Result<(), TestCaseError> {
    let plan = PlanNumbers { version: version(2), limits };
    let mut state = fresh(plan, START);
    let mut now = START;
    for (gap_us, need) in used {
        now = Timestamp::from_us(now.us() + gap_us);
        state = apply(Some(state), Found::Known, &Request::take(plan, need, 1), now).state;
    }
    let take = Request::take(plan, cost, cost);
    let denied = apply(Some(state), Found::Known, &take, now).reply;
    prop_assume!(denied.granted == 0);
    match denied.wait(cost) {
        Wait::Until(wait) => {
            prop_assert!(!wait.is_zero());
            let due = now.after(wait);
            let before = Timestamp::from_us(due.us() - 1);
            let early = apply(Some(state), Found::Known, &take, before).reply;
            prop_assert_eq!(early.granted, 0, "one microsecond before {:?}", wait);
            let granted = apply(Some(state), Found::Known, &take, due).reply.granted;
            prop_assert_eq!(granted, cost, "after {:?}", wait);
        }
        Wait::Never => {
            let fixed = limits.iter().any(|limit| limit.refill().is_fixed_allowance());
            prop_assert!(cost > limits.smallest_capacity() || fixed);
            let much_later = Timestamp::from_us(now.us() + (1 << 45));
            let later = apply(Some(state), Found::Known, &take, much_later).reply;
            prop_assert_eq!(later.granted, 0);
        }
    }
    Ok(())
}

/// I9: a stored bucket outlives its debts and leases: when it may be forgotten, it is full.
fn forgotten_means_full(
    apply: Apply,
    limits: Limits,
    moves: Vec<Move>,
) -> Result<(), TestCaseError> {
    let plan = PlanNumbers { version: version(2), limits };
    let mut state = None;
    let mut now = START;
    for step in moves {
        now = Timestamp::from_us(now.us() + step.gap_us);
        let request = Request {
            demand_per_s: step.demand,
            owed: Owed { burst: step.owed, sustained: step.owed },
            ..Request::take(plan, step.need, 1)
        };
        let found = if state.is_some() { Found::Known } else { Found::Nothing };
        let applied = apply(state, found, &request, now);
        let Some(keep_ms) = applied.keep_ms else { continue };
        state = Some(applied.state);
        let end = Timestamp::from_us(now.us() + keep_ms * 1_000);
        let later = apply(state, Found::Known, &Request::peek(plan), end).reply;
        for (level, limit) in later.levels.with(&limits) {
            if limit.refill().is_fixed_allowance() {
                let full = level.tokens == limit.capacity().get().cast_signed();
                prop_assert!(full || keep_ms >= 31 * 86_400_000);
            } else {
                prop_assert_eq!(level.tokens, limit.capacity().get().cast_signed());
            }
        }
        prop_assert_eq!(later.outstanding, 0);
    }
    Ok(())
}

/// I10: after a loss of everything, or of the last writes, one witness is enough to have no more
/// than it saw, and every other witness will find that something has happened.
fn witnesses_rebuild(
    apply: Apply,
    limit: Limit,
    used: u64,
    gap_us: u64,
) -> Result<(), TestCaseError> {
    let plan = PlanNumbers { version: version(2), limits: Limits::burst_only(limit) };
    let used = used.min(limit.capacity().get());
    let early = apply(None, Found::Nothing, &Request::take(plan, used / 2, 0), START).state;
    let rest = used - used / 2;
    let kept = apply(Some(early), Found::Known, &Request::take(plan, rest, rest), START);
    let seen = kept.reply;
    let witness = Witness {
        at: seen.at,
        burst: seen.levels.burst.tokens,
        sustained: 0,
        granted_total: seen.granted_total,
        incarnation: seen.incarnation,
        version: plan.version,
        force: false,
    };
    let now = Timestamp::from_us(START.us() + gap_us);
    let request = Request { witness: Some(witness), ..Request::take(plan, 0, 0) };
    let truth = apply(Some(kept.state), Found::Known, &Request::peek(plan), now).reply;
    let true_level = truth.levels.burst.tokens;
    for (state, found) in [(None, Found::Nothing), (Some(early), Found::Known)] {
        let rebuilt = apply(state, found, &request, now).reply;
        let level = rebuilt.levels.burst.tokens;
        prop_assert!(level >= true_level && level <= true_level + 1, "{level} of {true_level}");
        prop_assert!(rebuilt.incarnation > seen.incarnation);
    }
    Ok(())
}

/// I16: more capacity is room at once, less clamps; what was used stays used.
fn plan_changes_keep_what_was_used(
    apply: Apply,
    before: Limit,
    after: Limit,
    used: u64,
) -> Result<(), TestCaseError> {
    let old = PlanNumbers { version: version(2), limits: Limits::burst_only(before) };
    let new = PlanNumbers { version: version(4), limits: Limits::burst_only(after) };
    let used = used.min(before.capacity().get());
    let taken = apply(None, Found::Nothing, &Request::take(old, used, used), START).state;
    let changed = apply(Some(taken), Found::Known, &Request::take(new, 0, 0), START);
    let level = changed.reply.levels.burst.tokens;
    let (c0, c1) = (before.capacity().get(), after.capacity().get());
    let expected = if c1 > c0 { c1 - used } else { (c0 - used).min(c1) };
    prop_assert_eq!(level, expected.cast_signed());
    prop_assert_eq!(changed.reply.plan, new);
    let back = apply(Some(changed.state), Found::Known, &Request::take(old, 0, 0), START);
    prop_assert_eq!(back.reply.plan, new, "an older plan does not return");
    Ok(())
}

/// I17: a denial takes and writes nothing, and whoever looked in between, the same is there.
fn looking_changes_nothing(
    apply: Apply,
    limits: Limits,
    moves: Vec<Move>,
    gap_us: u64,
    part: u64,
) -> Result<(), TestCaseError> {
    let plan = PlanNumbers { version: version(2), limits };
    let mut state = fresh(plan, START);
    let mut now = START;
    for step in moves {
        now = Timestamp::from_us(now.us() + step.gap_us);
        let take = Request { demand_per_s: step.demand, ..Request::take(plan, step.need, 1) };
        state = apply(Some(state), Found::Known, &take, now).state;
    }
    let end = Timestamp::from_us(now.us() + gap_us);
    let look = Request::peek(plan);
    let too_much = limits.smallest_capacity() + 1;
    let denied = apply(Some(state), Found::Known, &Request::take(plan, too_much, too_much), end);
    let once = apply(Some(state), Found::Known, &look, end);
    prop_assert_eq!(denied.keep_ms, None);
    prop_assert_eq!((denied.reply.granted, denied.state), (0, once.state));
    let between = Timestamp::from_us(now.us() + gap_us * part / 100);
    let looked = apply(Some(state), Found::Known, &look, between).state;
    let twice = apply(Some(looked), Found::Known, &look, end);
    // Of what is lent, one may believe a little longer than the other that it is alive.
    if state.lent_now + state.lent_before == 0 {
        prop_assert_eq!(once.reply.levels, twice.reply.levels);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn i01_i05_i15_no_call_leaves_more_than_the_capacity(
        limits in any_limits(),
        moves in moves(60),
    ) {
        books_hold(apply, limits, moves)?;
    }

    #[test]
    fn i02_i03_i04_all_gateways_together_stay_within_the_contract(
        limits in any_limits(),
        moves in moves(120),
    ) {
        fleet_keeps_the_contract(apply, limits, moves)?;
    }

    #[test]
    fn i08_the_wait_of_a_denial_is_exact(
        limits in any_limits(),
        used in prop::collection::vec((0..2_000_000_u64, 1..2_000_u64), 0..20),
        cost in prop_oneof![1..4_u64, 1..2_000_u64],
    ) {
        waits_are_exact(apply, limits, used, cost)?;
    }

    #[test]
    fn i09_a_bucket_that_may_be_forgotten_is_full(limits in any_limits(), moves in moves(30)) {
        forgotten_means_full(apply, limits, moves)?;
    }

    #[test]
    fn i10_a_lost_bucket_is_rebuilt_from_a_witness(
        limit in any_limit(),
        used in 1..2_000_u64,
        gap_us in 0..10_000_000_u64,
    ) {
        witnesses_rebuild(apply, limit, used, gap_us)?;
    }

    #[test]
    fn i16_a_plan_change_keeps_what_was_used(
        before in any_limit(),
        after in any_limit(),
        used in 0..2_000_u64,
    ) {
        plan_changes_keep_what_was_used(apply, before, after, used)?;
    }

    #[test]
    fn i17_a_denial_or_a_look_changes_nothing(
        limits in any_limits(),
        moves in moves(20),
        gap_us in prop_oneof![0..2_000_u64, 0..3_000_000_u64],
        part in 0..=100_u64,
    ) {
        looking_changes_nothing(apply, limits, moves, gap_us, part)?;
    }
}

/// Whether a property breaks within some thousand cases drawn from a fixed seed.
fn notices<S: Strategy>(
    strategy: &S,
    property: impl Fn(Apply, S::Value) -> Result<(), TestCaseError>,
    mutant: &str,
) -> bool {
    let apply = Mutant::named(mutant).unwrap().apply;
    let config = Config { cases: 4_000, failure_persistence: None, ..Config::default() };
    let luck = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, luck);
    runner.run(strategy, |input| property(apply, input)).is_err()
}

#[test]
fn each_property_notices_the_mistake_that_it_is_there_for() {
    let fleet = (any_limits(), moves(120));
    for mutant in ["no-cap", "settle-first", "undead-lease", "free-lease"] {
        let property = |apply, (limits, moves)| fleet_keeps_the_contract(apply, limits, moves);
        assert!(notices(&fleet, property, mutant), "{mutant}");
    }
    let property = |apply, (limits, moves)| books_hold(apply, limits, moves);
    assert!(notices(&(any_limits(), moves(60)), property, "forgiving-debt"));
    let lost = (any_limit(), 1..2_000_u64, 0..10_000_000_u64);
    for mutant in ["deaf", "level-incarnation"] {
        let property = |apply, (limit, used, gap)| witnesses_rebuild(apply, limit, used, gap);
        assert!(notices(&lost, property, mutant), "{mutant}");
    }
    let plans = (any_limit(), any_limit(), 0..2_000_u64);
    let property =
        |apply, (before, after, used)| plan_changes_keep_what_was_used(apply, before, after, used);
    assert!(notices(&plans, property, "full-after-plan"));
}
