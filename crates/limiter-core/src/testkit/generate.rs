//! Random plans, states and requests, shaped so that every branch of the arithmetic is met often.
//!
//! Plain uniform numbers would hardly ever empty a bucket, hit a border to the microsecond or meet
//! a lease of the generation before; here each field first chooses a *kind* of value. All of it
//! comes from one seed.

use crate::bucket::State;
use crate::call::{GENERATION_US, LeaseReport, Owed, PlanNumbers, PlanVersion, Request, Witness};
use crate::limit::{Limit, Limits};
use crate::time::Timestamp;
use crate::units::{CAPACITY_MAX, Capacity, RefillRate};

const DAY_US: u64 = 86_400_000_000;

/// Draws from one seed.
#[derive(Debug)]
pub(super) struct Generator {
    random: fastrand::Rng,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Generator {
        Generator { random: fastrand::Rng::with_seed(seed) }
    }

    /// 0 ..= `most`.
    pub(super) fn up_to(&mut self, most: u64) -> u64 {
        self.random.u64(0..=most)
    }

    /// 0 .. `bound`, or 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.up_to(bound.saturating_sub(1))
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// About as likely small as large, up to 2^`bits`.
    pub(super) fn any_size(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits);
        self.up_to(1 << bits)
    }

    pub(super) fn signed(&mut self, least: i64, most: i64) -> i64 {
        self.random.i64(least..=most.max(least))
    }

    pub(super) fn limit(&mut self) -> Limit {
        loop {
            let capacity = match self.below(8) {
                0 => 1,
                1 | 2 => 1 + self.below(20),
                3 | 4 => 1 + self.below(1_000),
                5 => 1 + self.below(1_000_000),
                6 => CAPACITY_MAX,
                _ => 1 + self.any_size(39),
            };
            let refill = match self.below(10) {
                0 => Ok(RefillRate::FIXED_ALLOWANCE),
                1 | 2 => RefillRate::per_second(1 + self.below(50)),
                3 | 4 => RefillRate::per_second(1 + self.below(1_000_000)),
                5 => RefillRate::new(1 + self.below(100), 3_600_000_000),
                6 => RefillRate::new(1 + self.below(3), DAY_US),
                7 => RefillRate::new(1, 1 + self.below(50)),
                _ => RefillRate::new(1 + self.any_size(29), 1 + self.any_size(24)),
            };
            let limit = Capacity::new(capacity).and_then(|c| Limit::new(c, refill?));
            if let Ok(limit) = limit {
                return limit;
            }
        }
    }

    pub(super) fn limits(&mut self) -> Limits {
        let burst = self.limit();
        let sustained = self.percent(50).then(|| self.limit());
        Limits { burst, sustained }
    }

    fn near(&mut self, limit: Limit) -> Limit {
        let capacity = limit.capacity().get();
        let capacity = match self.below(3) {
            0 => capacity,
            1 => 1 + self.below(capacity),
            _ => (capacity + 1 + self.any_size(38)).min(CAPACITY_MAX),
        };
        let refill = if self.percent(50) { limit.refill() } else { self.limit().refill() };
        let near = Capacity::new(capacity).and_then(|capacity| Limit::new(capacity, refill));
        near.unwrap_or_else(|_| self.limit())
    }

    pub(super) fn plan(&mut self) -> PlanNumbers {
        PlanNumbers { version: PlanVersion(2 + self.below(1_000)), limits: self.limits() }
    }

    fn plan_after(&mut self, state: &State) -> PlanNumbers {
        let held = state.plan;
        let version = held.version.0;
        match self.below(20) {
            0 | 1 => {
                let burst = self.near(held.limits.burst);
                let sustained = held.limits.sustained.map(|limit| self.near(limit));
                let limits = Limits { burst, sustained };
                PlanNumbers { version: PlanVersion(version + 1 + self.below(3)), limits }
            }
            2 => PlanNumbers { version: PlanVersion(version + 1), limits: self.limits() },
            3 => {
                let sustained = match held.limits.sustained {
                    Some(_) => None,
                    None => Some(self.limit()),
                };
                let limits = Limits { sustained, ..held.limits };
                PlanNumbers { version: PlanVersion(version + 2), limits }
            }
            4 => PlanNumbers { version: PlanVersion(version + 2), ..held },
            5 => PlanNumbers { version: PlanVersion(version - 1), limits: self.limits() },
            6 => PlanNumbers { limits: self.limits(), ..held },
            _ => held,
        }
    }

    /// A request by somebody who may know `state` and believes that it is about `now`.
    pub(super) fn request_after(&mut self, state: Option<&State>, now: Timestamp) -> Request {
        let plan = match state {
            Some(state) => self.plan_after(state),
            None => self.plan(),
        };
        let held = state.map_or(plan, |state| state.plan);
        let available = state.map_or(0, |state| state.levels.available(&held.limits));
        let reset = match self.below(10) {
            0 => plan.version,
            1 => held.version,
            2 => PlanVersion(held.version.0 + self.below(4)),
            _ => PlanVersion(0),
        };
        let need = match self.below(8) {
            0 => 0,
            1..=3 => 1 + self.below(3),
            4 => available,
            5 => available + 1,
            6 => self.up_to(2 * plan.limits.smallest_capacity()),
            _ => 1 + self.any_size(20),
        };
        let smallest_need = match self.below(4) {
            0 => 1.min(need),
            1 => self.up_to(need),
            _ => need,
        };
        let demand_per_s = if self.percent(50) { self.any_size(31) } else { 0 };
        let scarce_poll_us = if self.percent(70) { 10_000 } else { self.any_size(21) };
        let owed = if self.percent(15) {
            Owed { burst: self.any_size(40), sustained: self.any_size(40) }
        } else {
            Owed::default()
        };
        Request {
            plan,
            reset,
            need,
            smallest_need,
            demand_per_s,
            low_water: self.up_to(demand_per_s / 50),
            scarce_poll_us,
            lease: self.lease(state, now),
            unused_need: if self.percent(15) { self.any_size(30) } else { 0 },
            owed,
            witness: self.witness(state, plan, now),
            peek: self.percent(8),
        }
    }

    fn lease(&mut self, state: Option<&State>, now: Timestamp) -> Option<LeaseReport> {
        if self.percent(50) {
            return None;
        }
        let present = now.us() / GENERATION_US;
        let generation = match self.below(8) {
            0..=2 => present,
            3..=5 => present.saturating_sub(1),
            6 => present.saturating_sub(2 + self.below(10)),
            _ => present + 1,
        };
        let lent = state.map_or(0, |state| state.lent_now.max(state.lent_before));
        let counted = match self.below(5) {
            0 => 0,
            1 => lent,
            2 => lent + 1 + self.any_size(20),
            _ => self.up_to(lent),
        };
        let held = match self.below(5) {
            0 => 0,
            1 => counted,
            2 => counted + self.any_size(20),
            _ => self.up_to(counted),
        };
        let returned = self.up_to(counted.saturating_sub(held));
        Some(LeaseReport { generation, counted, held, returned })
    }

    fn witness(
        &mut self,
        state: Option<&State>,
        plan: PlanNumbers,
        now: Timestamp,
    ) -> Option<Witness> {
        if self.percent(50) {
            return None;
        }
        let held = state.map_or(plan, |state| state.plan);
        let (total, incarnation) =
            state.map_or((1_000, now.us()), |state| (state.granted_total, state.incarnation));
        let version = if self.percent(80) { plan.version.max(held.version) } else { held.version };
        let mut level = |limit: Option<Limit>| {
            let Some(limit) = limit else { return 0 };
            let capacity = limit.capacity().get().cast_signed();
            match self.below(3) {
                0 => 0,
                1 => self.signed(-limit.debt_floor().cast_signed(), capacity),
                _ => self.signed(0, capacity / 8),
            }
        };
        let (burst, sustained) = (level(Some(held.limits.burst)), level(held.limits.sustained));
        let at = match self.below(6) {
            0 => now.us() + self.any_size(20),
            1 => now.us(),
            2 => now.us().saturating_sub(self.any_size(48)),
            _ => now.us().saturating_sub(self.any_size(22)),
        };
        let around = |generator: &mut Generator, value: u64| match generator.below(3) {
            0 => value,
            1 => value + 1 + generator.any_size(20),
            _ => value.saturating_sub(1 + generator.any_size(20)),
        };
        Some(Witness {
            at: Timestamp::from_us(at),
            burst,
            sustained,
            granted_total: around(self, total),
            incarnation: around(self, incarnation),
            version,
            force: self.percent(10),
        })
    }
}
