//! What was changed before: a plan's history, and what somebody else did meanwhile (412). All of it
//! is read from the audit.

use serde_json::Value;

use super::keys::time;
use crate::failure::{Exit, Failure};
use crate::output::{Report, text};
use crate::session::Session;

const HEADINGS: &[&str] = &["REVISION", "AT", "ACTOR", "COMMAND", "REASON", "CHANGE"];
/// Rows asked for at once.
const PAGE: u32 = 500;
/// Rows that are looked through for the last change of one object.
const RECENT: u32 = 200;

/// Every change of one object, oldest first.
pub(super) async fn history(
    kind: &str,
    id: &str,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let mut rows = Vec::new();
    let mut before: Option<String> = None;
    loop {
        let page = session.ask(session.api.audit(PAGE, before.as_deref())).await?;
        rows.extend(items(&page).filter(|row| is_of(row, kind, id)).cloned());
        match page.get("next").and_then(Value::as_str) {
            Some(next) => before = Some(next.to_owned()),
            None => break,
        }
    }
    if rows.is_empty() {
        let line = format!("the audit knows no change of a {kind} `{id}`");
        return Err(Failure::new(Exit::NotFound, "not_found", line));
    }
    rows.reverse();
    Ok(Report::list(&rows, HEADINGS, "revision", |row| {
        let mut told = vec![text(row, "revision"), time(row.get("at"))];
        told.extend(["actor", "command", "reason"].iter().map(|field| text(row, field)));
        told.push(differences(row).join(", "));
        told
    }))
}

/// The last change of an object, if it is among the newest ones.
pub(super) async fn last(kind: &str, id: &str, session: &Session<'_>) -> Option<Value> {
    let page = session.ask(session.api.audit(RECENT, None)).await.ok()?;
    items(&page).find(|row| is_of(row, kind, id)).cloned()
}

/// A refusal because somebody else was faster, with what they did.
pub(super) async fn explained(
    failure: Failure,
    kind: &str,
    id: &str,
    session: &Session<'_>,
) -> Failure {
    if failure.code != "changed" {
        return failure;
    }
    let Some(row) = last(kind, id, session).await else { return failure };
    let reason = row.get("reason").and_then(Value::as_str).filter(|reason| !reason.is_empty());
    let told = format!(
        "meanwhile {} did `{}` at revision {}{}",
        text(&row, "actor"),
        text(&row, "command"),
        text(&row, "revision"),
        reason.map(|reason| format!(", because: {reason}")).unwrap_or_default(),
    );
    let failure = differences(&row).into_iter().fold(failure.and(told), Failure::and);
    Failure { detail: serde_json::json!({ "other_change": row }), ..failure }
}

fn items(page: &Value) -> impl Iterator<Item = &Value> {
    page.get("items").and_then(Value::as_array).into_iter().flatten()
}

fn is_of(row: &Value, kind: &str, id: &str) -> bool {
    row.get("kind").and_then(Value::as_str) == Some(kind)
        && row.get("id").and_then(Value::as_str) == Some(id)
}

/// The fields that a change changed, as `burst.capacity 100 → 50`.
fn differences(row: &Value) -> Vec<String> {
    let of = |side: &str| row.get(side).filter(|value| !value.is_null());
    match (of("before"), of("after")) {
        (None, None) => Vec::new(),
        (None, Some(_)) => vec!["made".to_owned()],
        (Some(_), None) => vec!["deleted".to_owned()],
        (Some(before), Some(after)) => {
            let mut lines = Vec::new();
            compare("", before, after, &mut lines);
            lines
        }
    }
}

fn compare(path: &str, before: &Value, after: &Value, lines: &mut Vec<String>) {
    if before == after || path == "revision" {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (before, after) {
        let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let side = |object: &serde_json::Map<String, Value>| {
                object.get(name).cloned().unwrap_or(Value::Null)
            };
            compare(&path, &side(old), &side(new), lines);
        }
        return;
    }
    let plain = |value: &Value| match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    lines.push(format!("{path} {} → {}", plain(before), plain(after)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_told_by_its_fields() {
        let row = json!({
            "before": { "burst": { "capacity": 100, "refill": "50/s" }, "revision": 1 },
            "after": { "burst": { "capacity": 50, "refill": "50/s" }, "note": "x", "revision": 2 },
        });
        assert_eq!(differences(&row), ["burst.capacity 100 → 50", "note none → x"]);
        assert_eq!(differences(&json!({ "after": {} })), ["made"]);
        assert_eq!(differences(&json!({ "before": {}, "after": null })), ["deleted"]);
    }
}
