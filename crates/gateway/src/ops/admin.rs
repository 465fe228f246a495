//! What operators ask of a running gateway, with the token: to read its file again, to show
//! what it goes by and who asks most, to log more or less.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use daemon::log::{self, LevelError};
use edge::limiter::store::BucketStore;
use serde_json::{Value, json};
use wire::error::{ErrorBody, ErrorCode};

use super::{Inside, authorized, kill_switch, problem};
use crate::reload::{Asked, Last, Reloader, Taken};
use crate::top::busiest;

/// Longest body of a call.
const BODY_BYTES_MAX: usize = 1_024;
/// Keys that are shown.
const TOP_MAX: usize = 50;

/// The routes.
pub(super) fn router<S: BucketStore>() -> Router<Inside<S>> {
    Router::new()
        .route("/reload", post(reload::<S>))
        .route("/configz", get(configz::<S>))
        .route("/log-level", get(level::<S>).put(set_level::<S>))
        .route("/top", get(top::<S>))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

async fn level<S: BucketStore>(State(inside): State<Inside<S>>, headers: HeaderMap) -> Response {
    match authorized(&headers, inside.token) {
        Ok(()) => Json(json!({ "level": log::level() })).into_response(),
        Err(refused) => problem(*refused),
    }
}

async fn set_level<S: BucketStore>(
    State(inside): State<Inside<S>>,
    headers: HeaderMap,
    body: String,
) -> Response {
    if let Err(refused) = authorized(&headers, inside.token) {
        return problem(*refused);
    }
    let level = body.trim();
    match log::set_level(level) {
        Ok(before) => {
            tracing::warn!(level, before, "the level of the logs was changed");
            Json(json!({ "level": level, "before": before })).into_response()
        }
        Err(error @ LevelError::Unreadable(_)) => {
            problem(ErrorBody::new(ErrorCode::InvalidValue, error.to_string()))
        }
        Err(error @ LevelError::NotOurs) => {
            problem(ErrorBody::new(ErrorCode::NotImplemented, error.to_string()))
        }
    }
}

async fn top<S: BucketStore>(State(inside): State<Inside<S>>, headers: HeaderMap) -> Response {
    if let Err(refused) = authorized(&headers, inside.token) {
        return problem(*refused);
    }
    let (keys, seconds) = busiest(&inside.shared.tops(), inside.shared.clock.now(), TOP_MAX);
    Json(json!({ "seconds": seconds, "keys": keys })).into_response()
}

async fn reload<S: BucketStore>(State(inside): State<Inside<S>>, headers: HeaderMap) -> Response {
    let reloader = match reloader(&inside, &headers) {
        Ok(reloader) => reloader,
        Err(refused) => return problem(*refused),
    };
    // In a task of its own: it is done whole, also when the caller is gone.
    let reloading = async move { reloader.reload(Asked::Operator).await };
    match daemon::tasks::spawn("reload", reloading).await {
        Ok(Ok(Taken { routes, kept, begun, ended })) => Json(json!({
            "routes": routes,
            "upstreams": { "kept": kept, "begun": begun, "ended": ended },
        }))
        .into_response(),
        Ok(Err(errors)) => {
            let hint = "the configuration that was in force stays";
            problem(ErrorBody::of_fields(errors).with_hint(hint))
        }
        Err(error) => problem(ErrorBody::new(ErrorCode::Internal, error.to_string())),
    }
}

async fn configz<S: BucketStore>(State(inside): State<Inside<S>>, headers: HeaderMap) -> Response {
    let reloader = match reloader(&inside, &headers) {
        Ok(reloader) => reloader,
        Err(refused) => return problem(*refused),
    };
    let last = reloader.last();
    Json(json!({
        "file": reloader.file().display().to_string(),
        "stale": last.as_ref().is_some_and(|last| !last.errors.is_empty()),
        "last_reload": last.map(|last| shown(&last, &reloader)),
        "kill_switch": kill_switch::shown(&inside.shared.kill_switch),
        "in_force": reloader.effective().await.as_deref(),
    }))
    .into_response()
}

fn shown<S: BucketStore>(last: &Last, reloader: &Reloader<S>) -> Value {
    json!({
        "asked_by": last.asked.by(),
        "seconds_ago": reloader.clock().now().since(last.at).as_secs(),
        "taken": last.errors.is_empty(),
        "errors": last.errors,
    })
}

fn reloader<S: BucketStore>(
    inside: &Inside<S>,
    headers: &HeaderMap,
) -> Result<Arc<Reloader<S>>, Box<ErrorBody>> {
    authorized(headers, inside.token)?;
    inside.reloader.clone().ok_or_else(|| {
        let detail = "this gateway was not started from a file";
        Box::new(ErrorBody::new(ErrorCode::NotImplemented, detail))
    })
}
