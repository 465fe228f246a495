//! What a limiter is given: the contract of a key, and how to work.

use std::time::Duration;

use crate::call::{PlanNumbers, PlanVersion};
use crate::degraded::FailurePolicy;
use crate::key::BucketKey;

/// What a client may do: which bucket, under which numbers, and what without a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contract {
    /// The bucket pair.
    pub key: BucketKey,
    /// The plan's numbers.
    pub plan: PlanNumbers,
    /// Plan version of the key's last reset; 0 if there was none.
    pub reset: PlanVersion,
    /// What is admitted without a store.
    pub failure: FailurePolicy,
}

/// A contract without its key: what an entry of that key remembers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) plan: PlanNumbers,
    pub(crate) reset: PlanVersion,
    pub(crate) failure: FailurePolicy,
}

impl Contract {
    pub(crate) fn terms(&self) -> Terms {
        Terms { plan: self.plan, reset: self.reset, failure: self.failure }
    }
}

/// How a limiter works.
#[derive(Debug, Clone, Copy)]
pub struct LimiterSettings {
    /// A waiting request is decided after this long at the latest.
    pub deadline: Duration,
    /// Whether hot keys borrow tokens; without, every admission is a call. A store in this process
    /// is better asked each time.
    pub leases: bool,
    /// What is done beside the leases.
    pub extras: Extras,
}

impl Default for LimiterSettings {
    fn default() -> LimiterSettings {
        LimiterSettings {
            deadline: Duration::from_millis(5),
            leases: true,
            extras: Extras::default(),
        }
    }
}

/// Mechanisms beside the leases, each behind a switch so that its worth can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Extras {
    /// A slow call is asked once more on another connection.
    pub hedge: bool,
    /// When the store is told what this limiter remembers.
    pub witness: Witnessing,
    /// Whether admissions of an outage are charged when the store is back.
    pub meters: bool,
    /// Whether this gateway's part of a plan follows its part of the traffic.
    pub learned_share: bool,
    /// Whether refused callers are told different times to come back.
    pub retry_queue: bool,
}

impl Default for Extras {
    fn default() -> Extras {
        Extras {
            hedge: true,
            witness: Witnessing::OnSuspicion,
            meters: true,
            learned_share: false,
            retry_queue: true,
        }
    }
}

/// When a limiter testifies to the store's last known state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witnessing {
    /// Never.
    Off,
    /// After a reply that cannot follow from the one before.
    OnSuspicion,
    /// With every call.
    Always,
}
