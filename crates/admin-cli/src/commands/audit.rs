//! The audit: every change with its author and reason.

use serde_json::Value;
use wire::client::ClientError;
use wire::client::plans::{AuditRow, PlansClient};

use super::keys::time;
use crate::failure::Failure;
use crate::output::{Report, text};
use crate::session::Session;

const HEADINGS: &[&str] = &["SEQ", "REVISION", "AT", "ACTOR", "VIA", "COMMAND", "REASON"];
/// Rows asked for at once.
const PAGE: u32 = 500;

pub(crate) async fn list(session: &Session<'_>) -> Result<Report, Failure> {
    let rows = session.items(whole(&session.api)).await?;
    Ok(Report::list(&rows, HEADINGS, "seq", row))
}

/// All pages; the oldest change comes first.
async fn whole(api: &PlansClient) -> Result<Vec<AuditRow>, ClientError> {
    let mut rows = Vec::new();
    let mut before: Option<String> = None;
    loop {
        let page = api.audit(PAGE, before.as_deref()).await?;
        rows.extend(page.items);
        match page.next {
            Some(next) => before = Some(next),
            None => break,
        }
    }
    rows.reverse();
    Ok(rows)
}

fn row(entry: &Value) -> Vec<String> {
    vec![
        text(entry, "seq"),
        text(entry, "revision"),
        time(entry.get("at")),
        text(entry, "actor"),
        text(entry, "via"),
        text(entry, "command"),
        text(entry, "reason"),
    ]
}
