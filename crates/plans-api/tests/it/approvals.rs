//! Enforcing everybody against what the number says takes two people, on both back ends.

use serde_json::{Value, json};
use wire::client::Call;
use wire::client::plans::{Approval, ApprovalState, PlansClient, Role, Whom};
use wire::rollout::Phase;

use crate::api::{Api, refusal, told};
use crate::fakes::{CONTROL_TOKEN, FakeShadow};

/// Another instance over the same database, with evidence that is not enough.
async fn with_evidence(api: &Api, pairs: u64) -> (crate::api::Second, FakeShadow) {
    let shadow = FakeShadow::default();
    shadow.say(pairs, 0, 0);
    (api.second_with(&shadow.start().await, CONTROL_TOKEN).await, shadow)
}

async fn ask(client: &PlansClient, reason: &str) -> Result<Value, wire::client::ClientError> {
    let body = json!({ "all": true, "phase": "enforce", "override": true, "reason": reason });
    let call = Call::post("/v1/rollouts/edge:set", &body).if_match_or_insist(None);
    client.http().send(call).await
}

fn approval(value: Value) -> Approval {
    serde_json::from_value(value).unwrap()
}

async fn in_shadow(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    api.operator.set_rollout("edge", &Whom::All, Phase::Shadow, "start").await.unwrap();
}

pub(crate) async fn everybody_is_enforced_against_the_number_by_two_people_alone(api: &Api) {
    in_shadow(api).await;
    let (second, shadow) = with_evidence(api, 10).await;
    let token = async |name: &str, role: &str, machine: bool| {
        let body = json!({ "name": name, "role": role, "machine": machine });
        let made: Value = api.admin.http().send(Call::post("/v1/tokens", &body)).await.unwrap();
        second.connect(made["token"].as_str().unwrap())
    };
    let ana = token("ana", "operator", false).await;
    let ana_again = token("Ana", "admin", false).await;
    let ben = token("ben", "approver", false).await;
    let robot = token("robot", "operator", true).await;
    let support = token("sam", "support", false).await;

    let plain = ana.set_rollout("edge", &Whom::All, Phase::Enforce, "go").await;
    assert_eq!(told(plain), (409, "gate_refused"), "without the word nothing is overridden");
    assert_eq!(told(ask(&ana, "").await), (422, "invalid_value"), "an override has a reason");
    let before = api.gateway.snapshot().await.unwrap();
    let asked = approval(ask(&ana, "CHG-1").await.unwrap());
    assert_eq!((asked.state, asked.subject.as_str()), (ApprovalState::Open, "edge"));
    assert_eq!(asked.evidence["pairs"], json!(10), "what the number said then");
    assert!(asked.requested_by.starts_with("ana ("));
    assert_eq!(api.gateway.snapshot().await.unwrap(), before, "to ask is to do nothing");
    assert_eq!(ben.approvals().await.unwrap(), std::slice::from_ref(&asked));

    let id = asked.id.as_str();
    for (who, client, code) in [
        ("the same token", &ana, "own_approval"),
        ("the same person", &ana_again, "own_approval"),
        ("a machine", &robot, "role_too_small"),
        ("support", &support, "role_too_small"),
    ] {
        assert_eq!(told(client.accept(id, "").await), (403, code), "{who}");
    }
    let done = ben.accept(id, "").await.unwrap();
    assert_eq!(done.state, ApprovalState::Accepted);
    assert!(done.decided_by.unwrap().starts_with("ben ("));
    let rollout = api.viewer.rollout("edge").await.unwrap();
    assert_eq!(rollout.value().phase_of("acme"), Phase::Enforce);
    let last = rollout.history.last().unwrap();
    assert_eq!(last.command, "set all enforce (override)");
    assert_eq!((last.reason.as_str(), last.actor.starts_with("ben (")), ("CHG-1", true));
    assert_eq!(told(ben.accept(id, "").await), (409, "in_use"), "it is done once");
    assert_eq!(told(ben.accept("none", "").await), (404, "not_found"));

    // Where the number allows it nobody has to be asked.
    api.operator.roll_back("edge", None, "again").await.unwrap();
    shadow.say(1_000_000, 0, 0);
    let moved = ask(&ana, "CHG-2").await.unwrap();
    assert_eq!(moved["object"]["rules"][0]["phase"], json!("enforce"));
    let audit = api.viewer.audit(500, None).await.unwrap().items;
    let commands: Vec<&str> = audit.iter().rev().map(|row| row.command.as_str()).collect();
    for command in ["approval ask", "approval accept", "set all enforce (override)"] {
        assert!(commands.contains(&command), "{command} is missing in {commands:?}");
    }
    second.stop().await;
}

pub(crate) async fn what_was_asked_for_ends_unanswered_and_when_its_subject_moves(api: &Api) {
    in_shadow(api).await;
    let (second, _shadow) = with_evidence(api, 10).await;
    let made = api.admin.create_token("ana", Role::Operator, None, "test").await.unwrap();
    let ana = second.connect(&made.token);

    let moved = approval(ask(&ana, "one").await.unwrap());
    api.operator
        .set_rollout("edge", &Whom::Clients(vec!["acme".to_owned()]), Phase::Off, "x")
        .await
        .unwrap();
    let refused = refusal(api.approver.accept(&moved.id, "").await);
    assert_eq!((refused.status, refused.code.name()), (412, "changed"));

    let refused = approval(ask(&ana, "two").await.unwrap());
    let back = ana.refuse(&refused.id, "a mistake").await.unwrap();
    assert_eq!(back.state, ApprovalState::Refused, "whoever asked may take it back");
    assert_eq!(told(api.approver.accept(&refused.id, "").await), (409, "in_use"));

    let late = approval(ask(&ana, "three").await.unwrap());
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run("update approval set expires_at = 1 where id = $1", [late.id.as_str().into()])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    assert_eq!(told(api.approver.accept(&late.id, "").await), (409, "in_use"));
    assert_eq!(api.viewer.approval(&late.id).await.unwrap().state, ApprovalState::Expired);
    let rollout = api.viewer.rollout("edge").await.unwrap().value();
    assert_eq!(rollout.phase_of("zeta"), Phase::Shadow, "nothing of it was done");
    second.stop().await;
}
