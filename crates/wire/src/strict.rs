//! Reading what people and programs write: JSON without duplicate keys, and objects of which every
//! mistake is found, not the first.
//!
//! [`Fields`] takes an object apart field by field; what is left over is an unknown field. TOML
//! files come here too, as values, so a file, a body and a flag are judged alike.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{ErrorCode, FieldError};

/// Parses JSON; a key given twice is an error, not a surprise.
pub fn json(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = StrictValue.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

struct StrictValue;

impl<'de> DeserializeSeed<'de> for StrictValue {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(StrictValue)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(StrictValue)?;
            if object.insert(key.clone(), value).is_some() {
                return Err(de::Error::custom(format!("the key `{key}` stands twice")));
            }
        }
        Ok(Value::Object(object))
    }
}

/// Mistakes found so far.
#[derive(Debug, Default)]
pub struct Problems(Vec<FieldError>);

impl Problems {
    /// None yet.
    pub fn new() -> Problems {
        Problems::default()
    }

    /// Notes one.
    pub fn add(&mut self, field: impl Into<String>, code: ErrorCode, detail: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), code, detail: detail.into() });
    }

    /// Whether nothing was wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn into_vec(self) -> Vec<FieldError> {
        self.0
    }

    /// `value`, unless something was wrong.
    pub fn none_or<T>(self, value: Option<T>) -> Result<T, Vec<FieldError>> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self.0),
        }
    }
}

/// An object being taken apart. Call [`Fields::finish`] at the end: it reports what nobody took.
#[derive(Debug)]
pub struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    path: String,
    taken: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    /// The fields of `value`, which must be an object; `path` is where it stands.
    pub fn of(value: &'a Value, path: &str, problems: &mut Problems) -> Fields<'a> {
        let object = value.as_object();
        if object.is_none() {
            problems.add(path, ErrorCode::InvalidValue, "must be an object with named fields");
        }
        Fields { object, path: path.to_owned(), taken: BTreeSet::new() }
    }

    /// Where a field stands.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field, if it is there and not null.
    pub fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.taken.insert(name);
        self.object?.get(name).filter(|value| !value.is_null())
    }

    /// A text without control characters, or a mistake.
    pub fn text(&mut self, name: &'static str, problems: &mut Problems) -> Option<&'a str> {
        let value = self.get(name)?;
        if value.as_str().is_none() {
            let detail = format!("must be a text, not {}", shown(value));
            problems.add(self.path(name), ErrorCode::InvalidValue, detail);
        }
        if value.as_str().is_some_and(|text| !is_printable(text)) {
            let detail = format!("has control characters: {}", shown(value));
            problems.add(self.path(name), ErrorCode::InvalidValue, detail);
        }
        value.as_str()
    }

    /// A flag, or a mistake; absent is false.
    pub fn flag(&mut self, name: &'static str, problems: &mut Problems) -> bool {
        let Some(value) = self.get(name) else { return false };
        value.as_bool().unwrap_or_else(|| {
            let detail = format!("must be true or false, not {}", shown(value));
            problems.add(self.path(name), ErrorCode::InvalidValue, detail);
            false
        })
    }

    /// A whole number ≥ 0, or a mistake with `code`.
    pub fn whole(
        &mut self,
        name: &'static str,
        code: ErrorCode,
        problems: &mut Problems,
    ) -> Option<u64> {
        let value = self.get(name)?;
        if value.as_u64().is_none() {
            let detail = format!("must be a whole number, not {}", shown(value));
            problems.add(self.path(name), code, detail);
        }
        value.as_u64()
    }

    /// Reports a field that must be there.
    pub fn missing(&self, name: &str, problems: &mut Problems) {
        if self.object.is_some() {
            problems.add(self.path(name), ErrorCode::InvalidValue, "is missing");
        }
    }

    /// Reports every field that nobody asked for.
    pub fn finish(self, problems: &mut Problems) {
        for name in self.object.into_iter().flat_map(Map::keys) {
            if !self.taken.contains(name.as_str()) {
                let known = self.taken.iter().copied().collect::<Vec<_>>().join(", ");
                let detail = format!("is not a known field; known are {known}");
                problems.add(self.path(name), ErrorCode::UnknownField, detail);
            }
        }
    }
}

/// Whether a text can be stored everywhere (Postgres has no zero byte) and shown on any terminal:
/// it has no control characters but line ends and tabs.
pub fn is_printable(text: &str) -> bool {
    text.chars().all(|c| !c.is_control() || c == '\n' || c == '\t')
}

/// A value as an error message shows it: short, and never a whole document.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("`{short}…`") } else { format!("`{short}`") }
}
