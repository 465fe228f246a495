//! The coarse limit of one instance out of n: max(plan, multiple × plan ÷ n), as exact integers.
//!
//! Pure: the time is an argument. Unlike the gateway's bucket a scaled one may earn very slowly or
//! hold very much, so its arithmetic is in 128 bits.

use limiter_core::{Limit, Limits, Timestamp};

/// More instances than this are counted as this many: no instance keeps less than the plan anyway.
const INSTANCES_MAX: u32 = 100_000;
/// Larger multiples are counted as this one.
const MULTIPLE_MAX: u32 = 100_000;

/// What one instance admits of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoarseLimit {
    limits: Limits,
    /// The plan is scaled by `times ÷ parts`.
    times: u32,
    parts: u32,
}

impl CoarseLimit {
    /// The part of `limits` that one of `instances` keeps. One time the plan in one instance is
    /// the plan itself.
    pub fn new(limits: Limits, multiple: u32, instances: u32) -> CoarseLimit {
        let parts = instances.clamp(1, INSTANCES_MAX);
        CoarseLimit { limits, times: multiple.clamp(1, MULTIPLE_MAX).max(parts), parts }
    }

    /// Most tokens that this instance admits at once.
    pub fn capacity(&self) -> u64 {
        let least = self.limits.iter().map(|limit| self.scaled(limit).capacity).min();
        u64::try_from(least.unwrap_or(0)).unwrap_or(u64::MAX)
    }

    fn scaled(&self, limit: Limit) -> Scaled {
        let (times, parts) = (i128::from(self.times), i128::from(self.parts));
        Scaled {
            capacity: i128::from(limit.capacity().get()) * times / parts,
            tokens: i128::from(limit.refill().tokens()) * times,
            per_us: i128::from(limit.refill().per_us()) * parts,
        }
    }
}

/// A limit times the share of this instance: `tokens` every `per_us` microseconds.
#[derive(Clone, Copy)]
struct Scaled {
    capacity: i128,
    tokens: i128,
    per_us: i128,
}

impl Scaled {
    const fn refill(self, level: Level, elapsed_us: i128) -> Level {
        let earned = elapsed_us * self.tokens + level.remainder;
        let tokens = level.tokens + earned / self.per_us;
        if tokens >= self.capacity {
            return Level { tokens: self.capacity, remainder: 0 };
        }
        Level { tokens, remainder: earned % self.per_us }
    }

    /// Microseconds until there is a token.
    const fn wait_us(self, level: Level) -> Option<i128> {
        if self.tokens == 0 {
            return None;
        }
        let missing = (1 - level.tokens) * self.per_us - level.remainder;
        Some((missing + self.tokens - 1) / self.tokens)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    tokens: i128,
    /// Earned towards the next token, times the period.
    remainder: i128,
}

/// One client's bucket at this instance.
#[derive(Debug, Clone, Copy)]
pub struct CoarseBucket {
    at: Timestamp,
    /// Burst and sustained.
    levels: [Level; 2],
    /// The limit it was started under.
    limit: CoarseLimit,
}

/// What the coarse limit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoarseAnswer {
    /// The request may pass.
    Admitted {
        /// Whole tokens left.
        remaining: u64,
    },
    /// It is beyond even the coarse limit.
    Refused {
        /// Seconds until it would pass, rounded up and at least 1; nothing if waiting is no use.
        retry_after_s: Option<u64>,
    },
}

impl CoarseBucket {
    /// A full bucket.
    pub fn full(limit: CoarseLimit, now: Timestamp) -> CoarseBucket {
        let mut levels = [Level::default(); 2];
        for (level, numbers) in levels.iter_mut().zip(limit.limits.iter()) {
            level.tokens = limit.scaled(numbers).capacity;
        }
        CoarseBucket { at: now, levels, limit }
    }

    /// Takes one token. Under other limits than before the bucket starts anew: at most one coarse
    /// capacity more for each change of a plan.
    pub fn take(&mut self, limit: CoarseLimit, now: Timestamp) -> CoarseAnswer {
        if limit != self.limit {
            *self = CoarseBucket::full(limit, now);
        }
        let elapsed = i128::try_from(now.since(self.at).as_micros()).unwrap_or(i128::MAX);
        self.at = self.at.max(now);
        let mut wait = Some(0);
        let mut left = i128::MAX;
        for (level, numbers) in self.levels.iter_mut().zip(limit.limits.iter()) {
            let scaled = limit.scaled(numbers);
            *level = scaled.refill(*level, elapsed);
            if level.tokens < 1 {
                wait = wait.zip(scaled.wait_us(*level)).map(|(a, b)| a.max(b));
            }
            left = left.min(level.tokens - 1);
        }
        if left < 0 {
            let seconds = |us: i128| u64::try_from((us + 999_999) / 1_000_000).unwrap_or(u64::MAX);
            return CoarseAnswer::Refused { retry_after_s: wait.map(|us| seconds(us).max(1)) };
        }
        for (level, _) in self.levels.iter_mut().zip(limit.limits.iter()) {
            level.tokens -= 1;
        }
        CoarseAnswer::Admitted { remaining: u64::try_from(left).unwrap_or(u64::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limiter_core::{Capacity, RefillRate};
    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp::from_us(1_700_000_000_000_000);

    fn plan(capacity: u64, refill: &str) -> Limits {
        let limit = Limit::new(Capacity::new(capacity).unwrap(), refill.parse().unwrap());
        Limits::burst_only(limit.unwrap())
    }

    fn admitted_at_once(limit: CoarseLimit, offered: u64) -> u64 {
        let mut bucket = CoarseBucket::full(limit, START);
        let admitted = (0..offered)
            .filter(|_| matches!(bucket.take(limit, START), CoarseAnswer::Admitted { .. }));
        u64::try_from(admitted.count()).unwrap()
    }

    #[test]
    fn an_instance_keeps_its_part_of_the_multiple_but_never_less_than_the_plan() {
        let plan = plan(12, "6/s");
        for (instances, kept) in [(1, 120), (3, 40), (9, 13), (10, 12), (11, 12), (1_000, 12)] {
            let limit = CoarseLimit::new(plan, 10, instances);
            assert_eq!(limit.capacity(), kept, "{instances} instances");
            assert_eq!(admitted_at_once(limit, 500), kept, "{instances} instances");
        }
    }

    #[test]
    fn the_refill_is_scaled_like_the_capacity() {
        let limit = CoarseLimit::new(plan(9, "9/s"), 10, 9); // 10 tokens, 10 a second
        let mut bucket = CoarseBucket::full(limit, START);
        let mut admitted = 0;
        for millisecond in 0..10_000 {
            let now = START.after(Duration::from_millis(millisecond));
            admitted += u64::from(matches!(bucket.take(limit, now), CoarseAnswer::Admitted { .. }));
        }
        assert_eq!(admitted, 10 + 99);
    }

    #[test]
    fn both_limits_of_a_plan_must_agree_and_a_refusal_takes_from_neither() {
        let burst = plan(2, "2/s").burst;
        let sustained = Some(plan(5, "1/h").burst);
        let limit = CoarseLimit::new(Limits { burst, sustained }, 10, 10);
        let mut bucket = CoarseBucket::full(limit, START);
        let mut admitted = 0;
        for second in 0..5 {
            for _ in 0..10 {
                let now = START.after(Duration::from_secs(second));
                admitted +=
                    u64::from(matches!(bucket.take(limit, now), CoarseAnswer::Admitted { .. }));
            }
        }
        assert_eq!(admitted, 5);
    }

    #[test]
    fn a_clock_that_steps_back_earns_nothing_twice() {
        let limit = CoarseLimit::new(plan(10, "10/s"), 1, 1);
        let mut bucket = CoarseBucket::full(limit, START);
        let mut admitted = 0;
        for _ in 0..100 {
            for ms in [1_000, 0] {
                let now = START.after(Duration::from_millis(ms));
                admitted +=
                    u64::from(matches!(bucket.take(limit, now), CoarseAnswer::Admitted { .. }));
            }
        }
        assert_eq!(admitted, 10);
    }

    #[test]
    fn a_refusal_tells_whole_seconds_and_a_used_up_allowance_tells_none() {
        let limit = CoarseLimit::new(plan(1, "1/m"), 10, 10);
        let mut bucket = CoarseBucket::full(limit, START);
        assert_eq!(bucket.take(limit, START), CoarseAnswer::Admitted { remaining: 0 });
        let refused = |seconds| CoarseAnswer::Refused { retry_after_s: seconds };
        assert_eq!(bucket.take(limit, START), refused(Some(60)));
        let almost = START.after(Duration::from_millis(59_999));
        assert_eq!(bucket.take(limit, almost), refused(Some(1)));
        let then = START.after(Duration::from_secs(60));
        assert_eq!(bucket.take(limit, then), CoarseAnswer::Admitted { remaining: 0 });

        let allowance = CoarseLimit::new(plan(1, "0"), 10, 10);
        let mut bucket = CoarseBucket::full(allowance, START);
        bucket.take(allowance, START);
        assert_eq!(bucket.take(allowance, START), refused(None));
    }

    #[test]
    fn another_plan_starts_another_bucket() {
        let (small, large) = (plan(1, "0"), plan(5, "0"));
        let (small, large) = (CoarseLimit::new(small, 10, 10), CoarseLimit::new(large, 10, 10));
        let mut bucket = CoarseBucket::full(small, START);
        bucket.take(small, START);
        assert_eq!(bucket.take(large, START), CoarseAnswer::Admitted { remaining: 4 });
        assert_eq!(bucket.take(small, START), CoarseAnswer::Admitted { remaining: 0 });
    }

    proptest! {
        /// n instances together stay at max(multiple, n) plans, whatever the arrival times.
        #[test]
        fn the_fleet_stays_at_the_multiple(
            capacity in 1_u64..5_000,
            tokens in 1_u64..2_000,
            per_us in 1_000_u64..10_000_000,
            instances in 1_u32..30,
            steps in prop::collection::vec((0_u64..400_000, 1_u64..200), 1..40),
        ) {
            let refill = RefillRate::new(tokens, per_us).unwrap();
            let limit = Limit::new(Capacity::new(capacity).unwrap(), refill).unwrap();
            let limit = CoarseLimit::new(Limits::burst_only(limit), 10, instances);
            let mut bucket = CoarseBucket::full(limit, START);
            let (mut now, mut admitted) = (START, 0_u128);
            for (pause, requests) in steps {
                now = now.after(Duration::from_micros(pause));
                for _ in 0..requests {
                    let answer = bucket.take(limit, now);
                    admitted += u128::from(matches!(answer, CoarseAnswer::Admitted { .. }));
                }
                let factor = u128::from(instances.max(10));
                let elapsed = u128::from(now.us() - START.us());
                let earned = elapsed * u128::from(refill.tokens()) * factor;
                let capacity = (u128::from(capacity) * factor / u128::from(instances)).max(1);
                let bound = capacity + earned / (u128::from(refill.per_us()) * u128::from(instances));
                prop_assert!(admitted <= bound, "{admitted} of {bound}");
            }
        }
    }
}
