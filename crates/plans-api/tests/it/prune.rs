//! Apply that also takes away, and that says whether a client may call; gateways that are gone;
//! and changes that are only tried.

use serde_json::{Map, Value, json};
use wire::client::Call;
use wire::client::plans::{Applied, AppliedAction, ApplyMode};
use wire::key::KeyEnv;
use wire::policy::ClientState;

use crate::api::{Api, refusal, told};

fn plan(labels: &Value) -> Value {
    json!({ "burst": { "capacity": 10, "refill": "1/s" }, "labels": labels })
}

/// A plan and `clients` of it, all of team x.
fn team(clients: std::ops::Range<u32>) -> Value {
    let client = json!({ "plan": "p", "labels": { "team": "x" } });
    let clients: Map<String, Value> =
        clients.map(|number| (format!("c{number:02}"), client.clone())).collect();
    json!({ "plan": { "p": plan(&json!({ "team": "x" })) }, "client": clients })
}

async fn pruned(
    api: &Api,
    body: &Value,
    more: &[(&'static str, &str)],
) -> Result<Applied, wire::client::ClientError> {
    let mut call = Call::post("/v1/apply", body).query("prune", "team=x");
    for (name, value) in more {
        call = call.query(name, *value);
    }
    api.operator.http().send(call).await
}

pub(crate) async fn what_carries_the_label_and_is_in_no_file_goes_and_nothing_else(api: &Api) {
    api.operator.apply(&team(0..12), "test", ApplyMode::Apply).await.unwrap();
    let others = json!({
        "plan": { "q": plan(&json!({ "team": "y" })), "bare": plan(&json!({})) },
        "client": {
            "other": { "plan": "q", "labels": { "team": "x2", "note": "\"team\":\"x\"" } },
        },
    });
    api.operator.apply(&others, "test", ApplyMode::Apply).await.unwrap();
    let start = api.gateway.snapshot().await.unwrap();

    let asked = pruned(api, &team(0..11), &[("dry_run", "true")]).await.unwrap();
    let gone: Vec<&str> = asked
        .changes
        .iter()
        .filter(|change| change.action == AppliedAction::Delete)
        .map(|change| change.id.as_str())
        .collect();
    assert_eq!((gone, asked.revision), (vec!["c11"], start.revision));
    assert!(api.viewer.client("c11").await.is_ok(), "a question deletes nothing");

    let done = pruned(api, &team(0..11), &[("reason", "left us")]).await.unwrap();
    assert_eq!(done.revision, start.revision + 1);
    assert_eq!(told(api.viewer.client("c11").await), (404, "not_found"));
    assert_eq!(api.viewer.clients().await.unwrap().len(), 12, "eleven and the other team's");
    assert_eq!(api.viewer.plans().await.unwrap().len(), 3);
    let request = crate::api::feed_request("gw", &start.history, start.revision, 0);
    let fed = api.gateway.feed(&request).await.unwrap();
    assert_eq!(fed.changes.len(), 1, "gateways are told");
    let row = api.viewer.audit(1, None).await.unwrap().items.remove(0);
    assert_eq!((row.command.as_str(), row.id.as_str()), ("apply prune", "c11"));
    assert_eq!((row.reason.as_str(), row.after), ("left us", None));
}

pub(crate) async fn more_than_a_tenth_goes_only_if_the_caller_says_how_many(api: &Api) {
    api.operator.apply(&team(0..9), "test", ApplyMode::Apply).await.unwrap();
    let before = api.gateway.snapshot().await.unwrap().revision;
    let less = team(0..7);
    for allowed in [None, Some("0"), Some("1")] {
        let more: Vec<_> = allowed.map(|most| ("allow_deletes", most)).into_iter().collect();
        let refused = refusal(pruned(api, &less, &more).await);
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "?allow_deletes"));
        assert!(refused.errors[0].detail.contains("2 of 10"), "{}", refused.errors[0].detail);
    }
    for wrong in ["x", "-1", "+2", ""] {
        let refused = refusal(pruned(api, &less, &[("allow_deletes", wrong)]).await);
        assert_eq!(refused.errors[0].field, "?allow_deletes", "{wrong}");
    }
    assert_eq!(api.gateway.snapshot().await.unwrap().revision, before, "nothing is half done");
    pruned(api, &less, &[("allow_deletes", "2")]).await.unwrap();
    assert_eq!(api.viewer.clients().await.unwrap().len(), 7);

    for wrong in ["team", "", "=x", "team=", "Team!=x"] {
        let call = Call::post("/v1/apply", &less).query("prune", wrong);
        let refused = refusal(api.operator.http().send::<Value>(call).await);
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "?prune"), "{wrong}");
    }
}

pub(crate) async fn what_is_in_use_is_not_pruned_and_nothing_of_the_rest_happens(api: &Api) {
    api.operator.apply(&team(0..3), "test", ApplyMode::Apply).await.unwrap();
    let allow = [("allow_deletes", "100")];
    api.operator.create_key("c02", KeyEnv::Test, None, "test").await.unwrap();
    let mut less = team(0..2);
    less["plan"]["new"] = plan(&json!({}));
    let refused = refusal(pruned(api, &less, &allow).await);
    assert_eq!(refused.status, 409, "its key could still open: {}", refused.detail);
    assert_eq!(told(api.viewer.plan("new").await), (404, "not_found"));

    let stranger = json!({ "client": { "stranger": { "plan": "p" } } });
    api.operator.apply(&stranger, "test", ApplyMode::Apply).await.unwrap();
    let key = api.viewer.keys(Some("c02")).await.unwrap().remove(0).id;
    api.operator.revoke_key(&key, "test").await.unwrap();
    let refused = refusal(pruned(api, &json!({}), &allow).await);
    assert_eq!(refused.status, 409);
    assert!(refused.detail.contains("stranger"), "{}", refused.detail);
    assert_eq!(api.viewer.clients().await.unwrap().len(), 4, "all are still there");
    api.operator.delete_client("stranger", "test").await.unwrap();
    pruned(api, &json!({}), &allow).await.unwrap();
    assert!(api.viewer.clients().await.unwrap().is_empty());
    assert!(api.viewer.plans().await.unwrap().is_empty());
}

pub(crate) async fn a_file_that_says_whether_a_client_may_call_is_obeyed(api: &Api) {
    let said = |state: Value| {
        let mut body = team(0..1);
        body["client"]["c00"]["state"] = state;
        body
    };
    let state = async || api.viewer.client("c00").await.unwrap().state;
    api.operator.apply(&said(json!("suspended")), "test", ApplyMode::Apply).await.unwrap();
    assert_eq!(state().await, ClientState::Suspended);
    api.operator.apply(&team(0..1), "test", ApplyMode::Apply).await.unwrap();
    assert_eq!(state().await, ClientState::Suspended, "a file that does not say leaves it");
    let asked = api.operator.apply(&said(json!("active")), "test", ApplyMode::DryRun).await;
    let changes = asked.unwrap().changes;
    let change = changes.iter().find(|change| change.id == "c00").unwrap();
    assert_eq!(change.fields, ["state: suspended → active"]);
    api.operator.apply(&said(json!("active")), "test", ApplyMode::Apply).await.unwrap();
    assert_eq!(state().await, ClientState::Active);
    let refused =
        refusal(api.operator.apply(&said(json!("asleep")), "test", ApplyMode::Apply).await);
    assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "client.c00.state"));
}

pub(crate) async fn a_change_that_is_only_tried_is_answered_and_not_kept(api: &Api) {
    api.operator.apply(&team(0..1), "test", ApplyMode::Apply).await.unwrap();
    let before = api.gateway.snapshot().await.unwrap();
    let rows = api.viewer.audit(1, None).await.unwrap().items.remove(0).seq;
    let trying = api.operator.clone().trying();
    let changed = trying.suspend("c00", "test").await.unwrap();
    assert_eq!(changed.object.unwrap().state, ClientState::Suspended, "what it would be");
    assert_eq!(changed.revision, before.revision);
    trying.put_plan("new", &plan(&json!({})), "test", None).await.unwrap();
    let create = Call::post("/v1/keys", &json!({ "client": "c00" }));
    let made: Value = trying.http().send(create).await.unwrap();
    assert!(
        made["object"]["id"].is_string() && made.get("key").is_none(),
        "no key is made: {made}"
    );
    trying.delete_client("c00", "test").await.unwrap();
    assert_eq!(refusal(trying.delete_plan("p", "test").await).status, 409, "as the change would");
    assert_eq!(told(trying.suspend("nobody", "test").await), (404, "not_found"));
    let admin = api.admin.clone().trying();
    let create = Call::post("/v1/tokens", &json!({ "name": "x", "role": "viewer" }));
    let made: Value = admin.http().send(create).await.unwrap();
    assert!(made["object"]["id"].is_string() && made.get("token").is_none(), "nor a token: {made}");
    assert!(api.viewer.keys(None).await.unwrap().is_empty());
    assert_eq!(api.viewer.client("c00").await.unwrap().state, ClientState::Active);
    assert_eq!(api.viewer.audit(1, None).await.unwrap().items.remove(0).seq, rows);
    assert_eq!(api.gateway.snapshot().await.unwrap(), before);
}

pub(crate) async fn a_silent_gateway_is_forgotten_and_a_live_one_is_not(api: &Api) {
    let start = api.gateway.snapshot().await.unwrap();
    for id in ["gw-1", "gw-9"] {
        api.gateway.feed(&crate::api::feed_request(id, &start.history, 0, 0)).await.unwrap();
    }
    let forget = async |id: &str| {
        let path = format!("/v1/gateways/{id}:forget");
        let call = Call::new(wire::client::Method::POST, path).query("reason", "sold");
        api.admin.http().send::<Value>(call).await
    };
    let refused = refusal(forget("gw-9").await);
    assert_eq!(refused.status, 409, "it has just called: {}", refused.detail);
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text("update gateway set seen_at = 1 where id = 'gw-9'").await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    forget("gw-9").await.unwrap();
    let left = api.viewer.gateways().await.unwrap();
    assert_eq!(left.iter().map(|gateway| gateway.id.as_str()).collect::<Vec<_>>(), ["gw-1"]);
    let row = api.viewer.audit(1, None).await.unwrap().items.remove(0);
    assert_eq!((row.command.as_str(), row.id.as_str()), ("gateway forget", "gw-9"));
    assert_eq!(told(forget("gw-9").await), (404, "not_found"));
    assert_eq!(told(forget("gw-1:explode").await), (404, "not_found"));
}

#[tokio::test]
async fn plans_of_one_file_are_counted_together_against_what_gateways_hold() {
    let api = Api::sqlite().await;
    api.plan("pro").await;
    // Room for one small plan, and not for two: all are counted with 512 bytes, their name and
    // their costs, of which the first has very many blanks.
    let limit = (wire::client::ANSWER_BYTES_MAX - (1 << 20)) as u64;
    let blanks = limit - 2 * 512 - ("pro[]".len() + "a[]".len()) as u64 - 100;
    let sql =
        format!("update plan set costs = replace(hex(zeroblob({})), '0', ' ') || '[]'", blanks / 2);
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text(&sql).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    let file = |names: &[&str], note: &str| {
        let mut body = json!({ "plan": {} });
        for name in names {
            body["plan"][*name] = plan(&json!({}));
            body["plan"][*name]["note"] = json!(note);
        }
        body
    };
    let apply =
        async |body: Value| api.operator.apply(&body, "test", ApplyMode::Apply).await.map(|_| ());
    assert_eq!(told(apply(file(&["a", "b"], "")).await), (422, "policy_too_large"));
    assert_eq!(told(api.viewer.plan("a").await), (404, "not_found"), "nothing of it is kept");
    apply(file(&["a"], "")).await.unwrap();
    apply(file(&["a"], "written over, so not counted twice")).await.unwrap();
    assert_eq!(told(apply(file(&["b"], "")).await), (422, "policy_too_large"));
    api.stop().await;
}
