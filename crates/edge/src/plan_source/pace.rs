//! How often a control plane is asked: soon after what is rare, and about once a second while it
//! changes much, so that a storm of changes costs it no more calls than a quiet day.

use std::ops::RangeInclusive;
use std::time::Duration;

/// First and longest pause after a call that failed.
pub(super) const BACKOFF: RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(5);
/// Pause for each change of an answer: up to fifty a second are told one by one.
const AFTER_CHANGE: Duration = Duration::from_millis(20);
/// Longest pause after changes.
const AFTER_CHANGES_MAX: Duration = Duration::from_secs(1);

/// How long to wait after an answer with so many changes.
pub(super) fn after_changes(changes: usize) -> Duration {
    let changes = u32::try_from(changes).unwrap_or(u32::MAX);
    AFTER_CHANGE.saturating_mul(changes).min(AFTER_CHANGES_MAX)
}

/// Up to a tenth more or less, so that a fleet does not stay in step.
pub(crate) fn jittered(time: Duration) -> Duration {
    time.mul_f64(fastrand::f64().mul_add(0.2, 0.9))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of one gateway while changes come at a steady rate.
    fn calls(every_us: u64, seconds: u64) -> u32 {
        let (mut now_us, mut seen, mut calls) = (0, 0, 0);
        while now_us < seconds * 1_000_000 {
            // It waits for the first change that it has not seen, and is told of it soon.
            now_us = now_us.max((seen + 1) * every_us) + 1_000;
            let known = now_us / every_us;
            calls += 1;
            let pause = after_changes(usize::try_from(known - seen).unwrap());
            seen = known;
            now_us += u64::try_from(pause.as_micros()).unwrap();
        }
        calls
    }

    #[test]
    fn a_storm_costs_about_a_call_a_second_and_what_is_rare_is_told_at_once() {
        assert!(after_changes(1) <= Duration::from_millis(20));
        let (storm, quiet) = (calls(1_000, 10), calls(100_000, 10));
        assert!((10..=14).contains(&storm), "{storm}");
        assert!((95..=101).contains(&quiet), "{quiet}");
    }

    #[test]
    fn jitter_is_a_tenth_either_way() {
        let times: Vec<_> = (0..1_000).map(|_| jittered(Duration::from_secs(10))).collect();
        let bounds = Duration::from_millis(8_999)..=Duration::from_millis(11_001);
        assert!(times.iter().all(|time| bounds.contains(time)));
        let spread = times.iter().max().unwrap().abs_diff(*times.iter().min().unwrap());
        assert!(spread > Duration::from_secs(1), "{spread:?}");
    }
}
