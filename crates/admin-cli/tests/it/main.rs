//! The program `weir` as its users meet it: a process with arguments, against real parts on port 0.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may fail")]

mod control; // a control plane in this process
mod stub; // answers as told, and remembers
mod answers; // commands against answers that are told
mod contract; // what holds for every command
mod whole; // diff, prune, impact
mod replay; // a log against plans
mod doctor; // planted faults
mod run; // runs `weir`
mod nouns; // plan, client, key, token, audit, context
mod files; // apply, export, validate
mod gateways; // --wait, rollout, gate, doctor
mod keeping; // audit verify and tip, backup
mod codes; // the table of exit codes
#[cfg(feature = "dev")]
mod dev; // the whole system in one process
#[cfg(feature = "dev")]
mod examples; // what help texts promise
