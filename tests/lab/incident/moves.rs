//! What an operator does: twenty plan changes, and the way back from enforcement. Both must be in
//! force at the slowest gateway within a second.

use std::time::Duration;

use demo::incident::Shot;
use rustix::process::Signal;
use serde_json::json;
use system_tests::control::plan;
use system_tests::traffic::Callers;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Sabotage;
use super::scene::{CHANGED, Scene};
use crate::report::{Limit, Report};

const CHANGES: u64 = 20;
/// A change that is not there after this is not waited for.
const CHANGE_MAX: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(4);

/// From sending the change (its commit comes after) to the first answer that tells the new
/// capacity, at the slowest gateway.
pub async fn plan_changes(scene: &mut Scene, report: &mut Report) -> anyhow::Result<()> {
    let client = scene.callers.client(CHANGED)?;
    let mut all = Vec::new();
    for number in 1..=CHANGES {
        let capacity = 1_000 + number;
        let mut watching = JoinSet::new();
        for gateway in 0..scene.world.gateways.len() {
            watching.spawn(watch(scene.callers.clone(), client, gateway, capacity));
        }
        let began = Instant::now();
        scene.world.control.put_plan(CHANGED, &plan(capacity, "1000/s", "coarse")).await?;
        let silent = scene.sabotage == Some(Sabotage::SilentControlPlane);
        if silent {
            scene.world.plans_api.child()?.signal(Signal::STOP)?;
            sleep(Duration::from_millis(1_500)).await;
            scene.world.plans_api.child()?.signal(Signal::CONT)?;
        }
        let mut slowest = Duration::ZERO;
        while let Some(seen) = watching.join_next().await {
            let (seen, requests) = seen?;
            report.samples(requests);
            slowest = slowest.max(seen.saturating_duration_since(began));
        }
        all.push(slowest);
        // Changes at random moments of whatever rhythm the feed has.
        sleep(Duration::from_millis(fastrand::u64(0..150))).await;
    }
    let worst = all.iter().max().copied().unwrap_or(CHANGE_MAX);
    report.require("plan_change_seconds", worst.as_secs_f64(), Limit::AtMost(1.0));
    let raw: Vec<f64> = all.iter().map(Duration::as_secs_f64).collect();
    report.round(json!({ "plan_changes_seconds": raw }));
    Ok(())
}

/// When this gateway first told `capacity`, and how many requests it took.
async fn watch(callers: Callers, client: usize, gateway: usize, capacity: u64) -> (Instant, u64) {
    let deadline = Instant::now() + CHANGE_MAX;
    let mut requests = 0;
    loop {
        let sent = callers.one(client, gateway, 0).await;
        requests += 1;
        let now = Instant::now();
        if sent.capacity_told() == Some(capacity) || now > deadline {
            return (now, requests);
        }
        sleep(PAUSE).await;
    }
}

/// From sending the rollback to the last refusal at any gateway.
pub async fn rollback(scene: &mut Scene, report: &mut Report) -> anyhow::Result<()> {
    scene.enforce_everybody().await?;
    let length = Duration::from_secs(5);
    let mut shots = Vec::new();
    for number in 0..length.as_millis() / 5 {
        let at = Duration::from_millis(u64::try_from(number)? * 5);
        let gateway = usize::try_from(number)? % scene.world.gateways.len();
        shots.push(Shot { at, client: 0, gateway, service: 0 });
    }
    scene.rest().await?;
    let control = scene.world.control.clone();
    let callers = scene.callers.clone();
    let back = async {
        sleep(Duration::from_millis(2_500)).await;
        let asked = callers.now_us();
        control.rollback().await?;
        Ok::<u64, anyhow::Error>(asked)
    };
    let (sent, asked) = tokio::try_join!(scene.callers.open_loop(&shots), back)?;
    report.samples(sent.len() as u64);
    let refused = |sent: &&system_tests::traffic::Sent| sent.by_edge && sent.status == 429;
    let earlier = sent.iter().filter(|s| s.sent_us < asked).filter(refused).count();
    anyhow::ensure!(earlier > 50, "nothing was refused before the rollback");
    let last = sent.iter().filter(refused).map(|sent| sent.sent_us).max().unwrap_or(asked);
    let seconds = Duration::from_micros(last.saturating_sub(asked)).as_secs_f64();
    report.require("rollback_seconds", seconds, Limit::AtMost(1.0));
    Ok(())
}
