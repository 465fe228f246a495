//! Decisions of a key without its store, and what they cost it once the store is back.

use super::{Books, Outage, Seen};
use crate::call::{Owed, PlanVersion};
use crate::decision::{Basis, Decision, DegradedReason};
use crate::degraded::PlanPart;
use crate::limiter::flight::Surroundings;
use crate::limiter::settings::Terms;
use crate::time::Timestamp;

impl Books {
    pub(crate) fn decide_degraded(
        &mut self,
        terms: &Terms,
        cost: u64,
        around: &Surroundings,
        reason: DegradedReason,
        now: Timestamp,
    ) -> Decision {
        let decision = self.decide_unmetered(terms, cost, around, reason, now);
        if decision.is_allowed() {
            self.meter(terms, cost, around, now);
        }
        decision
    }

    /// Admitted, and no call will charge it.
    pub(crate) fn meter(
        &mut self,
        terms: &Terms,
        cost: u64,
        around: &Surroundings,
        now: Timestamp,
    ) {
        let part = self.part(around, now);
        let full_at = self.full_at(terms.plan.version);
        self.outage().admitted(terms, cost, (part, full_at), now);
    }

    pub(crate) fn meter_newest(&mut self, cost: u64, around: &Surroundings, now: Timestamp) {
        if let Some(terms) = self.terms() {
            self.meter(&terms, cost, around, now);
        }
    }

    /// By policy, without charging it later: a call that may have charged it is out, or was lost.
    pub(crate) fn decide_unmetered(
        &mut self,
        terms: &Terms,
        cost: u64,
        around: &Surroundings,
        reason: DegradedReason,
        now: Timestamp,
    ) -> Decision {
        let part = self.part(around, now);
        let last = self.last();
        let outcome = self.outage().decide(terms, cost, last.as_ref(), part, now);
        let standing = last.as_ref().map(Seen::standing);
        Decision { outcome, basis: Basis::Degraded(reason), standing }
    }

    /// This gateway's part of the plan.
    pub(super) fn part(&mut self, around: &Surroundings, now: Timestamp) -> PlanPart {
        if around.extras.learned_share {
            self.share.get_or_insert_default().part(around.gateways, now)
        } else {
            PlanPart::of_one_in(around.gateways)
        }
    }

    /// The store has answered a call that carried `owed`.
    pub(super) fn answered(&mut self, owed: Owed, now: Timestamp) {
        let full_at = self.terms().map(|terms| self.full_at(terms.plan.version));
        if let Some(outage) = &mut self.outage {
            outage.answered(owed, full_at.unwrap_or_default(), now);
        }
    }

    /// Until when the buckets of a plan fill at the store, by its newest word. Under another plan
    /// they have earned nothing of this one.
    fn full_at(&self, version: PlanVersion) -> [Timestamp; 2] {
        let seen = self.last().filter(|seen| seen.reply.plan.version == version);
        seen.map_or_else(Default::default, |seen| seen.full_at())
    }

    pub(super) fn outage(&mut self) -> &mut Outage {
        self.outage.get_or_insert_default()
    }
}
