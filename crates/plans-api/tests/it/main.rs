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
mod suite; // runs them
mod access; // who may call what
mod gate; // enforcing everybody
mod poison; // what is refused at the first door
mod killswitch; // everybody into shadow
mod doorbell; // changes made elsewhere
mod room; // a full disk, and room again
mod limits; // inspect and reset
mod program; // flags, signals, exit codes
