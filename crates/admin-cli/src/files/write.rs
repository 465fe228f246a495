//! Plans and clients as TOML, in the form that people write: one table each, limits in one line.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Tables by kind and name, such as `{"plan": {"pro": {…}}}`. What is read again is the same.
pub(crate) fn to_toml(document: &Map<String, Value>) -> String {
    let mut text = String::new();
    for kind in ["plan", "client"] {
        for (name, object) in document.get(kind).and_then(Value::as_object).into_iter().flatten() {
            if !text.is_empty() {
                text.push('\n');
            }
            // writing into a text cannot fail
            let _written = writeln!(text, "[{kind}.{}]", key(name));
            for (field, value) in object.as_object().into_iter().flatten() {
                let _written = writeln!(text, "{} = {}", key(field), inline(value));
            }
        }
    }
    text
}

fn key(name: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !name.is_empty() && name.bytes().all(bare) { name.to_owned() } else { quoted(name) }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(name, value)| format!("{} = {}", key(name), inline(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_again_with_every_odd_text() {
        let document = json!({
            "plan": { "a.b": {
                "burst": { "capacity": 20, "refill": "5/s" },
                "costs": [{ "route": "reports", "cost": 5 }],
                "note": "a \"quote\", a \\ and\na line\t\u{7f} é",
                "unlimited": false,
                "labels": { "team": "x", "odd.name": "''' \"\"\"" },
            } },
            "client": { "acme": { "plan": "a.b" }, "7": { "plan": "x" } },
        });
        let text = to_toml(document.as_object().unwrap());
        let read: toml::Table =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(serde_json::to_value(read).unwrap(), document, "{text}");
        assert!(text.contains("burst = { capacity = 20, refill = \"5/s\" }"), "{text}");
        assert!(text.contains("[plan.\"a.b\"]"), "{text}");
    }
}
