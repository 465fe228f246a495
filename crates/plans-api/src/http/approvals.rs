//! `/v1/approvals`: what somebody asked for and another person has to accept.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use wire::error::{ErrorBody, ErrorCode};

use super::ask::{Ask, Part, ReasonOnly};
use super::error::ApiError;
use super::{App, answer};
use crate::store::{Answering, Unanswered};

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor"])?;
    let (cursor, limit) = ask.page()?;
    answer(&app.store.approvals(cursor, limit).await?, None)
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    answer(&app.store.approval(&id).await?, None)
}

/// `:accept` and `:refuse`. An approval is answered once, so no version of it is asked for.
pub(super) async fn verb(
    State(app): State<Arc<App>>,
    ask: Ask,
    part: Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (id, verb) = part.id_and_verb()?;
    let asked_for = app.store.approval(id).await?;
    let reason = reason.as_deref().or(ask.param("reason")).filter(|reason| !reason.is_empty());
    let stamp = ask.stamp(Some(reason.unwrap_or(&asked_for.reason)))?;
    match verb {
        "accept" => accept(&app, &ask, id, &stamp).await,
        "refuse" => answer(&app.store.refuse(id, &stamp).await?, None),
        _ => Err(ApiError::of(ErrorCode::NotFound)),
    }
}

async fn accept(
    app: &App,
    ask: &Ask,
    id: &str,
    stamp: &crate::store::Stamp,
) -> Result<Response, ApiError> {
    if ask.caller.machine {
        let detail = "a machine's token accepts nothing: a person has to";
        return Err(ErrorBody::new(ErrorCode::RoleTooSmall, detail).into());
    }
    let by = Answering { token_id: &ask.caller.token_id, name: &ask.caller.name };
    match app.store.accept(id, by, stamp).await {
        Ok(approval) => answer(&approval, None),
        Err(Unanswered::Own) => {
            let detail = "you asked for this yourself: another person has to accept it";
            Err(ErrorBody::new(ErrorCode::OwnApproval, detail).into())
        }
        Err(Unanswered::Store(error)) => Err(error.into()),
    }
}
