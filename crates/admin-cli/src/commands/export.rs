//! `weir export`: what plans-api has, in the form that `weir apply` reads.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wire::bootstrap::Bootstrap;
use wire::plan::PlanSpec;
use wire::strict::Problems;

use super::keys::in_ms;
use crate::args::Export;
use crate::failure::{Exit, Failure};
use crate::files;
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted};

pub(crate) async fn run(flags: &Export, session: &Session<'_>) -> Result<Report, Failure> {
    if flags.bootstrap {
        return bootstrap(session).await;
    }
    let mut plans = Map::new();
    for plan in session.items(session.api.plans()).await? {
        let name = text(&plan, "name");
        plans.insert(name.clone(), written(&name, &plan)?);
    }
    let mut clients = Map::new();
    let mut overridden = 0;
    for client in session.items(session.api.clients()).await? {
        overridden += usize::from(client.get("override").is_some_and(|value| !value.is_null()));
        clients.insert(text(&client, "id"), client_written(&client));
    }
    let keys = session.items(session.api.keys(None)).await?.len();
    let mut document = Map::new();
    document.insert("plan".to_owned(), Value::Object(plans));
    document.insert("client".to_owned(), Value::Object(clients));
    let toml = files::to_toml(&document);
    let mut report = Report::new(Value::Object(document), Shown::Text(toml));
    for (count, what) in [(overridden, "override"), (keys, "key")] {
        if count > 0 {
            report
                .notes
                .push(format!("left out: {}, which files do not hold", counted(count, what)));
        }
    }
    Ok(report)
}

/// The policy and all keys by hash, as gateways read them where no control plane answers.
async fn bootstrap(session: &Session<'_>) -> Result<Report, Failure> {
    let (policy, keys) = session.answer(session.api.bootstrap()).await?;
    let Some(policy) = policy else {
        return Err(Failure::new(Exit::Failed, "malformed", "an answer without the policy"));
    };
    let (revision, plans) = (policy.revision, policy.plans.len());
    let file = Bootstrap { written_at: in_ms(Duration::ZERO), policy, keys };
    let json = json!({ "revision": revision, "plans": plans, "keys": file.keys.len(),
                       "file": file.to_text() });
    let told = format!(
        "revision {revision} with {} and {}; keys stand in it by hash, guard it all the same",
        counted(plans, "plan"),
        counted(file.keys.len(), "secret"),
    );
    let text = file.to_text();
    Ok(Report::new(json, Shown::Text(text)).note(told))
}

/// A client as files have it.
pub(super) fn client_written(client: &Value) -> Value {
    let suspended = client.get("state") == Some(&json!("suspended"));
    let fields: &[&str] = match suspended {
        true => &["plan", "name", "state", "labels"],
        false => &["plan", "name", "labels"],
    };
    let kept = fields.iter().filter_map(|field| {
        let value = client.get(*field).filter(|value| !is_nothing(value))?;
        Some(((*field).to_owned(), value.clone()))
    });
    Value::Object(kept.collect())
}

/// A plan of plans-api as files have it; read by the judge, so an export can be applied.
pub(super) fn written(name: &str, plan: &Value) -> Result<Value, Failure> {
    let fields = super::plans::WRITTEN
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), plan.get(*field)?.clone())));
    let mut problems = Problems::new();
    let place = format!("plan.{name}");
    let spec = PlanSpec::parse(name, &Value::Object(fields.collect()), &place, &mut problems);
    problems.none_or(spec).map(|spec| spec.to_json()).map_err(Failure::invalid)
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
