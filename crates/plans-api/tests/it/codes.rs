//! The closed list of problem codes: each that this program can give is given here. That no other
//! one is ever given is asserted where answers are made, so every test here checks it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wire::client::plans::{ApplyMode, Whom};
use wire::client::{Call, Client, Method};
use wire::error::ErrorCode;
use wire::rollout::Phase;

use crate::api::{Api, feed_request, put, refusal};
use crate::fakes::{CONTROL_TOKEN, FakeShadow};

/// No step of a rollout has an order yet, so none can be out of it.
const NOT_YET: [ErrorCode; 1] = [ErrorCode::NotNextStep];

async fn code(client: &Client, call: Call) -> ErrorCode {
    let refused = refusal(client.send::<Value>(call).await);
    assert_eq!(refused.status, refused.code.status());
    assert_eq!(refused.problem_type, format!("urn:weir:problem:{}", refused.code.name()));
    assert!(refused.request_id.is_some_and(|id| !id.is_empty()), "{:?}", refused.code);
    refused.code
}

/// Plans that cannot be.
fn bad_plans() -> Vec<(ErrorCode, Value)> {
    let burst = |capacity: u64, refill: &str| json!({ "capacity": capacity, "refill": refill });
    let good = burst(10, "1/s");
    vec![
        (ErrorCode::CapacityOutOfRange, json!({ "burst": burst(0, "1/s") })),
        (ErrorCode::RefillOutOfRange, json!({ "burst": burst(1, "often") })),
        (ErrorCode::Resolution, json!({ "burst": burst(1_000_000_000_000, "999999937/31d") })),
        (
            ErrorCode::CostOutOfRange,
            json!({ "burst": good, "costs": [{ "route": "a", "cost": 11 }] }),
        ),
        (ErrorCode::FailureOutOfRange, json!({ "burst": good, "failure": "101" })),
        (ErrorCode::UnlimitedWithLimits, json!({ "burst": good, "unlimited": true })),
        (ErrorCode::UnknownField, json!({ "burst": good, "fialure": "open" })),
        (ErrorCode::InvalidValue, json!({ "burst": good, "scope": "all" })),
        (ErrorCode::BodyTooLarge, json!({ "burst": good, "note": "x".repeat(3 << 20) })),
    ]
}

async fn seen_without_trouble(api: &Api) -> Vec<ErrorCode> {
    let (operator, viewer) = (api.operator.http(), api.viewer.http());
    let mut seen = Vec::new();
    for (expected, plan) in bad_plans() {
        let given = code(operator, put("/v1/plans/bad", &plan)).await;
        assert_eq!(given, expected, "{}", plan.to_string().chars().take(200).collect::<String>());
        seen.push(given);
    }
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let create = || Call::post("/v1/keys", &json!({ "client": "acme" })).idempotency_key("once");
    operator.send::<Value>(create()).await.unwrap();
    let other = Call::post("/v1/keys", &json!({ "client": "acme", "env": "test" }));
    let delete = || Call::new(Method::DELETE, "/v1/plans/pro");
    let feed = feed_request("gw", "another", 0, 0);
    for call in [
        (viewer, Call::get("/v1/nowhere")),
        (viewer, Call::get("/v1/plans").query("cursor", "\0")),
        (viewer, Call::new(Method::PATCH, "/v1/plans/pro")),
        (viewer, Call::get("/v1/clients/acme/limit")),
        (viewer, Call::get("/v1/shadow/clients/top")),
        (viewer, create()),
        (operator, create()),
        (operator, other.idempotency_key("once")),
        (operator, delete()),
        (operator, delete().if_match(Some(9_999))),
        (operator, delete().if_match_or_insist(None)),
        (api.gateway.http(), Call::post("/v1/feed", &feed)),
        (&api.raw(None), Call::get("/v1/plans")),
    ] {
        seen.push(code(call.0, call.1).await);
    }
    seen
}

/// The gate, and who may pass it.
async fn seen_at_the_gate() -> Vec<ErrorCode> {
    let shadow = FakeShadow::default();
    let api = Api::with_shadow(&shadow.start().await, CONTROL_TOKEN).await;
    api.plan("pro").await;
    api.operator.set_rollout("edge", &Whom::All, Phase::Shadow, "start").await.unwrap();
    let set = |body: &Value| Call::post("/v1/rollouts/edge:set", body).if_match_or_insist(None);
    let enforce = json!({ "all": true, "phase": "enforce", "reason": "go" });
    let operator = api.operator.http();
    let refused = code(operator, set(&enforce)).await;
    let mut with_word = enforce.clone();
    with_word["override"] = json!(true);
    let asked: Value = operator.send(set(&with_word)).await.unwrap();
    let accept = format!("/v1/approvals/{}:accept", asked["id"].as_str().unwrap());
    let own = code(operator, Call::post(accept, &json!({}))).await;
    api.stop().await;
    vec![refused, own]
}

async fn by_hand(api: &Api, sql: &str) {
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text(sql).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
}

/// A database that was changed by hand, that is full, and somebody who guesses.
async fn seen_in_trouble(api: &Api) -> Vec<ErrorCode> {
    let operator = api.operator.http();
    by_hand(api, "update plan set costs = 'x' where name = 'pro'").await;
    let internal = code(operator, Call::get("/v1/plans/pro")).await;
    by_hand(api, "update plan set costs = '[]' where name = 'pro'").await;
    by_hand(api, "update plan set costs = replace(hex(zeroblob(34000000)), '0', ' ') || '[]'")
        .await;
    let large = json!({ "burst": { "capacity": 1, "refill": "1/s" } });
    let large = code(operator, put("/v1/plans/more", &large)).await;
    by_hand(api, "update plan set costs = '[]'").await;
    let full = "create table room (n integer primary key autoincrement);
        insert into room values (9223372036854775807);
        create trigger no_room before insert on change begin insert into room values (null); end";
    by_hand(api, full).await;
    let plan = json!({ "burst": { "capacity": 1, "refill": "1/s" } });
    let full = code(operator, put("/v1/plans/more", &plan)).await;
    by_hand(api, "drop trigger no_room").await;
    let wrong = api.raw(Some("weiro_0000000000_guessed"));
    let mut guessed = vec![code(&wrong, Call::get("/v1/plans")).await];
    while guessed.last() == Some(&ErrorCode::TokenInvalid) && guessed.len() < 50 {
        guessed.push(code(&wrong, Call::get("/v1/plans")).await);
    }
    guessed.extend([internal, large, full]);
    guessed
}

#[tokio::test]
async fn every_code_of_the_list_is_given_and_means_what_it_says() {
    let api = Api::sqlite().await;
    let mut seen = seen_without_trouble(&api).await;
    seen.extend(seen_at_the_gate().await);
    seen.extend(seen_in_trouble(&api).await);
    seen.extend(NOT_YET);
    let names = |codes: &[ErrorCode]| codes.iter().map(|c| c.name()).collect::<BTreeSet<_>>();
    assert_eq!(names(&seen), names(plans_api::CODES));
    api.stop().await;
}

/// What the whole policy would be is bounded, and so is each plan.
pub(crate) async fn a_policy_that_no_gateway_could_hold_is_refused(api: &Api) {
    api.plan("pro").await;
    let plan = json!({ "burst": { "capacity": 1, "refill": "1/s" } });
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    let spaces = format!("{}[]", " ".repeat(64 << 20));
    tx.run("update plan set costs = $1", [spaces.as_str().into()]).await.unwrap();
    tx.commit().await.unwrap();
    let body = json!({ "plan": { "more": plan.clone() } });
    let refused = refusal(api.operator.apply(&body, "test", ApplyMode::Apply).await);
    assert_eq!((refused.status, refused.code.name()), (422, "policy_too_large"));
    assert_eq!(refused.errors[0].field, "plan.more.costs");
    // Whoever makes it smaller may.
    api.operator.put_plan("pro", &plan, "test", None).await.unwrap();
    api.plan("more").await;
    database.close().await;
    let labels: serde_json::Map<String, Value> =
        (0..1_000).map(|n| (format!("label-{n:058}"), json!("x".repeat(64)))).collect();
    let mut large = plan;
    large["labels"] = labels.into();
    let refused = refusal(api.operator.put_plan("large", &large, "test", None).await);
    assert_eq!((refused.status, refused.code.name()), (422, "invalid_value"));
    assert!(refused.errors[0].detail.contains("65536"), "{}", refused.detail);
}

pub(crate) async fn a_plan_is_linted_against_the_routes_that_gateways_have(api: &Api) {
    let plan = json!({
        "burst": { "capacity": 10, "refill": "0" }, "failure": "open",
        "labels": { "audience": "public" }, "costs": [{ "route": "reports", "cost": 2 }],
    });
    api.operator.put_plan("pro", &plan, "test", None).await.unwrap();
    let found = async || -> Vec<String> {
        let found = api.viewer.lint_plan("pro").await.unwrap();
        found.into_iter().map(|finding| finding.field).collect()
    };
    assert_eq!(found().await, ["burst.refill", "failure"], "no gateway has told its routes yet");
    let history = api.gateway.snapshot().await.unwrap().history;
    api.gateway.feed(&feed_request("gw", &history, 0, 0)).await.unwrap();
    assert_eq!(found().await, ["burst.refill", "failure", "costs[0].route"]);
    let mut request = feed_request("gw-2", &history, 0, 0);
    request.routes.push("reports".to_owned());
    api.gateway.feed(&request).await.unwrap();
    assert_eq!(found().await, ["burst.refill", "failure"]);
    assert_eq!(refusal(api.viewer.lint_plan("none").await).status, 404);
}
