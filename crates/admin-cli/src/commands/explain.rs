//! `weir client explain|usage` and `weir top`: what decides about a client now, and what it used.

use std::time::Duration;

use serde_json::{Value, json};
use wire::batch::TopClient;
use wire::client::Call;
use wire::client::plans::Items;
use wire::client::shadow::{Usage, WINDOW_MINUTES_MAX};

use super::keys::time;
use super::plans::limit;
use super::replay::{grouped, share};
use crate::args::Top;
use crate::failure::{Exit, Failure};
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted};

/// Minutes that `top` looks back.
const TOP_MINUTES: u64 = 5;

/// What a client used over the newest minutes.
async fn usage_of(client: &str, minutes: u64, session: &Session<'_>) -> Result<Usage, Failure> {
    let call = Call::get("/v1/shadow/usage")
        .query("client", client)
        .query("window_minutes", minutes.to_string());
    let usage = session.ask(session.api.http().send::<Usage>(call)).await?;
    serde_json::from_value(usage)
        .map_err(|error| Failure::new(Exit::Failed, "malformed", error.to_string()))
}

/// Exact minutes of a client.
pub(super) async fn usage(
    client: &str,
    since: Duration,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let most = u64::from(WINDOW_MINUTES_MAX);
    let minutes = since.as_secs().div_ceil(60);
    if !(1..=most).contains(&minutes) {
        return Err(Failure::usage("--since is a minute at least and 24h at most"));
    }
    // an unknown client has no minutes either, and would look like an idle one
    session.ask(session.api.client(client)).await?;
    let usage = usage_of(client, minutes, session).await?;
    let items: Vec<Value> = usage
        .minutes
        .iter()
        .map(|minute| {
            json!({
                "minute": time(Some(&json!(minute.minute * 60_000))),
                "admitted": minute.requests.saturating_sub(minute.rejected),
                "refused": minute.rejected,
                "would_deny": minute.edge_denied.saturating_sub(minute.rejected),
                "cost": minute.cost_allowed,
            })
        })
        .collect();
    let number = |item: &Value, name: &str| {
        grouped(item.get(name).and_then(Value::as_u64).unwrap_or_default())
    };
    let headings: &[&str] = &["MINUTE", "ADMITTED", "REFUSED", "WOULD-DENY", "COST"];
    let mut report = Report::list(&items, headings, "minute", |item| {
        let mut row = vec![text(item, "minute")];
        row.extend(["admitted", "refused", "would_deny", "cost"].map(|name| number(item, name)));
        row
    });
    if let Some(object) = report.json.as_object_mut() {
        object.insert("client".to_owned(), json!(client));
        object.insert("complete".to_owned(), json!(usage.complete));
    }
    if !usage.complete {
        report
            .notes
            .push("some minutes were lost on their way: there may have been more".to_owned());
    }
    Ok(report)
}

/// Everything that decides what a client may do now. Parts that cannot be asked are named.
pub(super) async fn explain(id: &str, session: &Session<'_>) -> Result<Report, Failure> {
    let client = session.ask(session.api.client(id)).await?;
    let plan_name = text(&client, "plan");
    let plan = session.find(session.api.plan(&plan_name)).await?.unwrap_or(Value::Null);
    let keys = session.items(session.api.keys(Some(id))).await?;
    let active = keys.iter().filter(|key| key.get("state") == Some(&json!("active"))).count();
    let mut unknown = Vec::new();
    let mut part = |name: &str, asked: Result<Value, Failure>| {
        asked.unwrap_or_else(|failure| {
            let line = failure.lines.first().cloned().unwrap_or_default();
            unknown.push(format!("{name}: {line}"));
            Value::Null
        })
    };
    let standing = part("buckets", session.ask(session.api.inspect_limit(id)).await);
    let used = part("usage", usage_of(id, 60, session).await.map(|usage| json!(usage)));
    let own = client.get("override").cloned().unwrap_or(Value::Null);
    let in_force = |which: &str| match own.get(which).filter(|limit| !limit.is_null()) {
        Some(_) => {
            format!("{} (its own, until {})", limit(&own, which), time(own.get("expires_at")))
        }
        None => format!("{} (plan {plan_name})", limit(&plan, which)),
    };
    let mut fields = vec![
        ("client", id.to_owned()),
        ("state", text(&client, "state")),
        ("plan", plan_name.clone()),
        ("burst", in_force("burst")),
        ("sustained", in_force("sustained")),
        ("without store", text(if own.get("failure").is_some() { &own } else { &plan }, "failure")),
        ("bucket of", text(&plan, "scope")),
        ("keys", format!("{active} active of {}", keys.len())),
        ("phase", text(&standing, "phase")),
    ];
    for (name, which) in [("burst level", "burst"), ("sustained level", "sustained")] {
        if let Some(level) = standing.get(which).filter(|level| !level.is_null()) {
            fields
                .push((name, format!("{} of {}", text(level, "tokens"), text(level, "capacity"))));
        }
    }
    let minutes = used.get("minutes").and_then(Value::as_array).into_iter().flatten();
    let sum =
        |name: &str| minutes.clone().filter_map(|minute| minute.get(name)?.as_u64()).sum::<u64>();
    if !used.is_null() {
        let (requests, denied) = (sum("requests"), sum("edge_denied"));
        let told = format!(
            "{} requests, {} over the limit",
            grouped(requests),
            share((denied, denied), requests, 1)
        );
        fields.push(("last hour", told));
    }
    let verdict = verdict(&client, active, &standing);
    fields.push(("so", verdict.clone()));
    let json = json!({ "client": client, "plan": plan, "keys": keys.len(), "keys_active": active,
                       "standing": standing, "usage": used, "so": verdict, "unknown": unknown });
    let mut report = Report::new(json, Shown::Fields(fields)).named(id);
    report.notes.extend(unknown.into_iter().map(|line| format!("not known, {line}")));
    Ok(report)
}

/// What a request of it would meet, in one sentence.
fn verdict(client: &Value, active: usize, standing: &Value) -> String {
    if client.get("state") == Some(&json!("suspended")) {
        return "every request is refused: it is suspended".to_owned();
    }
    if active == 0 {
        return "no request gets in: it has no active key".to_owned();
    }
    match (standing.get("phase").and_then(Value::as_str), standing.get("remaining")) {
        (Some("off"), _) => "nothing holds it: it is off".to_owned(),
        (Some("shadow"), _) => "nothing holds it: it is in shadow, and only counted".to_owned(),
        (Some(_), Some(Value::Number(left))) if left.as_u64() == Some(0) => {
            "requests are refused until its bucket has tokens again".to_owned()
        }
        (Some(_), _) => "requests pass".to_owned(),
        (None, _) => "no gateway told how its bucket stands".to_owned(),
    }
}

/// The clients that matter most now, with their limits.
pub(super) async fn top(flags: &Top, session: &Session<'_>) -> Result<Report, Failure> {
    let call = Call::get("/v1/shadow/clients/top")
        .query("by", flags.by.name())
        .query("n", flags.n.to_string())
        .query("window_minutes", TOP_MINUTES.to_string());
    let top = session.ask(session.api.http().send::<Items<TopClient>>(call)).await?;
    let plans = session.items(session.api.plans()).await?;
    let mut items = Vec::new();
    for seen in top.get("items").and_then(Value::as_array).into_iter().flatten() {
        let id = text(seen, "client");
        let client = session.find(session.api.client(&id)).await?.unwrap_or(Value::Null);
        let name = text(&client, "plan");
        let plan = plans.iter().find(|plan| text(plan, "name") == name).unwrap_or(&Value::Null);
        // a client that no gateway knows has a full bucket, and no level to show
        let standing = session.ask(session.api.inspect_limit(&id)).await.unwrap_or(Value::Null);
        let count = |field: &str| seen.get(field).and_then(Value::as_u64).unwrap_or_default();
        let (requests, denied) = (count("requests"), count("would_deny"));
        let per_10_s = requests * 10 / (TOP_MINUTES * 60);
        items.push(json!({
            "client": id, "plan": client.get("plan"),
            "rps": format!("{}.{}", per_10_s / 10, per_10_s % 10),
            "requests": requests, "limit": plan.get("burst").and_then(|burst| burst.get("refill")),
            "level": standing.get("remaining"), "would_deny": denied,
            "would_deny_share": share((denied, denied), requests, 1),
            "disagreements": count("disagreements"), "phase": seen.get("phase"),
        }));
    }
    let headings: &[&str] =
        &["CLIENT", "PLAN", "RPS", "LIMIT", "LEVEL", "WOULD-DENY", "DISAGREE", "PHASE"];
    let fields =
        ["client", "plan", "rps", "limit", "level", "would_deny_share", "disagreements", "phase"];
    let report = Report::list(&items, headings, "client", |item| {
        fields.iter().map(|field| text(item, field)).collect()
    });
    Ok(report.note(format!("{} of the last {TOP_MINUTES} minutes", counted(items.len(), "client"))))
}
