//! What limits cost a request in time: the same requests to the service itself, through a gateway
//! under an unlimited plan, and through it under limits, with Redis half a millisecond away.
//!
//! The three take turns in short slices, in random order, in an open loop that keeps half of
//! the machine busy, by a thousand clients of whom a few ask most (Zipf, 1.2). `added` is the
//! difference between the two ways through the gateway, so the machine's own noise is on both
//! sides. A client who asks less than once in some seconds gains nothing from leases: each of its
//! requests is a call, and waits for it.

mod slices; // one slice, and what it says

use std::time::Duration;

use anyhow::Context as _;
use demo::incident::Shot;
use fault_proxy::{FaultProxy, Rule, Toxic};
use serde_json::json;
use system_tests::gateways::Store;
use system_tests::oracle::{float, median};
use system_tests::redis::Redis;
use system_tests::services::Services;
use system_tests::traffic::Callers;

use crate::report::{Limit, Report};
use crate::standalone::{DEADLINE, Folder, Plans, SERVICE, Standalone};
use slices::{Slice, Way};

/// What is added to Redis's own round trip.
const ROUND_TRIP: Duration = Duration::from_micros(500);
const FAR_ROUND_TRIP: Duration = Duration::from_millis(4);
/// Clients of each plan.
const CLIENTS: usize = 1_000;
/// Fewest requests, of each way.
const SAMPLES_MIN: u64 = 60_000;
const QUICK_SAMPLES_MIN: u64 = 6_000;
/// Figures are medians over so many rounds.
const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_secs(2);
/// Turns that the machine spoilt are played again, so many in all.
const SPOILT_MAX: usize = 20;
/// The load of the figures, as a share of the machine that gateway, service, store and callers keep
/// busy together, and the small load by which it is found.
const LOAD: f64 = 0.5;
const SOUNDING_PER_S: f64 = 4_000.0;

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Redis is four milliseconds away.
    FarStore,
    /// Buckets too small to borrow from: each request is a call.
    NoLeases,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 2] =
        [("far-store", Sabotage::FarStore), ("no-leases", Sabotage::NoLeases)];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }
}

/// The parts and who calls them.
struct Scene {
    world: Standalone,
    callers: Callers,
    proxy: FaultProxy,
    rate: f64,
    seed: u64,
    // Below the parts that use it, so that it ends after them.
    _redis: Redis,
}

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let mut report = Report::new("latency", seed);
    let least = if quick { QUICK_SAMPLES_MIN } else { SAMPLES_MIN };
    report.samples_needed(least);
    let folder = Folder::new()?;
    let mut scene = Scene::set(&folder, seed, sabotage).await?;
    let busy = scene.busy_share().await?;
    scene.rate = SOUNDING_PER_S * LOAD / busy;
    report.field("offered_per_s", json!(scene.rate.round()));
    report.field("busy_share_at_sounding", json!(busy));

    let turns_needed = float(usize::try_from(least)?) * 1.05 / (scene.rate * SLICE.as_secs_f64());
    let (mut turns, mut spoilt): (Vec<Vec<Slice>>, Vec<String>) = (Vec::new(), Vec::new());
    let (decided, degraded) = scene.world.decisions().await?;
    let mut calls = 0;
    let mut random = fastrand::Rng::with_seed(seed);
    while turns.len() < ROUNDS || float(turns.len()) < turns_needed {
        let mut ways = Way::ALL;
        random.shuffle(&mut ways);
        let mut turn = Vec::new();
        let before = scene.calls();
        for way in ways {
            turn.push(scene.slice(way).await?);
        }
        match turn.iter().find_map(Slice::spoilt) {
            Some(why) if spoilt.len() < SPOILT_MAX => spoilt.push(why),
            Some(_) | None => {
                calls += scene.calls() - before;
                turns.push(turn);
            }
        }
    }
    if !spoilt.is_empty() {
        report.note(format!("{} turns played again: {}", spoilt.len(), spoilt.join("; ")));
    }
    let now = scene.world.decisions().await?;
    report.field("degraded_share", json!((now.1 - degraded) / (now.0 - decided).max(1.0)));
    judged(turns, calls, &mut report);
    Ok(report)
}

impl Scene {
    async fn set(folder: &Folder, seed: u64, sabotage: Option<Sabotage>) -> anyhow::Result<Scene> {
        let redis = Redis::start(&folder.launcher).await?;
        let proxy = FaultProxy::start(redis.address())?;
        let far = sabotage == Some(Sabotage::FarStore);
        let by = if far { FAR_ROUND_TRIP } else { ROUND_TRIP };
        // Only answers to the script: heartbeats tell nothing about requests.
        proxy.set(Rule::new(Toxic::delay(by)).on("EVALSHA").on("EVAL"));
        // The hottest client uses less than half of it.
        let limited = match sabotage {
            Some(Sabotage::NoLeases) => "burst = { capacity = 20, refill = \"20000/s\" }",
            Some(Sabotage::FarStore) | None => "burst = { capacity = 20000, refill = \"20000/s\" }",
        };
        let plans =
            Plans(vec![(limited.to_owned(), CLIENTS), ("unlimited = true".to_owned(), CLIENTS)]);
        let store = Store::Redis(proxy.url());
        let world = Standalone::start(&folder.launcher, 1, store, DEADLINE, &plans).await?;
        let direct = first_of(&world.services)?;
        let mut targets = vec![direct];
        targets.extend(world.addresses());
        let callers = Callers::new(&targets, &[SERVICE.to_owned()], &world.keys)?;
        let scene = Scene { world, callers, proxy, rate: 0.0, seed, _redis: redis };
        scene.warm_up().await?;
        Ok(scene)
    }

    /// Each client once, so that nobody is new.
    async fn warm_up(&self) -> anyhow::Result<()> {
        for client in 0..2 * CLIENTS {
            let sent = self.callers.one(client, Way::Limited.target(), 0).await;
            anyhow::ensure!(sent.status == 200, "warm-up: {sent:?}");
        }
        Ok(())
    }

    /// Share of the machine that a small load keeps busy, its callers included.
    async fn busy_share(&mut self) -> anyhow::Result<f64> {
        self.rate = SOUNDING_PER_S;
        let before = machine_ticks()?;
        self.slice(Way::Limited).await?;
        let after = machine_ticks()?;
        let share = (after.busy - before.busy) / (after.all - before.all).max(1.0);
        anyhow::ensure!(share > 0.0, "the machine did nothing");
        Ok(share)
    }

    async fn slice(&mut self, way: Way) -> anyhow::Result<Slice> {
        self.seed = self.seed.wrapping_add(1);
        let shots: Vec<Shot> = slices::shots(way, self.rate, SLICE, self.seed);
        let sent = self.callers.open_loop(&shots).await?;
        Ok(Slice::of(way, &sent, shots.len()))
    }

    /// Script calls that reached the store.
    fn calls(&self) -> u64 {
        let counters = self.proxy.counters();
        counters.command("EVALSHA") + counters.command("EVAL")
    }
}

fn first_of(services: &Services) -> anyhow::Result<std::net::SocketAddr> {
    let endpoints = services.endpoints(SERVICE);
    endpoints.first().copied().ok_or_else(|| anyhow::anyhow!("no service"))
}

fn judged(turns: Vec<Vec<Slice>>, calls: u64, report: &mut Report) {
    let rounds = slices::rounds(turns, ROUNDS);
    for round in &rounds {
        report.offered(round.offered());
        report.round(round.json());
    }
    let limited: usize = rounds.iter().map(|round| round.count(Way::Limited)).sum();
    report.samples(limited as u64);
    let per_request = float(usize::try_from(calls).unwrap_or(usize::MAX)) / float(limited.max(1));
    report.field("store_calls_per_request", json!(per_request));
    // A store that nobody asks would be no limit at all.
    report.require(
        "store_calls",
        float(usize::try_from(calls).unwrap_or(0)),
        Limit::AtLeast(100.0),
    );
    let p7 = [("p50", 0.5, 0.1), ("p99", 0.99, 2.0), ("p999", 0.999, 5.0)];
    for (name, share, most) in p7 {
        let added = median(rounds.iter().map(|round| round.added_ms(share)));
        report.require(&format!("added_ms_{name}"), added, Limit::AtMost(most));
        let gateway = median(rounds.iter().map(|round| round.gateway_ms(share)));
        report.field(&format!("gateway_ms_{name}"), json!(gateway));
    }
    for way in Way::ALL {
        let p50 = median(rounds.iter().map(|round| round.quantile_ms(way, 0.5)));
        let p99 = median(rounds.iter().map(|round| round.quantile_ms(way, 0.99)));
        report.field(&format!("{}_ms", way.name()), json!({ "p50": p50, "p99": p99 }));
    }
    let strange: usize = rounds.iter().map(slices::Round::not_served).sum();
    report.require("not_served", float(strange), Limit::Exactly(0.0));
}

/// Time of all processors so far, in the kernel's ticks.
struct Ticks {
    busy: f64,
    all: f64,
}

fn machine_ticks() -> anyhow::Result<Ticks> {
    let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    // user, nice, system, idle, iowait and more: proc_stat(5).
    let ticks: Vec<f64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
    let all = ticks.iter().sum();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    Ok(Ticks { busy: all - idle, all })
}
