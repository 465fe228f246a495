//! `/v1/apply`: plans and clients of a file, all or nothing, every mistake at once.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value};
use wire::client::plans::ApplyMode;
use wire::error::ErrorCode;
use wire::name::Name;
use wire::plan::PlanSpec;
use wire::policy::ClientState;
use wire::strict::{Fields, Problems};

use super::ask::{Ask, Json};
use super::error::ApiError;
use super::{App, answer};
use crate::model::client::ClientSpec;
use crate::store::{Desired, Prune};

pub(super) async fn apply(
    State(app): State<Arc<App>>,
    ask: Ask,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason", "dry_run", "prune", "allow_deletes"])?;
    let mode = if ask.flag("dry_run")? { ApplyMode::DryRun } else { ApplyMode::Apply };
    let mut problems = Problems::new();
    let (mut desired, reason) = parse(&body, &mut problems);
    desired.prune = prune(&ask, &mut problems);
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
        let mut value = value.clone();
        if let Some(state) = value.as_object_mut().and_then(|client| client.remove("state")) {
            desired.states.extend(state_of(id, state, &path, problems));
        }
        desired.clients.extend(ClientSpec::parse(id, &value, &path, problems));
    }
    let reason = fields.text("reason", problems).map(ToOwned::to_owned);
    fields.finish(problems);
    (desired, reason)
}

/// `prune=team=x`, `allow_deletes=3`.
fn prune(ask: &Ask, problems: &mut Problems) -> Option<Prune> {
    let allowed = ask.param("allow_deletes").and_then(|text| {
        let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        if number.is_none() {
            let detail = format!("must be a whole number, not `{text}`");
            problems.add("?allow_deletes", ErrorCode::InvalidValue, detail);
        }
        number
    });
    let text = ask.param("prune")?;
    match text.split_once('=').filter(|(name, text)| Name::new(name).is_ok() && !text.is_empty()) {
        Some((name, text)) => Some(Prune { label: (name.to_owned(), text.to_owned()), allowed }),
        None => {
            let detail = format!("must be a label such as team=x, not `{text}`");
            problems.add("?prune", ErrorCode::InvalidValue, detail);
            None
        }
    }
}

fn state_of(
    id: &str,
    state: Value,
    path: &str,
    problems: &mut Problems,
) -> Option<(String, ClientState)> {
    let told = state.to_string();
    match serde_json::from_value(state) {
        Ok(state) => Some((id.to_owned(), state)),
        Err(_) => {
            let detail = format!("must be active or suspended, not {told}");
            problems.add(format!("{path}.state"), ErrorCode::InvalidValue, detail);
            None
        }
    }
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
