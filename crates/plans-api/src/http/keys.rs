//! `/v1/keys` and `/v1/usage`. A secret is seen once, in the answer that makes it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::Value;
use wire::client::plans::{Imported, NewKey};
use wire::error::{ErrorBody, ErrorCode};
use wire::key::{ApiKey, KeyHash};
use wire::policy::{LOOKUP_HASHES_MAX, LookupRequest};
use wire::strict::Problems;
use wire::usage::{USAGE_SECRETS_MAX, UsageReport};

use super::ask::{Ask, Bytes, Json, MaybeJson, Part, bad_request, reason_only, told_once};
use super::error::ApiError;
use super::{App, answer, secret};
use crate::model::api_key::{KeyMove, KeySpec, parse_import, parse_rotation};
use crate::store::Import;

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
    let key = told_once(key.text, &stamp);
    answer(&NewKey { revision, object, key, previous: None }, Some(etag)).map(secret)
}

/// `:rotate`, `:revoke`, `:disable`, `:enable`.
pub(super) async fn verb(
    State(app): State<Arc<App>>,
    ask: Ask,
    part: Part,
    MaybeJson(body): MaybeJson,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (id, verb) = part.id_and_verb()?;
    if verb == "rotate" {
        return rotate(&app, &ask, id, &body).await;
    }
    let step = KeyMove::named(verb).ok_or_else(|| ApiError::of(ErrorCode::NotFound))?;
    let reason = reason_only(&body)?;
    let (expect, stamp) = (ask.precondition()?, ask.stamp(reason.as_deref())?);
    let changed = app.store.move_key(id, step, expect, &stamp).await?;
    answer(&changed, changed.object.as_ref().map(|key| key.revision))
}

async fn rotate(app: &App, ask: &Ask, id: &str, body: &Value) -> Result<Response, ApiError> {
    let mut problems = Problems::new();
    let (overlap_ms, reason) = parse_rotation(body, &mut problems);
    problems.none_or(Some(()))?;
    let (expect, stamp) = (ask.precondition()?, ask.stamp(reason.as_deref())?);
    let env = app.store.key(id).await?.env;
    let new = ApiKey::generate_for(id.to_owned(), env, &app.pepper).map_err(ApiError::internal)?;
    let (changed, previous) = app.store.rotate_key(&new, overlap_ms, expect, &stamp).await?;
    let Some(object) = changed.object else { return Err(ApiError::of(ErrorCode::Internal)) };
    let (revision, etag) = (changed.revision, object.revision);
    let key = told_once(new.text, &stamp);
    answer(&NewKey { revision, object, key, previous }, Some(etag)).map(secret)
}

/// Keys that were made elsewhere, by their SHA-256.
pub(super) async fn import(
    State(app): State<Arc<App>>,
    ask: Ask,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let mut problems = Problems::new();
    let (specs, reason) = parse_import(&body, app.clock.now().us() / 1_000, &mut problems);
    let specs = problems.none_or(Some(specs))?;
    let stamp = ask.stamp(reason.as_deref())?;
    let mut imports = Vec::with_capacity(specs.len());
    for spec in specs {
        let hash = KeyHash::of_imported(&spec.sha256, &app.pepper);
        imports.push(Import { id: ApiKey::new_id().map_err(ApiError::internal)?, hash, spec });
    }
    let (revision, items) = app.store.import_keys(&imports, &stamp).await?;
    answer(&Imported { revision, items }, None)
}

/// When a key's secrets were last used.
pub(super) async fn usage(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    answer(&app.store.key_usage(&id).await?, None)
}

/// Gateways tell when they last saw keys.
pub(super) async fn report_usage(
    State(app): State<Arc<App>>,
    ask: Ask,
    Bytes(bytes): Bytes,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let report: UsageReport = serde_json::from_slice(&bytes)
        .map_err(|error| bad_request(format!("the body is no report of uses: {error}")))?;
    if report.secrets.len() > USAGE_SECRETS_MAX {
        let detail = format!("{} secrets, at most {USAGE_SECRETS_MAX}", report.secrets.len());
        return Err(ErrorBody::new(ErrorCode::InvalidValue, detail).into());
    }
    app.store.saw_used(&report).await?;
    answer(&serde_json::json!({}), None)
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
