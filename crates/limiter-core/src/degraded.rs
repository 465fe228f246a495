//! What to answer without a store: one share of the plan, and a local bucket pair that holds it.
//!
//! The failure policy is one number, the share of the plan that the whole fleet may admit while
//! degraded. `closed`, `local`, `coarse` and `open` are points on that line, not four mechanisms.

use std::fmt;
use std::str::FromStr;

use crate::limit::{Limit, LimitError, Limits};
use crate::time::Timestamp;

/// Shares are counted in ten-thousandths of the plan.
const WHOLE_PLAN: u64 = 10_000;
const SHARE_MIN: u32 = 100;
const SHARE_MAX: u32 = 1_000_000;

/// The share of a plan that the fleet may admit while it has no store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailurePolicy {
    /// At most this share, in ten-thousandths of the plan; 0 refuses everything.
    Share(u32),
    /// No limit.
    Open,
}

impl FailurePolicy {
    /// Refuses everything.
    pub const CLOSED: FailurePolicy = FailurePolicy::Share(0);
    /// Half of the plan.
    pub const LOCAL: FailurePolicy = FailurePolicy::Share(5_000);
    /// Ten times the plan: protects services that keep no limit of their own. The default.
    pub const COARSE: FailurePolicy = FailurePolicy::Share(100_000);

    /// Whether it refuses everything.
    pub const fn is_closed(self) -> bool {
        matches!(self, FailurePolicy::Share(0))
    }
}

/// A fraction of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanPart {
    parts: u64,
    whole: u64,
}

impl PlanPart {
    /// One gateway's part where all are alike.
    pub fn of_one_in(gateways: u32) -> PlanPart {
        PlanPart { parts: 1, whole: u64::from(gateways.max(1)) }
    }

    /// A part in ten-thousandths; never nothing.
    pub fn of_ten_thousand(parts: u32) -> PlanPart {
        PlanPart { parts: u64::from(parts.max(1)), whole: WHOLE_PLAN }
    }

    /// The part of a failure share (in ten-thousandths of the plan) that falls to this one.
    #[must_use]
    pub fn at_failure_share(self, share: u32) -> PlanPart {
        PlanPart { parts: self.parts * u64::from(share), whole: self.whole * WHOLE_PLAN }
    }

    /// Parts and the number of parts of the whole.
    pub const fn fraction(self) -> (u64, u64) {
        (self.parts, self.whole)
    }

    /// Whether it is the plan or more, for all gateways together at this failure share.
    const fn is_whole_at(share: u32) -> bool {
        share as u64 >= WHOLE_PLAN
    }
}

impl Default for FailurePolicy {
    fn default() -> FailurePolicy {
        FailurePolicy::COARSE
    }
}

impl FromStr for FailurePolicy {
    type Err = LimitError;

    /// A word, or a decimal from 0.01 to 100 with at most four decimals.
    fn from_str(text: &str) -> Result<FailurePolicy, LimitError> {
        match text {
            "closed" => return Ok(FailurePolicy::CLOSED),
            "local" => return Ok(FailurePolicy::LOCAL),
            "coarse" => return Ok(FailurePolicy::COARSE),
            "open" => return Ok(FailurePolicy::Open),
            _ => {}
        }
        share(text)
            .filter(|share| (SHARE_MIN..=SHARE_MAX).contains(share))
            .map(FailurePolicy::Share)
            .ok_or_else(|| LimitError::FailureOutOfRange { value: text.chars().take(40).collect() })
    }
}

fn share(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let plain = |part: &str, longest: usize| {
        (1..=longest).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
    };
    if !plain(whole, 3) || !plain(decimals, 4) {
        return None;
    }
    let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
    Some(whole.parse::<u32>().ok()? * 10_000 + decimals)
}

impl fmt::Display for FailurePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FailurePolicy::Open => f.write_str("open"),
            FailurePolicy::CLOSED => f.write_str("closed"),
            FailurePolicy::LOCAL => f.write_str("local"),
            FailurePolicy::COARSE => f.write_str("coarse"),
            FailurePolicy::Share(share) => {
                let text = format!("{}.{:04}", share / 10_000, share % 10_000);
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// One gateway's part of a plan while degraded: `share ÷ gateways` of both limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalBucket {
    at: Timestamp,
    levels: [LocalLevel; 2],
    /// Levels in use: the plan it began under had so many limits.
    limits: usize,
}

/// What a local bucket answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalAnswer {
    /// The tokens were taken.
    Taken {
        /// Whole tokens left.
        remaining: u64,
    },
    /// Microseconds until the tokens are there; `None`: never.
    Wait(Option<u64>),
}

/// Whole tokens, and the part of the next one in units of the scaled rate's period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct LocalLevel {
    tokens: i64,
    remainder: i128,
}

/// A limit scaled down to one gateway's share. Unlike [`Limit`] it may earn very slowly, so its
/// arithmetic is in 128 bits.
#[derive(Clone, Copy)]
struct ScaledLimit {
    capacity: i64,
    /// The exact capacity is below one token, and was raised to it.
    raised: bool,
    /// Tokens earned in `per_us` microseconds.
    tokens: i128,
    per_us: i128,
}

impl ScaledLimit {
    fn new(limit: Limit, share: u32, part: PlanPart) -> ScaledLimit {
        let (share, parts) = part.at_failure_share(share).fraction();
        let (share, parts) = (i128::from(share), i128::from(parts));
        let capacity = i128::from(limit.capacity().get()) * share / parts;
        ScaledLimit {
            capacity: i64::try_from(capacity).unwrap_or(i64::MAX).max(1),
            raised: capacity < 1,
            tokens: i128::from(limit.refill().tokens()) * share,
            per_us: i128::from(limit.refill().per_us()) * parts,
        }
    }

    /// `fill` ten-thousandths of the capacity.
    fn filled(self, fill: u64) -> LocalLevel {
        let whole = i128::from(WHOLE_PLAN);
        let parts = i128::from(self.capacity) * i128::from(fill.min(WHOLE_PLAN));
        LocalLevel {
            tokens: i64::try_from(parts / whole).unwrap_or(self.capacity),
            remainder: (parts % whole) * self.per_us / whole,
        }
    }

    fn refill(self, level: LocalLevel, elapsed_us: u64) -> LocalLevel {
        let earned = i128::from(elapsed_us) * self.tokens + level.remainder.min(self.per_us - 1);
        let tokens = i128::from(level.tokens) + earned / self.per_us;
        if tokens >= i128::from(self.capacity) {
            return LocalLevel { tokens: self.capacity, remainder: 0 };
        }
        LocalLevel {
            tokens: i64::try_from(tokens).unwrap_or(self.capacity),
            remainder: earned % self.per_us,
        }
    }

    fn wait_us(self, level: LocalLevel, tokens: i64) -> Option<u64> {
        if self.tokens == 0 {
            return None;
        }
        let missing = i128::from(tokens - level.tokens) * self.per_us - level.remainder;
        u64::try_from((missing.max(0) + self.tokens - 1) / self.tokens).ok()
    }
}

impl LocalBucket {
    /// Starts as full as the shared pair was when last seen (`fill`, in ten-thousandths; unknown
    /// counts as full), and full with a share of the whole plan or more. Where this gateway's part
    /// is below one token it starts at `luck` ten-thousandths of one, drawn by the caller, so that
    /// the fleet does not admit one each.
    pub fn start(
        limits: &Limits,
        share: u32,
        part: PlanPart,
        fill: Option<[u64; 2]>,
        luck: u64,
        now: Timestamp,
    ) -> LocalBucket {
        let whole = PlanPart::is_whole_at(share);
        let fill = fill.filter(|_| !whole).unwrap_or([WHOLE_PLAN; 2]);
        let mut levels = [LocalLevel::default(); 2];
        for ((level, limit), fill) in levels.iter_mut().zip(limits.iter()).zip(fill) {
            let scaled = ScaledLimit::new(limit, share, part);
            let fill = if scaled.raised { fill.min(luck) } else { fill };
            *level = scaled.filled(fill);
        }
        LocalBucket { at: now, levels, limits: limits.iter().count() }
    }

    /// Takes `cost` from both buckets or from none. A cost above a bucket's capacity may overdraw
    /// it once, when it is full: otherwise a share of a small plan would refuse it for ever.
    pub fn take(
        &mut self,
        limits: &Limits,
        share: u32,
        part: PlanPart,
        cost: u64,
        now: Timestamp,
    ) -> LocalAnswer {
        self.refill(limits, share, part, now);
        let cost = cost.cast_signed();
        let mut wait = Some(0);
        let mut left = i64::MAX;
        for (level, limit) in self.levels.iter().zip(limits.iter()) {
            let scaled = ScaledLimit::new(limit, share, part);
            let wanted = cost.min(scaled.capacity);
            if level.tokens < wanted {
                let longer = scaled.wait_us(*level, wanted);
                wait = wait.zip(longer).map(|(a, b): (u64, u64)| a.max(b));
            }
            left = left.min(level.tokens - cost);
        }
        if wait != Some(0) {
            return LocalAnswer::Wait(wait);
        }
        for level in self.levels.iter_mut().take(limits.iter().count()) {
            level.tokens -= cost;
        }
        LocalAnswer::Taken { remaining: u64::try_from(left).unwrap_or(0) }
    }

    /// Whether it has a level for each of the plan's limits and no other.
    pub fn knows(&self, limits: &Limits) -> bool {
        self.limits == limits.iter().count()
    }

    /// The plan has won or lost its sustained limit: that one begins as in `fresh`, which would
    /// start now under the new plan. What was used of the burst limit stays used.
    pub fn learn(&mut self, fresh: &LocalBucket) {
        let [_burst, sustained] = &mut self.levels;
        let [_, begun] = fresh.levels;
        *sustained = begun;
        self.limits = fresh.limits;
    }

    /// At the start of another outage: no fuller than a bucket that would start now.
    pub fn lower_to(
        &mut self,
        fresh: &LocalBucket,
        limits: &Limits,
        share: u32,
        part: PlanPart,
        now: Timestamp,
    ) {
        self.refill(limits, share, part, now);
        for (level, fresh) in self.levels.iter_mut().zip(fresh.levels) {
            *level = (*level).min(fresh);
        }
    }

    fn refill(&mut self, limits: &Limits, share: u32, part: PlanPart, now: Timestamp) {
        let elapsed = u64::try_from(now.since(self.at).as_micros()).unwrap_or(u64::MAX);
        self.at = self.at.max(now);
        for (level, limit) in self.levels.iter_mut().zip(limits.iter()) {
            *level = ScaledLimit::new(limit, share, part).refill(*level, elapsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_policy_is_a_word_or_a_share() {
        for (text, policy) in [
            ("closed", FailurePolicy::CLOSED),
            ("local", FailurePolicy::LOCAL),
            ("coarse", FailurePolicy::COARSE),
            ("open", FailurePolicy::Open),
            ("0.5", FailurePolicy::LOCAL),
            ("10", FailurePolicy::COARSE),
            ("0.25", FailurePolicy::Share(2_500)),
            ("0.01", FailurePolicy::Share(100)),
            ("100", FailurePolicy::Share(1_000_000)),
            ("99.9999", FailurePolicy::Share(999_999)),
        ] {
            assert_eq!(text.parse(), Ok(policy), "{text}");
            assert_eq!(policy.to_string().parse(), Ok(policy), "{policy}");
        }
        for text in ["", "Open", "0", "0.009", "100.1", "1e1", "-1", ".5", "5.", "0.12345", "nan"] {
            assert!(text.parse::<FailurePolicy>().is_err(), "{text} must be refused");
        }
    }
}
