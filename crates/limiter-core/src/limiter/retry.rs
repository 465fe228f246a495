//! Whose turn comes when: refused callers of one key at one gateway are told different times, so
//! that they do not all come back for the same token.

use std::time::Duration;

use crate::degraded::PlanPart;
use crate::limit::Limit;
use crate::time::Timestamp;

/// No turn is later than this after the time at which the tokens can exist.
const LATER_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    last_turn: Timestamp,
}

impl RetryQueue {
    /// The turn of a caller whose tokens of `limit` can exist after `base`: that, or `cost` tokens' time
    /// after the turn promised last. A caller who is alone always has `base`.
    pub(crate) fn promise(
        &mut self,
        base: Duration,
        cost: u64,
        limit: Limit,
        part: PlanPart,
        now: Timestamp,
    ) -> Duration {
        let mut turn = now.after(base);
        if self.last_turn > now
            && let Some(step) = time_for(cost, limit, part)
        {
            turn = turn.max(self.last_turn.after(step).min(now.after(base + LATER_MAX)));
        }
        self.last_turn = turn;
        turn.since(now)
    }
}

/// How long this gateway's part of the refill takes for `cost` tokens.
fn time_for(cost: u64, limit: Limit, part: PlanPart) -> Option<Duration> {
    let (parts, whole) = part.fraction();
    let refill = limit.refill();
    if refill.is_fixed_allowance() {
        return None;
    }
    let us = u128::from(cost) * u128::from(refill.per_us()) * u128::from(whole)
        / (u128::from(refill.tokens()) * u128::from(parts.max(1)));
    Some(Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Capacity;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_000_000_000 + ms * 1_000)
    }

    fn plan(refill: &str) -> Limit {
        Limit::new(Capacity::new(10).unwrap(), refill.parse().unwrap()).unwrap()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_caller_who_is_alone_has_the_time_of_its_tokens() {
        let mut queue = RetryQueue::default();
        for n in 0..20 {
            let turn = queue.promise(ms(100), 1, plan("10/s"), PlanPart::of_one_in(1), at(n * 100));
            assert_eq!(turn, ms(100));
        }
    }

    #[test]
    fn callers_at_one_instant_have_turns_a_token_apart() {
        let mut queue = RetryQueue::default();
        let mut promise =
            |cost| queue.promise(ms(40), cost, plan("10/s"), PlanPart::of_one_in(2), at(0));
        assert_eq!([promise(1), promise(1), promise(3)], [ms(40), ms(240), ms(840)]);
    }

    #[test]
    fn a_turn_is_at_most_ten_seconds_late() {
        let mut queue = RetryQueue::default();
        let mut last = ms(0);
        for _ in 0..1_000 {
            last = queue.promise(ms(500), 1, plan("1/s"), PlanPart::of_one_in(1), at(0));
        }
        assert_eq!(last, ms(10_500));
    }

    #[test]
    fn a_fixed_allowance_has_no_turns() {
        let mut queue = RetryQueue::default();
        for _ in 0..3 {
            let turn = queue.promise(ms(70), 1, plan("0"), PlanPart::of_one_in(1), at(0));
            assert_eq!(turn, ms(70));
        }
    }
}
