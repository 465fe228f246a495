//! The API: batches in, reports out. Parses, asks, renders; decides nothing.
//!
//! | call | token | answer |
//! |---|---|---|
//! | `POST /v1/batches` | gateway | acknowledged after it is durable |
//! | `POST /v1/gate` | control | the raw number of the rollout in the body |
//! | `GET /v1/clients/top?by=&n=&window_minutes=` | control | top clients |
//! | `GET /v1/requests/{id}` | control | one request explained |
//! | `GET /v1/usage?client=&window_minutes=` | control | exact minutes of one client |
//! | `GET /livez /readyz /metrics /buildz` | none | operations |

pub(crate) mod auth;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use daemon::metrics::Metrics;
use daemon::ops::{self, Readiness};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Semaphore;
use wire::batch::{Batch, BatchAck, Explanation};
use wire::client::shadow::{
    GateRequest, TOP_MAX, TopBy, TopClients, Usage, WINDOW_MINUTES_DEFAULT, WINDOW_MINUTES_MAX,
};
use wire::error::{ErrorBody, ErrorCode, FieldError, PROBLEM_JSON};
use wire::gate::GateReport;

use self::auth::{Purpose, Tokens};
use crate::batch::{self, BATCH_BYTES_MAX};
use crate::evidence::{AskError, Evidence};
use crate::keeper::TakeError;
use crate::store::EvidenceStore;

/// Largest body of a question in bytes: rules for 100,000 clients fit.
const QUESTION_BYTES_MAX: usize = 16 << 20;
/// Bodies of batches in memory at once; further callers wait for their turn.
const BODIES_MAX: usize = 8;
/// How long a caller waits for its turn before it is told to come again.
const TURN_WAIT: Duration = Duration::from_secs(5);
/// How long a body may take to arrive.
const BODY_WAIT: Duration = Duration::from_secs(30);
/// Clients in a list when the caller does not say.
const TOP_DEFAULT: u32 = 10;

struct Api<S> {
    evidence: Evidence<S>,
    tokens: Tokens,
    turns: Arc<Semaphore>,
}

impl<S> Clone for Api<S> {
    fn clone(&self) -> Api<S> {
        Api {
            evidence: self.evidence.clone(),
            tokens: self.tokens.clone(),
            turns: Arc::clone(&self.turns),
        }
    }
}

/// All routes.
pub(crate) fn router<S: EvidenceStore>(
    evidence: &Evidence<S>,
    tokens: Tokens,
    metrics: Metrics,
) -> Router {
    let api =
        Api { evidence: evidence.clone(), tokens, turns: Arc::new(Semaphore::new(BODIES_MAX)) };
    let asked = evidence.clone();
    let ready = move || match (asked.is_ready(), asked.unwritable()) {
        (true, None) => Readiness::yes(json!("evidence is read and written")),
        (_, Some(why)) => Readiness::no(json!(format!("writes fail: {why}"))),
        (false, None) => Readiness::no(json!("the database does not answer")),
    };
    let batches = post(post_batch::<S>).layer(DefaultBodyLimit::max(BATCH_BYTES_MAX));
    let gate = post(ask_gate::<S>).layer(DefaultBodyLimit::max(QUESTION_BYTES_MAX));
    Router::new()
        .route("/v1/batches", batches)
        .route("/v1/gate", gate)
        .route("/v1/clients/top", get(top_clients::<S>))
        .route("/v1/requests/{request_id}", get(explain::<S>))
        .route("/v1/usage", get(usage::<S>))
        .fallback(async || Problem::new(ErrorCode::NotFound, "no such path"))
        .method_not_allowed_fallback(async || {
            Problem::new(ErrorCode::MethodNotAllowed, "this path has another method")
        })
        .with_state(api)
        .merge(ops::router("weir-shadow-compare", metrics, ready))
}

/// A refusal.
struct Problem(Box<ErrorBody>);

impl Problem {
    fn new(code: ErrorCode, detail: impl Into<String>) -> Problem {
        Problem(Box::new(ErrorBody::new(code, detail)))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&*self.0)).into_response();
        let media_type = HeaderValue::from_static(PROBLEM_JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, media_type);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<ErrorBody> for Problem {
    fn from(body: ErrorBody) -> Problem {
        Problem(Box::new(body))
    }
}

impl From<Box<ErrorBody>> for Problem {
    fn from(body: Box<ErrorBody>) -> Problem {
        Problem(body)
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Problem {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        tracing::warn!(%error, source, "a question has no answer now");
        Problem::new(ErrorCode::EvidenceUnavailable, "the evidence cannot be read now")
    }
}

impl From<TakeError> for Problem {
    fn from(error: TakeError) -> Problem {
        match error {
            TakeError::Contradiction(what) => {
                Problem::new(ErrorCode::InvalidValue, what.to_string())
            }
            TakeError::Unavailable => {
                Problem::new(ErrorCode::DatabaseUnavailable, error.to_string())
            }
        }
    }
}

type Answer<T> = Result<Json<T>, Problem>;
type Params = Result<Query<BTreeMap<String, String>>, QueryRejection>;

async fn post_batch<S: EvidenceStore>(
    State(api): State<Api<S>>,
    headers: HeaderMap,
    request: Request,
) -> Answer<BatchAck> {
    api.tokens.admit(&headers, Purpose::Report)?;
    let turn = tokio::time::timeout(TURN_WAIT, api.turns.acquire()).await;
    let Ok(Ok(_turn)) = turn else {
        return Err(Problem::new(ErrorCode::Overloaded, "too many batches at once"));
    };
    let bytes = body(request).await.inspect_err(|_why| api.evidence.refused())?;
    let batch: Batch = parsed(&bytes).inspect_err(|_why| api.evidence.refused())?;
    if let Err(mistakes) = batch::check(&batch) {
        api.evidence.refused();
        return Err(ErrorBody::of_fields(mistakes).into());
    }
    Ok(Json(api.evidence.take(batch, bytes).await?))
}

async fn ask_gate<S: EvidenceStore>(
    State(api): State<Api<S>>,
    headers: HeaderMap,
    request: Request,
) -> Answer<GateReport> {
    api.tokens.admit(&headers, Purpose::Read)?;
    let question: GateRequest = parsed(&body(request).await?)?;
    Ok(Json(api.evidence.gate(&question.rollout).await?))
}

async fn top_clients<S: EvidenceStore>(
    State(api): State<Api<S>>,
    headers: HeaderMap,
    params: Params,
) -> Answer<TopClients> {
    api.tokens.admit(&headers, Purpose::Read)?;
    let mut params = Asked::new(params)?;
    let by = params.choice("by", TopBy::named, &TopBy::ALL.map(TopBy::name));
    let n = params.number("n", TOP_DEFAULT, TOP_MAX);
    let window = params.number("window_minutes", WINDOW_MINUTES_DEFAULT, WINDOW_MINUTES_MAX);
    params.none_or_err()?;
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    let items = api.evidence.top(by.unwrap_or_default(), n, window.into()).await?;
    Ok(Json(TopClients { items }))
}

async fn explain<S: EvidenceStore>(
    State(api): State<Api<S>>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
) -> Answer<Explanation> {
    api.tokens.admit(&headers, Purpose::Read)?;
    let Path(request_id) =
        path.map_err(|wrong| Problem::new(ErrorCode::BadRequest, wrong.body_text()))?;
    let explained = api.evidence.explain(&request_id);
    explained.map(Json).ok_or_else(|| {
        let none = format!("no recent record of request {request_id}");
        let hint = "records are kept while a rollout is active, in memory, of sampled clients only";
        ErrorBody::new(ErrorCode::NotFound, none).with_hint(hint).into()
    })
}

async fn usage<S: EvidenceStore>(
    State(api): State<Api<S>>,
    headers: HeaderMap,
    params: Params,
) -> Answer<Usage> {
    api.tokens.admit(&headers, Purpose::Read)?;
    let mut params = Asked::new(params)?;
    let client = params.text("client");
    let window = params.number("window_minutes", WINDOW_MINUTES_DEFAULT, WINDOW_MINUTES_MAX);
    params.none_or_err()?;
    Ok(Json(api.evidence.usage(&client, window.into()).await?))
}

/// Reads a whole body, within the route's bound.
async fn body(request: Request<Body>) -> Result<Vec<u8>, Problem> {
    let read = axum::body::Bytes::from_request(request, &());
    match tokio::time::timeout(BODY_WAIT, read).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(refused)) if refused.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Err(Problem::new(ErrorCode::BodyTooLarge, "the body is longer than this call allows"))
        }
        Ok(Err(refused)) => Err(Problem::new(ErrorCode::BadRequest, refused.body_text())),
        Err(_late) => Err(Problem::new(ErrorCode::RequestTimeout, "the body did not arrive")),
    }
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes)
        .map_err(|error| Problem::new(ErrorCode::BadRequest, format!("the body: {error}")))
}

/// Query parameters, with every mistake at once.
struct Asked {
    params: BTreeMap<String, String>,
    mistakes: Vec<FieldError>,
}

impl Asked {
    fn new(params: Params) -> Result<Asked, Problem> {
        match params {
            Ok(Query(params)) => Ok(Asked { params, mistakes: Vec::new() }),
            Err(error) => Err(Problem::new(ErrorCode::BadRequest, error.body_text())),
        }
    }

    fn wrong(&mut self, field: &str, code: ErrorCode, detail: String) {
        self.mistakes.push(FieldError { field: field.to_owned(), code, detail });
    }

    fn number(&mut self, name: &str, default: u32, max: u32) -> u32 {
        let Some(text) = self.params.remove(name) else { return default };
        match text.parse() {
            Ok(number) if 0 < number && number <= max => number,
            Ok(_) | Err(_) => {
                let detail = format!("1 to {max}, not `{text}`");
                self.wrong(name, ErrorCode::InvalidValue, detail);
                default
            }
        }
    }

    fn choice<T>(
        &mut self,
        name: &str,
        named: impl Fn(&str) -> Option<T>,
        all: &[&str],
    ) -> Option<T> {
        let text = self.params.remove(name)?;
        let found = named(&text);
        if found.is_none() {
            let detail = format!("one of {}, not `{text}`", all.join(", "));
            self.wrong(name, ErrorCode::InvalidValue, detail);
        }
        found
    }

    fn text(&mut self, name: &str) -> String {
        let text = self.params.remove(name).unwrap_or_default();
        if text.is_empty() || text.contains('\0') {
            self.wrong(name, ErrorCode::InvalidValue, "is needed".to_owned());
        }
        text
    }

    fn none_or_err(mut self) -> Result<(), Problem> {
        let unknown: Vec<_> = std::mem::take(&mut self.params).into_keys().collect();
        for name in unknown {
            self.wrong(
                &name,
                ErrorCode::UnknownField,
                "is not a parameter of this call".to_owned(),
            );
        }
        if self.mistakes.is_empty() {
            return Ok(());
        }
        Err(ErrorBody::of_fields(self.mistakes).into())
    }
}
