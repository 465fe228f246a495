//! What the bucket store costs: Redis' CPU per script call and per request, calls per request,
//! bytes per active key in Redis and in a gateway. Redis is a real one of its own; the gateways'
//! limiters live in this process, since their own cost is not what is judged here.

pub mod cpu; // what Redis says about itself
mod script; // CPU per call
mod fleet; // gateways, and load for them
mod mix; // calls per request
mod memory; // bytes per key

use std::time::Duration;

use anyhow::bail;
use limiter_core::testkit::differential::raw;
use redis::Connection;
use serde_json::{Value, json};
use system_tests::process::Launcher;
use system_tests::redis::Redis;

use self::fleet::{Fleet, GATEWAYS};
pub use self::memory::{contract, key};
use self::mix::Mix;
use self::script::Measured;
pub use self::script::plan;
use crate::report::{Limit, Report};

/// A fault planted in what is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    /// The script runs an idle loop.
    SlowScript,
    /// Gateways keep no leases: every request is a call.
    CallPerRequest,
    /// The script stores 200 bytes more.
    FatState,
    /// A gateway remembers 512 bytes more for each key.
    FatEntry,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 4] = [
        ("slow-script", Sabotage::SlowScript),
        ("call-per-request", Sabotage::CallPerRequest),
        ("fat-state", Sabotage::FatState),
        ("fat-entry", Sabotage::FatEntry),
    ];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }

    /// The script's text under this fault. A text without its marks would be no fault at all, and
    /// then the experiment would be ok, which is what a sabotage must not be.
    fn script(sabotage: Option<Sabotage>) -> String {
        match sabotage {
            Some(Sabotage::SlowScript) => {
                raw::TEXT.replace("-- grant\n", "for _ = 1, 5000 do end\n-- grant\n")
            }
            Some(Sabotage::FatState) => {
                raw::TEXT.replace("reply .. tail,", "reply .. tail .. string.rep('x', 200),")
            }
            Some(Sabotage::CallPerRequest | Sabotage::FatEntry) | None => raw::TEXT.to_owned(),
        }
    }
}

/// How long and how much.
#[derive(Debug, Clone, Copy)]
struct Extent {
    script_rounds: usize,
    mix_rounds: u32,
    stretch: Duration,
    keys: u32,
}

const FULL: Extent =
    Extent { script_rounds: 15, mix_rounds: 3, stretch: Duration::from_secs(10), keys: 1_000_000 };
const QUICK: Extent =
    Extent { script_rounds: 5, mix_rounds: 1, stretch: Duration::from_secs(5), keys: 200_000 };

/// Runs the experiment.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let extent = if quick { QUICK } else { FULL };
    let mut report = Report::new("store", seed);
    // First, while this process is small and its memory in one piece.
    gateway_memory(&mut report, extent, sabotage).await?;
    let folder = tempfile::tempdir()?;
    let launcher = Launcher::new(std::env::current_exe()?, folder.path());
    let redis = Redis::start(&launcher).await?;
    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
    let mut random = fastrand::Rng::with_seed(seed);
    let text = Sabotage::script(sabotage);
    let design_us =
        script_costs(&mut report, &mut connection, &text, extent.script_rounds, &mut random)?;
    redis_memory(&mut report, &mut connection, &text, extent.keys)?;
    let weir = Fleet::weir(&redis.url(), sabotage != Some(Sabotage::CallPerRequest)).await?;
    let published = Fleet::published(&redis.url()).await?;
    let mut stage = Stage { connection, random, extent };
    stage.mix(&mut report, &weir, &published, design_us).await?;
    stage.hot_keys(&mut report, &weir).await?;
    Ok(report)
}

async fn gateway_memory(
    report: &mut Report,
    extent: Extent,
    sabotage: Option<Sabotage>,
) -> anyhow::Result<()> {
    let padding = if sabotage == Some(Sabotage::FatEntry) { 512 } else { 0 };
    let (bytes, remembered) = memory::of_a_gateway(extent.keys, padding).await?;
    report.require("gateway_bytes_per_key", bytes, Limit::AtMost(512.0));
    report.field("gateway_bytes_goal", json!(256));
    report.field("gateway_keys", json!(remembered));
    report.limit("gateway_keys", Limit::Exactly(f64::from(extent.keys)));
    Ok(())
}

/// Returns what the design document's script costs, in microseconds.
fn script_costs(
    report: &mut Report,
    connection: &mut Connection,
    text: &str,
    rounds: usize,
    random: &mut fastrand::Rng,
) -> anyhow::Result<f64> {
    let arms = script::measure(connection, text, rounds, random)?;
    let Some(design) = arms.iter().find(|arm| arm.name == "design") else { bail!("no design arm") };
    let design_us = quartiles(&design.us).1;
    for arm in &arms {
        let ratios: Vec<f64> =
            arm.us.iter().zip(&design.us).map(|(own, design)| own / design).collect();
        let (low, middle, high) = quartiles(&ratios);
        report.field(&format!("us_{}", arm.name), json!(rounded(quartiles(&arm.us).1)));
        report.field(&format!("quartiles_{}", arm.name), json!([rounded(low), rounded(high)]));
        match arm.name {
            "design" => {}
            "lease" => report.require("cpu_lease_over_design", middle, Limit::AtMost(1.5)),
            name => report.field(&format!("cpu_{name}_over_design"), json!(rounded(middle))),
        }
        report.samples(arm.calls);
        report.round(raw_round(arm));
    }
    report.field("cpu_lease_goal", json!(1.0));
    Ok(design_us)
}

fn raw_round(arm: &Measured) -> Value {
    let us: Vec<f64> = arm.us.iter().copied().map(rounded).collect();
    json!({ "arm": arm.name, "us_per_call": us })
}

fn redis_memory(
    report: &mut Report,
    connection: &mut Connection,
    text: &str,
    keys: u32,
) -> anyhow::Result<()> {
    let burst = memory::of_redis(connection, text, false, keys)?;
    let both = memory::of_redis(connection, text, true, keys)?;
    report.field("redis_bytes_per_key_burst", json!(rounded(burst)));
    report.require("redis_bytes_per_key", both, Limit::AtMost(320.0));
    report.field("redis_bytes_goal", json!(250));
    Ok(())
}

struct Stage {
    connection: Connection,
    random: fastrand::Rng,
    extent: Extent,
}

impl Stage {
    async fn mix(
        &mut self,
        report: &mut Report,
        weir: &Fleet,
        published: &Fleet,
        design_us: f64,
    ) -> anyhow::Result<()> {
        let mix = Mix::new()?;
        let (mut calls, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _round in 0..self.extent.mix_rounds {
            let Stage { connection, random, extent } = self;
            let own = mix.play(weir, connection, extent.stretch, random).await?;
            let other = mix.play(published, connection, extent.stretch, random).await?;
            for (name, counted) in [("weir", &own), ("design", &other)] {
                report.samples(counted.offered.requests);
                report.offered(counted.offered.achieved());
                report.round(json!({
                    "mix": name,
                    "requests": counted.offered.requests,
                    "admitted": counted.offered.admitted,
                    "calls": counted.calls,
                    "redis_us_per_request": rounded(counted.us_per_request()),
                }));
            }
            calls.push(own.calls_per_request());
            ours.push(own.us_per_request());
            theirs.push(other.us_per_request());
        }
        let per_request = quartiles(&ours).1;
        report.require("mix_calls_per_request", quartiles(&calls).1, Limit::AtMost(0.45));
        report.field("mix_calls_goal", json!(0.35));
        let over_design = per_request / quartiles(&theirs).1;
        report.require("mix_cpu_over_design", over_design, Limit::AtMost(0.5));
        report.field("mix_cpu_goal", json!(0.3));
        report.field("mix_cpu_over_design_pipelined", json!(rounded(per_request / design_us)));
        report.field("mix_us_per_request", json!(rounded(per_request)));
        Ok(())
    }

    async fn hot_keys(&mut self, report: &mut Report, weir: &Fleet) -> anyhow::Result<()> {
        let Stage { connection, random, extent } = self;
        let below = (4_000, "4000/s", 2_000.0);
        let below = mix::hot_key(weir, connection, below, extent.stretch, random).await?;
        let above = (1_000, "1000/s", 10_000.0);
        let above = mix::hot_key(weir, connection, above, extent.stretch, random).await?;
        for (name, counted) in [("hot_below", &below), ("hot_above", &above)] {
            report.samples(counted.offered.requests);
            report.offered(counted.offered.achieved());
            report.round(json!({
                "hot": name,
                "requests": counted.offered.requests,
                "admitted": counted.offered.admitted,
                "calls": counted.calls,
            }));
        }
        let each = below.calls_per_s() / f64::from(GATEWAYS);
        report.require("hot_below_calls_per_gateway_s", each, Limit::AtMost(15.0));
        report.field("hot_below_goal", json!(12));
        let over_polls = above.calls_per_s() / mix::polls_per_s();
        report.require("hot_above_calls_over_polls", over_polls, Limit::AtMost(2.5));
        report.field("hot_above_goal", json!(2.3));
        Ok(())
    }
}

/// First quartile, median, third quartile.
pub fn quartiles(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |quarters: usize| {
        let index = (sorted.len().saturating_sub(1) * quarters).div_ceil(4);
        sorted.get(index).copied().unwrap_or(f64::NAN)
    };
    (at(1), at(2), at(3))
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// `part` ÷ `whole`; not a number if there is no whole.
#[expect(clippy::cast_precision_loss, reason = "quotients for people, of counts far below 2^53")]
pub fn quotient(part: u64, whole: u64) -> f64 {
    if whole == 0 { f64::NAN } else { part as f64 / whole as f64 }
}
