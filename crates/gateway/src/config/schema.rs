//! What may stand in `gateway.toml`, as data: every table, every key, its kind, its default.
//!
//! The readers of this folder judge files; this says the same to programs (`weir-gateway schema`,
//! a JSON Schema) and to people (`weir-gateway example`). Tests hold the two together: the readers
//! ask for exactly these keys, take every sample and default, and refuse what the schema does.

use serde_json::{Map, Value, json};

mod effective; // a file with its defaults, and without its secrets
mod example; // the commented file
mod policy; // plans, clients, keys
mod process; // listeners, bounds, store, control
mod routing; // routes and upstreams

pub(crate) use effective::effective;
pub(crate) use example::example;
use policy::{ANONYMOUS, CLIENT, KEY, PLAN, STANDALONE};
use process::{ACCESS_LOG, CONTROL, DRAIN, LIMITS, LISTEN, OPERATIONS, OVERLOAD, STORE};
use routing::{ROUTE, UPSTREAM};

use super::file::ENTRIES_MAX;

/// Spelling of times: from a millisecond to a day.
const TIME: &str = "^([0-9]+ ?(ms|s|sec|m|min|h|hour|hours|d|day) ?)+$";
/// Spelling of names.
const NAME: &str = "^[a-z0-9][a-z0-9._-]{0,63}$";

/// What a value may be.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// true or false.
    Flag,
    /// Any text.
    Text,
    /// A text of this spelling.
    Spelled(&'static str),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A time with its unit.
    Time,
    /// A path; relative ones stand beside the file.
    File,
    /// A whole number in a range.
    Whole(u64, u64),
    /// A share from 0 to 1; `true` if 0 is none.
    Share { above_zero: bool },
    /// Several.
    List(&'static Kind),
    /// A table with these keys.
    Table(&'static [Key]),
    /// Tables by name.
    Named(&'static [Key]),
    /// Texts by name.
    Labels,
    /// One or the other.
    Either(&'static [Kind]),
}

/// A key of a table.
#[derive(Debug, Clone, Copy)]
struct Key {
    name: &'static str,
    kind: Kind,
    /// What it is for, on a line.
    about: &'static str,
    /// As TOML, where it has one that can be written down.
    default: Option<&'static str>,
    /// As TOML.
    sample: &'static str,
    needed: bool,
}

/// A key that may be left out and then has no value, or one that depends on others.
const fn key(name: &'static str, kind: Kind, sample: &'static str, about: &'static str) -> Key {
    Key { name, kind, about, default: None, sample, needed: false }
}

impl Key {
    const fn default(self, default: &'static str) -> Key {
        Key { default: Some(default), ..self }
    }

    const fn needed(self) -> Key {
        Key { needed: true, ..self }
    }
}

const fn cores() -> Key {
    key("workers", Kind::Whole(1, 1_024), "4", "threads, each with its own listeners; one per core")
}

/// The file.
const FILE: &[Key] = &[
    cores(),
    key("listen", Kind::Named(LISTEN), "", "where traffic comes in"),
    key("operations", Kind::Table(OPERATIONS), "", "for operators").default("{}"),
    key("limits", Kind::Table(LIMITS), "", "bounds of connections and requests").default("{}"),
    key("overload", Kind::Table(OVERLOAD), "", "more than a worker can handle").default("{}"),
    key("access_log", Kind::Table(ACCESS_LOG), "", "a line for each answer"),
    key("drain", Kind::Table(DRAIN), "", "how the gateway ends").default("{}"),
    key("store", Kind::Table(STORE), "", "where buckets live").default("{}"),
    key("control", Kind::Table(CONTROL), "", "plans and keys from the control plane"),
    key("standalone", Kind::Table(STANDALONE), "", "plans and keys from this file").default("{}"),
    key("plan", Kind::Named(PLAN), "", "what a client may do"),
    key("client", Kind::Named(CLIENT), "", "who has which plan"),
    key("key", Kind::List(&Kind::Table(KEY)), "", "API keys, by their hash"),
    key("anonymous", Kind::Table(ANONYMOUS), "", "callers that are known by their address alone"),
    key("route", Kind::List(&Kind::Table(ROUTE)), "", "most specific host, path, methods wins")
        .needed(),
    key("upstream", Kind::Named(UPSTREAM), "", "services").needed(),
];

/// The JSON Schema of the file (draft 2020-12).
pub(crate) fn schema() -> Value {
    let mut schema = table(FILE);
    schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".to_owned(), json!("gateway.toml of weir-gateway"));
    Value::Object(schema)
}

fn table(keys: &[Key]) -> Map<String, Value> {
    let properties: Map<String, Value> =
        keys.iter().map(|key| (key.name.to_owned(), Value::Object(described(key)))).collect();
    let needed: Vec<&str> = keys.iter().filter(|key| key.needed).map(|key| key.name).collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema.insert("additionalProperties".to_owned(), json!(false));
    if !needed.is_empty() {
        schema.insert("required".to_owned(), json!(needed));
    }
    schema
}

fn described(key: &Key) -> Map<String, Value> {
    let mut schema = of_kind(key.kind);
    schema.insert("description".to_owned(), json!(key.about));
    if let Some(default) = key.default.and_then(value) {
        schema.insert("default".to_owned(), default);
    }
    if let Some(sample) = value(key.sample) {
        schema.insert("examples".to_owned(), json!([sample]));
    }
    schema
}

fn of_kind(kind: Kind) -> Map<String, Value> {
    let schema = match kind {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Text | Kind::File => json!({ "type": "string" }),
        Kind::Spelled(pattern) => json!({ "type": "string", "pattern": pattern }),
        Kind::OneOf(texts) => json!({ "enum": texts }),
        Kind::Time => json!({ "type": "string", "pattern": TIME }),
        Kind::Whole(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Share { above_zero: false } => {
            json!({ "type": "number", "minimum": 0, "maximum": 1 })
        }
        Kind::Share { above_zero: true } => {
            json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 })
        }
        Kind::List(kind) => {
            let items = Value::Object(of_kind(*kind));
            json!({ "type": "array", "items": items, "maxItems": ENTRIES_MAX })
        }
        Kind::Table(keys) => return table(keys),
        Kind::Named(keys) => {
            json!({ "type": "object", "additionalProperties": Value::Object(table(keys)) })
        }
        Kind::Labels => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Kind::Either(kinds) => {
            let kinds: Vec<Value> =
                kinds.iter().map(|kind| Value::Object(of_kind(*kind))).collect();
            json!({ "anyOf": kinds })
        }
    };
    match schema {
        Value::Object(schema) => schema,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// A value as it is written in the file.
fn value(text: &str) -> Option<Value> {
    let table: toml::Table = format!("value = {text}").parse().ok()?;
    super::read::object_of(table).remove("value")
}

#[cfg(test)]
mod tests;
