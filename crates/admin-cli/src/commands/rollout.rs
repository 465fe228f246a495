//! Rollouts: phases of clients, and the gate before all are enforced.
//!
//! plans-api decides whether the gate lets a move pass; its refusal comes back with the verdict,
//! and becomes exit 3 or 4 here. Moving back is never asked about: it must be quick.

use serde_json::{Value, json};
use wire::client::plans::Whom;
use wire::gate::{GateReport, GateVerdict, LINE_ONE_IN, PAIRS_MIN};
use wire::rollout::Phase;

use super::plans::done;
use crate::args::{ChangeFlags, GateCommand, RolloutCommand};
use crate::failure::{Exit, Failure};
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted, shortened};

const HEADINGS: &[&str] = &["ROLLOUT", "ALL", "CLIENTS", "REVISION"];

pub(crate) async fn run(command: RolloutCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        RolloutCommand::Set { name, phase, clients, all: _, change } => {
            set(&name, phase, &clients, &change, session).await
        }
        RolloutCommand::Rollback { name, to, change } => {
            let reason = session.reason(&change)?;
            let json = session.ask(session.api.roll_back(&name, Some(to), reason)).await?;
            let said = format!("rollout {name}: everybody back to {}", to.name());
            Ok(session.finish(done(json, &name, said), &change).await)
        }
        RolloutCommand::Get { name } => {
            Ok(shown(session.ask(session.api.rollout(&name)).await?, &name))
        }
        RolloutCommand::List => {
            let rollouts = session.items(session.api.rollouts()).await?;
            Ok(Report::list(&rollouts, HEADINGS, "name", row))
        }
    }
}

async fn set(
    name: &str,
    phase: Phase,
    clients: &[String],
    change: &ChangeFlags,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let reason = change.reason.as_deref().unwrap_or_default();
    if reason.is_empty() {
        return Err(Failure::usage("a move of a rollout needs --reason"));
    }
    let whom = if clients.is_empty() { "everybody".to_owned() } else { shortened(clients) };
    match phase {
        Phase::Enforce if !change.yes => {
            let count = match clients.len() {
                0 => session.items(session.api.clients()).await?.len(),
                some => some,
            };
            let danger = format!("enforce the limits of {whom} ({})", counted(count, "client"));
            session.confirm(change, &danger, Some(name))?;
        }
        Phase::Off | Phase::Shadow | Phase::Enforce => {
            let danger = format!("put {whom} into {}", phase.name());
            session.confirm_in_production(change, &danger)?;
        }
    }
    let whole = if clients.is_empty() { Whom::All } else { Whom::Clients(clients.to_vec()) };
    let json = match session.ask(session.api.set_rollout(name, &whole, phase, reason)).await {
        Ok(json) => json,
        Err(failure) if failure.code == "gate_refused" => {
            return Err(refused(failure, name, session).await);
        }
        Err(failure) => return Err(failure),
    };
    let mut said = format!("rollout {name}: {whom} in {}", phase.name());
    if let Some(replaced) = json.get("replaced").and_then(Value::as_u64).filter(|n| *n > 0) {
        said = format!("{said}; rules of single clients replaced: {replaced}");
    }
    Ok(session.finish(done(json, name, said), change).await)
}

/// The gate's refusal with the number it stands on, read again: a refusal is worth a second call.
async fn refused(failure: Failure, name: &str, session: &Session<'_>) -> Failure {
    let gate = session.ask(session.api.gate(name)).await;
    let Some((verdict, report)) = gate.as_ref().ok().and_then(judged) else { return failure };
    let exit = match verdict {
        // between the refusal and our look the number became good: still refused, not passed
        GateVerdict::Pass => Exit::Conflict,
        GateVerdict::Fail | GateVerdict::Insufficient => Exit::of_verdict(verdict),
    };
    let detail = json!({ "verdict": verdict, "report": report });
    Failure { exit, detail, ..failure.and(sentence(&report)) }
}

/// `GET /v1/gates/{name}`, with the verdict that plans-api gives; never a verdict of our own.
fn judged(gate: &Value) -> Option<(GateVerdict, GateReport)> {
    let verdict = serde_json::from_value(gate.get("verdict")?.clone()).ok()?;
    let report = serde_json::from_value(gate.get("report")?.clone()).ok()?;
    Some((verdict, report))
}

fn sentence(report: &GateReport) -> String {
    let (differing, all) = report.number();
    format!(
        "{differing} of {all} pairs differ ({}), {} of {PAIRS_MIN} pairs needed; the line is 1 in \
         {LINE_ONE_IN}",
        per_cent(differing, all),
        report.pairs
    )
}

/// Four decimals of a per cent, rounded up: never shown better than it is.
fn per_cent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "no pairs".to_owned();
    }
    let parts = (u128::from(part) * 1_000_000).div_ceil(u128::from(whole));
    format!("{}.{:04} %", parts / 10_000, parts % 10_000)
}

pub(crate) async fn gate(command: GateCommand, session: &Session<'_>) -> Result<Report, Failure> {
    let GateCommand::Status { name } = command;
    let gate = session.ask(session.api.gate(&name)).await?;
    let Some((verdict, report)) = judged(&gate) else {
        return Err(Failure::new(Exit::Failed, "malformed", "the gate's report cannot be read"));
    };
    let (differing, all) = report.number();
    let age = report.last_batch_seconds;
    let fields = vec![
        ("verdict", text(&gate, "verdict")),
        ("number", format!("{} ({differing} of {all})", per_cent(differing, all))),
        ("line", format!("below 1 in {LINE_ONE_IN}, over at least {PAIRS_MIN} pairs")),
        ("pairs", report.pairs.to_string()),
        ("edge stricter", report.stricter.to_string()),
        ("edge looser", report.looser.to_string()),
        ("lost", report.lost.to_string()),
        ("undecided", report.undecided.to_string()),
        ("unpaired", report.unpaired.to_string()),
        ("last batch", age.map_or_else(|| "never".to_owned(), |age| format!("{age} s ago"))),
    ];
    let text = text(&gate, "verdict");
    let report = Report::new(gate, Shown::Fields(fields)).named(text);
    Ok(Report { exit: Exit::of_verdict(verdict), ..report })
}

fn rules(rollout: &Value) -> impl Iterator<Item = (&Value, Option<&str>)> {
    rollout
        .get("rules")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|rule| (rule, rule.pointer("/subject/client").and_then(Value::as_str)))
}

fn row(rollout: &Value) -> Vec<String> {
    let all = rules(rollout).find(|(_, client)| client.is_none());
    let single = rules(rollout).filter(|(_, client)| client.is_some()).count();
    vec![
        text(rollout, "name"),
        all.map_or_else(|| "enforce".to_owned(), |(rule, _)| text(rule, "phase")),
        single.to_string(),
        text(rollout, "revision"),
    ]
}

fn shown(rollout: Value, name: &str) -> Report {
    let rows = rules(&rollout).map(|(rule, client)| {
        vec![
            client.unwrap_or("(everybody else)").to_owned(),
            text(rule, "phase"),
            text(rule, "since_revision"),
        ]
    });
    let rows = rows.collect();
    let note = format!("rollout {name} at revision {}", text(&rollout, "revision"));
    Report::new(rollout, Shown::Rows(&["CLIENT", "PHASE", "SINCE-REVISION"], rows))
        .named(name)
        .note(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_never_shown_better_than_it_is() {
        assert_eq!(per_cent(0, 3_000), "0.0000 %");
        assert_eq!(per_cent(1, 1_000), "0.1000 %");
        assert_eq!(per_cent(2_999, 3_000_000), "0.1000 %");
        assert_eq!(per_cent(1, u64::MAX), "0.0001 %");
        assert_eq!(per_cent(0, 0), "no pairs");
    }

    #[test]
    fn a_verdict_is_read_and_never_made_up() {
        let report = serde_json::to_value(GateReport::default()).unwrap();
        assert!(judged(&json!({ "report": report })).is_none());
        let gate = json!({ "report": report, "verdict": "insufficient" });
        assert_eq!(judged(&gate).unwrap().0, GateVerdict::Insufficient);
    }
}
