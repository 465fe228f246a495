//! How many gateways there are: the largest number of the last ten minutes.
//!
//! Gateways divide a plan among themselves while they have no store, so a number that is too small
//! would admit too much. A gateway that fell silent still counts for ten minutes. After a start of
//! this process the gateways of the last ten minutes before it count, one by one.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// How long a number counts, in milliseconds.
pub(crate) const WINDOW_MS: u64 = 600_000;
/// Numbers of one slot are kept as their largest, so the window has at most 61 entries.
const SLOT_MS: u64 = 10_000;

/// The numbers of the last ten minutes.
#[derive(Debug, Default)]
pub(crate) struct LiveGateways {
    slots: Mutex<VecDeque<(u64, u32)>>,
}

impl LiveGateways {
    /// Notes the present number; the largest of the window, at least 1.
    pub(crate) fn observe(&self, now: u64, live: u32) -> u32 {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = now / SLOT_MS;
        match slots.back_mut() {
            Some((last, largest)) if *last >= slot => *largest = live.max(*largest),
            Some(_) | None => slots.push_back((slot, live)),
        }
        let oldest = now.saturating_sub(WINDOW_MS) / SLOT_MS;
        while slots.front().is_some_and(|(at, _)| *at < oldest) {
            slots.pop_front();
        }
        slots.iter().map(|(_, live)| *live).max().unwrap_or(0).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_of_ten_minutes_counts() {
        let live = LiveGateways::default();
        assert_eq!(live.observe(0, 0), 1, "there is always the one that asks");
        assert_eq!(live.observe(1_000, 6), 6);
        assert_eq!(live.observe(300_000, 2), 6);
        assert_eq!(live.observe(WINDOW_MS, 2), 6, "still inside the window");
        assert_eq!(live.observe(WINDOW_MS + 2 * SLOT_MS, 2), 2, "outside of it");
    }
}
