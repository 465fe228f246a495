//! One key's decisions without the store: the local bucket pair that holds this gateway's part of
//! the plan's failure share, and the meter of what must be charged afterwards.

use std::time::Duration;

use super::flight::Surroundings;
use super::meter::{Leak, OutageMeter};
use super::seen::Seen;
use super::settings::Terms;
use crate::call::Owed;
use crate::decision::{Outcome, Wait};
use crate::degraded::{FailurePolicy, LocalAnswer, LocalBucket, PlanPart};
use crate::time::Timestamp;

/// Told to refused callers of a plan that is closed without a store, when no probe time is known.
const CLOSED_RETRY: Duration = Duration::from_millis(1_000);

#[derive(Debug, Default)]
pub(crate) struct Outage {
    local: Option<LocalBucket>,
    meter: Option<OutageMeter>,
    /// The store answered since the local bucket was used last.
    answered_since_local: bool,
    /// Set by a tripped store: until its next probe.
    probe_at: Option<Timestamp>,
}

impl Outage {
    /// The store answers again, has charged `owed`, and tells until when its buckets fill.
    pub(crate) fn answered(&mut self, owed: Owed, full_at: [Timestamp; 2], now: Timestamp) {
        self.probe_at = None;
        self.answered_since_local = true;
        self.charged(owed);
        if let Some(meter) = &mut self.meter {
            meter.leak_from(full_at, now);
        }
    }

    /// A call that carried `owed` has an unknown outcome: it is not charged twice.
    pub(crate) fn charged(&mut self, owed: Owed) {
        if let Some(meter) = &mut self.meter {
            meter.subtract(owed);
        }
    }

    pub(crate) fn tripped(&mut self, probe_at: Timestamp) {
        self.probe_at = Some(probe_at);
    }

    /// `cost` was admitted, and no call will charge it. Until `full_at` the store's buckets fill.
    pub(crate) fn admitted(
        &mut self,
        terms: &Terms,
        cost: u64,
        (part, full_at): (PlanPart, [Timestamp; 2]),
        now: Timestamp,
    ) {
        let leaks = match terms.failure {
            FailurePolicy::Share(share) if share < 10_000 => part.at_failure_share(share),
            FailurePolicy::Share(_) | FailurePolicy::Open => part,
        };
        let meter = self.meter.get_or_insert_with(|| OutageMeter::new(now));
        meter.admit(&Leak { limits: terms.plan.limits, part: leaks, from: full_at }, cost, now);
    }

    /// What the next main call has to charge.
    pub(crate) fn owed(&mut self, around: &Surroundings, now: Timestamp) -> Owed {
        let Some(meter) = self.meter.as_mut().filter(|_| around.extras.meters) else {
            return Owed::default();
        };
        let owed = meter.height(now);
        if meter.is_empty() {
            self.meter = None;
        }
        owed
    }

    /// Whether a local bucket or a debt would be lost with the entry.
    pub(crate) fn is_remembered(&self) -> bool {
        self.local.is_some() || self.meter.is_some()
    }

    pub(crate) fn decide(
        &mut self,
        terms: &Terms,
        cost: u64,
        last: Option<&Seen>,
        part: PlanPart,
        now: Timestamp,
    ) -> Outcome {
        match terms.failure {
            FailurePolicy::Open => {
                let limits = terms.plan.limits;
                let full = limits.smallest_capacity().saturating_sub(cost);
                let remaining = last.map_or(full, |seen| seen.reply.levels.available(&limits));
                Outcome::Allowed { remaining }
            }
            FailurePolicy::CLOSED => {
                let probe_in = self.probe_at.map_or(CLOSED_RETRY, |at| at.since(now));
                Outcome::Denied { wait: Wait::Until(probe_in) }
            }
            FailurePolicy::Share(share) => self.take_local(terms, cost, share, last, part, now),
        }
    }

    fn take_local(
        &mut self,
        terms: &Terms,
        cost: u64,
        share: u32,
        last: Option<&Seen>,
        part: PlanPart,
        now: Timestamp,
    ) -> Outcome {
        let limits = &terms.plan.limits;
        let fill = last.map(|seen| seen.fill(terms.plan));
        let luck = fastrand::u64(..10_000);
        let fresh = || LocalBucket::start(limits, share, part, fill, luck, now);
        let mut local = match self.local {
            Some(mut local) => {
                if !local.knows(limits) {
                    local.learn(&fresh());
                }
                if self.answered_since_local {
                    local.lower_to(&fresh(), limits, share, part, now);
                }
                local
            }
            None => fresh(),
        };
        self.answered_since_local = false;
        let answer = local.take(limits, share, part, cost, now);
        self.local = Some(local);
        match answer {
            LocalAnswer::Taken { remaining } => Outcome::Allowed { remaining },
            LocalAnswer::Wait(None) => Outcome::Denied { wait: Wait::Never },
            LocalAnswer::Wait(Some(us)) => {
                Outcome::Denied { wait: Wait::Until(Duration::from_micros(us)) }
            }
        }
    }
}
