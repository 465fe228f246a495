//! Which version is meant, calls that are sent twice, and pages: on both back ends.

use serde_json::{Value, json};
use wire::client::plans::{PlansClient, Role};
use wire::client::{Call, Method};
use wire::key::KeyEnv;

use crate::api::{Api, refusal, told};
use crate::catalog::{HOUR, imported, now};

pub(crate) async fn who_changes_something_says_which_version(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let key = api.operator.create_key("acme", KeyEnv::Live, None, "test").await.unwrap().object;
    let operator = api.operator.http();
    let plan = json!({ "burst": { "capacity": 10, "refill": "2/s" } });
    let own = json!({ "failure": "open", "expires_at": now() + HOUR });
    let client = json!({ "plan": "pro", "name": "A" });
    let all = json!({ "all": true, "phase": "shadow" });
    let writes: Vec<(Method, String, Value)> = vec![
        (Method::PUT, "/v1/plans/pro".to_owned(), plan.clone()),
        (Method::DELETE, "/v1/plans/pro".to_owned(), json!({})),
        (Method::PUT, "/v1/clients/acme".to_owned(), client),
        (Method::DELETE, "/v1/clients/acme".to_owned(), json!({})),
        (Method::POST, "/v1/clients/acme:suspend".to_owned(), json!({})),
        (Method::POST, "/v1/clients/acme/limit:reset".to_owned(), json!({})),
        (Method::PUT, "/v1/clients/acme/override".to_owned(), own.clone()),
        (Method::DELETE, "/v1/clients/acme/override".to_owned(), json!({})),
        (Method::POST, format!("/v1/keys/{}:rotate", key.id), json!({})),
        (Method::POST, format!("/v1/keys/{}:disable", key.id), json!({})),
        (Method::POST, format!("/v1/keys/{}:revoke", key.id), json!({})),
        (Method::POST, "/v1/rollouts/edge:set".to_owned(), all),
        (Method::POST, "/v1/rollouts/edge:rollback".to_owned(), json!({})),
    ];
    api.operator.put_override("acme", &own, "", None).await.unwrap();
    let set = wire::client::plans::Whom::All;
    api.operator.set_rollout("edge", &set, wire::rollout::Phase::Off, "x").await.unwrap();
    let start = api.gateway.snapshot().await.unwrap().revision;
    for (method, path, body) in &writes {
        let call = || Call::new(method.clone(), path.clone()).json(body);
        let silent = operator.send::<Value>(call()).await;
        assert_eq!(told(silent), (428, "precondition_missing"), "{method} {path}");
        let lost = refusal(operator.send::<Value>(call().if_match(Some(9_999))).await);
        assert_eq!((lost.status, lost.code.name()), (412, "changed"), "{method} {path}");
        let object = lost.object.unwrap_or_else(|| panic!("{path} shows no object"));
        assert!(object["revision"].as_u64().unwrap() <= start, "{method} {path}: {object}");
    }
    assert_eq!(api.gateway.snapshot().await.unwrap().revision, start, "nothing was done");

    // Two writers: exactly one wins, and the other is shown what won.
    let read = api.viewer.plan("pro").await.unwrap();
    let mut writers = Vec::new();
    for capacity in [20, 30, 40] {
        let (operator, at) = (api.operator.clone(), read.revision);
        let body = json!({ "burst": { "capacity": capacity, "refill": "2/s" } });
        writers.push(daemon::tasks::spawn("writer", async move {
            operator.put_plan("pro", &body, "race", Some(at)).await
        }));
    }
    let mut won = Vec::new();
    let mut lost = Vec::new();
    for writer in writers {
        match writer.await.unwrap() {
            Ok(changed) => won.push(changed.object.unwrap()),
            Err(error) => lost.push(refusal::<()>(Err(error)).object.unwrap()),
        }
    }
    assert_eq!((won.len(), lost.len()), (1, 2));
    assert!(lost.iter().all(|shown| *shown == json!(won[0])), "{lost:?}");

    // A new name is new, and `*` insists.
    let new = || Call::new(Method::PUT, "/v1/plans/new").json(&plan);
    let made = operator.send::<Value>(none_match(new())).await.unwrap();
    assert_eq!(made["object"]["name"], "new");
    let twice = refusal(operator.send::<Value>(none_match(new())).await);
    assert_eq!((twice.status, twice.code.name()), (412, "changed"));
    operator.send::<Value>(new().if_match_or_insist(None)).await.unwrap();
    let over = Call::new(Method::PUT, "/v1/clients/acme/override").json(&own);
    assert_eq!(told(operator.send::<Value>(none_match(over)).await), (412, "changed"));
}

/// Only if there is none.
fn none_match(call: Call) -> Call {
    call.if_absent()
}

pub(crate) async fn a_call_that_is_sent_twice_is_done_once(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let operator = api.operator.http();
    let import = json!({ "keys": [imported("one", "acme")] });
    let apply = json!({ "plan": { "free": { "burst": { "capacity": 1, "refill": "1/s" } } } });
    for (path, body) in [("/v1/keys:import", &import), ("/v1/apply", &apply)] {
        let call = || Call::post(path, body).idempotency_key(format!("key-{path}"));
        let first: Value = operator.send(call()).await.unwrap();
        let revision = api.gateway.snapshot().await.unwrap().revision;
        let again: Value = operator.send(call()).await.unwrap();
        assert_eq!(again, first, "{path}: the first answer, word for word");
        assert_eq!(api.gateway.snapshot().await.unwrap().revision, revision);
        let other = Call::post(path, &json!({ "reason": "other" }));
        let other = other.idempotency_key(format!("key-{path}"));
        assert_eq!(told(operator.send::<Value>(other).await), (422, "idempotency_mismatch"));
    }
    // A verb that was repeated without it would be another reset.
    let reset = || {
        let call = Call::new(Method::POST, "/v1/clients/acme/limit:reset").if_match_or_insist(None);
        call.idempotency_key("reset-1")
    };
    let first: Value = operator.send(reset()).await.unwrap();
    assert_eq!(operator.send::<Value>(reset()).await.unwrap(), first);
    let mine: Value = api.support.http().send(reset()).await.unwrap();
    assert_ne!(mine["revision"], first["revision"], "names are each token's own");

    // A refused call did nothing, so it may be tried again; a read of the body decides nothing.
    let early = || Call::post("/v1/keys", &json!({ "client": "late" })).idempotency_key("early");
    assert_eq!(told(operator.send::<Value>(early()).await), (404, "not_found"));
    api.client("late", "pro").await;
    let made: Value = operator.send(early()).await.unwrap();
    let repeated = refusal(operator.send::<Value>(early()).await);
    assert_eq!((repeated.status, repeated.code.name()), (409, "already_created"));
    assert_eq!(repeated.object.unwrap()["id"], made["object"]["id"], "what it has made");
    assert_eq!(api.viewer.keys(Some("late")).await.unwrap().len(), 1);
    let token = || {
        let body = json!({ "name": "ci", "role": "viewer", "machine": true });
        Call::post("/v1/tokens", &body).idempotency_key("token")
    };
    let made: Value = api.admin.http().send(token()).await.unwrap();
    assert_eq!(made["object"]["machine"], json!(true));
    assert_eq!(told(api.admin.http().send::<Value>(token()).await), (409, "already_created"));
}

/// The process ended between doing and answering, or the answer was too long to keep.
pub(crate) async fn a_call_whose_answer_was_lost_is_told_what_it_made(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let operator = api.operator.http();
    let body = json!({ "keys": [imported("one", "acme")] });
    let call = || Call::post("/v1/keys:import", &body).idempotency_key("lost");
    let first: Value = operator.send(call()).await.unwrap();
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text("update idempotency set status = null, body = null").await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    let revision = api.gateway.snapshot().await.unwrap().revision;
    let again = refusal(operator.send::<Value>(call()).await);
    assert_eq!((again.status, again.code.name()), (409, "already_created"));
    assert_eq!(again.object.unwrap(), json!({ "kind": "key", "id": first["items"][0]["id"] }));
    assert_eq!(api.gateway.snapshot().await.unwrap().revision, revision, "nothing was done again");
}

pub(crate) async fn of_many_equal_calls_at_once_one_is_done_and_no_secret_is_kept(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let operator = api.operator.http();
    let reset = || {
        let call = Call::new(Method::POST, "/v1/clients/acme/limit:reset").if_match_or_insist(None);
        call.idempotency_key("reset-1")
    };
    let first: Value = operator.send(reset()).await.unwrap();
    let mut calls = Vec::new();
    for _ in 0..8 {
        let operator = api.operator.clone();
        calls.push(daemon::tasks::spawn("repeat", async move {
            let call = Call::post("/v1/keys", &json!({ "client": "acme", "env": "test" }));
            operator.http().send::<Value>(call.idempotency_key("at-once")).await
        }));
    }
    let mut made = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => {
                let refused = refusal::<()>(Err(error));
                assert_eq!(refused.code.name(), "already_created", "{refused:?}");
            }
        }
    }
    let keys = api.viewer.keys(Some("acme")).await.unwrap();
    assert_eq!((made, keys.iter().filter(|key| key.env == KeyEnv::Test).count()), (1, 1));
    for bad in ["", "two words", &"x".repeat(256)] {
        let call = Call::post("/v1/apply", &json!({})).idempotency_key(bad);
        assert_eq!(told(operator.send::<Value>(call).await), (400, "bad_request"), "{bad:?}");
    }

    // No secret is kept for the sake of a repetition.
    let database = api.by_hand().await;
    let mut tx = database.read().await.unwrap();
    let rows = tx.rows("select coalesce(body, '') as body from idempotency", []).await.unwrap();
    assert!(rows.len() >= 2);
    assert!(rows.iter().all(|row| !row.text("body").unwrap().contains("weir_")));
    drop(tx);
    // After a day the name is free again.
    let mut tx = database.write().await.unwrap();
    tx.run("update idempotency set at = $1", [(now() - 25 * HOUR).into()]).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    let later: Value = operator.send(reset()).await.unwrap();
    assert_ne!(later["revision"], first["revision"]);
}

pub(crate) async fn c27_a_page_begins_where_the_last_one_ended_while_others_write(api: &Api) {
    api.plan("pro").await;
    let many: Value = (0..250)
        .map(|n| (format!("client-{n:03}"), json!({ "plan": "pro" })))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let body = json!({ "client": many });
    let mode = wire::client::plans::ApplyMode::Apply;
    api.operator.apply(&body, "test", mode).await.unwrap();
    let page = async |client: &PlansClient, cursor: Option<String>| -> Value {
        let call = Call::get("/v1/clients").query("limit", "100").query("plan", "pro");
        client.http().send(call.maybe("cursor", cursor)).await.unwrap()
    };
    let mut seen: Vec<String> = Vec::new();
    let mut cursor = None;
    for round in 0.. {
        let told = page(&api.viewer, cursor).await;
        let items = told["items"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        if round == 0 {
            api.client("client-0505", "pro").await; // behind the first page's end
            api.operator.delete_client("client-007", "left").await.unwrap();
        }
        cursor = told["next"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    let untouched = (0..250).filter(|n| *n != 7).map(|n| format!("client-{n:03}"));
    for id in untouched {
        assert_eq!(seen.iter().filter(|seen| **seen == id).count(), 1, "{id}");
    }
    let none = Call::get("/v1/clients").query("plan", "free");
    let none: Value = api.viewer.http().send(none).await.unwrap();
    assert_eq!(none["items"], json!([]));
    let odd = Call::get("/v1/clients").query("overridden", "maybe");
    assert_eq!(told(api.viewer.http().send::<Value>(odd).await), (422, "invalid_value"));
    for (path, of) in [("/v1/keys", Role::Viewer), ("/v1/tokens", Role::Admin)] {
        let client = if of == Role::Admin { &api.admin } else { &api.viewer };
        let listed: Value =
            client.http().send(Call::get(path).query("limit", "500")).await.unwrap();
        let ids: Vec<&str> =
            listed["items"].as_array().unwrap().iter().map(|i| i["id"].as_str().unwrap()).collect();
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        assert_eq!(ids, sorted, "{path} is by id");
    }
}
