//! The harness of the system tests and the lab: real processes of every part on free loopback
//! ports, real Redis and Postgres, callers, and the oracles that judge from the services' logs.
//!
//! Nothing here knows how a part works inside; it starts programs, talks HTTP and SQL, sends
//! signals. A missing server is an error that names the line which installs it, never a skip.

pub mod process; // children, their logs, their ports, signals
pub mod redis; // a Redis server that can be killed, frozen, brought back
pub mod postgres; // a Postgres server
pub mod services; // the replicas to be limited, and their arrival logs
pub mod origin; // a service that costs next to nothing
pub mod control; // what an operator says to plans-api
pub mod gateways; // the gateways and their files
pub mod world; // start here: all of it together
pub mod balancers; // HAProxy and Envoy before them
pub mod traffic; // callers: open and closed loop
pub mod growth; // memory while a long body passes
pub mod oracle; // what right means, computed from logs
