//! When a gateway asks the feed again: at once while changes are few, once a second while there are
//! many, whatever their number. A busy control plane then answers each gateway as often as a quiet
//! one would, with more in each answer.
//!
//! An answer with n changes takes n² from a small stock: single changes go on at once, and changes
//! that come together are told together from then on. While the stock is empty, calls *begin* at
//! least [`CALL_EVERY`] apart; one that has waited that long for its answer is followed at once.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;

/// First and longest pause after a call that failed.
pub(super) const BACKOFF: RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(5);

/// Twenty single changes in a row are fetched as they come …
const STOCK_MAX: f64 = 20.0;
/// … and so many a second for long.
const STOCK_PER_SECOND: f64 = 2.0;
/// Least time between the beginnings of two calls while changes are many …
const CALL_EVERY: Duration = Duration::from_millis(1_030);
/// … and up to so much more, so that a fleet does not stay in step.
const CALL_EVERY_MORE_MS: u64 = 40;

/// Up to a tenth more or less, so that a fleet does not stay in step.
pub(crate) fn jittered(time: Duration) -> Duration {
    time.mul_f64(fastrand::f64().mul_add(0.2, 0.9))
}

/// One gateway's pace.
#[derive(Debug)]
pub(super) struct Pace {
    stock: f64,
    counted: Instant,
    /// The last call must have begun this long ago.
    every: Duration,
    begun: Option<Instant>,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { stock: STOCK_MAX, counted: now, every: Duration::ZERO, begun: None }
    }

    /// When the next call may begin.
    pub(super) fn next(&self, now: Instant) -> Instant {
        self.begun.map_or(now, |begun| (begun + self.every).max(now))
    }

    /// A call begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// A call was answered with so many changes. Of `more` are those that keep a fleet out of step.
    pub(super) fn took(&mut self, changes: usize, now: Instant, more: f64) {
        let changes = f64::from(u32::try_from(changes).unwrap_or(u32::MAX));
        let elapsed = now.saturating_duration_since(self.counted).as_secs_f64();
        let grown = elapsed.mul_add(STOCK_PER_SECOND, self.stock).min(STOCK_MAX);
        self.counted = now;
        self.stock = changes.mul_add(-changes, grown).max(0.0);
        self.every = if self.stock >= 1.0 || changes == 0.0 {
            Duration::ZERO
        } else {
            CALL_EVERY + Duration::from_millis(CALL_EVERY_MORE_MS).mul_f64(more.clamp(0.0, 1.0))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// Plays `changes` a second for `seconds`: an answer is given as soon as a change is there, and
    /// holds all that are. The number of calls and the longest time that a change has waited.
    fn play(per_second: u64, seconds: u64) -> (u64, u64) {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let gap = 1_000 / per_second;
        let (mut told, mut calls, mut longest, mut now) = (0, 0, 0, 0);
        while told < per_second * seconds {
            // The call begins; the next change is at (told + 1) × gap, or was before.
            now = (1_u64..)
                .map(|ms| now + ms - 1)
                .find(|ms| pace.next(at(start, *ms)) <= at(start, *ms))
                .unwrap();
            pace.begin(at(start, now));
            calls += 1;
            let first = (told + 1) * gap;
            // The other side gathers for a moment.
            now = if first > now { first + 40 } else { now + 1 };
            let all = now / gap;
            longest = longest.max(now - first);
            pace.took(usize::try_from(all - told).unwrap(), at(start, now), 0.5);
            told = all;
        }
        (calls, longest)
    }

    #[test]
    fn many_changes_cost_one_call_a_second_and_wait_little_longer_than_that() {
        for per_second in [20, 100, 500] {
            let (calls, longest) = play(per_second, 60);
            assert!(calls <= 60 + 20 && (per_second < 100 || calls <= 60), "{per_second}: {calls}");
            assert!(longest < 1_200, "{per_second}: {longest} ms");
        }
    }

    #[test]
    fn two_changes_a_second_and_twenty_in_a_row_are_fetched_as_they_come() {
        let (calls, longest) = play(2, 60);
        assert!(calls >= 119 && longest <= 41, "{calls} calls, {longest} ms");
        let (calls, longest) = play(10, 2);
        assert!(calls >= 19 && longest <= 41, "{calls} calls, {longest} ms");
    }

    #[test]
    fn a_call_that_has_waited_long_is_followed_at_once_however_much_it_brought() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.begin(start);
        pace.took(1_000, at(start, 9_000), 1.0);
        assert_eq!(pace.next(at(start, 9_000)), at(start, 9_000));
        pace.begin(at(start, 9_000));
        pace.took(1_000, at(start, 9_010), 1.0);
        assert_eq!(pace.next(at(start, 9_010)), at(start, 10_070));
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
