//! The routes: one table says who may call what, and every call passes it before its body is read.
//!
//! Parse → store → render, nothing else happens in a handler. A route that is not in [`ROUTES`] is
//! answered to nobody, so forgetting one closes it.

mod error; // the one map from errors to statuses
mod bootstrap; // /v1/bootstrap
mod ask; // what a call brings besides its body
mod verbs; // which line of the table a call is
mod once; // calls that may be sent twice
mod plans; // /v1/plans
mod clients; // /v1/clients
mod overrides; // /v1/clients/{id}/override
mod keys; // /v1/keys, /v1/usage
mod apply; // /v1/apply
mod rollouts; // /v1/rollouts, /v1/gates
mod killswitch; // /v1/killswitch
mod shadow; // /v1/shadow
mod gateways; // /v1/feed, /v1/snapshot, /v1/gateways, /v1/safety-limits
mod approvals; // what another person has to accept
mod tokens; // /v1/tokens
mod audit; // /v1/audit
mod backup; // /v1/backup

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use daemon::Drain;
use limiter_core::Clock;
use wire::client::plans::Role;
use wire::error::{ErrorBody, ErrorCode};
use wire::key::Pepper;

use crate::auth::Auth;
use crate::gate::Evidence;
use crate::live::LiveGateways;
use crate::metrics::{Class, Metrics};
use crate::store::PlanStore;
use error::ApiError;
pub use error::CODES;

/// Longest body, in bytes.
const BODY_BYTES_MAX: usize = 2 << 20;
/// Longest time from head to answer.
const CALL_MAX: Duration = Duration::from_secs(30);
/// Longest request id that is taken over from the caller.
const REQUEST_ID_BYTES_MAX: usize = 128;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What handlers share.
pub(crate) struct App {
    pub(crate) store: PlanStore,
    pub(crate) auth: Auth,
    pub(crate) evidence: Option<Evidence>,
    pub(crate) operations_token: Option<String>,
    pub(crate) live: LiveGateways,
    pub(crate) drain: Drain,
    pub(crate) pepper: Pepper,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where a backup is kept while it is restored.
    pub(crate) state_dir: PathBuf,
}

impl fmt::Debug for App {
    /// Without the operations token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Which roles a route lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Whoever reads: viewer, support, operator, admin, approver.
    Viewer,
    /// Whoever helps a client: support, operator, admin.
    Support,
    /// Whoever changes plans, clients, keys, rollouts: operator, admin.
    Operator,
    /// Whoever answers what another person asked for: approver, operator, admin.
    Approver,
    /// Admin alone.
    Admin,
    /// Admin, or the bootstrap token.
    AdminOrBootstrap,
    /// Gateways alone.
    Gateway,
    /// Services, and whoever reads.
    Service,
}

impl Needs {
    /// Whether `role` is let in.
    pub const fn lets_in(self, role: Role) -> bool {
        match self {
            Needs::Viewer => matches!(
                role,
                Role::Viewer | Role::Support | Role::Operator | Role::Admin | Role::Approver
            ),
            Needs::Support => matches!(role, Role::Support | Role::Operator | Role::Admin),
            Needs::Approver => matches!(role, Role::Approver | Role::Operator | Role::Admin),
            Needs::Operator => matches!(role, Role::Operator | Role::Admin),
            Needs::Admin => matches!(role, Role::Admin),
            Needs::AdminOrBootstrap => matches!(role, Role::Admin | Role::Bootstrap),
            Needs::Gateway => matches!(role, Role::Gateway),
            Needs::Service => matches!(role, Role::Service) || Needs::Viewer.lets_in(role),
        }
    }
}

/// One route and who may call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// HTTP method; a read's covers HEAD.
    pub method: &'static str,
    /// Path with its placeholders; verbs (`:revoke`) are part of the last one.
    pub path: &'static str,
    /// Who is let in.
    pub needs: Needs,
}

const fn route(method: &'static str, path: &'static str, needs: Needs) -> Route {
    Route { method, path, needs }
}

/// All routes that need a token.
pub const ROUTES: &[Route] = &[
    route("GET", "/v1/plans", Needs::Viewer),
    route("GET", "/v1/plans/{name}", Needs::Viewer),
    route("PUT", "/v1/plans/{name}", Needs::Operator),
    route("DELETE", "/v1/plans/{name}", Needs::Operator),
    route("GET", "/v1/plans/{name}/lint", Needs::Viewer),
    route("GET", "/v1/clients", Needs::Viewer),
    route("GET", "/v1/clients/{id}", Needs::Viewer),
    route("PUT", "/v1/clients/{id}", Needs::Operator),
    route("DELETE", "/v1/clients/{id}", Needs::Operator),
    route("POST", "/v1/clients/{id}:suspend", Needs::Operator),
    route("POST", "/v1/clients/{id}:resume", Needs::Operator),
    route("PUT", "/v1/clients/{id}/override", Needs::Operator),
    route("DELETE", "/v1/clients/{id}/override", Needs::Operator),
    route("GET", "/v1/clients/{id}/limit", Needs::Viewer),
    route("POST", "/v1/clients/{id}/limit:reset", Needs::Support),
    route("GET", "/v1/keys", Needs::Viewer),
    route("POST", "/v1/keys", Needs::Operator),
    route("GET", "/v1/keys/{id}", Needs::Viewer),
    route("GET", "/v1/keys/{id}/usage", Needs::Viewer),
    route("POST", "/v1/keys/{id}:rotate", Needs::Support),
    route("POST", "/v1/keys/{id}:disable", Needs::Support),
    route("POST", "/v1/keys/{id}:enable", Needs::Operator),
    route("POST", "/v1/keys/{id}:revoke", Needs::Operator),
    route("POST", "/v1/keys:import", Needs::Operator),
    route("POST", "/v1/keys:lookup", Needs::Gateway),
    route("POST", "/v1/usage", Needs::Gateway),
    route("POST", "/v1/apply", Needs::Operator),
    route("GET", "/v1/rollouts", Needs::Viewer),
    route("GET", "/v1/rollouts/{name}", Needs::Viewer),
    route("POST", "/v1/rollouts/{name}:set", Needs::Operator),
    route("POST", "/v1/rollouts/{name}:rollback", Needs::Operator),
    route("GET", "/v1/gates/{name}", Needs::Viewer),
    route("GET", "/v1/killswitch", Needs::Viewer),
    route("POST", "/v1/killswitch:set", Needs::Operator),
    route("POST", "/v1/killswitch:clear", Needs::Operator),
    route("GET", "/v1/shadow/clients/top", Needs::Viewer),
    route("GET", "/v1/shadow/requests/{id}", Needs::Viewer),
    route("GET", "/v1/shadow/usage", Needs::Viewer),
    route("GET", "/v1/gateways", Needs::Viewer),
    route("POST", "/v1/gateways/{id}:forget", Needs::Admin),
    route("POST", "/v1/feed", Needs::Gateway),
    route("GET", "/v1/snapshot", Needs::Gateway),
    route("GET", "/v1/safety-limits", Needs::Service),
    route("GET", "/v1/bootstrap", Needs::Admin),
    route("GET", "/v1/tokens", Needs::Admin),
    route("POST", "/v1/tokens", Needs::AdminOrBootstrap),
    route("POST", "/v1/tokens/{id}:revoke", Needs::Admin),
    route("GET", "/v1/approvals", Needs::Viewer),
    route("GET", "/v1/approvals/{id}", Needs::Viewer),
    route("POST", "/v1/approvals/{id}:accept", Needs::Approver),
    route("POST", "/v1/approvals/{id}:refuse", Needs::Approver),
    route("GET", "/v1/audit", Needs::Viewer),
    route("POST", "/v1/audit:verify", Needs::Viewer),
    route("GET", "/v1/backup", Needs::Admin),
    route("POST", "/v1/backup:restore", Needs::Admin),
];

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/plans", get(plans::list))
        .route("/v1/plans/{name}", get(plans::show).put(plans::put).delete(plans::delete))
        .route("/v1/plans/{name}/lint", get(plans::lint))
        .route("/v1/clients", get(clients::list))
        .route(
            "/v1/clients/{id}",
            get(clients::show).put(clients::put).delete(clients::delete).post(clients::verb),
        )
        .route("/v1/clients/{id}/override", put(overrides::put).delete(overrides::delete))
        .route("/v1/clients/{id}/limit", get(clients::inspect))
        .route("/v1/clients/{id}/limit:reset", post(clients::reset))
        .route("/v1/keys", get(keys::list).post(keys::create))
        .route("/v1/keys/{id}", get(keys::show).post(keys::verb))
        .route("/v1/keys/{id}/usage", get(keys::usage))
        .route("/v1/keys:lookup", post(keys::lookup))
        .route("/v1/keys:import", post(keys::import))
        .route("/v1/usage", post(keys::report_usage))
        .route("/v1/apply", post(apply::apply))
        .route("/v1/rollouts", get(rollouts::list))
        .route("/v1/rollouts/{name}", get(rollouts::show).post(rollouts::verb))
        .route("/v1/gates/{name}", get(rollouts::gate))
        .route("/v1/killswitch", get(killswitch::show))
        .route("/v1/killswitch:set", post(killswitch::set))
        .route("/v1/killswitch:clear", post(killswitch::clear))
        .route("/v1/shadow/clients/top", get(shadow::top))
        .route("/v1/shadow/requests/{id}", get(shadow::explain))
        .route("/v1/shadow/usage", get(shadow::usage))
        .route("/v1/gateways", get(gateways::list))
        .route("/v1/gateways/{id}", post(gateways::verb))
        .route("/v1/feed", post(gateways::feed))
        .route("/v1/snapshot", get(gateways::snapshot))
        .route("/v1/safety-limits", get(gateways::safety_limits))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{id}", get(approvals::show).post(approvals::verb))
        .route("/v1/bootstrap", get(bootstrap::page))
        .route("/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/v1/tokens/{id}", post(tokens::verb))
        .route("/v1/audit", get(audit::list))
        .route("/v1/audit:verify", post(audit::verify))
        .route("/v1/backup", get(backup::create))
        .route("/v1/backup:restore", post(backup::restore))
        .route_layer(from_fn_with_state(Arc::clone(&app), once::once))
        .route_layer(from_fn_with_state(Arc::clone(&app), let_in))
        .route("/openapi.json", get(openapi))
        .method_not_allowed_fallback(|| {
            std::future::ready(ApiError::of(ErrorCode::MethodNotAllowed))
        })
        .fallback(|| std::future::ready(ApiError::of(ErrorCode::NotFound)))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(&app), count))
        .layer(from_fn(stamp))
        .with_state(app)
}

/// What `cargo test` holds to the routes and bodies; no secret, so nobody is asked for a token.
const OPENAPI: &str = include_str!("../../../docs/openapi/plans-api.json");

async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], OPENAPI)
}

/// The id that a call is found by in logs, answers and the audit.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// Gives the call its id and its end, and makes every refusal a problem document.
async fn stamp(mut request: Request, next: Next) -> Response {
    let id = RequestId(request_id(request.headers()));
    request.extensions_mut().insert(id.clone());
    let longest = match request.uri().path() {
        "/v1/backup:restore" => backup::RESTORE_MAX,
        _ => CALL_MAX,
    };
    let answered = tokio::time::timeout(longest, next.run(request)).await;
    // Nothing of ours waits that long: it is the body that does not come.
    let mut response = answered.unwrap_or_else(|_late| {
        ask::bad_request(format!("the call did not arrive within {longest:?}")).into_response()
    });
    if response.status().is_client_error() || response.status().is_server_error() {
        response = error::problem(response, &id.0);
    }
    if let Ok(value) = HeaderValue::try_from(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let usable = |id: &&str| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
    };
    match given.filter(usable) {
        Some(id) => id.to_owned(),
        None => uuid::Uuid::now_v7().to_string(),
    }
}

async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    app.metrics.answers.get_or_create(&Class(response.status().as_u16() / 100)).inc();
    response
}

/// Lets a caller in whose role the table names for this route.
async fn let_in(
    State(app): State<Arc<App>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    path: MatchedPath,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let authorization = one_header(request.headers())?;
    let caller = app.auth.caller(authorization.as_deref(), from.ip()).await.inspect_err(|_| {
        app.metrics.token_failures.inc();
    })?;
    let method = match *request.method() {
        Method::HEAD => "GET",
        ref method => method.as_str(),
    };
    let route = verbs::line_of(ROUTES, method, path.as_str(), request.uri().path())?;
    if !route.needs.lets_in(caller.role) {
        let detail = format!("a {} may not call {method} {}", caller.role.name(), route.path);
        return Err(ErrorBody::new(ErrorCode::RoleTooSmall, detail).into());
    }
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// The one `Authorization` header; two of them are one too many.
fn one_header(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let first = all.next().and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    if all.next().is_some() {
        let detail = "there are two Authorization headers";
        return Err(ErrorBody::new(ErrorCode::BadRequest, detail).into());
    }
    Ok(first)
}

/// An answer with a secret: it is told once and kept nowhere.
fn secret(mut response: Response) -> Response {
    response.extensions_mut().insert(once::NeverKept);
    response
}

/// A JSON answer with an entity tag, if the object has a revision.
fn answer(body: &impl serde::Serialize, revision: Option<u64>) -> Result<Response, ApiError> {
    let text = axum::body::Bytes::from(serde_json::to_vec(body).map_err(ApiError::internal)?);
    let mut response = ([(CONTENT_TYPE, "application/json")], text.clone()).into_response();
    response.extensions_mut().insert(once::Told(text));
    if let Some(revision) = revision
        && let Ok(tag) = HeaderValue::try_from(format!("\"{revision}\""))
    {
        response.headers_mut().insert(axum::http::header::ETAG, tag);
    }
    Ok(response)
}
