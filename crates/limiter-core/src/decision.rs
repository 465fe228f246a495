//! The limiter's answer for one request: allowed or denied, why it could be decided, and the
//! numbers that a caller may be told.

use std::time::Duration;

use crate::call::{Levels, PlanNumbers};
use crate::time::Timestamp;
use crate::units::Tokens;

/// How long a denial lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// At least this long; never longer than the tokens need on their own.
    Until(Duration),
    /// Waiting does not help: dearer than the capacity, or a fixed allowance used up.
    Never,
}

/// Allowed or denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The tokens were taken.
    Allowed {
        /// Whole tokens left for the next request.
        remaining: Tokens,
    },
    /// Nothing was taken.
    Denied {
        /// When it ends.
        wait: Wait,
    },
}

/// What the decision rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The store's own answer, or a denial that follows exactly from its last one.
    Store,
    /// Tokens that the store had lent before.
    Lease,
    /// Nobody asked the store in time: the plan's failure policy decided.
    Degraded(DegradedReason),
}

/// Why a decision was degraded. A closed set, used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DegradedReason {
    /// No answer within the deadline.
    Deadline,
    /// The breaker keeps calls back.
    Tripped,
    /// The store could not be reached: nothing was taken.
    Unreachable,
    /// The connection broke while the call was out: its outcome is unknown.
    Lost,
    /// The store answered with an error: nothing was taken.
    Refused,
}

impl DegradedReason {
    /// Every reason, for registering metrics.
    pub const ALL: [DegradedReason; 5] = [
        DegradedReason::Deadline,
        DegradedReason::Tripped,
        DegradedReason::Unreachable,
        DegradedReason::Lost,
        DegradedReason::Refused,
    ];

    /// Its name in metrics and records.
    pub const fn name(self) -> &'static str {
        match self {
            DegradedReason::Deadline => "deadline",
            DegradedReason::Tripped => "tripped",
            DegradedReason::Unreachable => "unreachable",
            DegradedReason::Lost => "lost",
            DegradedReason::Refused => "refused",
        }
    }
}

/// The limiter's answer, with what may be told about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Allowed or denied.
    pub outcome: Outcome,
    /// On what ground.
    pub basis: Basis,
    /// The bucket pair as last known, if it is known at all.
    pub standing: Option<Standing>,
}

/// A bucket pair as last seen at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Levels after that call and what was decided from it.
    pub levels: Levels,
    /// The plan in force there.
    pub plan: PlanNumbers,
    /// Tokens lent to gateways.
    pub outstanding: u64,
    /// Store time of that call.
    pub at: Timestamp,
    /// How long that call took.
    pub round_trip: Duration,
}

impl Decision {
    /// Whether the request may pass.
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed { .. })
    }
}
