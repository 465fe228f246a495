//! Whole states: `apply` sends all files as one transaction, `export` writes what `apply` reads,
//! `validate` asks nobody. Nothing is ever deleted here.

use serde_json::{Map, Value, json};
use wire::client::plans::ApplyMode;
use wire::plan::PlanSpec;
use wire::strict::Problems;

use crate::args::{Apply, Validate};
use crate::failure::{Exit, Failure};
use crate::files::{self, Desired};
use crate::output::{Report, Shown, text};
use crate::session::{self, Session};

const HEADINGS: &[&str] = &["KIND", "NAME", "EFFECT", "FIELDS"];

pub(crate) async fn run(flags: Apply, session: &Session<'_>) -> Result<Report, Failure> {
    let Apply { files, dry, change } = flags;
    let desired = files::read(&files.files)?;
    for left in &desired.left_out {
        session.output.say(&format!("left out: {left}"));
    }
    if desired.plans.is_empty() && desired.clients.is_empty() {
        return Err(Failure::usage("there is no plan and no client in these files"));
    }
    if dry.dry_run {
        return dry_run(&desired.to_json(), session).await;
    }
    let counted = counted(&desired);
    session.confirm_in_production(&change, &format!("apply {counted}"))?;
    let (body, reason) = (desired.to_json(), session.reason(&change)?);
    let mut json = session.ask(session.api.apply(&body, reason, ApplyMode::Apply)).await?;
    if let Some(object) = json.as_object_mut() {
        object.insert("ok".to_owned(), json!(true));
    }
    let report = effects(json).note(format!("{counted} applied"));
    Ok(session.finish(report, &change).await)
}

/// Asks plans-api what a body would do; it changes nothing and exits as the change would.
pub(crate) async fn dry_run(body: &Value, session: &Session<'_>) -> Result<Report, Failure> {
    let mut json = session.ask(session.api.apply(body, "", ApplyMode::DryRun)).await?;
    if let Some(object) = json.as_object_mut() {
        object.insert("ok".to_owned(), json!(true));
    }
    Ok(effects(json).note("nothing was changed (--dry-run)"))
}

fn counted(desired: &Desired) -> String {
    let (plans, clients) = (desired.plans.len(), desired.clients.len());
    format!("{} and {}", session::counted(plans, "plan"), session::counted(clients, "client"))
}

/// What plans-api did, or would do, to each object.
fn effects(json: Value) -> Report {
    let changes = json.get("changes").and_then(Value::as_array).into_iter().flatten();
    let rows: Vec<Vec<String>> = changes
        .map(|change| {
            let fields = change.get("fields").and_then(Value::as_array).into_iter().flatten();
            let fields: Vec<&str> = fields.filter_map(Value::as_str).collect();
            let told = ["kind", "id", "action"].iter().map(|field| text(change, field));
            told.chain([fields.join(", ")]).collect()
        })
        .collect();
    let names = rows.iter().filter_map(|row| row.get(1).cloned()).collect();
    Report { names, ..Report::new(json, Shown::Rows(HEADINGS, rows)) }
}

pub(crate) fn validate(given: &Validate) -> Result<Report, Failure> {
    let desired = files::read(&[given.paths.as_slice(), &given.files].concat())?;
    let json = json!({
        "ok": true,
        "plans": desired.plans.len(),
        "clients": desired.clients.len(),
        "left_out": desired.left_out,
    });
    let mut report = Report::new(json, Shown::Nothing);
    report.names = desired.plans.keys().chain(desired.clients.keys()).cloned().collect();
    report.notes.extend(desired.left_out.iter().map(|left| format!("left out: {left}")));
    for (id, client) in &desired.clients {
        if !desired.plans.contains_key(&client.plan) {
            let plan = &client.plan;
            report.notes.push(format!("client {id}: its plan {plan} must be at plans-api already"));
        }
    }
    Ok(report.note(format!("{} are valid", counted(&desired))))
}

pub(crate) async fn export(session: &Session<'_>) -> Result<Report, Failure> {
    let mut plans = Map::new();
    for plan in session.items(session.api.plans()).await? {
        let name = text(&plan, "name");
        plans.insert(name.clone(), written(&name, &plan)?);
    }
    let mut clients = Map::new();
    let mut suspended = 0_usize;
    for client in session.items(session.api.clients()).await? {
        suspended += usize::from(client.get("state") == Some(&json!("suspended")));
        let kept = ["plan", "name", "labels"].iter().filter_map(|field| {
            let value = client.get(*field).filter(|value| !is_nothing(value))?;
            Some(((*field).to_owned(), value.clone()))
        });
        clients.insert(text(&client, "id"), Value::Object(kept.collect()));
    }
    let document = json!({ "plan": plans, "client": clients });
    let toml = toml::to_string(&document).map_err(|error| {
        Failure::new(Exit::Failed, "failed", format!("cannot be written as TOML: {error}"))
    })?;
    let mut report = Report::new(document, Shown::Text(toml));
    if suspended > 0 {
        let line = format!("{suspended} clients are suspended; files do not say so");
        report.notes.push(line);
    }
    Ok(report)
}

/// A plan of plans-api as files have it; read by the judge, so an export can be applied.
fn written(name: &str, plan: &Value) -> Result<Value, Failure> {
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
