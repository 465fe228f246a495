//! Store time: microseconds that never run back. The only place that reads a clock.
//!
//! A [`Timestamp`] is made by a store (Redis' `TIME`, or the embedded store's clock) or by a
//! limiter's own monotonic clock; the two are never compared with each other.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime};

/// Microseconds since 1970, as one clock tells them. Below 2⁵³ until the year 2255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// From microseconds since 1970.
    pub const fn from_us(us: u64) -> Timestamp {
        Timestamp(us)
    }

    /// Microseconds since 1970.
    pub const fn us(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if that is not earlier.
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// This time moved on by `by`.
    pub fn after(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Something that tells the time. A value, so that tests can hold it.
pub trait Clock: Debug + Send + Sync {
    /// The present; never earlier than an answer before.
    fn now(&self) -> Timestamp;

    /// Whether it passes by itself, as the machine's does; one that a test moves does not.
    fn runs_by_itself(&self) -> bool {
        false
    }
}

/// The machine's monotonic clock, shown as time since 1970: a step of the wall clock after the
/// start of the process changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: Instant,
    started_at_us: u64,
}

impl SystemClock {
    /// Starts from the wall clock's present.
    #[expect(clippy::disallowed_methods, reason = "this is the clock that others are given")]
    pub fn new() -> SystemClock {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started_at_us = since_1970.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(0));
        SystemClock { started: Instant::now(), started_at_us }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that others are given")]
    fn now(&self) -> Timestamp {
        let elapsed = Instant::now().duration_since(self.started);
        Timestamp(self.started_at_us).after(elapsed)
    }

    fn runs_by_itself(&self) -> bool {
        true
    }
}
