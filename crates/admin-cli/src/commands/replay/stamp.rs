//! When a request came, as access logs write it: RFC 3339, the common log format, or seconds,
//! milliseconds or microseconds since 1970. Anything else is no time, never a guess.

const US_PER_S: u64 = 1_000_000;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A moment, and how closely it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Microseconds since 1970.
    pub(super) us: u64,
    /// Nothing finer than the second was written.
    pub(super) whole_second: bool,
}

/// Reads a stamp in any of the forms.
pub(super) fn parse(text: &str) -> Option<Stamp> {
    if text.get(2..3) == Some("/") {
        return common(text);
    }
    if text.get(4..5) == Some("-") {
        return rfc3339(text);
    }
    epoch(text)
}

/// `28/Nov/2026:09:14:02 +0100`
fn common(text: &str) -> Option<Stamp> {
    let month = text.get(3..6)?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    (text.get(6..7)? == "/" && text.get(11..12)? == ":").then_some(())?;
    let days = days(number(text.get(7..11)?)?, month, number(text.get(..2)?)?)?;
    let seconds = seconds_of_day(text.get(12..20)?)?;
    let offset = offset(text.get(20..)?.trim_start())?;
    let us = (days * 86_400 + seconds).checked_add_signed(-offset)? * US_PER_S;
    Some(Stamp { us, whole_second: true })
}

/// `2026-11-28T09:14:02.310Z`
fn rfc3339(text: &str) -> Option<Stamp> {
    let days = days(number(text.get(..4)?)?, number(text.get(5..7)?)?, number(text.get(8..10)?)?)?;
    (text.get(7..8)? == "-" && matches!(text.get(10..11)?, "T" | "t" | " ")).then_some(())?;
    let seconds = seconds_of_day(text.get(11..19)?)?;
    let rest = text.get(19..)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        None => (None, rest),
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            (Some(micros(rest.get(..digits)?)?), rest.get(digits..)?)
        }
    };
    let offset = if matches!(zone, "Z" | "z") { 0 } else { offset(zone)? };
    let whole = (days * 86_400 + seconds).checked_add_signed(-offset)? * US_PER_S;
    Some(Stamp { us: whole + fraction.unwrap_or(0), whole_second: fraction.is_none() })
}

/// `1795857242.310`, `1795857242310`: the length tells the unit.
fn epoch(text: &str) -> Option<Stamp> {
    if let Some((seconds, fraction)) = text.split_once('.') {
        let us = number(seconds)?.checked_mul(US_PER_S)?.checked_add(micros(fraction)?)?;
        return Some(Stamp { us, whole_second: false });
    }
    let value = number(text)?;
    let (unit, whole_second) = match text.len() {
        ..=11 => (US_PER_S, true),
        12..=14 => (1_000, false),
        _ => (1, false),
    };
    Some(Stamp { us: value.checked_mul(unit)?, whole_second })
}

/// Digits alone, at most 17 of them: a later sum cannot overflow.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 17 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A decimal fraction of a second, cut off after the microsecond.
fn micros(digits: &str) -> Option<u64> {
    let kept = digits.get(..digits.len().min(6))?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    let missing = u32::try_from(6 - kept.len()).ok()?;
    Some(number(kept)? * 10_u64.pow(missing))
}

/// `09:14:02`; a leap second counts as the second before.
fn seconds_of_day(text: &str) -> Option<u64> {
    (text.get(2..3)? == ":" && text.get(5..6)? == ":").then_some(())?;
    let [hour, minute, second] =
        [number(text.get(..2)?)?, number(text.get(3..5)?)?, number(text.get(6..8)?)?];
    (hour < 24 && minute < 60 && second <= 60).then(|| hour * 3_600 + minute * 60 + second.min(59))
}

/// `+0100` or `+01:00`, in seconds.
fn offset(text: &str) -> Option<i64> {
    let sign = match text.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let minutes = if text.get(3..4) == Some(":") { text.get(4..)? } else { text.get(3..)? };
    let (hours, minutes) = (number(text.get(1..3)?)?, number(minutes)?);
    (hours < 24 && minutes < 60).then_some(())?;
    i64::try_from(hours * 3_600 + minutes * 60).ok().map(|seconds| sign * seconds)
}

/// Days from 1970 to a date of the Gregorian calendar.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    ((1970..2200).contains(&year) && (1..=length).contains(&day)).then_some(())?;
    // years begin in March here, so that the leap day is their last
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before_the_year = year * 365 + year / 4 - year / 100 + year / 400;
    Some(before_the_year + (153 * month + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, us: u64, whole_second: bool) {
        assert_eq!(parse(text), Some(Stamp { us, whole_second }), "{text}");
    }

    #[test]
    fn the_forms_of_logs_are_read_to_the_microsecond() {
        let at = 1_795_857_242_000_000;
        check("28/Nov/2026:09:14:02 +0000", at, true);
        check("28/Nov/2026:10:14:02 +0100", at, true);
        check("28/Nov/2026:03:44:02 -0530", at, true);
        check("2026-11-28T09:14:02Z", at, true);
        check("2026-11-28 10:44:02+01:30", at, true);
        check("2026-11-28T09:14:02.3Z", at + 300_000, false);
        check("2026-11-28T09:14:02.310987654Z", at + 310_987, false);
        check("1795857242", at, true);
        check("1795857242.25", at + 250_000, false);
        check("1795857242310", at + 310_000, false);
        check("1795857242310987", at + 310_987, false);
        check("1970-01-01T00:00:00Z", 0, true);
    }

    #[test]
    fn dates_are_those_of_another_implementation() {
        for day in 0..80_000_u64 {
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(day * 86_400);
            let text = humantime::format_rfc3339_seconds(at).to_string();
            check(&text, day * 86_400 * US_PER_S, true);
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "-",
            "x",
            "2026-11-28",
            "2026-13-28T09:14:02Z",
            "2026-02-29T00:00:00Z",
            "2026-11-28T24:00:00Z",
            "2026-11-28T09:14:02",
            "2026-11-28T09:14:02.Z",
            "28/Foo/2026:09:14:02 +0000",
            "28/Nov/2026:09:14:02",
            "28/Nov/1969:09:14:02 +0000",
            "1795857242.x",
            "-5",
            "1e9",
            "99999999999999999999",
            "2026-11-28T09:14:0é",
            "31/Apr/2026:09:14:02 +0000",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
