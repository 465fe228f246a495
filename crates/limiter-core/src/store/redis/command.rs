//! The script's arguments and reply as numbers.
//!
//! `take.lua` holds the other half; its header lists every position. A reply that does not fit is
//! an error here, never a guess.

use crate::call::{Found, GENERATION_US, Level, Levels, PlanNumbers, PlanVersion, Reply, Request};
use crate::limit::{Limit, Limits};
use crate::time::Timestamp;
use crate::units::{Capacity, EXACT_BOUND, RefillRate};

/// Most arguments of a call.
pub(crate) const ARGUMENTS_MAX: usize = 27;
/// Numbers of a plan: three of each bucket.
pub(crate) const PLAN_NUMBERS: usize = 6;

const FLAG_PEEK: i64 = 1;
const FLAG_LEASE: i64 = 2;
const FLAG_WITNESS: i64 = 4;
const FLAG_WITNESS_FORCED: i64 = 8;

/// What a reply that does not fit is called.
#[derive(Debug, thiserror::Error)]
#[error("the bucket script's reply does not fit: {what}")]
pub(crate) struct BadReply {
    what: &'static str,
}

/// The numbers that follow the key. Trailing zeros are left out: a plain take is 10 numbers.
pub(crate) fn arguments(request: &Request) -> impl Iterator<Item = i64> {
    let numbers = numbers(request);
    let used = numbers.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
    numbers.into_iter().take(used)
}

fn numbers(request: &Request) -> [i64; ARGUMENTS_MAX] {
    let mut all = [0; ARGUMENTS_MAX];
    let mut slots = all.iter_mut();
    let mut put = |number: i64| {
        if let Some(slot) = slots.next() {
            *slot = number;
        }
    };
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    put(whole(request.plan.version.0));
    limits_numbers(&request.plan.limits).into_iter().for_each(&mut put);
    put(whole(request.reset.0));
    put(whole(request.need));
    put(whole(request.smallest_need));
    put(flags(request));
    let owed = request.owed;
    for number in [
        request.demand_per_s,
        request.low_water,
        request.scarce_poll_us,
        request.unused_need,
        owed.burst,
        owed.sustained,
    ] {
        put(whole(number));
    }
    let lease = request.lease.map_or([0; 4], |l| [l.generation, l.counted, l.held, l.returned]);
    lease.into_iter().map(whole).for_each(&mut put);
    if let Some(witness) = request.witness {
        put(whole(witness.at.us()));
        put(witness.burst);
        put(witness.sustained);
        put(whole(witness.granted_total));
        put(whole(witness.incarnation));
        put(whole(witness.version.0));
    }
    all
}

fn flags(request: &Request) -> i64 {
    let mut flags = 0;
    if request.peek {
        flags |= FLAG_PEEK;
    }
    if request.lease.is_some() {
        flags |= FLAG_LEASE;
    }
    if let Some(witness) = request.witness {
        flags |= FLAG_WITNESS;
        if witness.force {
            flags |= FLAG_WITNESS_FORCED;
        }
    }
    flags
}

/// Capacity, tokens and period of the burst limit, then of the sustained one or zeros.
pub(crate) fn limits_numbers(limits: &Limits) -> [i64; PLAN_NUMBERS] {
    let [c, n, p] = limit_numbers(limits.burst);
    let [cs, ns, ps] = limits.sustained.map_or([0; 3], limit_numbers);
    [c, n, p, cs, ns, ps]
}

fn limit_numbers(limit: Limit) -> [i64; 3] {
    let refill = limit.refill();
    [limit.capacity().get(), refill.tokens(), refill.per_us()].map(u64::cast_signed)
}

/// Reads the reply to `asked`. What follows from its time and the request is not sent.
pub(crate) fn reply(numbers: &[i64], asked: &Request) -> Result<Reply, BadReply> {
    let mut fields = Fields { numbers };
    let granted = fields.whole()?;
    let lent = fields.whole()?;
    let lease_dead = fields.whole()? != 0;
    let burst = Level { tokens: fields.next()?, remainder: fields.whole()? };
    let sustained = Level { tokens: fields.next()?, remainder: fields.whole()? };
    let outstanding = fields.whole()?;
    let at = Timestamp::from_us(fields.whole()?);
    let granted_total = fields.whole()?;
    let incarnation = fields.whole()?;
    let found = match fields.next()? {
        0 => Found::Known,
        1 => Found::Nothing,
        2 => Found::Unreadable,
        _ => return Err(BadReply { what: "found" }),
    };
    let version = PlanVersion(fields.whole()?);
    let limits = if fields.numbers.is_empty() { asked.plan.limits } else { fields.limits()? };
    let plan = PlanNumbers { version, limits };
    let held = asked.lease.filter(|_| !lease_dead).map_or(0, |lease| lease.held);
    let generation = at.us() / GENERATION_US;
    let death = Timestamp::from_us((generation + 2) * GENERATION_US);
    let levels = Levels { burst, sustained };
    Ok(Reply {
        granted,
        lent,
        counted: held + lent,
        generation,
        valid: death.since(at),
        lease_dead,
        levels,
        outstanding,
        at,
        granted_total,
        incarnation,
        plan,
        found,
    })
}

struct Fields<'a> {
    numbers: &'a [i64],
}

impl Fields<'_> {
    fn next(&mut self) -> Result<i64, BadReply> {
        let (first, rest) = self.numbers.split_first().ok_or(BadReply { what: "too short" })?;
        self.numbers = rest;
        Ok(*first)
    }

    fn whole(&mut self) -> Result<u64, BadReply> {
        u64::try_from(self.next()?)
            .ok()
            .filter(|number| *number < EXACT_BOUND)
            .ok_or(BadReply { what: "a number is out of range" })
    }

    /// A limit whose numbers are exactly these, or `None` where all three are zero.
    fn limit(&mut self) -> Result<Option<Limit>, BadReply> {
        let (capacity, tokens, per_us) = (self.whole()?, self.whole()?, self.whole()?);
        if capacity == 0 && tokens == 0 && per_us == 0 {
            return Ok(None);
        }
        let exact = || {
            let limit =
                Limit::new(Capacity::new(capacity).ok()?, RefillRate::new(tokens, per_us).ok()?)
                    .ok()?;
            let refill = limit.refill();
            (refill.tokens() == tokens && refill.per_us() == per_us).then_some(limit)
        };
        exact().map(Some).ok_or(BadReply { what: "a limit is out of range" })
    }

    fn limits(&mut self) -> Result<Limits, BadReply> {
        let burst = self.limit()?.ok_or(BadReply { what: "no burst limit" })?;
        Ok(Limits { burst, sustained: self.limit()? })
    }
}
