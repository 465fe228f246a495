//! The data plane: one limit per client, kept where all its requests come in.
//!
//! A request visits seven rooms, straight through ([`pipeline`](self) is the corridor): ① `server`
//! accepts it and bounds it, ② `route` says which service it wants, ③–⑤ lie behind
//! [`edge::Edge::admit`] (who is calling, what may they do now, does that count), ⑥ `upstream`
//! forwards it or `reply` refuses it, ⑦ [`edge::Edge::done`] records what became of it.
//!
//! Invariants: a denied request never reaches a service; a request is charged once; what may have
//! arrived is sent again only if twice is the same as once; nothing on the path of a request waits for a log, a record or the control
//! plane. The gateway works without a control plane (its own file), and on without a bucket store
//! (each plan's failure policy).

use std::ffi::OsString;
use std::process::ExitCode;

mod flags; // the command line
pub mod config; // the file, judged whole
mod assembly; // the concrete store, policy source, sink
mod server; // ① listeners, workers
mod pipeline; // the corridor
mod stream; // connections, in clear or over TLS
mod peer; // the other end of a connection
mod body; // the two body streams
pub mod route; // ② host, path, method → route
mod credential; // headers → the key that was shown
mod headers; // hygiene both ways
mod forwarded; // what trusted proxies say
mod anonymous; // the address that a request without a key counts for
pub mod pairing; // the service's own decision
mod reply; // what the gateway says by itself
mod text; // short header values
pub mod cors; // which pages may read answers
mod grpc; // refusals that gRPC callers understand
mod linger; // the body of a refused request
pub mod upstream; // ⑥ forwards
mod upgrade; // connections that leave HTTP
mod top; // who asks most
mod reload; // a new configuration while it runs
mod ops; // the operations port
mod metrics; // what the rim counts
mod access_log; // a line for each answer
mod overload; // what a worker cannot handle in time
mod store_watch; // what the log is told of Redis
mod kill_switch; // nobody is refused by a limit
mod nonblocking; // files that may be pipes

pub use assembly::{Evidently, Parts, file_policy, serve, serve_with};

/// The program: reads its arguments (the program's name first) and runs to its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    daemon::run("weir-gateway", args, flags::run)
}
