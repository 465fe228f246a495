//! Streams in, reports out, over real HTTP and on both back ends: late, lost, doubled, reordered
//! batches, restarts and kills at any moment.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails; clippy only knows functions marked as tests"
)]

mod postgres; // a real server as a child
mod world; // a running shadow-compare and those who talk to it
mod streams; // what batches amount to
mod questions; // top clients, usage, one request
mod ends; // restart, kill, a second instance, a database that goes away
mod refusals; // who is refused what
