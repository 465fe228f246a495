//! Exact sums by minute, client, service, phase and the revision at which the phase began.
//!
//! Held here is only what is not in the database yet: the sums since the last minute write. There
//! is no sampling and no estimate. When the table is full, new clients are added to their
//! service's cell without a client: still counted, but no longer told apart.

use std::collections::BTreeMap;

use wire::batch::TallyCell;
use wire::rollout::Phase;

/// Most cells between two minute writes; about 300 bytes each.
pub(crate) const CELLS_OPEN_MAX: usize = 500_000;
/// A cell's minute may be this far ahead of its arrival; further, and the gateway's clock is wrong.
const MINUTES_AHEAD_MAX: u64 = 5;
/// A cell's minute may be this far behind its arrival.
const MINUTES_BEHIND_MAX: u64 = 24 * 60;

/// What tells cells apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct CellKey {
    minute: u64,
    client: String,
    service: String,
    phase: u8,
    since_revision: u64,
}

impl CellKey {
    fn of(cell: &TallyCell) -> CellKey {
        CellKey {
            minute: cell.minute,
            client: cell.client.clone(),
            service: cell.service.clone(),
            phase: phase_order(cell.phase),
            since_revision: cell.since_revision,
        }
    }
}

const fn phase_order(phase: Phase) -> u8 {
    match phase {
        Phase::Off => 0,
        Phase::Shadow => 1,
        Phase::Enforce => 2,
    }
}

/// Sums that are not in the database yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    cells: BTreeMap<CellKey, TallyCell>,
    /// Cells that were added to their service's cell since the start.
    overflowed: u64,
}

impl Tally {
    /// Adds a cell that arrived in `arrived_minute`. A minute that cannot be right is replaced by
    /// that one, so that a gateway with a wrong clock is still counted, and forgotten in time.
    pub(crate) fn add(&mut self, cell: &TallyCell, arrived_minute: u64) {
        self.add_within(cell, arrived_minute, CELLS_OPEN_MAX);
    }

    fn add_within(&mut self, cell: &TallyCell, arrived_minute: u64, cells_max: usize) {
        let believable = arrived_minute.saturating_sub(MINUTES_BEHIND_MAX)
            ..=arrived_minute.saturating_add(MINUTES_AHEAD_MAX);
        let mut key = CellKey::of(cell);
        if !believable.contains(&key.minute) {
            key.minute = arrived_minute;
        }
        if self.cells.len() >= cells_max && !self.cells.contains_key(&key) {
            key.client = String::new();
            self.overflowed += 1;
        }
        let empty = TallyCell {
            minute: key.minute,
            client: key.client.clone(),
            service: key.service.clone(),
            phase: cell.phase,
            since_revision: key.since_revision,
            ..TallyCell::default()
        };
        self.cells.entry(key).or_insert(empty).add(cell);
    }

    /// All cells, oldest minute first.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &TallyCell> {
        self.cells.values()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Cells that found the table full.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Hands out all cells and begins again.
    pub(crate) fn take(&mut self) -> Vec<TallyCell> {
        std::mem::take(&mut self.cells).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::shadow_cell;

    fn at(minute: u64, cell: TallyCell) -> TallyCell {
        TallyCell { minute, ..cell }
    }

    #[test]
    fn cells_of_one_place_and_time_are_one() {
        let mut tally = Tally::default();
        tally.add(&at(9, shadow_cell("c", 5, 1)), 9);
        tally.add(&at(9, shadow_cell("c", 2, 2)), 9);
        tally.add(&at(9, TallyCell { since_revision: 8, ..shadow_cell("c", 1, 0) }), 9);
        tally.add(&at(10, shadow_cell("c", 1, 0)), 9);
        let seen: Vec<_> = tally.cells().map(|c| (c.minute, c.requests, c.stricter)).collect();
        assert_eq!(seen, [(9, 10, 3), (9, 1, 0), (10, 1, 0)]);
    }

    #[test]
    fn a_wrong_clock_is_counted_at_arrival() {
        let mut tally = Tally::default();
        let now = 30_000_000;
        for minute in [0, now - MINUTES_BEHIND_MAX, now + MINUTES_AHEAD_MAX, u64::MAX] {
            tally.add(&at(minute, shadow_cell("c", 1, 0)), now);
        }
        let seen: Vec<_> = tally.cells().map(|c| (c.minute, c.requests)).collect();
        assert_eq!(seen, [(now - MINUTES_BEHIND_MAX, 1), (now, 2), (now + MINUTES_AHEAD_MAX, 1)]);
    }

    #[test]
    fn a_full_table_still_counts_everything() {
        let mut tally = Tally::default();
        for client in ["a", "b", "c", "d", "a"] {
            tally.add_within(&at(9, shadow_cell(client, 3, 1)), 9, 2);
        }
        let seen: Vec<_> = tally.cells().map(|c| (c.client.as_str(), c.requests)).collect();
        assert_eq!(seen, [("", 8), ("a", 8), ("b", 4)]);
        assert_eq!(tally.overflowed(), 2);
    }
}
