//! Ten times what a gateway can do: how much of its capacity still serves, how long those wait who
//! are served, and what a refusal costs beside a forward.
//!
//! A refusal has to be read and written too, so no server can turn ten times its capacity away with
//! nothing left to do if its work is as light as a refusal. The route of this experiment is one
//! whose answers cost the gateway, and nobody else, about a hundred and twenty refusals each: their
//! heads name thousands of header fields that have to be looked for. How many is found beforehand.
//!
//! Capacity (closed loop), 80 % of it and ten times it (open loops at random moments) take turns.
//! The first three seconds of each open stretch are not judged: overload is told from a burst only
//! after a while, and what came in meanwhile (all connections' requests) has to be worked off.

pub mod load; // raw requests
mod scene; // processes on cores of their own
pub mod service; // who answers

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;
use system_tests::oracle::{float, median, quantile};

use crate::report::{Limit, Report};
use crate::standalone::Folder;
use load::{Asked, Form};
use scene::{Client, Scene, Subject};

/// Connections of closed loops: of the usual load, and of the one that finds the capacity of the
/// heavy route without making anybody wait long.
const CONNECTIONS: usize = 32;
const FEW_CONNECTIONS: usize = 6;
/// Connections of open loops: those that come in so many seconds, within bounds.
const CONNECTIONS_S: f64 = 0.25;
const MANY_CONNECTIONS: [f64; 2] = [64.0, 4_000.0];
/// A forward is made so heavy.
const REFUSALS_PER_FORWARD: f64 = 120.0;
/// Beyond it (in a build that is not optimised) the gateway's target and interval grow alike.
const USUAL_FORWARD_US: f64 = 2_000.0;
/// What a client may have who is refused too much.
const SMALL_PER_S: u64 = 5;
const LOAD: f64 = 0.8;
const OVERLOAD: f64 = 10.0;
/// An answer that comes later is none.
const DEADLINE: Duration = Duration::from_millis(100);
const ONSET: Duration = Duration::from_secs(3);

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Nothing is ever shed.
    NeverSheds,
    /// Most of what could be served is refused.
    RefusesTooMuch,
    /// Each refusal costs a connection.
    DearRefusals,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 3] = [
        ("never-sheds", Sabotage::NeverSheds),
        ("refuses-too-much", Sabotage::RefusesTooMuch),
        ("dear-refusals", Sabotage::DearRefusals),
    ];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }
}

/// How long and how often.
struct Lengths {
    pairs: usize,
    slice: Duration,
    rounds: usize,
    closed: Duration,
    open: Duration,
    samples_min: u64,
}

impl Lengths {
    fn of(quick: bool) -> Lengths {
        let s = Duration::from_secs;
        if quick {
            let (slice, closed, open) = (Duration::from_millis(700), s(1), s(6));
            Lengths { pairs: 5, slice, rounds: 3, closed, open, samples_min: 1_000 }
        } else {
            Lengths {
                pairs: 11,
                slice: s(2),
                rounds: 7,
                closed: s(2),
                open: s(11),
                samples_min: 60_000,
            }
        }
    }
}

/// What one round saw.
#[derive(Debug)]
struct Round {
    capacity_per_s: f64,
    busy: f64,
    normal: Open,
    over: Open,
}

/// One open stretch.
#[derive(Debug)]
struct Open {
    all: Vec<Asked>,
    offered: f64,
    per_s: f64,
    /// Without its onset.
    length: Duration,
    onset: Duration,
    /// The gateway's processor time of all time.
    busy: f64,
}

impl Open {
    fn judged(&self) -> impl Iterator<Item = &Asked> {
        self.all.iter().filter(|asked| self.onset <= asked.at)
    }

    fn served(&self) -> impl Iterator<Item = &Asked> {
        self.judged().filter(|asked| asked.status == 200)
    }

    fn p99(&self) -> Duration {
        quantile(self.served().map(|asked| asked.took), 0.99)
    }

    /// Served in time, a second.
    fn goodput(&self, deadline: Duration) -> f64 {
        let good = self.served().filter(|asked| asked.took <= deadline).count();
        float(good) / self.length.as_secs_f64()
    }

    fn share_of(&self, status: u16) -> f64 {
        let count = self.judged().filter(|asked| asked.status == status).count();
        float(count) / float(self.judged().count().max(1))
    }

    fn json(&self) -> serde_json::Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let p50 = ms(quantile(self.served().map(|asked| asked.took), 0.5));
        let refused = self.judged().filter(|asked| asked.status == 503).map(|asked| asked.took);
        let onset = self.all.iter().filter(|one| one.at < self.onset && one.status == 200);
        let onset = ms(quantile(onset.map(|asked| asked.took), 0.99));
        json!({ "offered_per_s": self.per_s, "offered": self.offered, "busy": self.busy,
                "served": self.served().count(), "served_ms_p50": p50,
                "served_ms_p99": ms(self.p99()), "shed_share": self.share_of(503),
                "shed_ms_p99": ms(quantile(refused, 0.99)), "unanswered": self.share_of(0),
                "onset_served_ms_p99": onset })
    }
}

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let mut report = Report::new("overload", seed);
    let lengths = Lengths::of(quick);
    report.samples_needed(lengths.samples_min);
    let folder = Folder::new()?;
    let mut scene = Scene::set(&folder.launcher, SMALL_PER_S).await?;
    if !scene.pinned {
        report.note("no taskset, or one core only: all processes share what there is");
    }
    // A build that is not optimised cannot keep the default at full load.
    let patient = if cfg!(debug_assertions) { "target = \"1s\"" } else { "" };
    let gateway = scene.gateway(patient).await?;
    let refusal_us = p6(&scene, &gateway, &lengths, sabotage, &mut report).await?;
    let wanted_us = (refusal_us * REFUSALS_PER_FORWARD).max(1_000.0);
    let (path, forward_us) = heavy_path(&scene, &gateway, wanted_us).await?;
    drop(gateway);
    report.field("heavy_forward_us", json!(forward_us));
    report.note(format!(
        "the heavy route ({path}) costs the gateway {:.0} refusals; of a light one not even \
         refusals at ten times the capacity could be paid for",
        forward_us / refusal_us
    ));

    let slow = (forward_us / USUAL_FORWARD_US).max(1.0);
    let mut overload = String::new();
    if slow > 1.0 {
        let ms = |base: f64| (base * slow).round();
        overload = format!("target = \"{}ms\"\ninterval = \"{}ms\"", ms(5.0), ms(100.0));
        report.note(format!("a slow build or machine: all times are {slow:.1} times as long"));
    }
    if sabotage == Some(Sabotage::NeverSheds) {
        overload += "\nshed = false";
    }
    let gateway = scene.gateway(&overload).await?;
    let free = scene.form(&path, Client::Free)?;
    let client = match sabotage {
        Some(Sabotage::RefusesTooMuch) => Client::Small,
        Some(Sabotage::NeverSheds | Sabotage::DearRefusals) | None => Client::Free,
    };
    let flood = scene.form(&path, client)?;
    let mut rounds = Vec::new();
    for number in 0..lengths.rounds {
        let seed = seed.wrapping_mul(1_000).wrapping_add(number as u64);
        rounds.push(round(&gateway, &free, &flood, &lengths, slow, seed).await?);
    }
    let shed_told = gateway.shed().await?;
    let arrived = scene.arrived().await?;
    judged(&rounds, &arrived, slow, shed_told, &mut report);
    scene.release()?;
    Ok(report)
}

/// Processor time of the gateway for each request of a stretch, all of which must end in `status`.
async fn cpu_us(
    gateway: &Subject,
    form: &Form,
    connections: usize,
    length: Duration,
    status: u16,
) -> anyhow::Result<f64> {
    let before = gateway.cpu()?;
    let all = load::closed(gateway.at(), form, connections, length).await?;
    let spent = gateway.cpu()?.saturating_sub(before);
    let strange = all.iter().filter(|asked| asked.status != status).count();
    anyhow::ensure!(
        strange * 1_000 <= all.len(),
        "{strange} of {} were not answered with {status}",
        all.len()
    );
    Ok(spent.as_secs_f64() * 1e6 / float(all.len().max(1)))
}

/// What a refusal costs beside a forward, both as light as can be; the refusal's microseconds.
async fn p6(
    scene: &Scene,
    gateway: &Subject,
    lengths: &Lengths,
    sabotage: Option<Sabotage>,
    report: &mut Report,
) -> anyhow::Result<f64> {
    let forward = scene.form("/light", Client::Free)?;
    let mut refusal = scene.form("/light", Client::UsedUp)?;
    // The first one passes and uses the limit up.
    load::closed(gateway.at(), &refusal, 1, Duration::from_millis(50)).await?;
    load::closed(gateway.at(), &forward, CONNECTIONS, lengths.slice / 2).await?;
    refusal.keep = sabotage != Some(Sabotage::DearRefusals);
    let (mut forwards, mut again, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..lengths.pairs {
        let us = async |form: &Form, status| {
            cpu_us(gateway, form, CONNECTIONS, lengths.slice, status).await
        };
        // Who comes first changes, so that whatever drifts is on both sides.
        if pair % 2 == 0 {
            forwards.push(us(&forward, 200).await?);
            refusals.push(us(&refusal, 429).await?);
            again.push(us(&forward, 200).await?);
        } else {
            again.push(us(&forward, 200).await?);
            refusals.push(us(&refusal, 429).await?);
            forwards.push(us(&forward, 200).await?);
        }
    }
    let ratio =
        |ups: &[f64], downs: &[f64]| median(ups.iter().zip(downs).map(|(up, down)| up / down));
    report.require("refusal_over_forward", ratio(&refusals, &forwards), Limit::AtMost(0.6));
    report.field("refusal_over_forward_noise", json!(ratio(&again, &forwards)));
    report.field("forward_us", json!(median(forwards)));
    let refusal_us = median(refusals);
    report.field("refusal_us", json!(refusal_us));
    Ok(refusal_us)
}

/// The path that costs the gateway so many microseconds, and what it really costs.
async fn heavy_path(
    scene: &Scene,
    gateway: &Subject,
    wanted_us: f64,
) -> anyhow::Result<(String, f64)> {
    const FIRST: u32 = 500;
    let length = Duration::from_secs(1);
    let cost = async |names: u32| {
        let path = format!("/heavy/{names}");
        let form = scene.form(&path, Client::Free)?;
        load::closed(gateway.at(), &form, 2, length / 4).await?;
        let us = cpu_us(gateway, &form, 2, length, 200).await?;
        Ok::<_, anyhow::Error>((path, us))
    };
    let (_, none) = cost(0).await?;
    let (_, some) = cost(FIRST).await?;
    let each = (some - none) / f64::from(FIRST);
    anyhow::ensure!(each > 0.0, "names in a head cost nothing: {none} and {some} µs");
    let names = ((wanted_us - none) / each).clamp(1.0, f64::from(service::NAMES_MAX));
    let names = format!("{names:.0}").parse()?;
    cost(names).await
}

async fn round(
    gateway: &Subject,
    free: &Form,
    flood: &Form,
    lengths: &Lengths,
    slow: f64,
    seed: u64,
) -> anyhow::Result<Round> {
    let at = gateway.at();
    let before = gateway.cpu()?;
    let begun = tokio::time::Instant::now();
    let all = load::closed(at, free, FEW_CONNECTIONS, lengths.closed.mul_f64(slow)).await?;
    let took = begun.elapsed().as_secs_f64();
    let served = all.iter().filter(|asked| asked.status == 200).count();
    let capacity_per_s = float(served) / took;
    let busy = gateway.cpu()?.saturating_sub(before).as_secs_f64() / took;
    anyhow::ensure!(served > 0, "the gateway serves nobody");
    let normal = open(gateway, free, capacity_per_s * LOAD, lengths, slow, seed).await?;
    let over = open(gateway, flood, capacity_per_s * OVERLOAD, lengths, slow, !seed).await?;
    Ok(Round { capacity_per_s, busy, normal, over })
}

async fn open(
    gateway: &Subject,
    form: &Form,
    per_s: f64,
    lengths: &Lengths,
    slow: f64,
    seed: u64,
) -> anyhow::Result<Open> {
    let (length, onset) = (lengths.open.mul_f64(slow), ONSET.mul_f64(slow));
    let [least, most] = MANY_CONNECTIONS;
    let connections = (per_s * CONNECTIONS_S * slow).clamp(least, most);
    let connections = format!("{connections:.0}").parse()?;
    let (cpu, begun) = (gateway.cpu()?, tokio::time::Instant::now());
    let (all, moments) = load::open(gateway.at(), form, per_s, length, connections, seed).await?;
    let cpu = gateway.cpu()?.saturating_sub(cpu);
    let busy = cpu.as_secs_f64() / begun.elapsed().as_secs_f64();
    let offered = load::offered(&all, &moments, onset);
    Ok(Open { all, offered, per_s, length: length.saturating_sub(onset), onset, busy })
}

fn judged(
    rounds: &[Round],
    arrived: &HashSet<u64>,
    slow: f64,
    shed_told: f64,
    report: &mut Report,
) {
    let deadline = DEADLINE.mul_f64(slow);
    let good = |round: &Round| round.over.goodput(deadline) / round.capacity_per_s;
    let ratio =
        |round: &Round| round.over.p99().as_secs_f64() / round.normal.p99().as_secs_f64().max(1e-9);
    let of_all = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure));
    report.require("goodput_share_at_10x", of_all(&good), Limit::AtLeast(0.8));
    report.require("p99_served_over_normal", of_all(&ratio), Limit::AtMost(3.0));
    // Otherwise something else than the gateway has too much to do.
    report.require("busy_at_capacity", of_all(&|round| round.busy), Limit::AtLeast(0.85));
    let shed = |round: &Round| round.normal.share_of(503);
    report.require("shed_share_at_80_percent", of_all(&shed), Limit::AtMost(0.001));
    report.field("capacity_per_s", json!(of_all(&|round| round.capacity_per_s)));

    let opens = || rounds.iter().flat_map(|round| [&round.normal, &round.over]);
    let refused = |asked: &&Asked| matches!(asked.status, 429 | 503);
    let reached = opens().flat_map(|open| &open.all).filter(refused);
    let reached = reached.filter(|asked| arrived.contains(&asked.id)).count();
    report.require("refused_reached_service", float(reached), Limit::Exactly(0.0));
    let unserved = opens().flat_map(|open| &open.all);
    let unserved = unserved.filter(|asked| asked.status == 200 && !arrived.contains(&asked.id));
    report.require("answered_without_service", float(unserved.count()), Limit::Exactly(0.0));
    let seen = opens().flat_map(|open| &open.all).filter(|asked| asked.status == 503).count();
    report.field("shed", json!({ "seen": seen, "told_by_gateway": shed_told }));

    for round in rounds {
        report.offered(round.normal.offered);
        report.offered(round.over.offered);
        report.samples(round.over.judged().count() as u64);
        report.round(json!({ "capacity_per_s": round.capacity_per_s, "busy": round.busy,
            "goodput_share": good(round), "p99_ratio": ratio(round),
            "at_80_percent": round.normal.json(), "at_10x": round.over.json() }));
    }
}
