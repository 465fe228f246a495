//! Enforcing everybody rests on evidence, and without evidence it does not happen.

use wire::client::plans::{TopBy, Whom};
use wire::gate::GateVerdict;
use wire::policy::ClientState;
use wire::rollout::Phase;

use crate::api::{Api, refusal, told};
use crate::fakes::{CONTROL_TOKEN, FakeShadow};

async fn in_shadow(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    api.operator.set_rollout("edge", &Whom::All, Phase::Shadow, "start").await.unwrap();
}

#[tokio::test]
async fn everybody_is_enforced_only_below_the_line_with_enough_pairs() {
    let shadow = FakeShadow::default();
    let api = Api::with_shadow(&shadow.start().await, CONTROL_TOKEN).await;
    in_shadow(&api).await;
    let enforce = async || api.operator.set_rollout("edge", &Whom::All, Phase::Enforce, "go").await;
    let before = api.gateway.snapshot().await.unwrap();
    for (pairs, disagreements, lost, verdict) in [
        (0, 0, 0, GateVerdict::Insufficient),
        (2_999, 0, 0, GateVerdict::Insufficient),
        (3_000, 3, 0, GateVerdict::Fail), // exactly 0.1 % is not below it
        (3_000, 2, 2, GateVerdict::Fail),
        (3_000, 0, 4, GateVerdict::Fail), // lost ones count as disagreements
        (1_000_000, 1_000, 0, GateVerdict::Fail),
    ] {
        shadow.say(pairs, disagreements, lost);
        let gate = api.viewer.gate("edge").await.unwrap();
        assert_eq!((gate.verdict, gate.report.pairs), (verdict, pairs));
        let refused = refusal(enforce().await);
        let case = format!("{pairs} {disagreements} {lost}");
        assert_eq!((refused.status, refused.code.name()), (409, "gate_refused"), "{case}");
        assert_eq!(refused.verdict, Some(verdict), "{case}");
        assert_eq!(refused.report.unwrap().pairs, pairs, "{case}");
    }
    assert_eq!(api.gateway.snapshot().await.unwrap(), before, "a refused step changes nothing");

    shadow.say(3_000, 2, 0);
    let moved = enforce().await.unwrap();
    assert_eq!(moved.object.value().phase_of("acme"), Phase::Enforce);
    let asked = shadow.asked.lock().unwrap().last().cloned().unwrap();
    assert_eq!(asked["rollout"]["name"], "edge");
    assert_eq!(asked["rollout"]["rules"][0]["phase"], "shadow", "the evidence is about shadow");
    shadow.say(0, 0, 0);
    let again = enforce().await.unwrap();
    assert_eq!(again.revision, moved.revision, "it is so already: nothing to prove");
    api.stop().await;
}

#[tokio::test]
async fn single_clients_and_the_way_back_need_no_evidence() {
    let api = Api::sqlite().await; // no shadow-compare at all
    in_shadow(&api).await;
    let acme = Whom::Clients(vec!["acme".to_owned()]);
    let moved = api.operator.set_rollout("edge", &acme, Phase::Enforce, "canary").await.unwrap();
    assert_eq!(moved.object.value().phase_of("acme"), Phase::Enforce);
    assert_eq!(moved.object.value().phase_of("zeta"), Phase::Shadow);
    let all = api.operator.set_rollout("edge", &Whom::All, Phase::Enforce, "go").await;
    assert_eq!(told(all), (503, "evidence_unavailable"));
    assert_eq!(told(api.viewer.gate("edge").await), (503, "evidence_unavailable"));
    let back = api.operator.roll_back("edge", None, "pager").await.unwrap();
    assert_eq!(back.object.value().phase_of("acme"), Phase::Shadow);
    api.stop().await;
}

#[tokio::test]
async fn evidence_that_cannot_be_read_is_no_evidence() {
    let shadow = FakeShadow::default();
    shadow.say(1_000_000, 0, 0);
    let url = shadow.start().await;
    for (url, token) in [(url.as_str(), "another secret"), ("http://127.0.0.1:1", CONTROL_TOKEN)] {
        let api = Api::with_shadow(url, token).await;
        in_shadow(&api).await;
        let all = api.operator.set_rollout("edge", &Whom::All, Phase::Enforce, "go").await;
        assert_eq!(told(all), (503, "evidence_unavailable"), "{url}");
        assert_eq!(
            told(api.viewer.shadow_top(TopBy::Requests, 5).await),
            (503, "evidence_unavailable")
        );
        api.stop().await;
    }
}

#[tokio::test]
async fn the_top_list_is_passed_on_with_what_only_the_control_plane_knows() {
    let shadow = FakeShadow::default();
    let api = Api::with_shadow(&shadow.start().await, CONTROL_TOKEN).await;
    in_shadow(&api).await;
    api.operator.suspend("acme", "abuse").await.unwrap();
    let top = api.viewer.shadow_top(TopBy::WouldDeny, 5).await.unwrap();
    assert_eq!((top[0].client.as_str(), top[0].would_deny), ("acme", 4));
    assert_eq!(top[0].state, Some(ClientState::Suspended));
    api.stop().await;
}

#[tokio::test]
async fn a_silent_shadow_compare_is_no_evidence_while_the_caller_still_waits() {
    // The kernel takes the connection, and nobody ever answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let api = Api::with_shadow(&url, CONTROL_TOKEN).await;
    in_shadow(&api).await;
    let enforce = api.operator.set_rollout("edge", &Whom::All, Phase::Enforce, "go").await;
    assert_eq!(told(enforce), (503, "evidence_unavailable"));
    let top = api.viewer.shadow_top(TopBy::Requests, 5).await;
    assert_eq!(told(top), (503, "evidence_unavailable"));
    api.stop().await;
}
