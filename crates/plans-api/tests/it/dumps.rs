//! Whoever gets hold of the database, a dump of it, a backup or the log of the process has no key
//! and no token that opens.

use serde_json::Value;
use wire::client::plans::{PlansClient, Role};
use wire::client::{Call, Client};
use wire::key::KeyEnv;

use crate::api::{Api, told};
use crate::backup::backup_of;
use crate::postgres::Postgres;

/// Secrets of all kinds, made through the API as operators do it.
async fn secrets(api: &Api) -> Vec<String> {
    api.plan("pro").await;
    api.client("acme", "pro").await;
    let mut secrets = vec![api.bootstrap_token.clone()];
    for env in [KeyEnv::Live, KeyEnv::Test] {
        let made = api.operator.create_key("acme", env, None, "test").await.unwrap();
        secrets.push(made.key.clone());
        // Shown as a key, looked up as gateways do, and refused as a token: all of it is logged.
        let guess = PlansClient::new(&api.base(), Some(&made.key)).unwrap();
        assert_eq!(told(guess.plans().await), (401, "token_invalid"));
    }
    for role in [Role::Viewer, Role::Operator, Role::Admin, Role::Gateway, Role::Service] {
        let made = api.admin.create_token("somebody", role, None, "test").await.unwrap();
        let client = Client::new(&api.base(), Some(&made.token)).unwrap();
        let _used = client.send::<Value>(Call::get("/v1/plans")).await;
        secrets.push(made.token);
    }
    let revoked = api.operator.keys(Some("acme")).await.unwrap().remove(0);
    api.operator.revoke_key(&revoked.id, "test").await.unwrap();
    secrets
}

fn holds(dump: &[u8], text: &str) -> bool {
    let text = text.as_bytes();
    dump.windows(text.len()).any(|window| window == text)
}

/// Neither whole nor the half that is secret; the public half is there, so this is the right dump.
fn check(what: &str, dump: &[u8], secrets: &[String]) {
    for secret in secrets {
        let (public, private) = secret.rsplit_once('_').unwrap();
        let id = public.rsplit('_').next().unwrap();
        assert!(holds(dump, id), "{what} has no trace of {id}: it is not what it should be");
        assert!(!holds(dump, private), "{what} holds a secret of {id}");
        // Keys end with a tag that anybody with the pepper can make; without it, 160 bits remain.
        if secret.starts_with("weir_") {
            let secret = private.get(..27).unwrap();
            assert!(!holds(dump, secret), "{what} holds the secret of {id} without tag");
        }
    }
}

/// What a dump does hold opens nothing: hashes, tried as the secret of each id.
async fn hashes_open_nothing(api: &Api) {
    let backup = String::from_utf8(backup_of(api).await).unwrap();
    let mut tried = 0;
    for line in backup.lines().filter(|line| line.contains("\"operator_token\"")) {
        let row: Value = serde_json::from_str(line).unwrap();
        let (id, hash) = (row["row"]["id"].as_str().unwrap(), row["row"]["hash"].as_str().unwrap());
        let guess = PlansClient::new(&api.base(), Some(&format!("weiro_{id}_{hash}"))).unwrap();
        let (status, code) = told(guess.plans().await);
        assert!(matches!((status, code), (401, "token_invalid") | (429, _)), "{status} {code}");
        tried += 1;
    }
    assert!(5 <= tried, "only {tried} tokens");
    let audit = api.admin.audit(500, None).await.unwrap();
    let told = serde_json::to_string(&audit.items).unwrap();
    let stored: Vec<&str> = backup
        .lines()
        .filter(|line| line.contains("_secret\"") || line.contains("\"operator_token\""))
        .filter_map(|line| line.split("\"hash\":\"").nth(1)?.get(..64))
        .collect();
    assert!(7 <= stored.len());
    assert!(stored.iter().all(|hash| !told.contains(hash)), "the audit shows a stored hash");
}

#[tokio::test]
async fn the_files_of_sqlite_and_a_backup_hold_no_key_and_no_token() {
    let api = Api::sqlite().await;
    let secrets = secrets(&api).await;
    check("a backup", &backup_of(&api).await, &secrets);
    let mut files = Vec::new();
    for name in ["plans.db", "plans.db-wal", "plans.db-shm"] {
        if let Ok(bytes) = std::fs::read(api.state_dir.path().join(name)) {
            files.extend(bytes);
        }
    }
    check("the database's files", &files, &secrets);
    hashes_open_nothing(&api).await;
    api.stop().await;
}

#[tokio::test]
async fn a_dump_of_postgres_and_a_backup_hold_no_key_and_no_token() {
    let postgres = Postgres::start().await;
    let api = Api::on(postgres.database("dumped")).await;
    let secrets = secrets(&api).await;
    check("a backup", &backup_of(&api).await, &secrets);
    check("pg_dump", &postgres.dump("dumped"), &secrets);
    hashes_open_nothing(&api).await;
    api.stop().await;
}
