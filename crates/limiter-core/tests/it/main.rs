//! Tests that need more than one part of the crate, or a real Redis.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may fail as tests do"
)]

mod server; // a Redis of one's own
mod cases; // faults that others reported, as tests
mod directed; // histories that catch the two worst mistakes
mod differential; // the script against the model
mod histories; // random moves, and who judges them
mod properties; // what holds for every bucket
mod limiter_promises; // what holds for limiters over a store
mod proxy; // a network that loses answers
mod redis_link; // a Redis that stops, dies or loses answers
mod redis_faults; // what a server refuses, and why
mod redis_replies; // replies that are none, and those that come late
mod redis_moves; // an address that leads elsewhere, a store that forgets under load
mod sentinel; // a primary that is replaced
mod cluster; // slots and nodes that come and go
mod accounts; // who may do what, and over TLS
mod stores; // one suite over every store
mod store_cases; // faults of stores that others reported, on every store
mod simulation; // a fleet on a clock of events
