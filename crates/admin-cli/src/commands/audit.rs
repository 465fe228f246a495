//! The audit: every change with its author and reason, and whether it still is what was written.

use std::time::Duration;

use serde_json::{Value, json};
use wire::audit::{AuditPlace, AuditWalk, AuditWalked};
use wire::client::ClientError;
use wire::client::plans::{AuditFilter, AuditRow, PlansClient};

use super::keys::{in_ms, time};
use crate::args::{AuditCommand, AuditList};
use crate::failure::{Exit, Failure};
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted};

const HEADINGS: &[&str] = &["SEQ", "REVISION", "AT", "ACTOR", "VIA", "COMMAND", "REASON"];
/// Rows asked for at once.
const PAGE: u32 = 500;

pub(crate) async fn run(command: AuditCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        AuditCommand::List(filter) => list(filter, session).await,
        AuditCommand::Verify { kept } => verify(kept, session).await,
        AuditCommand::Tip => tip(session).await,
    }
}

async fn list(flags: AuditList, session: &Session<'_>) -> Result<Report, Failure> {
    let back = |since: Duration| {
        in_ms(Duration::ZERO).saturating_sub(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    };
    let AuditList { actor, kind, id, since } = flags;
    let filter = AuditFilter { actor, kind, id, since: since.map(back) };
    let rows = session.items(whole(&session.api, &filter)).await?;
    Ok(Report::list(&rows, HEADINGS, "seq", row))
}

/// All pages; the oldest change comes first.
async fn whole(api: &PlansClient, filter: &AuditFilter) -> Result<Vec<AuditRow>, ClientError> {
    let mut rows = Vec::new();
    let mut before: Option<String> = None;
    loop {
        let page = api.audit_of(filter, PAGE, before.as_deref()).await?;
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

async fn verify(kept: Option<AuditPlace>, session: &Session<'_>) -> Result<Report, Failure> {
    let walked: AuditWalked = session.answer(session.api.verify_audit(kept)).await?;
    let json = json!({
        "ok": walked.fault.is_none(), "checked": walked.checked, "fault": walked.fault,
        "tip": walked.tip, "unlinked": walked.unlinked,
    });
    let rows = counted(usize::try_from(walked.checked).unwrap_or(usize::MAX), "row");
    let Some(fault) = walked.fault else {
        let line = match walked.unlinked {
            0 => format!("ok, {rows}, tip {}", walked.tip),
            more => format!("ok, {rows}, tip {}; {more} newer not in the chain yet", walked.tip),
        };
        return Ok(Report::new(json, Shown::Text(line)).named(walked.tip.to_string()));
    };
    let line = format!("row {}: {}", fault.seq, fault.detail);
    let mut report = Report::new(json, Shown::Text(line.clone()));
    report.warnings.push(format!(
        "the audit was changed after it was written; the first bad place is {line} ({rows} before \
         it are sound)"
    ));
    report.exit = Exit::Fault;
    Ok(report)
}

/// The first part of a walk tells the tip.
async fn tip(session: &Session<'_>) -> Result<Report, Failure> {
    let walk = AuditWalk { after: Some(AuditPlace::START), kept: None };
    let walked: AuditWalked = session.answer(session.api.walk_audit(walk)).await?;
    let place = walked.tip.to_string();
    let json = json!({ "seq": walked.tip.seq, "hash": walked.tip.hash, "tip": place });
    Ok(Report::new(json, Shown::Text(place.clone())).named(place))
}
