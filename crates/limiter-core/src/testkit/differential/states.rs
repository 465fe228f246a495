//! Random stored states, and times at which to call on them.

use crate::bucket::{CLOCK_FREEZE_US, State};
use crate::call::{GENERATION_US, Level, Levels};
use crate::limit::Limit;
use crate::testkit::generate::Generator;
use crate::time::Timestamp;
use crate::units::EXACT_BOUND;

const EPOCH_US: u64 = 1_700_000_000_000_000;

impl Generator {
    fn level(&mut self, limit: Limit, outstanding: u64) -> Level {
        let capacity = limit.capacity().get().cast_signed();
        let debt = limit.debt_floor().cast_signed();
        let room = capacity - outstanding.cast_signed();
        let tokens = match self.below(10) {
            0 => room,
            1 | 2 => 0,
            3 => 1 + self.below(3).cast_signed(),
            4 => self.signed(-debt, 0),
            5 => -debt,
            6 => capacity,
            7 | 8 => self.signed(0, room.max(0) / 4),
            _ => self.signed(0, room.max(0)),
        };
        let per_us = limit.refill().per_us();
        let remainder = match self.below(3) {
            0 => 0,
            1 => per_us - 1,
            _ => self.below(per_us),
        };
        Level { tokens: tokens.clamp(-debt, capacity), remainder }
    }

    /// A state that some history could have left, or nearly.
    pub(super) fn state(&mut self) -> State {
        let plan = self.plan();
        let smallest = plan.limits.smallest_capacity();
        let outstanding = match self.below(10) {
            0..=3 => 0,
            4..=7 => self.up_to(smallest / 10),
            8 => self.up_to(smallest),
            _ => self.up_to(2 * smallest),
        };
        let lent_now = self.up_to(outstanding);
        let mut at = EPOCH_US + self.below(1 << 50);
        if self.percent(10) {
            at -= at % GENERATION_US;
        }
        State {
            at: Timestamp::from_us(at),
            levels: Levels {
                burst: self.level(plan.limits.burst, outstanding),
                sustained: plan
                    .limits
                    .sustained
                    .map_or_else(Level::default, |limit| self.level(limit, outstanding)),
            },
            generation: at / GENERATION_US,
            lent_now,
            lent_before: outstanding - lent_now,
            granted_total: if self.percent(5) {
                EXACT_BOUND - 1 - self.any_size(10)
            } else {
                self.any_size(50)
            },
            incarnation: at - self.any_size(40),
            plan,
        }
    }

    /// A store time for a call on `state`.
    pub(super) fn now_after(&mut self, state: &State) -> Timestamp {
        let at = state.at.us();
        let in_generation = GENERATION_US - at % GENERATION_US;
        let now = match self.below(16) {
            0 => at,
            1..=3 => at + self.below(2_000),
            4 | 5 => at + self.below(in_generation),
            6 => at + in_generation,
            7 => at + in_generation + self.below(GENERATION_US),
            8 => at + in_generation + GENERATION_US * (1 + self.below(3)),
            9 => at + self.any_size(45),
            10 | 11 => at + (self.time_to_room(state) + self.below(3)).saturating_sub(1),
            12 => at - self.up_to(CLOCK_FREEZE_US),
            13 => at - CLOCK_FREEZE_US,
            14 => at - CLOCK_FREEZE_US - 1 - self.any_size(40),
            _ => at + self.below(60_000_000),
        };
        Timestamp::from_us(now)
    }

    /// A lifetime that ends about when the buckets of this state are full, or nowhere near.
    pub(super) fn expires_near(&mut self, state: &State) -> u64 {
        let at = state.at.us();
        let limits = state.plan.limits;
        let full_in = |(level, limit): (Level, Limit)| {
            let whole = Level { remainder: 0, ..level };
            whole.time_until(limit.capacity().get(), limit).map_or(0, |wait| wait.as_micros())
        };
        let full_in = state.levels.with(&limits).map(full_in).max().unwrap_or(0);
        let full_at = at + u64::try_from(full_in).unwrap_or(0).min(EXACT_BOUND - at);
        let dead_at = full_at + 2 * GENERATION_US;
        match self.below(8) {
            0 => full_at,
            1 => full_at - 1,
            2 => full_at + 1,
            3 => dead_at,
            4 => dead_at - 1,
            5 => at.saturating_sub(self.any_size(40)),
            _ => at + self.any_size(45),
        }
    }

    /// Until one of the levels has no room left.
    fn time_to_room(&mut self, state: &State) -> u64 {
        let limits = state.plan.limits;
        let choice = usize::from(self.percent(50));
        let (level, limit) =
            state.levels.with(&limits).nth(choice).unwrap_or((state.levels.burst, limits.burst));
        let room = limit.capacity().get().saturating_sub(state.lent_now + state.lent_before);
        let wait = level.time_until(room, limit).map_or(0, |wait| wait.as_micros());
        u64::try_from(wait).unwrap_or(0).min(1 << 50)
    }
}
