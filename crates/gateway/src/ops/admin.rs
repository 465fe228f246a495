//! What operators ask of a running gateway, with the token: to read its file again, and to show
//! what it goes by.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use edge::limiter::store::BucketStore;
use serde_json::{Value, json};
use wire::error::{ErrorBody, ErrorCode};

use super::{Inside, authorized, problem};
use crate::reload::{Asked, Last, Reloader, Taken};

/// The routes.
pub(super) fn router<S: BucketStore>() -> Router<Inside<S>> {
    Router::new().route("/reload", post(reload::<S>)).route("/configz", get(configz::<S>))
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
