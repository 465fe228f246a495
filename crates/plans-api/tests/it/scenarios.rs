//! What must hold on both back ends, told through the API and checked in the database.

use std::time::Duration;

use serde_json::{Value, json};
use wire::client::Call;
use wire::client::plans::{PlansClient, Role, Whom};
use wire::key::{KeyEnv, KeyHash, Pepper, token_hash};
use wire::policy::{ClientState, FeedRequest, KeyState, Object};
use wire::rollout::Phase;

use crate::api::{Api, feed_request, put, refusal, told};

pub(crate) async fn revisions_have_no_gaps_under_concurrent_writers(api: &Api) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 6;
    let start = api.gateway.snapshot().await.unwrap();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let operator = api.operator.clone();
        writers.push(daemon::tasks::spawn("writer", async move {
            let mut revisions = Vec::new();
            for round in 0..EACH {
                let body = json!({ "burst": { "capacity": 10 + round, "refill": "1/s" } });
                let name = format!("plan-{writer}");
                let changed = operator.put_plan(&name, &body, "race", None).await.unwrap();
                revisions.push(changed.object.unwrap().revision);
            }
            revisions
        }));
    }
    let mut revisions = Vec::new();
    for writer in writers {
        let own = writer.await.unwrap();
        assert!(own.is_sorted(), "a writer sees its own revisions grow");
        revisions.extend(own);
    }
    revisions.sort_unstable();
    let expected: Vec<u64> = (start.revision + 1..=start.revision + WRITERS * EACH).collect();
    assert_eq!(revisions, expected);
    let request = feed_request("gw", &start.history, start.revision, 0);
    let fed = api.gateway.feed(&request).await.unwrap();
    let told: Vec<u64> = fed.changes.iter().map(|change| change.revision).collect();
    assert_eq!(told, expected, "the feed tells each of them once, in order");
    assert_eq!(fed.head, *expected.last().unwrap());
    let audit = api.viewer.audit(500, None).await.unwrap().items;
    let seqs: Vec<u64> = audit.iter().map(|row| row.seq).collect();
    let all: Vec<u64> = (1..=u64::try_from(seqs.len()).unwrap()).rev().collect();
    assert_eq!(seqs, all, "the audit has no gaps either");
}

pub(crate) async fn a_change_and_its_audit_row_are_one_transaction(api: &Api) {
    api.plan("first").await;
    let before = api.gateway.snapshot().await.unwrap();
    let database = api.by_hand().await;
    let sabotage = async |sql: &str| {
        let mut tx = database.write().await.unwrap();
        tx.run_text(sql).await.unwrap();
        tx.commit().await.unwrap();
    };
    sabotage("alter table audit rename to audit_away").await;
    let body = json!({ "burst": { "capacity": 10, "refill": "1/s" } });
    let failed = refusal(api.operator.put_plan("second", &body, "test", None).await);
    assert_eq!(failed.status, 500, "no audit, no change");
    assert!(!failed.detail.contains("audit"), "what is inside stays inside: {}", failed.detail);
    let token = api.admin.create_token("x", Role::Viewer, None, "test").await;
    assert_eq!(refusal(token).status, 500);
    sabotage("alter table audit_away rename to audit").await;
    database.close().await;

    let after = api.gateway.snapshot().await.unwrap();
    assert_eq!((after.revision, after.plans.len()), (before.revision, 1));
    let changed = api.operator.put_plan("second", &body, "CHG-7", None).await.unwrap();
    assert_eq!(changed.revision, before.revision + 1, "the failed one took no revision");
    let row = api.viewer.audit(1, None).await.unwrap().items.remove(0);
    assert_eq!((row.revision, row.command.as_str()), (Some(changed.revision), "plan set"));
    assert_eq!(
        (row.reason.as_str(), row.kind.as_str(), row.id.as_str()),
        ("CHG-7", "plan", "second")
    );
    assert!(row.actor.starts_with("operator ("), "{}", row.actor);
    assert_eq!((row.before, row.after.unwrap()["burst"]["refill"].as_str()), (None, Some("1/s")));
}

pub(crate) async fn a_plan_is_made_changed_and_deleted(api: &Api) {
    let body = json!({
        "burst": { "capacity": 100, "refill": "50/s" },
        "sustained": { "capacity": 2_000_000, "refill": "2000000/d" },
        "failure": "0.25", "scope": "key",
        "costs": [{ "route": "reports", "cost": 5 }],
        "labels": { "team": "x" }, "note": "the usual one",
    });
    let made = api.operator.put_plan("pro", &body, "test", None).await.unwrap();
    let plan = api.viewer.plan("pro").await.unwrap();
    assert_eq!(made.object.unwrap(), plan);
    assert_eq!((plan.revision, plan.failure.as_str()), (made.revision, "0.25"));
    assert_eq!(plan.sustained.unwrap().capacity, 2_000_000);
    assert_eq!((plan.costs[0].cost, plan.note.as_str()), (5, "the usual one"));
    let value = api.gateway.snapshot().await.unwrap().plans.remove(0);
    assert!(value.check().is_ok(), "what passes the first door passes the third");

    let same = api.operator.put_plan("pro", &body, "test", None).await.unwrap();
    assert_eq!(same.revision, made.revision, "saying the same again is no change");
    let mut other = body.clone();
    other["burst"]["refill"] = json!("40/s");
    let lost = api.operator.put_plan("pro", &other, "test", Some(made.revision + 7)).await;
    assert_eq!(told(lost), (412, "changed"));
    let won = api.operator.put_plan("pro", &other, "test", Some(made.revision)).await.unwrap();
    assert_eq!(won.revision, made.revision + 1);

    api.client("acme", "pro").await;
    assert_eq!(told(api.operator.delete_plan("pro", "test").await), (409, "in_use"));
    api.plan("free").await;
    api.client("acme", "free").await;
    let gone = api.operator.delete_plan("pro", "test").await.unwrap();
    assert_eq!(gone.object, None);
    assert_eq!(told(api.viewer.plan("pro").await), (404, "not_found"));
    assert_eq!(told(api.operator.delete_plan("pro", "test").await), (404, "not_found"));
    let history = api.gateway.snapshot().await.unwrap().history;
    let fed = api.gateway.feed(&feed_request("gw", &history, gone.revision - 1, 0)).await.unwrap();
    assert_eq!(fed.changes[0].object, Object::Plan { id: "pro".to_owned(), value: None });
}

pub(crate) async fn a_client_is_moved_suspended_and_deleted(api: &Api) {
    let lost = api.operator.put_client("acme", &json!({ "plan": "pro" }), "test", None).await;
    let lost = refusal(lost);
    assert_eq!((lost.status, lost.errors[0].field.as_str()), (422, "plan"));
    api.plan("pro").await;
    let body = json!({ "plan": "pro", "name": "Acme Ltd", "labels": { "tier": "a" } });
    let made = api.operator.put_client("acme", &body, "test", None).await.unwrap().object.unwrap();
    assert_eq!(
        (made.state, made.reset_revision, made.name.as_str()),
        (ClientState::Active, 0, "Acme Ltd")
    );

    let out = api.operator.suspend("acme", "abuse").await.unwrap().object.unwrap();
    assert_eq!((out.state, out.revision), (ClientState::Suspended, made.revision + 1));
    let moved = api.operator.put_client("acme", &json!({ "plan": "pro" }), "test", None).await;
    assert_eq!(moved.unwrap().object.unwrap().state, ClientState::Suspended, "only resume resumes");
    let back = api.operator.resume("acme", "paid").await.unwrap().object.unwrap();
    assert_eq!(back.state, ClientState::Active);
    let again = api.operator.resume("acme", "paid").await.unwrap();
    assert_eq!(again.revision, back.revision, "it was so already");
    let reset = api.operator.reset_limit("acme", "sorry").await.unwrap();
    let client = reset.object.unwrap();
    assert_eq!((client.reset_revision, client.revision), (reset.revision, reset.revision));
    assert_eq!(told(api.operator.suspend("nobody", "x").await), (404, "not_found"));

    let key = api.operator.create_key("acme", KeyEnv::Live, None, "test").await.unwrap().object;
    assert_eq!(told(api.operator.delete_client("acme", "test").await), (409, "in_use"));
    api.operator.revoke_key(&key.id, "test").await.unwrap();
    api.operator.delete_client("acme", "test").await.unwrap();
    assert_eq!(told(api.viewer.client("acme").await), (404, "not_found"));
    assert_eq!(told(api.viewer.key(&key.id).await), (404, "not_found"));
}

pub(crate) async fn a_key_is_shown_once_found_by_its_hash_and_revoked_for_good(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    assert_eq!(
        told(api.operator.create_key("nobody", KeyEnv::Live, None, "test").await),
        (404, "not_found")
    );
    let past = api.operator.create_key("acme", KeyEnv::Live, Some(1), "test").await;
    assert_eq!(told(past), (422, "invalid_value"));
    let made = api.operator.create_key("acme", KeyEnv::Test, None, "test").await.unwrap();
    let pepper = std::fs::read(api.state_dir.path().join("pepper")).unwrap();
    let pepper = Pepper::from_bytes(&pepper).unwrap();
    assert_eq!(wire::key::shape(&made.key, &pepper), wire::key::KeyShape::Ours);
    let snapshot = api.gateway.snapshot().await.unwrap();
    assert_eq!(snapshot.pepper_id, pepper.id());

    let hash = KeyHash::of_key(&made.key, &pepper);
    let unknown = token_hash("nobody's");
    let second = Duration::from_secs(5);
    let mut hashes = vec![unknown; 120];
    hashes.push(hash);
    for asked in [vec![hash], hashes] {
        let missing = asked.len() - 1;
        let found = api.gateway.lookup(asked, second).await.unwrap();
        assert_eq!((found.found.len(), found.missing.len()), (1, missing));
        assert_eq!(found.revision, made.revision);
        let found = &found.found[0];
        assert_eq!((found.hash, found.key.id.as_str()), (hash, made.object.id.as_str()));
        assert_eq!((found.client.id.as_str(), found.client.plan.as_str()), ("acme", "pro"));
        assert_eq!((found.key.env, found.key.secrets[0].hash), (KeyEnv::Test, hash));
    }
    let off = api.operator.disable_key(&made.object.id, "test").await.unwrap();
    assert_eq!(off.object.unwrap().state, KeyState::Disabled);
    api.operator.enable_key(&made.object.id, "test").await.unwrap();
    let gone = api.operator.revoke_key(&made.object.id, "leak").await.unwrap();
    assert_eq!(told(api.operator.enable_key(&made.object.id, "x").await), (409, "in_use"));
    let request = feed_request("gw", &snapshot.history, gone.revision - 1, 0);
    let fed = api.gateway.feed(&request).await.unwrap();
    let Object::Key { value: Some(value), .. } = &fed.changes[0].object else {
        panic!("{:?}", fed.changes[0].object);
    };
    assert_eq!((value.state, value.secrets[0].hash), (KeyState::Revoked, hash));
    assert_eq!(api.viewer.keys(Some("acme")).await.unwrap().len(), 1);
    assert_eq!(api.viewer.keys(Some("zeta")).await.unwrap().len(), 0);

    // Neither the key nor its hash stands where people read.
    let audit = serde_json::to_string(&api.viewer.audit(500, None).await.unwrap()).unwrap();
    let keys = serde_json::to_string(&api.viewer.keys(None).await.unwrap()).unwrap();
    for text in [audit, keys] {
        assert!(!text.contains(&made.key) && !text.contains(&hash.to_hex()));
    }
}

pub(crate) async fn a_rule_for_all_replaces_single_ones_and_rollback_is_always_possible(api: &Api) {
    assert_eq!(api.gateway.snapshot().await.unwrap().rollout, None, "everybody is enforced");
    api.plan("pro").await;
    for client in ["a", "b", "c"] {
        api.client(client, "pro").await;
    }
    let some = |names: &[&str]| Whom::Clients(names.iter().map(|n| (*n).to_owned()).collect());
    let set =
        async |whom: &Whom, phase| api.operator.set_rollout("edge", whom, phase, "CHG-1").await;
    let unknown = refusal(set(&some(&["a", "ghost"]), Phase::Shadow).await);
    assert_eq!((unknown.status, unknown.errors[0].field.as_str()), (422, "clients[1]"));
    assert_eq!(told(api.viewer.rollout("edge").await), (404, "not_found"), "nothing was made");
    assert_eq!(told(api.operator.roll_back("edge", None, "x").await), (404, "not_found"));

    let first = set(&some(&["a", "b"]), Phase::Shadow).await.unwrap();
    assert_eq!(first.object.value().phase_of("a"), Phase::Shadow);
    assert_eq!(first.object.value().phase_of("c"), Phase::Enforce, "no rule means enforce");
    let same = set(&some(&["b"]), Phase::Shadow).await.unwrap();
    assert_eq!(same.revision, first.revision, "it is in that phase already");
    let canary = set(&some(&["a"]), Phase::Enforce).await.unwrap();
    assert_eq!(canary.object.value().rule_for("a").unwrap().since_revision, canary.revision);
    let all = set(&Whom::All, Phase::Shadow).await.unwrap();
    assert_eq!((all.replaced, all.object.rules.len()), (2, 1));
    let told_to_gateways = api.gateway.snapshot().await.unwrap().rollout.unwrap();
    assert_eq!(told_to_gateways, all.object.value());

    let other = api.operator.set_rollout("other", &Whom::All, Phase::Off, "x").await;
    assert_eq!(told(other), (409, "in_use"), "one rollout at a time");
    set(&some(&["a"]), Phase::Enforce).await.unwrap();
    let back = api.operator.roll_back("edge", None, "pager").await.unwrap();
    assert_eq!((back.replaced, back.object.value().phase_of("a")), (1, Phase::Shadow));
    let off = api.operator.roll_back("edge", Some(Phase::Off), "pager").await.unwrap();
    assert_eq!(off.object.value().phase_of("a"), Phase::Off);
    let never = api.operator.roll_back("edge", Some(Phase::Enforce), "x").await;
    assert_eq!(told(never), (422, "invalid_value"), "back is not forward");
    let commands: Vec<String> = off.object.history.iter().map(|m| m.command.clone()).collect();
    assert_eq!(commands.first().unwrap(), "set a b shadow");
    assert_eq!(commands.last().unwrap(), "rollback off");
    assert!(off.object.history.iter().all(|step| step.actor.starts_with("operator")));
}

pub(crate) async fn a_waiting_gateway_is_woken_by_a_change(api: &Api) {
    let start = api.gateway.snapshot().await.unwrap();
    let request = feed_request("gw-1", &start.history, start.revision, 10_000);
    let gateway = api.gateway.clone();
    let waiting = daemon::tasks::spawn("poll", async move { gateway.feed(&request).await });
    until("the poll is seen", async || !api.viewer.gateways().await.unwrap().is_empty()).await;
    assert!(!waiting.is_finished(), "there is nothing to tell yet");
    api.plan("pro").await;
    let fed = waiting.await.unwrap().unwrap();
    assert_eq!(fed.changes[0].object.name(), ("plan", "pro"));
    assert_eq!((fed.head, fed.live_gateways), (start.revision + 1, 1));

    let mut request = feed_request("gw-2", &start.history, fed.head, 0);
    request.applied = fed.head;
    let idle = api.gateway.feed(&request).await.unwrap();
    assert_eq!((idle.changes.len(), idle.head, idle.live_gateways), (0, fed.head, 2));
    let seen = api.viewer.gateways().await.unwrap();
    let shown: Vec<_> = seen.iter().map(|g| (g.id.as_str(), g.applied, g.live)).collect();
    assert_eq!(shown, [("gw-1", start.revision, true), ("gw-2", fed.head, true)]);
}

pub(crate) async fn a_gateway_that_cannot_go_on_is_told_to_read_the_snapshot(api: &Api) {
    for name in ["a", "b", "c"] {
        api.plan(name).await;
    }
    let now = api.gateway.snapshot().await.unwrap();
    let feed =
        async |history: &str, after| api.gateway.feed(&feed_request("gw", history, after, 0)).await;
    assert_eq!(told(feed("another", now.revision).await), (410, "history_gone"));
    assert_eq!(told(feed("", 0).await), (410, "history_gone"));
    assert_eq!(told(feed(&now.history, now.revision + 1).await), (410, "history_gone"));
    assert_eq!(feed(&now.history, 0).await.unwrap().changes.len(), 3);
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run("delete from change where revision <= $1", [(now.revision - 1).into()]).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    assert_eq!(told(feed(&now.history, 0).await), (410, "history_gone"));
    assert_eq!(feed(&now.history, now.revision - 1).await.unwrap().changes.len(), 1);
    let limits = api.service.safety_limits().await.unwrap();
    assert_eq!((limits.multiple, limits.plans.len()), (10, 3));
}

pub(crate) async fn the_bootstrap_token_makes_one_admin_and_ends(api: &Api) {
    let bootstrap = PlansClient::new(&api.base(), Some(&api.bootstrap_token)).unwrap();
    let again = bootstrap.create_token("x", Role::Admin, None, "test").await;
    assert_eq!(told(again), (401, "token_invalid"), "it was good for one use");
    let tokens = api.admin.tokens().await.unwrap();
    let admin = tokens.iter().find(|token| token.role == Role::Admin).unwrap();
    let gateway = tokens.iter().find(|token| token.role == Role::Gateway).unwrap();
    assert!(admin.expires_at.is_some(), "people's tokens end");
    assert_eq!(gateway.expires_at, None, "a fleet does not stop after a quarter");
    assert!(tokens.iter().find(|t| t.role == Role::Bootstrap).unwrap().revoked_at.is_some());

    let made = api.admin.create_token("ci", Role::Viewer, None, "test").await.unwrap();
    assert_eq!(made.hash, token_hash(&made.token));
    let viewer = PlansClient::new(&api.base(), Some(&made.token)).unwrap();
    viewer.plans().await.unwrap();
    api.admin.revoke_token(&made.object.id, "left").await.unwrap();
    assert_eq!(told(viewer.plans().await), (401, "token_invalid"));
    let more = api.admin.create_token("b", Role::Bootstrap, None, "test").await;
    assert_eq!(told(more), (422, "invalid_value"));
}

pub(crate) async fn lists_come_in_pages_and_miss_nothing(api: &Api) {
    for number in 0..7 {
        api.plan(&format!("plan-{number}")).await;
    }
    let viewer = api.viewer.http();
    let mut names = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let call = Call::get("/v1/plans").query("limit", "3").maybe("cursor", cursor);
        let page: Value = viewer.send(call).await.unwrap();
        let items = page["items"].as_array().unwrap();
        assert!((1..=3).contains(&items.len()));
        names.extend(items.iter().map(|plan| plan["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(names, (0..7).map(|n| format!("plan-{n}")).collect::<Vec<_>>());
    for limit in ["0", "501", "x"] {
        let call = Call::get("/v1/plans").query("limit", limit);
        assert_eq!(told(viewer.send::<Value>(call).await), (422, "invalid_value"), "{limit}");
    }
}

pub(crate) async fn what_is_known_twice_or_not_at_all_is_refused(api: &Api) {
    let operator = api.operator.http();
    let send = async |call: Call| told(operator.send::<Value>(call).await);
    let twice = br#"{"burst":{"capacity":1,"refill":"1/s"},"burst":{"capacity":9,"refill":"1/s"}}"#;
    let call = Call::new(wire::client::Method::PUT, "/v1/plans/p").bytes(twice.to_vec());
    assert_eq!(send(call).await, (400, "bad_request"));
    let plan = json!({ "burst": { "capacity": 1, "refill": "1/s" } });
    let call = put("/v1/plans/p", &plan).query("dryrun", "true");
    assert_eq!(send(call).await, (422, "unknown_field"));
    let call = Call::post("/v1/apply", &json!({})).query("dry_run", "yes");
    assert_eq!(send(call).await, (422, "invalid_value"));
    assert_eq!(send(put("/v1/plans/P!", &plan)).await, (422, "invalid_value"));
    let odd = json!({ "plan": "p", "state": "active" });
    assert_eq!(send(put("/v1/clients/acme", &odd)).await, (422, "unknown_field"));
    let call =
        Call::post("/v1/rollouts/r:set", &json!({ "all": true, "clients": ["a"], "phase": "off" }));
    assert_eq!(send(call).await, (422, "invalid_value"));
    let call = Call::post("/v1/rollouts/r:set", &json!({ "all": true, "phase": "on" }));
    assert_eq!(send(call).await, (422, "invalid_value"));
    let call = Call::post("/v1/rollouts/r:explode", &json!({}));
    assert_eq!(send(call).await, (404, "not_found"));
    let call = put("/v1/plans/p", &json!({ "note": "x".repeat(3 << 20) }));
    assert_eq!(send(call).await, (413, "body_too_large"));
    assert_eq!(send(Call::get("/v1/nowhere")).await, (404, "not_found"));
    let call = Call::new(wire::client::Method::PATCH, "/v1/plans/p").json(&plan);
    assert_eq!(send(call).await, (405, "method_not_allowed"));
    assert_eq!(api.gateway.snapshot().await.unwrap().revision, 0, "nothing of it did anything");
}

pub(crate) async fn a_row_damaged_by_hand_hides_no_other_and_can_be_written_anew(api: &Api) {
    for name in ["a", "b", "c"] {
        api.plan(name).await;
        api.client(name, name).await;
    }
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text("update plan set costs = 'x', labels = 'y' where name = 'b'").await.unwrap();
    tx.run_text("update plan set labels = '[1]' where name = 'c'").await.unwrap();
    tx.run_text("update client set labels = '{' where id = 'b'").await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;

    let plans = async || -> Vec<String> {
        api.viewer.plans().await.unwrap().into_iter().map(|plan| plan.name).collect()
    };
    assert_eq!(plans().await, ["a", "c"], "what does not read is left out");
    let mut paged: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let call = Call::get("/v1/plans").query("limit", "1").maybe("cursor", cursor);
        let page: Value = api.viewer.http().send(call).await.unwrap();
        paged.extend(page["items"].as_array().unwrap().iter().map(|plan| plan["name"].clone()));
        cursor = page["next"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(paged, ["a", "c"], "and no page ends there");
    assert_eq!(api.viewer.clients().await.unwrap().len(), 3, "labels are for people");
    let asked = refusal(api.viewer.http().send::<Value>(Call::get("/v1/plans/b")).await);
    assert_eq!(asked.status, 500);
    assert!(asked.detail.contains("plan `b` is damaged"), "{}", asked.detail);

    api.plan("b").await;
    assert_eq!(plans().await, ["a", "b", "c"]);
    let told = api.gateway.snapshot().await.unwrap().plans;
    assert!(told.iter().all(|plan| plan.check().is_ok()), "{told:?}");
}

pub(crate) async fn no_control_character_comes_in_anywhere(api: &Api) {
    api.plan("p").await;
    let operator = api.operator.http();
    let send = async |call: Call| told(operator.send::<Value>(call).await);
    let burst = json!({ "capacity": 1, "refill": "1/s" });
    for text in ["a\0b", "a\x1b[31mb", "a\u{9b}b", "a\rb", "\u{7f}"] {
        for (path, body) in [
            ("/v1/plans/q", json!({ "burst": burst, "note": text })),
            ("/v1/plans/q", json!({ "burst": burst, "labels": { "team": text } })),
            ("/v1/clients/c", json!({ "plan": "p", "name": text })),
            ("/v1/clients/c", json!({ "plan": "p", "labels": { "team": text } })),
        ] {
            assert_eq!(send(put(path, &body)).await, (422, "invalid_value"), "{body}");
        }
        let token = json!({ "name": text, "role": "viewer" });
        let made = api.admin.http().send::<Value>(Call::post("/v1/tokens", &token)).await;
        assert_eq!(told(made), (422, "invalid_value"), "{token}");
        let call = put("/v1/plans/q", &json!({ "burst": burst })).query("reason", text);
        assert_eq!(send(call).await, (400, "bad_request"));
    }
    for list in ["plans", "clients", "keys", "rollouts", "gateways"] {
        let call = Call::get(format!("/v1/{list}")).query("cursor", "\0");
        assert_eq!(send(call).await, (400, "bad_request"), "{list}");
    }
    for path in ["/v1/keys/%00", "/v1/plans/%00", "/v1/clients/a%1Bb"] {
        assert_eq!(send(Call::get(path)).await, (400, "bad_request"), "{path}");
    }
    assert_eq!(send(Call::post("/v1/keys/%00:revoke", &json!({}))).await, (400, "bad_request"));
    let feed = FeedRequest { boot: "a\0".to_owned(), ..feed_request("g", "h", 0, 0) };
    let fed = api.gateway.http().send::<Value>(Call::post("/v1/feed", &feed)).await;
    assert_eq!(told(fed), (422, "invalid_value"));
    let kept = json!({ "burst": burst, "note": "two lines\n\tand a tab, Ünï 名前" });
    api.operator.http().send::<Value>(put("/v1/plans/q", &kept)).await.expect("people write so");
}

/// Waits, bounded, until something holds.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..400 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("never: {what}");
}
