//! What an entry remembers, in few bytes: a limiter keeps one for every active key. The numbers of
//! a plan are one copy for all keys that have them.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use super::seen::Seen;
use super::settings::Terms;
use crate::call::{Found, GENERATION_US, Levels, PlanNumbers, PlanVersion, Reply};
use crate::degraded::FailurePolicy;
use crate::limit::Limits;
use crate::time::Timestamp;

/// With this many different plans, those that no key has any more are dropped.
const LOOKED_OVER_AT: usize = 1_024;

/// The one copy of these numbers.
fn shared(limits: &Limits) -> Arc<Limits> {
    static KNOWN: LazyLock<Mutex<HashSet<Arc<Limits>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock();
    if let Some(limits) = known.get(limits) {
        return Arc::clone(limits);
    }
    if known.len() % LOOKED_OVER_AT == LOOKED_OVER_AT - 1 {
        known.retain(|limits| Arc::strong_count(limits) > 1);
    }
    let limits = Arc::new(*limits);
    known.insert(Arc::clone(&limits));
    limits
}

/// The newest terms of a key.
#[derive(Debug)]
pub(super) struct KeptTerms {
    version: PlanVersion,
    limits: Arc<Limits>,
    reset: PlanVersion,
    failure: FailurePolicy,
}

impl KeptTerms {
    pub(super) fn new(terms: &Terms) -> KeptTerms {
        KeptTerms {
            version: terms.plan.version,
            limits: shared(&terms.plan.limits),
            reset: terms.reset,
            failure: terms.failure,
        }
    }

    /// Other terms, with the copy of the numbers that is there if it is the same.
    pub(super) fn replace(&mut self, terms: &Terms) {
        if *self.limits != terms.plan.limits {
            self.limits = shared(&terms.plan.limits);
        }
        self.version = terms.plan.version;
        self.reset = terms.reset;
        self.failure = terms.failure;
    }

    pub(super) fn terms(&self) -> Terms {
        let plan = PlanNumbers { version: self.version, limits: *self.limits };
        Terms { plan, reset: self.reset, failure: self.failure }
    }
}

/// A reply without what its time tells, and without what it gave.
#[derive(Debug)]
pub(super) struct KeptSeen {
    levels: Levels,
    outstanding: u64,
    at: Timestamp,
    granted_total: u64,
    incarnation: u64,
    version: PlanVersion,
    limits: Arc<Limits>,
    sent: Timestamp,
    received: Timestamp,
    epoch: u64,
}

impl KeptSeen {
    /// `near`: terms whose copy of the numbers is probably the right one.
    pub(super) fn new(seen: &Seen, near: Option<&KeptTerms>) -> KeptSeen {
        let Reply { levels, outstanding, at, granted_total, incarnation, plan, .. } = seen.reply;
        let same = near.filter(|terms| *terms.limits == plan.limits);
        KeptSeen {
            levels,
            outstanding,
            at,
            granted_total,
            incarnation,
            version: plan.version,
            limits: same.map_or_else(|| shared(&plan.limits), |terms| Arc::clone(&terms.limits)),
            sent: seen.sent,
            received: seen.received,
            epoch: seen.epoch,
        }
    }

    pub(super) fn seen(&self) -> Seen {
        let generation = self.at.us() / GENERATION_US;
        let death = Timestamp::from_us((generation + 2) * GENERATION_US);
        let reply = Reply {
            granted: 0,
            lent: 0,
            counted: 0,
            generation,
            valid: death.since(self.at),
            lease_dead: false,
            levels: self.levels,
            outstanding: self.outstanding,
            at: self.at,
            granted_total: self.granted_total,
            incarnation: self.incarnation,
            plan: PlanNumbers { version: self.version, limits: *self.limits },
            found: Found::Known,
        };
        Seen { reply, sent: self.sent, received: self.received, epoch: self.epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use crate::units::Capacity;

    #[test]
    fn plans_with_the_same_numbers_are_kept_once() {
        let plan = |capacity| {
            let capacity = Capacity::new(capacity).unwrap();
            Limits::burst_only(Limit::new(capacity, "7/s".parse().unwrap()).unwrap())
        };
        let (first, second) = (shared(&plan(71)), shared(&plan(71)));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &shared(&plan(72))));
    }
}
