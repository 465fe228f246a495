//! What shadow saw: the clients hit most, and both decisions about one request.

use serde_json::{Value, json};

use crate::args::ShadowCommand;
use crate::failure::Failure;
use crate::output::{Report, Shown, text};
use crate::session::Session;

const HEADINGS: &[&str] =
    &["CLIENT", "LAST-PHASE", "REQUESTS", "WOULD-DENY", "PAIRS", "DISAGREE", "STATE"];

pub(crate) async fn run(command: ShadowCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        ShadowCommand::Top { by, n } => {
            let items = session.items(session.api.shadow_top(by, n)).await?;
            Ok(Report::list(&items, HEADINGS, "client", row))
        }
        ShadowCommand::Explain { request_id } => {
            let answer = session.ask(session.api.shadow_explain(&request_id)).await?;
            Ok(explained(answer, &request_id))
        }
    }
}

fn row(client: &Value) -> Vec<String> {
    vec![
        text(client, "client"),
        text(client, "phase"),
        text(client, "requests"),
        share(client, "would_deny", "requests"),
        text(client, "pairs"),
        share(client, "disagreements", "pairs"),
        text(client, "state"),
    ]
}

/// A count with its share in tenths of a per cent, in whole numbers.
fn share(object: &Value, part: &str, whole: &str) -> String {
    let number = |field: &str| object.get(field).and_then(Value::as_u64).unwrap_or_default();
    let (part, whole) = (number(part), number(whole));
    match whole {
        0 => part.to_string(),
        _ => {
            let per_mille = u128::from(part) * 1_000 / u128::from(whole);
            format!("{part} ({}.{} %)", per_mille / 10, per_mille % 10)
        }
    }
}

fn explained(answer: Value, id: &str) -> Report {
    let record = answer.get("record").cloned().unwrap_or_else(|| json!({}));
    let mut fields = vec![("request", id.to_owned()), ("gateway", text(&answer, "gateway"))];
    for name in ["client", "plan", "route", "service", "instance", "phase", "cost", "status"] {
        if record.get(name).is_some_and(|value| !value.is_null()) {
            fields.push((name, text(&record, name)));
        }
    }
    for (name, half) in [("edge says", "edge"), ("service says", "service_half")] {
        if let Some(half) = record.get(half) {
            fields.push((name, pairs(half)));
        }
    }
    fields.push(("conclusion", text(&answer, "conclusion")));
    Report::new(answer, Shown::Fields(fields)).named(id)
}

/// An object as `name value` pairs in one line.
fn pairs(value: &Value) -> String {
    let Some(object) = value.as_object() else { return value.to_string() };
    let told = object.keys().filter(|name| value.get(name.as_str()) != Some(&Value::Null));
    let parts = told.map(|name| format!("{name} {}", text(value, name)));
    parts.collect::<Vec<_>>().join("  ")
}
