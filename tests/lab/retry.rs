//! Whether a refusal's promise can be trusted: callers who wait exactly as long as they were told,
//! alone on their key and in crowds of twenty, over three real gateways.
//!
//! Admissions are counted by the service. `too_early` counts promises that could not be kept by
//! anybody.

mod callers; // who obey
mod judge; // what became of the promises

use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use system_tests::gateways::Store;
use system_tests::oracle::{Contract, float};
use system_tests::redis::Redis;
use tokio::task::JoinSet;

use crate::report::{Limit, Report};
use crate::standalone::{Folder, Plans, Standalone};
use callers::{Callers, Line};
use judge::{Arrivals, Retries};

const GATEWAYS: usize = 3;
/// Callers of one key.
const CROWD: usize = 20;
/// Keys with such a crowd.
const CROWDS: usize = 10;
/// Keys with one caller, of the slow plan and of the fast one.
const ALONE_SLOW: usize = 20;
const ALONE_FAST: usize = 5;
/// Callers begin within so long, not all at the same instant.
const BEGIN: Duration = Duration::from_secs(1);
const RETRIES_MIN: u64 = 1_000;
/// With a larger share of decisions without the store the machine was too busy.
const DEGRADED_MAX: f64 = 0.001;
const REPEATS_MAX: usize = 3;
/// Promises are judged, not waiting: longer than the default, so that a busy machine does not make
/// policies decide.
const DEADLINE: &str = "50ms";
/// Over the contract by so many tokens at most.
const EXCESS_MAX: f64 = 2.0;

/// Ten a second, each request a call: the plan of the crowds, and of some who are alone.
const SLOW: Contract = Contract { capacity: 10.0, per_s: 10.0 };
/// Fifty a second, from leases.
const FAST: Contract = Contract { capacity: 50.0, per_s: 50.0 };

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Refusals tell half of the time.
    HalvedPromise,
    /// Refusals tell whole seconds only.
    WholeSeconds,
    /// Every gateway keeps its own buckets.
    PerGatewayBuckets,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 3] = [
        ("halved-promise", Sabotage::HalvedPromise),
        ("whole-seconds", Sabotage::WholeSeconds),
        ("per-gateway-buckets", Sabotage::PerGatewayBuckets),
    ];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }
}

/// Who calls: clients `from` to `to`, each with so many callers, under a contract.
struct Group {
    name: &'static str,
    from: usize,
    to: usize,
    callers: usize,
    contract: Contract,
}

const ALONE: usize = ALONE_SLOW + ALONE_FAST;

const GROUPS: [Group; 3] = [
    Group { name: "alone_slow", from: 0, to: ALONE_SLOW, callers: 1, contract: SLOW },
    Group { name: "alone_fast", from: ALONE_SLOW, to: ALONE, callers: 1, contract: FAST },
    Group { name: "crowd", from: ALONE, to: ALONE + CROWDS, callers: CROWD, contract: SLOW },
];

/// One run of all groups.
struct Run {
    lines: Vec<Vec<Line>>,
    arrivals: Arrivals,
    degraded: f64,
}

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let mut report = Report::new("retry", seed);
    report.samples_needed(RETRIES_MIN);
    let folder = Folder::new()?;
    let redis = Redis::start(&folder.launcher).await?;
    let length = Duration::from_secs(if quick { 15 } else { 60 });
    let run = undisturbed(&folder, &redis, length, seed, sabotage, &mut report).await?;
    judged(&run, &mut report);
    Ok(report)
}

fn plans() -> Plans {
    let plan = |contract: Contract| {
        let Contract { capacity, per_s } = contract;
        format!("burst = {{ capacity = {capacity}, refill = \"{per_s}/s\" }}")
    };
    let (slow, fast) = (plan(SLOW), plan(FAST));
    Plans(vec![(slow.clone(), ALONE_SLOW), (fast, ALONE_FAST), (slow, CROWDS)])
}

/// Runs once; again in a new world, and told, if the machine was too busy for the store. The last
/// run counts, whatever it was.
async fn undisturbed(
    folder: &Folder,
    redis: &Redis,
    length: Duration,
    seed: u64,
    sabotage: Option<Sabotage>,
    report: &mut Report,
) -> anyhow::Result<Run> {
    for attempt in 0.. {
        // Buckets are full at first.
        redis.query::<()>("FLUSHALL").await?;
        let run = once(folder, redis, length, seed, sabotage).await?;
        if run.degraded <= DEGRADED_MAX || attempt == REPEATS_MAX {
            return Ok(run);
        }
        let percent = run.degraded * 100.0;
        let early: usize = GROUPS.iter().map(|group| too_early(&run, group)).sum();
        report.note(format!(
            "run again: {percent:.2} % were decided without Redis; {early} refusals told too early a moment"
        ));
    }
    bail!("it was never run")
}

async fn once(
    folder: &Folder,
    redis: &Redis,
    length: Duration,
    seed: u64,
    sabotage: Option<Sabotage>,
) -> anyhow::Result<Run> {
    let store = match sabotage {
        Some(Sabotage::PerGatewayBuckets) => Store::Memory,
        Some(Sabotage::HalvedPromise | Sabotage::WholeSeconds) | None => Store::Redis(redis.url()),
    };
    let world = Standalone::start(&folder.launcher, GATEWAYS, store, DEADLINE, &plans()).await?;
    let callers = Callers::new(&world.addresses(), &world.keys, sabotage)?;
    let until_us = callers.now_us() + u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
    let mut running = JoinSet::new();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut number = 0;
    for group in &GROUPS {
        for client in group.from..group.to {
            for _ in 0..group.callers {
                number += 1;
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
                let (callers, pause) = (callers.clone(), BEGIN.mul_f64(random.f64()));
                running.spawn(async move {
                    tokio::time::sleep(pause).await;
                    callers.obey(client, seed, until_us).await
                });
            }
        }
    }
    let mut lines: Vec<Vec<Line>> = vec![Vec::new(); world.keys.len()];
    while let Some(done) = running.join_next().await {
        for line in done?? {
            if let Some(of_client) = lines.get_mut(line.client) {
                of_client.push(line);
            }
        }
    }
    let (decided, degraded) = world.decisions().await?;
    let arrived = world.services.arrivals().await?;
    let all: Vec<Line> = lines.iter().flatten().cloned().collect();
    let arrivals = Arrivals::new(&arrived, &all)?;
    Ok(Run { lines, arrivals, degraded: degraded / decided.max(1.0) })
}

/// Refusals of a group that told a moment too early.
fn too_early(run: &Run, group: &Group) -> usize {
    let clients = run.lines.iter().skip(group.from).take(group.to - group.from);
    clients.map(|lines| judge::too_early(lines, group.contract)).sum()
}

fn judged(run: &Run, report: &mut Report) {
    let mut alone = Retries::default();
    let mut crowd = Retries::default();
    let (mut early, mut excess) = (0, 0.0_f64);
    let mut crowd_used: Vec<f64> = Vec::new();
    for group in &GROUPS {
        let clients = || run.lines.iter().skip(group.from).take(group.to - group.from);
        let retries = Retries::of(clients().flatten());
        let uses: Vec<judge::Used> =
            clients().map(|lines| judge::used(lines, &run.arrivals, group.contract)).collect();
        let too_early = too_early(run, group);
        early += too_early;
        excess = uses.iter().map(|used| used.excess).fold(excess, f64::max);
        if group.callers > 1 {
            crowd = retries;
            crowd_used = uses.iter().map(|used| used.share).collect();
        } else {
            alone.first += retries.first;
            alone.first_passed += retries.first_passed;
        }
        report.samples(retries.all as u64);
        report.round(json!({
            "group": group.name, "first_retries": retries.first,
            "first_retries_passed": retries.first_passed, "retries": retries.all,
            "refused": retries.refused, "passed": retries.passed,
            "too_early": too_early,
            "used": uses.iter().map(|used| used.share).collect::<Vec<_>>(),
        }));
    }
    report.require("alone_first_retry", alone.first_share(), Limit::AtLeast(0.999));
    report.require("crowd_first_retry", crowd.first_share(), Limit::AtLeast(0.8));
    let refusals = crowd.refusals_per_passed();
    report.require("denials_per_admission", refusals, Limit::AtMost(1.5));
    let used = crowd_used.iter().sum::<f64>() / float(crowd_used.len());
    report.require("capacity_used", used, Limit::AtLeast(0.99));
    let least = crowd_used.iter().copied().fold(f64::INFINITY, f64::min);
    report.field("capacity_used_least", json!(least));
    report.require("too_early", float(early), Limit::Exactly(0.0));
    report.require("over_contract_tokens", excess, Limit::AtMost(EXCESS_MAX));
    report.field("degraded_share", json!(run.degraded));
    report.offered(1.0);
    report.note("closed loops: callers offer what the answers let them");
}
