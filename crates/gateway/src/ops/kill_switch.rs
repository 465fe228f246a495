//! `/killswitch`: everybody into shadow at once, whatever else is broken; and back, by its id.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get};
use edge::limiter::store::BucketStore;
use serde::Deserialize;
use serde_json::{Value, json};
use wire::error::{ErrorBody, ErrorCode};
use wire::name::Name;

use super::{Inside, authorized, problem};
use crate::kill_switch::{KillSwitch, Latch, NotCleared};

/// Longest body of a call.
const BODY_BYTES_MAX: usize = 1_024;
/// Longest wait for the disk before the caller is told that it is set, but not yet written down.
const KEEP_MAX: Duration = Duration::from_secs(1);

/// The routes.
pub(super) fn router<S: BucketStore>() -> Router<Inside<S>> {
    Router::new()
        .route("/killswitch", get(state::<S>).post(set::<S>))
        .route("/killswitch/{id}", delete(clear::<S>))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// What may be asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    id: Option<String>,
}

impl Wanted {
    fn id(body: &[u8]) -> Result<Option<Name>, String> {
        if body.trim_ascii().is_empty() {
            return Ok(None);
        }
        let wanted: Wanted = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        wanted.id.map(|id| Name::new(&id).map_err(|error| error.to_string())).transpose()
    }
}

async fn state<S: BucketStore>(State(inside): State<Inside<S>>, headers: HeaderMap) -> Response {
    match authorized(&headers, inside.token) {
        Ok(()) => Json(shown(&inside.shared.kill_switch)).into_response(),
        Err(refused) => problem(*refused),
    }
}

async fn set<S: BucketStore>(
    State(inside): State<Inside<S>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(refused) = authorized(&headers, inside.token) {
        return problem(*refused);
    }
    let id = match Wanted::id(&body) {
        Ok(id) => id,
        Err(error) => {
            let body = ErrorBody::new(ErrorCode::InvalidValue, error);
            return problem(body.with_hint("send no body, or {\"id\": \"incident-7\"}"));
        }
    };
    let kill_switch = Arc::clone(&inside.shared.kill_switch);
    let set = kill_switch.set(id);
    // In force. What follows is for the next start.
    let keeping = Arc::clone(&kill_switch);
    let kept = tokio::task::spawn_blocking(move || keeping.look());
    if tokio::time::timeout(KEEP_MAX, kept).await.is_err() {
        tracing::warn!("the kill switch is set, but the disk takes long to write that down");
    }
    let now = kill_switch.state().filter(|now| now.id == set.id).unwrap_or(set);
    Json(told(&now, kill_switch.has_folder())).into_response()
}

async fn clear<S: BucketStore>(
    State(inside): State<Inside<S>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = authorized(&headers, inside.token) {
        return problem(*refused);
    }
    let kill_switch = Arc::clone(&inside.shared.kill_switch);
    let wanted = id.clone();
    // Done whole, also when the caller is gone.
    match tokio::task::spawn_blocking(move || kill_switch.clear(&wanted)).await {
        Ok(Ok(())) => Json(json!({ "set": false, "cleared": id })).into_response(),
        Ok(Err(error)) => problem(refused(&error)),
        Err(error) => problem(ErrorBody::new(ErrorCode::Internal, error.to_string())),
    }
}

fn refused(error: &NotCleared) -> ErrorBody {
    match error {
        NotCleared::NotSet => ErrorBody::new(ErrorCode::NotFound, error.to_string()),
        NotCleared::OtherId => ErrorBody::new(ErrorCode::NotFound, error.to_string())
            .with_hint("GET /killswitch tells under which"),
        NotCleared::Disk(source) => {
            ErrorBody::new(ErrorCode::Internal, format!("{error}: {source}"))
        }
    }
}

/// What is set, if anything is.
pub(super) fn shown(kill_switch: &KillSwitch) -> Value {
    match kill_switch.state() {
        Some(latch) => told(&latch, kill_switch.has_folder()),
        None => json!({ "set": false }),
    }
}

fn told(latch: &Latch, has_folder: bool) -> Value {
    let why_not = match (latch.kept, has_folder) {
        (true, _) => None,
        (false, true) => Some("the state folder could not be written; it is tried again"),
        (false, false) => Some("this gateway has no state_dir"),
    };
    json!({
        "set": true,
        "id": latch.id.as_str(),
        "set_at": latch.set_at,
        "by": if latch.told { "control plane" } else { "this gateway" },
        "survives_restart": latch.kept,
        "why_not": why_not,
    })
}
