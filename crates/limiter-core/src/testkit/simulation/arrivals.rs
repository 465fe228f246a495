//! Who asks when: the next request after one, and the gateway it comes to.

use super::network::{exponential, whole};
use super::scenario::{Routing, Scenario, Shape};

/// On and off in turn, a quarter on.
const PERIOD_US: u64 = 2_000_000;
const ON_US: u64 = PERIOD_US / 4;
/// A hopping client goes on so often.
const HOP_US: u64 = 500_000;

/// Time of the next request after `now_us`.
pub(super) fn next(scenario: &Scenario, now_us: u64, luck: &mut fastrand::Rng) -> u64 {
    let mean_us = 1_000_000.0 / scenario.offered_per_s;
    match scenario.shape {
        Shape::Poisson => now_us + whole(exponential(luck, mean_us)),
        Shape::OnOff => {
            let at = now_us + whole(exponential(luck, mean_us / 4.0));
            let within = at % PERIOD_US;
            if within < ON_US { at } else { at - within + PERIOD_US + within % 1_000 }
        }
    }
}

/// The gateway of a request at `now_us`.
pub(super) fn gateway(scenario: &Scenario, now_us: u64, luck: &mut fastrand::Rng) -> usize {
    let gateways = scenario.gateways;
    match scenario.routing {
        Routing::Balanced => luck.usize(..gateways),
        Routing::Skewed if luck.f64() < 0.9 => 0,
        Routing::Skewed => luck.usize(..gateways),
        Routing::One => 0,
        Routing::Hopping => usize::try_from(now_us / HOP_US).unwrap_or(0) % gateways,
    }
}
