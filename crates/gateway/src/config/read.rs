//! The readers of single values: each gives the value or notes what is wrong and what would be
//! right. A given value that is wrong never becomes the default.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};
use wire::error::ErrorCode;
use wire::strict::{Fields, Problems, shown};

use super::Secret;

/// Longest time that any setting may have.
const TIME_MAX: Duration = Duration::from_secs(86_400);

/// A TOML value as the readers of files and bodies know it. Floats that JSON has no word for stay
/// visible as text, so that they are refused by name and not taken for absent.
pub(super) fn json_of(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)
            .map_or_else(|| Value::String(number.to_string()), Value::Number),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => Value::Array(items.into_iter().map(json_of).collect()),
        toml::Value::Table(table) => Value::Object(object_of(table)),
    }
}

/// A TOML table as an object.
pub(super) fn object_of(table: toml::Table) -> Map<String, Value> {
    table.into_iter().map(|(name, value)| (name, json_of(value))).collect()
}

/// Notes a wrong value.
pub(super) fn wrong(problems: &mut Problems, path: String, what: impl Display) {
    problems.add(path, ErrorCode::InvalidValue, what.to_string());
}

/// An optional table of the file.
pub(super) fn table<'a>(fields: &mut Fields<'a>, name: &'static str) -> Option<&'a Value> {
    fields.get(name)
}

/// The entries of a table of named tables, such as `[upstream.NAME]`.
pub(super) fn named<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
    problems: &mut Problems,
) -> Vec<(&'a str, &'a Value)> {
    match fields.get(name) {
        None => Vec::new(),
        Some(Value::Object(entries)) => {
            entries.iter().map(|(name, value)| (name.as_str(), value)).collect()
        }
        Some(other) => {
            let what = format!("must be tables `[{name}.NAME]`, not {}", shown(other));
            wrong(problems, fields.path(name), what);
            Vec::new()
        }
    }
}

/// The entries of a list, such as `[[route]]`.
pub(super) fn list<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
    problems: &mut Problems,
) -> &'a [Value] {
    match fields.get(name) {
        None => &[],
        Some(Value::Array(items)) => items,
        Some(other) => {
            wrong(problems, fields.path(name), format!("must be a list, not {}", shown(other)));
            &[]
        }
    }
}

/// Texts of a list.
pub(super) fn texts<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
    problems: &mut Problems,
) -> Vec<&'a str> {
    let mut texts = Vec::new();
    for (index, item) in list(fields, name, problems).iter().enumerate() {
        match item.as_str() {
            Some(text) => texts.push(text),
            None => {
                let path = format!("{}[{index}]", fields.path(name));
                wrong(problems, path, format!("must be a text, not {}", shown(item)));
            }
        }
    }
    texts
}

/// A text that `parse` understands.
pub(super) fn parsed<T, E: Display>(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Option<T> {
    let text = fields.text(name, problems)?;
    parse(text)
        .map_err(|error| {
            let short: String = text.chars().take(60).collect();
            wrong(problems, fields.path(name), format!("`{short}`: {error}"));
        })
        .ok()
}

/// A text that must be there.
pub(super) fn needed<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
    problems: &mut Problems,
) -> Option<&'a str> {
    must_have(fields, name, problems);
    fields.text(name, problems)
}

/// Notes the absence of what must be there.
pub(super) fn must_have(fields: &mut Fields<'_>, name: &'static str, problems: &mut Problems) {
    if fields.get(name).is_none() {
        fields.missing(name, problems);
    }
}

/// A time with a unit.
pub(super) fn time(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    default: Duration,
) -> Duration {
    if let Some(number) = fields.get(name).and_then(Value::as_u64) {
        let what = format!("must be a time in quotes, with a unit: \"{number}s\", not {number}");
        wrong(problems, fields.path(name), what);
        return default;
    }
    let parse = |text: &str| match humantime::parse_duration(text) {
        Ok(time) if time <= TIME_MAX && time >= Duration::from_millis(1) => Ok(time),
        Ok(_) => Err("must be from 1ms to 1day".to_owned()),
        Err(error) => Err(format!("must be a time like `5ms`, `10s` or `2m` ({error})")),
    };
    parsed(fields, name, problems, parse).unwrap_or(default)
}

/// A time, or none where the file says `word`; outer none: it says nothing.
pub(super) fn time_unless(
    fields: &mut Fields<'_>,
    name: &'static str,
    word: &str,
    problems: &mut Problems,
) -> Option<Option<Duration>> {
    match fields.get(name)?.as_str() {
        Some(text) if text == word => Some(None),
        Some(_) | None => Some(Some(time(fields, name, problems, TIME_MAX))),
    }
}

/// A whole number in a range.
pub(super) fn whole(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    range: RangeInclusive<u64>,
) -> Option<u64> {
    let number = fields.whole(name, ErrorCode::InvalidValue, problems)?;
    if range.contains(&number) {
        return Some(number);
    }
    let what = format!("must be from {} to {}, not {number}", range.start(), range.end());
    wrong(problems, fields.path(name), what);
    None
}

/// A whole number in a range, as a `usize`.
pub(super) fn size(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    range: RangeInclusive<u64>,
    default: usize,
) -> usize {
    let number = whole(fields, name, problems, range);
    number.and_then(|number| usize::try_from(number).ok()).unwrap_or(default)
}

/// A whole number in a range, as a `u32`.
pub(super) fn count(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    range: RangeInclusive<u64>,
    default: u32,
) -> u32 {
    let number = whole(fields, name, problems, range);
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
}

/// A share from 0 to 1, in hundredths.
pub(super) fn percent(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    default: usize,
) -> usize {
    let Some(value) = fields.get(name) else { return default };
    match value.as_f64() {
        // Through text: a float must not be cut to an integer in passing.
        Some(share) if (0.0..=1.0).contains(&share) => {
            format!("{:.0}", share * 100.0).parse().unwrap_or(default)
        }
        Some(_) | None => {
            let what = format!("must be a share from 0 to 1, not {}", shown(value));
            wrong(problems, fields.path(name), what);
            default
        }
    }
}

/// An address with its port.
pub(super) fn address(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    default: SocketAddr,
) -> SocketAddr {
    let parse = |text: &str| {
        text.parse::<SocketAddr>().map_err(|_not_an_address| {
            "must be an address with a port, like `127.0.0.1:8080` or `[::]:8080`"
        })
    };
    parsed(fields, name, problems, parse).unwrap_or(default)
}

/// A flag that is true unless said otherwise.
pub(super) fn flag_or_true(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
) -> bool {
    if fields.get(name).is_none() { true } else { fields.flag(name, problems) }
}

/// The base URL of a service.
pub(super) fn base_url(text: &str) -> Result<String, &'static str> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains([' ', '@', '?', '#']) => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        Some(_) | None => Err("must be an URL like `http://127.0.0.1:8081`"),
    }
}

/// A path; relative ones stand beside the configuration file.
pub(super) fn path(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    beside: &Path,
) -> Option<PathBuf> {
    fields.text(name, problems).map(|text| beside.join(text))
}

/// The secret in a file.
pub(super) fn secret(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    beside: &Path,
) -> Option<Secret> {
    let path = path(fields, name, problems, beside)?;
    daemon::settings::secret_file(&path)
        .map(Secret::new)
        .map_err(|error| wrong(problems, fields.path(name), error))
        .ok()
}
