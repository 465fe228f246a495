//! `/v1/rollouts` and `/v1/gates`. Whether everybody may be enforced is decided here, by the
//! number, and the move rests on the very rollout that the number is about.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::Value;
use wire::client::plans::{Gate, Whom};
use wire::error::ErrorCode;
use wire::gate::GateReport;
use wire::name::Name;
use wire::rollout::{Phase, RolloutValue};
use wire::strict::{Fields, Problems};

use super::ask::{Ask, Bytes, Part, bad_request};
use super::error::ApiError;
use super::{App, answer};
use crate::gate;
use crate::model::rollout::{Move, SHARE_ALL, needs_gate, phase};
use crate::store::{Basis, RolloutStep as Step};

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
        gate::judge(report(app, &current).await?)?;
        Basis::Evidence(current.revision)
    } else {
        Basis::Free
    };
    let step = Step {
        name,
        whom: &wanted.whom,
        phase: wanted.phase,
        command: &wanted.command(),
        basis,
        expect: ask.expect(),
    };
    let moved = app.store.move_rollout(&step, &stamp).await?;
    answer(&moved, Some(moved.object.revision))
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
        expect: ask.expect(),
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
