//! `/v1/plans`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use wire::plan::PlanSpec;
use wire::strict::Problems;

use super::ask::{Ask, Json, Part, ReasonOnly};
use super::error::ApiError;
use super::{App, answer};

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

pub(super) async fn put(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let mut problems = Problems::new();
    let spec = PlanSpec::parse(&name, &body, "", &mut problems);
    let spec = problems.none_or(spec)?;
    let changed = app.store.put_plan(&spec, ask.expect(), &ask.stamp(None)?).await?;
    answer(&changed, changed.object.as_ref().map(|plan| plan.revision))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let stamp = ask.stamp(reason.as_deref())?;
    answer(&app.store.delete_plan(&name, ask.expect(), &stamp).await?, None)
}
