//! `/v1/keys`. A key is seen once, in the answer to its creation.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use wire::client::plans::NewKey;
use wire::error::{ErrorBody, ErrorCode};
use wire::key::ApiKey;
use wire::policy::{LOOKUP_HASHES_MAX, LookupRequest};
use wire::strict::Problems;

use super::ask::{Ask, Bytes, Json, Part, ReasonOnly, bad_request};
use super::error::ApiError;
use super::{App, answer};
use crate::model::api_key::{KeyMove, KeySpec};

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor", "client"])?;
    let (cursor, limit) = ask.page()?;
    answer(&app.store.keys(ask.param("client"), cursor, limit).await?, None)
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let key = app.store.key(&id).await?;
    answer(&key, Some(key.revision))
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    ask: Ask,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let mut problems = Problems::new();
    let spec = KeySpec::parse(&body, app.clock.now().us() / 1_000, &mut problems);
    let spec = problems.none_or(spec)?;
    let stamp = ask.stamp(spec.reason.as_deref())?;
    let key = ApiKey::generate(spec.env, &app.pepper).map_err(ApiError::internal)?;
    let (revision, object) = app.store.create_key(&spec, &key, &stamp).await?;
    let etag = object.revision;
    answer(&NewKey { revision, object, key: key.text }, Some(etag))
}

/// `:revoke`, `:disable`, `:enable`.
pub(super) async fn verb(
    State(app): State<Arc<App>>,
    ask: Ask,
    part: Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (id, verb) = part.id_and_verb()?;
    let step = KeyMove::named(verb).ok_or_else(|| ApiError::of(ErrorCode::NotFound))?;
    let stamp = ask.stamp(reason.as_deref())?;
    let changed = app.store.move_key(id, step, ask.expect(), &stamp).await?;
    answer(&changed, changed.object.as_ref().map(|key| key.revision))
}

/// Gateways ask for keys that they see for the first time.
pub(super) async fn lookup(
    State(app): State<Arc<App>>,
    ask: Ask,
    Bytes(bytes): Bytes,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let request: LookupRequest = serde_json::from_slice(&bytes)
        .map_err(|error| bad_request(format!("the body is no look-up: {error}")))?;
    if request.hashes.len() > LOOKUP_HASHES_MAX {
        let detail = format!("{} hashes, at most {LOOKUP_HASHES_MAX}", request.hashes.len());
        return Err(ErrorBody::new(ErrorCode::InvalidValue, detail).into());
    }
    app.metrics.lookups.inc_by(u64::try_from(request.hashes.len()).unwrap_or(u64::MAX));
    answer(&app.store.lookup(&request.hashes).await?, None)
}
