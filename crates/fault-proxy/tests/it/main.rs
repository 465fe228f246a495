//! What each toxic does to a real Redis and its client, byte by byte; and the program.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

mod line; // a client that sees every byte
mod toxics; // one promise for each
mod aim; // commands, keys, counts; other servers
mod program; // the control port
