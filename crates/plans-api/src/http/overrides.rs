//! `/v1/clients/{id}/override`. Its entity tag is the client's.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use wire::strict::Problems;

use super::ask::{Ask, Json, Part, ReasonOnly};
use super::error::ApiError;
use super::{App, answer};
use crate::model::overrides::OverrideSpec;

pub(super) async fn put(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let expect = ask.precondition()?;
    let mut problems = Problems::new();
    let spec = OverrideSpec::parse(&body, app.clock.now().us() / 1_000, &mut problems);
    let spec = problems.none_or(spec)?;
    let stamp = ask.stamp(spec.reason.as_deref())?;
    let changed = app.store.put_override(&id, &spec, expect, &stamp).await?;
    answer(&changed, changed.object.as_ref().map(|client| client.revision))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (expect, stamp) = (ask.precondition()?, ask.stamp(reason.as_deref())?);
    let changed = app.store.delete_override(&id, expect, &stamp).await?;
    answer(&changed, changed.object.as_ref().map(|client| client.revision))
}
