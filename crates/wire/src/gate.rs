//! The raw number of a rollout: disagreements and losses over pairs, and whether `--all enforce`
//! may go on.
//!
//! First version of the gate: (disagreements + lost) ÷ (pairs + lost) below 0.1 % over at least
//! 3,000 pairs of clients in shadow since they last entered it. Undecided and unpaired requests
//! count as neither; they are shown on their own lines.

use serde::{Deserialize, Serialize};

/// Fewest pairs that say anything.
pub const PAIRS_MIN: u64 = 3_000;
/// The line, as one in so many: 0.1 %.
pub const LINE_ONE_IN: u64 = 1_000;

/// `GET /v1/gate`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GateReport {
    /// Pairs of clients in shadow since they entered it.
    pub pairs: u64,
    /// Pairs in which the decisions differ.
    pub disagreements: u64,
    /// Of these, the edge denies and the service allows.
    pub stricter: u64,
    /// Of these, the edge allows and the service denies.
    pub looser: u64,
    /// Decisions whose record never arrived: counted as disagreements.
    pub lost: u64,
    /// Decided degraded: no opinion, no pair.
    pub undecided: u64,
    /// Service's decision unknown, all reasons.
    pub unpaired: u64,
    /// Seconds since the last batch of any gateway; none if there never was one.
    pub last_batch_seconds: Option<u64>,
}

/// What the number allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GateVerdict {
    /// Below the line, with enough pairs.
    Pass,
    /// At or above the line: exit code 3.
    Fail,
    /// Too few pairs: exit code 4.
    Insufficient,
}

impl GateReport {
    /// Numerator and denominator of the number: lost decisions count in both.
    pub const fn number(&self) -> (u64, u64) {
        (self.disagreements + self.lost, self.pairs + self.lost)
    }

    /// What it allows.
    pub const fn verdict(&self) -> GateVerdict {
        let (differing, all) = self.number();
        if self.pairs < PAIRS_MIN {
            GateVerdict::Insufficient
        } else if differing * LINE_ONE_IN < all {
            GateVerdict::Pass
        } else {
            GateVerdict::Fail
        }
    }
}
