//! The transaction that changes something: head locked, revisions counted, change and audit beside
//! every row.

use daemon::sql::Transaction;
use serde_json::Value;
use wire::audit::{AuditPlace, AuditText};
use wire::policy::Object;

use super::chain::{self, tip_of};
use super::size::Sizes;
use super::{CHANNEL, PlanStore, Stamp, StoreError, no_head, text_of};
use crate::model::audit::DRY_RUN;

pub(super) struct Writing<'a> {
    pub(super) tx: Transaction,
    store: &'a PlanStore,
    stamp: &'a Stamp,
    revision: u64,
    audit_seq: u64,
    /// The newest audit row and its hash.
    tip: AuditPlace,
    now: u64,
    /// The first object that was changed.
    first: Option<(&'static str, String)>,
    /// What all plans come to, once it was read; whoever deletes one forgets it.
    pub(super) sizes: Option<Sizes>,
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
        self.begin_linking(stamp, u64::MAX).await
    }

    /// The same; of audit rows that are not in the chain, at most `max` are put into it first.
    pub(super) async fn begin_linking<'a>(
        &'a self,
        stamp: &'a Stamp,
        max: u64,
    ) -> Result<Writing<'a>, StoreError> {
        let mut tx = self.database.write().await?;
        let head = tx
            .row(
                "update head set revision = revision where one = 1 \
                 returning revision, audit_seq, audit_linked, audit_hash",
                [],
            )
            .await?
            .ok_or_else(no_head)?;
        let (revision, audit_seq) = (head.count("revision")?, head.count("audit_seq")?);
        let tip = chain::link(&mut tx, tip_of(&head)?, audit_seq, max).await?;
        let (now, first, sizes) = (self.now(), None, None);
        let mut writing =
            Writing { tx, store: self, stamp, revision, audit_seq, tip, now, first, sizes };
        if let Some(once) = &stamp.once {
            writing.refuse_repeated(once).await?;
        }
        Ok(writing)
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
        self.first.get_or_insert_with(|| (told.kind, told.id.to_owned()));
        let text = AuditText {
            actor: self.stamp.actor.clone(),
            after: told.after.map(|value| value.to_string()),
            at: self.now,
            before: told.before.map(|value| value.to_string()),
            command: told.command.to_owned(),
            id: told.id.to_owned(),
            kind: told.kind.to_owned(),
            reason: self.stamp.reason.clone(),
            request_id: self.stamp.request_id.clone(),
            revision,
            seq: self.audit_seq,
            via: self.stamp.via.to_owned(),
        };
        let (prev, hash) = (self.tip.hash, self.tip.hash.link(&text));
        self.tip = AuditPlace { seq: self.audit_seq, hash };
        self.tx
            .run(
                "insert into audit (seq, revision, at, actor, via, command, reason, kind, id, \
                 \"before\", \"after\", request_id, prev, hash) \
                 values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
                [
                    text.seq.into(),
                    text.revision.into(),
                    text.at.into(),
                    text.actor.into(),
                    text.via.into(),
                    text.command.into(),
                    text.reason.into(),
                    text.kind.into(),
                    text.id.into(),
                    text.before.into(),
                    text.after.into(),
                    text.request_id.into(),
                    prev.to_hex().into(),
                    hash.to_hex().into(),
                ],
            )
            .await?;
        Ok(())
    }

    /// The newest revision and the audit's tip so far.
    pub(super) fn stands(&self) -> (u64, AuditPlace) {
        (self.revision, self.tip)
    }

    /// Goes on from another revision and behind another audit, whose rows after `tip` are linked.
    pub(super) async fn go_on_from(
        &mut self,
        revision: u64,
        audit_seq: u64,
        tip: AuditPlace,
    ) -> Result<(), StoreError> {
        self.tip = chain::link(&mut self.tx, tip, audit_seq, u64::MAX).await?;
        (self.revision, self.audit_seq) = (revision, audit_seq);
        Ok(())
    }

    /// Makes it so, and wakes who waits; the newest revision.
    pub(super) async fn commit(mut self) -> Result<u64, StoreError> {
        if let Some(once) = &self.stamp.once {
            let first = self.first.take();
            let object = first.as_ref().map_or(("", ""), |(kind, id)| (*kind, id.as_str()));
            self.note_done(once, object).await?;
        }
        self.tx
            .run(
                "update head set revision = $1, audit_seq = $2, audit_linked = $3, \
                 audit_hash = $4 where one = 1",
                [
                    self.revision.into(),
                    self.audit_seq.into(),
                    self.tip.seq.into(),
                    self.tip.hash.to_hex().into(),
                ],
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
        Object::Killswitch { value, .. } => value.as_ref().map(text_of),
        Object::Unreadable { .. } => None,
    }
}
