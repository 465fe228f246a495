//! The audit's chain: rows are linked under the lock of the head, and a walk names the first bad
//! one.
//!
//! The head says how far the chain reaches. That is behind the newest row only where a process of
//! a release before wrote it: such rows are linked as they are found, at the start or with the next
//! change. What was done to them before that, the chain does not show.

use daemon::sql::{Row, Transaction};
use wire::audit::{
    AuditFault, AuditFaultKind, AuditHash, AuditPlace, AuditText, AuditWalk, AuditWalked,
};

use super::{PlanStore, Stamp, StoreError, no_head};

/// Rows that one call walks at most.
const WALK_ROWS_MAX: u64 = 1_000;
/// Rows in memory at once: an object is at most 64 KiB long, and a row has two.
const ROWS_AT_ONCE: u64 = 50;
/// Rows that one transaction links at the start.
const LINK_ROWS_MAX: u64 = 1_000;

const ROWS: &str = "select seq, revision, at, actor, via, command, reason, kind, id, \"before\", \
    \"after\", request_id, prev, hash from audit where seq > $1 and seq <= $2 order by seq limit $3";

impl PlanStore {
    /// Links all rows that are not linked yet, some at a time.
    pub(super) async fn link_all(&self) -> Result<(), StoreError> {
        let stamp = Stamp::start();
        loop {
            let mut tx = self.database.read().await?;
            let (tip, newest) = head(&mut tx).await?;
            drop(tx);
            if tip.seq >= newest {
                return Ok(());
            }
            // Locks the head, links some, and says so.
            self.begin_linking(&stamp, LINK_ROWS_MAX).await?.commit().await?;
        }
    }

    /// Walks along a part of the chain.
    pub(crate) async fn walk_audit(&self, walk: AuditWalk) -> Result<AuditWalked, StoreError> {
        let mut tx = self.database.read().await?;
        let (tip, newest) = head(&mut tx).await?;
        let mut walker = Walker {
            place: walk.after.unwrap_or(AuditPlace::START),
            tip,
            kept: walk.kept,
            checked: 0,
        };
        let mut fault = None;
        let mut done = false;
        while !done && fault.is_none() && walker.checked < WALK_ROWS_MAX {
            let place = [walker.place.seq.into(), tip.seq.into(), ROWS_AT_ONCE.into()];
            let rows = tx.rows(ROWS, place).await?;
            done = rows.is_empty();
            for row in &rows {
                fault = walker.step(row)?;
                if fault.is_some() {
                    break;
                }
            }
        }
        if done && fault.is_none() {
            fault = walker.end();
        }
        if done && fault.is_none() {
            fault = planted(&mut tx, newest).await?;
        }
        Ok(AuditWalked {
            checked: walker.checked,
            place: walker.place,
            done: done || fault.is_some(),
            fault,
            tip,
            unlinked: newest.saturating_sub(tip.seq),
        })
    }
}

/// A row that no change made: the head would know it.
async fn planted(tx: &mut Transaction, newest: u64) -> Result<Option<AuditFault>, StoreError> {
    let row = tx.row("select min(seq) as seq from audit where seq > $1", [newest.into()]).await?;
    let seq = row.map_or(Ok(None), |row| row.count_or_null("seq"))?;
    Ok(seq.map(|seq| {
        let detail = format!("row {seq} was put in: the head knows {newest} rows");
        fault(seq, AuditFaultKind::Displaced, detail)
    }))
}

struct Walker {
    place: AuditPlace,
    tip: AuditPlace,
    kept: Option<AuditPlace>,
    checked: u64,
}

impl Walker {
    /// Checks the next row; the first fault ends the walk.
    fn step(&mut self, row: &Row) -> Result<Option<AuditFault>, StoreError> {
        let text = text_of_row(row)?;
        let expected = self.place.seq + 1;
        if text.seq != expected {
            let detail = match text.seq - expected {
                1 => format!("row {expected} is missing"),
                _ => format!("rows {expected} to {} are missing", text.seq - 1),
            };
            return Ok(Some(fault(expected, AuditFaultKind::Missing, detail)));
        }
        let (prev, hash) = (hash_of_row(row, "prev")?, hash_of_row(row, "hash")?);
        if prev != Some(self.place.hash) {
            let detail = format!(
                "row {expected} does not follow the row before it: one of both was replaced, put \
                 in or moved"
            );
            return Ok(Some(fault(expected, AuditFaultKind::Displaced, detail)));
        }
        let linked = self.place.hash.link(&text);
        if hash != Some(linked) {
            let detail = format!("the hash of row {expected} is not that of its content");
            return Ok(Some(fault(expected, AuditFaultKind::Altered, detail)));
        }
        self.place = AuditPlace { seq: expected, hash: linked };
        self.checked += 1;
        let rewritten = self.kept.filter(|kept| kept.seq == expected && kept.hash != linked);
        Ok(rewritten.map(|_| {
            let detail = format!("row {expected} is not the one whose hash was kept");
            fault(expected, AuditFaultKind::Rewritten, detail)
        }))
    }

    /// Compares the last row with what the head and a kept tip know.
    fn end(&self) -> Option<AuditFault> {
        let next = self.place.seq + 1;
        if self.place.seq < self.tip.seq {
            let detail = format!(
                "rows {next} to {} are gone: the head knows a row {}",
                self.tip.seq, self.tip.seq
            );
            return Some(fault(next, AuditFaultKind::Cut, detail));
        }
        if self.place != self.tip {
            let detail = format!("the head knows another row {}", self.tip.seq);
            return Some(fault(self.tip.seq.max(1), AuditFaultKind::Cut, detail));
        }
        let kept = self.kept.filter(|kept| self.tip.seq < kept.seq)?;
        let detail =
            format!("rows {next} to {} are gone: the kept tip is newer than the head", kept.seq);
        Some(fault(next, AuditFaultKind::Cut, detail))
    }
}

fn fault(seq: u64, kind: AuditFaultKind, detail: String) -> AuditFault {
    AuditFault { seq, kind, detail }
}

/// How far the chain reaches, and the number of the newest row.
async fn head(tx: &mut Transaction) -> Result<(AuditPlace, u64), StoreError> {
    let row = tx.row("select audit_seq, audit_linked, audit_hash from head", []).await?;
    let row = row.ok_or_else(no_head)?;
    Ok((tip_of(&row)?, row.count("audit_seq")?))
}

/// The end of the chain as a row of the head has it.
pub(super) fn tip_of(row: &Row) -> Result<AuditPlace, StoreError> {
    let hash = hash_of_row(row, "audit_hash")?.unwrap_or(AuditHash::START);
    Ok(AuditPlace { seq: row.count("audit_linked")?, hash })
}

/// Links at most `max` rows after `tip` up to `newest`; the new tip. The head has to be locked.
pub(super) async fn link(
    tx: &mut Transaction,
    mut tip: AuditPlace,
    newest: u64,
    max: u64,
) -> Result<AuditPlace, StoreError> {
    let upto = newest.min(tip.seq.saturating_add(max));
    while tip.seq < upto {
        let rows = tx.rows(ROWS, [tip.seq.into(), upto.into(), ROWS_AT_ONCE.into()]).await?;
        if rows.is_empty() {
            // The rest is gone: the walk will say so.
            return Ok(AuditPlace { seq: upto, hash: tip.hash });
        }
        for row in &rows {
            let text = text_of_row(row)?;
            let hash = tip.hash.link(&text);
            let values = [tip.hash.to_hex().into(), hash.to_hex().into(), text.seq.into()];
            tx.run("update audit set prev = $1, hash = $2 where seq = $3", values).await?;
            tip = AuditPlace { seq: text.seq, hash };
        }
    }
    Ok(tip)
}

/// A row as it is hashed.
fn text_of_row(row: &Row) -> Result<AuditText, StoreError> {
    Ok(AuditText {
        actor: row.text("actor")?,
        after: row.text_or_null("after")?,
        at: row.count("at")?,
        before: row.text_or_null("before")?,
        command: row.text("command")?,
        id: row.text("id")?,
        kind: row.text("kind")?,
        reason: row.text("reason")?,
        request_id: row.text("request_id")?,
        revision: row.count_or_null("revision")?,
        seq: row.count("seq")?,
        via: row.text("via")?,
    })
}

/// A hash of a row; one that does not read is none.
pub(super) fn hash_of_row(row: &Row, column: &str) -> Result<Option<AuditHash>, StoreError> {
    Ok(row.text_or_null(column)?.as_deref().and_then(AuditHash::from_hex))
}
