//! Random histories of one bucket: plans, moves of three gateways with leases, and the exact bucket
//! that an outside observer keeps.

use limiter_core::{
    Capacity, LeaseReport, Limit, Limits, PlanVersion, RefillRate, Reply, Timestamp,
};
use proptest::prelude::*;

pub(crate) const START: Timestamp = Timestamp::from_us(1_800_000_000_000_000);

pub(crate) fn any_limit() -> impl Strategy<Value = Limit> {
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

pub(crate) fn any_limits() -> impl Strategy<Value = Limits> {
    (any_limit(), proptest::option::of(any_limit()))
        .prop_map(|(burst, sustained)| Limits { burst, sustained })
}

pub(crate) fn version(number: u64) -> PlanVersion {
    PlanVersion(number)
}

/// What a caller may do in one step, in shares of the capacity.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    pub(crate) gap_us: u64,
    pub(crate) need: u64,
    pub(crate) demand: u64,
    pub(crate) gateway: usize,
    pub(crate) spend_percent: u64,
    pub(crate) return_percent: u64,
    pub(crate) answer_lost: bool,
    pub(crate) owed: u64,
    pub(crate) new_limits: Option<Limits>,
}

pub(crate) fn any_move() -> impl Strategy<Value = Move> {
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
pub(crate) struct ExactBucket {
    limit: Limit,
    parts: i128,
    at: Timestamp,
}

impl ExactBucket {
    pub(crate) fn full(limit: Limit) -> ExactBucket {
        let parts = i128::from(limit.capacity().get()) * i128::from(limit.refill().per_us());
        ExactBucket { limit, parts, at: START }
    }

    pub(crate) fn spend(&mut self, tokens: u64, now: Timestamp) {
        let refill = self.limit.refill();
        let elapsed = i128::try_from(now.since(self.at).as_micros()).unwrap();
        let full = i128::from(self.limit.capacity().get()) * i128::from(refill.per_us());
        self.parts = full.min(self.parts + elapsed * i128::from(refill.tokens()));
        self.at = now;
        self.parts -= i128::from(tokens) * i128::from(refill.per_us());
    }

    /// Tokens below zero: what was admitted beyond the contract.
    pub(crate) fn excess(&self) -> i128 {
        -self.parts.div_euclid(i128::from(self.limit.refill().per_us()))
    }
}

/// A gateway with a lease.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gateway {
    generation: u64,
    counted: u64,
    held: u64,
    deadline: Timestamp,
}

impl Gateway {
    pub(crate) fn spend(&mut self, percent: u64, now: Timestamp) -> u64 {
        if now >= self.deadline {
            return 0;
        }
        let spent = self.held * percent / 100;
        self.held -= spent;
        spent
    }

    pub(crate) fn spendable(&self, now: Timestamp) -> u64 {
        if now < self.deadline { self.held } else { 0 }
    }

    pub(crate) fn report(&mut self, return_percent: u64) -> LeaseReport {
        let returned = self.held * return_percent / 100;
        self.held -= returned;
        LeaseReport {
            generation: self.generation,
            counted: self.counted,
            held: self.held,
            returned,
        }
    }

    pub(crate) fn hear(&mut self, reply: &Reply, answer_lost: bool) {
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

pub(crate) fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    prop::collection::vec(any_move(), 1..most)
}
