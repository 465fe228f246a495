//! What makes a process a good daemon: settings, logs, metrics, an operations port, a clean end.
//!
//! Nothing here knows what the process is for. A program says `daemon::run("name", args, serve)`;
//! `serve` gets its parsed flags and a [`Context`], and runs the same when a test or another
//! program calls it with [`Context::in_process`]. In order: flags over environment, logs, runtime,
//! `serve`, first signal = drain, second signal = end at once (SIGUSR2: a new process takes over), exit code (64 for wrong settings,
//! 1 for anything else that failed).

mod run; // start here
mod context; // what a service is given
pub mod drain; // stop accepting, finish
mod sockets; // listening sockets that outlive a process
mod succession; // a new process in the place of this one
mod manager; // what systemd is told
pub mod tasks; // background work that is named and counted
pub mod settings; // files, secrets, every mistake at once
pub mod log; // text for people, JSON for machines, never blocking
pub mod metrics; // the registry and its text
pub mod ops; // /livez, /readyz, /metrics, /buildz
#[cfg(feature = "sql")]
pub mod sql; // Postgres or SQLite by URL

pub use context::{Addresses, AddressesReceiver, Context};
pub use drain::{Drain, Hangups};
pub use manager::Manager;
pub use run::{Failure, run};
pub use settings::{HasProcessFlags, ProcessFlags};
pub use sockets::{Lent, Sockets};
pub use tasks::Tasks;
