//! Redis servers for tests: one, one with TLS, a Sentinel set, a Cluster; real processes on free
//! loopback ports, in folders of their own, killed when dropped or when the test program dies.
//!
//! Everything blocks and nothing needs a runtime, so that any test can use it. It knows no word of
//! Weir. Only for tests: nothing that ships may import it.

mod ports; // free, and kept from other test programs
mod process; // one child, its signals, its watchdog
mod wait; // bounded polling
mod tls; // certificates that live as long as a test
mod server; // start here: one redis-server
mod sentinel; // a primary, its replicas and their sentinels
mod cluster; // several primaries with a replica each

pub use cluster::{Cluster, Migration, SLOTS};
pub use ports::Port;
pub use process::Process;
pub use sentinel::SentinelSet;
pub use server::{Server, ServerOptions};
pub use tls::Tls;
pub use wait::{PATIENCE, until};
