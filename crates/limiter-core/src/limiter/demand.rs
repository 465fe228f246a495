//! How fast a key's tokens are asked for at this gateway: decides how much is borrowed.
//!
//! Measured from one main call to the next, so the way of most requests counts nothing. It rises
//! fourfold at most (a burst is no trend) and falls by half within a horizon.

use std::time::Duration;

use crate::time::Timestamp;

/// Demand is looked ahead by so much; a fall is slowed within it.
const HORIZON: Duration = Duration::from_millis(100);
/// Two calls closer than this are taken as this far apart.
const INTERVAL_MIN: Duration = Duration::from_millis(2);
/// What the first rise may reach, in tokens per second.
const START_MAX: u64 = 40;
/// What is asked for more seldom borrows nothing: nearly each lease would end unused.
const SELDOM: Duration = Duration::from_millis(2_500);
/// Below this many tokens per second half of the leases would be given back.
const GIVEN_BACK_MIN: u64 = 4;
/// Below this many tokens per second the next request is so far that calls are left to it: then
/// they serve it too.
const QUICK_MIN: u64 = 20;

#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Asked for since the last main call, by requests that the lease did not pay.
    asked: u64,
    noted_at: Timestamp,
    per_s: u64,
    /// Whether something was asked for that `per_s` may have rounded to nothing.
    is_more: bool,
}

impl Demand {
    /// A request came that the lease does not pay.
    pub(crate) fn ask(&mut self, cost: u64) {
        self.asked = self.asked.saturating_add(cost);
    }

    /// A main call goes out; `spent` tokens of the lease were spent since the last one.
    pub(crate) fn note(&mut self, spent: u64, now: Timestamp) {
        let tokens = std::mem::take(&mut self.asked).saturating_add(spent);
        let since = now.since(self.noted_at);
        let us = since.max(INTERVAL_MIN).as_micros();
        let present = u64::try_from(u128::from(tokens) * 1_000_000 / us).unwrap_or(u64::MAX);
        self.noted_at = now;
        self.is_more = tokens > 0 && since <= SELDOM;
        self.per_s = if present > self.per_s {
            present.min(self.per_s.saturating_mul(4).max(START_MAX))
        } else if since <= HORIZON {
            present.max(self.per_s / 2)
        } else {
            present
        };
    }

    /// What the store is told, in tokens per second; 0 borrows nothing. Where what is left of a
    /// lease ends for free, a part of a token counts as a whole one; where it has to be given back,
    /// a slow key does better without.
    pub(crate) fn lease_demand(&self, ends_for_free: bool) -> u64 {
        if ends_for_free {
            self.per_s + u64::from(self.is_more)
        } else if self.per_s < GIVEN_BACK_MIN {
            0
        } else {
            self.per_s
        }
    }

    /// Whether calls go out before a request needs them.
    pub(crate) fn is_quick(&self) -> bool {
        self.per_s >= QUICK_MIN
    }

    /// A spend that leaves fewer tokens than this asks for more.
    pub(crate) fn prefetch_below(&self, round_trip: Duration) -> u64 {
        if self.is_quick() { self.low_water(round_trip) + 1 } else { 0 }
    }

    /// Tokens that are spent while a call is out.
    pub(crate) fn low_water(&self, round_trip: Duration) -> u64 {
        let ahead = round_trip.saturating_mul(2).saturating_add(Duration::from_millis(1));
        let tokens = u128::from(self.per_s) * ahead.as_micros() / 1_000_000;
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_000_000_000 + ms * 1_000)
    }

    #[test]
    fn a_rise_is_believed_fourfold_at_a_time() {
        let mut demand = Demand::default();
        demand.note(0, at(0));
        for (ms, believed) in [(100, 40), (200, 160), (300, 640), (400, 1_000), (500, 1_000)] {
            demand.note(100, at(ms));
            assert_eq!(demand.lease_demand(false), believed, "after {ms} ms");
        }
    }

    #[test]
    fn a_fall_is_believed_by_half_within_a_horizon_and_wholly_after_it() {
        let mut demand = Demand { per_s: 1_000, noted_at: at(0), ..Demand::default() };
        demand.note(0, at(100));
        assert_eq!(demand.lease_demand(false), 500);
        demand.note(1, at(300));
        assert_eq!(demand.lease_demand(false), 5);
    }

    #[test]
    fn a_key_that_is_seldom_asked_for_borrows_nothing() {
        let mut demand = Demand::default();
        demand.note(0, at(0));
        demand.ask(1);
        demand.note(0, at(1_000));
        assert_eq!(demand.lease_demand(true), 2);
        assert_eq!(demand.lease_demand(false), 0, "it would have to be given back");
        demand.ask(1);
        demand.note(0, at(2_001));
        assert_eq!(demand.lease_demand(false), 0);
        assert_eq!(demand.lease_demand(true), 1, "where tokens are plenty");
        demand.ask(1);
        demand.note(0, at(4_502));
        assert_eq!(demand.lease_demand(true), 0, "too seldom for a lease");
    }

    #[test]
    fn a_slow_key_asks_when_it_needs_tokens_and_a_quick_one_before() {
        let round_trip = Duration::from_millis(2);
        let of = |per_s| Demand { per_s, ..Demand::default() };
        assert_eq!(of(19).prefetch_below(round_trip), 0);
        assert_eq!(of(20).prefetch_below(round_trip), 1);
        assert_eq!(of(1_000).prefetch_below(round_trip), 6);
    }

    #[test]
    fn calls_close_together_do_not_look_like_a_flood() {
        let mut demand = Demand { per_s: 1_000, noted_at: at(0), ..Demand::default() };
        demand.note(2, at(0));
        assert_eq!(demand.lease_demand(false), 1_000);
    }
}
