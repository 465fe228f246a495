//! `Idempotency-Key`: a call by POST that may be sent again. The first one counts; each repetition
//! within a day gets the first one's answer, and never does anything.
//!
//! What was done is noted in its own transaction (`store::once`), so this layer only compares and
//! tells. Answers with a secret are not kept: whoever repeats such a call is told what it made.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use wire::client::plans::Role;
use wire::error::{ErrorBody, ErrorCode};
use wire::key::KeyHash;

use super::App;
use super::ask::{Bytes, bad_request};
use super::error::{ApiError, Repeated};
use crate::auth::Caller;
use crate::model::audit::Once;
use crate::store::Done;

const NAME: HeaderName = HeaderName::from_static("idempotency-key");
/// Longest name of a call, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Longest answer that is kept, in bytes; a longer one is not told again.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A call whose body is not held in memory, so that it cannot be compared. Sent twice it is done
/// twice, to the same end.
const RESTORE: &str = "/v1/backup:restore";

/// Marks an answer that is told once.
#[derive(Debug, Clone, Copy)]
pub(super) struct NeverKept;

/// What an answer says, beside its body.
#[derive(Debug, Clone)]
pub(super) struct Told(pub(super) axum::body::Bytes);

/// Answers a repeated call; passes any other on.
pub(super) async fn once(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let Some(name) = named(&request)? else { return Ok(next.run(request).await) };
    if request.uri().path() == RESTORE {
        return Ok(next.run(request).await);
    }
    let Some(caller) = request.extensions().get::<Caller>().cloned() else {
        return Err(ApiError::of(ErrorCode::TokenMissing));
    };
    if matches!(caller.role, Role::Gateway | Role::Service) {
        return Ok(next.run(request).await);
    }
    let (mut parts, body) = request.into_parts();
    let Bytes(body) = Bytes::from_request(Request::from_parts(parts.clone(), body), &app).await?;
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let mut hasher = blake3::Hasher::new();
    hasher.update(target.as_bytes()).update(b"\0").update(&body);
    let request_hash = KeyHash::from_bytes(*hasher.finalize().as_bytes());
    let once = Once { token_id: caller.token_id, name, request_hash };
    if let Some(done) = app.store.done(&once).await? {
        return Ok(again(&once, done));
    }
    parts.extensions.insert(once.clone());
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    if response.extensions().get::<Repeated>().is_some() {
        // Another one was done between the look and the lock.
        return match app.store.done(&once).await? {
            Some(done) => Ok(again(&once, done)),
            None => Ok(response),
        };
    }
    if let Some(answer) = to_keep(&response) {
        keep(&app, &once, response.status(), &answer).await;
    }
    Ok(response)
}

fn named(request: &Request) -> Result<Option<String>, ApiError> {
    if request.method() != Method::POST {
        return Ok(None);
    }
    let mut all = request.headers().get_all(NAME).iter();
    let Some(first) = all.next() else { return Ok(None) };
    match first.to_str() {
        Ok(name)
            if all.next().is_none()
                && (1..=NAME_BYTES_MAX).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            Ok(Some(name.to_owned()))
        }
        Ok(_) | Err(_) => Err(bad_request(format!(
            "{NAME} must be one field of 1 to {NAME_BYTES_MAX} visible ASCII characters"
        ))),
    }
}

/// The answer to a call that was done before.
fn again(once: &Once, done: Done) -> Response {
    if done.request_hash != once.request_hash {
        let detail = "this Idempotency-Key was used for another call in the last 24 hours";
        let body = ErrorBody::new(ErrorCode::IdempotencyMismatch, detail);
        return ApiError::from(body.with_hint("take a new one for a new call")).into_response();
    }
    if let Some((status, body)) = done.answer {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        return (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body)
            .into_response();
    }
    let (kind, id) = (done.kind, done.object);
    let detail = match kind.as_str() {
        "" => "the call was done before, and its answer is not kept".to_owned(),
        _ => format!(
            "the call was done before, for the {kind} `{id}`; a secret is shown once and not kept"
        ),
    };
    let body = ErrorBody::new(ErrorCode::AlreadyCreated, detail);
    let object = json!({ "kind": kind, "id": id });
    ApiError::from(ErrorBody { object: Some(object), ..body }).into_response()
}

/// What of an answer is kept for repetitions.
fn to_keep(response: &Response) -> Option<axum::body::Bytes> {
    let told = response.extensions().get::<Told>().filter(|_| response.status().is_success());
    let secret = response.extensions().get::<NeverKept>().is_some();
    let Told(bytes) = told.filter(|_| !secret)?;
    (bytes.len() <= ANSWER_BYTES_MAX).then(|| bytes.clone())
}

async fn keep(app: &App, once: &Once, status: StatusCode, answer: &[u8]) {
    if let Ok(text) = std::str::from_utf8(answer)
        && let Err(error) = app.store.answered(once, status.as_u16(), text).await
    {
        // It is done all the same, and a repetition is told so.
        tracing::warn!(%error, "an answer is not kept");
    }
}
