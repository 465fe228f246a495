//! Gateways that start while neither plans-api nor its database is there: one with its own state,
//! one with nothing but a bootstrap file.

use std::fs::{File, remove_dir_all};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use system_tests::traffic::Callers;
use tokio::time::{Instant, sleep};

use super::scene::{GREEDY, RESTARTED, SOUND, Scene};
use crate::report::{Limit, Report};

/// A first decision that has not come after this is not waited for.
const GIVE_UP: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The bootstrap file, written while plans-api is there.
pub async fn export(scene: &Scene) -> anyhow::Result<PathBuf> {
    let said = scene.world.weir(&["export", "--bootstrap"]).await?;
    anyhow::ensure!(said.code == 0, "weir export --bootstrap: {said:?}");
    let file = scene.world.dir().join("bootstrap.json");
    std::fs::write(&file, said.stdout)?;
    Ok(file)
}

/// Starts the one and restarts the other, each timed from its start to its first decision.
pub async fn both(scene: &mut Scene, bootstrap: &Path, report: &mut Report) -> anyhow::Result<()> {
    let (started, decided) = from_bootstrap(scene, bootstrap).await?;
    report.require("started_first_decision_seconds", started, Limit::AtMost(2.0));
    // Not only the first of them: the file has every key.
    let missed = f64::from(u32::try_from(SOUND - decided)?);
    report.require("started_clients_unserved", missed, Limit::Exactly(0.0));
    let began = Instant::now();
    let gateway = scene.world.gateways.get_mut(RESTARTED).context("no such gateway")?;
    gateway.restart().await?;
    let callers = scene.callers.clone();
    let restarted = first_decision(&callers, RESTARTED, began).await;
    report.require("restarted_first_decision_seconds", restarted, Limit::AtMost(2.0));
    Ok(())
}

/// A gateway that has never run before: until its first decision, and how many clients it serves.
/// It is started once to have its settings, and then for the measurement, with nothing but them and
/// the file.
async fn from_bootstrap(scene: &mut Scene, bootstrap: &Path) -> anyhow::Result<(f64, usize)> {
    scene.world.start_gateway(|_same| {}).await?;
    let dir = scene.world.dir().to_owned();
    let gateway = scene.world.gateways.last_mut().context("no such gateway")?;
    gateway.child()?.kill()?;
    let settings = std::fs::read_to_string(gateway.file())?;
    let line = format!("[control]\nbootstrap_file = {bootstrap:?}");
    let with = settings.replacen("[control]", &line, 1);
    anyhow::ensure!(with != settings, "the settings have no [control]");
    File::create(gateway.file())?.write_all(with.as_bytes())?;
    let state = dir.join(format!("{}.state", gateway.id));
    remove_dir_all(&state)?;
    std::fs::create_dir_all(&state)?;

    let began = Instant::now();
    gateway.restart().await?;
    let traffic = gateway.traffic;
    let keys: Vec<(String, String)> = scene.keys.iter().take(GREEDY).cloned().collect();
    let callers = Callers::new(&[traffic], &scene.world.services.names(), &keys)?;
    let first = first_decision(&callers, 0, began).await;
    let mut decided = 0;
    for client in 0..SOUND {
        decided += usize::from(callers.one(client, 0, 0).await.status == 200);
    }
    Ok((first, decided))
}

/// Seconds from `began` to the first request that was decided, and served.
async fn first_decision(callers: &Callers, gateway: usize, began: Instant) -> f64 {
    while began.elapsed() < GIVE_UP {
        if callers.one(0, gateway, 0).await.status == 200 {
            return began.elapsed().as_secs_f64();
        }
        sleep(LOOK_EVERY).await;
    }
    GIVE_UP.as_secs_f64()
}
