//! When a gateway asks the feed again: at once while changes are few, once a second while there are
//! many, whatever their number. A busy control plane then answers each gateway as often as a quiet
//! one would, with more in each answer.
//!
//! An answer with n changes takes n² from a small stock: single changes go on at once, and changes
//! that come together are told together from then on. While the stock is empty, calls *begin* at
//! least [`CALL_EVERY`] apart; one that has waited that long for its answer is followed at once.
//!
//! Full answers are a backlog: while another full one is waiting it is fetched at once, and after a
//! quiet time also what is left. In a storm the rest of a full answer waits its turn, or each
//! second would cost two calls.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;
use wire::policy::FEED_CHANGES_MAX;

/// First and longest pause after a call that failed.
pub(super) const BACKOFF: RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(5);

/// Twenty single changes in a row are fetched as they come …
const STOCK_MAX: f64 = 20.0;
/// … and so many a second for long.
const STOCK_PER_SECOND: f64 = 2.0;
/// From so much on it has been quiet.
const STOCK_QUIET: f64 = STOCK_MAX / 2.0;
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
        self.grow(now);
        self.stock = changes.mul_add(-changes, self.stock).max(0.0);
        self.every = if self.stock >= 1.0 || changes == 0.0 {
            Duration::ZERO
        } else {
            CALL_EVERY + Duration::from_millis(CALL_EVERY_MORE_MS).mul_f64(more.clamp(0.0, 1.0))
        };
    }

    /// A call was answered with as many changes as one may hold, and so many `revisions` are left.
    pub(super) fn took_full(&mut self, revisions: u64, now: Instant, more: f64) {
        self.grow(now);
        let full = u64::try_from(FEED_CHANGES_MAX).unwrap_or(u64::MAX);
        if full <= revisions || STOCK_QUIET <= self.stock {
            self.every = Duration::ZERO;
        } else {
            self.took(FEED_CHANGES_MAX, now, more);
        }
    }

    fn grow(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.counted).as_secs_f64();
        self.stock = elapsed.mul_add(STOCK_PER_SECOND, self.stock).min(STOCK_MAX);
        self.counted = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// One answer; up to where changes are told then.
    fn take(pace: &mut Pace, told: u64, head: u64, now: Instant) -> u64 {
        let full = u64::try_from(FEED_CHANGES_MAX).unwrap();
        let some = (head - told).min(full);
        match head - told - some {
            0 => pace.took(usize::try_from(some).unwrap(), now, 0.5),
            left => pace.took_full(left, now, 0.5),
        }
        told + some
    }

    /// Plays `changes` a second for `seconds`: an answer is given as soon as a change is there, and
    /// holds all that are, as far as they fit. The number of calls and the longest time that a change has waited.
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
            let head = now / gap;
            longest = longest.max(now - first);
            told = take(&mut pace, told, head, at(start, now));
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
    fn a_storm_that_fills_every_answer_costs_one_call_a_second_and_is_kept_up_with() {
        let (calls, longest) = play(1_000, 120);
        assert!(calls <= 120 + 20, "{calls}");
        assert!(longest < 2_300, "{longest} ms");
    }

    #[test]
    fn a_backlog_is_fetched_at_once_after_a_quiet_time() {
        let start = Instant::now();
        for backlog in [1_500, 9_999, 10_000] {
            let mut pace = Pace::new(start);
            let mut told = 0;
            while told < backlog {
                assert_eq!(pace.next(start), start, "{told} of {backlog}");
                pace.begin(start);
                told = take(&mut pace, told, backlog, start);
            }
            assert!(pace.next(start) > start, "and then it may be a storm");
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
