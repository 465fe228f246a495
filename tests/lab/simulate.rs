//! The limiter and the store's arithmetic in a simulated fleet: thousands of runs, each a function
//! of its seed, with losses, pauses, crashes, lost stores, outages, clocks that step and plans that
//! change. In one process; `--sabotage NAME` plants a mistake in the store's arithmetic.
//!
//! Without a sabotage it also plays calm regimes, with each extra mechanism and without it, and
//! prints what each is worth.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context as _, anyhow};
use limiter_core::testkit::mutants::{MUTANTS, Mutant};
use limiter_core::testkit::simulation::{
    Cell, Kind, Measured, Routing, Scenario, Verdict, grid, measure, play,
};
use limiter_core::{Extras, FailurePolicy, Witnessing};
use serde_json::{Value, json};

use crate::report::{Limit, Report};

/// Virtual length of a run.
const SECONDS: u64 = 60;
/// Runs of the full form, and of a planted fault.
const SEEDS: u64 = 10_000;
const SEEDS_QUICK: u64 = 2_000;
const SEEDS_PLANTED: u64 = 1_000;
/// Seeds among which the runs are that tell what an extra is worth.
const SEEDS_WORTH: u64 = 3_200;
/// Runs whose broken promises are told in words.
const TOLD_MAX: usize = 10;
/// A run with fewer admissions says little about accuracy.
const JUDGED_MIN: u64 = 500;

/// Runs it.
pub async fn run(
    quick: bool,
    first: u64,
    seeds: Option<u64>,
    sabotage: Option<&str>,
) -> anyhow::Result<Report> {
    let mutant = match sabotage {
        None => None,
        Some(name) => Some(Mutant::named(name).ok_or_else(|| {
            let names: Vec<_> = MUTANTS.iter().map(|mutant| mutant.name).collect();
            anyhow!("no sabotage `{name}`; there are: {}", names.join(", "))
        })?),
    };
    let usual = match (mutant, quick) {
        (Some(_), _) => SEEDS_PLANTED,
        (None, true) => SEEDS_QUICK,
        (None, false) => SEEDS,
    };
    let count = seeds.unwrap_or(usual);
    let mut report = Report::new("simulate", first);
    let runs = tokio::task::spawn_blocking(move || all_runs(first, count, mutant));
    let totals = runs.await.context("a run panicked")?;
    report.samples(totals.runs);
    report.samples_needed(count);
    report.field("runs", json!(totals.runs));
    report.field("virtual_seconds", json!(totals.runs * SECONDS));
    report.field("decisions", json!(totals.decisions));
    report.field("broken_runs", json!(totals.broken));
    report.field("broken_by_kind", json!(totals.by_kind));
    report.field("error_min", json!(totals.error_min));
    report.field("error_max", json!(totals.error_max));
    report.limit("broken_runs", Limit::Exactly(0.0));
    report.limit("error_min", Limit::AtLeast(-0.03));
    for line in &totals.told {
        report.note(line.clone());
    }
    if mutant.is_none() && !quick && seeds.is_none() {
        let table = tokio::task::spawn_blocking(extras).await.context("a regime panicked")?;
        report.field("extras", table);
        let worth = tokio::task::spawn_blocking(worth).await.context("a run panicked")?;
        report.field("extras_in_faults", worth);
    }
    Ok(report)
}

#[derive(Debug, Default)]
struct Totals {
    runs: u64,
    decisions: u64,
    broken: u64,
    by_kind: BTreeMap<String, u64>,
    error_min: f64,
    error_max: f64,
    told: Vec<String>,
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.runs += other.runs;
        self.decisions += other.decisions;
        self.broken += other.broken;
        for (kind, broken) in other.by_kind {
            *self.by_kind.entry(kind).or_default() += broken;
        }
        self.error_min = self.error_min.min(other.error_min);
        self.error_max = self.error_max.max(other.error_max);
        self.told.extend(other.told);
        self.told.truncate(TOLD_MAX);
    }
}

/// Every run, over all cores.
fn all_runs(first: u64, count: u64, mutant: Option<&'static Mutant>) -> Totals {
    let next = AtomicU64::new(first);
    let mut totals = Totals::default();
    for own in on_every_core(|| {
        let mut own = Totals::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return own;
            }
            one(seed, mutant, &mut own);
        }
    }) {
        totals.add(own);
    }
    totals
}

/// The same work on each core; what each of them did.
fn on_every_core<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(&work)).collect();
        let ended = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|own| own.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// What becomes of each, in their order, over all cores.
fn each<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut done: Vec<(usize, R)> = on_every_core(|| {
        let mut own = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(number) else { return own };
            own.push((number, work(one)));
        }
    })
    .into_iter()
    .flatten()
    .collect();
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

fn one(seed: u64, mutant: Option<&Mutant>, totals: &mut Totals) {
    let mut scenario = Scenario::random(seed, SECONDS);
    if let Some(mutant) = mutant {
        scenario.apply = mutant.apply;
    }
    let verdict = play(&scenario);
    totals.runs += 1;
    totals.decisions += verdict.asked;
    if scenario.kind == Kind::Calm && verdict.ideal >= JUDGED_MIN {
        let error = ratio(verdict.admitted, verdict.ideal) - 1.0;
        totals.error_min = totals.error_min.min(error);
        totals.error_max = totals.error_max.max(error);
    }
    if !verdict.broken.is_empty() {
        totals.broken += 1;
        *totals.by_kind.entry(format!("{:?}", scenario.kind)).or_default() += 1;
        if totals.told.len() < TOLD_MAX {
            let (gateways, kind) = (scenario.gateways, scenario.kind);
            totals.told.push(format!(
                "seed {seed} ({kind:?}, {gateways} gateways, {:?}, {:?}): {}",
                scenario.routing,
                scenario.shape,
                verdict.broken.join("; ")
            ));
        }
    }
}

/// What each mechanism is worth in calm regimes: all of them, then each switched off.
fn extras() -> Value {
    let all = Extras::default();
    let variants = [
        ("as shipped", all, true),
        ("without hedges", Extras { hedge: false, ..all }, true),
        ("without witnesses", Extras { witness: Witnessing::Off, ..all }, true),
        ("witness in every call", Extras { witness: Witnessing::Always, ..all }, true),
        ("without leases", all, false),
    ];
    // The busiest regimes take long without leases and say little new.
    let cells: Vec<Cell> = grid().into_iter().filter(|cell| cell.rate <= 1_000).collect();
    let rows = variants.map(|(name, extras, leases)| {
        let measured: Vec<Measured> = each(&cells, |cell| measure(cell, extras, leases, 7));
        row(name, &measured)
    });
    json!(rows)
}

/// What each mechanism for bad days is worth on them: excess after a lost store in capacities, and
/// admissions in outages over what an exact bucket would have admitted.
fn worth() -> Value {
    let witness = |witness| Extras { witness, ..Extras::default() };
    let meters = |meters| Extras { meters, ..Extras::default() };
    let learned = |learned_share| Extras { learned_share, ..Extras::default() };
    let one_sided = |scenario: &Scenario| {
        scenario.gateways >= 3 && matches!(scenario.routing, Routing::Skewed | Routing::One)
    };
    let lost = |extras| mean(Kind::Forgetful, None, extras, |_| true, excess);
    let coarse = FailurePolicy::COARSE;
    let outage = |extras| mean(Kind::Outage, Some(coarse), extras, |_| true, admitted);
    let local = FailurePolicy::LOCAL;
    let skewed = |extras| mean(Kind::Outage, Some(local), extras, one_sided, admitted);
    json!({
        "excess_without_witness": lost(witness(Witnessing::Off)),
        "excess_with_witness_on_suspicion": lost(witness(Witnessing::OnSuspicion)),
        "excess_with_witness_always": lost(witness(Witnessing::Always)),
        "admitted_coarse_without_meters": outage(meters(false)),
        "admitted_coarse_with_meters": outage(meters(true)),
        "admitted_local_one_sided_with_equal_shares": skewed(learned(false)),
        "admitted_local_one_sided_with_learned_shares": skewed(learned(true)),
    })
}

fn mean(
    kind: Kind,
    failure: Option<FailurePolicy>,
    extras: Extras,
    chosen: impl Fn(&Scenario) -> bool,
    figure: impl Fn(&Scenario, &Verdict) -> f64 + Sync,
) -> f64 {
    let scenarios: Vec<Scenario> = (0..SEEDS_WORTH)
        .map(|seed| Scenario::random(seed, SECONDS))
        .filter(|scenario| scenario.kind == kind && chosen(scenario))
        .map(|scenario| {
            let failure = failure.unwrap_or(scenario.failure);
            Scenario { extras, failure, ..scenario }
        })
        .collect();
    let judged = each(&scenarios, |scenario| {
        let verdict = play(scenario);
        (verdict.ideal >= JUDGED_MIN).then(|| figure(scenario, &verdict))
    });
    let figures: Vec<f64> = judged.into_iter().flatten().collect();
    figures.iter().sum::<f64>() / count(figures.len().max(1))
}

fn excess(scenario: &Scenario, verdict: &Verdict) -> f64 {
    let capacities = scenario.limits.iter().map(|limit| limit.capacity().get());
    verdict.deepest / ratio(capacities.max().unwrap_or(1), 1)
}

fn admitted(_: &Scenario, verdict: &Verdict) -> f64 {
    ratio(verdict.admitted, verdict.ideal)
}

fn row(name: &str, measured: &[Measured]) -> Value {
    let count = count(measured.len());
    let errors = || measured.iter().map(|cell| cell.error);
    let within = measured.iter().filter(|cell| cell.error.abs() <= 0.01).count();
    let beyond = measured.iter().map(|cell| {
        let capacity = ratio(cell.capacity, 1);
        cell.deepest - (0.002 * capacity).max(2.0)
    });
    json!({
        "variant": name,
        "cells": measured.len(),
        "error_min": errors().fold(f64::MAX, f64::min),
        "error_max": errors().fold(f64::MIN, f64::max),
        "mean_abs_error": errors().map(f64::abs).sum::<f64>() / count,
        "share_within_1_percent": self::count(within) / count,
        "excess_beyond_promise": beyond.fold(f64::MIN, f64::max),
        "calls_per_request": measured.iter().map(|cell| cell.calls_per_request).sum::<f64>() / count,
        "wait_p99_ms_max": measured.iter().map(|cell| cell.wait_p99_ms).fold(0.0, f64::max),
        "late_share_max": measured.iter().map(|cell| cell.late_share).fold(0.0, f64::max),
        "late_share_mean": measured.iter().map(|cell| cell.late_share).sum::<f64>() / count,
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run, for a table")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[expect(clippy::cast_precision_loss, reason = "a number of cells")]
fn count(cells: usize) -> f64 {
    cells as f64
}
