//! Reading the audit, newest first.

use daemon::sql::Row;
use serde_json::Value;
use wire::client::plans::{AuditRow, Page};

use super::{PlanStore, StoreError, page};

impl PlanStore {
    /// The newest changes before `before`.
    pub(crate) async fn audit(
        &self,
        before: u64,
        limit: u32,
    ) -> Result<Page<AuditRow>, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx
            .rows(
                "select seq, revision, at, actor, via, command, reason, kind, id, \"before\", \
                 \"after\", request_id from audit where seq < $1 order by seq desc limit $2",
                [before.into(), (limit + 1).into()],
            )
            .await?;
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
    })
}
