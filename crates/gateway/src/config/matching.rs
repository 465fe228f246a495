//! What a `[[route]]` may say beyond host, path and upstream: fields that a request must have, the
//! path that services see, and bounds of its own.

use http::HeaderName;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue};
use serde_json::Value;
use wire::strict::{Fields, Problems, shown};

use super::file::SECOND;
use super::limits::body_bytes;
use super::read::{parsed, time, time_unless, wrong};
use crate::credential::API_KEY;
use crate::route::{FieldRule, RouteBounds, canonical_path};

/// The table `headers`: a value, or `"*"` for any.
pub(super) fn fields(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<FieldRule> {
    const NAME: &str = "headers";
    let path = fields.path(NAME);
    let entries = match fields.get(NAME) {
        None => return Vec::new(),
        Some(Value::Object(entries)) => entries,
        Some(other) => {
            let what = format!("must be a table of names and values, not {}", shown(other));
            wrong(problems, path, what);
            return Vec::new();
        }
    };
    let mut rules = Vec::new();
    for (name, value) in entries {
        match rule(name, value) {
            Ok(rule) => rules.push(rule),
            Err(what) => wrong(problems, format!("{path}.{name}"), what),
        }
    }
    rules
}

fn rule(name: &str, value: &Value) -> Result<FieldRule, String> {
    let what = || format!("must be a text, or \"*\" for any value, not {}", shown(value));
    let text = value.as_str().ok_or_else(what)?;
    let known = HeaderName::try_from(name).map_err(|_bad| "is no header name".to_owned())?;
    if [API_KEY, AUTHORIZATION, CONNECTION, HOST].contains(&known) {
        return Err("no route goes by this field".to_owned());
    }
    let value = match text {
        "*" => None,
        text => Some(HeaderValue::from_str(text).map_err(|_bad| what())?),
    };
    Ok(FieldRule { name: known, value })
}

/// The path that services see in place of the route's; `strip_prefix` is the empty one.
pub(super) fn rewrite(
    fields: &mut Fields<'_>,
    exact: bool,
    problems: &mut Problems,
) -> Option<String> {
    let strip_prefix = fields.flag("strip_prefix", problems);
    let rewrite = parsed(fields, "rewrite", problems, plain_path);
    if strip_prefix && exact {
        let what = "an exact path has no prefix to strip";
        wrong(problems, fields.path("strip_prefix"), what);
    }
    if strip_prefix && rewrite.is_some() {
        wrong(problems, fields.path("rewrite"), "is said beside strip_prefix: one of them");
    }
    if strip_prefix { Some(String::new()) } else { rewrite }
}

/// A path that has no other spelling, without a slash at its end.
pub(super) fn plain_path(text: &str) -> Result<String, String> {
    let canonical = canonical_path(text).map_err(|error| error.to_string())?;
    if canonical != text || text.contains(['?', '#', '*']) {
        return Err(format!("must be a plain path without query; its plain form is `{canonical}`"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Bounds that replace the gateway's and the upstream's.
pub(super) fn bounds(fields: &mut Fields<'_>, problems: &mut Problems) -> RouteBounds {
    const HEAD: &str = "head_timeout";
    let total_timeout = time_unless(fields, "total_timeout", "none", problems);
    let has_head = fields.get(HEAD).is_some();
    let head_timeout = has_head.then(|| time(fields, HEAD, problems, SECOND));
    RouteBounds { body_bytes: body_bytes(fields, problems), head_timeout, total_timeout }
}
