//! Limits of single clients and the secrets of keys, on both back ends.

use std::time::Duration;

use limiter_core::{Clock, SystemClock};
use serde_json::{Value, json};
use wire::client::Call;
use wire::client::plans::{ClientObject, ImportedKey};
use wire::key::{ApiKey, KeyEnv, KeyHash, Pepper};
use wire::policy::Object;
use wire::usage::{SecretUse, UsageReport};

use crate::api::{Api, feed_request, refusal, told};

pub(crate) const HOUR: u64 = 3_600_000;

pub(crate) fn now() -> u64 {
    SystemClock::new().now().us() / 1_000
}

fn pepper(api: &Api) -> Pepper {
    Pepper::from_bytes(&std::fs::read(api.state_dir.path().join("pepper")).unwrap()).unwrap()
}

async fn newest(api: &Api, after: u64) -> Object {
    let history = api.gateway.snapshot().await.unwrap().history;
    let fed = api.gateway.feed(&feed_request("gw", &history, after, 0)).await.unwrap();
    fed.changes.last().unwrap().object.clone()
}

fn ids(clients: &[ClientObject]) -> Vec<&str> {
    clients.iter().map(|client| client.id.as_str()).collect()
}

pub(crate) async fn a_client_has_limits_of_its_own_until_they_end(api: &Api) {
    api.plan("pro").await;
    for id in ["acme", "zeta"] {
        api.client(id, "pro").await;
    }
    let own = json!({
        "burst": { "capacity": 50, "refill": "5/s" }, "failure": "0.25",
        "expires_at": now() + HOUR, "reason": "launch day",
    });
    let made = api.operator.put_override("acme", &own, "", None).await.unwrap();
    let client = made.object.unwrap();
    assert_eq!(client.revision, made.revision, "it is a revision of the client");
    let shown = client.overridden.clone().unwrap();
    assert_eq!((shown.reason.as_str(), shown.failure.as_deref()), ("launch day", Some("0.25")));
    assert_eq!(api.viewer.client("acme").await.unwrap(), client);
    let Object::Client { value: Some(fed), .. } = newest(api, made.revision - 1).await else {
        panic!("a client");
    };
    let fed = fed.overridden.unwrap();
    let burst = fed.burst.unwrap();
    assert_eq!((burst.capacity, burst.tokens, burst.per_us), (50, 1, 200_000));
    assert_eq!((fed.sustained, fed.failure.as_deref()), (None, Some("0.25")));

    let same = api.operator.put_override("acme", &own, "", None).await.unwrap();
    assert_eq!(same.revision, made.revision, "saying it again is no change");
    assert_eq!(ids(&api.viewer.overridden_clients().await.unwrap()), ["acme"]);
    let limits = api.service.safety_limits().await.unwrap();
    let overrides: Vec<_> =
        limits.overrides.iter().map(|o| (o.client.as_str(), o.burst.unwrap().capacity)).collect();
    assert_eq!(overrides, [("acme", 50)]);

    // The client's own changes leave it alone.
    api.client("acme", "pro").await;
    api.operator.suspend("acme", "x").await.unwrap();
    let resumed = api.operator.resume("acme", "x").await.unwrap().object.unwrap();
    assert_eq!(resumed.overridden, client.overridden);
    let gone = api.operator.delete_override("acme", "over").await.unwrap().object.unwrap();
    assert_eq!((gone.overridden, gone.revision), (None, resumed.revision + 1));
    let again = api.operator.delete_override("acme", "over").await;
    assert_eq!(told(again), (404, "not_found"));
    let nobody = api.operator.put_override("nobody", &own, "", None).await;
    assert_eq!(told(nobody), (404, "not_found"));

    // It ends by itself, and with its client.
    let open = json!({ "failure": "open", "expires_at": now() + HOUR });
    api.operator.put_override("zeta", &open, "", None).await.unwrap();
    assert_eq!(ids(&api.viewer.overridden_clients().await.unwrap()), ["zeta"]);
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text("update client_override set set_at = 1, expires_at = 2").await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    assert!(api.viewer.overridden_clients().await.unwrap().is_empty());
    assert!(api.service.safety_limits().await.unwrap().overrides.is_empty());
    assert!(api.viewer.client("zeta").await.unwrap().overridden.is_some(), "it is still shown");
    api.operator.delete_client("zeta", "left").await.unwrap();
    assert_eq!(told(api.viewer.client("zeta").await), (404, "not_found"));
}

pub(crate) async fn an_override_is_checked_and_the_database_checks_it_again(api: &Api) {
    let plan = json!({
        "burst": { "capacity": 10, "refill": "1/s" }, "costs": [{ "route": "reports", "cost": 8 }],
    });
    api.operator.put_plan("pro", &plan, "test", None).await.unwrap();
    api.client("acme", "pro").await;
    let ends = now() + HOUR;
    let limit = |capacity: u64| json!({ "capacity": capacity, "refill": "1/s" });
    for (body, code, field) in [
        (json!({ "expires_at": ends }), "invalid_value", "burst"),
        (json!({ "burst": limit(20) }), "invalid_value", "expires_at"),
        (json!({ "burst": limit(20), "expires_at": 5 }), "invalid_value", "expires_at"),
        (
            json!({ "burst": limit(20), "expires_at": ends + 366 * 24 * HOUR }),
            "invalid_value",
            "expires_at",
        ),
        (
            json!({ "burst": limit(0), "expires_at": ends }),
            "capacity_out_of_range",
            "burst.capacity",
        ),
        (json!({ "failure": "2e3", "expires_at": ends }), "failure_out_of_range", "failure"),
        (json!({ "burst": limit(7), "expires_at": ends }), "cost_out_of_range", "burst.capacity"),
        (
            json!({ "sustained": limit(7), "expires_at": ends }),
            "cost_out_of_range",
            "sustained.capacity",
        ),
        (json!({ "burst": limit(20), "expires_at": ends, "plan": "pro" }), "unknown_field", "plan"),
    ] {
        let refused = refusal(api.operator.put_override("acme", &body, "", None).await);
        assert_eq!((refused.status, refused.code.name()), (422, code), "{body}");
        assert_eq!(refused.errors[0].field, field, "{body}");
    }
    assert_eq!(api.viewer.client("acme").await.unwrap().overridden, None);

    let good = json!({ "burst": limit(20), "expires_at": ends });
    api.operator.put_override("acme", &good, "", None).await.unwrap();
    let database = api.by_hand().await;
    for wrong in [
        "burst_capacity = 0",
        "burst_tokens = -1",
        "burst_tokens = 2000000000, burst_per_us = 1000000",
        "burst_per_us = null",
        "burst_capacity = null, burst_tokens = null, burst_per_us = null",
        "failure = 'often'",
        "expires_at = set_at",
        "expires_at = set_at + 31622400001",
    ] {
        let mut tx = database.write().await.unwrap();
        let refused = tx.run_text(&format!("update client_override set {wrong}")).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, daemon::sql::SqlError::Constraint(..)), "{wrong}: {refused:?}");
    }
    database.close().await;
}

pub(crate) async fn a_key_is_rotated_on_one_id_and_has_two_secrets_at_most(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let pepper = pepper(api);
    let first = api.operator.create_key("acme", KeyEnv::Test, None, "test").await.unwrap();
    let id = first.object.id.clone();
    let before = now();
    let second = api.support.rotate_key(&id, Some(HOUR), "quarter").await.unwrap();
    assert_eq!((second.object.id.as_str(), second.object.env), (id.as_str(), KeyEnv::Test));
    assert!(second.key.starts_with(&format!("weir_test_{id}_")), "same id, another secret");
    assert_ne!(second.key, first.key);
    assert_eq!(wire::key::shape(&second.key, &pepper), wire::key::KeyShape::Ours);
    let until = second.previous.unwrap().valid_until.unwrap();
    assert!((before + HOUR..=now() + HOUR).contains(&until));

    let hashes = [&first.key, &second.key].map(|key| KeyHash::of_key(key, &pepper));
    let wait = Duration::from_secs(5);
    let found = api.gateway.lookup(hashes.to_vec(), wait).await.unwrap();
    assert_eq!(found.found.len(), 2, "both open");
    for found in &found.found {
        assert_eq!((found.key.id.as_str(), found.key.secrets.len()), (id.as_str(), 2));
    }
    let Object::Key { value: Some(fed), .. } = newest(api, second.revision - 1).await else {
        panic!("a key");
    };
    let ends: Vec<_> = hashes
        .iter()
        .map(|hash| fed.secrets.iter().find(|s| s.hash == *hash).unwrap().valid_until)
        .collect();
    assert_eq!(ends, [Some(until), None]);

    let third = refusal(api.support.rotate_key(&id, None, "again").await);
    assert_eq!((third.status, third.code.name()), (409, "in_use"), "two secrets at most");
    let leak = api.support.rotate_key(&id, Some(0), "leak").await.unwrap();
    assert!(leak.previous.is_none());
    let found = api.gateway.lookup(hashes.to_vec(), wait).await.unwrap();
    assert_eq!((found.found.len(), found.missing.len()), (0, 2), "both have ended at once");
    let usage = api.viewer.key_usage(&id).await.unwrap();
    assert_eq!((usage.secrets.len(), usage.secrets[0].algorithm.as_str()), (1, "weir"));

    // Never past the key's own end, and never once that is over.
    let end = now() + HOUR;
    let short = api.operator.create_key("acme", KeyEnv::Live, Some(end), "test").await.unwrap();
    let rotated = api.support.rotate_key(&short.object.id, Some(2 * HOUR), "x").await.unwrap();
    assert_eq!(rotated.previous.unwrap().valid_until, Some(end));
    api.operator.revoke_key(&short.object.id, "x").await.unwrap();
    let revoked = api.support.rotate_key(&short.object.id, Some(0), "x").await;
    assert_eq!(told(revoked), (409, "in_use"));
    let long = api.support.rotate_key(&id, Some(400 * 24 * HOUR), "x").await;
    assert_eq!(told(long), (422, "invalid_value"));
    assert_eq!(told(api.support.rotate_key("none", None, "x").await), (404, "not_found"));
}

pub(crate) fn imported(text: &str, client: &str) -> ImportedKey {
    let sha256 = sha256(text);
    ImportedKey { sha256, client: client.to_owned(), env: KeyEnv::Live, expires_at: None }
}

/// SHA-256 in hex, as another system has it: by the program that everybody has.
fn sha256(text: &str) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut program =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    program.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let told = String::from_utf8(program.wait_with_output().unwrap().stdout).unwrap();
    told.split(' ').next().unwrap().to_owned()
}

pub(crate) async fn keys_made_elsewhere_are_imported_all_or_none(api: &Api) {
    api.plan("pro").await;
    for id in ["acme", "zeta"] {
        api.client(id, "pro").await;
    }
    let start = api.gateway.snapshot().await.unwrap().revision;
    let wrong = json!({ "keys": [
        { "sha256": sha256("one"), "client": "acme" },
        { "sha256": "abc", "client": "acme" },
        { "sha256": sha256("two"), "client": "acme", "expires_at": 1 },
        { "client": "acme", "plan": "pro" },
    ]});
    let refused =
        refusal(api.operator.http().send::<Value>(Call::post("/v1/keys:import", &wrong)).await);
    let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
    let all = ["keys[1].sha256", "keys[2].expires_at", "keys[3].sha256", "keys[3].plan"];
    assert_eq!(fields, all, "{refused:?}");
    let ghost = [imported("one", "acme"), imported("two", "ghost")];
    let refused = refusal(api.operator.import_keys(&ghost, "move").await);
    assert_eq!(refused.errors[0].field, "keys[1].client");
    assert_eq!(api.gateway.snapshot().await.unwrap().revision, start, "nothing of it is stored");

    let keys = [imported("one", "acme"), imported("two", "zeta"), imported("one", "acme")];
    let made = api.operator.import_keys(&keys, "move").await.unwrap();
    assert_eq!((made.revision, made.items.len()), (start + 2, 3));
    assert_eq!(made.items[0].id, made.items[2].id, "the same key is one key");
    assert!(made.items.iter().all(|key| key.imported));
    let again = api.operator.import_keys(&keys, "move").await.unwrap();
    assert_eq!((again.revision, &again.items), (made.revision, &made.items), "and stays");
    let stolen = refusal(api.operator.import_keys(&[imported("one", "zeta")], "x").await);
    assert_eq!(stolen.errors[0].field, "keys[0].sha256");

    // As a gateway asks that sees the key itself.
    let hash = KeyHash::of_key_if_imported("one", &pepper(api));
    let found = api.gateway.lookup(vec![hash], Duration::from_secs(5)).await.unwrap();
    assert_eq!(found.found[0].client.id, "acme");
    // The next secret is ours, on the same id.
    let id = &made.items[0].id;
    let ours = api.support.rotate_key(id, Some(HOUR), "ours").await.unwrap();
    assert!(ours.key.contains(id.as_str()) && ours.object.imported);
    let last = api.support.rotate_key(id, Some(0), "ours").await.unwrap();
    assert!(!last.object.imported, "nothing of it is left");
    let shown = api.viewer.key_usage(id).await.unwrap();
    assert_eq!(shown.secrets[0].algorithm, "weir");

    let dump = serde_json::to_string(&api.viewer.audit(500, None).await.unwrap()).unwrap();
    for secret in [sha256("one"), hash.to_hex(), ours.key, last.key] {
        assert!(!dump.contains(&secret), "no secret and no hash stands in the audit");
    }
}

pub(crate) async fn uses_of_secrets_are_noted_without_a_revision(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let first = api.operator.create_key("acme", KeyEnv::Live, None, "test").await.unwrap();
    let second = api.support.rotate_key(&first.object.id, Some(HOUR), "x").await.unwrap();
    let pepper = pepper(api);
    let used =
        |key: &str, last_used_at| SecretUse { hash: KeyHash::of_key(key, &pepper), last_used_at };
    let report = |secrets| UsageReport { gateway: "gw-1".to_owned(), secrets };
    let shown = async || -> Vec<Option<u64>> {
        let usage = api.viewer.key_usage(&first.object.id).await.unwrap();
        let mut by_end = usage.secrets;
        by_end.sort_by_key(|secret| secret.valid_until.is_none());
        by_end.iter().map(|secret| secret.last_used_at).collect()
    };
    assert_eq!(shown().await, [None, None]);
    let before = now();
    let told = vec![used(&first.key, 5_000), used(&second.key, 7_000), used("unknown", 9_000)];
    api.gateway.report_usage(&report(told)).await.unwrap();
    assert_eq!(shown().await, [Some(5_000), Some(7_000)]);
    // An older report goes back nowhere, and a clock that is ahead does not hide an idle key.
    let told = vec![used(&first.key, 4_000), used(&second.key, before + 24 * HOUR)];
    api.gateway.report_usage(&report(told)).await.unwrap();
    let last = shown().await;
    assert_eq!(last[0], Some(5_000));
    assert!((before..=now()).contains(&last[1].unwrap()), "{last:?}");
    assert_eq!(api.gateway.snapshot().await.unwrap().revision, second.revision);
    let many = report(vec![used("x", 1); 1_001]);
    assert_eq!(crate::api::told(api.gateway.report_usage(&many).await), (422, "invalid_value"));
}

#[test]
fn an_id_is_kept_by_every_secret_of_its_key() {
    let pepper = Pepper::generate().unwrap();
    let id = ApiKey::new_id().unwrap();
    let [one, two] =
        [(); 2].map(|()| ApiKey::generate_for(id.clone(), KeyEnv::Live, &pepper).unwrap());
    assert_eq!((one.id.as_str(), two.id.as_str()), (id.as_str(), id.as_str()));
    assert!(one.text != two.text && one.hash != two.hash);
}
