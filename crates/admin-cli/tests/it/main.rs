//! The program `weir` as its users meet it: a process with arguments, against real parts on port 0.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may fail")]

mod control; // a control plane in this process
mod run; // runs `weir`
mod nouns; // plan, client, key, token, audit, context
mod files; // apply, export, validate
mod gateways; // --wait, rollout, gate, doctor
mod keeping; // audit verify and tip, backup
mod codes; // the table of exit codes
#[cfg(feature = "dev")]
mod dev; // the whole system in one process
