//! `/v1/audit`: who changed what, and whether somebody changed that.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use wire::audit::{AuditHash, AuditPlace, AuditWalk};
use wire::client::plans::AuditFilter;
use wire::error::{ErrorBody, ErrorCode};
use wire::strict::{Fields, Problems};

use super::ask::{Ask, Bytes, parse};
use super::error::ApiError;
use super::{App, answer};

/// Largest number that the database counts to.
const SEQ_MAX: u64 = i64::MAX as u64;

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor", "actor", "kind", "id", "since"])?;
    let (cursor, limit) = ask.page()?;
    let number = |name: &str, text: &str| {
        text.parse::<u64>().ok().filter(|number| *number <= SEQ_MAX).ok_or_else(|| {
            let detail = format!("?{name}: must be a whole number, not `{text}`");
            ApiError::from(ErrorBody::new(ErrorCode::InvalidValue, detail))
        })
    };
    let before = match cursor {
        "" => SEQ_MAX,
        text => number("cursor", text)?,
    };
    let text = |name| ask.param(name).map(ToOwned::to_owned);
    let filter = AuditFilter {
        actor: text("actor"),
        kind: text("kind"),
        id: text("id"),
        since: ask.param("since").map(|at| number("since", at)).transpose()?,
    };
    answer(&app.store.audit(&filter, before, limit).await?, None)
}

/// `:verify`.
pub(super) async fn verify(
    State(app): State<Arc<App>>,
    ask: Ask,
    Bytes(bytes): Bytes,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let walk = if bytes.is_empty() { AuditWalk::default() } else { walk_of(&bytes)? };
    answer(&app.store.walk_audit(walk).await?, None)
}

fn walk_of(bytes: &[u8]) -> Result<AuditWalk, ApiError> {
    let (value, mut problems) = (parse(bytes)?, Problems::new());
    let mut fields = Fields::of(&value, "", &mut problems);
    let mut place = |name: &'static str, problems: &mut Problems| {
        let value = fields.get(name)?;
        let mut fields = Fields::of(value, name, problems);
        let seq = fields.whole("seq", ErrorCode::InvalidValue, problems);
        let hash = fields.text("hash", problems);
        for (name, missing) in [("seq", seq.is_none()), ("hash", hash.is_none())] {
            if missing {
                fields.missing(name, problems);
            }
        }
        let read = hash.and_then(AuditHash::from_hex);
        if let (Some(_), None) = (hash, read) {
            let detail = "must be 64 hexadecimal digits, lower case";
            problems.add(fields.path("hash"), ErrorCode::InvalidValue, detail);
        }
        if seq.is_some_and(|seq| SEQ_MAX < seq) {
            let detail = format!("must be a whole number up to {SEQ_MAX}");
            problems.add(fields.path("seq"), ErrorCode::InvalidValue, detail);
        }
        fields.finish(problems);
        Some(AuditPlace { seq: seq?, hash: read? })
    };
    let walk =
        AuditWalk { after: place("after", &mut problems), kept: place("kept", &mut problems) };
    fields.finish(&mut problems);
    Ok(problems.none_or(Some(walk))?)
}
