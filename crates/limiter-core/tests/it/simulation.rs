//! The fleet on a clock of events: some runs of each kind, that a seed replays its run, and that a
//! planted mistake is seen. `cargo lab simulate` plays ten thousand.

use limiter_core::testkit::mutants::Mutant;
use limiter_core::testkit::simulation::{Kind, Routing, Scenario, Shape, play};
use limiter_core::{Capacity, Limit, Limits};

const SECONDS: u64 = 60;
/// Five runs of each kind.
const SEEDS: u64 = 5 * Kind::ALL.len() as u64;

#[test]
fn no_promise_breaks_in_a_fleet_that_loses_pauses_forgets_and_changes() {
    let mut admitted = 0;
    for seed in 0..SEEDS {
        let scenario = Scenario::random(seed, SECONDS);
        let verdict = play(&scenario);
        assert!(verdict.broken.is_empty(), "seed {seed}: {:?}\n{scenario:?}", verdict.broken);
        admitted += verdict.admitted;
    }
    assert!(admitted > 10_000, "{admitted} tokens admitted in all");
}

#[test]
fn a_seed_replays_its_run() {
    for seed in [3, 7, 12] {
        let runs = [(), ()].map(|()| play(&Scenario::random(seed, SECONDS)));
        let [first, second] = runs.map(|run| (run.asked, run.admitted, run.calls, run.waits_us));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.0 > 100, "seed {seed}");
    }
}

/// A mistake shows where its fault is, and there not in every run; a run that shows it is sound
/// without it.
#[test]
fn planted_mistakes_in_the_arithmetic_are_seen() {
    for (mutant, kind) in [
        ("no-cap", Kind::Calm),
        ("free-lease", Kind::Calm),
        ("undead-lease", Kind::Gateways),
        ("deaf", Kind::Forgetful),
        ("full-after-plan", Kind::Plans),
    ] {
        let apply = Mutant::named(mutant).unwrap().apply;
        let runs = (0..2_000).map(|seed| Scenario::random(seed, SECONDS));
        let seen = runs.filter(|scenario| scenario.kind == kind).find(|scenario| {
            let mutated = Scenario { apply, ..scenario.clone() };
            !play(&mutated).broken.is_empty()
        });
        let scenario = seen.unwrap_or_else(|| panic!("{mutant} was not seen"));
        assert!(play(&scenario).broken.is_empty(), "{mutant}: its run is broken without it");
    }
}

fn limit(capacity: u64, rate: &str) -> Limit {
    Limit::new(Capacity::new(capacity).unwrap(), rate.parse().unwrap()).unwrap()
}

#[test]
fn a_bucket_that_refills_slowly_loses_nothing_to_leases_that_end() {
    let day_plan = Limits::burst_only(limit(1_000, "1000/d"));
    let both = Limits { burst: limit(200, "20/s"), sustained: Some(limit(2_000, "10000/d")) };
    for limits in [day_plan, both] {
        for (gateways, per_ten_s) in [(1, 12_u32), (1, 20), (3, 20), (1, 70), (3, 300)] {
            // Until it is used up, and half as long again.
            let capacity = limits.iter().map(|limit| limit.capacity().get()).max().unwrap();
            let scenario = Scenario {
                gateways,
                limits,
                routing: Routing::Balanced,
                shape: Shape::Poisson,
                offered_per_s: f64::from(per_ten_s) / 10.0,
                cost_max: 1,
                length_us: capacity * 15_000_000 / u64::from(per_ten_s),
                kind: Kind::Calm,
                round_trip_us: 500.0,
                ..Scenario::random(5, SECONDS)
            };
            let verdict = play(&scenario);
            assert!(verdict.broken.is_empty(), "{:?}", verdict.broken);
            let what = format!("{} of {}", verdict.admitted, verdict.ideal);
            assert!(
                verdict.admitted * 100 >= verdict.ideal * 99,
                "{gateways} gateways, {per_ten_s} in ten seconds: {what}"
            );
            assert!(verdict.calls <= verdict.asked * 11 / 10, "{} calls", verdict.calls);
        }
    }
}

/// The sustained bucket runs dry while the burst bucket stays full: what is scarce is the tighter
/// of the two, at each moment.
#[test]
fn a_burst_bucket_that_is_full_hides_no_scarce_sustained_bucket() {
    for (capacity, routing) in [
        (200, Routing::Balanced),
        (200, Routing::Skewed),
        (200, Routing::Hopping),
        (1_000, Routing::Balanced),
    ] {
        let limits = Limits {
            burst: limit(capacity, "400/s"),
            sustained: Some(limit(100 * capacity, "40/s")),
        };
        let scenario = Scenario {
            gateways: 3,
            limits,
            routing,
            shape: Shape::Poisson,
            offered_per_s: 300.0,
            cost_max: 1,
            // Dry after a third of the time at the most.
            length_us: capacity * 1_200_000,
            kind: Kind::Calm,
            round_trip_us: 500.0,
            ..Scenario::random(9, SECONDS)
        };
        let verdict = play(&scenario);
        assert!(verdict.broken.is_empty(), "{:?}", verdict.broken);
        let what = format!("{capacity}, {routing:?}: {} of {}", verdict.admitted, verdict.ideal);
        assert!(verdict.ideal < verdict.asked * 8 / 10, "{what}: the limit is felt");
        assert!(verdict.admitted * 100 >= verdict.ideal * 99, "{what}");
        assert!(verdict.admitted * 100 <= verdict.ideal * 101, "{what}");
    }
}
