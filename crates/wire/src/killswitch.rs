//! The kill switch as the control plane keeps it: while it is set, nobody is in enforce.
//!
//! A gateway latches it beside the one that may be set at the gateway itself, and tells the id of
//! an own one with each call of the feed.

use serde::{Deserialize, Serialize};

/// The switch as gateways are told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KillswitchValue {
    /// What clears it.
    pub id: String,
    /// When it was set, in milliseconds since 1970.
    pub set_at: u64,
}

/// `GET /v1/killswitch`, and the answer to `:set` and `:clear`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KillswitchState {
    /// The newest revision: what is said here is in force where it is.
    pub revision: u64,
    /// What is set for all gateways, if anything is.
    pub killswitch: Option<KillswitchValue>,
    /// Live gateways with a latch of their own.
    pub own: Vec<OwnLatch>,
}

/// A gateway where somebody set a kill switch by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OwnLatch {
    /// The gateway.
    pub gateway: String,
    /// The latch's id.
    pub id: String,
}
