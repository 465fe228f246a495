//! `weir diff`: what `apply` would change, whom that touches, and what stands in no file.

use serde_json::{Value, json};

use super::{apply, impact};
use crate::args::{Diff, Prune};
use crate::failure::{Exit, Failure};
use crate::files::Desired;
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted};

pub(crate) async fn run(flags: Diff, session: &Session<'_>) -> Result<Report, Failure> {
    let label = match flags.selector.as_deref().map(|text| text.split_once('=')) {
        None => None,
        Some(Some((name, text))) if !name.is_empty() => Some((name, text)),
        Some(_) => return Err(Failure::usage("--selector is a label such as team=x")),
    };
    let desired = apply::read(&flags.files.files, session)?;
    let body = desired.to_json();
    let applied = session.ask(apply::ask(session, &body, "", &Prune::default(), true)).await?;
    let withheld = withheld(&desired, label, session).await?;
    let impact = impact::of(&applied, &body, session).await?;
    let changes: Vec<Value> = applied
        .get("changes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|change| change.get("action") != Some(&json!("same")))
        .cloned()
        .collect();
    let mut lines = Vec::new();
    for change in &changes {
        let touches = impact.touches(&text(change, "kind"), &text(change, "id"));
        lines.push(line(change, touches.as_deref()));
    }
    if !changes.is_empty() {
        lines.extend(impact.replay_line().map(|line| format!("    {line}")));
    }
    for (kind, id) in &withheld {
        lines.push(format!("- {kind} {id}    in no file; stays (needs --prune)"));
    }
    let same = changes.is_empty() && withheld.is_empty();
    let summary = match (same, withheld.len()) {
        (true, _) => "no difference".to_owned(),
        (false, 0) => counted(changes.len(), "change"),
        (false, some) => {
            format!("{}, {} withheld", counted(changes.len(), "change"), counted(some, "deletion"))
        }
    };
    let gone = withheld.iter().map(|(kind, id)| json!({ "kind": kind, "id": id }));
    let json = json!({
        "same": same,
        "changes": changes,
        "withheld": gone.collect::<Vec<Value>>(),
        "impact": impact.json(),
    });
    let shown = if lines.is_empty() { Shown::Nothing } else { Shown::Text(lines.join("\n")) };
    let mut report = Report::new(json, shown).note(summary);
    let changed = changes.iter().map(|change| text(change, "id"));
    report.names = changed.chain(withheld.into_iter().map(|(_, id)| id)).collect();
    report.exit = if same { Exit::Done } else { Exit::Differs };
    Ok(report)
}

/// `~ plan pro    burst.refill 50/s → 40/s        312 clients`
fn line(change: &Value, touches: Option<&str>) -> String {
    let sign = if change.get("action") == Some(&json!("create")) { '+' } else { '~' };
    let fields = change.get("fields").and_then(Value::as_array).into_iter().flatten();
    let fields: Vec<String> =
        fields.filter_map(Value::as_str).map(|field| field.replacen(": ", " ", 1)).collect();
    let told =
        format!("{sign} {} {}    {}", text(change, "kind"), text(change, "id"), fields.join(", "));
    let touched = touches.map(|touches| format!("        {touches}")).unwrap_or_default();
    format!("{}{touched}", told.trim_end())
}

/// What plans-api has and no file names: by kind and id.
async fn withheld(
    desired: &Desired,
    label: Option<(&str, &str)>,
    session: &Session<'_>,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let carries = |object: &Value| {
        label.is_none_or(|(name, text)| {
            object.get("labels").and_then(|labels| labels.get(name)) == Some(&json!(text))
        })
    };
    let mut gone = Vec::new();
    for plan in session.items(session.api.plans()).await?.iter().filter(|plan| carries(plan)) {
        let name = text(plan, "name");
        if !desired.plans.contains_key(&name) {
            gone.push(("plan", name));
        }
    }
    for client in session.items(session.api.clients()).await?.iter().filter(|one| carries(one)) {
        let id = text(client, "id");
        if !desired.clients.contains_key(&id) {
            gone.push(("client", id));
        }
    }
    Ok(gone)
}
