//! `/v1/rollouts` and `/v1/gates`. Whether everybody may be enforced is decided here, by the
//! number, and the move rests on the very rollout that the number is about.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;
use wire::client::plans::{Gate, Whom};
use wire::error::{ErrorBody, ErrorCode, FieldError};
use wire::gate::GateReport;
use wire::name::Name;
use wire::rollout::{Phase, RolloutValue};
use wire::strict::{Fields, Problems};

use super::ask::{Ask, Bytes, Part, bad_request};
use super::error::ApiError;
use super::{App, answer};
use crate::gate;
use crate::model::rollout::{Move, SHARE_ALL, needs_gate, phase};
use crate::store::{Basis, RolloutStep as Step, Stamp, Wanted};

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor"])?;
    let (cursor, limit) = ask.page()?;
    answer(&app.store.rollouts(cursor, limit).await?, None)
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let rollout = app.store.rollout(&name).await?;
    answer(&rollout, Some(rollout.revision))
}

/// `:set` and `:rollback`.
pub(super) async fn verb(
    State(app): State<Arc<App>>,
    ask: Ask,
    part: Part,
    Bytes(bytes): Bytes,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (name, verb) = part.id_and_verb()?;
    let name = Name::new(name).map_err(|error| bad_request(error.to_string()))?;
    let body = match bytes.as_ref() {
        b"" => Value::Object(serde_json::Map::new()),
        bytes => wire::strict::json(bytes)
            .map_err(|error| bad_request(format!("the body is not JSON: {error}")))?,
    };
    match verb {
        "set" => set(&app, &ask, name.as_str(), &body).await,
        "rollback" => roll_back(&app, &ask, name.as_str(), &body).await,
        _ => Err(ApiError::of(ErrorCode::NotFound)),
    }
}

async fn set(app: &App, ask: &Ask, name: &str, body: &Value) -> Result<Response, ApiError> {
    let mut problems = Problems::new();
    let wanted = Move::parse(body, &mut problems);
    let wanted = problems.none_or(wanted)?;
    let stamp = ask.stamp(wanted.reason.as_deref())?;
    let current = app.store.find_rollout(name).await?;
    let basis = if needs_gate(current.as_ref(), &wanted.whom, wanted.phase) {
        let current = current.unwrap_or_else(|| nothing_yet(name));
        let report = report(app, &current).await?;
        match (gate::judge(report.clone()), wanted.override_gate) {
            (Ok(()), _) => Basis::Evidence(current.revision),
            (Err(refused), false) => return Err(refused.into()),
            (Err(_), true) => return ask_for(app, ask, &current, &report, &stamp).await,
        }
    } else {
        Basis::Free
    };
    let step = Step {
        name,
        whom: &wanted.whom,
        phase: wanted.phase,
        command: &wanted.command(),
        basis,
        expect: ask.precondition()?,
    };
    let moved = app.store.move_rollout(&step, &stamp).await?;
    answer(&moved, Some(moved.object.revision))
}

/// Against what the number says two people enforce everybody: this one asks, another accepts.
async fn ask_for(
    app: &App,
    ask: &Ask,
    rollout: &RolloutValue,
    report: &GateReport,
    stamp: &Stamp,
) -> Result<Response, ApiError> {
    ask.precondition()?;
    if stamp.reason.is_empty() {
        let detail = "an override of the gate needs a reason".to_owned();
        let (field, code) = ("reason".to_owned(), ErrorCode::InvalidValue);
        return Err(vec![FieldError { field, code, detail }].into());
    }
    if rollout.revision == 0 {
        let detail = format!("there is no rollout `{}`", rollout.name);
        return Err(ErrorBody::new(ErrorCode::NotFound, detail).into());
    }
    let wanted = Wanted {
        rollout: &rollout.name,
        revision: rollout.revision,
        evidence: serde_json::to_value(report).map_err(ApiError::internal)?,
        token_id: &ask.caller.token_id,
    };
    let approval = app.store.ask_for(&wanted, stamp).await?;
    let mut response = answer(&approval, None)?;
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// Everybody to shadow (or off): no gate, no ticket, always possible.
async fn roll_back(app: &App, ask: &Ask, name: &str, body: &Value) -> Result<Response, ApiError> {
    let mut problems = Problems::new();
    let mut fields = Fields::of(body, "", &mut problems);
    let to = phase(&mut fields, "to", &mut problems).unwrap_or(Phase::Shadow);
    if to == Phase::Enforce {
        problems.add("to", ErrorCode::InvalidValue, "must be shadow or off, not `enforce`");
    }
    let reason = fields.text("reason", &mut problems).map(ToOwned::to_owned);
    fields.finish(&mut problems);
    problems.none_or(Some(()))?;
    let stamp = ask.stamp(reason.as_deref())?;
    let command = format!("rollback {}", to.name());
    let step = Step {
        name,
        whom: &Whom::All,
        phase: to,
        command: &command,
        basis: Basis::Existing,
        expect: ask.precondition()?,
    };
    let moved = app.store.move_rollout(&step, &stamp).await?;
    answer(&moved, Some(moved.object.revision))
}

/// The number, and what it allows.
pub(super) async fn gate(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(name): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let rollout = app.store.rollout(&name).await?.value();
    let report = report(&app, &rollout).await?;
    answer(&Gate { name, verdict: report.verdict(), report }, None)
}

async fn report(app: &App, rollout: &RolloutValue) -> Result<GateReport, ApiError> {
    let evidence = app.evidence.as_ref().ok_or_else(gate::nobody)?;
    Ok(evidence.report(rollout).await?)
}

/// A rollout that does not exist: nobody is in shadow, so there is no evidence.
fn nothing_yet(name: &str) -> RolloutValue {
    RolloutValue { name: name.to_owned(), rules: Vec::new(), share_bp: SHARE_ALL, revision: 0 }
}
