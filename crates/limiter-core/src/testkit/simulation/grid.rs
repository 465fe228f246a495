//! Accuracy by regime: calm runs over rates, loads, fleets and routes, as a table.

use super::ideal::float;
use super::play::play;
use super::scenario::{Kind, Routing, Scenario, Shape, plan};
use crate::bucket;
use crate::degraded::FailurePolicy;
use crate::limiter::Extras;

/// One regime.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// Tokens per second of the plan.
    pub rate: u64,
    /// Offered load, as a multiple of it.
    pub load: f64,
    /// Gateways.
    pub gateways: usize,
    /// Over which of them.
    pub routing: Routing,
    /// When.
    pub shape: Shape,
}

/// What a regime measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Admitted over what the exact bucket admits, minus 1.
    pub error: f64,
    /// Deepest excess over the exact bucket, in tokens.
    pub deepest: f64,
    /// Capacity of the burst bucket.
    pub capacity: u64,
    /// Calls to the store for each request.
    pub calls_per_request: f64,
    /// 99 of 100 requests waited no longer, in milliseconds.
    pub wait_p99_ms: f64,
    /// Requests decided by policy.
    pub late_share: f64,
}

/// The regimes.
pub fn grid() -> Vec<Cell> {
    let mut cells = Vec::new();
    for rate in [10, 100, 1_000, 10_000] {
        for load in [0.5, 1.0, 1.5, 10.0] {
            for gateways in [1, 3, 10, 30] {
                for routing in [Routing::Balanced, Routing::Skewed, Routing::One, Routing::Hopping]
                {
                    for shape in [Shape::Poisson, Shape::OnOff] {
                        let same = gateways == 1 && routing != Routing::Balanced;
                        let too_much = float(rate) * load > 20_000.0;
                        if !same && !too_much {
                            cells.push(Cell { rate, load, gateways, routing, shape });
                        }
                    }
                }
            }
        }
    }
    cells
}

/// Plays one regime.
pub fn measure(cell: &Cell, extras: Extras, leases: bool, seed: u64) -> Measured {
    let Cell { rate, load, gateways, routing, shape } = *cell;
    let seconds = (20_000 / rate).clamp(10, 200);
    let capacity = rate.max(5);
    let scenario = Scenario {
        seed,
        gateways,
        limits: plan(capacity, 2 * rate, Some((2 * capacity, rate))),
        failure: FailurePolicy::CLOSED,
        routing,
        shape,
        offered_per_s: float(rate) * load,
        cost_max: 1,
        length_us: seconds * 1_000_000,
        kind: Kind::Calm,
        round_trip_us: 500.0,
        extras,
        leases,
        apply: bucket::apply,
    };
    let verdict = play(&scenario);
    let mut waits = verdict.waits_us;
    waits.sort_unstable();
    let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or(0);
    let asked = float(verdict.asked.max(1));
    Measured {
        error: float(verdict.admitted) / float(verdict.ideal.max(1)) - 1.0,
        deepest: verdict.deepest,
        capacity,
        calls_per_request: float(verdict.calls) / asked,
        wait_p99_ms: f64::from(p99) / 1_000.0,
        late_share: float(verdict.degraded) / asked,
    }
}
