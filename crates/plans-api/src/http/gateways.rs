//! What gateways and services ask: `/v1/feed`, `/v1/snapshot`, `/v1/safety-limits`; and what people
//! ask about gateways.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use wire::error::{ErrorBody, ErrorCode};
use wire::name::Name;
use wire::policy::{FEED_WAIT_MS_MAX, FeedAnswer, FeedRequest};
use wire::strict::is_printable;

use super::ask::{Ask, Bytes, Part, ReasonOnly, bad_request};
use super::error::ApiError;
use super::{App, answer};
use crate::store::{After, LIVE_MS};

/// After the first change that a call has waited for, so much more may come into its answer.
const GATHER: Duration = Duration::from_millis(40);
/// Longest text of a gateway about itself, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Most routes and most refused objects that are kept of a gateway.
const LISTED_MAX: usize = 1_000;

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor"])?;
    let (cursor, limit) = ask.page()?;
    answer(&app.store.gateways(cursor, limit).await?, None)
}

/// `:forget`.
pub(super) async fn verb(
    State(app): State<Arc<App>>,
    ask: Ask,
    part: Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    match part.id_and_verb()? {
        (id, "forget") => {
            let stamp = ask.stamp(reason.as_deref())?;
            answer(&app.store.forget_gateway(id, &stamp).await?, None)
        }
        _ => Err(ApiError::of(ErrorCode::NotFound)),
    }
}

/// Answers at once if there is something new, else when there is, else after the wait.
pub(super) async fn feed(
    State(app): State<Arc<App>>,
    ask: Ask,
    Bytes(bytes): Bytes,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let mut request: FeedRequest = serde_json::from_slice(&bytes)
        .map_err(|error| bad_request(format!("the body is no feed request: {error}")))?;
    check(&mut request)?;
    app.metrics.polls.inc();
    app.store.saw_gateway(&request).await?;

    let wait = Duration::from_millis(request.wait_ms.min(FEED_WAIT_MS_MAX));
    let over = tokio::time::sleep(wait);
    let draining = app.drain.started();
    tokio::pin!(over, draining);
    let mut bell = app.store.bell();
    loop {
        bell.borrow_and_update();
        let news = app.store.changes_after(&request.history, request.after).await?;
        if !news.changes.is_empty() {
            return told(&app, news);
        }
        tokio::select! {
            changed = bell.changed() => {
                if changed.is_err() {
                    return told(&app, news);
                }
                tokio::time::sleep(GATHER).await;
            }
            () = &mut over => return told(&app, news),
            () = &mut draining => return told(&app, news),
        }
    }
}

fn told(app: &App, news: After) -> Result<Response, ApiError> {
    let live_gateways = app.live.observe(app.clock.now().us() / 1_000, news.live);
    let After { history, head, changes, live: _ } = news;
    answer(&FeedAnswer { history, head, live_gateways, changes }, None)
}

fn check(request: &mut FeedRequest) -> Result<(), ApiError> {
    let wrong = |detail: String| ErrorBody::new(ErrorCode::InvalidValue, detail);
    Name::new(&request.gateway).map_err(|error| wrong(format!("gateway: {error}")))?;
    let texts = [("boot", &request.boot), ("build", &request.build), ("history", &request.history)];
    for (name, text) in texts {
        if text.len() > TEXT_BYTES_MAX || !is_printable(text) {
            return Err(wrong(format!("{name}: at most {TEXT_BYTES_MAX} printable bytes")).into());
        }
    }
    if let Some(id) = &request.killswitch {
        Name::new(id).map_err(|error| wrong(format!("killswitch: {error}")))?;
    }
    if let Some(url) = &request.ops_url
        && (url.len() > TEXT_BYTES_MAX
            || !is_printable(url)
            || !url.starts_with("http://") && !url.starts_with("https://"))
    {
        return Err(wrong("ops_url: must be http://… or https://…".to_owned()).into());
    }
    request.routes.truncate(LISTED_MAX);
    request.rejected.truncate(LISTED_MAX);
    Ok(())
}

pub(super) async fn snapshot(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&[])?;
    app.metrics.snapshots.inc();
    let now = app.clock.now().us() / 1_000;
    let live = app.store.gateways_since(now.saturating_sub(LIVE_MS)).await?;
    answer(&app.store.snapshot(app.live.observe(now, live)).await?, None)
}

pub(super) async fn safety_limits(
    State(app): State<Arc<App>>,
    ask: Ask,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    answer(&app.store.safety_limits().await?, None)
}
