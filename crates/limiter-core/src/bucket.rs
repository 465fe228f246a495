//! The arithmetic of a bucket pair as one pure function of state, request and time.
//!
//! [`apply`] is the embedded store, the model that `store/take.lua` is held against step by step,
//! and the oracle of the shadow gate. Change it and the script together: the differential test
//! fails if they differ in a reply or in a stored state.
//!
//! Why it is safe: levels refill only up to capacity − outstanding, under the outstanding sum
//! *before* the call settles anything. So level + outstanding never passes the capacity, and what
//! gateways hold can never add itself to a full bucket.
//!
//! All values stay below 2⁵³ ([`Limit::new`] sees to it), so that the script's doubles are exact.

use std::time::Duration;

use crate::call::{
    Found, GENERATION_US, LeaseReport, Level, Levels, PlanNumbers, Reply, Request, Witness,
};
use crate::limit::{Limit, Limits};
use crate::time::Timestamp;
use crate::units::EXACT_BOUND;

/// A store clock that ran back by no more than this stands still; by more, the bucket is rebased.
pub const CLOCK_FREEZE_US: u64 = 2_000_000;
/// A fixed allowance is forgotten this long after its last use.
const FIXED_ALLOWANCE_KEPT_MS: u64 = 31 * 86_400 * 1_000;
/// Leases pay only where filling the bucket takes at least this long.
const LEASE_FILL_TIME_MIN_US: u128 = 50_000;
/// Tokens are plenty while each bucket holds this part of its capacity, and scarce below it.
pub(crate) const PLENTY: (i64, i64) = (1, 4);
/// Largest lease: the gateway keeps held tokens in 32 bits.
const LEASE_MAX: i64 = (1 << 32) - 1;

/// What a store keeps for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Store time of the last refill.
    pub at: Timestamp,
    /// Both levels.
    pub levels: Levels,
    /// Generation of `at`.
    pub generation: u64,
    /// Tokens lent in this generation.
    pub lent_now: u64,
    /// Tokens lent in the one before.
    pub lent_before: u64,
    /// Tokens granted and lent since the incarnation began.
    pub granted_total: u64,
    /// Time of creation, plus one for each repaired loss.
    pub incarnation: u64,
    /// The plan in force.
    pub plan: PlanNumbers,
}

/// Result of [`apply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The state after the call.
    pub state: State,
    /// What the caller is told.
    pub reply: Reply,
    /// Whether the state must be written, and for how long it must live then.
    pub keep_ms: Option<u64>,
}

/// A full bucket pair at `now`: what a missing key means.
pub fn fresh(plan: PlanNumbers, now: Timestamp) -> State {
    State {
        at: now,
        levels: Levels {
            burst: Level::full(plan.limits.burst),
            sustained: plan.limits.sustained.map_or_else(Level::default, Level::full),
        },
        generation: generation_of(now),
        lent_now: 0,
        lent_before: 0,
        granted_total: 0,
        incarnation: now.us(),
        plan,
    }
}

/// Refills, settles, grants. `found` tells whether a missing `state` was missing or unreadable.
pub fn apply(state: Option<State>, found: Found, request: &Request, now: Timestamp) -> Applied {
    let mut work = Work::begin(state, found, request, now);
    work.refill_to_present();
    work.adopt_plan();
    work.hear_witness();
    let lease = work.settle();
    work.charge_owed();
    let granted = work.grant_need();
    let lent = work.lend(lease.held, granted);
    work.finish(found, lease, granted, lent)
}

fn generation_of(at: Timestamp) -> u64 {
    at.us() / GENERATION_US
}

/// A call half-way; each step is one method, in the order in which `apply` names them.
struct Work<'a> {
    state: State,
    request: &'a Request,
    /// The store's present, never before `state.at`.
    now: Timestamp,
    was_missing: bool,
    changed: bool,
}

/// What a lease looks like after settlement.
#[derive(Clone, Copy)]
struct SettledLease {
    held: u64,
    dead: bool,
}

impl<'a> Work<'a> {
    fn begin(state: Option<State>, found: Found, request: &'a Request, now: Timestamp) -> Work<'a> {
        let was_missing = state.is_none();
        let mut state = state.unwrap_or_else(|| fresh(request.plan, now));
        let mut changed = matches!(found, Found::Unreadable);
        let mut now = now;
        if now < state.at {
            if state.at.since(now) <= Duration::from_micros(CLOCK_FREEZE_US) {
                now = state.at;
            } else {
                state.lent_now += state.lent_before;
                state.lent_before = 0;
                state.generation = generation_of(now);
                state.at = now;
                state.incarnation += 1;
                changed = true;
            }
        }
        Work { state, request, now, was_missing, changed }
    }

    fn outstanding(&self) -> u64 {
        self.state.lent_now + self.state.lent_before
    }

    fn limits(&self) -> Limits {
        self.state.plan.limits
    }

    /// Under the outstanding sum before settlement; tokens of dead generations first cap the
    /// refill until their end, then no more.
    fn refill_to_present(&mut self) {
        let generation = generation_of(self.now);
        if generation > self.state.generation + 1 {
            let death = Timestamp::from_us((self.state.generation + 2) * GENERATION_US);
            self.refill(death, self.outstanding());
            (self.state.lent_now, self.state.lent_before) = (0, 0);
            self.state.generation = generation;
            self.refill(self.now, 0);
        } else {
            self.refill(self.now, self.outstanding());
            if generation == self.state.generation + 1 {
                self.state.lent_before = self.state.lent_now;
                self.state.lent_now = 0;
                self.state.generation = generation;
            }
        }
    }

    fn refill(&mut self, to: Timestamp, outstanding: u64) {
        let elapsed = to.us() - self.state.at.us();
        let limits = self.limits();
        refill_level(&mut self.state.levels.burst, limits.burst, outstanding, elapsed);
        if let Some(limit) = limits.sustained {
            refill_level(&mut self.state.levels.sustained, limit, outstanding, elapsed);
        }
        self.state.at = to;
    }

    /// A newer plan keeps what was used: more capacity is room at once, less clamps the level, and
    /// no debt is deeper than the new plan allows (deeper could not be counted exactly).
    fn adopt_plan(&mut self) {
        let plan = self.request.plan;
        let old = self.state.plan;
        if plan.version <= old.version {
            return;
        }
        let levels = &mut self.state.levels;
        change_level(&mut levels.burst, Some(old.limits.burst), Some(plan.limits.burst));
        change_level(&mut levels.sustained, old.limits.sustained, plan.limits.sustained);
        self.state.plan = plan;
        self.changed = true;
        if old.version < self.request.reset {
            let outstanding = self.outstanding();
            self.each_level(|level, limit| {
                let full = limit.capacity().get().cast_signed() - outstanding.cast_signed();
                if level.tokens < full {
                    *level = Level { tokens: full, remainder: 0 };
                }
            });
        }
    }

    /// Lost writes are rebuilt from what callers remember: a level is at most what a witness saw,
    /// plus what was earned since, plus one.
    fn hear_witness(&mut self) {
        let Some(witness) = self.request.witness else { return };
        let state = &self.state;
        let lost = self.was_missing
            || witness.incarnation != state.incarnation
            || witness.granted_total > state.granted_total
            || witness.force;
        if witness.version != state.plan.version || !lost {
            return;
        }
        let elapsed = self.now.us().saturating_sub(witness.at.us());
        let limits = self.limits();
        let levels = &mut self.state.levels;
        let mut clamped = clamp_level(&mut levels.burst, limits.burst, witness.burst, elapsed);
        if let Some(limit) = limits.sustained {
            clamped |= clamp_level(&mut levels.sustained, limit, witness.sustained, elapsed);
        }
        let newer = witness.incarnation > state_incarnation(&self.state, &witness);
        if newer {
            self.state.incarnation = witness.incarnation + 1;
            self.state.granted_total = self.state.granted_total.max(witness.granted_total);
        }
        self.changed |= clamped || newer;
    }

    /// Takes the reported lease off the books, then puts back what is still held or returned,
    /// never beyond the room that is left.
    fn settle(&mut self) -> SettledLease {
        let mut settled = SettledLease { held: 0, dead: false };
        let mut back = self.request.unused_need;
        if let Some(lease) = self.request.lease {
            if self.strike(lease) {
                settled.held = lease.held;
                back += lease.returned;
                self.changed |= lease.counted > 0 || lease.held > 0;
            } else {
                settled.dead = true;
            }
        }
        self.changed |= back > 0;
        let outstanding = self.outstanding() + settled.held;
        self.each_level(|level, limit| {
            let room = limit.capacity().get().cast_signed() - outstanding.cast_signed();
            let before = level.tokens;
            level.tokens += back.cast_signed();
            if level.tokens >= room {
                level.tokens = room;
                level.remainder = 0;
            }
            if level.tokens < before {
                level.tokens = level.tokens.max(before.min(0));
            }
        });
        settled
    }

    /// Takes a live lease's count out of its generation; false if the generation is dead.
    fn strike(&mut self, lease: LeaseReport) -> bool {
        let lent = if lease.generation == self.state.generation {
            &mut self.state.lent_now
        } else if lease.generation + 1 == self.state.generation {
            &mut self.state.lent_before
        } else {
            return false;
        };
        *lent -= lease.counted.min(*lent);
        true
    }

    /// What was admitted during an outage, down to one second of refill below zero.
    fn charge_owed(&mut self) {
        let owed = [self.request.owed.burst, self.request.owed.sustained];
        let mut owed = owed.into_iter();
        self.changed |= self.request.owed != crate::call::Owed::default();
        self.each_level(|level, limit| {
            let owed = owed.next().unwrap_or(0);
            if owed > 0 {
                let floor = -limit.debt_floor().cast_signed();
                level.tokens = (level.tokens - owed.cast_signed()).max(floor.min(level.tokens));
            }
        });
    }

    fn grant_need(&mut self) -> u64 {
        let available = self.state.levels.available(&self.limits());
        if available >= self.request.smallest_need { available.min(self.request.need) } else { 0 }
    }

    /// Design: limiter, section 5.2 step 8. Half of what is left of a tenth of the capacity while
    /// tokens are plenty, one poll interval of demand while they are scarce, nothing where the
    /// bucket fills in less than 50 ms.
    fn lend(&self, held: u64, granted: u64) -> u64 {
        let limits = self.limits();
        let [plenty, scarce] = wanted(self.request);
        if plenty == 0 {
            return 0;
        }
        let available = self.state.levels.available(&limits).cast_signed();
        let rest = available - granted.cast_signed();
        let outstanding = self.outstanding().cast_signed();
        let most = most_lent(&limits).cast_signed() - outstanding;
        let mut levels = self.state.levels;
        levels.burst.tokens -= granted.cast_signed();
        levels.sustained.tokens -= granted.cast_signed();
        let is_plenty = levels.are_filled_to(&limits, PLENTY);
        let held = held.cast_signed();
        let lent = if is_plenty {
            let half = (rest - 5 * outstanding + 9).div_euclid(10);
            (plenty - held).min(most).min(half)
        } else {
            (scarce - held).min(most).min(rest)
        };
        lent.min(LEASE_MAX - held).max(0).cast_unsigned()
    }

    fn finish(mut self, found: Found, lease: SettledLease, granted: u64, lent: u64) -> Applied {
        let taken = granted + lent;
        self.each_level(|level, _| level.tokens -= taken.cast_signed());
        self.state.lent_now += lease.held + lent;
        if self.state.granted_total > EXACT_BOUND - 1 - taken {
            // A counter that is full starts again, as after a repaired loss.
            self.state.granted_total = 0;
            self.state.incarnation += 1;
        }
        self.state.granted_total += taken;
        self.changed |= taken > 0;
        let death = (self.state.generation + 2) * GENERATION_US;
        let state = self.state;
        let reply = Reply {
            granted,
            lent,
            counted: lease.held + lent,
            generation: state.generation,
            valid: Timestamp::from_us(death).since(self.now),
            lease_dead: lease.dead,
            levels: state.levels,
            outstanding: self.outstanding(),
            at: self.now,
            granted_total: state.granted_total,
            incarnation: state.incarnation,
            plan: state.plan,
            found,
        };
        let write = self.changed && !self.request.peek;
        Applied { state, reply, keep_ms: write.then(|| keep_ms(&state)) }
    }

    fn each_level(&mut self, mut change: impl FnMut(&mut Level, Limit)) {
        let limits = self.limits();
        change(&mut self.state.levels.burst, limits.burst);
        if let Some(limit) = limits.sustained {
            change(&mut self.state.levels.sustained, limit);
        }
    }
}

/// The incarnation that a witness must pass to count as newer.
fn state_incarnation(state: &State, witness: &Witness) -> u64 {
    if witness.granted_total > state.granted_total {
        state.incarnation.saturating_sub(1)
    } else {
        state.incarnation
    }
}

fn refill_level(level: &mut Level, limit: Limit, outstanding: u64, elapsed: u64) {
    let cap = limit.capacity().get().cast_signed() - outstanding.cast_signed();
    if level.tokens >= cap {
        level.remainder = 0;
        return;
    }
    let (tokens, per_us) = (limit.refill().tokens(), limit.refill().per_us());
    if tokens == 0 {
        return;
    }
    let missing = (cap - level.tokens).cast_unsigned() * per_us - level.remainder;
    if elapsed >= missing.div_ceil(tokens) {
        *level = Level { tokens: cap, remainder: 0 };
    } else {
        let earned = elapsed * tokens + level.remainder;
        level.tokens += (earned / per_us).cast_signed();
        level.remainder = earned % per_us;
    }
}

fn change_level(level: &mut Level, old: Option<Limit>, new: Option<Limit>) {
    let capacity = |limit: Option<Limit>| limit.map_or(0, |l| l.capacity().get().cast_signed());
    let (before, after) = (capacity(old), capacity(new));
    if after > before {
        level.tokens += after - before;
    } else {
        level.tokens = level.tokens.min(after);
    }
    if old.map(Limit::refill) != new.map(Limit::refill) {
        level.remainder = 0;
    }
    match new {
        Some(limit) => level.tokens = level.tokens.max(-limit.debt_floor().cast_signed()),
        None => *level = Level::default(),
    }
}

fn clamp_level(level: &mut Level, limit: Limit, seen: i64, elapsed: u64) -> bool {
    let (tokens, per_us) = (limit.refill().tokens(), limit.refill().per_us());
    let most = limit.capacity().get() + limit.debt_floor();
    let earned = if tokens > 0 && elapsed > (EXACT_BOUND - 1) / tokens {
        most
    } else {
        most.min(elapsed * tokens / per_us + 1)
    };
    let lowest = -limit.debt_floor().cast_signed();
    let bound = seen.saturating_add(earned.cast_signed()).max(lowest);
    let clamped = level.tokens > bound;
    if clamped {
        *level = Level { tokens: bound, remainder: 0 };
    }
    clamped
}

/// Tokens that the caller would hold, its low water included: while tokens are plenty (zero: it
/// wants no lease), and while they are scarce.
pub(crate) fn wanted(request: &Request) -> [i64; 2] {
    let demand = request.demand_per_s;
    if demand == 0 {
        return [0; 2];
    }
    let low_water = request.low_water.cast_signed();
    let scarce = u128::from(demand) * u128::from(request.scarce_poll_us) / 1_000_000;
    let plenty = (demand / 10).max(demand.min(4));
    [
        plenty.cast_signed().saturating_add(low_water),
        i64::try_from(scarce).unwrap_or(i64::MAX).saturating_add(low_water),
    ]
}

/// Most tokens that gateways hold under a plan, all together; none where leases do not pay.
pub(crate) fn most_lent(limits: &Limits) -> u64 {
    let lendable = |limit| if pays_to_lease(limit) { lendable(limit) } else { 0 };
    limits.iter().map(lendable).min().unwrap_or(0)
}

fn pays_to_lease(limit: Limit) -> bool {
    let refill = limit.refill();
    let fill_time = u128::from(limit.capacity().get()) * u128::from(refill.per_us());
    !refill.is_fixed_allowance()
        && fill_time >= LEASE_FILL_TIME_MIN_US * u128::from(refill.tokens())
}

/// Most tokens lent of one bucket: 25 ms of refill, but between a tenth and a quarter of it.
fn lendable(limit: Limit) -> u64 {
    let capacity = limit.capacity().get();
    let earned = 25_000 * limit.refill().tokens() / limit.refill().per_us();
    earned.clamp(capacity / 10, capacity / 4)
}

/// Until the fuller level is full and every lease is dead: an expired key is a full bucket.
fn keep_ms(state: &State) -> u64 {
    let longest = state.levels.with(&state.plan.limits).map(|(level, limit)| {
        match level.time_until(limit.capacity().get(), limit) {
            Some(wait) => u64::try_from(wait.as_micros()).unwrap_or(u64::MAX).div_ceil(1_000),
            None => FIXED_ALLOWANCE_KEPT_MS,
        }
    });
    longest.max().unwrap_or(0) + 2 * GENERATION_US / 1_000 + 250
}
