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
mod properties; // what holds for every bucket
mod proxy; // a network that loses answers
mod redis_link; // a Redis that stops, dies or loses answers
mod stores; // one suite over every store
