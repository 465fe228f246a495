//! A clock that stands until somebody moves it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Clock, Timestamp};

/// Time as the test says. May be set back, as a store's clock may.
#[derive(Debug)]
pub struct ManualClock {
    us: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `now`.
    pub const fn new(now: Timestamp) -> ManualClock {
        ManualClock { us: AtomicU64::new(now.us()) }
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }

    /// Sets it, also to an earlier time.
    pub fn set(&self, now: Timestamp) {
        self.us.store(now.us(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    /// Stands at a time far from 1970, on no generation's border.
    fn default() -> ManualClock {
        ManualClock::new(Timestamp::from_us(1_800_000_000_123_456))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_us(self.us.load(Ordering::SeqCst))
    }
}
