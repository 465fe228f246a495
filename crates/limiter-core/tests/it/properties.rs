//! What holds for every bucket, whatever is asked of it in whatever order.
//!
//! The promise itself is judged by an outside observer: [`ExactBucket`] is fed with what was really
//! spent and when, and must never fall below zero.

use limiter_core::bucket::{State, apply, fresh};
use limiter_core::{
    Capacity, Found, LeaseReport, Limit, Limits, Owed, PlanNumbers, PlanVersion, RefillRate, Reply,
    Request, Timestamp, Wait, Witness,
};
use proptest::prelude::*;

const START: Timestamp = Timestamp::from_us(1_800_000_000_000_000);

fn any_limit() -> impl Strategy<Value = Limit> {
    let capacity = prop_oneof![1..20_u64, 1..2_000_u64, 1..1_000_000_000_000_u64];
    let refill = prop_oneof![
        (1..50_u64).prop_map(|tokens| (tokens, 1_000_000)),
        (1..1_000_000_u64).prop_map(|tokens| (tokens, 1_000_000)),
        (1..100_u64).prop_map(|tokens| (tokens, 3_600_000_000)),
        (1..1_000_u64, 1..1_000_000_u64),
        Just((0, 1)),
    ];
    (capacity, refill).prop_filter_map("counts exactly", |(capacity, (tokens, per_us))| {
        Limit::new(Capacity::new(capacity).ok()?, RefillRate::new(tokens, per_us).ok()?).ok()
    })
}

fn any_limits() -> impl Strategy<Value = Limits> {
    (any_limit(), proptest::option::of(any_limit()))
        .prop_map(|(burst, sustained)| Limits { burst, sustained })
}

fn version(number: u64) -> PlanVersion {
    PlanVersion(number)
}

/// What a caller may do in one step, in shares of the capacity.
#[derive(Debug, Clone)]
struct Move {
    gap_us: u64,
    need: u64,
    demand: u64,
    gateway: usize,
    spend_percent: u64,
    return_percent: u64,
    answer_lost: bool,
    owed: u64,
    new_limits: Option<Limits>,
}

fn any_move() -> impl Strategy<Value = Move> {
    let gap = prop_oneof![0..2_000_u64, 0..400_000_u64, 0..3_000_000_u64];
    let need = prop_oneof![Just(0_u64), 1..4_u64, 1..3_000_u64];
    let demand = prop_oneof![Just(0_u64), 1..50_u64, 1..100_000_u64];
    let shares = (0..=100_u64, 0..=100_u64);
    let rare = (prop::bool::weighted(0.1), prop_oneof![9 => Just(0_u64), 1 => 1..5_000_u64]);
    let plan = proptest::option::weighted(0.1, any_limits());
    (gap, need, demand, 0..3_usize, shares, rare, plan).prop_map(
        |(
            gap_us,
            need,
            demand,
            gateway,
            (spend_percent, return_percent),
            (answer_lost, owed),
            new_limits,
        )| {
            Move {
                gap_us,
                need,
                demand,
                gateway,
                spend_percent,
                return_percent,
                answer_lost,
                owed,
                new_limits,
            }
        },
    )
}

/// A bucket that is debited by what is really spent, in parts of a token. Never lends.
struct ExactBucket {
    limit: Limit,
    parts: i128,
    at: Timestamp,
}

impl ExactBucket {
    fn full(limit: Limit) -> ExactBucket {
        let parts = i128::from(limit.capacity().get()) * i128::from(limit.refill().per_us());
        ExactBucket { limit, parts, at: START }
    }

    fn spend(&mut self, tokens: u64, now: Timestamp) {
        let refill = self.limit.refill();
        let elapsed = i128::try_from(now.since(self.at).as_micros()).unwrap();
        let full = i128::from(self.limit.capacity().get()) * i128::from(refill.per_us());
        self.parts = full.min(self.parts + elapsed * i128::from(refill.tokens()));
        self.at = now;
        self.parts -= i128::from(tokens) * i128::from(refill.per_us());
    }

    /// Tokens below zero: what was admitted beyond the contract.
    fn excess(&self) -> i128 {
        -self.parts.div_euclid(i128::from(self.limit.refill().per_us()))
    }
}

/// A gateway with a lease.
#[derive(Debug, Clone, Copy, Default)]
struct Gateway {
    generation: u64,
    counted: u64,
    held: u64,
    deadline: Timestamp,
}

impl Gateway {
    fn spend(&mut self, percent: u64, now: Timestamp) -> u64 {
        if now >= self.deadline {
            return 0;
        }
        let spent = self.held * percent / 100;
        self.held -= spent;
        spent
    }

    fn report(&mut self, return_percent: u64) -> LeaseReport {
        let returned = self.held * return_percent / 100;
        self.held -= returned;
        LeaseReport {
            generation: self.generation,
            counted: self.counted,
            held: self.held,
            returned,
        }
    }

    fn hear(&mut self, reply: &Reply, answer_lost: bool) {
        if answer_lost {
            self.counted = 0;
            return;
        }
        if reply.lease_dead {
            self.held = 0;
        }
        self.held += reply.lent;
        self.counted = reply.counted;
        self.generation = reply.generation;
        self.deadline = reply.at.after(reply.valid);
    }
}

fn check_state(state: &State) -> Result<(), TestCaseError> {
    let outstanding = (state.lent_now + state.lent_before).cast_signed();
    for (level, limit) in state.levels.with(&state.plan.limits) {
        let capacity = limit.capacity().get().cast_signed();
        prop_assert!(level.tokens <= capacity, "{state:?}");
        prop_assert!(level.tokens + outstanding <= capacity || level.tokens <= 0, "{state:?}");
        prop_assert!(level.tokens >= -limit.debt_floor().cast_signed(), "{state:?}");
        prop_assert!(level.remainder < limit.refill().per_us(), "{state:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Level and lent tokens together never pass the capacity, nor a debt one second of refill.
    #[test]
    fn no_call_leaves_more_than_the_capacity(
        limits in any_limits(),
        moves in prop::collection::vec(any_move(), 1..60),
    ) {
        let mut plan = PlanNumbers { version: version(2), limits };
        let mut state = None;
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
            let found = if state.is_some() { Found::Known } else { Found::Nothing };
            let applied = apply(state, found, &request, now);
            gateway.hear(&applied.reply, step.answer_lost);
            check_state(&applied.state)?;
            prop_assert!(applied.reply.granted <= step.need);
            if applied.keep_ms.is_some() {
                state = Some(applied.state);
            }
        }
    }

    /// Three gateways with leases, lost answers and idle times never admit more than the contract.
    #[test]
    fn all_gateways_together_stay_within_the_contract(
        limits in any_limits(),
        moves in prop::collection::vec(any_move(), 1..120),
    ) {
        let plan = PlanNumbers { version: version(2), limits };
        let mut exact: Vec<ExactBucket> = limits.iter().map(ExactBucket::full).collect();
        let mut state = None;
        let mut now = START;
        let mut gateways = [Gateway::default(); 3];
        for step in moves {
            now = Timestamp::from_us(now.us() + step.gap_us);
            let gateway = &mut gateways[step.gateway];
            let mut spent = gateway.spend(step.spend_percent, now);
            let request = Request {
                demand_per_s: step.demand,
                lease: Some(gateway.report(step.return_percent)),
                ..Request::take(plan, step.need, step.need.min(1))
            };
            let found = if state.is_some() { Found::Known } else { Found::Nothing };
            let applied = apply(state, found, &request, now);
            gateway.hear(&applied.reply, step.answer_lost);
            if !step.answer_lost {
                spent += applied.reply.granted;
            }
            for bucket in &mut exact {
                bucket.spend(spent, now);
                prop_assert!(bucket.excess() <= 0, "{} tokens too many", bucket.excess());
            }
            if applied.keep_ms.is_some() {
                state = Some(applied.state);
            }
        }
    }

    /// A denial names the first microsecond at which the tokens are there.
    #[test]
    fn the_wait_of_a_denial_is_exact(
        limits in any_limits(),
        used in prop::collection::vec((0..2_000_000_u64, 1..2_000_u64), 0..20),
        cost in prop_oneof![1..4_u64, 1..2_000_u64],
    ) {
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
    }

    /// A stored bucket outlives its debts and leases: when it may be forgotten, it is full.
    #[test]
    fn a_bucket_that_may_be_forgotten_is_full(
        limits in any_limits(),
        moves in prop::collection::vec(any_move(), 1..30),
    ) {
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
    }

    /// More capacity is room at once, less clamps; what was used stays used.
    #[test]
    fn a_plan_change_keeps_what_was_used(
        before in any_limit(),
        after in any_limit(),
        used in 0..2_000_u64,
    ) {
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
    }

    /// After a loss of everything one witness is enough to have no more than it saw.
    #[test]
    fn a_lost_bucket_is_rebuilt_from_a_witness(
        limit in any_limit(),
        used in 1..2_000_u64,
        gap_us in 0..10_000_000_u64,
    ) {
        let plan = PlanNumbers { version: version(2), limits: Limits::burst_only(limit) };
        let used = used.min(limit.capacity().get());
        let kept = apply(None, Found::Nothing, &Request::take(plan, used, used), START);
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
        let rebuilt = apply(None, Found::Nothing, &request, now);
        let truth = apply(Some(kept.state), Found::Known, &Request::peek(plan), now).reply;
        let level = rebuilt.reply.levels.burst.tokens;
        prop_assert!(level >= truth.levels.burst.tokens);
        prop_assert!(level <= truth.levels.burst.tokens + 1, "{level} rebuilt");
        prop_assert!(rebuilt.reply.incarnation > seen.incarnation || gap_us > 0);
    }
}
