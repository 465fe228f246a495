//! A fleet in one thread: gateways, a network that loses and delays, a store that forgets, on a
//! clock of events. It drives the limiter's own machine for a key and the store's own arithmetic,
//! so what it finds is real. A run is a function of its seed.
//!
//! Each run first meets its faults, then a quiet end. Judged are safety (what was admitted, against
//! an exact bucket), the books (what gateways hold against what the store has lent) and liveness
//! (every request is answered, and decisions are the store's again at the end).

#![expect(
    clippy::indexing_slicing,
    reason = "indices of a run's own gateways, calls and requests, which only grow"
)]

mod arrivals; // who asks when
mod faults; // what goes wrong when
mod grid; // accuracy by regime
mod ideal; // the exact bucket
mod judge; // what was kept
mod network; // how long a message takes
mod play; // start here: one run
mod scenario; // what a seed means
mod store; // what forgets
mod upset; // what a fault does

pub use grid::{Cell, Measured, grid, measure};
pub use judge::Verdict;
pub use play::play;
pub use scenario::{Kind, Routing, Scenario, Shape};
