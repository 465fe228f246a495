//! What can be written, checked: bodies become these values or a list of all their mistakes.

pub(crate) mod plan; // a plan's row, and how the API shows it
pub(crate) mod lint; // what is most likely not meant
pub(crate) mod client; // a client's body
pub(crate) mod overrides; // limits of its own
pub(crate) mod api_key; // a key's body and its moves
pub(crate) mod rollout; // phases and which rules follow from a move
pub(crate) mod audit; // who did what

use serde_json::Value;

/// The fields in which two objects differ, as `burst.refill: 50/s → 40/s`.
pub(crate) fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", before, after, &mut lines);
    lines
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
            let (old, new) = (old.get(name).unwrap_or(&Value::Null), new.get(name));
            compare(&path, old, new.unwrap_or(&Value::Null), lines);
        }
        return;
    }
    lines.push(format!("{path}: {} → {}", plain(before), plain(after)));
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
