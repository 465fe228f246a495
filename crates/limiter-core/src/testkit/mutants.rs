//! Plausible mistakes in the arithmetic, as functions in the place of [`bucket::apply`]: whatever
//! judges the limiter (properties, scenarios, the exhaustive model, the simulator) is given one of
//! them now and then, and must notice.
//!
//! Each is the real function with a lie told to it or about it, so that it stays one mistake away
//! from the truth when the arithmetic changes.

use crate::bucket::{self, Applied, State};
use crate::call::{Found, GENERATION_US, LeaseReport, Request, Witness};
use crate::time::Timestamp;

const DAY_MS: u64 = 86_400_000;

/// The arithmetic of one call, or something that claims to be it.
pub type Apply = fn(Option<State>, Found, &Request, Timestamp) -> Applied;

/// One planted mistake.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does.
    pub apply: Apply,
}

impl Mutant {
    /// The mutant of that name.
    pub fn named(name: &str) -> Option<&'static Mutant> {
        MUTANTS.iter().find(|mutant| mutant.name == name)
    }
}

/// All of them.
pub const MUTANTS: [Mutant; 8] = [
    Mutant { name: "no-cap", apply: no_cap },
    Mutant { name: "settle-first", apply: settle_first },
    Mutant { name: "undead-lease", apply: undead_lease },
    Mutant { name: "free-lease", apply: free_lease },
    Mutant { name: "deaf", apply: deaf },
    Mutant { name: "level-incarnation", apply: level_incarnation },
    Mutant { name: "forgiving-debt", apply: forgiving_debt },
    Mutant { name: "full-after-plan", apply: full_after_plan },
];

/// Levels refill to the capacity, whatever is lent: a lease adds itself to a full bucket. The
/// arithmetic is shown no lease at all; the books are kept here.
fn no_cap(state: Option<State>, found: Found, request: &Request, now: Timestamp) -> Applied {
    let present = present(state, now);
    let (mut lent_now, mut lent_before) = match state {
        Some(state) if state.generation == present => (state.lent_now, state.lent_before),
        Some(state) if state.generation + 1 == present => (0, state.lent_now),
        Some(_) | None => (0, 0),
    };
    let (mut held, mut returned, mut dead) = (0, 0, false);
    if let Some(lease) = request.lease {
        match lent_under(lease.generation, present, &mut lent_now, &mut lent_before) {
            Some(lent) => {
                *lent -= lease.counted.min(*lent);
                (held, returned) = (lease.held, lease.returned);
            }
            None => dead = true,
        }
    }
    let blind = state.map(|state| State { lent_now: 0, lent_before: 0, ..state });
    let unused_need = request.unused_need + returned;
    let mut applied =
        bucket::apply(blind, found, &Request { lease: None, unused_need, ..*request }, now);
    applied.state.lent_now += lent_now + held;
    applied.state.lent_before += lent_before;
    applied.reply.counted += held;
    applied.reply.lease_dead = dead;
    applied.reply.outstanding = applied.state.lent_now + applied.state.lent_before;
    applied
}

fn present(state: Option<State>, now: Timestamp) -> u64 {
    state.map_or(now, |state| state.at.max(now)).us() / GENERATION_US
}

fn lent_under<'a>(
    generation: u64,
    present: u64,
    lent_now: &'a mut u64,
    lent_before: &'a mut u64,
) -> Option<&'a mut u64> {
    match present.wrapping_sub(generation) {
        0 => Some(lent_now),
        1 => Some(lent_before),
        _ => None,
    }
}

/// The lease is taken off the books before the refill: time in which it was out refills too.
fn settle_first(state: Option<State>, found: Found, request: &Request, now: Timestamp) -> Applied {
    let (Some(mut state), Some(lease)) = (state, request.lease) else {
        return bucket::apply(state, found, request, now);
    };
    let State { generation, lent_now, lent_before, .. } = &mut state;
    let lent = lent_under(lease.generation, *generation, lent_now, lent_before);
    if let Some(lent) = lent {
        *lent -= lease.counted.min(*lent);
    }
    let told = Request { lease: Some(LeaseReport { counted: 0, ..lease }), ..*request };
    let mut applied = bucket::apply(Some(state), found, &told, now);
    if !request.peek && lease.counted > 0 {
        applied.keep_ms = applied.keep_ms.or(Some(DAY_MS));
    }
    applied
}

/// What a dead lease still held counts as alive: it was refilled in the meantime.
fn undead_lease(state: Option<State>, found: Found, request: &Request, now: Timestamp) -> Applied {
    let present = present(state, now);
    let lease = request.lease.map(|lease| LeaseReport {
        generation: lease.generation.max(present.saturating_sub(1)),
        ..lease
    });
    bucket::apply(state, found, &Request { lease, ..*request }, now)
}

/// What is lent is not taken from the levels.
fn free_lease(state: Option<State>, found: Found, request: &Request, now: Timestamp) -> Applied {
    let mut applied = bucket::apply(state, found, request, now);
    let lent = applied.reply.lent.cast_signed();
    applied.state.levels.burst.tokens += lent;
    if applied.state.plan.limits.sustained.is_some() {
        applied.state.levels.sustained.tokens += lent;
    }
    applied.reply.levels = applied.state.levels;
    applied
}

/// Witnesses are not heard: lost writes stay lost.
fn deaf(state: Option<State>, found: Found, request: &Request, now: Timestamp) -> Applied {
    bucket::apply(state, found, &Request { witness: None, ..*request }, now)
}

/// A repaired loss leaves the incarnation where it was: the next witness is not asked.
fn level_incarnation(
    state: Option<State>,
    found: Found,
    request: &Request,
    now: Timestamp,
) -> Applied {
    let mut applied = bucket::apply(state, found, request, now);
    let repaired = |witness: Witness| witness.incarnation + 1 == applied.state.incarnation;
    if request.witness.is_some_and(repaired) {
        applied.state.incarnation -= 1;
        applied.reply.incarnation -= 1;
    }
    applied
}

/// What an outage cost is charged down to zero only.
fn forgiving_debt(
    state: Option<State>,
    found: Found,
    request: &Request,
    now: Timestamp,
) -> Applied {
    let mut applied = bucket::apply(state, found, request, now);
    for level in [&mut applied.state.levels.burst, &mut applied.state.levels.sustained] {
        level.tokens = level.tokens.max(0);
    }
    applied.reply.levels = applied.state.levels;
    applied
}

/// A newer plan starts with a full bucket: what was used is forgotten.
fn full_after_plan(
    state: Option<State>,
    found: Found,
    request: &Request,
    now: Timestamp,
) -> Applied {
    let newer = state.is_some_and(|state| state.plan.version < request.plan.version);
    let state = state.filter(|_| !newer);
    let mut applied = bucket::apply(state, found, request, now);
    if newer && !request.peek {
        applied.keep_ms = Some(DAY_MS);
    }
    applied
}
