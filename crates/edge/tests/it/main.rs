//! The edge in one process: a memory store, a clock that is moved by hand, policies from a file or
//! from a control plane made of a few maps. One module for each promise.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "any other answer fails the test")]
#![expect(clippy::indexing_slicing, reason = "indices come from ranges over the same arrays")]

mod world; // an edge with everything around it
mod plane; // a control plane that writes, forgets, restarts and lies
mod identify; // keys
mod decide; // costs, scopes, numbers told
mod overrides; // a client's own limits, and keys made elsewhere
mod record; // tallies, records, batches
mod feed; // the policy never goes back
mod lookup; // one question for each key, and bounds of them
mod poison; // one bad object never touches another client
mod state; // what the disk brings back, and what it never does
mod fleet; // several of them, over their lives
mod killed; // a process that is killed while it writes
mod shadow; // shadow changes nothing for anybody
mod kill_switch; // nobody is refused, and all is decided as before
mod cases; // public faults, by their number
