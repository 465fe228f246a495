//! A request that was decided about, from its admission until it has ended.
//!
//! The ticket carries everything its record needs, so nothing is looked up again or joined by
//! request id later. A ticket that is dropped without [`crate::Edge::done`] counts as a caller who
//! left: no request disappears from the tallies because a future was cancelled.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{
    Basis, Cost, Decision, Level, Levels, Limit, Limits, Outcome, PlanVersion, Standing,
};
use wire::plan::PlanLimits;
use wire::rollout::Phase;

use crate::call::{Observed, RouteTerms, Seen, Told, ToldLimit, ToldTightest};
use crate::key_cache::Known;
use crate::plan_book::{PhaseRule, PlanEntry};
use crate::record::Recorder;

/// What the edge found out about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Not evaluated: the phase is off, or the client may not call at all.
    NotAsked,
    /// There are no numbers to decide by.
    NoNumbers,
    /// The plan has no limits.
    Unlimited,
    /// Decided.
    Decided(Decision),
}

impl Judged {
    /// Whether the request would be let through, if the edge has an opinion at all.
    pub(crate) fn allows(&self) -> Option<bool> {
        match self {
            Judged::NotAsked | Judged::NoNumbers => None,
            Judged::Unlimited => Some(true),
            Judged::Decided(decision) => match decision.basis {
                Basis::Degraded(_) => None,
                Basis::Store | Basis::Lease => Some(decision.is_allowed()),
            },
        }
    }
}

/// What a ticket remembers.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) known: Arc<Known>,
    pub(crate) plan: Option<Arc<PlanEntry>>,
    pub(crate) route: Arc<RouteTerms>,
    pub(crate) rule: PhaseRule,
    pub(crate) cost: Cost,
    pub(crate) version: PlanVersion,
    pub(crate) judged: Judged,
    pub(crate) refused: bool,
    /// When a refused caller's turn comes.
    pub(crate) turn: Option<Duration>,
    /// Policy revision in force at the decision.
    pub(crate) revision: u64,
    /// Present while a rollout is active.
    pub(crate) record: Option<RecordSeed>,
}

/// What a record needs and a tally does not.
#[derive(Debug)]
pub(crate) struct RecordSeed {
    pub(crate) request_id: Box<str>,
    pub(crate) sampled: bool,
}

/// Held by the rim while a request is under way.
#[derive(Debug)]
#[must_use = "hand it back to Edge::done, or the caller counts as gone"]
pub struct Ticket {
    decided: Option<Decided>,
    recorder: Arc<Recorder>,
}

impl Ticket {
    pub(crate) fn new(decided: Option<Decided>, recorder: Arc<Recorder>) -> Ticket {
        Ticket { decided, recorder }
    }

    pub(crate) fn finish(mut self, observed: Observed) {
        if let Some(decided) = self.decided.take() {
            self.recorder.record(&decided, observed);
        }
    }

    /// The client, where the route asks for one.
    pub fn client(&self) -> Option<&str> {
        self.decided.as_ref().map(|decided| decided.known.client.id.as_str())
    }

    /// Name of the client's plan.
    pub fn plan(&self) -> Option<&str> {
        self.decided.as_ref().map(|decided| decided.known.client.plan.as_str())
    }

    /// Public id of the key.
    pub fn key_id(&self) -> Option<&str> {
        self.decided.as_ref().and_then(|decided| decided.known.key_id())
    }

    /// The client's phase.
    pub fn phase(&self) -> Option<Phase> {
        self.decided.as_ref().map(|decided| decided.rule.phase)
    }

    /// The limiter's decision, if it was asked.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.decided.as_ref()?.judged {
            Judged::Decided(decision) => Some(decision),
            Judged::NotAsked | Judged::NoNumbers | Judged::Unlimited => None,
        }
    }

    /// The limit numbers for this caller's headers; `None` where it must not notice a limit:
    /// phases shadow and off, unlimited plans, routes without keys.
    pub fn told(&self) -> Option<Told> {
        let decided = self.decided.as_ref()?;
        let decision = self.decision()?;
        let PlanLimits::Limited(limits) = decided.plan.as_ref()?.limits else { return None };
        match decided.rule.phase {
            Phase::Off | Phase::Shadow => None,
            Phase::Enforce => {
                let told = told(decision, decided.cost.get(), &limits);
                Some(Told { turn: decided.turn, ..told })
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(decided) = self.decided.take() {
            let service = if decided.refused { Seen::Refused } else { Seen::CallerGone };
            self.recorder.record(&decided, Observed { status: 0, instance: None, service });
        }
    }
}

fn told(decision: &Decision, cost: u64, limits: &Limits) -> Told {
    let standing = match decision.basis {
        Basis::Store | Basis::Lease => decision.standing,
        // How the shared pair stood before the outage is not what this answer rests on.
        Basis::Degraded(_) => None,
    };
    // A store that has seen a newer plan than this edge answers under that one.
    let limits = standing.map_or(*limits, |standing| standing.plan.limits);
    Told {
        burst: told_limit("burst", limits.burst),
        sustained: limits.sustained.map(|limit| told_limit("sustained", limit)),
        tightest: tightest(decision.outcome, standing, cost, &limits),
        turn: None,
    }
}

fn told_limit(name: &'static str, limit: Limit) -> ToldLimit {
    ToldLimit { name, capacity: limit.capacity().get(), window_s: limit.window().map(seconds) }
}

fn tightest(
    outcome: Outcome,
    standing: Option<Standing>,
    cost: u64,
    limits: &Limits,
) -> ToldTightest {
    let left = |levels: Option<Levels>| match outcome {
        Outcome::Allowed { remaining } => remaining.min(limits.smallest_capacity()),
        Outcome::Denied { .. } => levels.map_or(0, |levels| levels.available(limits)),
    };
    let Some(standing) = standing else {
        return ToldTightest { name: "burst", remaining: left(None), reset_s: None };
    };
    let levels = standing.levels;
    let (name, level, limit) = match limits.sustained {
        Some(limit) if sustained_binds(outcome, cost, levels, limits.burst, limit) => {
            ("sustained", levels.sustained, limit)
        }
        Some(_) | None => ("burst", levels.burst, limits.burst),
    };
    ToldTightest { name, remaining: left(Some(levels)), reset_s: until_full(level, limit) }
}

/// Whether the sustained limit is what a caller meets next. A denial is told by what it waits for:
/// its levels may be those of an earlier reply, when both were empty.
fn sustained_binds(
    outcome: Outcome,
    cost: u64,
    levels: Levels,
    burst: Limit,
    sustained: Limit,
) -> bool {
    match outcome {
        Outcome::Allowed { .. } => levels.sustained.tokens < levels.burst.tokens,
        Outcome::Denied { .. } => {
            let never = Duration::MAX;
            let wait = |level: Level, limit| level.time_until(cost, limit).unwrap_or(never);
            wait(levels.burst, burst) < wait(levels.sustained, sustained)
        }
    }
}

fn until_full(level: Level, limit: Limit) -> Option<u64> {
    if limit.refill().is_fixed_allowance() {
        return None;
    }
    level.time_until(limit.capacity().get(), limit).map(seconds)
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
