//! What the script keeps under a key beside the model's state: the last reply as its head, the
//! plan in force, and until when the key lives. The lifetime is the script's own rule, so it is
//! written down here a second time.

use crate::bucket::{Applied, State, most_lent};
use crate::call::{Found, GENERATION_US, PlanNumbers};
use crate::limit::Limit;
use crate::store::redis::command::{limit_numbers, width};

/// A stored state: the model's, and the store time by which both buckets must be full.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) state: State,
    pub(super) expires_us: u64,
}

/// What a call does with the lifetime of a key that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// Nothing: what is left of it is enough.
    Kept,
    /// A new one, in milliseconds.
    Set(u64),
}

/// What the model adds to the time to full: two generations, and a margin.
const MODEL_SLACK_MS: u64 = TWO_GENERATIONS_MS + MARGIN_MS;
/// Until all leases of now are dead.
const TWO_GENERATIONS_MS: u64 = 2 * GENERATION_US / 1_000;
const MARGIN_MS: u64 = 250;
/// Longer than needed by this and by a quarter, which is at most half a day.
const HEADROOM_MS: u64 = 1_000;
const QUARTER_MAX_MS: u64 = 43_200_000;

/// The lifetime after a call, and the store time that goes with it. `None`: nothing is written.
pub(super) fn lifetime(
    before: Option<Kept>,
    applied: &Applied,
    clock_us: u64,
) -> Option<(Lifetime, u64)> {
    let keep_ms = applied.keep_ms?;
    let same_plan = |kept: &Kept| kept.state.plan.version == applied.state.plan.version;
    if let Some(kept) = before.filter(same_plan)
        && covers(kept.expires_us, applied)
    {
        return Some((Lifetime::Kept, kept.expires_us));
    }
    let needed_ms = keep_ms - MODEL_SLACK_MS + held_up_ms(applied);
    let lives_ms = needed_ms + (needed_ms / 4).min(QUARTER_MAX_MS) + HEADROOM_MS;
    let expires_us = in_doubles(clock_us + lives_ms * 1_000);
    Some((Lifetime::Set(lives_ms + MARGIN_MS), expires_us))
}

/// Centuries ahead a microsecond is lost, and nobody minds.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what the script's numbers do"
)]
const fn in_doubles(us: u64) -> u64 {
    us as f64 as u64
}

fn held_up_ms(applied: &Applied) -> u64 {
    if applied.reply.outstanding > 0 { TWO_GENERATIONS_MS } else { 0 }
}

fn covers(expires_us: u64, applied: &Applied) -> bool {
    let limits = applied.state.plan.limits;
    let needed_us = applied.state.at.us() + held_up_ms(applied) * 1_000;
    let left_us = i128::from(expires_us) - i128::from(needed_us);
    applied.state.levels.with(&limits).all(|(level, limit)| {
        let refill = limit.refill();
        let missing = i128::from(limit.capacity().get()) - i128::from(level.tokens);
        left_us * i128::from(refill.tokens()) >= missing * i128::from(refill.per_us())
    })
}

/// The bytes after a call that wrote.
pub(super) fn bytes_after(applied: &Applied, expires_us: u64) -> Vec<u8> {
    let reply = &applied.reply;
    let found = match reply.found {
        Found::Known => 0,
        Found::Nothing => 1,
        Found::Unreadable => 2,
    };
    let kind = found + if reply.lease_dead { 4 } else { 0 };
    bytes(&applied.state, expires_us, (reply.granted, reply.lent, kind))
}

impl Kept {
    /// The bytes of some call that left this state.
    pub(super) fn bytes(&self) -> Vec<u8> {
        bytes(&self.state, self.expires_us, (1, 0, 0))
    }
}

fn bytes(state: &State, expires_us: u64, (granted, lent, kind): (u64, u64, u64)) -> Vec<u8> {
    let both = state.plan.limits.sustained.is_some();
    let mut bytes = Vec::new();
    let mut put = |number: u64, width: usize| {
        bytes.extend(number.to_le_bytes().into_iter().take(width));
    };
    put(granted, width::TOKENS);
    put(lent, width::LENT);
    put(kind + if both { 32 } else { 16 }, 1);
    put(state.at.us(), width::EXACT);
    put(state.levels.burst.tokens.cast_unsigned(), width::LEVEL);
    put(state.levels.burst.remainder, width::EXACT);
    put(state.lent_now, width::LEVEL);
    put(state.lent_before, width::LEVEL);
    put(state.granted_total, width::EXACT);
    put(state.incarnation, width::EXACT);
    if both {
        put(state.levels.sustained.tokens.cast_unsigned(), width::LEVEL);
        put(state.levels.sustained.remainder, width::EXACT);
    }
    put(expires_us, width::EXACT);
    put_plan(&state.plan, &mut put);
    bytes
}

fn put_plan(plan: &PlanNumbers, put: &mut impl FnMut(u64, usize)) {
    let limits = &plan.limits;
    put(plan.version.0, width::EXACT);
    put_limit(limits.burst, put);
    put(most_lent(limits), width::TOKENS);
    if let Some(sustained) = limits.sustained {
        put_limit(sustained, put);
    }
}

fn put_limit(limit: Limit, put: &mut impl FnMut(u64, usize)) {
    let [capacity, tokens, period] = limit_numbers(limit).map(i64::cast_unsigned);
    put(capacity, width::TOKENS);
    put(tokens, width::LENT);
    put(period, width::EXACT);
}

/// Numbers of a state with a burst bucket alone that have an impossible value: where they are, how
/// wide, and which byte makes them so.
pub(super) const IMPOSSIBLE: [(usize, usize, u8); 10] = [
    (AT, width::EXACT, 0xff),
    (AT + 7, width::LEVEL, 0x7f),
    (AT + 7, width::LEVEL, 0x80),
    (AT + 13, width::EXACT, 0xff),
    (AT + 32, width::EXACT, 0xff),
    (AT + 39, width::EXACT, 0xff),
    (TAIL + 7, width::EXACT, 0xff),
    (TAIL + 14, width::TOKENS, 0),
    (TAIL + 19, width::LENT, 0xff),
    (TAIL + 23, width::EXACT, 0),
];
/// Where the kind is, the time, and the tail of a burst bucket alone.
pub(super) const KIND: usize = width::TOKENS + width::LENT;
const AT: usize = KIND + 1;
const TAIL: usize = AT + 46;
