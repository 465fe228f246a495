//! The whole catalog as lines: out of one reading transaction, and back in one writing one.
//!
//! A restore begins a new history, far above every revision that anybody has seen: each object
//! takes its revision, for the versions that Redis has must never be newer than ours. What was
//! revoked or ended here stays so: a key that leaked does not come back with an older state.

use daemon::sql::{SqlError, Transaction, Value};
use serde_json::json;
use wire::audit::AuditPlace;
use wire::backup::{AuditEnd, BackupHead, BackupRow, FORM, Writer};
use wire::client::plans::Restored;

use super::chain::tip_of;
use super::tables::{PAGE_ROWS, Return, TABLES, Table};
use super::writing::{Told, Writing};
use super::{PlanStore, Stamp, StoreError, ended, no_head};

/// How far above everything seen a restored catalog begins.
const AHEAD: u64 = 1_000_000;
/// Bytes that are handed over at once.
const PIECE_BYTES: usize = 64 << 10;

/// A backup that is being read.
#[derive(Debug)]
pub(crate) struct Backup {
    tx: Transaction,
    head: Option<BackupHead>,
    writer: Writer,
    /// The table, and the key of its last row.
    at: usize,
    behind: Option<Vec<Value>>,
    ended: bool,
}

impl PlanStore {
    /// Begins a backup: all of it is as of now.
    pub(crate) async fn backup(&self) -> Result<Backup, StoreError> {
        let mut tx = self.database.read().await?;
        let row = tx
            .row("select history, revision, audit_seq, audit_linked, audit_hash from head", [])
            .await?
            .ok_or_else(no_head)?;
        let tip = tip_of(&row)?;
        let head = BackupHead {
            weir_backup: FORM,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            made_at: self.now(),
            history: row.text("history")?,
            revision: row.count("revision")?,
            pepper_id: self.pepper_id.to_string(),
            audit: AuditEnd { seq: row.count("audit_seq")?, linked: tip.seq, hash: tip.hash },
        };
        let (writer, head) = (Writer::default(), Some(head));
        Ok(Backup { tx, head, writer, at: 0, behind: None, ended: false })
    }
}

impl Backup {
    /// The next piece; none after the last one.
    pub(crate) async fn piece(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let mut piece = match self.head.take() {
            Some(head) => self.writer.head(&head),
            None => Vec::new(),
        };
        while piece.len() < PIECE_BYTES {
            let Some(table) = TABLES.get(self.at) else {
                if !self.ended {
                    self.ended = true;
                    piece.extend(self.writer.end());
                }
                break;
            };
            self.page(table, &mut piece).await?;
        }
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }

    async fn page(&mut self, table: &'static Table, into: &mut Vec<u8>) -> Result<(), StoreError> {
        let limit: Value = PAGE_ROWS.into();
        let rows = match self.behind.take() {
            None => self.tx.rows(&table.first, [limit]).await?,
            Some(key) => self.tx.rows(&table.next, key.into_iter().chain([limit])).await?,
        };
        for row in &rows {
            let row = BackupRow { table: table.name.to_owned(), row: table.document(row)? };
            into.extend(self.writer.row(&row));
        }
        match rows.last().filter(|_| rows.len() == PAGE_ROWS as usize) {
            Some(last) => self.behind = Some(table.key_of(last)?),
            None => self.at += 1,
        }
        Ok(())
    }
}

/// A restore under way; dropped without [`Restoring::finish`] it never happened.
pub(crate) struct Restoring<'a> {
    writing: Writing<'a>,
    head: BackupHead,
    revision: u64,
    rows: u64,
}

impl PlanStore {
    /// Locks the catalog and empties it.
    pub(crate) async fn restore<'a>(
        &'a self,
        head: BackupHead,
        stamp: &'a Stamp,
    ) -> Result<Restoring<'a>, StoreError> {
        if head.pepper_id != *self.pepper_id {
            let (database, ours) = (head.pepper_id, self.pepper_id.to_string());
            return Err(StoreError::Unusable(format!(
                "its keys were made with pepper {database}, this process has {ours}: put the \
                 pepper of the backup into the state folders of plans-api and gateways first"
            )));
        }
        let mut writing = self.begin(stamp).await?;
        let row = writing.tx.row("select max(applied) as applied from gateway", []).await?;
        let applied = row.map_or(Ok(None), |row| row.count_or_null("applied"))?.unwrap_or(0);
        let revision = head.revision.max(writing.revision()).max(applied) + AHEAD;
        ended::remember(&mut writing.tx).await?;
        let replaced = TABLES.iter().rev().filter(|table| table.returns == Return::Replaced);
        for sql in replaced.map(|table| table.delete.as_str()).chain([FORGET_CHANGES.as_str()]) {
            while 0 < writing.tx.run(sql, []).await? {}
        }
        // A call that is undone with the rest was not done: sent again, it is done again.
        writing.tx.run("delete from idempotency", []).await?;
        Ok(Restoring { writing, head, revision, rows: 0 })
    }
}

static FORGET_CHANGES: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
    format!("delete from change where revision in (select revision from change limit {PAGE_ROWS})")
});

impl Restoring<'_> {
    /// Puts a row back.
    pub(crate) async fn put(&mut self, row: BackupRow) -> Result<(), StoreError> {
        self.rows += 1;
        let line = self.rows + 1;
        let BackupRow { table: name, row } = row;
        let Some(table) = TABLES.iter().find(|table| table.name == name) else {
            return Err(StoreError::Unusable(format!(
                "line {line}: this build knows no table {name}: use the build that made the \
                 backup, or a later one"
            )));
        };
        let values = table.values(row, self.revision).map_err(|reason| {
            StoreError::Unusable(format!("line {line}, a row of {name}: {reason}"))
        })?;
        match self.writing.tx.run(&table.insert, values).await {
            Err(SqlError::Constraint(constraint, _)) => Err(StoreError::Unusable(format!(
                "line {line}: the database refuses this row of {name} ({constraint})"
            ))),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    /// Begins the new history.
    pub(crate) async fn finish(mut self) -> Result<Restored, StoreError> {
        let now = self.writing.now();
        let ended::Kept { stay_revoked, stay_ended } =
            ended::keep(&mut self.writing.tx, now).await?;
        let tx = &mut self.writing.tx;
        let newest = tx.row("select max(seq) as seq from audit", []).await?;
        let newest = newest.map_or(Ok(None), |row| row.count_or_null("seq"))?.unwrap_or(0);
        let audit = self.head.audit;
        if audit.seq < newest || audit.seq < audit.linked {
            let detail = format!("its first line says {} audit rows, it has {newest}", audit.seq);
            return Err(StoreError::Unusable(detail));
        }
        let history = uuid::Uuid::now_v7().to_string();
        tx.run("update head set history = $1 where one = 1", [history.as_str().into()]).await?;
        let replaced = self.writing.stands();
        let place = AuditPlace { seq: audit.linked, hash: audit.hash };
        self.writing.go_on_from(self.revision, audit.seq, place).await?;
        let (rows, made_at) = (self.rows, self.head.made_at);
        let after = json!({
            "history": &history, "rows": rows, "made_at": made_at, "build": self.head.build,
            "of": { "history": self.head.history, "revision": self.head.revision },
            "stay_revoked": stay_revoked, "stay_ended": stay_ended,
        });
        // The audit that was here until now is gone with the rest: its tip is kept.
        let told = Told {
            command: "backup restore",
            kind: "backup",
            id: &history,
            before: Some(json!({ "revision": replaced.0, "audit": replaced.1 })),
            after: Some(after),
        };
        self.writing.audit(Some(self.revision), told).await?;
        let revision = self.writing.commit().await?;
        Ok(Restored { revision, history, rows, made_at, stay_revoked, stay_ended })
    }
}
