//! Requests of the past, run through the bucket again: who would have been refused?
//!
//! The arithmetic is [`bucket::apply`], as at the edge, one call for each moment; leases only move
//! where a token is counted, so there are none here. A log with whole seconds, or a tally of whole
//! minutes, does not say when inside of them a request came: [`Bounds`] answers twice, once as if
//! all came evenly spread and once as if all came at one instant, and the truth lies where the
//! caller's traffic lies between the two.

use std::time::Duration;

use crate::bucket::{self, State};
use crate::call::{Found, Levels, PlanNumbers, PlanVersion, Request};
use crate::limit::Limits;
use crate::time::Timestamp;

/// Most moments that one slice of time is spread over; with more requests than this, several
/// share a moment.
pub const STEPS_MAX: u64 = 10_000;

/// The limit that holds a request back: the one that is short for longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeldBack {
    /// What may come at once.
    Burst,
    /// What may come over a long time.
    Sustained,
}

impl HeldBack {
    /// As plans call it.
    pub const fn name(self) -> &'static str {
        match self {
            HeldBack::Burst => "burst",
            HeldBack::Sustained => "sustained",
        }
    }
}

/// What became of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused {
    /// So many were refused …
    pub requests: u64,
    /// … the first of them then …
    pub first: Option<Timestamp>,
    /// … by this limit.
    pub by: Option<HeldBack>,
}

impl Refused {
    fn add(&mut self, other: Refused) {
        self.requests += other.requests;
        self.first = self.first.or(other.first);
        self.by = self.by.or(other.by);
    }
}

/// One bucket pair, full at first.
#[derive(Debug, Clone)]
pub struct Replay {
    plan: PlanNumbers,
    state: Option<State>,
}

impl Replay {
    /// A full pair under these limits.
    pub const fn new(limits: Limits) -> Replay {
        Replay { plan: PlanNumbers { version: PlanVersion(0), limits }, state: None }
    }

    /// Takes `cost` at `at`. A time before the last one counts as the last one.
    pub fn take(&mut self, cost: u64, at: Timestamp) -> Refused {
        let (granted, levels, at) = self.call(&Request::take(self.plan, cost, cost), at);
        if granted == cost {
            return Refused::default();
        }
        Refused { requests: 1, first: Some(at), by: Some(self.short(&levels, cost)) }
    }

    /// Takes `cost` for each of `count` requests that come at the same time.
    pub fn take_many(&mut self, cost: u64, count: u64, at: Timestamp) -> Refused {
        if count == 1 {
            return self.take(cost, at);
        }
        let (_, levels, at) = self.call(&Request::peek(self.plan), at);
        let available = levels.available(&self.plan.limits);
        let passing = available.checked_div(cost).map_or(count, |fit| fit.min(count));
        let need = passing * cost;
        let (_, levels, _) = self.call(&Request::take(self.plan, need, need), at);
        match count - passing {
            0 => Refused::default(),
            requests => Refused { requests, first: Some(at), by: Some(self.short(&levels, cost)) },
        }
    }

    fn call(&mut self, request: &Request, at: Timestamp) -> (u64, Levels, Timestamp) {
        let at = self.state.map_or(at, |state| at.max(state.at));
        let found = if self.state.is_some() { Found::Known } else { Found::Nothing };
        let applied = bucket::apply(self.state, found, request, at);
        self.state = Some(applied.state);
        (applied.reply.granted, applied.reply.levels, at)
    }

    fn short(&self, levels: &Levels, cost: u64) -> HeldBack {
        let limits = &self.plan.limits;
        let burst = levels.burst.time_until(cost, limits.burst).unwrap_or(Duration::MAX);
        let sustained = limits.sustained.map_or(Duration::ZERO, |limit| {
            levels.sustained.time_until(cost, limit).unwrap_or(Duration::MAX)
        });
        if burst < sustained { HeldBack::Sustained } else { HeldBack::Burst }
    }
}

/// Requests of one cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Tokens that each takes.
    pub cost: u64,
    /// How many.
    pub requests: u64,
}

/// Both answers about requests whose moment is not known exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Between {
    /// As if they came evenly spread.
    pub even: Refused,
    /// As if they came at one instant.
    pub peak: Refused,
}

/// The same bucket pair twice: under even demand, and under demand at its peak.
#[derive(Debug, Clone)]
pub struct Bounds {
    even: Replay,
    peak: Replay,
}

impl Bounds {
    /// Full pairs under these limits.
    pub const fn new(limits: Limits) -> Bounds {
        Bounds { even: Replay::new(limits), peak: Replay::new(limits) }
    }

    /// A request whose moment is known.
    pub fn exact(&mut self, cost: u64, at: Timestamp) -> Between {
        Between { even: self.even.take(cost, at), peak: self.peak.take(cost, at) }
    }

    /// Requests of which only the slice of time is known.
    pub fn slice(&mut self, from: Timestamp, length: Duration, demand: &[Demand]) -> Between {
        let mut between = Between::default();
        for part in demand.iter().filter(|part| part.requests > 0) {
            between.peak.add(self.peak.take_many(part.cost, part.requests, from));
        }
        let all = demand.iter().fold(0_u64, |sum, part| sum.saturating_add(part.requests));
        let steps = all.min(STEPS_MAX);
        for step in 0..steps {
            let at = from.after(Duration::from_micros(share(length_us(length), step, steps)));
            for part in demand {
                let until = share(part.requests, step + 1, steps);
                let requests = until - share(part.requests, step, steps);
                if requests > 0 {
                    between.even.add(self.even.take_many(part.cost, requests, at));
                }
            }
        }
        between
    }
}

fn length_us(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

/// `part / of` of `whole`, rounded down.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let share = u128::from(whole) * u128::from(part) / u128::from(of);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use crate::units::Capacity;

    fn limit(capacity: u64, refill: &str) -> Limit {
        Limit::new(Capacity::new(capacity).unwrap(), refill.parse().unwrap()).unwrap()
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_800_000_000_000_000 + ms * 1_000)
    }

    #[test]
    fn a_slice_is_between_evenly_spread_and_all_at_once() {
        let mut bounds = Bounds::new(Limits::burst_only(limit(10, "10/s")));
        let second = Duration::from_secs(1);
        let demand = [Demand { cost: 1, requests: 19 }];
        let first = bounds.slice(at(0), second, &demand);
        assert_eq!((first.even.requests, first.peak.requests), (0, 9), "{first:?}");
        assert_eq!(first.peak.first, Some(at(0)));
        assert_eq!(first.peak.by, Some(HeldBack::Burst));
        let busier = bounds.slice(at(1_000), second, &demand);
        assert!(busier.even.requests > 0 && busier.even.requests <= 9, "{busier:?}");
    }

    #[test]
    fn costs_of_one_slice_are_mixed_and_all_counted() {
        let mut bounds = Bounds::new(Limits::burst_only(limit(100, "1/s")));
        let demand = [Demand { cost: 1, requests: 7 }, Demand { cost: 50, requests: 3 }];
        let between = bounds.slice(at(0), Duration::from_secs(1), &demand);
        // 7 and one of 50 fit in 100; a second one of 50 does not
        assert_eq!((between.even.requests, between.peak.requests), (2, 2), "{between:?}");
        let nothing = bounds.slice(at(0), Duration::from_secs(1), &[]);
        assert_eq!(nothing, Between::default());
    }

    #[test]
    fn more_requests_than_moments_are_all_counted() {
        let mut bounds = Bounds::new(Limits::burst_only(limit(1_000, "1/d")));
        let demand = [Demand { cost: 1, requests: 5 * STEPS_MAX + 3 }];
        let between = bounds.slice(at(0), Duration::from_secs(60), &demand);
        assert_eq!(between.even.requests, 5 * STEPS_MAX + 3 - 1_000);
        assert_eq!(between.peak.requests, 5 * STEPS_MAX + 3 - 1_000);
    }

    #[test]
    fn the_limit_that_is_short_for_longer_is_named() {
        let limits = Limits { burst: limit(10, "10/s"), sustained: Some(limit(15, "1/m")) };
        let mut replay = Replay::new(limits);
        assert_eq!(replay.take_many(1, 12, at(0)).by, Some(HeldBack::Burst));
        let later = replay.take_many(1, 10, at(1_000));
        assert_eq!((later.requests, later.by), (5, Some(HeldBack::Sustained)));
    }

    #[test]
    fn free_requests_pass_and_time_never_runs_back() {
        let mut replay = Replay::new(Limits::burst_only(limit(1, "1/s")));
        assert_eq!(replay.take_many(0, 1_000_000, at(0)).requests, 0);
        assert_eq!(replay.take(1, at(5_000)).requests, 0);
        let back = replay.take(1, at(0));
        assert_eq!((back.requests, back.first), (1, Some(at(5_000))));
    }
}
