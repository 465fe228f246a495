//! The cells: how many gateways, how the load is spread over them and over time, how many times
//! the limit is offered, and the limit.

use std::time::Duration;

use limiter_core::{Capacity, Limit, LimitError, Limits, RefillRate};

/// How requests are spread over gateways and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Each gateway alike.
    Balanced,
    /// Nine in ten at the first gateway.
    Skewed,
    /// All at one gateway, another one each half second.
    Hopping,
    /// Each gateway alike; four times the load for half a second, then nothing for one and a half.
    OnOff,
    /// On and off, and all at one gateway at a time.
    HoppingOnOff,
    /// Three gateways, then all of them, then three again: those that leave drain.
    Fleet,
}

/// What a cell is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// One of the named cells.
    Grid,
    /// The fleet grows and shrinks under load.
    Fleet,
    /// Ten thousand requests a second against a tenth of it.
    Hot,
    /// A bucket that holds a fifth of a second, well below its limit: no tenth of it lasts 100 ms,
    /// so what its leases cost is reported.
    Small,
}

/// One cell.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// What it is there for.
    pub purpose: Purpose,
    /// Number of gateways.
    pub gateways: usize,
    /// Who is asked when.
    pub pattern: Pattern,
    /// Offered load, in tenths of the limit.
    pub tenths: u32,
    /// The limit, in tokens a second.
    pub per_s: u32,
    /// Twice the rate for a second beside the limit, which then holds two seconds' worth.
    pub pair: bool,
}

const fn cell(gateways: usize, pattern: Pattern, tenths: u32, per_s: u32) -> Cell {
    Cell { purpose: Purpose::Grid, gateways, pattern, tenths, per_s, pair: false }
}

const fn pair(gateways: usize, pattern: Pattern, tenths: u32, per_s: u32) -> Cell {
    Cell { pair: true, ..cell(gateways, pattern, tenths, per_s) }
}

const fn fleet(tenths: u32) -> Cell {
    Cell { purpose: Purpose::Fleet, ..cell(9, Pattern::Fleet, tenths, 1_000) }
}

const fn hot(gateways: usize) -> Cell {
    Cell { purpose: Purpose::Hot, ..cell(gateways, Pattern::Balanced, 100, 1_000) }
}

const fn small() -> Cell {
    Cell { purpose: Purpose::Small, ..cell(1, Pattern::Balanced, 5, 50_000) }
}

use Pattern::{Balanced, Hopping, HoppingOnOff, OnOff, Skewed};

/// All cells, in groups: those of a group are slow, and run side by side.
pub const FULL: &[&[Cell]] = &[
    &[
        cell(1, Balanced, 5, 10),
        cell(1, Balanced, 100, 10),
        cell(3, Balanced, 10, 10),
        pair(3, Skewed, 15, 10),
        cell(9, Hopping, 10, 10),
        cell(9, OnOff, 15, 10),
        cell(30, Balanced, 5, 10),
        cell(30, Balanced, 100, 10),
    ],
    &[
        cell(1, OnOff, 10, 100),
        cell(3, Balanced, 5, 100),
        cell(9, Hopping, 15, 100),
        cell(30, Balanced, 100, 100),
    ],
    &[
        pair(3, Skewed, 100, 100),
        cell(9, Balanced, 15, 100),
        cell(30, Balanced, 10, 100),
        pair(30, Skewed, 15, 100),
    ],
    &[cell(1, Balanced, 15, 1_000)],
    &[cell(1, OnOff, 5, 1_000)],
    &[cell(3, Balanced, 100, 1_000)],
    &[pair(3, Skewed, 5, 1_000)],
    &[cell(3, Hopping, 10, 1_000)],
    &[cell(9, Balanced, 10, 1_000)],
    &[cell(9, OnOff, 100, 1_000)],
    &[pair(9, Skewed, 30, 1_000)],
    &[cell(9, HoppingOnOff, 15, 1_000)],
    &[cell(30, Balanced, 15, 1_000)],
    &[cell(30, Hopping, 30, 1_000)],
    &[cell(1, Balanced, 10, 10_000)],
    &[pair(3, Skewed, 15, 10_000)],
    &[cell(3, OnOff, 15, 10_000)],
    &[cell(9, Balanced, 100, 10_000)],
    &[cell(9, Hopping, 5, 10_000)],
    &[cell(30, Balanced, 5, 10_000)],
    &[pair(30, Skewed, 30, 10_000)],
    &[cell(1, Balanced, 5, 50_000)],
    &[cell(3, Balanced, 10, 50_000)],
    &[cell(3, Skewed, 15, 50_000)],
    &[cell(9, Balanced, 20, 50_000)],
    &[cell(9, Hopping, 10, 50_000)],
    &[cell(30, Balanced, 15, 50_000)],
    &[fleet(15)],
    &[fleet(9)],
    &[hot(1)],
    &[hot(3)],
    &[hot(50)],
    &[small()],
];

/// A few of them, for a robot.
pub const QUICK: &[&[Cell]] = &[
    &[
        cell(1, Balanced, 100, 10),
        cell(3, Balanced, 15, 100),
        pair(9, Skewed, 15, 100),
        cell(30, Balanced, 5, 100),
    ],
    &[cell(3, Hopping, 10, 1_000)],
    &[cell(9, Balanced, 15, 1_000)],
    &[cell(9, OnOff, 15, 10_000)],
    &[fleet(15)],
    &[hot(3)],
];

/// Fewest admissions of a cell …
pub const ADMISSIONS_MIN: u64 = 10_000;
/// … unless it lasts so long.
pub const LENGTH_MAX: Duration = Duration::from_secs(120);
/// What is lent when a cell ends must be small beside what was admitted.
const LENGTH_MIN: Duration = Duration::from_secs(15);
const FLEET_LENGTH: Duration = Duration::from_secs(30);
const QUICK_LENGTH: Duration = Duration::from_secs(6);

impl Cell {
    /// Its name, as people read it.
    pub fn name(&self) -> String {
        let Cell { gateways, per_s, .. } = self;
        let pattern = match self.pattern {
            Pattern::Balanced => "balanced",
            Pattern::Skewed => "skewed",
            Pattern::Hopping => "hopping",
            Pattern::OnOff => "on/off",
            Pattern::HoppingOnOff => "hopping on/off",
            Pattern::Fleet => "3 to 9 to 3",
        };
        let pair = if self.pair { " pair" } else { "" };
        format!("{gateways} {pattern} {:.1}x {per_s}/s{pair}", self.times())
    }

    /// Offered load over the limit.
    pub fn times(&self) -> f64 {
        f64::from(self.tenths) / 10.0
    }

    /// Offered load a second, on average.
    pub fn offered_per_s(&self) -> f64 {
        f64::from(self.per_s) * self.times()
    }

    /// Whether the limit refuses nothing, not even for a moment.
    pub fn is_below_limit(&self) -> bool {
        let steady = !matches!(self.pattern, Pattern::OnOff | Pattern::HoppingOnOff);
        self.tenths < 10 && steady
    }

    /// How long it lasts.
    pub fn length(&self, quick: bool) -> Duration {
        if quick {
            return QUICK_LENGTH;
        }
        if self.purpose == Purpose::Fleet {
            return FLEET_LENGTH;
        }
        // A little longer than an even flow needs: chance decides how many really come.
        let admitted_per_s = f64::from(self.per_s) * self.times().min(1.0);
        let needed = Duration::from_secs_f64(1.05 * 10_000.0 / admitted_per_s);
        let idle = matches!(self.pattern, Pattern::OnOff | Pattern::HoppingOnOff);
        let needed = if idle { needed * 2 } else { needed };
        needed.clamp(LENGTH_MIN, LENGTH_MAX)
    }

    /// The limits of its client.
    pub fn limits(&self) -> Result<Limits, LimitError> {
        let per_s = u64::from(self.per_s);
        // A fast limit that is used up holds less than a second's worth: that is the harder case.
        let less = self.per_s >= 50_000 && (self.tenths >= 10 || self.purpose == Purpose::Small);
        let capacity = if less { per_s / 5 } else { per_s };
        let limit =
            |capacity, per_s| Limit::new(Capacity::new(capacity)?, RefillRate::per_second(per_s)?);
        if self.pair {
            let sustained = Some(limit(2 * capacity, per_s)?);
            return Ok(Limits { burst: limit(capacity, 2 * per_s)?, sustained });
        }
        Ok(Limits::burst_only(limit(capacity, per_s)?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn there_are_forty_different_cells_of_every_kind() {
        let grid = || FULL.iter().copied().flatten().filter(|c| c.purpose == Purpose::Grid);
        let names: HashSet<String> = grid().map(Cell::name).collect();
        assert_eq!((grid().count(), names.len()), (40, 40));
        for gateways in [1, 3, 9, 30] {
            assert!(grid().filter(|cell| cell.gateways == gateways).count() >= 5);
        }
        for pattern in [Balanced, Skewed, Hopping, OnOff] {
            assert!(grid().filter(|cell| cell.pattern == pattern).count() >= 5, "{pattern:?}");
        }
        assert_eq!(grid().map(|cell| cell.tenths).min(), Some(5));
        assert_eq!(grid().map(|cell| cell.tenths).max(), Some(100));
        assert_eq!(grid().map(|cell| cell.per_s).min(), Some(10));
        assert_eq!(grid().map(|cell| cell.per_s).max(), Some(50_000));
        for cell in FULL.iter().copied().flatten() {
            let bursts = matches!(cell.pattern, OnOff | HoppingOnOff);
            let peak = cell.offered_per_s() * if bursts { 4.0 } else { 1.0 };
            assert!(peak <= 100_000.0, "{}", cell.name());
        }
    }
}
