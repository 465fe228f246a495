//! `POST /v1/usage`: when secrets were used last, as a gateway saw it. No revision, no feed.

use serde::{Deserialize, Serialize};

use crate::key::KeyHash;

/// Most secrets in one report; what is left goes with the next one.
pub const USAGE_SECRETS_MAX: usize = 1_000;

/// What was used since the last report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageReport {
    /// The gateway's id.
    pub gateway: String,
    /// Each secret once.
    pub secrets: Vec<SecretUse>,
}

/// One secret and its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretUse {
    /// Stored form.
    pub hash: KeyHash,
    /// In milliseconds since 1970, by the gateway's clock.
    pub last_used_at: u64,
}
