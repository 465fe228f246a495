//! How fast the store answers: the usual round trip, and whether waiting for it pays.
//!
//! While more than a fifth of the answers of a second come late, requests wait only a moment:
//! their calls go on in the background, and what those bring is spent by later requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::time::Timestamp;

/// Budget of a waiting request while answers are late: a millisecond with its wake-up.
const SLOW_BUDGET: Duration = Duration::from_micros(600);
/// Share of late answers, in percent, above which requests stop waiting, and below which they
/// wait again.
const SLOW_ABOVE: u64 = 20;
const PUNCTUAL_BELOW: u64 = 5;
/// Answers are judged in windows of this length.
const WINDOW: Duration = Duration::from_millis(250);
/// A window with fewer answers goes on: a single slow one says nothing.
const ANSWERS_MIN: u64 = 5;

#[derive(Debug)]
pub(crate) struct Punctuality {
    /// An answer after this is late.
    deadline: Duration,
    round_trip_us: AtomicU64,
    slow: AtomicBool,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    began: Timestamp,
    answers: u64,
    late: u64,
}

impl Punctuality {
    pub(crate) fn new(deadline: Duration) -> Punctuality {
        Punctuality {
            deadline,
            round_trip_us: AtomicU64::new(500),
            slow: AtomicBool::new(false),
            window: Mutex::default(),
        }
    }

    /// An answer came after `took`.
    pub(crate) fn note(&self, took: Duration, now: Timestamp) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).min(1_000_000);
        let known = self.round_trip_us.load(Ordering::Relaxed);
        // An eighth of the news; two threads at once lose one of them, which is no matter.
        self.round_trip_us.store(known - known / 8 + us / 8, Ordering::Relaxed);
        let mut window = self.window.lock();
        window.answers += 1;
        window.late += u64::from(took > self.deadline);
        if now.since(window.began) < WINDOW || window.answers < ANSWERS_MIN {
            return;
        }
        let late = window.late * 100 / window.answers;
        if late > SLOW_ABOVE {
            self.slow.store(true, Ordering::Relaxed);
        } else if late < PUNCTUAL_BELOW {
            self.slow.store(false, Ordering::Relaxed);
        }
        *window = Window { began: now, answers: 0, late: 0 };
    }

    /// The usual round trip.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed))
    }

    /// How long a request waits, the deadline at most.
    pub(crate) fn budget(&self) -> Duration {
        let slow = self.slow.load(Ordering::Relaxed);
        if slow { self.deadline.min(SLOW_BUDGET) } else { self.deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_000_000_000 + ms * 1_000)
    }

    #[test]
    fn waiting_stops_when_a_fifth_is_late_and_begins_again_when_hardly_any_is() {
        let deadline = Duration::from_millis(5);
        let punctuality = Punctuality::new(deadline);
        let mut ms = 0;
        let mut second_with_late_of_100 = |late: u64| {
            for n in 0..100 {
                ms += 10;
                let took = if n < late { 6 } else { 1 };
                punctuality.note(Duration::from_millis(took), at(ms));
            }
            // The last window has only the punctual ones: judge by the first.
            punctuality.budget()
        };
        assert_eq!(second_with_late_of_100(0), deadline);
        assert_eq!(second_with_late_of_100(100), SLOW_BUDGET);
        assert_eq!(second_with_late_of_100(100), SLOW_BUDGET);
        assert_eq!(second_with_late_of_100(0), deadline);
    }

    #[test]
    fn the_usual_round_trip_follows_slowly() {
        let punctuality = Punctuality::new(Duration::from_millis(5));
        for ms in 0..100 {
            punctuality.note(Duration::from_micros(2_000), at(ms));
        }
        let usual = punctuality.round_trip().as_micros();
        assert!((1_900..=2_000).contains(&usual), "{usual}");
        punctuality.note(Duration::from_millis(50), at(101));
        assert!(punctuality.round_trip() < Duration::from_millis(9));
    }
}
