//! Plans. `set` changes what the flags name and keeps the rest, so a slip of memory does not take
//! a plan's failure policy away; the version that was read must still be there when it is written.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use wire::error::ErrorCode;
use wire::plan::{PlanLimits, PlanSpec};
use wire::strict::Problems;

use super::changes;
use crate::args::{ChangeFlags, PlanCommand, PlanSet};
use crate::failure::{Exit, Failure};
use crate::files;
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted};

const HEADINGS: &[&str] = &["PLAN", "BURST", "SUSTAINED", "FAILURE", "SCOPE", "COSTS", "REVISION"];
/// The fields of a plan that people write; the rest is told by plans-api.
pub(super) const WRITTEN: &[&str] =
    &["burst", "sustained", "failure", "scope", "costs", "unlimited", "labels", "note"];

/// Found by `lint`, and told by `set`.
const HELD_BACK: &str = "sustained holds less than burst: the burst can never be used up";

pub(crate) async fn run(command: PlanCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        PlanCommand::List => {
            let plans = session.items(session.api.plans()).await?;
            Ok(Report::list(&plans, HEADINGS, "name", row))
        }
        PlanCommand::Get { name } => Ok(shown(session.ask(session.api.plan(&name)).await?)),
        PlanCommand::Set(set) => self::set(*set, session).await,
        PlanCommand::History { name } => changes::history("plan", &name, session).await,
        PlanCommand::Delete { name, change } => delete(&name, &change, session).await,
        PlanCommand::Lint { .. } => {
            let plans = session.items(session.api.plans()).await?;
            let plans: Vec<PlanSpec> = plans.iter().filter_map(parsed).collect();
            let mut found: Vec<_> = plans.iter().flat_map(lint).collect();
            found.extend(unknown_routes(&plans, &super::routes::known(session).await?));
            Ok(findings(&found))
        }
    }
}

fn row(plan: &Value) -> Vec<String> {
    let costs = plan.get("costs").and_then(Value::as_array).map_or(0, Vec::len);
    vec![
        text(plan, "name"),
        limit(plan, "burst"),
        limit(plan, "sustained"),
        text(plan, "failure"),
        text(plan, "scope"),
        if costs == 0 { "–".to_owned() } else { costs.to_string() },
        text(plan, "revision"),
    ]
}

/// As `plan set` takes it.
pub(super) fn limit(plan: &Value, which: &str) -> String {
    if plan.get("unlimited") == Some(&json!(true)) {
        return "unlimited".to_owned();
    }
    match plan.get(which) {
        None | Some(Value::Null) => "–".to_owned(),
        Some(limit) => format!("{}@{}", text(limit, "capacity"), text(limit, "refill")),
    }
}

fn shown(plan: Value) -> Report {
    let mut fields = vec![
        ("plan", text(&plan, "name")),
        ("burst", limit(&plan, "burst")),
        ("sustained", limit(&plan, "sustained")),
        ("failure", text(&plan, "failure")),
        ("scope", text(&plan, "scope")),
    ];
    for rule in plan.get("costs").and_then(Value::as_array).into_iter().flatten() {
        let method = rule.get("method").and_then(Value::as_str);
        let method = method.map(|method| format!("{method}:")).unwrap_or_default();
        fields.push(("cost", format!("{method}{}={}", text(rule, "route"), text(rule, "cost"))));
    }
    for name in ["labels", "note", "revision"] {
        if plan.get(name).is_some_and(|value| !value.is_null()) {
            fields.push((name, text(&plan, name)));
        }
    }
    let name = text(&plan, "name");
    Report::new(plan, Shown::Fields(fields)).named(name)
}

async fn set(set: PlanSet, session: &Session<'_>) -> Result<Report, Failure> {
    let name = set.name.clone();
    let (body, revision) = match &set.file {
        Some(file) => (from_file(&name, file)?, None),
        None => {
            if nothing_named(&set) {
                return Err(Failure::usage("say what to set, such as --burst 100@50/s"));
            }
            let before = match wire::name::Name::new(&name) {
                Ok(_) => session.find(session.api.plan(&name)).await?,
                Err(_) => None, // refused below, with the other mistakes
            };
            let revision = before.as_ref().and_then(|plan| plan.get("revision")?.as_u64());
            (from_flags(&set, before.as_ref())?, revision)
        }
    };
    let doubt = held_back(&name, &body);
    if set.change.dry_run {
        let body = json!({ "plan": { name: body } });
        let mut report = super::apply::dry_run(&body, None, session).await?;
        report.warnings.extend(doubt);
        return Ok(report);
    }
    session.confirm_in_production(&set.change, &format!("change the plan {name}"))?;
    let reason = session.reason(&set.change)?;
    let json = match session.ask(session.api.put_plan(&name, &body, reason, revision)).await {
        Ok(json) => json,
        Err(failure) => return Err(changes::explained(failure, "plan", &name, session).await),
    };
    let said = format!("plan {name} set");
    let mut report = done(json, &name, said);
    report.warnings.extend(doubt);
    Ok(session.finish(report, &set.change).await)
}

/// The one finding of `lint` that is a slip wherever it stands.
fn held_back(name: &str, body: &Value) -> Option<String> {
    let spec = PlanSpec::parse(name, body, name, &mut Problems::new())?;
    let found = lint(&spec).into_iter().find(|(_, finding)| finding == HELD_BACK);
    found.map(|(plan, finding)| format!("warning: plan {plan}: {finding}"))
}

/// A change as it is reported: the document for programs, one line for people.
pub(super) fn done(json: Value, name: &str, said: String) -> Report {
    let json = if json.is_object() { json } else { json!({}) };
    Report::new(json, Shown::Nothing).named(name).note(said)
}

fn nothing_named(set: &PlanSet) -> bool {
    set.burst.is_none()
        && set.sustained.is_none()
        && set.failure.is_none()
        && set.scope.is_none()
        && set.costs.is_empty()
        && !set.unlimited
        && set.labels.is_empty()
        && set.note.is_none()
}

fn from_file(name: &str, file: &PathBuf) -> Result<Value, Failure> {
    let desired = files::read(std::slice::from_ref(file))?;
    desired.plans.get(name).map(PlanSpec::to_json).ok_or_else(|| {
        let line = format!("there is no plan {name} in {}", file.display());
        Failure::new(Exit::NotFound, "not_found", line)
    })
}

/// The plan as it is, with what the flags say put over it; judged like any file.
fn from_flags(set: &PlanSet, before: Option<&Value>) -> Result<Value, Failure> {
    let kept = WRITTEN.iter().filter_map(|field| {
        let value = before?.get(*field)?;
        Some(((*field).to_owned(), value.clone()))
    });
    let mut plan: Map<String, Value> = kept.collect();
    let mut problems = Problems::new();
    let place = |field: &str| format!("plan.{}.{field}", set.name);
    let mut put = |field: &str, value: Value| plan.insert(field.to_owned(), value);
    if set.unlimited {
        put("unlimited", json!(true));
        put("burst", Value::Null);
        put("sustained", Value::Null);
    }
    if let Some(burst) = &set.burst {
        put("unlimited", json!(false));
        put("burst", limit_value(&place("burst"), burst, &mut problems));
    }
    match set.sustained.as_deref() {
        None => {}
        Some("none") => drop(put("sustained", Value::Null)),
        Some(sustained) => {
            drop(put("sustained", limit_value(&place("sustained"), sustained, &mut problems)));
        }
    }
    let texts = [("failure", &set.failure), ("scope", &set.scope), ("note", &set.note)];
    for (field, text) in texts {
        if let Some(text) = text {
            put(field, json!(text));
        }
    }
    if !set.costs.is_empty() {
        put("costs", set.costs.iter().map(|rule| cost_rule(rule)).collect());
    }
    if !set.labels.is_empty() {
        put("labels", labels(&set.labels));
    }
    let spec = PlanSpec::parse(
        &set.name,
        &Value::Object(plan),
        &format!("plan.{}", set.name),
        &mut problems,
    );
    problems.none_or(spec).map(|spec| spec.to_json()).map_err(Failure::invalid)
}

/// `100@50/s`. What is no plain number stays a text, which the judge refuses with its value.
pub(super) fn limit_value(place: &str, text: &str, problems: &mut Problems) -> Value {
    if let Some((capacity, refill)) = text.split_once('@') {
        return json!({ "capacity": number(capacity), "refill": refill });
    }
    let detail = format!("must be capacity@refill such as 100@50/s, not `{text}`");
    problems.add(place, ErrorCode::InvalidValue, detail);
    // refused by now; this only lets the other mistakes be found
    json!({ "capacity": 1_000_000, "refill": "1/s" })
}

fn number(text: &str) -> Value {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(number) if plain => json!(number),
        Ok(_) | Err(_) => json!(text),
    }
}

/// `reports=5`, `POST:reports=5`.
fn cost_rule(text: &str) -> Value {
    let (target, cost) = text.rsplit_once('=').unwrap_or((text, ""));
    match target.split_once(':') {
        Some((method, route)) => {
            json!({ "route": route, "method": method, "cost": number(cost) })
        }
        None => json!({ "route": target, "cost": number(cost) }),
    }
}

/// `team=x`.
pub(super) fn labels(texts: &[String]) -> Value {
    let pairs = texts.iter().map(|text| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        (name.to_owned(), json!(value))
    });
    Value::Object(pairs.collect())
}

async fn delete(
    name: &str,
    change: &ChangeFlags,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let reason = session.reason(change)?;
    let danger = format!("delete the plan {name} (1 plan, no client may use it)");
    session.confirm(change, &danger, None)?;
    let json = session.ask(session.api.delete_plan(name, reason)).await?;
    Ok(session.finish(done(json, name, format!("plan {name} deleted")), change).await)
}

pub(crate) fn lint_files(paths: &[PathBuf]) -> Result<Report, Failure> {
    let desired = files::read(paths)?;
    Ok(findings(&desired.plans.values().flat_map(lint).collect::<Vec<_>>()))
}

pub(super) fn parsed(plan: &Value) -> Option<PlanSpec> {
    let name = plan.get("name")?.as_str()?;
    let fields =
        WRITTEN.iter().filter_map(|field| Some(((*field).to_owned(), plan.get(*field)?.clone())));
    let written = Value::Object(fields.collect());
    PlanSpec::parse(name, &written, &format!("plan.{name}"), &mut Problems::new())
}

/// What is valid and still most likely not meant.
/// Cost rules for routes that no live gateway has; nothing if none is live.
fn unknown_routes(plans: &[PlanSpec], known: &[String]) -> Vec<(String, String)> {
    if known.is_empty() {
        return Vec::new();
    }
    let rules = plans.iter().flat_map(|plan| plan.costs.iter().map(move |rule| (plan, rule)));
    let unknown = rules.filter(|(_, rule)| !known.contains(&rule.route));
    let finding = |route: &str| format!("has a cost for the route {route}, which no gateway has");
    unknown.map(|(plan, rule)| (plan.name.to_string(), finding(&rule.route))).collect()
}

fn lint(plan: &PlanSpec) -> Vec<(String, String)> {
    let name = plan.name.to_string();
    let PlanLimits::Limited(limits) = plan.limits else {
        return vec![(name, "is unlimited: nothing holds its clients".to_owned())];
    };
    let mut found = Vec::new();
    if limits.burst.refill().tokens() == 0 {
        found.push("burst is a fixed allowance: once used it never comes back");
    }
    if let Some(sustained) = limits.sustained {
        if sustained.capacity() < limits.burst.capacity() {
            found.push(HELD_BACK);
        }
        let per = |limit: limiter_core::Limit| {
            (u128::from(limit.refill().tokens()), u128::from(limit.refill().per_us().max(1)))
        };
        let ((fast, fast_us), (slow, slow_us)) = (per(limits.burst), per(sustained));
        if slow * fast_us > fast * slow_us {
            found.push("sustained refills faster than burst: it never binds");
        }
    }
    found.into_iter().map(|line| (name.clone(), line.to_owned())).collect()
}

fn findings(found: &[(String, String)]) -> Report {
    let items: Vec<Value> = found
        .iter()
        .map(|(plan, finding)| {
            json!({ "plan": plan, "code": ErrorCode::InvalidValue.name(), "finding": finding })
        })
        .collect();
    let exit = if items.is_empty() { Exit::Done } else { Exit::Invalid };
    let report = Report::list(&items, &["PLAN", "FINDING"], "plan", |item| {
        vec![text(item, "plan"), text(item, "finding")]
    });
    Report { exit, ..report.note(counted(found.len(), "finding")) }
}

#[cfg(test)]
mod tests;
