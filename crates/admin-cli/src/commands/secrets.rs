//! `weir key rotate|import|usage`: new secrets for old keys, and keys that were made elsewhere.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use wire::client::{Call, segment};
use wire::error::{ErrorCode, FieldError};

use super::keys::{secret, time};
use super::plans::done;
use crate::args::ChangeFlags;
use crate::failure::Failure;
use crate::output::{Report, text};
use crate::session::{Session, counted};

/// Largest file of keys, in bytes; plans-api takes no larger body.
const FILE_BYTES_MAX: u64 = 2 << 20;

pub(super) async fn rotate(
    id: &str,
    overlap: Option<Duration>,
    change: &ChangeFlags,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let reason = session.reason(change)?;
    if overlap == Some(Duration::ZERO) {
        let key = session.ask(session.api.key(id)).await?;
        let client = text(&key, "client");
        let danger = format!(
            "end the present secret of the key {id} of the client {client} at once (1 key)"
        );
        session.confirm(change, &danger, None)?;
    }
    session.confirm_in_production(change, &format!("make a new secret for the key {id}"))?;
    let body = match overlap {
        None => json!({}),
        Some(overlap) => {
            json!({ "overlap_ms": u64::try_from(overlap.as_millis()).unwrap_or(u64::MAX) })
        }
    };
    let call = Call::post(format!("/v1/keys/{}:rotate", segment(id)), &body);
    let json = session.send(call.query("reason", reason).if_match_or_insist(None)).await?;
    let report = secret(json, "key", session)?;
    let usage = session.send(Call::get(format!("/v1/keys/{}/usage", segment(id)))).await;
    let old = usage.as_ref().ok().and_then(|usage| usage.pointer("/secrets/1"));
    let told = old.map(|old| {
        let used = time(old.get("last_used_at"));
        format!(
            "the old secret ends {}, last used {used}; same plan, same bucket",
            time(old.get("valid_until"))
        )
    });
    let report = told.into_iter().fold(report, Report::note);
    Ok(session.finish(report, change).await)
}

pub(super) async fn usage(id: &str, session: &Session<'_>) -> Result<Report, Failure> {
    let json = session.send(Call::get(format!("/v1/keys/{}/usage", segment(id)))).await?;
    let secrets: Vec<Value> =
        json.get("secrets").and_then(Value::as_array).cloned().unwrap_or_default();
    let headings: &[&str] = &["SECRET", "MADE", "LAST USED", "ENDS"];
    let mut report = Report::list(&secrets, headings, "algorithm", |secret| {
        let at = |field: &str| time(secret.get(field));
        vec![text(secret, "algorithm"), at("created_at"), at("last_used_at"), at("valid_until")]
    });
    report.json = json;
    report.names = vec![id.to_owned()];
    Ok(report)
}

pub(super) async fn import(
    file: &Path,
    change: &ChangeFlags,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let keys = parse(&file.display().to_string(), &text_of(file)?).map_err(Failure::invalid)?;
    let told = counted(keys.len(), "key");
    session.confirm_in_production(change, &format!("take over {told}"))?;
    let reason = session.reason(change)?;
    let call = Call::post("/v1/keys:import", &json!({ "keys": keys })).query("reason", reason);
    let json = session.send(call).await?;
    let names: Vec<String> = json
        .get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|key| text(key, "id"))
        .collect();
    let report = Report { names, ..done(json, "", format!("{told} taken over")) };
    let hint = "they carry no tag, so gateways look each of them up: issue new ones when you can";
    Ok(session.finish(report.note(hint), change).await)
}

fn text_of(file: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", file.display()));
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    };
    match read.map_err(failed)? as u64 {
        bytes if bytes > FILE_BYTES_MAX => {
            let line = format!("{}: larger than {FILE_BYTES_MAX} bytes: split it", file.display());
            Err(Failure::usage(line))
        }
        _ => Ok(text),
    }
}

/// Reads a file of keys: JSON or CSV; all mistakes at once, with their line or place.
fn parse(file: &str, text: &str) -> Result<Vec<Value>, Vec<FieldError>> {
    let mut mistakes = Vec::new();
    let mut wrong = |place: String, detail: String| {
        let field = format!("{file}{place}");
        mistakes.push(FieldError { field, code: ErrorCode::InvalidValue, detail });
    };
    let mut keys = Vec::new();
    if text.trim_start().starts_with('[') {
        match serde_json::from_str::<Vec<&RawValue>>(text) {
            Err(error) => wrong(String::new(), format!("is no JSON list: {error}")),
            Ok(items) => {
                for (index, item) in items.iter().enumerate() {
                    let row = serde_json::from_str::<Row>(item.get());
                    let key = row.map_err(|error| without_place(&error)).and_then(|row| row.key());
                    keys.extend(key.map_err(|detail| wrong(format!("[{index}]"), detail)));
                }
            }
        }
    } else {
        for (number, line) in text.lines().enumerate() {
            let header = number == 0 && line.starts_with("sha256");
            if line.trim().is_empty() || line.starts_with('#') || header {
                continue;
            }
            let mut parts = line.split(',').map(|part| part.trim().trim_matches('"'));
            let row = [(); 4].map(|()| parts.next().unwrap_or_default());
            keys.extend(key(&row).map_err(|detail| wrong(format!(":{}", number + 1), detail)));
        }
    }
    if keys.is_empty() && mistakes.is_empty() {
        let detail = "has no key in it".to_owned();
        mistakes.push(FieldError { field: file.to_owned(), code: ErrorCode::InvalidValue, detail });
    }
    if mistakes.is_empty() { Ok(keys) } else { Err(mistakes) }
}

/// A key in a JSON file. What is not read is refused: a misspelt end would be no end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    sha256: String,
    client: String,
    env: Option<String>,
    expires_at: Option<Value>,
}

impl Row {
    fn key(&self) -> Result<Value, String> {
        let ends = match &self.expires_at {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        key(&[&self.sha256, &self.client, &ends, self.env.as_deref().unwrap_or_default()])
    }
}

/// The place is that of the item, and said before.
fn without_place(error: &serde_json::Error) -> String {
    let told = error.to_string();
    told.rsplit_once(" at line ").map_or(told.clone(), |(told, _)| told.to_owned())
}

/// One key as the API takes it: SHA-256, client, end, kind.
fn key([sha256, client, expires_at, env]: &[&str; 4]) -> Result<Value, String> {
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        // never shown whole: somebody may have put the key itself there
        return Err("sha256 must be 64 hexadecimal digits: the SHA-256 of the whole key".to_owned());
    }
    if client.is_empty() {
        return Err("names no client".to_owned());
    }
    let mut key = Map::new();
    key.insert("sha256".to_owned(), json!(sha256.to_ascii_lowercase()));
    key.insert("client".to_owned(), json!(client));
    if !env.is_empty() {
        key.insert("env".to_owned(), json!(env));
    }
    if !expires_at.is_empty() {
        let at = match expires_at.parse::<u64>() {
            Ok(ms) => ms,
            Err(_) => rfc3339_ms(expires_at).ok_or_else(|| {
                format!("expires_at must be like 2027-01-01T00:00:00Z, not `{expires_at}`")
            })?,
        };
        key.insert("expires_at".to_owned(), json!(at));
    }
    Ok(Value::Object(key))
}

fn rfc3339_ms(text: &str) -> Option<u64> {
    let at = humantime::parse_rfc3339_weak(text).ok()?;
    let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_and_json_say_the_same() {
        let hash = "AB".repeat(32);
        let csv =
            format!("sha256,client,expires_at\n{hash},acme,2027-01-01T00:00:00Z\n\n{hash},zeta\n");
        let json = format!(
            "[{{\"sha256\":\"{hash}\",\"client\":\"acme\",\"expires_at\":1798761600000}},\
             {{\"sha256\":\"{hash}\",\"client\":\"zeta\"}}]"
        );
        let keys = parse("keys.csv", &csv).unwrap();
        assert_eq!(keys, parse("keys.json", &json).unwrap());
        assert_eq!(keys[0]["sha256"], hash.to_lowercase());
    }

    #[test]
    fn every_mistake_is_told_with_its_line_and_no_secret_is_shown() {
        let text = "weir_live_secret,acme\n".to_owned()
            + &"a".repeat(64)
            + ",\n"
            + &"a".repeat(64)
            + ",b,soon\n";
        let mistakes = parse("keys.csv", &text).unwrap_err();
        let told: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(
            told[0].starts_with("keys.csv:1: sha256") && told[2].contains("`soon`"),
            "{told:?}"
        );
        assert!(!told[0].contains("secret"), "{told:?}");
        assert_eq!(parse("k", "").unwrap_err().len(), 1);
        assert_eq!(parse("k", "[1, {]").unwrap_err().len(), 1);
    }

    #[test]
    fn a_field_that_is_not_read_or_stands_twice_is_a_mistake_and_not_an_endless_key() {
        let hash = "ab".repeat(32);
        let item = |more: &str| format!("{{\"sha256\":\"{hash}\",\"client\":\"acme\"{more}}}");
        let at = "\"2027-01-01T00:00:00Z\"";
        let text = format!(
            "[{},{},{},{}]",
            item(&format!(",\"expire_at\":{at}")),
            item(",\"client\":\"zeta\""),
            item(",\"expires_at\":true"),
            item(&format!(",\"expires_at\":{at}")),
        );
        let mistakes = parse("k", &text).unwrap_err();
        let told: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("[0]") && told[0].contains("expire_at"), "{told:?}");
        assert!(told[1].contains("[1]") && told[1].contains("client"), "{told:?}");
        assert!(told[2].contains("[2]") && told[2].contains("true"), "{told:?}");
    }
}
