//! Everything that can happen to a lease in a small world, with the real arithmetic; and the same
//! with one mistake planted, which must be found.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do, and the number of worlds is told"
)]

use lease_model::explore::{Explored, explore};
use lease_model::{Budget, Protocol, Scale};
use limiter_core::bucket::apply;
use limiter_core::testkit::mutants::Mutant;

const STATES_MAX: usize = 3_000_000;
const NOTHING: Budget =
    Budget { calls: 0, waits: 0, bursts: 0, faults: 0, duplicates: 0, losses: 0 };

/// Two gateways and four tokens: two calls, a fault, a burst, and time beyond the end of a lease.
fn faulty() -> Protocol {
    Protocol {
        scale: Scale::new(4).unwrap(),
        moments: &[0, 1, 20],
        beside: true,
        strays: true,
        witnesses: false,
        budget: Budget { calls: 2, waits: 4, bursts: 1, faults: 1, ..NOTHING },
        duplicate_costs: 0,
        apply,
    }
}

/// More calls over eight tokens, and nothing lost.
fn busy() -> Protocol {
    Protocol {
        scale: Scale::new(8).unwrap(),
        moments: &[0, 1, 40],
        beside: false,
        budget: Budget { calls: 3, waits: 4, bursts: 1, ..NOTHING },
        ..faulty()
    }
}

/// The store returns to an older state, or to none, and gateways testify.
fn forgetful() -> Protocol {
    Protocol {
        beside: false,
        strays: false,
        witnesses: true,
        budget: Budget { calls: 2, waits: 3, bursts: 1, losses: 1, ..NOTHING },
        ..faulty()
    }
}

/// Two generations pass between few calls: leases die at their holder and at the store.
fn slow() -> Protocol {
    Protocol {
        moments: &[0, 20],
        beside: false,
        budget: Budget { calls: 3, waits: 5, bursts: 0, faults: 1, ..NOTHING },
        ..faulty()
    }
}

/// A library or a proxy sends a call twice. What that may cost is one token given back, counted
/// twice, and one struck from the books of somebody else.
fn repeated() -> Protocol {
    Protocol {
        beside: false,
        strays: false,
        budget: Budget { calls: 3, waits: 3, bursts: 1, duplicates: 1, ..NOTHING },
        duplicate_costs: 4,
        ..faulty()
    }
}

/// Both gateways have seen different states of a store that then returns to an older one.
fn divided() -> Protocol {
    Protocol { moments: &[0], budget: Budget { calls: 4, losses: 1, ..NOTHING }, ..forgetful() }
}

fn report(name: &str, explored: &Explored) {
    let Explored { states, steps, depth, .. } = explored;
    println!("{name}: {states} states, {steps} steps, depth {depth}");
    if let Some(broken) = &explored.broken {
        println!("{}\n  {}", broken.promise, broken.history.join("\n  "));
    }
}

fn must_hold(name: &str, protocol: &Protocol) {
    let explored = explore(protocol, STATES_MAX);
    report(name, &explored);
    assert!(explored.broken.is_none(), "a promise is broken: see the history above");
    assert!(explored.complete, "the world is larger than {STATES_MAX} states");
}

fn must_break(protocol: &Protocol, mutant: &str) {
    let apply = Mutant::named(mutant).unwrap().apply;
    let explored = explore(&Protocol { apply, ..*protocol }, STATES_MAX);
    report(mutant, &explored);
    assert!(explored.broken.is_some(), "{mutant} was not noticed");
}

#[test]
fn i03_nothing_that_can_be_lost_late_or_sent_beside_breaks_a_lease() {
    must_hold("faulty", &faulty());
}

#[test]
fn i01_no_order_of_calls_and_time_lends_more_than_the_bucket_has() {
    must_hold("busy", &busy());
}

#[test]
fn i10_what_a_lost_store_forgot_is_rebuilt_from_those_who_remember() {
    must_hold("forgetful", &forgetful());
}

#[test]
fn i02_a_lease_that_dies_on_its_way_is_spent_by_nobody() {
    must_hold("slow", &slow());
}

#[test]
fn a_call_that_arrives_twice_costs_a_token_or_two_and_no_more() {
    must_hold("repeated", &repeated());
    let dearer = Protocol { duplicate_costs: 2, ..repeated() };
    assert!(explore(&dearer, STATES_MAX).broken.is_some(), "the bound of the test is too high");
}

#[test]
fn i10_witnesses_of_different_states_are_all_heard() {
    must_hold("divided", &divided());
}

#[test]
fn a_planted_mistake_is_found() {
    for mutant in ["no-cap", "settle-first", "free-lease"] {
        must_break(&busy(), mutant);
    }
    must_break(&slow(), "undead-lease");
    must_break(&forgetful(), "deaf");
}
