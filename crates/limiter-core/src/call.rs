//! What is said between a limiter and a bucket store, in its final shape: one request, one reply.
//!
//! Exact mode (one call for the requests that wait now) leaves the lease, witness and outage parts
//! at their initial values. Whole tokens, microseconds; nothing here is a float or a text.

use std::time::Duration;

use crate::decision::Wait;
use crate::limit::{Limit, Limits};
use crate::time::Timestamp;

/// Length of a lease generation: tokens lent in one are dead two generations later.
pub const GENERATION_US: u64 = 500_000;

/// Version of a plan's numbers for one key; only grows. The newest that a store has seen rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PlanVersion(pub u64);

/// The numbers in force for a bucket pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanNumbers {
    /// Their version.
    pub version: PlanVersion,
    /// The limits.
    pub limits: Limits,
}

/// One call to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The caller's plan; an older one than the store's is answered under the store's.
    pub plan: PlanNumbers,
    /// Plan version of the last reset of this key: a bucket older than that is filled.
    pub reset: PlanVersion,
    /// Sum of the costs that wait now.
    pub need: u64,
    /// The smallest of them: with less than this nothing is given.
    pub smallest_need: u64,
    /// Own demand in tokens per second; 0 asks for no lease.
    pub demand_per_s: u64,
    /// Tokens below which the caller would call again.
    pub low_water: u64,
    /// Poll interval while tokens are scarce.
    pub scarce_poll_us: u64,
    /// The lease that the caller holds, if it settles one.
    pub lease: Option<LeaseReport>,
    /// Tokens granted for requests that then did not take them.
    pub unused_need: u64,
    /// Tokens admitted without the store, to be charged now.
    pub owed: Owed,
    /// The last state the caller saw: repairs a store that lost writes.
    pub witness: Option<Witness>,
    /// Look only: the store writes nothing.
    pub peek: bool,
}

impl Request {
    /// The request of exact mode: `need` tokens for callers of whom the least wants `smallest`.
    pub fn take(plan: PlanNumbers, need: u64, smallest: u64) -> Request {
        Request {
            plan,
            reset: PlanVersion(0),
            need,
            smallest_need: smallest,
            demand_per_s: 0,
            low_water: 0,
            scarce_poll_us: 0,
            lease: None,
            unused_need: 0,
            owed: Owed::default(),
            witness: None,
            peek: false,
        }
    }

    /// Reads the bucket without changing it.
    pub fn peek(plan: PlanNumbers) -> Request {
        Request { peek: true, ..Request::take(plan, 0, 0) }
    }
}

/// A lease as its holder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseReport {
    /// Stamp of the lease: the generation of the reply that granted it.
    pub generation: u64,
    /// What the store counts as the holder's under that stamp ([`Reply::counted`]).
    pub counted: u64,
    /// Tokens still held and kept.
    pub held: u64,
    /// Counted tokens given back.
    pub returned: u64,
}

/// Heights of the outage meters, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owed {
    /// Charged to the burst bucket.
    pub burst: u64,
    /// Charged to the sustained bucket.
    pub sustained: u64,
}

/// What a caller remembers of the last reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witness {
    /// Store time of that reply.
    pub at: Timestamp,
    /// Level of the burst bucket.
    pub burst: i64,
    /// Level of the sustained bucket.
    pub sustained: i64,
    /// Tokens granted since the incarnation began.
    pub granted_total: u64,
    /// The incarnation.
    pub incarnation: u64,
    /// Plan version then in force.
    pub version: PlanVersion,
    /// Testify even if nothing looks lost (after a change of topology).
    pub force: bool,
}

/// Level of a bucket: whole tokens and the part of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// Whole tokens; below zero while an outage is being paid.
    pub tokens: i64,
    /// Earned towards the next token, in tokens times the rate's period (0 ≤ remainder < period).
    pub remainder: u64,
}

impl Level {
    /// A full bucket.
    pub fn full(limit: Limit) -> Level {
        Level { tokens: limit.capacity().get().cast_signed(), remainder: 0 }
    }

    /// Time until the level reaches `tokens`; zero if it has, `None` if it never will.
    pub fn time_until(self, tokens: u64, limit: Limit) -> Option<Duration> {
        let missing = i128::from(tokens) - i128::from(self.tokens);
        if missing <= 0 {
            return Some(Duration::ZERO);
        }
        if tokens > limit.capacity().get() || limit.refill().is_fixed_allowance() {
            return None;
        }
        let parts = missing * i128::from(limit.refill().per_us()) - i128::from(self.remainder);
        let rate = i128::from(limit.refill().tokens());
        let us = (parts.max(0) + rate - 1) / rate;
        Some(Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX)))
    }
}

/// The levels of a bucket pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Burst bucket.
    pub burst: Level,
    /// Sustained bucket; zero where the plan has none.
    pub sustained: Level,
}

impl Levels {
    /// Whole tokens that a request could take now, over both buckets.
    pub fn available(&self, limits: &Limits) -> u64 {
        let burst = self.burst.tokens;
        let tokens = limits.sustained.map_or(burst, |_| burst.min(self.sustained.tokens));
        u64::try_from(tokens).unwrap_or(0)
    }

    /// Whether each bucket holds at least this part (numerator, denominator) of its capacity.
    pub fn are_filled_to(&self, limits: &Limits, (part, of): (i64, i64)) -> bool {
        self.with(limits)
            .all(|(level, limit)| of * level.tokens >= part * limit.capacity().get().cast_signed())
    }

    /// Burst first, as in [`Limits::iter`].
    pub fn with<'a>(&'a self, limits: &'a Limits) -> impl Iterator<Item = (Level, Limit)> + 'a {
        [self.burst, self.sustained].into_iter().zip(limits.iter())
    }
}

/// What the store found under the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A state it understood.
    Known,
    /// Nothing: a full bucket.
    Nothing,
    /// Something that cannot be a bucket: counted as nothing, and overwritten.
    Unreadable,
}

/// The store's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Tokens given for the need; at most [`Request::need`].
    pub granted: u64,
    /// Tokens lent.
    pub lent: u64,
    /// What the store now counts as the caller's under `generation`.
    pub counted: u64,
    /// Stamp of what was lent.
    pub generation: u64,
    /// From the store's present until a lease with this stamp is dead.
    pub valid: Duration,
    /// The reported lease had died before: its tokens must not be spent.
    pub lease_dead: bool,
    /// Levels after the call.
    pub levels: Levels,
    /// Tokens lent to all callers, after the call.
    pub outstanding: u64,
    /// The store's present.
    pub at: Timestamp,
    /// Tokens granted and lent since the incarnation began.
    pub granted_total: u64,
    /// Grows when a loss of writes was repaired.
    pub incarnation: u64,
    /// The plan in force: the caller's, or a newer one.
    pub plan: PlanNumbers,
    /// What was found.
    pub found: Found,
}

impl Reply {
    /// How long until `cost` can be taken, as far as this reply tells: a lower bound.
    /// Zero means now.
    pub fn wait(&self, cost: u64) -> Wait {
        let mut longest = Duration::ZERO;
        for (level, limit) in self.levels.with(&self.plan.limits) {
            let Some(mut wait) = level.time_until(cost, limit) else { return Wait::Never };
            if cost > limit.capacity().get().saturating_sub(self.outstanding) {
                wait = wait.max(self.valid);
            }
            longest = longest.max(wait);
        }
        Wait::Until(longest)
    }
}
