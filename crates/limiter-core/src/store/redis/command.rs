//! The script's argument and reply: one text of numbers each.
//!
//! `take.lua` holds the other half; its header lists every number and its width. A text costs a
//! server much less than the numbers in it would, sent one by one. A reply that does not fit is an
//! error here, never a guess.

use crate::bucket;
use crate::call::{
    Found, GENERATION_US, LeaseReport, Level, Levels, Owed, PlanNumbers, PlanVersion, Reply,
    Request, Witness,
};
use crate::limit::{Limit, Limits};
use crate::time::Timestamp;
use crate::units::{Capacity, EXACT_BOUND, RefillRate};

/// Bytes of a plain take or peek.
const PLAIN_BYTES: usize = 1 + 11 * 8 + size_of::<u16>();
/// Bytes of a call that is about a lease or returns tokens.
const LEASE_BYTES: usize = PLAIN_BYTES + 7 * 8;
/// Bytes of a call that is about losses.
const FULL_BYTES: usize = LEASE_BYTES + 8 * 8;

const FLAG_PEEK: u8 = 1;
const FLAG_WITNESS_FORCED: u8 = 2;
/// Where a lease or a witness is missing: no generation and no version is below zero.
const NONE: i64 = -1;

/// Kinds of a head: of a burst bucket alone, of both buckets.
const KIND_BURST: u8 = 16;
const KIND_BOTH: u8 = 32;
const KIND_LEASE_DEAD: u8 = 4;

/// Widths of stored integers, in bytes.
pub(crate) mod width {
    /// Granted tokens, capacities, tokens that may be lent.
    pub(crate) const TOKENS: usize = 5;
    /// A lease: tokens fit in 32 bits. Also the tokens of a refill rate.
    pub(crate) const LENT: usize = 4;
    /// Times, versions, totals, periods and parts of a token.
    pub(crate) const EXACT: usize = 7;
    /// A level, with its sign; sums of leases.
    pub(crate) const LEVEL: usize = 6;
}

/// What a reply that does not fit is called.
#[derive(Debug, thiserror::Error)]
#[error("the bucket script's reply does not fit: {what}")]
pub(crate) struct BadReply {
    what: &'static str,
}

/// The one argument that follows the key; the reply repeats `tag`.
pub(crate) fn argument(request: &Request, tag: u16) -> Vec<u8> {
    let Request { lease, witness, owed, .. } = *request;
    let about_losses = witness.is_some() || owed != Owed::default();
    let about_leases = lease.is_some() || request.demand_per_s > 0 || request.unused_need > 0;
    let mut text = Vec::with_capacity(FULL_BYTES);
    text.push(flags(request));
    put(&mut text, &plain_numbers(request));
    if about_leases || about_losses {
        put(&mut text, &lease_numbers(request));
    }
    if about_losses {
        put(&mut text, &loss_numbers(owed, witness));
    }
    text.extend_from_slice(&tag.to_le_bytes());
    debug_assert!([PLAIN_BYTES, LEASE_BYTES, FULL_BYTES].contains(&text.len()));
    text
}

fn flags(request: &Request) -> u8 {
    let mut flags = 0;
    if request.peek {
        flags |= FLAG_PEEK;
    }
    if request.witness.is_some_and(|witness| witness.force) {
        flags |= FLAG_WITNESS_FORCED;
    }
    flags
}

fn plain_numbers(request: &Request) -> [i64; 11] {
    let limits = &request.plan.limits;
    let [c, n, p] = limit_numbers(limits.burst);
    let [cs, ns, ps] = limits.sustained.map_or([0; 3], limit_numbers);
    let version = whole(request.plan.version.0);
    let most = whole(bucket::most_lent(limits));
    let (need, smallest) = (whole(request.need), whole(request.smallest_need));
    [version, c, n, p, cs, ns, ps, most, need, smallest, whole(request.reset.0)]
}

fn lease_numbers(request: &Request) -> [i64; 7] {
    let [plenty, scarce] = bucket::wanted(request);
    let unused = whole(request.unused_need);
    let [generation, counted, held, returned] =
        request.lease.map_or([NONE, 0, 0, 0], |lease: LeaseReport| {
            [lease.generation, lease.counted, lease.held, lease.returned].map(whole)
        });
    [plenty, scarce, unused, generation, counted, held, returned]
}

fn loss_numbers(owed: Owed, witness: Option<Witness>) -> [i64; 8] {
    let (burst, sustained) = (whole(owed.burst), whole(owed.sustained));
    let Some(seen) = witness else { return [burst, sustained, NONE, 0, 0, 0, 0, 0] };
    let (version, at) = (whole(seen.version.0), whole(seen.at.us()));
    let (total, incarnation) = (whole(seen.granted_total), whole(seen.incarnation));
    [burst, sustained, version, at, seen.burst, seen.sustained, total, incarnation]
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn put(text: &mut Vec<u8>, numbers: &[i64]) {
    for number in numbers {
        text.extend_from_slice(&double(*number).to_le_bytes());
    }
}

#[expect(clippy::cast_precision_loss, reason = "what matters is below 2^53")]
const fn double(number: i64) -> f64 {
    number as f64
}

/// Capacity, tokens and period.
pub(crate) fn limit_numbers(limit: Limit) -> [i64; 3] {
    let refill = limit.refill();
    [limit.capacity().get(), refill.tokens(), refill.per_us()].map(u64::cast_signed)
}

/// Reads the reply to `asked`, which must bear its `tag`: a server or a proxy that has mixed replies
/// up would have one bucket decide for another. What follows from its time and the request is not sent.
pub(crate) fn reply(text: &[u8], asked: &Request, tag: u16) -> Result<Reply, BadReply> {
    let (text, of) = text.split_last_chunk().ok_or(BadReply { what: "too short" })?;
    if u16::from_le_bytes(*of) != tag {
        return Err(BadReply { what: "it answers another call" });
    }
    let mut fields = Fields { text };
    let granted = fields.whole(width::TOKENS)?;
    let lent = fields.whole(width::LENT)?;
    let wanted = bucket::wanted(asked).into_iter().max().unwrap_or(0);
    if granted > asked.need || lent > wanted.cast_unsigned() {
        return Err(BadReply { what: "more than was asked for" });
    }
    let kind = fields.byte()?;
    let at = Timestamp::from_us(fields.whole(width::EXACT)?);
    let burst = fields.level()?;
    let outstanding = fields.whole(width::LEVEL)? + fields.whole(width::LEVEL)?;
    let granted_total = fields.whole(width::EXACT)?;
    let incarnation = fields.whole(width::EXACT)?;
    let both = kind & !(KIND_LEASE_DEAD | 3) == KIND_BOTH;
    if !both && kind & !(KIND_LEASE_DEAD | 3) != KIND_BURST {
        return Err(BadReply { what: "kind" });
    }
    let sustained = if both { fields.level()? } else { Level::default() };
    let found = match kind & 3 {
        0 => Found::Known,
        1 => Found::Nothing,
        2 => Found::Unreadable,
        _ => return Err(BadReply { what: "found" }),
    };
    let plan = if fields.text.is_empty() { asked.plan } else { fields.plan(both)? };
    if plan.limits.sustained.is_some() != both || !fields.text.is_empty() {
        return Err(BadReply { what: "buckets" });
    }
    let lease_dead = kind & KIND_LEASE_DEAD != 0;
    let held = asked.lease.filter(|_| !lease_dead).map_or(0, |lease| lease.held);
    let generation = at.us() / GENERATION_US;
    let death = Timestamp::from_us((generation + 2) * GENERATION_US);
    Ok(Reply {
        granted,
        lent,
        counted: held + lent,
        generation,
        valid: death.since(at),
        lease_dead,
        levels: Levels { burst, sustained },
        outstanding,
        at,
        granted_total,
        incarnation,
        plan,
        found,
    })
}

struct Fields<'a> {
    text: &'a [u8],
}

impl Fields<'_> {
    fn take(&mut self, width: usize) -> Result<[u8; 8], BadReply> {
        let short = BadReply { what: "too short" };
        let (first, rest) = self.text.split_at_checked(width).ok_or(short)?;
        self.text = rest;
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(first).for_each(|(byte, read)| *byte = *read);
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, BadReply> {
        self.take(1).map(|[byte, ..]| byte)
    }

    fn whole(&mut self, width: usize) -> Result<u64, BadReply> {
        let number = u64::from_le_bytes(self.take(width)?);
        let wrong = BadReply { what: "a number is out of range" };
        if number < EXACT_BOUND { Ok(number) } else { Err(wrong) }
    }

    fn level(&mut self) -> Result<Level, BadReply> {
        let unsigned = u64::from_le_bytes(self.take(width::LEVEL)?);
        let above = 64 - 8 * u32::try_from(width::LEVEL).unwrap_or(0);
        let tokens = (unsigned << above).cast_signed() >> above;
        Ok(Level { tokens, remainder: self.whole(width::EXACT)? })
    }

    /// A limit whose numbers are exactly these.
    fn limit(&mut self) -> Result<Limit, BadReply> {
        let capacity = self.whole(width::TOKENS)?;
        let (tokens, per_us) = (self.whole(width::LENT)?, self.whole(width::EXACT)?);
        let exact = || {
            let limit =
                Limit::new(Capacity::new(capacity).ok()?, RefillRate::new(tokens, per_us).ok()?)
                    .ok()?;
            let refill = limit.refill();
            (refill.tokens() == tokens && refill.per_us() == per_us).then_some(limit)
        };
        exact().ok_or(BadReply { what: "a limit is out of range" })
    }

    fn plan(&mut self, both: bool) -> Result<PlanNumbers, BadReply> {
        let version = PlanVersion(self.whole(width::EXACT)?);
        let burst = self.limit()?;
        let _most_lent = self.whole(width::TOKENS)?;
        let sustained = if both { Some(self.limit()?) } else { None };
        Ok(PlanNumbers { version, limits: Limits { burst, sustained } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(sustained: bool) -> Request {
        let limit = |capacity: u64| {
            let rate = RefillRate::per_second(3).unwrap();
            Limit::new(Capacity::new(capacity).unwrap(), rate).unwrap()
        };
        let limits = Limits { burst: limit(10), sustained: sustained.then(|| limit(20)) };
        let take = Request::take(PlanNumbers { version: PlanVersion(4), limits }, 3, 1);
        Request { demand_per_s: 100, ..take }
    }

    const TAG: u16 = 0x0102;

    /// 3 granted, 2 lent, 7 microseconds, level −1 and part 5, 2 and 1 lent, total 9, incarnation 8; the tag.
    fn head(kind: u8) -> Vec<u8> {
        let mut text = vec![3, 0, 0, 0, 0, 2, 0, 0, 0, kind, 7, 0, 0, 0, 0, 0, 0];
        text.extend([0xff; 6]);
        text.extend([5, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
        text.extend([9, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0]);
        text.extend(TAG.to_le_bytes());
        text
    }

    #[test]
    fn a_reply_is_read_number_by_number() {
        let read = reply(&head(16 + 4 + 1), &asked(false), TAG).unwrap();
        assert_eq!((read.granted, read.lent, read.counted), (3, 2, 2));
        assert_eq!(read.levels.burst, Level { tokens: -1, remainder: 5 });
        assert_eq!((read.at.us(), read.outstanding), (7, 3));
        assert_eq!((read.granted_total, read.incarnation), (9, 8));
        assert_eq!((read.lease_dead, read.found), (true, Found::Nothing));
    }

    #[test]
    fn a_reply_that_does_not_fit_is_an_error_and_never_a_guess() {
        let good = head(16);
        for length in 0..good.len() {
            assert!(reply(&good[..length], &asked(false), TAG).is_err(), "{length} bytes");
        }
        let (whole, tag) = good.split_at(good.len() - 2);
        let longer = [whole, &[0], tag].concat();
        assert!(reply(&longer, &asked(false), TAG).is_err());
        assert!(reply(&good, &asked(true), TAG).is_err(), "one bucket where two are asked for");
        for kind in [0, 16 + 3, 15, 48, 64, 128 + 16] {
            assert!(reply(&head(kind), &asked(false), TAG).is_err(), "kind {kind}");
        }
        assert!(reply(&good, &asked(false), TAG + 1).is_err(), "of another call");
        let modest = Request { need: 2, ..asked(false) };
        assert!(reply(&good, &modest, TAG).is_err(), "more than it was asked for");
        let lone = Request { demand_per_s: 0, ..asked(false) };
        assert!(reply(&good, &lone, TAG).is_err(), "a lease that nobody wanted");
        let mut far = head(16);
        far[10..17].fill(0xff);
        assert!(reply(&far, &asked(false), TAG).is_err(), "a time beyond what is exact");
    }

    #[test]
    fn a_call_is_as_long_as_what_it_is_about() {
        let plain = Request { demand_per_s: 0, ..asked(true) };
        assert_eq!(argument(&plain, TAG).len(), PLAIN_BYTES);
        assert_eq!(argument(&Request { demand_per_s: 1, ..plain }, TAG).len(), LEASE_BYTES);
        assert_eq!(argument(&Request { unused_need: 1, ..plain }, TAG).len(), LEASE_BYTES);
        let owed = Owed { burst: 1, sustained: 0 };
        assert_eq!(argument(&Request { owed, ..plain }, TAG).len(), FULL_BYTES);
    }
}
