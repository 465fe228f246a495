//! Reading the audit, newest first.

use daemon::sql::Row;
use serde_json::Value;
use wire::client::plans::{AuditFilter, AuditRow, Page};

use super::chain::hash_of_row;
use super::{PlanStore, StoreError, page};

/// An absent filter is null, and null lets everything pass. An actor is written `name (id)` and
/// found by either half, or by both.
const PAGE: &str = "select seq, revision, at, actor, via, command, reason, kind, id, \"before\", \
    \"after\", request_id, prev, hash from audit where seq < $1 \
    and (cast($3 as text) is null or kind = $3) \
    and (cast($4 as text) is null or id = $4) \
    and (cast($5 as text) is null or actor = $5 \
        or substr(actor, 1, length($5) + 2) = $5 || ' (' \
        or substr(actor, length(actor) - length($5) - 2) = ' (' || $5 || ')') \
    and at >= $6 order by seq desc limit $2";

impl PlanStore {
    /// The newest changes before `before` that pass the filter.
    pub(crate) async fn audit(
        &self,
        filter: &AuditFilter,
        before: u64,
        limit: u32,
    ) -> Result<Page<AuditRow>, StoreError> {
        let mut tx = self.database.read().await?;
        let values = [
            before.into(),
            (limit + 1).into(),
            filter.kind.as_deref().into(),
            filter.id.as_deref().into(),
            filter.actor.as_deref().into(),
            filter.since.unwrap_or(0).into(),
        ];
        let rows = tx.rows(PAGE, values).await?;
        let rows = rows.iter().map(audit_of).collect::<Result<_, _>>()?;
        Ok(page(rows, limit, |row: &AuditRow| row.seq.to_string()))
    }
}

fn audit_of(row: &Row) -> Result<AuditRow, StoreError> {
    let object = |column| {
        let text = row.text_or_null(column)?;
        // What does not read as JSON is shown as it stands.
        Ok::<_, StoreError>(
            text.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
        )
    };
    Ok(AuditRow {
        seq: row.count("seq")?,
        revision: row.count_or_null("revision")?,
        at: row.count("at")?,
        actor: row.text("actor")?,
        via: row.text("via")?,
        command: row.text("command")?,
        reason: row.text("reason")?,
        kind: row.text("kind")?,
        id: row.text("id")?,
        before: object("before")?,
        after: object("after")?,
        request_id: row.text("request_id")?,
        prev: hash_of_row(row, "prev")?,
        hash: hash_of_row(row, "hash")?,
    })
}
