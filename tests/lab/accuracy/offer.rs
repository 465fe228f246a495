//! When requests come, and to which gateway: random arrivals, the same for the same seed.

use std::time::Duration;

use fastrand::Rng;

use super::cells::{Cell, Pattern};

const ON_US: f64 = 500_000.0;
const CYCLE_US: f64 = 2_000_000.0;
const HOP_US: f64 = 500_000.0;
/// Gateways of a fleet that never leave.
pub const FLEET_CORE: usize = 3;

/// One request to come.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// From the start of the cell.
    pub at_us: u64,
    /// Index of the gateway.
    pub gateway: usize,
}

/// All requests of a cell, one after another.
#[derive(Debug)]
pub struct Offer {
    cell: Cell,
    random: Rng,
    /// Time, counted while the load is on.
    busy_us: f64,
    length_us: f64,
}

impl Offer {
    /// Of `cell`.
    pub fn new(cell: Cell, length: Duration, seed: u64) -> Offer {
        let length_us = length.as_secs_f64() * 1e6;
        Offer { cell, random: Rng::with_seed(seed), busy_us: 0.0, length_us }
    }

    fn goes_on_and_off(&self) -> bool {
        matches!(self.cell.pattern, Pattern::OnOff | Pattern::HoppingOnOff)
    }

    /// Turns time that counts only while the load is on into time.
    fn wall_us(&self) -> f64 {
        if !self.goes_on_and_off() {
            return self.busy_us;
        }
        let cycles = (self.busy_us / ON_US).floor();
        cycles * CYCLE_US + (self.busy_us - cycles * ON_US)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, above 0")]
    #[expect(clippy::cast_precision_loss, reason = "a number of gateways")]
    fn gateway(&mut self, at_us: f64) -> usize {
        let all = self.cell.gateways;
        match self.cell.pattern {
            Pattern::Balanced | Pattern::OnOff => self.random.usize(..all),
            Pattern::Skewed if all == 1 || self.random.f64() < 0.9 => 0,
            Pattern::Skewed => self.random.usize(1..all),
            Pattern::Hopping | Pattern::HoppingOnOff => {
                ((at_us / HOP_US).floor() % all as f64) as usize
            }
            Pattern::Fleet if self.is_grown(at_us) => self.random.usize(..all),
            Pattern::Fleet => self.random.usize(..FLEET_CORE),
        }
    }

    fn is_grown(&self, at_us: f64) -> bool {
        at_us >= self.length_us / 3.0 && !self.is_past_leaving(at_us)
    }

    fn is_past_leaving(&self, at_us: f64) -> bool {
        at_us >= self.length_us * 2.0 / 3.0
    }

    /// When the gateways that joined leave again.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, above 0")]
    pub fn leaving_us(&self) -> Option<u64> {
        let leaving = (self.length_us * 2.0 / 3.0).ceil() as u64;
        (self.cell.pattern == Pattern::Fleet).then_some(leaving)
    }
}

impl Iterator for Offer {
    type Item = Arrival;

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, above 0")]
    fn next(&mut self) -> Option<Arrival> {
        let times = if self.goes_on_and_off() { CYCLE_US / ON_US } else { 1.0 };
        let mean_us = 1e6 / (self.cell.offered_per_s() * times);
        // Never the logarithm of zero.
        self.busy_us += -(1.0 - self.random.f64()).ln() * mean_us;
        let at_us = self.wall_us();
        if at_us >= self.length_us {
            return None;
        }
        let gateway = self.gateway(at_us);
        Some(Arrival { at_us: at_us as u64, gateway })
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::FULL;
    use super::*;

    #[test]
    fn every_cell_offers_what_it_names_to_the_gateways_that_it_has() {
        for cell in FULL.iter().copied().flatten() {
            let length = Duration::from_secs(24);
            let arrivals: Vec<Arrival> = Offer::new(*cell, length, 7).collect();
            let expected = cell.offered_per_s() * length.as_secs_f64();
            let share = system_tests::oracle::float(arrivals.len()) / expected;
            // Five standard deviations.
            assert!((share - 1.0).abs() < 5.0 / expected.sqrt(), "{}: {share}", cell.name());
            assert!(arrivals.is_sorted_by_key(|arrival| arrival.at_us));
            let highest = arrivals.iter().map(|arrival| arrival.gateway).max();
            assert_eq!(highest, Some(cell.gateways - 1), "{}", cell.name());
        }
    }

    #[test]
    fn a_fleet_grows_and_shrinks() {
        let fleet = FULL.iter().copied().flatten().find(|cell| cell.pattern == Pattern::Fleet);
        let offer = Offer::new(*fleet.unwrap(), Duration::from_secs(3), 1);
        assert_eq!(offer.leaving_us(), Some(2_000_000));
        for arrival in offer {
            let grown = (1_000_000..2_000_000).contains(&arrival.at_us);
            assert!(grown || arrival.gateway < FLEET_CORE, "{arrival:?}");
        }
    }
}
