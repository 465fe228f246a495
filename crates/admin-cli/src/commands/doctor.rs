//! `weir doctor`: asks every part whether it is well, and says what to do where one is not.
//!
//! It only reads. A part that cannot be asked from here is a warning, not a fault: the operator
//! may stand outside of the gateways' network. Exit 14 as soon as one fault was found.

mod told; // what parts tell about themselves

use std::time::Duration;

use limiter_core::{Clock, SystemClock};
use serde_json::{Value, json};
use wire::client::{Call, Client};
use wire::error::ErrorCode;

use crate::failure::{Exit, Failure};
use crate::output::{Report, text};
use crate::session::{Session, counted, shortened};

/// How long gateways may lag behind the head before it is a fault: the promise is a second.
const LAG: Duration = Duration::from_secs(3);
/// Evidence older than this holds a rollout up.
const BATCH_SECONDS_MAX: u64 = 60;
/// First of all the store: everything else may be well.
const STORE_ADVICE: &str = "the store (Redis) does not answer this gateway: start it, or correct \
    [store] url; until then every plan's failure policy decides";
/// What a gateway counts of its store; absent where buckets are in memory.
const STORE_METRIC: &str = "weir_store_answering";
/// Patience with one part.
const PATIENCE: Duration = Duration::from_secs(3);

/// What was found out about one part.
struct Finding {
    part: String,
    state: State,
    detail: String,
    advice: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    Warn,
    Fail,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Fail => "FAIL",
        }
    }
}

fn found(part: &str, state: State, detail: impl Into<String>) -> Finding {
    Finding { part: part.to_owned(), state, detail: detail.into(), advice: None }
}

impl Finding {
    fn advise(self, advice: &'static str) -> Finding {
        Finding { advice: Some(advice), ..self }
    }
}

pub(crate) async fn run(session: &Session<'_>) -> Result<Report, Failure> {
    let mut findings = vec![context(session)];
    match head(session).await {
        Err(finding) => findings.push(finding),
        Ok(Head { finding, revision, more, clock_ahead_ms }) => {
            findings.push(finding);
            findings.extend(more);
            findings.push(token(session).await);
            findings.extend(gateways(session, revision).await);
            findings.push(shadow_compare(session).await);
            findings.extend(limiter(session, clock_ahead_ms).await);
        }
    }
    Ok(report(&findings))
}

fn context(session: &Session<'_>) -> Finding {
    let target = &session.target;
    let known = if target.token.is_some() { "with a token" } else { "without a token" };
    let detail = format!("{} ({}, {known})", target.addr, target.source);
    match target.token {
        Some(_) => found("context", State::Ok, detail),
        None => found("context", State::Warn, detail)
            .advise("set WEIR_TOKEN, or `weir context add NAME --addr URL --token-file FILE`"),
    }
}

/// plans-api and its database.
struct Head {
    finding: Finding,
    /// The revision that gateways should have.
    revision: u64,
    more: Vec<Finding>,
    /// Its clock against this machine's.
    clock_ahead_ms: i64,
}

async fn head(session: &Session<'_>) -> Result<Head, Finding> {
    let clock = SystemClock::new();
    let start = clock.now();
    let answer = session.ask(session.api.ready()).await;
    let took_ms = clock.now().since(start).as_millis();
    match answer {
        Ok(answer) => {
            let head = number_named(&answer, "revision").unwrap_or_default();
            let detail = format!("ready, database answers, head {head}, {took_ms} ms");
            let now = told::now_ms();
            let theirs = answer.pointer("/detail/now_ms").and_then(Value::as_u64).unwrap_or(now);
            Ok(Head {
                finding: found("plans-api", State::Ok, detail),
                revision: head,
                more: told::by_plans_api(&answer, now),
                clock_ahead_ms: theirs.cast_signed().saturating_sub(now.cast_signed()),
            })
        }
        Err(failure) if failure.exit == Exit::Unreachable && failure.code == "unreachable" => {
            Err(found("plans-api", State::Fail, failure.lines.join("; ")).advise(
                "start weir-plans-api (or `weir dev`), or set --addr; gateways go on without it",
            ))
        }
        Err(failure) if failure.lines.iter().any(|line| line.contains("writes fail")) => {
            Err(found("plans-api", State::Fail, failure.lines.join("; ")).advise(
                "make room where its database is (or let it write there); gateways go on, and \
                 reads are answered again as soon as one write works",
            ))
        }
        Err(failure) => Err(found("plans-api", State::Fail, failure.lines.join("; "))
            .advise("plans-api runs but is not ready: look at its log and its database")),
    }
}

/// The first number with this name, however deep it stands.
fn number_named(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| fields.values().find_map(|inner| number_named(inner, name))),
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            None
        }
    }
}

async fn token(session: &Session<'_>) -> Finding {
    match session.ask(session.api.plans()).await {
        Ok(plans) => {
            let count = plans.as_array().map_or(0, Vec::len);
            found("token", State::Ok, format!("accepted; {}", counted(count, "plan")))
        }
        Err(failure) if failure.exit == Exit::Denied => {
            found("token", State::Fail, failure.lines.join("; "))
                .advise("get a token from an admin: weir token create NAME --role viewer")
        }
        Err(failure) => found("token", State::Fail, failure.lines.join("; ")),
    }
}

async fn gateways(session: &Session<'_>, head: u64) -> Vec<Finding> {
    let clock = SystemClock::new();
    let start = clock.now();
    let (live, silent) = loop {
        let all = match session.items(session.api.gateways()).await {
            Ok(all) => all,
            Err(failure) => return vec![found("gateways", State::Fail, failure.lines.join("; "))],
        };
        let (live, silent): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|gateway| gateway.get("live") == Some(&json!(true)));
        let behind = live.iter().any(|gateway| applied(gateway) < head);
        if !behind || clock.now().since(start) >= LAG {
            break (live, silent);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let ids = |gateways: &[&Value]| {
        shortened(&gateways.iter().map(|gateway| text(gateway, "id")).collect::<Vec<_>>())
    };
    let mut findings = Vec::new();
    let behind: Vec<&Value> = live.iter().filter(|gateway| applied(gateway) < head).collect();
    findings.push(if live.is_empty() {
        found("gateways", State::Fail, "none has asked in the last 15 seconds")
            .advise("start weir-gateway with [control] plans_api and a gateway's token")
    } else if behind.is_empty() {
        found("gateways", State::Ok, format!("{} on revision {head} or newer", live.len()))
    } else {
        found("gateways", State::Fail, format!("not on revision {head}: {}", ids(&behind)))
            .advise("look at these gateways' logs: the feed does not move")
    });
    if !silent.is_empty() {
        let silent: Vec<&Value> = silent.iter().collect();
        findings.push(
            found("gateways", State::Warn, format!("silent: {}", ids(&silent)))
                .advise("gone for good, or cut off? Changes do not reach them"),
        );
    }
    for gateway in &live {
        findings.extend(rejected(gateway));
        findings.extend(operations(gateway).await);
    }
    findings
}

fn applied(gateway: &Value) -> u64 {
    gateway.get("applied").and_then(Value::as_u64).unwrap_or_default()
}

/// Objects that a gateway would not take.
fn rejected(gateway: &Value) -> Vec<Finding> {
    let rejected = gateway.get("rejected").and_then(Value::as_array).into_iter().flatten();
    let found = rejected.map(|object| {
        let part = format!("gateway {}", text(gateway, "id"));
        if text(object, "kind") == "pepper" {
            let detail = format!(
                "has another pepper than plans-api ({}): it knows no key; {}",
                text(object, "id"),
                text(object, "reason")
            );
            return found(&part, State::Fail, detail).advise(
                "copy plans-api's file `pepper` to the gateway's pepper_file, and restart it",
            );
        }
        let detail = format!(
            "refuses {} {} of revision {}: {}",
            text(object, "kind"),
            text(object, "id"),
            text(object, "revision"),
            text(object, "reason")
        );
        found(&part, State::Fail, detail)
            .advise("write the object again with the CLI; its last valid version is in force")
    });
    found.collect()
}

/// A gateway's own word, if its operations port can be reached from here.
async fn operations(gateway: &Value) -> Vec<Finding> {
    let part = format!("gateway {}", text(gateway, "id"));
    let Some(url) = gateway.get("ops_url").and_then(Value::as_str) else {
        return vec![found(&part, State::Warn, "tells no operations address")];
    };
    let ready = match Client::new(url, None) {
        Ok(client) => client.send::<Value>(Call::get("/readyz").deadline(PATIENCE)).await,
        Err(error) => Err(error),
    };
    let metrics = metrics(url).await;
    let own = match ready {
        Ok(_) if says_gone(&metrics) => {
            let detail = format!("ready at {url}, but its store does not answer");
            found(&part, State::Fail, detail).advise(STORE_ADVICE)
        }
        Ok(_) => found(&part, State::Ok, format!("ready at {url}")),
        Err(error) => found(&part, State::Warn, error.to_string())
            .advise("not reachable from here, or not ready: ask it from its own machine"),
    };
    std::iter::once(own).chain(told::by_metrics(&part, &metrics)).collect()
}

/// What a gateway counts; what it does not say is no fault.
async fn metrics(url: &str) -> String {
    let Ok(client) = Client::new(url, None) else { return String::new() };
    let metrics = client.send_raw(Call::get("/metrics").deadline(PATIENCE)).await;
    metrics.map_or_else(|_silent| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
}

fn says_gone(metrics: &str) -> bool {
    let values = metrics.lines().filter_map(|line| line.split_once(' '));
    values.filter(|(name, _)| *name == STORE_METRIC).any(|(_, value)| value.trim() == "0")
}

/// Through plans-api, as the gate asks it.
async fn shadow_compare(session: &Session<'_>) -> Finding {
    let part = "shadow-compare";
    let rollouts = match session.items(session.api.rollouts()).await {
        Ok(rollouts) => rollouts,
        Err(failure) => return found(part, State::Fail, failure.lines.join("; ")),
    };
    let Some(name) = rollouts.first().map(|rollout| text(rollout, "name")) else {
        let top = session.api.shadow_top(wire::client::plans::TopBy::Requests, 1);
        return match session.ask(top).await {
            Ok(_) => found(part, State::Ok, "answers; there is no rollout"),
            Err(failure) => unavailable(&failure),
        };
    };
    match session.ask(session.api.gate(&name)).await {
        Err(failure) => unavailable(&failure),
        Ok(gate) => match gate.pointer("/report/last_batch_seconds").and_then(Value::as_u64) {
            None => found(part, State::Warn, "answers, but no gateway has ever sent it a batch")
                .advise("set [control] shadow_compare at the gateways"),
            Some(age) if age > BATCH_SECONDS_MAX => {
                found(part, State::Fail, format!("the last batch came {age} s ago"))
                    .advise("look at the gateways' logs: their records do not arrive")
            }
            Some(age) => found(part, State::Ok, format!("last batch {age} s ago")),
        },
    }
}

fn unavailable(failure: &Failure) -> Finding {
    let detail = failure.lines.join("; ");
    if failure.code == ErrorCode::EvidenceUnavailable.name() {
        return found("shadow-compare", State::Fail, detail).advise(
            "start weir-shadow-compare and tell plans-api its address: no rollout goes on",
        );
    }
    found("shadow-compare", State::Fail, detail)
}

/// Reads one client's bucket the whole way: plans-api, gateway, store.
async fn limiter(session: &Session<'_>, clock_ahead_ms: i64) -> Vec<Finding> {
    let client = match session.items(session.api.clients()).await {
        Ok(clients) => clients.first().map(|client| text(client, "id")),
        Err(failure) => return vec![found("limiter", State::Fail, failure.lines.join("; "))],
    };
    let Some(client) = client else {
        return vec![found("limiter", State::Warn, "there is no client yet, so no bucket to read")];
    };
    let answer = session.ask(session.api.inspect_limit(&client)).await;
    let plans_now = told::now_ms().saturating_add_signed(clock_ahead_ms);
    let clock = answer.as_ref().ok().and_then(|standing| told::by_store(standing, plans_now));
    std::iter::once(bucket(&client, answer)).chain(clock).collect()
}

fn bucket(client: &str, answer: Result<Value, Failure>) -> Finding {
    match answer {
        Ok(_) => found("limiter", State::Ok, format!("the bucket of {client} can be read")),
        Err(failure) if failure.exit == Exit::NotFound => {
            found("limiter", State::Ok, format!("asked for {client}, which has not called yet"))
        }
        Err(failure) if names_store(&failure) => {
            let detail = failure.lines.iter().map(|line| without_countdown(line));
            found("limiter", State::Fail, detail.collect::<Vec<_>>().join("; "))
                .advise(STORE_ADVICE)
        }
        Err(failure) => found("limiter", State::Warn, failure.lines.join("; "))
            .advise("a gateway must be live and share plans-api's operations token"),
    }
}

/// Whether a gateway was reached and its store was not.
fn names_store(failure: &Failure) -> bool {
    failure.code == ErrorCode::LimiterClosed.name()
        || failure.lines.iter().any(|line| line.contains("bucket store"))
}

/// When a gateway asks its store again is over before it is read.
fn without_countdown(line: &str) -> String {
    let mut parts = line.split("; it is asked again in ");
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        told.push_str(
            part.find(|c: char| c == ';' || c.is_whitespace())
                .map_or("", |at| part.get(at..).unwrap_or_default()),
        );
    }
    told
}

fn report(findings: &[Finding]) -> Report {
    let items: Vec<Value> = findings
        .iter()
        .map(|finding| {
            json!({ "part": finding.part, "state": finding.state.name().to_lowercase(),
                    "detail": finding.detail, "advice": finding.advice })
        })
        .collect();
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    let (faults, warnings) = (count(State::Fail), count(State::Warn));
    let mut report = Report::list(&items, &["STATE", "PART", "DETAIL"], "part", |item| {
        let state = text(item, "state");
        let state = if state == "fail" { "FAIL".to_owned() } else { state };
        vec![state, text(item, "part"), text(item, "detail")]
    });
    if let Some(object) = report.json.as_object_mut() {
        object.insert("ok".to_owned(), json!(faults == 0));
        object.insert("faults".to_owned(), json!(faults));
        object.insert("warnings".to_owned(), json!(warnings));
    }
    let mut said = Vec::new();
    for finding in findings {
        if let Some(advice) = finding.advice.filter(|advice| !said.contains(advice)) {
            report.notes.push(format!("{} {} → {advice}", finding.state.name(), finding.part));
            said.push(advice);
        }
    }
    report.exit = if faults == 0 { Exit::Done } else { Exit::Fault };
    report.note(summary(faults, warnings))
}

fn summary(faults: usize, warnings: usize) -> String {
    match (faults, warnings) {
        (0, 0) => "all well".to_owned(),
        (0, _) => counted(warnings, "warning"),
        (_, 0) => counted(faults, "fault"),
        _ => format!("{}, {}", counted(faults, "fault"), counted(warnings, "warning")),
    }
}

#[cfg(test)]
mod tests;
