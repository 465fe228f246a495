//! What a seed means: the fleet, the plan, the traffic and the kind of fault of one run.

use crate::bucket;
use crate::call::{PlanNumbers, PlanVersion};
use crate::degraded::FailurePolicy;
use crate::limit::{Limit, Limits};
use crate::limiter::Extras;
use crate::testkit::mutants::Apply;
use crate::units::{Capacity, RefillRate};

/// Over which gateways requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Evenly.
    Balanced,
    /// Nine of ten through one.
    Skewed,
    /// All through one.
    One,
    /// All through one, another one every half second.
    Hopping,
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// At random, evenly.
    Poisson,
    /// A quarter of the time at four times the rate.
    OnOff,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Calm,
    /// Requests and replies are lost.
    Lossy,
    /// Gateways crash, pause, leave and join.
    Gateways,
    /// The store forgets everything, or its last second.
    Forgetful,
    /// The store is away for a while.
    Outage,
    /// The store's clock steps.
    Clock,
    /// The plan changes, the client is reset.
    Plans,
    /// Slow replies and losses, pauses and plan changes at once.
    Mixed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 8] = [
        Kind::Calm,
        Kind::Lossy,
        Kind::Gateways,
        Kind::Forgetful,
        Kind::Outage,
        Kind::Clock,
        Kind::Plans,
        Kind::Mixed,
    ];
}

/// One run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Where its random numbers start.
    pub seed: u64,
    /// Gateways of the fleet.
    pub gateways: usize,
    /// The plan.
    pub limits: Limits,
    /// Without the store.
    pub failure: FailurePolicy,
    /// Over which gateways.
    pub routing: Routing,
    /// When.
    pub shape: Shape,
    /// Requests per second that are offered.
    pub offered_per_s: f64,
    /// Requests cost 1 to this.
    pub cost_max: u64,
    /// Length, in microseconds.
    pub length_us: u64,
    /// What goes wrong.
    pub kind: Kind,
    /// Median round trip, in microseconds.
    pub round_trip_us: f64,
    /// The mechanisms beside the leases.
    pub extras: Extras,
    /// Whether tokens are borrowed at all.
    pub leases: bool,
    /// The store's arithmetic.
    pub apply: Apply,
}

impl Scenario {
    /// What `seed` means, over `seconds`.
    ///
    /// # Panics
    /// Never: its numbers are plans.
    pub fn random(seed: u64, seconds: u64) -> Scenario {
        let mut luck = fastrand::Rng::with_seed(seed);
        let kinds = Kind::ALL;
        let kind = kinds[usize::try_from(seed % kinds.len() as u64).unwrap_or(0)];
        let rate = [1, 5, 20, 50, 100, 200][luck.usize(..6)];
        let capacity = (rate * [1, 2, 5][luck.usize(..3)]).max(5);
        let load = [0.5, 0.9, 1.0, 1.5, 4.0][luck.usize(..5)];
        let cost_max = if luck.f64() < 0.2 { 3 } else { 1 };
        let mean_cost = if cost_max == 3 { 2.0 } else { 1.0 };
        let sustained = luck.bool().then(|| (2 * capacity, rate));
        let burst_rate = if sustained.is_some() { 2 * rate } else { rate };
        Scenario {
            seed,
            gateways: [1, 2, 3, 5, 9][luck.usize(..5)],
            limits: plan(capacity, burst_rate, sustained),
            failure: if kind == Kind::Outage {
                [FailurePolicy::LOCAL, FailurePolicy::COARSE, FailurePolicy::CLOSED]
                    [luck.usize(..3)]
            } else {
                FailurePolicy::CLOSED
            },
            routing: [Routing::Balanced, Routing::Skewed, Routing::One, Routing::Hopping]
                [luck.usize(..4)],
            shape: [Shape::Poisson, Shape::OnOff][luck.usize(..2)],
            offered_per_s: super::ideal::float(rate) * load / mean_cost,
            cost_max,
            length_us: seconds * 1_000_000,
            kind,
            round_trip_us: [300.0, 500.0, 2_000.0][luck.usize(..3)],
            extras: Extras::default(),
            leases: true,
            apply: bucket::apply,
        }
    }

    /// The plan's numbers in a version.
    pub(super) fn numbers(&self, version: u64) -> PlanNumbers {
        PlanNumbers { version: PlanVersion(version), limits: self.limits }
    }
}

/// A plan of whole rates per second.
pub(super) fn plan(capacity: u64, rate: u64, sustained: Option<(u64, u64)>) -> Limits {
    let limit = |capacity, rate| {
        let capacity = Capacity::new(capacity).expect("a plan of the simulator");
        let refill = RefillRate::per_second(rate).expect("a plan of the simulator");
        Limit::new(capacity, refill).expect("a plan of the simulator")
    };
    Limits {
        burst: limit(capacity, rate),
        sustained: sustained.map(|(capacity, rate)| limit(capacity, rate)),
    }
}
