//! `/v1/plans`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use wire::client::plans::Page;
use wire::plan::PlanSpec;
use wire::strict::Problems;

use super::ask::{Ask, Json, Part, ReasonOnly};
use super::error::ApiError;
use super::{App, answer};
use crate::model::lint;

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor"])?;
    let (cursor, limit) = ask.page()?;
    answer(&app.store.plans(cursor, limit).await?, None)
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let plan = app.store.plan(&name).await?;
    answer(&plan, Some(plan.revision))
}

/// What is valid in it and most likely not meant.
pub(super) async fn lint(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let plan = app.store.plan(&name).await?;
    let routes = app.store.known_routes().await?;
    let items = lint::lint(&plan, (!routes.is_empty()).then_some(&routes));
    answer(&Page { items, next: None }, None)
}

pub(super) async fn put(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let expect = ask.precondition()?;
    let mut problems = Problems::new();
    let spec = PlanSpec::parse(&name, &body, "", &mut problems);
    let spec = problems.none_or(spec)?;
    let changed = app.store.put_plan(&spec, expect, &ask.stamp(None)?).await?;
    answer(&changed, changed.object.as_ref().map(|plan| plan.revision))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (expect, stamp) = (ask.precondition()?, ask.stamp(reason.as_deref())?);
    answer(&app.store.delete_plan(&name, expect, &stamp).await?, None)
}
