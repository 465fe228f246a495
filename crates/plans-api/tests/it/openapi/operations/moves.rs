//! Rollouts, the kill switch, approvals.

use wire::client::plans::{Approval, Gate, Moved, RolloutObject};
use wire::killswitch::KillswitchState;

use super::*;

pub(super) fn rollouts() -> Vec<Operation> {
    const ALL: &str = "/v1/rollouts";
    const ONE: &str = "/v1/rollouts/{name}";
    let moved = |path, name, summary| {
        Operation::new(("POST", path), name, summary).changes().gives_one::<Moved>().tagged()
    };
    vec![
        Operation::new(("GET", ALL), "listRollouts", "All rollouts").gives_page::<RolloutObject>(),
        Operation::new(("GET", ONE), "getRollout", "One rollout with its history")
            .gives_one::<RolloutObject>()
            .tagged(),
        Operation::new(("POST", "/v1/rollouts/{name}:set"), "setPhase", "Move clients to a phase")
            .makes()
            .body(bodies::set(), true)
            .gives_one::<Moved>()
            .may_ask::<Approval>()
            .tagged(),
        moved("/v1/rollouts/{name}:rollback", "rollBack", "Move everybody back, without a gate")
            .body(bodies::rollback(), false),
        Operation::new(("GET", "/v1/gates/{name}"), "getGate", "The number, and what it allows")
            .gives_one::<Gate>(),
    ]
}

pub(super) fn killswitch() -> Vec<Operation> {
    vec![
        Operation::new(
            ("GET", "/v1/killswitch"),
            "getKillswitch",
            "Whether nobody is enforced, on all gateways or on single ones",
        )
        .gives_one::<KillswitchState>(),
        Operation::new(("POST", "/v1/killswitch:set"), "setKillswitch", "Enforce nobody, anywhere")
            .writes()
            .body(bodies::killswitch(), false)
            .gives_one::<KillswitchState>(),
        Operation::new(
            ("POST", "/v1/killswitch:clear"),
            "clearKillswitch",
            "Enforce again what the rollouts say",
        )
        .writes()
        .body(bodies::cleared(), true)
        .gives_one::<KillswitchState>(),
    ]
}

pub(super) fn approvals() -> Vec<Operation> {
    const ID: &str = "^[0-9a-f]{32}$";
    let answered = |path, name, summary| {
        Operation::new(("POST", path), name, summary)
            .by_id(ID)
            .writes()
            .body(bodies::reason(), false)
            .gives_one::<Approval>()
    };
    vec![
        Operation::new(("GET", "/v1/approvals"), "listApprovals", "What waits for another person")
            .gives_page::<Approval>(),
        Operation::new(("GET", "/v1/approvals/{id}"), "getApproval", "One approval")
            .by_id(ID)
            .gives_one::<Approval>(),
        answered("/v1/approvals/{id}:accept", "acceptApproval", "Do what another person asked for"),
        answered(
            "/v1/approvals/{id}:refuse",
            "refuseApproval",
            "End what was asked for without doing it",
        ),
    ]
}
