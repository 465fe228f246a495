//! A region's part of every plan, where each region has a store of its own.

use limiter_core::{Capacity, Limit, LimitError, Limits, RefillRate};
use wire::plan::PlanLimits;

const WHOLE: u64 = 10_000;

/// The part of each plan that this region's gateways may admit together, in ten-thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionShare(u64);

impl Default for RegionShare {
    fn default() -> RegionShare {
        RegionShare(WHOLE)
    }
}

impl RegionShare {
    /// From ten-thousandths, 1 to 10,000; `None` for anything else.
    pub fn of_ten_thousand(parts: u64) -> Option<RegionShare> {
        (1..=WHOLE).contains(&parts).then_some(RegionShare(parts))
    }

    /// Both buckets of a plan at this share: capacity and rate alike, so that the time from empty
    /// to full stays. Shares that sum up to one admit no more than the plan, but that no capacity
    /// is below one token.
    pub(crate) fn part_of(self, limits: PlanLimits) -> PlanLimits {
        match limits {
            PlanLimits::Unlimited => PlanLimits::Unlimited,
            PlanLimits::Limited(limits) if self.0 == WHOLE => PlanLimits::Limited(limits),
            PlanLimits::Limited(limits) => PlanLimits::Limited(Limits {
                burst: self.part_of_limit(limits.burst),
                sustained: limits.sustained.map(|limit| self.part_of_limit(limit)),
            }),
        }
    }

    fn part_of_limit(self, limit: Limit) -> Limit {
        // A longer period for the same tokens always fits; it is only rounded to a microsecond.
        let exact = self
            .limit(limit, |rate| RefillRate::new(rate.tokens() * self.0, rate.per_us() * WHOLE));
        let rounded = |_too_long| {
            self.limit(limit, |rate| {
                RefillRate::new(rate.tokens(), (rate.per_us() * WHOLE).div_ceil(self.0))
            })
        };
        // Left over: rates that no plan could have, below one token in a month.
        // A rate too slow to be divided stays whole: less than a token in a month.
        let slow = |_error| self.limit(limit, Ok);
        exact.or_else(rounded).or_else(slow).unwrap_or(limit)
    }

    fn limit(
        self,
        limit: Limit,
        refill: impl Fn(RefillRate) -> Result<RefillRate, LimitError>,
    ) -> Result<Limit, LimitError> {
        let capacity = Capacity::new((limit.capacity().get() * self.0 / WHOLE).max(1))?;
        let rate = limit.refill();
        Limit::new(capacity, if rate.is_fixed_allowance() { rate } else { refill(rate)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(capacity: u64, refill: &str, share: u64) -> (u64, f64) {
        let limit = Limit::new(Capacity::new(capacity).unwrap(), refill.parse().unwrap()).unwrap();
        let share = RegionShare::of_ten_thousand(share).unwrap();
        let part = share.part_of(PlanLimits::Limited(Limits::burst_only(limit)));
        let PlanLimits::Limited(part) = part else { panic!("it stays limited") };
        #[expect(clippy::cast_precision_loss, reason = "compared within a millionth")]
        let per_second =
            part.burst.refill().tokens() as f64 * 1e6 / part.burst.refill().per_us() as f64;
        (part.burst.capacity().get(), per_second)
    }

    #[test]
    fn capacity_and_rate_shrink_alike() {
        for (capacity, refill, share, expected) in [
            (100, "50/s", 5_000, (50, 25.0)),
            (100, "50/s", 10_000, (100, 50.0)),
            (100, "50/s", 3_333, (33, 16.665)),
            (1_000_000, "1000000000/s", 2_500, (250_000, 250_000_000.0)),
            (100_000, "1/d", 7_777, (77_770, 0.777_7 / 86_400.0)),
            (1, "1/d", 1, (1, 0.000_1 / 86_400.0)),
            (7, "0", 5_000, (3, 0.0)),
        ] {
            let (tokens, per_second) = part(capacity, refill, share);
            assert_eq!(tokens, expected.0, "{capacity}@{refill} at {share}");
            let off = (per_second - expected.1).abs();
            let months = expected.1 > 0.0 && 1.0 / expected.1 > 31.0 * 86_400.0;
            assert!(months || off <= expected.1 * 1e-6, "{capacity}@{refill}: {per_second}");
        }
    }

    #[test]
    fn a_share_is_more_than_nothing_and_not_more_than_all() {
        for wrong in [0, 10_001] {
            assert_eq!(RegionShare::of_ten_thousand(wrong), None);
        }
        assert_eq!(RegionShare::of_ten_thousand(10_000), Some(RegionShare::default()));
        assert_eq!(RegionShare(1).part_of(PlanLimits::Unlimited), PlanLimits::Unlimited);
    }
}
