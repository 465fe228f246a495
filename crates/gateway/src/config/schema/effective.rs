//! What a gateway goes by: its file with the defaults filled in and the secrets taken out.

use serde_json::{Map, Value};

use super::{FILE, Key, Kind, value};

/// Of a file that was found valid.
pub(crate) fn effective(file: &Value) -> Value {
    let mut filled = filled(Kind::Table(FILE), file);
    if let Some(Value::String(url)) = filled.pointer_mut("/store/url") {
        *url = without_password(url);
    }
    if let Some(Value::Array(keys)) = filled.get_mut("key") {
        for key in keys.iter_mut().filter_map(Value::as_object_mut) {
            key.remove("hash");
        }
    }
    filled
}

/// The account and its password are one text before the last `@`.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

fn filled(kind: Kind, given: &Value) -> Value {
    match (kind, given) {
        (Kind::Table(keys), Value::Object(table)) => Value::Object(with_defaults(keys, table)),
        (Kind::Named(keys), Value::Object(tables)) => {
            let each = tables.iter();
            let each = each.map(|(name, table)| (name.clone(), filled(Kind::Table(keys), table)));
            Value::Object(each.collect())
        }
        (Kind::List(kind), Value::Array(items)) => {
            Value::Array(items.iter().map(|item| filled(*kind, item)).collect())
        }
        (Kind::Either(kinds), Value::Object(_) | Value::Array(_)) => {
            let fits = |kind: &&Kind| {
                matches!(
                    (kind, given),
                    (Kind::Table(_), Value::Object(_)) | (Kind::List(_), Value::Array(_))
                )
            };
            kinds.iter().find(fits).map_or_else(|| given.clone(), |kind| filled(*kind, given))
        }
        _ => given.clone(),
    }
}

fn with_defaults(keys: &[Key], table: &Map<String, Value>) -> Map<String, Value> {
    let mut whole = Map::new();
    for key in keys {
        let default = || key.default.and_then(value);
        if let Some(value) = table.get(key.name).cloned().or_else(default) {
            whole.insert(key.name.to_owned(), filled(key.kind, &value));
        }
    }
    whole
}
