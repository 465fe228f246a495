//! What is counted: tokens, costs, capacities and refill rates, as exact integers.
//!
//! No floating point passes this file in either direction: a rate is a reduced fraction of whole
//! tokens per whole microseconds, so neither one token a day nor a million a second drifts.
//! Text becomes a number only in plain decimal (`50/s`, `30/10s`, `0`); anything else is an error
//! that names the value, never a default.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::limit::LimitError;

/// Largest capacity of a bucket, in tokens.
pub const CAPACITY_MAX: u64 = 1_000_000_000_000;
/// Most tokens earned per period, and most per second.
pub const REFILL_TOKENS_MAX: u64 = 1_000_000_000;
/// Longest refill period: 31 days, in microseconds.
pub const REFILL_PERIOD_US_MAX: u64 = 31 * 86_400 * 1_000_000;
/// Integers below this are exact in a double, hence in a Redis script.
pub const EXACT_BOUND: u64 = 1 << 53;

const US_PER_S: u64 = 1_000_000;

/// Whole tokens: what a bucket holds or a request leaves.
pub type Tokens = u64;

/// Most tokens a bucket can hold, which is also the largest burst: 1 to 10¹².
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capacity(u64);

impl Capacity {
    /// Checks the range 1 ..= [`CAPACITY_MAX`].
    pub fn new(tokens: u64) -> Result<Capacity, LimitError> {
        if (1..=CAPACITY_MAX).contains(&tokens) {
            Ok(Capacity(tokens))
        } else {
            Err(LimitError::CapacityOutOfRange { value: tokens.to_string() })
        }
    }

    /// The number of tokens.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Tokens that one request takes: 0 to 10¹².
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// The cost of a request for which nothing else is said.
    pub const ONE: Cost = Cost(1);

    /// Checks the range 0 ..= [`CAPACITY_MAX`].
    pub fn new(tokens: u64) -> Result<Cost, LimitError> {
        if tokens <= CAPACITY_MAX {
            Ok(Cost(tokens))
        } else {
            Err(LimitError::CostOutOfRange { value: tokens.to_string() })
        }
    }

    /// The number of tokens.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Tokens earned per time, as a reduced fraction: `tokens` every `per_us` microseconds.
///
/// Zero exists only as [`RefillRate::FIXED_ALLOWANCE`]: a rate that became zero by mistake is
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefillRate {
    tokens: u64,
    per_us: u64,
}

impl RefillRate {
    /// Never refilled. Its denials end never.
    pub const FIXED_ALLOWANCE: RefillRate = RefillRate { tokens: 0, per_us: 1 };

    /// `tokens` (1 ..= 10⁹) every `per_us` microseconds (1 ..= 31 days), at most 10⁹ per second;
    /// 0 tokens means the fixed allowance.
    pub fn new(tokens: u64, per_us: u64) -> Result<RefillRate, LimitError> {
        if tokens == 0 && per_us > 0 {
            return Ok(RefillRate::FIXED_ALLOWANCE);
        }
        let in_range = (1..=REFILL_TOKENS_MAX).contains(&tokens)
            && (1..=REFILL_PERIOD_US_MAX).contains(&per_us)
            && tokens.saturating_mul(US_PER_S) <= REFILL_TOKENS_MAX.saturating_mul(per_us);
        if !in_range {
            return Err(LimitError::RefillOutOfRange { value: format!("{tokens}/{per_us}us") });
        }
        let divisor = greatest_common_divisor(tokens, per_us);
        Ok(RefillRate { tokens: tokens / divisor, per_us: per_us / divisor })
    }

    /// `tokens` every second.
    pub fn per_second(tokens: u64) -> Result<RefillRate, LimitError> {
        RefillRate::new(tokens, US_PER_S)
    }

    /// Numerator of the reduced fraction: whole tokens.
    pub const fn tokens(self) -> u64 {
        self.tokens
    }

    /// Denominator of the reduced fraction: microseconds.
    pub const fn per_us(self) -> u64 {
        self.per_us
    }

    /// Whether this is the fixed allowance.
    pub const fn is_fixed_allowance(self) -> bool {
        self.tokens == 0
    }

    /// Tokens earned in one second, rounded up.
    pub const fn per_second_ceil(self) -> u64 {
        (self.tokens * US_PER_S).div_ceil(self.per_us)
    }

    /// Time in which `tokens` are earned, rounded up; `None` for the fixed allowance.
    pub fn time_for(self, tokens: u64) -> Option<Duration> {
        if self.tokens == 0 {
            return None;
        }
        let us = (u128::from(tokens) * u128::from(self.per_us)).div_ceil(u128::from(self.tokens));
        Some(Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX)))
    }

    /// The fraction nearest to this one whose period is at most `per_us_max`, if it lies within
    /// one part in 10⁹ (continued fractions).
    pub(crate) fn approximated(self, per_us_max: u64) -> Option<RefillRate> {
        if self.per_us <= per_us_max {
            return Some(self);
        }
        let (mut numerator, mut denominator) = (u128::from(self.tokens), u128::from(self.per_us));
        let (mut before, mut last) = ((0_u128, 1_u128), (1_u128, 0_u128));
        while denominator > 0 {
            let whole = numerator / denominator;
            let next = (whole * last.0 + before.0, whole * last.1 + before.1);
            if next.1 > u128::from(per_us_max) {
                break;
            }
            (before, last) = (last, next);
            (numerator, denominator) = (denominator, numerator % denominator);
        }
        let (tokens, per_us) = last;
        let exact = u128::from(self.tokens) * per_us;
        let error = exact.abs_diff(tokens * u128::from(self.per_us));
        let close = tokens > 0 && per_us > 0 && error * 1_000_000_000 <= exact;
        close
            .then(|| Some((u64::try_from(tokens).ok()?, u64::try_from(per_us).ok()?)))
            .flatten()
            .and_then(|(tokens, per_us)| RefillRate::new(tokens, per_us).ok())
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Plain decimal digits only, as in files, flags and bodies.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.len() <= 19 && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

impl FromStr for RefillRate {
    type Err = LimitError;

    /// `N/s`, `N/m`, `N/h`, `N/d`, with an optional number before the unit (`30/10s`), or `0`.
    fn from_str(text: &str) -> Result<RefillRate, LimitError> {
        let refused = || LimitError::RefillUnreadable { value: text.chars().take(40).collect() };
        if text == "0" {
            return Ok(RefillRate::FIXED_ALLOWANCE);
        }
        let (tokens, period) = text.split_once('/').ok_or_else(refused)?;
        let mut unit = period.chars();
        let seconds = match unit.next_back() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3_600,
            Some('d') => 86_400,
            _ => return Err(refused()),
        };
        let count = match unit.as_str() {
            "" => 1,
            number => digits(number).ok_or_else(refused)?,
        };
        let out_of_range = || LimitError::RefillOutOfRange { value: text.to_owned() };
        let tokens = digits(tokens).filter(|tokens| *tokens > 0).ok_or_else(refused)?;
        let per_us = count.checked_mul(seconds * US_PER_S).ok_or_else(out_of_range)?;
        RefillRate::new(tokens, per_us).map_err(|_in_other_units| out_of_range())
    }
}

impl fmt::Display for RefillRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fixed_allowance() {
            return f.write_str("0");
        }
        // The longest unit in which a whole number of tokens is earned reads best.
        for (unit, us) in [('s', US_PER_S), ('m', 60 * US_PER_S), ('h', 3_600 * US_PER_S)] {
            if (self.tokens * us).is_multiple_of(self.per_us) {
                return write!(f, "{}/{unit}", self.tokens * us / self.per_us);
            }
        }
        let day = u128::from(self.tokens) * u128::from(86_400 * US_PER_S);
        if day.is_multiple_of(u128::from(self.per_us)) {
            return write!(f, "{}/d", day / u128::from(self.per_us));
        }
        // Scale up to whole seconds: `tokens·k` every `per_us·k`.
        let factor = US_PER_S / greatest_common_divisor(self.per_us, US_PER_S);
        write!(f, "{}/{}s", self.tokens * factor, self.per_us * factor / US_PER_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refill_text_is_read_exactly_or_refused() {
        let read = |text: &str| text.parse::<RefillRate>().map(|rate| (rate.tokens, rate.per_us));
        for (text, fraction) in [
            ("50/s", (1, 20_000)),
            ("1500/s", (3, 2_000)),
            ("30/10s", (3, 1_000_000)),
            ("6/m", (1, 10_000_000)),
            ("2000000/d", (1, 43_200)),
            ("1/1000s", (1, 1_000_000_000)),
            ("1000000000/s", (1_000, 1)),
            ("1/31d", (1, REFILL_PERIOD_US_MAX)),
            ("0", (0, 1)),
        ] {
            assert_eq!(read(text), Ok(fraction), "{text}");
        }
        for text in [
            "",
            "10/mn",
            "5x",
            "-5s",
            "-5/s",
            "+5/s",
            "0x10",
            "0x10/s",
            "nan",
            "inf",
            "1e400",
            "1e3/s",
            "5/",
            "/s",
            "5/s ",
            " 5/s",
            "5/-1s",
            "5/0s",
            "0/s",
            "5/us",
            "٣/s",
            "1.5/s",
            "1000000001/s",
            "1/32d",
            "99999999999999999999/s",
            "1/99999999999999999999s",
            "5//s",
            "5/s/s",
        ] {
            assert!(read(text).is_err(), "{text} must be refused");
        }
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same_rate() {
        for (tokens, per_us) in [
            (50, 1_000_000),
            (1, 86_400_000_000),
            (7, 10),
            (1, 7),
            (999_983, 1_000_000),
            (1, REFILL_PERIOD_US_MAX),
            (2_000_000, 86_400_000_000),
        ] {
            let rate = RefillRate::new(tokens, per_us).unwrap();
            assert_eq!(rate.to_string().parse(), Ok(rate), "{rate}");
        }
        assert_eq!(
            RefillRate::FIXED_ALLOWANCE.to_string().parse(),
            Ok(RefillRate::FIXED_ALLOWANCE)
        );
    }

    #[test]
    fn capacity_and_cost_have_bounds() {
        assert!(Capacity::new(0).is_err());
        assert!(Capacity::new(CAPACITY_MAX).is_ok());
        assert!(Capacity::new(CAPACITY_MAX + 1).is_err());
        assert!(Cost::new(0).is_ok());
        assert!(Cost::new(CAPACITY_MAX + 1).is_err());
    }
}
