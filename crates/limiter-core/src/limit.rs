//! What a plan promises: one or two limits, checked once, by one function, at every door.
//!
//! The burst limit says what may come at once, the sustained limit what may come over a long
//! time; a request must find its cost in both. What passed [`Limit::new`] is exact in a double,
//! so the Redis script and this crate compute the same integers.

use crate::units::{Capacity, Cost, EXACT_BOUND, RefillRate};

/// A number of a plan that cannot be accepted. `code` is stable; the text names the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Not an integer of 1 … 10¹².
    #[error("capacity must be a whole number from 1 to 1000000000000, not `{value}`")]
    CapacityOutOfRange {
        /// What was given.
        value: String,
    },
    /// Readable, but beyond what is allowed.
    #[error(
        "refill must be 1 to 1000000000 tokens in 1 µs to 31 d and at most 1000000000 per second, \
         or `0` for a fixed allowance, not `{value}`"
    )]
    RefillOutOfRange {
        /// What was given.
        value: String,
    },
    /// Not of the form `50/s`.
    #[error("refill must read like `50/s`, `30/10s`, `6/m`, `2000000/d` or `0`, not `{value}`")]
    RefillUnreadable {
        /// What was given.
        value: String,
    },
    /// Capacity and rate together need more than 53 bits, and no close fraction needs less.
    #[error(
        "capacity {capacity} with refill {refill} cannot be counted exactly; lower the capacity \
         or choose a shorter period"
    )]
    Resolution {
        /// The capacity given.
        capacity: u64,
        /// The rate given.
        refill: RefillRate,
    },
    /// Not an integer of 0 … the smallest capacity of the plan.
    #[error(
        "cost must be a whole number from 0 to the smallest capacity of the plan, not `{value}`"
    )]
    CostOutOfRange {
        /// What was given.
        value: String,
    },
    /// Neither a word nor a share of 0.01 … 100.
    #[error(
        "failure must be closed, local, coarse, open or a share from 0.01 to 100 with at most 4 \
         decimals, not `{value}`"
    )]
    FailureOutOfRange {
        /// What was given.
        value: String,
    },
}

impl LimitError {
    /// The stable problem code that clients of the API may match on.
    pub const fn code(&self) -> &'static str {
        match self {
            LimitError::CapacityOutOfRange { .. } => "capacity_out_of_range",
            LimitError::RefillOutOfRange { .. } | LimitError::RefillUnreadable { .. } => {
                "refill_out_of_range"
            }
            LimitError::Resolution { .. } => "resolution",
            LimitError::CostOutOfRange { .. } => "cost_out_of_range",
            LimitError::FailureOutOfRange { .. } => "failure_out_of_range",
        }
    }
}

/// Capacity and refill rate of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    capacity: Capacity,
    refill: RefillRate,
}

impl Limit {
    /// Checks both together: `(capacity + one second of refill, at most the capacity) · period`
    /// stays below 2⁵³; otherwise the rate is replaced by the nearest fraction within 10⁻⁹.
    pub fn new(capacity: Capacity, refill: RefillRate) -> Result<Limit, LimitError> {
        let limit = Limit { capacity, refill };
        let tokens = capacity.get() + limit.debt_floor();
        let per_us_max = (EXACT_BOUND - 1) / tokens;
        match refill.approximated(per_us_max) {
            Some(refill) => Ok(Limit { capacity, refill }),
            None => Err(LimitError::Resolution { capacity: capacity.get(), refill }),
        }
    }

    /// Most tokens the bucket holds.
    pub const fn capacity(self) -> Capacity {
        self.capacity
    }

    /// What it earns.
    pub const fn refill(self) -> RefillRate {
        self.refill
    }

    /// How far below zero the level may fall when an outage is charged: one second of refill,
    /// at most the capacity, in tokens.
    pub fn debt_floor(self) -> u64 {
        self.refill.per_second_ceil().min(self.capacity.get())
    }

    /// Time from empty to full, as `RateLimit-Policy` tells it; `None` for a fixed allowance.
    pub fn window(self) -> Option<std::time::Duration> {
        self.refill.time_for(self.capacity.get())
    }
}

/// The one or two limits of a plan. Both must have the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// What may come at once.
    pub burst: Limit,
    /// What may come over a long time, if that is limited too.
    pub sustained: Option<Limit>,
}

impl Limits {
    /// A plan with one bucket.
    pub const fn burst_only(burst: Limit) -> Limits {
        Limits { burst, sustained: None }
    }

    /// The smaller capacity: no request can ever cost more.
    pub fn smallest_capacity(&self) -> u64 {
        let burst = self.burst.capacity.get();
        self.sustained.map_or(burst, |sustained| burst.min(sustained.capacity.get()))
    }

    /// Checks that a route's or rule's cost can ever fit.
    pub fn check_cost(&self, cost: Cost) -> Result<Cost, LimitError> {
        if cost.get() <= self.smallest_capacity() {
            Ok(cost)
        } else {
            Err(LimitError::CostOutOfRange { value: cost.get().to_string() })
        }
    }

    /// Both limits, burst first.
    pub fn iter(&self) -> impl Iterator<Item = Limit> {
        std::iter::once(self.burst).chain(self.sustained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(capacity: u64, refill: &str) -> Result<Limit, LimitError> {
        Limit::new(Capacity::new(capacity)?, refill.parse()?)
    }

    #[test]
    fn what_cannot_be_counted_in_53_bits_is_approximated_within_a_billionth_or_refused() {
        // One a day for a large capacity does not fit, and no close fraction has a short period.
        assert!(matches!(limit(200_000, "1/d"), Err(LimitError::Resolution { .. })));
        assert_eq!(limit(100_000, "1/d").unwrap().refill(), "1/d".parse().unwrap());
        // 999983 an hour: a reduced period of an hour, too long for this capacity.
        let limit = limit(10_000_000, "999983/h").unwrap();
        let (tokens, per_us) = (limit.refill().tokens(), limit.refill().per_us());
        assert!((10_000_000 + limit.debt_floor()) * per_us < EXACT_BOUND);
        let exact = 999_983 * u128::from(per_us);
        let error = exact.abs_diff(u128::from(tokens) * 3_600_000_000);
        assert!(error * 1_000_000_000 <= exact);
    }

    #[test]
    fn a_cost_must_fit_the_smaller_bucket() {
        let limits = Limits {
            burst: limit(100, "50/s").unwrap(),
            sustained: Some(limit(40, "1/s").unwrap()),
        };
        assert!(limits.check_cost(Cost::new(40).unwrap()).is_ok());
        assert!(limits.check_cost(Cost::new(41).unwrap()).is_err());
    }
}
