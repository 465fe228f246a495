//! How soon a change is in force everywhere, and what it costs to tell: ten thousand plans and a
//! million API keys in the database of a real plans-api, eight real gateways, an operator who
//! changes plans and revokes keys.
//!
//! A wait begins with the answer to the operator's call and ends with the first answer to a request
//! that shows the effect: the plan's new number in its limit fields, a 401. It is taken at each
//! gateway, with a key that the gateway has known all along. Each gateway's calls to plans-api are
//! counted there: at rest, while a hundred changes a second are made, and while the whole fleet and
//! plans-api start at once.

mod seed; // the database, filled
mod stage; // the parts
mod lags; // an operator's move and its effect at each gateway
mod storm; // many changes

use std::time::Duration;

use serde_json::json;
use sqlx::{Connection as _, Executor as _};
use system_tests::oracle::float;
use system_tests::world::PLANS_DATABASE;
use tokio::time::{Instant, sleep, sleep_until};
use wire::client::{Call, Client};

use crate::report::{Limit, Report};
use lags::{Lags, Move};
use seed::{CAPACITY, Size};
use stage::{Stage, round};

const GATEWAYS: u32 = 8;
/// On average, between two moves of the operator: some two a second.
const GAP: Duration = Duration::from_millis(600);
/// Moves while nobody hears the doorbell.
const DEAF_MOVES: u32 = 40;
/// How often every connection that hears the doorbell is cut meanwhile.
const CUT_EVERY: Duration = Duration::from_millis(150);
/// The planted gateway that asks without end, in calls a second.
const CHATTY_EVERY: Duration = Duration::from_millis(50);

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    /// Gateways hear everything 2.5 s later: `plan_change_p99_seconds`.
    SlowFeed,
    /// One gateway hears nothing any more: `revocation_p99_seconds`.
    DeafGateway,
    /// One gateway asks twenty times a second: `idle_calls_per_gateway_second`.
    ChattyGateway,
}

const SABOTAGES: [(&str, Sabotage); 3] = [
    ("slow-feed", Sabotage::SlowFeed),
    ("deaf-gateway", Sabotage::DeafGateway),
    ("chatty-gateway", Sabotage::ChattyGateway),
];

/// How much of everything.
#[derive(Debug, Clone, Copy)]
struct Extent {
    size: Size,
    /// The database is Postgres, not SQLite.
    postgres: bool,
    /// Plan changes, and as many revocations.
    moves: u32,
    idle: Duration,
    storm: Duration,
    /// After the restart of everything, calls are counted for so long.
    restarted: Duration,
}

const FULL: Extent = Extent {
    size: Size { plans: 10_000, clients: 100_000, keys: 1_000_000 },
    postgres: true,
    moves: 500,
    idle: Duration::from_secs(30),
    storm: Duration::from_secs(60),
    restarted: Duration::from_secs(30),
};
const QUICK: Extent = Extent {
    size: Size { plans: 2_000, clients: 5_000, keys: 50_000 },
    postgres: false,
    moves: 16,
    idle: Duration::from_secs(4),
    storm: Duration::from_secs(10),
    restarted: Duration::from_secs(6),
};

impl Extent {
    /// Clients whose keys are known to the experiment: those of the operator's moves, of the moves
    /// while nobody hears the doorbell, and of the watched changes of the storm.
    fn watched(&self) -> Vec<u32> {
        let first = self.moves * 2 + DEAF_MOVES;
        let storm = self.storm_plans().step_by(usize::try_from(storm::WATCHED_EVERY).unwrap_or(1));
        (0..first).chain(storm).collect()
    }

    fn storm_plans(&self) -> std::ops::Range<u32> {
        let first = self.moves * 2 + DEAF_MOVES;
        let seconds = u32::try_from(self.storm.as_secs()).unwrap_or(0);
        first..first + storm::RATE * seconds
    }
}

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(|name| crate::report::named(&SABOTAGES, name)).transpose()?;
    let extent = if quick { QUICK } else { FULL };
    let mut report = Report::new("propagate", seed);
    let mut random = fastrand::Rng::with_seed(seed);
    report.samples_needed(u64::from(extent.moves * 2 * GATEWAYS));
    let mut stage = Stage::set(&extent, sabotage, &mut report).await?;
    moves(&stage, &extent, &mut random, &mut report).await?;
    stage.revive();
    idle(&stage, &extent, sabotage, &mut report).await?;
    many(&stage, &extent, &mut report).await?;
    if extent.postgres {
        deaf(&stage, &extent, &mut random, &mut report).await?;
    }
    restart(&mut stage, &extent, &mut report).await?;
    Ok(report)
}

/// The operator's day: single moves at random moments.
async fn moves(
    stage: &Stage,
    extent: &Extent,
    random: &mut fastrand::Rng,
    report: &mut Report,
) -> anyhow::Result<()> {
    let of = usize::try_from(extent.moves)?;
    let mut moves = Vec::new();
    for number in 0..of {
        moves.push((number, Move::Plan(CAPACITY + 1 + number as u64)));
        moves.push((of + number, Move::Revoke));
    }
    random.shuffle(&mut moves);
    let control = &stage.world.control;
    let (changes, revocations) = lags::at_random(stage, control, &moves, GAP, random).await?;
    let goals = [("plan_change", 1.0, 0.3, &changes), ("revocation", 2.0, 0.5, &revocations)];
    for (name, floor, goal, lags) in goals {
        report.samples(lags.all.len() as u64);
        report.offered(lags.offered());
        let p99 = lags.seconds(0.99);
        report.require(&format!("{name}_p99_seconds"), p99, Limit::AtMost(floor));
        report.field(&format!("{name}_p50_seconds"), json!(lags.seconds(0.5)));
        report.field(&format!("{name}_longest_seconds"), json!(lags.seconds(1.0)));
        report.field(&format!("{name}_goal_met"), json!(p99 <= goal));
        report.round(json!({ name: lags.json() }));
    }
    let unseen = float(changes.unseen + revocations.unseen);
    report.require("effects_not_seen", unseen, Limit::Exactly(0.0));
    let revoked: Vec<usize> = (of..of * 2).collect();
    let back = lags::came_back(stage, &revoked).await;
    report.require("revoked_keys_answered", float(back), Limit::Exactly(0.0));
    Ok(())
}

/// Nobody changes anything.
async fn idle(
    stage: &Stage,
    extent: &Extent,
    sabotage: Option<Sabotage>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let before = stage.asked().await?;
    let began = Instant::now();
    if sabotage == Some(Sabotage::ChattyGateway) {
        chatter(stage, began + extent.idle).await?;
    }
    sleep_until(began + extent.idle).await;
    let asked = stage.asked().await?.since(before);
    let calls = asked.per_gateway_second(began.elapsed());
    report.require("idle_calls_per_gateway_second", calls, Limit::AtMost(1.0));
    Ok(())
}

/// A gateway that does not wait for news.
async fn chatter(stage: &Stage, until: Instant) -> anyhow::Result<()> {
    let token = std::fs::read_to_string(stage.world.dir().join("gateway-token"))?;
    let client = Client::new(stage.world.control.base(), Some(token.trim()))?;
    let snapshot: serde_json::Value = client.send(Call::get("/v1/snapshot")).await?;
    let after = snapshot.get("revision").cloned().unwrap_or_default();
    let history = snapshot.get("history").cloned().unwrap_or_default();
    let request = json!({ "gateway": "gw-1", "boot": "x", "build": "x", "history": history,
        "after": after, "applied": after, "wait_ms": 0 });
    while Instant::now() < until {
        let next = Instant::now() + CHATTY_EVERY;
        client.send::<serde_json::Value>(Call::post("/v1/feed", &request)).await?;
        sleep_until(next).await;
    }
    Ok(())
}

/// A hundred changes a second.
async fn many(stage: &Stage, extent: &Extent, report: &mut Report) -> anyhow::Result<()> {
    let storm = storm::rage(stage, extent.storm).await?;
    report.offered(storm.offered);
    let calls = storm.asked.per_gateway_second(storm.length);
    report.require("busy_calls_per_gateway_second", calls, Limit::AtMost(1.0));
    report.require("busy_lag_p99_seconds", storm.lags.seconds(0.99), Limit::AtMost(5.0));
    report.field("busy_lag_p50_seconds", json!(storm.lags.seconds(0.5)));
    report.require("busy_effects_not_seen", float(storm.lags.unseen), Limit::Exactly(0.0));
    report.round(json!({ "busy": storm.lags.json() }));
    Ok(())
}

/// Changes made through another plans-api: heard of over Postgres, and then, while the connections
/// that hear are cut again and again, by reading.
async fn deaf(
    stage: &Stage,
    extent: &Extent,
    random: &mut fastrand::Rng,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (second, control) = stage.second().await?;
    let first = usize::try_from(extent.moves * 2)?;
    let half = usize::try_from(DEAF_MOVES / 2)?;
    let moves = |from: usize| -> Vec<(usize, Move)> {
        (from..from + half).map(|n| (n, Move::Plan(CAPACITY * 3 + n as u64))).collect()
    };
    let (heard, _) = lags::at_random(stage, &control, &moves(first), GAP, random).await?;
    let mut postgres = stage.world.postgres()?.connect(PLANS_DATABASE).await?;
    let cutting = async {
        loop {
            let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
                where application_name = 'weir doorbell'";
            if let Err(error) = postgres.execute(cut).await {
                return anyhow::Error::from(error);
            }
            sleep(CUT_EVERY).await;
        }
    };
    let moves = moves(first + half);
    let (unheard, _) = tokio::select! {
        error = cutting => return Err(error),
        moved = lags::at_random(stage, &control, &moves, GAP, random) => moved?,
    };
    postgres.close().await?;
    drop(second);
    let told = |report: &mut Report, name: &str, lags: &Lags, most: f64| {
        report.samples(lags.all.len() as u64);
        report.require(&format!("{name}_p99_seconds"), lags.seconds(0.99), Limit::AtMost(most));
        report.round(json!({ name: lags.json() }));
    };
    told(report, "other_process", &heard, 1.0);
    told(report, "without_listener", &unheard, 2.0);
    Ok(())
}

/// plans-api and the fleet start at once.
async fn restart(stage: &mut Stage, extent: &Extent, report: &mut Report) -> anyhow::Result<()> {
    let began = Instant::now();
    let ready = stage.restart_all().await?;
    sleep_until(began + extent.restarted).await;
    // Its counters began with it.
    let asked = stage.asked().await?;
    let calls = asked.per_gateway_second(began.elapsed());
    let snapshots = asked.snapshots / f64::from(GATEWAYS);
    report.require("restart_calls_per_gateway_second", calls, Limit::AtMost(1.0));
    report.require("restart_snapshots_per_gateway", snapshots, Limit::AtMost(1.0));
    report.field("restart_keys_looked_up", json!(asked.hashes));
    report.field("restart_ready_seconds", json!(round(ready)));
    Ok(())
}
