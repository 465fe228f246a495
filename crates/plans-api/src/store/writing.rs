//! The transaction that changes something: head locked, revisions counted, change and audit beside
//! every row.

use daemon::sql::Transaction;
use serde_json::Value;
use wire::policy::Object;

use super::{CHANNEL, PlanStore, Stamp, StoreError, text_of};
use crate::model::audit::DRY_RUN;

pub(super) struct Writing<'a> {
    pub(super) tx: Transaction,
    store: &'a PlanStore,
    stamp: &'a Stamp,
    revision: u64,
    audit_seq: u64,
    now: u64,
}

/// What a change did to an object, for the audit.
pub(super) struct Told<'a> {
    pub(super) command: &'a str,
    pub(super) kind: &'static str,
    pub(super) id: &'a str,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

impl PlanStore {
    /// Begins a change: from here on nobody else changes anything.
    pub(super) async fn begin<'a>(&'a self, stamp: &'a Stamp) -> Result<Writing<'a>, StoreError> {
        let mut tx = self.database.write().await?;
        let head = tx
            .row(
                "update head set revision = revision where one = 1 returning revision, audit_seq",
                [],
            )
            .await?
            .ok_or_else(|| StoreError::Damaged {
                kind: "head",
                id: String::new(),
                reason: "the row is missing".to_owned(),
            })?;
        let (revision, audit_seq) = (head.count("revision")?, head.count("audit_seq")?);
        Ok(Writing { tx, store: self, stamp, revision, audit_seq, now: self.now() })
    }
}

impl Writing<'_> {
    /// The time of the change, milliseconds since 1970.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The newest revision so far.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision of the next changed object.
    pub(super) fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    /// Puts the object into the feed and the audit, at the revision taken for it.
    pub(super) async fn record(
        &mut self,
        object: &Object,
        told: Told<'_>,
    ) -> Result<(), StoreError> {
        let (kind, id) = object.name();
        let value = value_of(object);
        let revision = self.revision;
        self.tx
            .run(
                "insert into change (revision, at, kind, id, value) values ($1, $2, $3, $4, $5)",
                [revision.into(), self.now.into(), kind.into(), id.into(), value.into()],
            )
            .await?;
        self.audit(Some(revision), told).await
    }

    /// Puts what was done into the audit.
    pub(super) async fn audit(
        &mut self,
        revision: Option<u64>,
        told: Told<'_>,
    ) -> Result<(), StoreError> {
        self.audit_seq += 1;
        self.tx
            .run(
                "insert into audit (seq, revision, at, actor, via, command, reason, kind, id, \
                 \"before\", \"after\", request_id) \
                 values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
                [
                    self.audit_seq.into(),
                    revision.into(),
                    self.now.into(),
                    self.stamp.actor.as_str().into(),
                    self.stamp.via.into(),
                    told.command.into(),
                    self.stamp.reason.as_str().into(),
                    told.kind.into(),
                    told.id.into(),
                    told.before.map(|value| value.to_string()).into(),
                    told.after.map(|value| value.to_string()).into(),
                    self.stamp.request_id.as_str().into(),
                ],
            )
            .await?;
        Ok(())
    }

    /// Makes it so, and wakes who waits; the newest revision.
    pub(super) async fn commit(mut self) -> Result<u64, StoreError> {
        self.tx
            .run(
                "update head set revision = $1, audit_seq = $2 where one = 1",
                [self.revision.into(), self.audit_seq.into()],
            )
            .await?;
        self.tx.notify(CHANNEL).await?;
        if self.stamp.via == DRY_RUN {
            // Dropped without a commit: none of it happened.
            return Ok(*self.store.head.borrow());
        }
        self.tx.commit().await?;
        self.store.ring(self.revision);
        Ok(self.revision)
    }
}

/// The object's value as the feed sends it.
fn value_of(object: &Object) -> Option<String> {
    match object {
        Object::Plan { value, .. } => value.as_ref().map(text_of),
        Object::Client { value, .. } => value.as_ref().map(text_of),
        Object::Key { value, .. } => value.as_ref().map(text_of),
        Object::Rollout { value, .. } => value.as_ref().map(text_of),
    }
}
