//! What crosses a process boundary: one body for each thing said, and the typed clients.
//!
//! Domain types do not serialise; the bodies here are their twins and convert by hand, through the
//! checked constructors of `limiter-core`. Compatibility rule: optional fields may be added, the
//! meaning of a field never changes. Readers of feeds and batches ignore unknown fields; writes to
//! the control plane refuse them.
//!
//! | body | from → to |
//! |---|---|
//! | [`plan`], [`policy`] | plans-api → gateways (feed, snapshot), CLI ↔ plans-api |
//! | [`bootstrap`] | CLI → a file → gateways |
//! | [`batch`] | gateways → shadow-compare |
//! | [`gate`] | shadow-compare → plans-api → CLI |
//! | [`decision_header`] | services → gateways |

pub mod error; // problem+json and the closed list of codes
pub mod strict; // JSON without duplicate keys; all mistakes at once
pub mod name; // names of plans, clients, routes
pub mod plan; // plans as written by people and as sent to gateways
pub mod key; // API keys, operator tokens, their hashes
pub mod rollout; // phases and rules
pub mod policy; // feed, snapshot, look-up
pub mod bootstrap; // a policy with its keys in a file
pub mod batch; // tallies and decision records
pub mod gate; // the raw number and what it allows
pub mod decision_header; // the service's own decision
pub mod client; // typed clients
