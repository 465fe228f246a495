//! Operator tokens. They concern no gateway, so they take no revision; the audit has them.

use daemon::sql::{Row, Transaction, Value};
use serde_json::json;
use wire::client::plans::{Changed, Page, Role, TokenObject};
use wire::key::{KeyHash, OperatorToken, token_hash};

use super::writing::Told;
use super::{PlanStore, Stamp, StoreError, readable, word, word_of};

/// `last_used_at` is kept to the minute: a token in use costs one write a minute.
const USE_NOTED_MS: u64 = 60_000;

/// A token to be made.
#[derive(Debug)]
pub(crate) struct TokenSpec {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// A program's.
    pub(crate) machine: bool,
    pub(crate) expires_at: Option<u64>,
}

/// A stored token, for checking a presented one.
#[derive(Debug)]
pub(crate) struct Presented {
    pub(crate) object: TokenObject,
    pub(crate) hash: KeyHash,
}

const ONE: &str = "select id, hash, name, role, machine, created_at, expires_at, last_used_at, \
    revoked_at from operator_token where id = $1";
const PAGE: &str = "select id, hash, name, role, machine, created_at, expires_at, last_used_at, \
    revoked_at from operator_token where id > $1 order by id limit $2";

impl PlanStore {
    /// The stored token with this public id.
    pub(crate) async fn token(&self, id: &str) -> Result<Option<Presented>, StoreError> {
        let mut tx = self.database.read().await?;
        find(&mut tx, id).await
    }

    /// A page of tokens by id.
    pub(crate) async fn tokens(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Page<TokenObject>, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx.rows(PAGE, [after.into(), (limit + 1).into()]).await?;
        readable(&rows, limit, "id", |row| Ok(token_of(row)?.object))
    }

    /// Stores a new token. Making one ends every bootstrap token.
    pub(crate) async fn create_token(
        &self,
        spec: &TokenSpec,
        token: &OperatorToken,
        stamp: &Stamp,
    ) -> Result<(u64, TokenObject), StoreError> {
        let mut writing = self.begin(stamp).await?;
        let now = writing.now();
        if spec.role != Role::Bootstrap {
            writing
                .tx
                .run(
                    "update operator_token set revoked_at = $1 \
                     where role = 'bootstrap' and revoked_at is null",
                    [now.into()],
                )
                .await?;
        }
        let object = TokenObject {
            id: token.id.clone(),
            name: spec.name.clone(),
            role: spec.role,
            machine: spec.machine,
            created_at: now,
            expires_at: spec.expires_at,
            last_used_at: None,
            revoked_at: None,
        };
        let row: [Value; 7] = [
            object.id.as_str().into(),
            token_hash(&token.text).bytes().to_vec().into(),
            object.name.as_str().into(),
            word(object.role).into(),
            i64::from(object.machine).into(),
            now.into(),
            object.expires_at.into(),
        ];
        writing
            .tx
            .run(
                "insert into operator_token (id, hash, name, role, machine, created_at, \
                 expires_at) values ($1, $2, $3, $4, $5, $6, $7)",
                row,
            )
            .await?;
        let told = Told {
            command: "token create",
            kind: "token",
            id: &object.id,
            before: None,
            after: Some(json!(object)),
        };
        writing.audit(None, told).await?;
        Ok((writing.commit().await?, object))
    }

    /// Ends a token for good.
    pub(crate) async fn revoke_token(
        &self,
        id: &str,
        stamp: &Stamp,
    ) -> Result<Changed<TokenObject>, StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = find(&mut writing.tx, id).await?;
        let found =
            found.ok_or_else(|| StoreError::NotFound { kind: "token", id: id.to_owned() })?;
        let mut token = found.object.clone();
        if token.revoked_at.is_none() {
            let now = writing.now();
            token.revoked_at = Some(now);
            let update = "update operator_token set revoked_at = $1 where id = $2";
            writing.tx.run(update, [now.into(), id.into()]).await?;
            let told = Told {
                command: "token revoke",
                kind: "token",
                id,
                before: Some(json!(found.object)),
                after: Some(json!(token)),
            };
            writing.audit(None, told).await?;
        }
        Ok(Changed { revision: writing.commit().await?, object: Some(token) })
    }

    /// Notes that a token was used, at most once a minute.
    pub(crate) async fn used_token(&self, token: &TokenObject) -> Result<(), StoreError> {
        let now = self.now();
        if token.last_used_at.is_some_and(|at| now.saturating_sub(at) < USE_NOTED_MS) {
            return Ok(());
        }
        let mut tx = self.database.write().await?;
        let update = "update operator_token set last_used_at = $1 where id = $2";
        tx.run(update, [now.into(), token.id.as_str().into()]).await?;
        Ok(tx.commit().await?)
    }

    /// Whether somebody could make tokens now.
    pub(crate) async fn has_admin(&self) -> Result<bool, StoreError> {
        let mut tx = self.database.read().await?;
        let row = tx
            .row(
                "select count(*) as admins from operator_token where role = 'admin' \
                 and revoked_at is null and (expires_at is null or expires_at > $1)",
                [self.now().into()],
            )
            .await?;
        Ok(row.map_or(Ok(0), |row| row.count("admins"))? > 0)
    }
}

async fn find(tx: &mut Transaction, id: &str) -> Result<Option<Presented>, StoreError> {
    tx.row(ONE, [id.into()]).await?.as_ref().map(token_of).transpose()
}

fn token_of(row: &Row) -> Result<Presented, StoreError> {
    let id = row.text("id")?;
    let bytes: [u8; 32] = row.bytes("hash")?.try_into().map_err(|_not_32| StoreError::Damaged {
        kind: "token",
        id: id.clone(),
        reason: "its hash is not 32 bytes long".to_owned(),
    })?;
    let object = TokenObject {
        name: row.text("name")?,
        role: word_of(row, "role", "token", &id)?,
        machine: row.int("machine")? == 1,
        created_at: row.count("created_at")?,
        expires_at: row.count_or_null("expires_at")?,
        last_used_at: row.count_or_null("last_used_at")?,
        revoked_at: row.count_or_null("revoked_at")?,
        id,
    };
    Ok(Presented { object, hash: KeyHash::from_bytes(bytes) })
}
