//! The evidence for enforcing: what the edge decided, what the services decided, and how far the
//! two agree.
//!
//! A *pair* is one request of a client in phase shadow of which both decisions are known. The pair
//! is a *disagreement* when they differ. A request whose service half is not known is *unpaired*,
//! and one that the edge decided degraded is *undecided*: neither is ever agreement. Otherwise a
//! service that stopped limiting in a way we recognise, or a store that was down, would open the
//! gate. Decisions that never arrived count as disagreements, since nobody saw them agree.
//!
//! Nothing here decides about a phase: plans-api does, from the report. Nothing is sampled: the
//! number rests on exact tallies; records are for explaining single requests.

mod batch; // what a gateway may say
mod boot; // what of a process is missing
mod tally; // exact sums
mod recent; // records to explain requests
mod book; // all of that together, in memory
mod gate; // the raw number
mod store; // the database
mod keeper; // the one that writes
mod evidence; // start here: what can be posted and asked
mod config;
mod http;
mod metrics;
mod service; // all of it as one process
#[cfg(test)]
mod testing;

use std::ffi::OsString;
use std::process::ExitCode;

pub use crate::config::Settings;
pub use crate::service::serve;

/// The program `weir-shadow-compare`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    daemon::run("weir-shadow-compare", args, serve)
}
