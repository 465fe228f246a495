//! Room ⑤: what is done about a decision. One pure match on phase and decision; nothing here
//! counts, waits or remembers.

use std::time::Duration;

use limiter_core::{Basis, Cost, Decision, FailurePolicy, Limits, Outcome, Wait};
use wire::rollout::Phase;

use crate::call::Refusal;

/// Told to callers of a closed route when nobody knows when the store is asked again.
const CLOSED_RETRY: Duration = Duration::from_secs(1);

/// What is done about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on to its service.
    Forward,
    /// It does not.
    Refuse(Refusal),
}

/// The verdict in `phase` about a decision on `cost` under `limits`, where `failure` is the policy
/// that would have ruled without a store.
pub fn verdict(
    phase: Phase,
    decision: &Decision,
    limits: &Limits,
    cost: Cost,
    failure: FailurePolicy,
) -> Verdict {
    match phase {
        Phase::Off | Phase::Shadow => Verdict::Forward,
        Phase::Enforce => match decision.outcome {
            Outcome::Allowed { .. } => Verdict::Forward,
            Outcome::Denied { wait } => {
                Verdict::Refuse(refusal(decision.basis, wait, limits, cost, failure))
            }
        },
    }
}

fn refusal(
    basis: Basis,
    wait: Wait,
    limits: &Limits,
    cost: Cost,
    failure: FailurePolicy,
) -> Refusal {
    if limits.check_cost(cost).is_err() {
        return Refusal::CostExceedsCapacity;
    }
    match basis {
        Basis::Degraded(_) if failure.is_closed() => Refusal::LimiterClosed {
            retry: match wait {
                Wait::Until(retry) => retry,
                Wait::Never => CLOSED_RETRY,
            },
        },
        Basis::Degraded(_) | Basis::Store | Basis::Lease => Refusal::Denied { wait },
    }
}
