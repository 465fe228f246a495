//! What one limiter remembers of a key's last reply, and what follows from it exactly.

use std::time::Duration;

use crate::call::{Found, Level, PlanNumbers, Reply, Witness};
use crate::decision::{Standing, Wait};
use crate::limit::Limit;
use crate::time::Timestamp;

/// A denial without an end is repeated for this long; then the store is asked again.
const NEVER_REPEATED_MAX: Duration = Duration::from_secs(1);

/// The store's last word, with the limiter's own times around it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) reply: Reply,
    pub(crate) sent: Timestamp,
    pub(crate) received: Timestamp,
    /// The store's epoch for this key when the reply came.
    pub(crate) epoch: u64,
}

impl Seen {
    /// A denial that holds from the last reply until `short` more tokens can exist; `None` when
    /// the store has to be asked. Measured from the sending, so nobody is denied a token that is
    /// there; told from the receipt, so nobody comes back too early. A thread that was held up may
    /// come with a `now` from before the sending.
    pub(crate) fn denial(&self, short: u64, now: Timestamp) -> Option<Wait> {
        match self.reply.wait(short) {
            Wait::Until(Duration::ZERO) => None,
            Wait::Until(wait) if now < self.sent.after(wait) => Some(self.told(wait, now)),
            // A reset or a newer plan comes as a newer version; tokens that others give back do not.
            Wait::Never if now < self.sent.after(NEVER_REPEATED_MAX) => Some(Wait::Never),
            Wait::Until(_) | Wait::Never => None,
        }
    }

    /// How long a caller is told to wait for `cost`, if it was denied by this reply.
    pub(crate) fn wait(&self, cost: u64, now: Timestamp) -> Wait {
        match self.reply.wait(cost) {
            Wait::Until(wait) => self.told(wait, now),
            Wait::Never => Wait::Never,
        }
    }

    fn told(&self, wait: Duration, now: Timestamp) -> Wait {
        Wait::Until(self.received.after(wait).since(now))
    }

    /// The limit that a caller who wants `cost` waits for longest.
    pub(crate) fn binding_limit(&self, cost: u64) -> Option<Limit> {
        let limits = self.reply.plan.limits;
        let wait = |(level, limit): &(Level, Limit)| {
            level.time_until(cost, *limit).unwrap_or(Duration::MAX)
        };
        self.reply.levels.with(&limits).max_by_key(wait).map(|(_, limit)| limit)
    }

    pub(crate) fn available(&self) -> u64 {
        self.reply.levels.available(&self.reply.plan.limits)
    }

    pub(crate) fn standing(&self) -> Standing {
        let reply = &self.reply;
        Standing {
            levels: reply.levels,
            plan: reply.plan,
            outstanding: reply.outstanding,
            at: reply.at,
            round_trip: self.received.since(self.sent),
        }
    }

    /// When each bucket is full at the store if nobody takes anything.
    pub(crate) fn full_at(&self) -> [Timestamp; 2] {
        let limits = &self.reply.plan.limits;
        let mut full_at = [Timestamp::default(); 2];
        for (at, (level, limit)) in full_at.iter_mut().zip(self.reply.levels.with(limits)) {
            let wait = level.time_until(limit.capacity().get(), limit);
            *at = wait.map_or(*at, |wait| self.sent.after(wait));
        }
        full_at
    }

    /// How full both buckets were, in ten-thousandths.
    pub(crate) fn fill(&self, plan: PlanNumbers) -> [u64; 2] {
        let mut fill = [0; 2];
        for (fill, (level, limit)) in fill.iter_mut().zip(self.reply.levels.with(&plan.limits)) {
            let tokens = u64::try_from(level.tokens).unwrap_or(0);
            let share = u128::from(tokens) * 10_000 / u128::from(limit.capacity().get());
            *fill = u64::try_from(share).unwrap_or(u64::MAX);
        }
        fill
    }

    /// This reply as testimony.
    pub(crate) fn witness(&self, force: bool) -> Witness {
        let reply = &self.reply;
        Witness {
            at: reply.at,
            burst: reply.levels.burst.tokens,
            sustained: reply.levels.sustained.tokens,
            granted_total: reply.granted_total,
            incarnation: reply.incarnation,
            version: reply.plan.version,
            force,
        }
    }

    /// Testimony against `newer`, if the store must have lost writes since this reply: it holds
    /// more than can have been earned, in an incarnation or a count that does not follow.
    pub(crate) fn contradicts(&self, newer: &Seen) -> Option<Witness> {
        let (then, now) = (&self.reply, &newer.reply);
        let moved = newer.epoch != self.epoch;
        let odd = moved
            || now.found != Found::Known
            || now.incarnation != then.incarnation
            || now.granted_total < then.granted_total;
        if !odd || now.plan.version != then.plan.version || now.at < then.at {
            return None;
        }
        let elapsed = now.at.since(then.at).as_micros();
        let limits = now.plan.limits;
        let too_full = then.levels.with(&limits).zip(now.levels.with(&limits)).any(
            |((level, limit), (found, _))| {
                let refill = limit.refill();
                let earned = elapsed * u128::from(refill.tokens()) / u128::from(refill.per_us());
                let most = i128::from(level.tokens) + i128::try_from(earned).unwrap_or(i128::MAX);
                i128::from(found.tokens) > most.saturating_add(1)
            },
        );
        too_full.then(|| self.witness(moved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket;
    use crate::call::{PlanVersion, Request};
    use crate::limit::Limits;
    use crate::units::Capacity;

    #[test]
    fn who_asked_before_a_reply_was_sent_for_is_not_denied_what_it_left() {
        let at = |us: u64| Timestamp::from_us(1_000_000_000 + us);
        let limit = Limit::new(Capacity::new(2).unwrap(), "10/s".parse().unwrap()).unwrap();
        let plan = PlanNumbers { version: PlanVersion(2), limits: Limits::burst_only(limit) };
        let asked_for = |tokens| {
            let request = Request::take(plan, tokens, tokens);
            let reply = bucket::apply(None, Found::Nothing, &request, at(0)).reply;
            Seen { reply, sent: at(100), received: at(600), epoch: 0 }
        };
        for now in [at(50), at(100), at(700)] {
            assert_eq!(asked_for(1).denial(1, now), None, "one is left");
        }
        let wait = Wait::Until(Duration::from_micros(100_550));
        assert_eq!(asked_for(2).denial(1, at(50)), Some(wait), "none is left");
    }
}
