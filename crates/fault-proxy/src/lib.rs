//! A TCP proxy before Redis that breaks things on command: for tests, and for people who want to
//! see how their own service meets a slow, lying or dying Redis.
//!
//! It reads commands and replies, so that a fault can be aimed: at one command, one key, the next
//! three calls, a tenth of all. It passes bytes on as they came; only a toxic changes them. It does
//! not see into TLS, and understands one protocol only: other bytes end the connection.
//!
//! ```no_run
//! use fault_proxy::{FaultProxy, Rule, Toxic};
//!
//! let proxy = FaultProxy::start("127.0.0.1:6379".parse()?)?;
//! proxy.set(Rule::new(Toxic::Swallow).on("EVALSHA").times(1));
//! println!("the next script call at {} is executed, its answer lost", proxy.url());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod rules; // what is to be broken
mod resp; // where a value ends
mod exchange; // which reply belongs to which command, and when it leaves
mod alarm; // waiting for less than a millisecond
mod connection; // bytes in, bytes out
mod counters; // what was seen
mod shared; // what connections share
mod proxy; // start here: a listener on a thread of its own
mod strict; // JSON objects, and every mistake in them
mod json; // rules and scripts as JSON
#[cfg(feature = "program")]
pub mod program; // the proxy for people, with a control port

pub use counters::Counters;
pub use exchange::{HELD_MAX, PENDING_MAX};
pub use json::{Act, Script, Step};
pub use proxy::{CONNECTIONS_MAX, FaultProxy};
pub use resp::FRAME_MAX;
pub use rules::{Direction, Keys, Moment, Rule, Rules, Toxic};
pub use strict::Mistakes;
