//! The script against the model, the quick form; `cargo lab differential` is the long one.

use limiter_core::testkit::differential::{self, FAULTS, Script, Until};

use crate::server::Server;

const STEPS: u64 = 20_000;
const SEED: u64 = 20_261_130;

#[test]
fn the_script_does_what_the_model_does() {
    let server = Server::start();
    let mut connection = server.connection();
    let tally = differential::run(&mut connection, &Script::as_shipped(), SEED, STEPS, Until::Done)
        .unwrap();
    assert_eq!(tally.first_difference, None, "seed {SEED}, {} of {STEPS} steps", tally.differences);
    let (branch, visits) = tally.least_visited();
    assert!(visits >= 20, "branch {branch} of the script was met {visits} times only");
    assert!(tally.denied * 5 >= tally.asked, "denied {} of {}", tally.denied, tally.asked);
}

#[test]
fn every_planted_fault_of_the_script_is_found() {
    let server = Server::start();
    let mut connection = server.connection();
    for fault in &FAULTS {
        let script = Script::with_fault(fault);
        let until = Until::FirstDifference;
        let tally = differential::run(&mut connection, &script, SEED, STEPS, until).unwrap();
        assert!(tally.differences > 0, "{} was not found in {STEPS} steps", fault.name);
    }
}
