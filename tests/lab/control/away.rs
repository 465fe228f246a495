//! Postgres frozen, then killed, then plans-api killed too, and back: under steady load, while one
//! gateway is restarted and one is started for the first time.

use std::time::Duration;

use serde_json::json;
use system_tests::control::{Control, plan};
use system_tests::oracle::float;
use system_tests::process::eventually;
use tokio::time::{Instant, sleep, sleep_until};
use wire::client::ClientError;

use super::frozen::Frozen;
use super::scene::{LOADED, Scene, sound};
use super::{Extent, Sabotage, starts};
use crate::report::{Limit, Report};

/// Between two questions to a plans-api without its database.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// How long everything may take to be as before once both are back.
const BACK_MAX: Duration = Duration::from_secs(30);

/// What plans-api says while its database is away.
#[derive(Debug, Default)]
struct Said {
    longest: Duration,
    answers: usize,
    /// Neither 503 nor right.
    wrong: usize,
}

pub async fn play(
    scene: &mut Scene,
    extent: &Extent,
    sabotage: Option<Sabotage>,
    random: &mut fastrand::Rng,
    report: &mut Report,
) -> anyhow::Result<()> {
    let load = scene.load(extent.before, random);
    let before = load.await??;
    let before = scene.judge("before", &before, report).await?;
    let bootstrap = starts::export(scene).await?;

    let load = scene.load(extent.away, random);
    let gone = Instant::now();
    let happened = happen(scene, extent, sabotage, gone, &bootstrap, report).await;
    let away = load.await??;
    happened?;
    let away = scene.judge("away", &away, report).await?;

    report.require("errors_before", float(before.touched), Limit::Exactly(0.0));
    report.require("effect_on_known_clients", float(away.touched), Limit::Exactly(0.0));
    // Limits go on as they were: neither everything nor nothing is let through.
    let held = Limit::Between(0.95, 1.05);
    report.require("limited_client_over_its_plan", away.greedy_over_plan, held);
    report.field("requests_while_away", json!(away.requests));
    report.field("p99_ms_before", json!(before.p99_ms));
    report.field("p99_ms_while_away", json!(away.p99_ms));
    back(scene, report).await
}

async fn happen(
    scene: &mut Scene,
    extent: &Extent,
    sabotage: Option<Sabotage>,
    gone: Instant,
    bootstrap: &std::path::Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    let stopped = Frozen::freeze(&scene.world).await?;
    // What was under way at that moment waits for its statement's own bound.
    sleep(ASK_EVERY).await;
    let frozen = ask(&scene.world.control, gone + extent.ask).await;
    drop(stopped);
    let postgres = scene.world.postgres.as_mut();
    postgres.ok_or_else(|| anyhow::anyhow!("this world has no Postgres"))?.kill()?;
    let killed = ask(&scene.world.control, gone + extent.ask * 2).await;
    for (name, said, most) in [("frozen", &frozen, 2.0), ("killed", &killed, 5.0)] {
        let longest = format!("answer_seconds_database_{name}");
        report.require(&longest, said.longest.as_secs_f64(), Limit::AtMost(most));
        report.round(json!({ "database": name, "answers": said.answers }));
    }
    let wrong = float(frozen.wrong + killed.wrong);
    report.require("wrong_answers_without_database", wrong, Limit::Exactly(0.0));
    scene.world.plans_api.kill()?;

    if sabotage == Some(Sabotage::ForgetfulGateway) {
        forget(scene, 0)?;
        if let Some(gateway) = scene.world.gateways.first_mut() {
            gateway.restart().await?;
        }
    }
    if sabotage == Some(Sabotage::LostState) {
        forget(scene, super::scene::RESTARTED)?;
    }
    starts::both(scene, bootstrap, report).await?;
    sleep_until(gone + extent.away).await;
    Ok(())
}

/// A gateway ends, and its state folder is lost.
fn forget(scene: &mut Scene, number: usize) -> anyhow::Result<()> {
    let dir = scene.world.dir().to_owned();
    let gateway = scene.world.gateways.get_mut(number);
    let gateway = gateway.ok_or_else(|| anyhow::anyhow!("there is no gateway {number}"))?;
    gateway.child()?.kill()?;
    let state = dir.join(format!("{}.state", gateway.id));
    std::fs::remove_dir_all(&state)?;
    std::fs::create_dir_all(&state)?;
    Ok(())
}

/// Reads and writes in turn, one after the other, until `end`.
async fn ask(control: &Control, end: Instant) -> Said {
    let mut said = Said::default();
    while Instant::now() < end {
        let began = Instant::now();
        let answer = if said.answers.is_multiple_of(2) {
            control.get(&format!("/v1/plans/{}", sound(0))).await.map(drop)
        } else {
            control.put_plan(&sound(1), &plan(1_101, "500/s", "coarse")).await.map(drop)
        };
        said.longest = said.longest.max(began.elapsed());
        said.answers += 1;
        let told = answer.as_ref().err().and_then(|error| error.downcast_ref::<ClientError>());
        let status = told.and_then(ClientError::refused).map(|body| body.status);
        said.wrong += usize::from(status != Some(503));
        sleep_until(began + ASK_EVERY).await;
    }
    said
}

/// Both come back, and a change reaches every gateway again.
async fn back(scene: &mut Scene, report: &mut Report) -> anyhow::Result<()> {
    let began = Instant::now();
    let postgres = scene.world.postgres.as_mut();
    postgres.ok_or_else(|| anyhow::anyhow!("this world has no Postgres"))?.restart().await?;
    scene.world.plans_api.restart().await?;
    scene.world.wait_ready().await?;
    scene.world.control.put_plan(&sound(0), &plan(1_111, "500/s", "coarse")).await?;
    for gateway in 0..LOADED + 1 {
        eventually("the change is seen", BACK_MAX, || async {
            let sent = scene.callers.one(0, gateway, 0).await;
            Ok((sent.capacity_told() == Some(1_111)).then_some(()))
        })
        .await?;
    }
    report.field("back_seconds", json!(began.elapsed().as_secs_f64()));
    scene.world.services.forget_arrivals().await
}
