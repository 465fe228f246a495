//! What a request costs in processor time: through the gateway with limits and without, refused by
//! it, and through nginx, HAProxy and Envoy with a limit for each key; and how much the gateway
//! grows while a long body passes.
//!
//! The process under test has a core for itself; callers, service and Redis share the other.
//! Thirty-two callers keep it busy, each with its next request once the last is answered; they speak
//! for a thousand clients, of whom a few ask most, as everywhere in the lab (Zipf, 1.2). All take
//! turns in short slices, in random order, and only slices of the same turn are compared. One
//! process is measured twice in each turn: what differs there is the method's own noise.

pub mod meter; // what the kernel says
mod load; // a closed loop that costs little
mod subjects; // who is compared
mod slices; // turns, and what follows from them
mod counts; // system calls and allocations
mod features; // what each costs

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use system_tests::growth::{self, Protocol, Way};
use system_tests::oracle::float;

use crate::plain::{Setting, Subject};
use crate::report::{Limit, Report};
use crate::standalone::Folder;
use crate::store::cpu::script_calls;
use counts::Cell;
use meter::{LOAD_CORE, SUBJECT_CORE};
use slices::{Comparison, Slice, Turn};
use subjects::{Arm, Subjects};

/// What must hold between two arms, by processor time of a request.
const COMPARISONS: [Comparison; 8] = [
    Comparison::of("p1_over_nginx", Arm::Limits, Arm::Nginx, Limit::AtMost(1.15)),
    Comparison::of("p2_over_haproxy", Arm::Limits, Arm::Haproxy, Limit::AtMost(1.05)),
    Comparison::of("p3_over_envoy", Arm::Limits, Arm::Envoy, Limit::AtMost(0.35)),
    Comparison::of("p5_limits_over_none", Arm::Limits, Arm::Unlimited, Limit::AtMost(1.10)),
    Comparison::of("p6_refusal_over_forward", Arm::Refusing, Arm::Limits, Limit::AtMost(0.60)),
    Comparison::of("p12_two_workers_over_one", Arm::TwoWorkers, Arm::Limits, Limit::AtMost(1.15)),
    // A run in which the same is not the same says nothing about what differs.
    Comparison::of("same_over_same", Arm::Again, Arm::Limits, Limit::Between(0.9, 1.1)),
    Comparison::told("over_before", Arm::Limits, Arm::Before),
];
/// Peers whose figures would be told, and why they are not.
const NOT_COMPARED: [(&str, &str); 2] = [
    (
        "over_pingora_like",
        "there is no such program to install, only a framework to write one with",
    ),
    ("over_envoy_global", "its rate-limit service is no package of Debian or of PyPI"),
];
/// Most that the gateway may grow while a body passes.
const GROWTH_MIB_MAX: f64 = 16.0;

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Buckets too small to borrow from: each request is a call.
    CallPerRequest,
    /// The gateway has a thread that finds no rest.
    BusyThread,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 2] =
        [("call-per-request", Sabotage::CallPerRequest), ("busy-thread", Sabotage::BusyThread)];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }
}

/// How long and how much.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// Fewest clean pairs of a comparison.
    pairs: usize,
    /// Turns, if the machine spoils some.
    turns_max: usize,
    warm: Duration,
    slice: Duration,
    /// Requests whose system calls are counted.
    counted: u64,
    body: u64,
}

const MIB: u64 = 1024 * 1024;
const FULL: Extent = Extent {
    pairs: 10,
    turns_max: 24,
    warm: Duration::from_millis(400),
    slice: Duration::from_secs(2),
    counted: 20_000,
    body: 1024 * MIB,
};
const QUICK: Extent = Extent {
    pairs: 5,
    turns_max: 10,
    warm: Duration::from_millis(200),
    slice: Duration::from_millis(600),
    counted: 4_000,
    body: 64 * MIB,
};

/// Runs all of it; `before` is the lab of another build, whose gateway is compared too.
pub async fn run(
    quick: bool,
    seed: u64,
    before: Option<&Path>,
    sabotage: Option<&str>,
) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let extent = if quick { QUICK } else { FULL };
    let mut report = Report::new("proxy", seed);
    report.samples_needed(u64::try_from(extent.pairs)?);
    let cores = std::thread::available_parallelism()?.get();
    anyhow::ensure!(cores >= 2, "two cores are needed: one for the process under test alone");
    meter::pin_all(LOAD_CORE)?;
    let folder = Folder::new()?;
    let subjects = Subjects::start(&folder.launcher, sabotage, before).await?;
    for (arm, why) in &subjects.missing {
        report.note(format!("{} is not compared: {why}", arm.name()));
    }
    for (peer, why) in NOT_COMPARED {
        report.field(peer, Value::Null);
        report.note(format!("{peer}: {why}"));
    }
    compare(&subjects, extent, seed, &mut report).await?;
    count(&folder, &subjects, extent, &mut report).await?;
    grow(&folder, &subjects, extent, &mut report).await?;
    features::compare(&folder, &subjects, extent, seed, &mut report).await?;
    Ok(report)
}

/// Turns until there are pairs enough, and what follows from them.
async fn compare(
    subjects: &Subjects,
    extent: Extent,
    seed: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut turns: Vec<Turn> = Vec::new();
    let there: Vec<Arm> = Arm::ALL.into_iter().filter(|arm| subjects.of(*arm).is_some()).collect();
    let enough = |turns: &[Turn]| {
        let judged = COMPARISONS.iter().filter(|comparison| comparison.is_among(&there));
        judged.map(|comparison| comparison.ratios(turns).len()).min() >= Some(extent.pairs)
    };
    while !enough(&turns) && turns.len() < extent.turns_max {
        let mut order = there.clone();
        random.shuffle(&mut order);
        let mut turn = Turn::new();
        for arm in order {
            let load = subjects.load(arm, Protocol::Http1, random.u64(..))?;
            turn.insert(arm, slice(subjects, arm, load, extent).await?);
        }
        report.round(slices::shown(&turn));
        turns.push(turn);
    }
    slices::judge(&COMPARISONS, &turns, &there, report);
    Ok(())
}

async fn slice(
    subjects: &Subjects,
    arm: Arm,
    load: load::Load,
    extent: Extent,
) -> anyhow::Result<Slice> {
    let subject = subjects.of(arm).with_context(|| format!("{} is not there", arm.name()))?;
    play(subjects, subject, arm, load, extent).await
}

/// A slice of this process, whose answers are those of `arm`.
async fn play(
    subjects: &Subjects,
    subject: &Subject,
    arm: Arm,
    load: load::Load,
    extent: Extent,
) -> anyhow::Result<Slice> {
    let process = subject.child.id();
    let time = load::Extent::Time { warm: extent.warm, counted: extent.slice };
    let redis = redis::Client::open(subjects.plain.redis.url())?;
    let edges = move || {
        let calls = script_calls(&mut redis.get_connection()?)?;
        Ok((meter::cpu_time(process)?, meter::stolen()?, calls))
    };
    let (answers, before, after) = load.play(time, edges).await?;
    let (spent, stolen) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    Ok(Slice { arm, answers, spent, stolen, calls: after.2 - before.2 })
}

/// Counts, and the time of a request over both protocols beside them.
async fn count(
    folder: &Folder,
    subjects: &Subjects,
    extent: Extent,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut times = Map::new();
    for cell in Cell::ALL {
        let name = cell.name();
        let load = subjects.load(cell.arm, cell.protocol, 2)?;
        let slice = slice(subjects, cell.arm, load, extent).await?;
        times.insert(name.clone(), slices::rounded(slice.us_per_request()));
        let calls = counts::system_calls(&folder.launcher, subjects, cell, extent.counted).await;
        let allocations = counts::allocations(&folder.launcher, subjects, cell).await;
        for (what, counted) in [("syscalls", calls), ("allocations", allocations)] {
            let figure = format!("{what}_per_request_{name}");
            let value = match counted {
                Ok(count) => slices::rounded(count),
                Err(why) => {
                    report.note(format!("{figure}: {why:#}"));
                    Value::Null
                }
            };
            // Without a bound of its own yet, but it must be there.
            report.field(&figure, value);
            report.limit(&figure, Limit::AtLeast(0.0));
        }
    }
    report.field("us_per_request_by_protocol", Value::Object(times));
    Ok(())
}

/// What a body of a gibibyte leaves behind at its worst.
async fn grow(
    folder: &Folder,
    subjects: &Subjects,
    extent: Extent,
    report: &mut Report,
) -> anyhow::Result<()> {
    // One that no other figure has used: the memory of the first requests is part of it.
    let setting = Setting::shipped("gateway_grown");
    let args = vec![SUBJECT_CORE.to_string().into(), "gateway".into()];
    let gateway = subjects.plain.gateway(&folder.launcher, setting, "pinned", args).await?;
    let key = subjects.keys(Arm::Unlimited).first().map_or("", String::as_str);
    let subject = growth::Subject { process: gateway.child.id(), at: gateway.at, key };
    for (figure, way) in [("growth_mib_up", Way::Up), ("growth_mib_down", Way::Down)] {
        let mut most = 0.0_f64;
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let bytes = growth::of(&subject, protocol, way, extent.body).await?;
            let mib = float(usize::try_from(bytes)?) / float(usize::try_from(MIB)?);
            report.round(json!({ "grown": figure, "protocol": format!("{protocol:?}"),
                                 "mib": slices::rounded(mib) }));
            most = most.max(mib);
        }
        report.require(figure, most, Limit::AtMost(GROWTH_MIB_MAX));
    }
    report.field("growth_body_mib", json!(extent.body / MIB));
    Ok(())
}
