//! What a restore does not bring back, does not do twice, and only tries; on both back ends.

use std::io::{Seek, Write};
use std::time::Duration;

use serde_json::{Value, json};
use wire::client::plans::Restored;
use wire::client::{Call, ClientError, Method};
use wire::key::{KeyEnv, KeyHash, Pepper};
use wire::policy::{KeyState, KeyValue};

use crate::api::{Api, refusal};
use crate::backup::{backup_of, with_pepper};
use crate::catalog::{HOUR, now};
use crate::scenarios::until;

fn file_of(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

async fn restore(api: &Api, bytes: &[u8]) -> Result<Restored, ClientError> {
    api.admin.restore(file_of(bytes), "test").await
}

fn hash(api: &Api, key: &str) -> KeyHash {
    let pepper = std::fs::read(api.state_dir.path().join("pepper")).unwrap();
    KeyHash::of_key(key, &Pepper::from_bytes(&pepper).unwrap())
}

/// The key that this secret is of, as gateways are told it.
async fn shown(api: &Api, key: &str) -> Option<KeyValue> {
    let wait = Duration::from_secs(5);
    let answer = api.gateway.lookup(vec![hash(api, key)], wait).await.unwrap();
    answer.found.into_iter().next().map(|found| found.key)
}

/// Until when this secret opens; `Some(None)` for good.
async fn ends(api: &Api, key: &str) -> Option<Option<u64>> {
    let (value, hash) = (shown(api, key).await?, hash(api, key));
    value.secrets.iter().find(|secret| secret.hash == hash).map(|secret| secret.valid_until)
}

async fn next_millisecond() {
    let before = now();
    until("the clock goes on", async || before < now()).await;
}

pub(crate) async fn what_ended_after_a_backup_stays_ended_and_its_successor_opens(api: &Api) {
    api.plan("pro").await;
    for id in ["acme", "brief"] {
        api.client(id, "pro").await;
    }
    let create = async |client: &str| {
        api.operator.create_key(client, KeyEnv::Live, None, "test").await.unwrap()
    };
    let (leaked, slow, quiet) = (create("acme").await, create("acme").await, create("acme").await);
    let gone = create("brief").await;
    next_millisecond().await;
    let backup = backup_of(api).await;
    let at_once = api.support.rotate_key(&leaked.object.id, Some(0), "leak").await.unwrap();
    let overlap = api.support.rotate_key(&slow.object.id, Some(HOUR), "quarter").await.unwrap();
    let until = overlap.previous.unwrap().valid_until.unwrap();
    api.operator.revoke_key(&gone.object.id, "leak").await.unwrap();
    api.operator.delete_client("brief", "gone").await.unwrap();
    let later = backup_of(api).await;

    let restored = restore(api, &backup).await.unwrap();
    assert_eq!((restored.stay_revoked, restored.stay_ended), (1, 2));
    let ended = ends(api, &leaked.key).await.unwrap();
    assert!(ended.is_some_and(|end| end <= now()), "the leaked secret opens again: {ended:?}");
    assert_eq!(ends(api, &at_once.key).await, Some(None), "the one in its place still opens");
    assert_eq!(ends(api, &slow.key).await, Some(Some(until)), "it ends when it was to end");
    assert_eq!(ends(api, &overlap.key).await, Some(None));
    assert_eq!(ends(api, &quiet.key).await, Some(None), "nothing happened to this one");
    let back = shown(api, &gone.key).await.expect("the key of the deleted client is back");
    assert_eq!(back.state, KeyState::Revoked, "revoked is final");

    // The newest backup after the older one: what it has is not taken for something old.
    restore(api, &later).await.unwrap();
    assert_eq!(ends(api, &at_once.key).await, Some(None));
    assert_eq!(ends(api, &overlap.key).await, Some(None));
}

#[tokio::test]
async fn a_newer_backup_over_an_older_state_brings_its_newer_secret() {
    let from = Api::sqlite().await;
    from.plan("pro").await;
    from.client("acme", "pro").await;
    let first = from.operator.create_key("acme", KeyEnv::Live, None, "test").await.unwrap();
    let older = backup_of(&from).await;
    next_millisecond().await;
    let second = from.support.rotate_key(&first.object.id, Some(0), "leak").await.unwrap();
    let newer = backup_of(&from).await;
    let into = with_pepper(&from, None).await;
    restore(&into, &older).await.unwrap();
    assert_eq!(ends(&into, &first.key).await, Some(None));
    restore(&into, &newer).await.unwrap();
    assert_eq!(ends(&into, &second.key).await, Some(None));
    assert_eq!(ends(&into, &first.key).await, None, "the newer state has it no more");
    from.stop().await;
    into.stop().await;
}

pub(crate) async fn a_restore_that_is_only_tried_checks_all_and_changes_nothing(api: &Api) {
    api.plan("pro").await;
    let backup = backup_of(api).await;
    api.plan("later").await;
    let before = api.gateway.snapshot().await.unwrap();
    let audit = api.viewer.verify_audit(None).await.unwrap();
    let trying = api.admin.clone().trying();
    let tried = trying.restore(file_of(&backup), "test").await.unwrap();
    assert!(0 < tried.rows, "{tried:?}");
    assert_eq!(api.gateway.snapshot().await.unwrap(), before);
    assert_eq!(api.viewer.verify_audit(None).await.unwrap(), audit);
    let cut = backup.get(..backup.len() - 1).unwrap();
    let refused = refusal(trying.restore(file_of(cut), "test").await);
    assert_eq!((refused.status, refused.code.name()), (422, "invalid_value"));
    api.plan("still-written").await;
    restore(api, &backup).await.unwrap();
    assert_eq!(api.viewer.plans().await.unwrap().len(), 1);
}

pub(crate) async fn a_call_that_a_restore_undid_is_done_again(api: &Api) {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let backup = backup_of(api).await;
    let create = || Call::post("/v1/keys", &json!({ "client": "acme" })).idempotency_key("deploy");
    api.operator.http().send::<Value>(create()).await.unwrap();
    assert_eq!(refusal(api.operator.http().send::<Value>(create()).await).status, 409);
    restore(api, &backup).await.unwrap();
    assert!(api.viewer.keys(None).await.unwrap().is_empty());
    api.operator.http().send::<Value>(create()).await.unwrap();
    assert_eq!(api.viewer.keys(None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_restore_with_a_name_is_as_long_as_one_without() {
    let api = Api::sqlite().await;
    // Long rows of the audit, so that it is more than any other call may bring.
    for name in ["a", "b", "c"] {
        let note = "n".repeat(1 << 10);
        let body = json!({ "burst": { "capacity": 10, "refill": "1/s" }, "note": note });
        api.operator.put_plan(name, &body, "test", None).await.unwrap();
    }
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    let grow =
        "update audit set \"after\" = '\"' || replace(hex(zeroblob(200000)), '0', 'x') || '\"'";
    tx.run_text(grow).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    let backup = backup_of(&api).await;
    assert!(4 << 20 < backup.len());
    let call = || {
        let call = Call::new(Method::POST, "/v1/backup:restore").query("reason", "test");
        call.idempotency_key("restore")
    };
    for _ in 0..2 {
        let sent = api.admin.http().upload::<Restored>(call(), file_of(&backup)).await;
        assert!(0 < sent.unwrap().rows);
    }
    api.stop().await;
}
