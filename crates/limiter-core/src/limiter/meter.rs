//! What an outage admitted and the store never charged: a leaky meter for each bucket.
//!
//! It leaks as fast as the plan would have let this gateway's part pass, from when the store's
//! bucket is full: until then what is earned is found there. So what went beyond the plan is
//! charged when the store is back, and no more. Charging everything would silence a client that
//! kept its contract; forgetting everything would give it a second full bucket.

use crate::call::Owed;
use crate::degraded::PlanPart;
use crate::limit::{Limit, Limits};
use crate::time::Timestamp;

/// Heights are kept in millionths of a millionth of a token.
const UNIT: u128 = 1_000_000_000_000;

#[derive(Debug)]
pub(crate) struct OutageMeter {
    at: Timestamp,
    heights: [u128; 2],
    leak: Option<Leak>,
}

/// How fast a meter leaks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leak {
    pub(crate) limits: Limits,
    pub(crate) part: PlanPart,
    /// For each bucket, when the store's is full.
    pub(crate) from: [Timestamp; 2],
}

impl OutageMeter {
    pub(crate) fn new(now: Timestamp) -> OutageMeter {
        OutageMeter { at: now, heights: [0; 2], leak: None }
    }

    /// `cost` was admitted; from now on the meter leaks like this.
    pub(crate) fn admit(&mut self, leak: &Leak, cost: u64, now: Timestamp) {
        self.leak(now);
        self.leak = Some(*leak);
        for (height, limit) in self.heights.iter_mut().zip(leak.limits.iter()) {
            // More than a full bucket and the deepest debt could not be charged anyway.
            let most = u128::from(limit.capacity().get() + limit.debt_floor()) * UNIT;
            *height = (*height + u128::from(cost) * UNIT).min(most);
        }
    }

    /// The store's buckets are full later than it seemed, or sooner.
    pub(crate) fn leak_from(&mut self, from: [Timestamp; 2], now: Timestamp) {
        self.leak(now);
        self.leak = self.leak.map(|leak| Leak { from, ..leak });
    }

    /// Whole tokens to be charged.
    pub(crate) fn height(&mut self, now: Timestamp) -> Owed {
        self.leak(now);
        let [burst, sustained] =
            self.heights.map(|height| u64::try_from(height / UNIT).unwrap_or(u64::MAX));
        Owed { burst, sustained }
    }

    /// Nothing is owed, not even a part of a token: the parts of many calls add up.
    pub(crate) fn is_empty(&self) -> bool {
        self.heights == [0; 2]
    }

    /// So much was charged, or may have been.
    pub(crate) fn subtract(&mut self, owed: Owed) {
        for (height, charged) in self.heights.iter_mut().zip([owed.burst, owed.sustained]) {
            *height = height.saturating_sub(u128::from(charged) * UNIT);
        }
    }

    fn leak(&mut self, now: Timestamp) {
        let before = self.at;
        self.at = before.max(now);
        let Some(Leak { limits, part, from }) = self.leak else { return };
        for ((height, limit), from) in self.heights.iter_mut().zip(limits.iter()).zip(from) {
            let elapsed = now.since(before.max(from)).as_micros();
            *height = height.saturating_sub(leaked(limit, part, elapsed));
        }
    }
}

fn leaked(limit: Limit, part: PlanPart, elapsed_us: u128) -> u128 {
    let (parts, whole) = part.fraction();
    let per_us = u128::from(limit.refill().per_us()) * u128::from(whole);
    // At most 10⁹ tokens a second: with elapsed below a year this stays far below 2¹²⁸.
    let rate = u128::from(limit.refill().tokens()) * u128::from(parts) * UNIT;
    elapsed_us.min(31_536_000_000_000).saturating_mul(rate) / per_us
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Capacity, RefillRate};

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_000_000_000 + ms * 1_000)
    }

    fn limits(capacity: u64, refill: &str) -> Limits {
        let refill: RefillRate = refill.parse().unwrap();
        Limits::burst_only(Limit::new(Capacity::new(capacity).unwrap(), refill).unwrap())
    }

    /// Of a bucket that is full at the store.
    fn leak(limits: Limits, one_in: u32) -> Leak {
        Leak { limits, part: PlanPart::of_one_in(one_in), from: [at(0); 2] }
    }

    fn burst(tokens: u64) -> Owed {
        Owed { burst: tokens, sustained: 0 }
    }

    #[test]
    fn what_the_plan_would_have_let_pass_is_not_owed() {
        let plan = limits(100, "10/s");
        let mut meter = OutageMeter::new(at(0));
        for n in 0..300 {
            meter.admit(&leak(plan, 1), 1, at(n * 100));
        }
        assert_eq!(meter.height(at(30_000)), burst(0), "the plan's own rate leaves nothing");
        for n in 0..300 {
            meter.admit(&leak(plan, 1), 1, at(30_000 + n * 50));
        }
        assert_eq!(meter.height(at(45_000)), burst(109), "a bucket and a second's debt at most");
        assert_eq!(meter.height(at(50_000)), burst(59));
    }

    #[test]
    fn what_the_store_earns_meanwhile_is_owed_until_its_bucket_is_full() {
        let full_after_5_s = Leak { from: [at(5_000); 2], ..leak(limits(100, "10/s"), 1) };
        let mut meter = OutageMeter::new(at(0));
        for n in 0..60 {
            meter.admit(&full_after_5_s, 1, at(n * 100));
        }
        assert_eq!(meter.height(at(6_000)), burst(50), "the tokens of five seconds");
        assert_eq!(meter.height(at(10_000)), burst(10), "from then on it is as if they were there");
    }

    #[test]
    fn parts_of_a_token_add_up() {
        let plan = leak(limits(100, "10/s"), 1);
        let mut meter = OutageMeter::new(at(0));
        for n in 0..30 {
            meter.admit(&plan, 1, at(n * 50));
            meter.height(at(n * 50 + 49));
            assert!(!meter.is_empty(), "half a token and more is owed");
        }
        assert_eq!(meter.height(at(1_500)), burst(15));
    }

    #[test]
    fn a_part_of_the_plan_leaks_slower() {
        let plan = limits(100, "10/s");
        let mut meter = OutageMeter::new(at(0));
        meter.admit(&leak(plan, 4), 50, at(0));
        assert_eq!(meter.height(at(4_000)), burst(40));
        assert_eq!(meter.height(at(20_000)), burst(0));
    }

    #[test]
    fn the_slowest_plan_leaks_exactly_however_often_it_is_looked_at() {
        let plan = limits(10, "1/d");
        let mut meter = OutageMeter::new(at(0));
        meter.admit(&leak(plan, 1), 2, at(0));
        for s in 0..86_399 {
            meter.height(at(s * 1_000));
        }
        assert_eq!(meter.height(at(86_399_000)), burst(1));
        assert_eq!(meter.height(at(2 * 86_400_000 + 1_000)), burst(0));
    }

    #[test]
    fn what_was_charged_is_not_owed_again() {
        let plan = limits(100, "0");
        let mut meter = OutageMeter::new(at(0));
        meter.admit(&leak(plan, 1), 7, at(0));
        let owed = meter.height(at(1));
        meter.admit(&leak(plan, 1), 2, at(2));
        meter.subtract(owed);
        assert_eq!(meter.height(at(3)), burst(2));
    }
}
