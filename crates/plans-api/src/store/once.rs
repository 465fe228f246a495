//! Calls that may be sent twice: what was done stands in the transaction that did it, its answer
//! beside it as soon as there is one.
//!
//! Whoever repeats a call gets that answer, or, where it held a secret or was never told, the id of
//! what was made. So a crash between doing and answering makes nothing twice.

use wire::key::KeyHash;

use super::writing::Writing;
use super::{PlanStore, StoreError};
use crate::model::audit::Once;

/// A repeated call is known for a day.
const KEPT_MS: u64 = 86_400_000;

/// A call that was done.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) request_hash: KeyHash,
    /// Kind and id of the first object that it made or changed; empty if it changed nothing.
    pub(crate) kind: String,
    pub(crate) object: String,
    /// Its answer, if that may be told again.
    pub(crate) answer: Option<(u16, String)>,
}

impl PlanStore {
    /// What became of a call with this name.
    pub(crate) async fn done(&self, once: &Once) -> Result<Option<Done>, StoreError> {
        let mut tx = self.database.read().await?;
        let row = tx
            .row(
                "select request_hash, kind, object, status, body from idempotency \
                 where token_id = $1 and name = $2 and at > $3",
                [
                    once.token_id.as_str().into(),
                    once.name.as_str().into(),
                    self.now().saturating_sub(KEPT_MS).into(),
                ],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let bytes: [u8; 32] =
            row.bytes("request_hash")?.try_into().map_err(|_not_32| StoreError::Damaged {
                kind: "idempotency key",
                id: once.name.clone(),
                reason: "its hash is not 32 bytes long".to_owned(),
            })?;
        let status = row.count_or_null("status")?.and_then(|status| u16::try_from(status).ok());
        Ok(Some(Done {
            request_hash: KeyHash::from_bytes(bytes),
            kind: row.text("kind")?,
            object: row.text("object")?,
            answer: status.zip(row.text_or_null("body")?),
        }))
    }

    /// Keeps the answer to a call that was done.
    pub(crate) async fn answered(
        &self,
        once: &Once,
        status: u16,
        body: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        tx.run(
            "update idempotency set status = $1, body = $2 where token_id = $3 and name = $4",
            [
                u32::from(status).into(),
                body.into(),
                once.token_id.as_str().into(),
                once.name.as_str().into(),
            ],
        )
        .await?;
        Ok(tx.commit().await?)
    }
}

impl Writing<'_> {
    /// Refuses what was done already; under the head's lock, so two at once are one after another.
    pub(super) async fn refuse_repeated(&mut self, once: &Once) -> Result<(), StoreError> {
        let row = self
            .tx
            .row(
                "select at from idempotency where token_id = $1 and name = $2",
                [once.token_id.as_str().into(), once.name.as_str().into()],
            )
            .await?;
        let fresh = self.now().saturating_sub(KEPT_MS);
        match row.map(|row| row.count("at")).transpose()? {
            Some(at) if at > fresh => Err(StoreError::Repeated),
            Some(_) | None => Ok(()),
        }
    }

    /// Notes that a call is done, and forgets those of yesterday.
    pub(super) async fn note_done(
        &mut self,
        once: &Once,
        (kind, object): (&str, &str),
    ) -> Result<(), StoreError> {
        let fresh = self.now().saturating_sub(KEPT_MS);
        self.tx.run("delete from idempotency where at <= $1", [fresh.into()]).await?;
        self.tx
            .run(
                "insert into idempotency (token_id, name, request_hash, kind, object, at) \
                 values ($1, $2, $3, $4, $5, $6)",
                [
                    once.token_id.as_str().into(),
                    once.name.as_str().into(),
                    once.request_hash.bytes().to_vec().into(),
                    kind.into(),
                    object.into(),
                    self.now().into(),
                ],
            )
            .await?;
        Ok(())
    }
}
