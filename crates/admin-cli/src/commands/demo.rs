//! `weir demo`: the incident and its cure, in one process.
//!
//! Orders, billing and search run with three replicas each, and every replica keeps a bucket of
//! its own: nine times the contract gets in. Then Weir is put in front, watched in shadow, held
//! back by the gate, led through it, and rolled back. Each phase checks its promise. Nothing here
//! is a measurement: one machine, short phases; the lab measures over separate processes.

mod load; // who sends what, and what came back
mod world; // services and Weir in this process

use std::time::Duration;

use demo::incident::NOISY_CLIENT;
use serde_json::{Value, json};
use wire::client::ClientError;
use wire::client::plans::Whom;
use wire::error::ErrorCode;
use wire::gate::{GateVerdict, PAIRS_MIN};
use wire::rollout::Phase;

use self::load::Seen;
use self::world::{NOISY_PLAN, World};
use crate::args::Demo;
use crate::failure::{Exit, Failure};
use crate::output::{Output, Report, Shown, text};

const ROLLOUT: &str = "incident";
const HEADINGS: &[&str] = &["PHASE", "OK", "SEEN"];
/// How long records and revisions may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(20);
/// Longest time to collect the pairs that the gate wants.
const EVIDENCE: Duration = Duration::from_secs(120);

/// The promises that were checked.
struct Story<'a> {
    world: World,
    output: &'a Output,
    phase: Duration,
    checks: Vec<Value>,
}

pub(crate) async fn run(flags: Demo, output: &Output) -> Result<Report, Failure> {
    output.say("weir demo: starting 9 replicas and Weir in this process");
    let failed = |fault: daemon::Failure| {
        Failure::new(Exit::Failed, "failed", format!("weir demo: {fault}"))
    };
    let world = World::start().await.map_err(failed)?;
    let mut story = Story { world, output, phase: flags.phase, checks: Vec::new() };
    let told = story.tell().await;
    story.world.stop().await;
    if let Err(error) = told {
        story.check("story", false, format!("broke off: {error}"));
    }
    let ok = story.checks.iter().all(|check| check.get("ok") == Some(&json!(true)));
    let mut report = Report::list(&story.checks, HEADINGS, "phase", |check| {
        let ok = if check.get("ok") == Some(&json!(true)) { "ok" } else { "FAIL" };
        vec![text(check, "phase"), ok.to_owned(), text(check, "seen")]
    });
    report.json = json!({ "ok": ok, "phases": story.checks });
    if output.was_read_along() {
        report.shown = Shown::Nothing;
    }
    report.exit = if ok { Exit::Done } else { Exit::Failed };
    Ok(report.note(if ok { "every promise was kept" } else { "a promise was broken" }))
}

impl Story<'_> {
    fn check(&mut self, phase: &str, ok: bool, seen: impl AsRef<str>) {
        let seen = seen.as_ref();
        self.output.say(&format!("{} {phase}: {seen}", if ok { "ok  " } else { "FAIL" }));
        self.checks.push(json!({ "phase": phase, "ok": ok, "seen": seen }));
    }

    async fn tell(&mut self) -> Result<(), ClientError> {
        self.before().await?;
        self.shadow().await?;
        self.gate().await?;
        self.enforce().await?;
        self.roll_back().await
    }

    /// Weir looks away: the old world.
    async fn before(&mut self) -> Result<(), ClientError> {
        self.put(&Whom::All, Phase::Off).await?;
        let seen = self.world.run(self.phase).await;
        let times = tenths(seen.noisy.allowed, contract(seen.sent));
        self.check(
            "before",
            times >= 80 && seen.noisy.refused_by_edge == 0,
            format!(
                "{NOISY_CLIENT} got {}.{} times its contract ({} requests in {} ms){}",
                times / 10,
                times % 10,
                seen.noisy.allowed,
                seen.sent.as_millis(),
                seen.others_told()
            ),
        );
        Ok(())
    }

    /// Weir decides and counts, and changes nothing.
    async fn shadow(&mut self) -> Result<(), ClientError> {
        self.put(&Whom::All, Phase::Shadow).await?;
        let reset = self.world.api.reset_limit(NOISY_CLIENT, "weir demo").await?;
        self.world.applied(reset.revision, ARRIVAL).await?;
        let seen = self.world.run(self.phase).await;
        let times = tenths(seen.noisy.allowed, contract(seen.sent));
        let ours = seen.noisy.refused_by_edge + seen.others.refused_by_edge;
        self.check(
            "shadow changes nothing",
            ours == 0 && times >= 80,
            format!("{ours} refusals by the edge, still {}.{} times", times / 10, times % 10),
        );
        let top = self.world.top(NOISY_CLIENT, seen.noisy.sent(), ARRIVAL).await?;
        let (requests, would_deny) = top.map_or((0, 0), |top| (top.requests, top.would_deny));
        let due = seen.noisy.sent().saturating_sub(contract(seen.sent));
        let off = would_deny.abs_diff(due) * 100;
        self.check(
            "shadow counts",
            requests == seen.noisy.sent() && off <= 5 * seen.noisy.sent(),
            format!("{would_deny} of {requests} would be denied; the contract says about {due}"),
        );
        Ok(())
    }

    /// The gate refuses as long as edge and services disagree, and not a moment longer.
    async fn gate(&mut self) -> Result<(), ClientError> {
        let refused = self.put(&Whom::All, Phase::Enforce).await;
        let verdict = self.world.api.gate(ROLLOUT).await?.verdict;
        let held = matches!(
            &refused,
            Err(ClientError::Refused(body)) if body.code == ErrorCode::GateRefused
        );
        self.check("gate refuses", held, format!("enforcing all is refused: {verdict:?}"));
        self.put(&Whom::Clients(vec![NOISY_CLIENT.to_owned()]), Phase::Enforce).await?;
        let mut waited = Duration::ZERO;
        let gate = loop {
            let seen = self.world.gather(self.phase).await;
            waited += seen.sent;
            let gate = self.world.settled_gate(ROLLOUT).await?;
            if gate.report.pairs >= PAIRS_MIN || waited >= EVIDENCE {
                break gate;
            }
        };
        self.check(
            "evidence",
            gate.verdict == GateVerdict::Pass,
            format!(
                "{NOISY_CLIENT} enforced alone; the others: {} of {} pairs differ",
                gate.report.disagreements, gate.report.pairs
            ),
        );
        Ok(())
    }

    async fn enforce(&mut self) -> Result<(), ClientError> {
        let moved = self.put(&Whom::All, Phase::Enforce).await;
        self.check(
            "gate lets pass",
            moved.is_ok(),
            moved.err().map_or_else(|| "all enforced".to_owned(), |error| error.to_string()),
        );
        let reset = self.world.api.reset_limit(NOISY_CLIENT, "weir demo").await?;
        self.world.applied(reset.revision, ARRIVAL).await?;
        self.world.forget_arrivals();
        let seen = self.world.run(self.phase).await;
        let arrived = self.world.arrivals_of(NOISY_CLIENT);
        // decisions were made at least from the first answer to the last request, and at most
        // until the last answer
        let least = contract(seen.sent.saturating_sub(seen.first_answer));
        let most = contract(seen.answered);
        let kept = (least * 97 / 100).saturating_sub(1)..=most + 1;
        self.check(
            "enforce",
            kept.contains(&seen.noisy.allowed) && seen.noisy.refused_by_edge > 0,
            format!(
                "{NOISY_CLIENT} got {} of a contract of {least} to {most}{}",
                seen.noisy.allowed,
                seen.others_told()
            ),
        );
        self.check(
            "refused early",
            arrived == seen.noisy.allowed + seen.noisy.refused_by_service,
            format!("{arrived} requests of {NOISY_CLIENT} reached a service"),
        );
        self.check(
            "others",
            seen.others.refused_by_edge == 0 && seen.others.failed == 0,
            format!(
                "of {} requests of the others {} were refused and {} failed",
                seen.others.sent(),
                seen.others.refused_by_edge,
                seen.others.failed
            ),
        );
        Ok(())
    }

    async fn roll_back(&mut self) -> Result<(), ClientError> {
        self.world.empty(NOISY_CLIENT).await;
        let start = self.world.now();
        self.world.api.roll_back(ROLLOUT, None, "weir demo").await?;
        let open = self.world.until_open(NOISY_CLIENT, ARRIVAL).await;
        let took = self.world.now().since(start);
        self.check("rollback", open, format!("nobody is refused after {} ms", took.as_millis()));
        Ok(())
    }

    async fn put(&self, whom: &Whom, phase: Phase) -> Result<(), ClientError> {
        let moved = self.world.api.set_rollout(ROLLOUT, whom, phase, "weir demo").await?;
        self.world.applied(moved.revision, ARRIVAL).await
    }
}

impl Seen {
    fn others_told(&self) -> String {
        format!(", the others waited {} ms at the 99th percentile", self.others_p99.as_millis())
    }
}

/// What the noisy client may have in a time that begins with a full bucket: C + R · T.
fn contract(length: Duration) -> u64 {
    let capacity = u128::from(NOISY_PLAN.capacity);
    let whole = capacity + capacity * length.as_millis() / 1_000;
    u64::try_from(whole).unwrap_or(u64::MAX)
}

fn tenths(part: u64, whole: u64) -> u64 {
    part.saturating_mul(10).checked_div(whole).unwrap_or_default()
}
