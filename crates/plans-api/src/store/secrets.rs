//! The secrets of keys: at most two at once, some made elsewhere, and when each was last used.

use daemon::sql::{Row, Transaction};
use wire::client::plans::{Changed, KeyObject, KeyUsage, SecretObject};
use wire::error::{ErrorCode, FieldError};
use wire::key::{ApiKey, KeyHash};
use wire::policy::KeyState;
use wire::usage::UsageReport;

use super::{Expect, PlanStore, Stamp, StoreError, clients, keys};
use crate::model::api_key::ImportSpec;

/// A key that was made elsewhere, as it is to be stored.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) spec: ImportSpec,
    /// Its public id, if it is new here.
    pub(crate) id: String,
    pub(crate) hash: KeyHash,
}

/// A stored secret.
#[derive(Debug)]
struct Secret {
    hash: Vec<u8>,
    shown: SecretObject,
}

impl Secret {
    fn opens(&self, now: u64) -> bool {
        self.shown.valid_until.is_none_or(|until| now < until)
    }
}

impl PlanStore {
    /// A new secret for a key; the one it has ends after the overlap, and never after the key.
    pub(crate) async fn rotate_key(
        &self,
        new: &ApiKey,
        overlap_ms: u64,
        expect: Expect,
        stamp: &Stamp,
    ) -> Result<(Changed<KeyObject>, Option<SecretObject>), StoreError> {
        let mut writing = self.begin(stamp).await?;
        let (id, now) = (new.id.as_str(), writing.now());
        let found = keys::find(&mut writing.tx, id).await?.ok_or_else(|| keys::not_found(id))?;
        expect.of("key", id, Some((found.revision, &found)))?;
        refuse_ended(&found, now)?;
        let secrets = of_key(&mut writing.tx, id).await?;
        let (open, ended): (Vec<Secret>, Vec<Secret>) =
            secrets.into_iter().partition(|secret| overlap_ms > 0 && secret.opens(now));
        for secret in ended {
            let delete = "delete from api_key_secret where hash = $1";
            writing.tx.run(delete, [secret.hash.into()]).await?;
        }
        if let Some(until) = open.iter().find_map(|secret| secret.shown.valid_until) {
            return Err(StoreError::InUse(format!(
                "the key `{id}` has two secrets, and the older one ends at {until} (milliseconds \
                 since 1970): wait, or rotate with overlap 0, which ends both at once"
            )));
        }
        let until = now.saturating_add(overlap_ms);
        let until = found.expires_at.map_or(until, |end| end.min(until));
        let mut previous = None;
        for secret in open {
            let update = "update api_key_secret set valid_until = $1 where hash = $2";
            writing.tx.run(update, [until.into(), secret.hash.into()]).await?;
            previous = Some(SecretObject { valid_until: Some(until), ..secret.shown });
        }
        keys::insert_secret(&mut writing.tx, id, &new.hash, "weir", now).await?;
        let revision = writing.next_revision();
        let update = "update api_key set revision = $1 where id = $2";
        writing.tx.run(update, [revision.into(), id.into()]).await?;
        let key = keys::find(&mut writing.tx, id).await?.ok_or_else(|| keys::not_found(id))?;
        keys::record(&mut writing, "key rotate", &key, Some(&found)).await?;
        Ok((Changed { revision: writing.commit().await?, object: Some(key) }, previous))
    }

    /// Stores keys that were made elsewhere, all or none. One that is here already stays as it is.
    pub(crate) async fn import_keys(
        &self,
        imports: &[Import],
        stamp: &Stamp,
    ) -> Result<(u64, Vec<KeyObject>), StoreError> {
        let mut writing = self.begin(stamp).await?;
        let mut wrong = Vec::new();
        let mut stored = Vec::with_capacity(imports.len());
        for (index, import) in imports.iter().enumerate() {
            let client = import.spec.key.client.as_str();
            if clients::find(&mut writing.tx, client).await?.is_none() {
                let detail = format!("there is no client `{client}`");
                wrong.push(mistake(index, "client", detail));
                continue;
            }
            match holder(&mut writing.tx, &import.hash).await? {
                Some(key) if key.client == client => stored.push(key),
                Some(key) => {
                    let detail = format!("is a key of the client `{}` already", key.client);
                    wrong.push(mistake(index, "sha256", detail));
                }
                None => {
                    let key = KeyObject {
                        id: import.id.clone(),
                        client: client.to_owned(),
                        env: import.spec.key.env,
                        state: KeyState::Active,
                        expires_at: import.spec.key.expires_at,
                        created_at: writing.now(),
                        created_by: stamp.actor.clone(),
                        imported: true,
                        revision: writing.next_revision(),
                    };
                    keys::insert(&mut writing.tx, &key, &import.hash, "sha256").await?;
                    keys::record(&mut writing, "key import", &key, None).await?;
                    stored.push(key);
                }
            }
        }
        if !wrong.is_empty() {
            return Err(StoreError::Refused(wrong));
        }
        Ok((writing.commit().await?, stored))
    }

    /// A key's secrets, the newest first.
    pub(crate) async fn key_usage(&self, id: &str) -> Result<KeyUsage, StoreError> {
        let mut tx = self.database.read().await?;
        keys::find(&mut tx, id).await?.ok_or_else(|| keys::not_found(id))?;
        let secrets = of_key(&mut tx, id).await?.into_iter().map(|secret| secret.shown).collect();
        Ok(KeyUsage { id: id.to_owned(), secrets })
    }

    /// Notes when secrets were last used; takes no revision. A gateway's clock may be ahead.
    pub(crate) async fn saw_used(&self, report: &UsageReport) -> Result<(), StoreError> {
        let now = self.now();
        let mut secrets = report.secrets.clone();
        // Two gateways lock the same rows in the same order.
        secrets.sort_unstable_by_key(|secret| *secret.hash.bytes());
        let mut tx = self.database.write().await?;
        for secret in secrets {
            let at = secret.last_used_at.min(now);
            let hash = secret.hash.bytes().to_vec();
            tx.run(
                "update api_key_secret set last_used_at = $1 \
                 where hash = $2 and (last_used_at is null or last_used_at < $1)",
                [at.into(), hash.into()],
            )
            .await?;
        }
        Ok(tx.commit().await?)
    }
}

fn refuse_ended(key: &KeyObject, now: u64) -> Result<(), StoreError> {
    let id = &key.id;
    if key.state == KeyState::Revoked {
        return Err(StoreError::InUse(format!("the key `{id}` is revoked, which is final")));
    }
    if key.expires_at.is_some_and(|end| end <= now) {
        return Err(StoreError::InUse(format!("the key `{id}` has expired: make a new one")));
    }
    Ok(())
}

fn mistake(index: usize, field: &str, detail: String) -> FieldError {
    FieldError { field: format!("keys[{index}].{field}"), code: ErrorCode::InvalidValue, detail }
}

/// The key with this secret, whatever became of it.
async fn holder(tx: &mut Transaction, hash: &KeyHash) -> Result<Option<KeyObject>, StoreError> {
    let one = "select key_id from api_key_secret where hash = $1";
    match tx.row(one, [hash.bytes().to_vec().into()]).await? {
        None => Ok(None),
        Some(row) => keys::find(tx, &row.text("key_id")?).await,
    }
}

async fn of_key(tx: &mut Transaction, id: &str) -> Result<Vec<Secret>, StoreError> {
    let rows = tx
        .rows(
            "select hash, algorithm, created_at, valid_until, last_used_at from api_key_secret \
             where key_id = $1 order by created_at desc, hash",
            [id.into()],
        )
        .await?;
    rows.iter().map(secret_of).collect()
}

fn secret_of(row: &Row) -> Result<Secret, StoreError> {
    Ok(Secret {
        hash: row.bytes("hash")?,
        shown: SecretObject {
            algorithm: row.text("algorithm")?,
            created_at: row.count("created_at")?,
            valid_until: row.count_or_null("valid_until")?,
            last_used_at: row.count_or_null("last_used_at")?,
        },
    })
}
