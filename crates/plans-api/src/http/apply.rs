//! `/v1/apply`: plans and clients of a file, all or nothing, every mistake at once.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value};
use wire::client::plans::ApplyMode;
use wire::error::ErrorCode;
use wire::plan::PlanSpec;
use wire::strict::{Fields, Problems};

use super::ask::{Ask, Json};
use super::error::ApiError;
use super::{App, answer};
use crate::model::client::ClientSpec;
use crate::store::Desired;

pub(super) async fn apply(
    State(app): State<Arc<App>>,
    ask: Ask,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason", "dry_run"])?;
    let mode = if ask.flag("dry_run")? { ApplyMode::DryRun } else { ApplyMode::Apply };
    let mut problems = Problems::new();
    let (desired, reason) = parse(&body, &mut problems);
    // A plan that is in the file counts as there even if it is wrong: its own line says so.
    let named = body.get("plan").and_then(Value::as_object);
    let named: Vec<&str> = named.into_iter().flat_map(Map::keys).map(String::as_str).collect();
    for missing in app.store.missing_plans(&desired.clients, &named).await? {
        problems.add(missing.field, missing.code, missing.detail);
    }
    let desired = problems.none_or(Some(desired))?;
    answer(&app.store.apply(&desired, mode, &ask.stamp(reason.as_deref())?).await?, None)
}

fn parse(body: &Value, problems: &mut Problems) -> (Desired, Option<String>) {
    let mut fields = Fields::of(body, "", problems);
    let mut desired = Desired::default();
    for (name, value) in table(&mut fields, "plan", problems) {
        let path = format!("plan.{name}");
        desired.plans.extend(PlanSpec::parse(name, value, &path, problems));
    }
    for (id, value) in table(&mut fields, "client", problems) {
        let path = format!("client.{id}");
        desired.clients.extend(ClientSpec::parse(id, value, &path, problems));
    }
    let reason = fields.text("reason", problems).map(ToOwned::to_owned);
    fields.finish(problems);
    (desired, reason)
}

fn table<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
    problems: &mut Problems,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    let table = match fields.get(name) {
        None => None,
        Some(Value::Object(table)) => Some(table),
        Some(_) => {
            let detail = "must be an object by name";
            problems.add(fields.path(name), ErrorCode::InvalidValue, detail);
            None
        }
    };
    table.into_iter().flatten()
}
