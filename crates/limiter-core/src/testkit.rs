//! For people who test against the limiter, or write a store of their own: a clock that stands
//! until it is moved, a store that fails on command, and [`check_store`], the suite that every
//! store must pass. With the feature `redis` also the differential test of the script.

mod clock; // time that obeys
#[cfg(feature = "redis")]
pub mod differential; // the script against the model
mod generate; // random calls that meet every branch
mod faulty; // a store that fails on command
pub mod mutants; // plausible mistakes, to be noticed
pub mod simulation; // a fleet on a clock of events
mod suite; // what a store must do

pub use clock::ManualClock;
pub use faulty::{Fault, FaultyStore};
pub use suite::{Advance, check_damaged_state, check_store};
