//! The operations port: what `daemon` gives every service, and a look into one client's bucket.
//!
//! Nothing here is reachable through the traffic port, and nothing here is limited. Whether the
//! gateway is ready depends on having a policy, not on the bucket store: without a store it still
//! answers, by each plan's failure policy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use daemon::metrics::Metrics;
use daemon::ops::Readiness;
use daemon::{Context, Drain, Lent};
use edge::limiter::store::BucketStore;
use edge::limiter::{Level, Limit, Reply};
use edge::{InspectError, Inspection};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wire::error::{ErrorBody, ErrorCode, PROBLEM_JSON};
use wire::key::{KeyHash, token_hash};
use wire::policy::{ClientState, ClientValue};

use crate::reload::Reloader;
use crate::server::Shared;

mod admin; // what operators ask of a running gateway
mod kill_switch; // sets, shows and clears it

/// Longest wait for open requests at the end.
const END_MAX: Duration = Duration::from_secs(1);

/// All routes of the port.
pub(crate) fn router<S: BucketStore>(
    shared: Arc<Shared<S>>,
    token: Option<KeyHash>,
    metrics: Metrics,
    drain: Drain,
    reloader: Option<Arc<Reloader<S>>>,
) -> Router {
    let (asked, reloads) = (Arc::clone(&shared.edge), reloader.clone());
    let kill_switch = Arc::clone(&shared.kill_switch);
    let ready = move || {
        let last = reloads.as_ref().and_then(|reloader| reloader.last());
        let detail = json!({
            "policy": asked.is_ready(),
            "revision": asked.revision(),
            "policy_age_seconds": asked.policy_age().map(|age| age.as_secs()),
            "state_unsaved": asked.metrics().state_is_unsaved(),
            "draining": drain.is_started(),
            "kill_switch": kill_switch.is_set(),
            "configuration_stale": last.is_some_and(|last| !last.errors.is_empty()),
        });
        if asked.is_ready() && !drain.is_started() {
            Readiness::yes(detail)
        } else {
            Readiness::no(detail)
        }
    };
    let inside = Inside { shared, token, reloader };
    Router::new()
        .route("/limits/{client}", get(inspect::<S>))
        .merge(admin::router())
        .merge(kill_switch::router())
        .with_state(inside)
        .merge(daemon::ops::router("weir-gateway", metrics, ready))
}

/// Serves the port beyond the gateway's drain, until its own, or until a successor answers there;
/// that is when `leave` is called.
pub(crate) fn serve(
    port: Arc<Lent>,
    router: Router,
    context: &Context,
    leave: impl FnOnce() + Send + 'static,
) -> io::Result<Drain> {
    let listener = TcpListener::from_std(port.listener()?)?;
    let drain = Drain::new();
    let ending = drain.clone();
    context.tasks.spawn("operations port", async move {
        let served = daemon::ops::serve(listener, router, &ending, END_MAX).await;
        if let Err(error) = served {
            tracing::error!(%error, "the operations port ended");
        }
    });
    let (gateway, left) = (context.drain.clone(), drain.clone());
    context.tasks.spawn("operations port, left", async move {
        gateway.started().await;
        if port.is_handed_over() {
            left.start();
            leave();
        }
    });
    Ok(drain)
}

struct Inside<S> {
    shared: Arc<Shared<S>>,
    token: Option<KeyHash>,
    reloader: Option<Arc<Reloader<S>>>,
}

impl<S> Clone for Inside<S> {
    fn clone(&self) -> Inside<S> {
        let (shared, reloader) = (Arc::clone(&self.shared), self.reloader.clone());
        Inside { shared, token: self.token, reloader }
    }
}

/// What a caller may already know. With a plan the client need not have been seen here.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    key: Option<String>,
    plan: Option<String>,
    #[serde(default)]
    revision: u64,
    #[serde(default)]
    reset_revision: u64,
    /// Its own limits, as JSON.
    #[serde(rename = "override")]
    overridden: Option<String>,
}

async fn inspect<S: BucketStore>(
    State(inside): State<Inside<S>>,
    Path(client): Path<String>,
    Query(known): Query<Known>,
    headers: HeaderMap,
) -> Response {
    if let Err(refused) = authorized(&headers, inside.token) {
        return problem(*refused);
    }
    let key = known.key.as_deref();
    let inspected = match known.plan {
        None => inside.shared.edge.inspect(&client, key).await,
        Some(plan) => {
            let Ok(overridden) = known.overridden.as_deref().map(serde_json::from_str).transpose()
            else {
                let detail = "?override= is no object with limits of a client's own";
                return problem(ErrorBody::new(ErrorCode::BadRequest, detail));
            };
            let value = ClientValue {
                id: client,
                plan,
                state: ClientState::Active,
                overridden,
                reset_revision: known.reset_revision,
                revision: known.revision,
            };
            inside.shared.edge.inspect_as(&value, key).await
        }
    };
    match inspected {
        Ok(inspection) => Json(shown(&inspection)).into_response(),
        Err(error) => problem(refused(&error)),
    }
}

fn authorized(headers: &HeaderMap, token: Option<KeyHash>) -> Result<(), Box<ErrorBody>> {
    let Some(token) = token else {
        let detail = "this gateway has no operations token, so this is closed";
        let body = ErrorBody::new(ErrorCode::TokenMissing, detail);
        return Err(Box::new(body.with_hint("set token_file under [operations]")));
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(given) = given.and_then(|value| value.strip_prefix("Bearer ")) else {
        let detail = "the operations token is needed, as a bearer token";
        return Err(Box::new(ErrorBody::new(ErrorCode::TokenMissing, detail)));
    };
    // Hashes are compared in constant time.
    if token_hash(given.trim()) == token {
        Ok(())
    } else {
        let detail = "the operations token is another one";
        Err(Box::new(ErrorBody::new(ErrorCode::TokenInvalid, detail)))
    }
}

fn refused(error: &InspectError) -> ErrorBody {
    let code = match error {
        InspectError::ClientUnknown => ErrorCode::NotFound,
        InspectError::PlanInvalid(_) => ErrorCode::PlanInvalid,
        InspectError::KeyNeeded => ErrorCode::BadRequest,
        InspectError::Store(_) => ErrorCode::LimiterClosed,
    };
    let detail = match error {
        InspectError::Store(source) => format!("{error}: {source}"),
        InspectError::ClientUnknown | InspectError::PlanInvalid(_) | InspectError::KeyNeeded => {
            error.to_string()
        }
    };
    ErrorBody::new(code, detail)
}

fn problem(body: ErrorBody) -> Response {
    let status = StatusCode::from_u16(body.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], Json(body)).into_response()
}

fn shown(inspection: &Inspection) -> Value {
    let bucket = inspection.bucket.as_ref();
    json!({
        "client": inspection.client.id,
        "plan": inspection.plan.name,
        "plan_revision": inspection.plan.revision,
        "phase": inspection.phase,
        "unlimited": bucket.is_none(),
        "remaining": bucket.map(|reply| reply.levels.available(&reply.plan.limits)),
        "burst": bucket.map(|reply| level(reply.levels.burst, reply.plan.limits.burst)),
        "sustained": bucket.and_then(sustained),
        "outstanding": bucket.map(|reply| reply.outstanding),
        "at_ms": bucket.map(|reply| reply.at.us() / 1_000),
    })
}

fn sustained(reply: &Reply) -> Option<Value> {
    reply.plan.limits.sustained.map(|limit| level(reply.levels.sustained, limit))
}

fn level(level: Level, limit: Limit) -> Value {
    let full_in = level.time_until(limit.capacity().get(), limit);
    json!({
        "tokens": level.tokens,
        "capacity": limit.capacity().get(),
        "refill": limit.refill().to_string(),
        "full_in_ms": full_in.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
    })
}
