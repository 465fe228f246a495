//! Whole states: `apply` sends all files as one transaction, `validate` asks nobody. Something is
//! deleted only with `--prune`, and then only what carries the label and stands in no file.

use serde_json::{Value, json};
use wire::client::plans::Applied;
use wire::client::{Call, ClientError};

use super::impact;
use crate::args::{Apply, Prune, Validate};
use crate::failure::Failure;
use crate::files::{self, Desired};
use crate::output::{Report, Shown, text};
use crate::session::{self, Session, shortened};

const HEADINGS: &[&str] = &["KIND", "NAME", "EFFECT", "FIELDS"];

pub(crate) async fn run(flags: Apply, session: &Session<'_>) -> Result<Report, Failure> {
    let Apply { files, prune, change } = flags;
    let desired = read(&files.files, session)?;
    let body = desired.to_json();
    if change.dry_run {
        return dry_run(&body, Some(&prune), session).await;
    }
    let mut counted = counted(&desired);
    let mut pruning = prune.clone();
    if prune.prune {
        // asked first: the prompt names what would go, and no more than that may go then
        let asked = session.ask(ask(session, &body, "", &prune, true)).await?;
        let doomed = deletions(&asked);
        pruning.allow_deletes = Some(doomed.len() as u64);
        let label = prune.selector.as_deref().unwrap_or_default();
        let told = session::counted(doomed.len(), "object");
        counted = format!("{counted}, {told} with {label} deleted");
        if !doomed.is_empty() {
            let danger = format!(
                "apply {counted}: delete {told} that stand in no file: {}",
                shortened(&doomed)
            );
            session.confirm(&change, &danger, (doomed.len() > 1).then_some(label))?;
        }
    }
    session.confirm_in_production(&change, &format!("apply {counted}"))?;
    let reason = session.reason(&change)?;
    let mut json = session.ask(ask(session, &body, reason, &pruning, false)).await?;
    if let Some(object) = json.as_object_mut() {
        object.insert("ok".to_owned(), json!(true));
    }
    let report = effects(json).note(format!("{counted}, applied"));
    Ok(session.finish(report, &change).await)
}

/// Files with something in them; what of them is not taken is said.
pub(crate) fn read(
    paths: &[std::path::PathBuf],
    session: &Session<'_>,
) -> Result<Desired, Failure> {
    let desired = files::read(paths)?;
    for left in &desired.left_out {
        session.output.say(&format!("left out: {left}"));
    }
    if desired.plans.is_empty() && desired.clients.is_empty() {
        return Err(Failure::usage("there is no plan and no client in these files"));
    }
    Ok(desired)
}

/// `POST /v1/apply`, with what may be deleted.
pub(crate) async fn ask(
    session: &Session<'_>,
    body: &Value,
    reason: &str,
    prune: &Prune,
    dry_run: bool,
) -> Result<Applied, ClientError> {
    let label = prune.selector.as_deref().filter(|_| prune.prune);
    let mut call = Call::post("/v1/apply", body).query("reason", reason).maybe("prune", label);
    if let Some(most) = prune.allow_deletes {
        call = call.query("allow_deletes", most.to_string());
    }
    if dry_run {
        call = call.query("dry_run", "true");
    }
    session.api.http().send(call).await
}

fn deletions(applied: &Value) -> Vec<String> {
    let changes = applied.get("changes").and_then(Value::as_array).into_iter().flatten();
    changes
        .filter(|change| change.get("action") == Some(&json!("delete")))
        .map(|change| format!("{} {}", text(change, "kind"), text(change, "id")))
        .collect()
}

/// Asks plans-api what a body would do; it changes nothing and exits as the change would.
pub(crate) async fn dry_run(
    body: &Value,
    prune: Option<&Prune>,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let nothing = Prune::default();
    let prune = prune.unwrap_or(&nothing);
    let mut json = session.ask(ask(session, body, "", prune, true)).await?;
    let impact = impact::of(&json, body, session).await?;
    if let Some(object) = json.as_object_mut() {
        object.insert("ok".to_owned(), json!(true));
        object.insert("impact".to_owned(), impact.json());
    }
    let mut report = effects(json);
    report.notes.extend(impact.lines());
    Ok(report.note("nothing was changed (--dry-run)"))
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
