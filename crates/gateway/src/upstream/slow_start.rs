//! An endpoint that came back takes its share of requests little by little, so that cold caches
//! and pools are filled before the load is whole (pure).

use std::time::Duration;

/// The share that it begins with, in hundredths of its weight.
const LEAST: u64 = 10;
/// All of it.
const WHOLE: u64 = 100;

/// Hundredths of its weight that an endpoint counts with which came back at `returned_us`; 0 if it
/// was never away.
pub(crate) fn share(returned_us: u64, now_us: u64, slow_start: Option<Duration>) -> u64 {
    let Some(slow_start) = slow_start.filter(|_| returned_us > 0) else { return WHOLE };
    let whole_us = u64::try_from(slow_start.as_micros()).unwrap_or(u64::MAX).max(1);
    let since_us = now_us.saturating_sub(returned_us);
    if whole_us <= since_us {
        WHOLE
    } else {
        (since_us.saturating_mul(WHOLE) / whole_us).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_grows_evenly_from_a_tenth_to_the_whole() {
        let ten = Some(Duration::from_secs(10));
        let at = |second: u64| share(7, 7 + second * 1_000_000, ten);
        let grown: Vec<u64> = (0..12).map(at).collect();
        assert_eq!(grown, [10, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100]);
    }

    #[test]
    fn who_was_never_away_or_has_no_slow_start_has_it_all() {
        assert_eq!(share(0, 1, Some(Duration::from_secs(10))), 100);
        assert_eq!(share(7, 8, None), 100);
        assert_eq!(share(9, 8, Some(Duration::from_secs(10))), 10, "away for a moment more");
    }
}
