//! What a call brings besides its body: who, why, which version, which page. Unknown parameters
//! are refused: `?dryrun=true` must not apply anything.

use std::sync::Arc;

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::HeaderMap;
use axum::http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::response::IntoResponse;
use serde_json::Value;
use wire::error::{ErrorBody, ErrorCode, FieldError};
use wire::strict::{self, Fields, Problems, is_printable};

use super::error::ApiError;
use super::{App, RequestId};
use crate::auth::Caller;
use crate::model::audit::{DRY_RUN, Once, REASON_BYTES_MAX};
use crate::store::{Expect, Stamp};

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 500;
/// Longest value of a parameter, in bytes: a reason fits.
const PARAM_BYTES_MAX: usize = REASON_BYTES_MAX;

/// Everything but the body.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) caller: Caller,
    request_id: String,
    params: Vec<(String, String)>,
    expect: Option<Expect>,
    once: Option<Once>,
}

impl FromRequestParts<Arc<App>> for Ask {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Ask, ApiError> {
        let params = Query::<Vec<(String, String)>>::from_request_parts(parts, app).await;
        let Query(params) =
            params.map_err(|error| bad_request(format!("the query: {}", error.body_text())))?;
        if params.iter().any(|(name, value)| !is_printable(name) || !is_printable(value)) {
            return Err(bad_request("the query has control characters"));
        }
        if let Some((name, value)) = params.iter().find(|(_, v)| PARAM_BYTES_MAX < v.len()) {
            let detail = format!("is {} bytes long, at most {PARAM_BYTES_MAX} fit", value.len());
            return Err(wrong_param(name, detail));
        }
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(Ask {
            caller: caller.ok_or_else(|| ApiError::of(ErrorCode::TokenMissing))?,
            request_id: parts.extensions.get().map_or_else(String::new, |RequestId(id)| id.clone()),
            expect: expect(&parts.headers)?,
            once: parts.extensions.get::<Once>().cloned(),
            params,
        })
    }
}

impl Ask {
    /// Refuses parameters other than these, and any that is given twice.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        let mut errors = Vec::new();
        for (index, (name, _)) in self.params.iter().enumerate() {
            let twice = self.params.iter().take(index).any(|(before, _)| before == name);
            let known_here = known.contains(&name.as_str()) || name == "dry_run";
            let detail = match (known_here, twice) {
                (true, false) => continue,
                (true, true) => "is given twice".to_owned(),
                (false, _) => format!("is not a known parameter; known are {}", known.join(", ")),
            };
            let (field, code) = (format!("?{name}"), ErrorCode::UnknownField);
            errors.push(FieldError { field, code, detail });
        }
        if errors.is_empty() { Ok(()) } else { Err(errors.into()) }
    }

    /// A parameter.
    pub(super) fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// A parameter that is true or false; absent is false.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.param(name) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(other) => Err(wrong_param(name, format!("must be true or false, not `{other}`"))),
        }
    }

    /// Where a page begins and how long it is.
    pub(super) fn page(&self) -> Result<(&str, u32), ApiError> {
        let limit = match self.param("limit") {
            None => PAGE_DEFAULT,
            Some(text) => match text.parse::<u32>() {
                Ok(limit) if (1..=PAGE_MAX).contains(&limit) => limit,
                Ok(_) | Err(_) => {
                    let detail = format!("must be a number from 1 to {PAGE_MAX}, not `{text}`");
                    return Err(wrong_param("limit", detail));
                }
            },
        };
        Ok((self.param("cursor").unwrap_or_default(), limit))
    }

    /// Which version of the object is meant; who changes one has to say.
    pub(super) fn precondition(&self) -> Result<Expect, ApiError> {
        self.expect.ok_or_else(|| {
            let detail = "there is neither If-Match nor If-None-Match";
            ErrorBody::new(ErrorCode::PreconditionMissing, detail)
                .with_hint(
                    "send If-Match with the ETag that you have read, If-None-Match: * for a new \
                     name, or If-Match: * whatever there is",
                )
                .into()
        })
    }

    /// Who changes something and why; a reason in the body comes before one in the query.
    pub(super) fn stamp(&self, reason: Option<&str>) -> Result<Stamp, ApiError> {
        let reason = reason.or_else(|| self.param("reason")).unwrap_or_default();
        if reason.len() > REASON_BYTES_MAX {
            let detail = format!("is {} bytes long, at most {REASON_BYTES_MAX} fit", reason.len());
            return Err(wrong_param("reason", detail));
        }
        Ok(Stamp {
            actor: self.caller.actor.clone(),
            via: if self.flag("dry_run")? { DRY_RUN } else { "api" },
            reason: reason.to_owned(),
            request_id: self.request_id.clone(),
            once: self.once.clone(),
        })
    }
}

/// A secret as it is told: not at all if nothing was made that it opens.
pub(super) fn told_once(secret: String, stamp: &Stamp) -> String {
    if stamp.via == DRY_RUN { String::new() } else { secret }
}

fn wrong_param(name: &str, detail: String) -> ApiError {
    vec![FieldError { field: format!("?{name}"), code: ErrorCode::InvalidValue, detail }].into()
}

pub(super) fn bad_request(detail: impl Into<String>) -> ApiError {
    ErrorBody::new(ErrorCode::BadRequest, detail).into()
}

fn expect(headers: &HeaderMap) -> Result<Option<Expect>, ApiError> {
    let text = |name: HeaderName| match headers.get(&name) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(_) => Err(bad_request(format!("{name} has bytes that no entity tag has"))),
        },
    };
    match (text(IF_MATCH)?, text(IF_NONE_MATCH)?) {
        (None, None) => Ok(None),
        (None, Some(tag)) if tag == "*" => Ok(Some(Expect::Absent)),
        (Some(tag), None) if tag == "*" => Ok(Some(Expect::Any)),
        (Some(tag), None) => {
            let number = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let revision = number.and_then(|number| number.parse().ok());
            revision
                .map(|revision| Some(Expect::Revision(revision)))
                .ok_or_else(|| bad_request(format!("If-Match must be \"REVISION\", not {tag}")))
        }
        (None | Some(_), Some(_)) => Err(bad_request("If-None-Match can only be *, alone")),
    }
}

/// The bytes of a body, bounded.
#[derive(Debug)]
pub(super) struct Bytes(pub(super) axum::body::Bytes);

impl FromRequest<Arc<App>> for Bytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Bytes, ApiError> {
        match axum::body::Bytes::from_request(request, app).await {
            Ok(bytes) => Ok(Bytes(bytes)),
            Err(error) => Err(too_large_or_broken(error)),
        }
    }
}

fn too_large_or_broken(error: BytesRejection) -> ApiError {
    match error.into_response().status().as_u16() {
        413 => ApiError::of(ErrorCode::BodyTooLarge),
        _ => bad_request("the body did not arrive whole"),
    }
}

/// A JSON body without duplicate keys.
#[derive(Debug)]
pub(super) struct Json(pub(super) Value);

impl FromRequest<Arc<App>> for Json {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Json, ApiError> {
        let Bytes(bytes) = Bytes::from_request(request, app).await?;
        parse(&bytes).map(Json)
    }
}

/// A JSON object that need not be there.
#[derive(Debug)]
pub(super) struct MaybeJson(pub(super) Value);

impl FromRequest<Arc<App>> for MaybeJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<MaybeJson, ApiError> {
        let Bytes(bytes) = Bytes::from_request(request, app).await?;
        if bytes.is_empty() {
            return Ok(MaybeJson(Value::Object(serde_json::Map::new())));
        }
        parse(&bytes).map(MaybeJson)
    }
}

/// The reason in a body that holds nothing else.
pub(super) fn reason_only(value: &Value) -> Result<Option<String>, ApiError> {
    let mut problems = Problems::new();
    let mut fields = Fields::of(value, "", &mut problems);
    let reason = fields.text("reason", &mut problems).map(ToOwned::to_owned);
    fields.finish(&mut problems);
    Ok(problems.none_or(Some(reason))?)
}

pub(super) fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    strict::json(bytes).map_err(|error| bad_request(format!("the body is not JSON: {error}")))
}

/// A body that need not be there and holds at most a reason.
#[derive(Debug)]
pub(super) struct ReasonOnly(pub(super) Option<String>);

impl FromRequest<Arc<App>> for ReasonOnly {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<ReasonOnly, ApiError> {
        let MaybeJson(value) = MaybeJson::from_request(request, app).await?;
        reason_only(&value).map(ReasonOnly)
    }
}

/// A part of the path, decoded.
#[derive(Debug)]
pub(super) struct Part(pub(super) String);

impl FromRequestParts<Arc<App>> for Part {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Part, ApiError> {
        let part = axum::extract::Path::<String>::from_request_parts(parts, app).await;
        match part {
            Ok(axum::extract::Path(text)) if is_printable(&text) => Ok(Part(text)),
            Ok(_) | Err(_) => Err(bad_request("the path does not read")),
        }
    }
}

impl Part {
    /// Splits `id:verb`; ids have no colon.
    pub(super) fn id_and_verb(&self) -> Result<(&str, &str), ApiError> {
        self.0.rsplit_once(':').ok_or_else(|| ApiError::of(ErrorCode::MethodNotAllowed))
    }
}
