//! The control plane as one process in a temp folder: every route on SQLite, the store suite on
//! SQLite and on a real Postgres, the gate against a fake shadow-compare, and the program itself.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail like tests"
)]

mod api; // starts one and talks to it
mod postgres; // a real server
mod fakes; // shadow-compare and a gateway's operations port
mod scenarios; // what must hold on both back ends
mod cases; // the numbered ones of these
mod prune; // files that also take away
mod poison; // rows that do not read
mod first_door; // what is refused before it is stored
mod suite; // runs them
mod audit; // the chain of the audit
mod backup; // everything as a file, and back
mod restored; // and what does not come back
mod lookup; // a thousand hashes at once
mod dumps; // what a dump gives away
mod dead_tokens; // wrong, expired, revoked, at every route
mod openapi; // the description of the API
mod catalog; // overrides and secrets, on both back ends
mod versions; // preconditions, repetitions, pages, on both back ends
mod approvals; // what two people do
mod access; // who may call what
mod codes; // the closed list of problem codes
mod gate; // enforcing everybody
mod killswitch; // everybody into shadow
mod doorbell; // changes made elsewhere
mod room; // a full disk, and room again
mod limits; // inspect and reset
mod killed; // a process that dies while it writes
mod program; // flags, signals, exit codes
