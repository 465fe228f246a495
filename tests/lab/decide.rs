//! What one decision from a warm lease costs, beside a limiter that never leaves its process
//! (`governor`), another one that is a service's core (`limitador`), and the bare floor under all
//! of them: read the clock, hash the key, fetch its entry, take one.
//!
//! Slices of all subjects follow each other in random order, once per round; a figure is the median
//! of its rounds, in nanoseconds of the CPU time of the threads that decide.

mod order; // whose requests come
mod subject; // who decides
#[cfg(feature = "peers")]
mod limitador; // a peer that takes long to compile

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Barrier;

use anyhow::{Context as _, bail};
use serde_json::json;
use tokio::runtime::Handle;

use self::order::Order;
use self::subject::{Sabotage, Subject};
use crate::report::{Limit, Report};
use crate::store;

/// Keys of the wide scenario.
const KEYS: u32 = 1_000_000;
const KEYS_QUICK: u32 = 100_000;
const ROUNDS: usize = 21;
const ROUNDS_QUICK: usize = 7;
/// Decisions of one thread in a slice.
const DECISIONS: u32 = 2_000_000;
const DECISIONS_QUICK: u32 = 500_000;
/// Threads that share a key must have run at the same time: a slice counts if it took no longer than
/// this times the CPU time of its busiest thread. Otherwise it is tried again.
const OVERLAP: f64 = 1.3;
const TRIES_MAX: u32 = 5;
/// With fewer slices a figure is inconclusive.
const SLICES_MIN: usize = 5;
/// Share of decisions that the lease must have paid, or the figures are about something else.
const LEASE_SHARE: f64 = 0.9999;

/// Where decisions are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scenario {
    /// One key, one thread.
    Hot,
    /// One key, two threads.
    HotShared,
    /// Many keys by Zipf's law, one thread.
    Wide,
}

impl Scenario {
    const ALL: [Scenario; 3] = [Scenario::Hot, Scenario::HotShared, Scenario::Wide];

    fn name(self) -> &'static str {
        match self {
            Scenario::Hot => "hot",
            Scenario::HotShared => "hot_two_threads",
            Scenario::Wide => "wide",
        }
    }

    fn threads(self) -> usize {
        if self == Scenario::HotShared { 2 } else { 1 }
    }

    fn most_ns(self) -> f64 {
        match self {
            Scenario::Hot => 150.0,
            Scenario::HotShared => 250.0,
            Scenario::Wide => 500.0,
        }
    }
}

/// Runs the experiment, away from the threads of tasks: those are interrupted to be fair.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    if !quick && !subject::HAS_LIMITADOR {
        return Err(again_with_peers());
    }
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    tokio::task::spawn_blocking(move || measure(quick, seed, sabotage)).await?
}

fn measure(quick: bool, seed: u64, sabotage: Option<Sabotage>) -> anyhow::Result<Report> {
    let mut report = Report::new("decide", seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let keys = if quick { KEYS_QUICK } else { KEYS };
    let (rounds, decisions) =
        if quick { (ROUNDS_QUICK, DECISIONS_QUICK) } else { (ROUNDS, DECISIONS) };
    let (hot, wide) = (Order::one_key(), Order::zipf(keys, &mut random));
    let subjects = subject::all(keys, sabotage)?;
    let mut cells = Vec::new();
    for scenario in Scenario::ALL {
        for subject in &subjects {
            cells.push(Cell { scenario, subject: subject.as_ref(), ns: Vec::new() });
        }
    }
    for round in 0..=rounds {
        let mut places: Vec<usize> = (0..cells.len()).collect();
        random.shuffle(&mut places);
        for place in places {
            let cell = cells.get_mut(place).context("a cell")?;
            let order = if cell.scenario == Scenario::Wide { &wide } else { &hot };
            let decisions = cell.subject.decisions(decisions);
            let threads = cell.scenario.threads();
            let ns = slice(cell.subject, order, threads, decisions, &mut random)?;
            // The first round fills caches.
            if round > 0 && ns.is_finite() {
                cell.ns.push(ns);
                report.samples(u64::from(decisions));
            }
        }
    }
    figures(&mut report, &cells);
    let share = subject::lease_share(&subjects);
    report.require("lease_share", share, Limit::AtLeast(LEASE_SHARE));
    Ok(report)
}

/// The full form needs all peers; this program becomes the one that has them.
fn again_with_peers() -> anyhow::Error {
    let args = std::env::args_os().skip(1);
    let cargo = ["run", "--quiet", "--release", "-p", "system-tests", "--features", "peers"];
    let error = Command::new("cargo").args(cargo).args(["--bin", "lab", "--"]).args(args).exec();
    anyhow::Error::new(error).context(
        "built without limitador: cargo run --release -p system-tests --features peers --bin lab \
         -- decide",
    )
}

struct Cell<'a> {
    scenario: Scenario,
    subject: &'a dyn Subject,
    ns: Vec<f64>,
}

/// Nanoseconds per decision of a thread; not a number if its threads never ran side by side.
fn slice(
    subject: &dyn Subject,
    order: &Order,
    threads: usize,
    decisions: u32,
    random: &mut fastrand::Rng,
) -> anyhow::Result<f64> {
    for _try in 0..TRIES_MAX {
        let starts: Vec<usize> = (0..threads).map(|_| random.usize(..)).collect();
        let began = tokio::time::Instant::now();
        let spent = run_threads(subject, order, decisions, &starts)?;
        let busiest = spent.iter().copied().fold(0.0, f64::max);
        if threads == 1 || began.elapsed().as_secs_f64() * 1e9 <= OVERLAP * busiest {
            let threads = f64::from(u32::try_from(threads)?);
            return Ok(spent.iter().sum::<f64>() / (f64::from(decisions) * threads));
        }
    }
    Ok(f64::NAN)
}

/// CPU nanoseconds of each thread.
fn run_threads(
    subject: &dyn Subject,
    order: &Order,
    decisions: u32,
    starts: &[usize],
) -> anyhow::Result<Vec<f64>> {
    let together = Barrier::new(starts.len());
    let together = &together;
    // A decision that has to wait after all finds its timers.
    let runtime = &Handle::current();
    std::thread::scope(|scope| {
        let run = |start: &usize| {
            let start = *start;
            scope.spawn(move || {
                let _inside = runtime.enter();
                together.wait();
                let before = thread_cpu_ns()?;
                subject.decide(&mut order.from(start), decisions)?;
                Ok(store::quotient(thread_cpu_ns()?.saturating_sub(before), 1))
            })
        };
        let runs: Vec<_> = starts.iter().map(run).collect();
        let ended = runs.into_iter().map(|run| run.join());
        ended.map(|run| run.unwrap_or_else(|_panic| bail!("a thread panicked"))).collect()
    })
}

/// What the kernel has counted as this thread's time on a CPU.
fn thread_cpu_ns() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().context("schedstat is empty")?.parse()?)
}

fn figures(report: &mut Report, cells: &[Cell<'_>]) {
    for cell in cells {
        // Too few slices are no figure.
        let enough = cell.ns.len() >= SLICES_MIN;
        let (low, middle, high) =
            if enough { store::quartiles(&cell.ns) } else { (f64::NAN, f64::NAN, f64::NAN) };
        let name = format!("{}_{}_ns", cell.scenario.name(), cell.subject.name());
        if cell.subject.name() == "weir" {
            report.require(&name, middle, Limit::AtMost(cell.scenario.most_ns()));
        } else {
            report.field(&name, json!(middle.round()));
            // They must be there; how fast they are is not ours to judge.
            report.limit(&name, Limit::AtLeast(1.0));
        }
        report.field(&format!("{name}_quartiles"), json!([low.round(), high.round()]));
        let ns: Vec<f64> = cell.ns.iter().map(|ns| ns.round()).collect();
        report.round(json!({ "scenario": cell.scenario.name(), "subject": cell.subject.name(),
            "ns": ns }));
    }
    for scenario in Scenario::ALL {
        let of = |wanted: &str| {
            let cell = cells
                .iter()
                .find(|cell| cell.scenario == scenario && cell.subject.name() == wanted);
            cell.map_or(f64::NAN, |cell| store::quartiles(&cell.ns).1)
        };
        let ratio = of("weir") / of("governor");
        report.field(
            &format!("{}_over_governor", scenario.name()),
            json!((ratio * 1_000.0).round() / 1_000.0),
        );
    }
    report.field("over_governor_goal", json!(1.0));
    if !subject::HAS_LIMITADOR {
        report.field("hot_limitador_ns", json!(null));
        report.note("limitador is part of the full form only: it takes minutes to compile");
    }
}
