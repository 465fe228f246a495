//! API keys: stored are hashes, shown is everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use daemon::sql::{Row, Transaction, Value};
use serde_json::json;
use wire::client::plans::{Changed, KeyObject, Page};
use wire::key::{ApiKey, KeyHash};
use wire::policy::{KeyState, KeyValue, Object, SecretValue};

use super::writing::{Told, Writing};
use super::{Expect, PlanStore, Stamp, StoreError, clients, many, readable, word, word_of};
use crate::model::api_key::{KeyMove, KeySpec};

macro_rules! columns {
    () => {
        "select id, client, env, state, expires_at, created_at, created_by, revision, \
         (select count(*) from api_key_secret s where s.key_id = api_key.id \
         and s.algorithm = 'sha256') as imported from api_key"
    };
}
const ONE: &str = concat!(columns!(), " where id = $1");
const PAGE: &str = concat!(columns!(), " where id > $1 order by id limit $2");
const PAGE_OF_CLIENT: &str =
    concat!(columns!(), " where id > $1 and client = $3 order by id limit $2");
const ALL_OF_CLIENT: &str = concat!(columns!(), " where client = $1 order by id");

static MANY: LazyLock<String> =
    LazyLock::new(|| many::statement(concat!(columns!(), " where id in"), ""));
const SECRETS: &str =
    "select key_id, hash, valid_until from api_key_secret where key_id = $1 order by hash";
static SECRETS_OF_MANY: LazyLock<String> = LazyLock::new(|| {
    let select = "select key_id, hash, valid_until from api_key_secret where key_id in";
    many::statement(select, "order by hash")
});

impl PlanStore {
    /// One key.
    pub(crate) async fn key(&self, id: &str) -> Result<KeyObject, StoreError> {
        let mut tx = self.database.read().await?;
        find(&mut tx, id).await?.ok_or_else(|| not_found(id))
    }

    /// A page of keys by id, or of one client's.
    pub(crate) async fn keys(
        &self,
        client: Option<&str>,
        after: &str,
        limit: u32,
    ) -> Result<Page<KeyObject>, StoreError> {
        let mut tx = self.database.read().await?;
        let place: [Value; 2] = [after.into(), (limit + 1).into()];
        let rows = match client {
            None => tx.rows(PAGE, place).await?,
            Some(client) => {
                tx.rows(PAGE_OF_CLIENT, place.into_iter().chain([client.into()])).await?
            }
        };
        readable(&rows, limit, "id", key_of)
    }

    /// Stores a new key's public part and hash.
    pub(crate) async fn create_key(
        &self,
        spec: &KeySpec,
        key: &ApiKey,
        stamp: &Stamp,
    ) -> Result<(u64, KeyObject), StoreError> {
        let mut writing = self.begin(stamp).await?;
        let client = spec.client.as_str();
        if clients::find(&mut writing.tx, client).await?.is_none() {
            return Err(clients::not_found(client));
        }
        let object = KeyObject {
            id: key.id.clone(),
            client: client.to_owned(),
            env: spec.env,
            state: KeyState::Active,
            expires_at: spec.expires_at,
            created_at: writing.now(),
            created_by: stamp.actor.clone(),
            imported: false,
            revision: writing.next_revision(),
        };
        insert(&mut writing.tx, &object, &key.hash, "weir").await?;
        record(&mut writing, "key create", &object, None).await?;
        Ok((writing.commit().await?, object))
    }

    /// Revokes, disables or enables a key.
    pub(crate) async fn move_key(
        &self,
        id: &str,
        step: KeyMove,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<Changed<KeyObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = find(&mut writing.tx, id).await?.ok_or_else(|| not_found(id))?;
        expect.of("key", id, Some((found.revision, &found)))?;
        let Some(state) = step.from(found.state) else {
            return Err(StoreError::InUse(format!("the key `{id}` is revoked, which is final")));
        };
        let mut key = found.clone();
        if state != found.state {
            key.state = state;
            key.revision = writing.next_revision();
            let row = [word(state).into(), key.revision.into(), id.into()];
            let update = "update api_key set state = $1, revision = $2 where id = $3";
            writing.tx.run(update, row).await?;
            record(&mut writing, step.command(), &key, Some(&found)).await?;
        }
        Ok(Changed { revision: writing.commit().await?, object: Some(key) })
    }
}

pub(super) fn not_found(id: &str) -> StoreError {
    StoreError::NotFound { kind: "key", id: id.to_owned() }
}

pub(super) async fn find(tx: &mut Transaction, id: &str) -> Result<Option<KeyObject>, StoreError> {
    tx.row(ONE, [id.into()]).await?.as_ref().map(key_of).transpose()
}

/// A new key with its first secret.
pub(super) async fn insert(
    tx: &mut Transaction,
    key: &KeyObject,
    hash: &KeyHash,
    algorithm: &str,
) -> Result<(), StoreError> {
    let row = [
        key.id.as_str().into(),
        key.client.as_str().into(),
        word(key.env).into(),
        word(key.state).into(),
        key.expires_at.into(),
        key.created_at.into(),
        key.created_by.as_str().into(),
        key.revision.into(),
    ];
    tx.run(
        "insert into api_key (id, client, env, state, expires_at, created_at, created_by, revision) \
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        row,
    )
    .await?;
    insert_secret(tx, &key.id, hash, algorithm, key.created_at).await
}

/// One more secret for a key.
pub(super) async fn insert_secret(
    tx: &mut Transaction,
    id: &str,
    hash: &KeyHash,
    algorithm: &str,
    now: u64,
) -> Result<(), StoreError> {
    let secret = [hash.bytes().to_vec().into(), id.into(), algorithm.into(), now.into()];
    tx.run(
        "insert into api_key_secret (hash, key_id, algorithm, valid_until, created_at) \
         values ($1, $2, $3, null, $4)",
        secret,
    )
    .await?;
    Ok(())
}

/// Puts a key into feed and audit; the audit never has its hashes.
pub(super) async fn record(
    writing: &mut Writing<'_>,
    command: &str,
    key: &KeyObject,
    before: Option<&KeyObject>,
) -> Result<(), StoreError> {
    let value = value_of(&mut writing.tx, key).await?;
    let told = Told {
        command,
        kind: "key",
        id: &key.id,
        before: before.map(|before| json!(before)),
        after: Some(json!(key)),
    };
    writing.record(&Object::Key { id: key.id.clone(), value: Some(value) }, told).await
}

/// Deletes a client's keys; refuses while one of them could still open.
pub(super) async fn delete_revoked(
    writing: &mut Writing<'_>,
    client: &str,
) -> Result<(), StoreError> {
    let rows = writing.tx.rows(ALL_OF_CLIENT, [client.into()]).await?;
    let keys: Vec<KeyObject> = rows.iter().map(key_of).collect::<Result<_, _>>()?;
    let open = keys.iter().filter(|key| key.state != KeyState::Revoked).count();
    if open > 0 {
        let detail = format!("the client `{client}` has {open} keys that are not revoked");
        return Err(StoreError::InUse(detail));
    }
    for key in keys {
        writing.next_revision();
        let id: [Value; 1] = [key.id.as_str().into()];
        writing.tx.run("delete from api_key_secret where key_id = $1", id.clone()).await?;
        writing.tx.run("delete from api_key where id = $1", id).await?;
        let told = Told {
            command: "client delete",
            kind: "key",
            id: &key.id,
            before: Some(json!(key)),
            after: None,
        };
        writing.record(&Object::Key { id: key.id.clone(), value: None }, told).await?;
    }
    Ok(())
}

/// These keys; one that cannot be read is left out, and hides no other.
pub(super) async fn find_many(
    tx: &mut Transaction,
    ids: &[Value],
) -> Result<Vec<KeyObject>, StoreError> {
    let rows = many::rows(tx, ONE, MANY.as_str(), ids).await?;
    many::sound(rows.iter().map(key_of))
}

/// Secrets of these keys by key, each key's by hash; a key of which one cannot be read has none.
pub(super) async fn secrets_of_many(
    tx: &mut Transaction,
    ids: &[Value],
) -> Result<BTreeMap<String, Vec<SecretValue>>, StoreError> {
    let mut secrets: BTreeMap<String, Vec<SecretValue>> = BTreeMap::new();
    let mut damaged = BTreeSet::new();
    for row in many::rows(tx, SECRETS, SECRETS_OF_MANY.as_str(), ids).await? {
        let id = row.text("key_id")?;
        match secret_of(&row, &id) {
            Ok(secret) => secrets.entry(id).or_default().push(secret),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "left out of a look-up");
                damaged.insert(id);
            }
            Err(error) => return Err(error),
        }
    }
    secrets.retain(|id, _| !damaged.contains(id));
    Ok(secrets)
}

/// As gateways are told it.
async fn value_of(tx: &mut Transaction, key: &KeyObject) -> Result<KeyValue, StoreError> {
    let rows = tx.rows(SECRETS, [key.id.as_str().into()]).await?;
    let secrets = rows.iter().map(|row| secret_of(row, &key.id)).collect::<Result<_, _>>()?;
    Ok(value_with(key, secrets))
}

/// The same, of secrets that are read already.
pub(super) fn value_with(key: &KeyObject, secrets: Vec<SecretValue>) -> KeyValue {
    KeyValue {
        id: key.id.clone(),
        client: key.client.clone(),
        env: key.env,
        state: key.state,
        expires_at: key.expires_at,
        secrets,
        revision: key.revision,
    }
}

fn secret_of(row: &Row, key: &str) -> Result<SecretValue, StoreError> {
    let bytes: [u8; 32] = row.bytes("hash")?.try_into().map_err(|_not_32| StoreError::Damaged {
        kind: "key",
        id: key.to_owned(),
        reason: "a hash is not 32 bytes long".to_owned(),
    })?;
    let valid_until = row.count_or_null("valid_until")?;
    Ok(SecretValue { hash: KeyHash::from_bytes(bytes), valid_until })
}

fn key_of(row: &Row) -> Result<KeyObject, StoreError> {
    let id = row.text("id")?;
    Ok(KeyObject {
        client: row.text("client")?,
        env: word_of(row, "env", "key", &id)?,
        state: word_of(row, "state", "key", &id)?,
        expires_at: row.count_or_null("expires_at")?,
        created_at: row.count("created_at")?,
        created_by: row.text("created_by")?,
        imported: row.count("imported")? > 0,
        revision: row.count("revision")?,
        id,
    })
}
