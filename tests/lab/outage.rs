//! The store breaks under load, in eleven ways, and comes back: how long requests wait, what each
//! failure policy lets through, and how soon decisions are exact again.
//!
//! Three limiters in this process are the gateways; Redis (one server, under Sentinels, in a
//! Cluster) is real processes. What was admitted is the callers' own log of decisions. A round is
//! one stretch for one event: healthy seconds (the control run of its waits), the fault, the
//! return, and the time after it.

mod clients; // who asks, and under which policy
mod stage; // gateways, servers, proxies
mod event; // what breaks, and what that may cost
mod load; // an open loop of decisions
mod judge; // figures of one round
mod verdict; // figures of all rounds

use std::time::Duration;

use serde_json::json;

use crate::report::Report;
use event::Event;
use judge::Round;
use stage::{Stage, Topology};
use verdict::Verdict;

/// Fewest decisions over the whole run.
const SAMPLES_MIN: u64 = 60_000;
const SAMPLES_MIN_QUICK: u64 = 30_000;
const REPEATS_MAX: usize = 3;

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Requests wait for the store as long as it takes: `late_share`.
    WaitsForStore,
    /// Every gateway admits a whole failure share instead of its part: `over_tokens`.
    AloneInFleet,
    /// What is closed without a store is open: `errors_of_ours`.
    FailsOpen,
    /// One gateway never hears of the return: `back_to_exact_seconds`.
    DeafGateway,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 4] = [
        ("waits-for-store", Sabotage::WaitsForStore),
        ("alone-in-fleet", Sabotage::AloneInFleet),
        ("fails-open", Sabotage::FailsOpen),
        ("deaf-gateway", Sabotage::DeafGateway),
    ];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }
}

/// How long the parts of a round are.
#[derive(Debug, Clone, Copy)]
pub struct Lengths {
    /// Before the fault.
    pub healthy: Duration,
    /// From the fault to the return, where that is ours to say.
    pub away: Duration,
    /// After the return.
    pub after: Duration,
    /// Rounds of each event.
    pub rounds: usize,
}

const FULL: Lengths = Lengths {
    healthy: Duration::from_secs(2),
    away: Duration::from_millis(2_500),
    after: Duration::from_millis(3_500),
    rounds: 5,
};
const QUICK: Lengths = Lengths {
    healthy: Duration::from_millis(700),
    away: Duration::from_millis(1_300),
    after: Duration::from_millis(2_200),
    rounds: 1,
};

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let lengths = if quick { QUICK } else { FULL };
    let mut report = Report::new("outage", seed);
    report.samples_needed(if quick { SAMPLES_MIN_QUICK } else { SAMPLES_MIN });
    let mut verdict = Verdict::new(lengths.rounds);
    for topology in Topology::ALL {
        let stage = Stage::set(topology, sabotage).await?;
        for number in 0..lengths.rounds {
            for event in Event::on(topology) {
                let place = Place { stage: &stage, event, lengths, seed };
                place.judged_round(number, &mut report, &mut verdict).await?;
            }
        }
        stage.strike().await;
    }
    verdict.tell(&mut report);
    Ok(report)
}

struct Place<'a> {
    stage: &'a Stage,
    event: Event,
    lengths: Lengths,
    seed: u64,
}

impl Place<'_> {
    /// One round, played again while the machine is too noisy for waits. Amounts and errors of a
    /// noisy round count all the same.
    async fn judged_round(
        &self,
        number: usize,
        report: &mut Report,
        verdict: &mut Verdict,
    ) -> anyhow::Result<()> {
        for attempt in 0..=REPEATS_MAX {
            let name = format!("{}-{number}-{attempt}", self.event.name());
            let round = self.play(number, &name, report).await?;
            report.round(json!({ "round": name, "policies": round.json() }));
            verdict.add(self.event, &round);
            if round.is_conclusive() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn play(&self, number: usize, name: &str, report: &mut Report) -> anyhow::Result<Round> {
        let Lengths { healthy, away, after, .. } = self.lengths;
        let stage = self.stage;
        let clients = stage.clients(name)?;
        let openings = stage.breaker_openings();
        let length = healthy + self.event.longest(away) + after;
        let mut random = fastrand::Rng::with_seed(self.seed ^ stable_hash(name));
        let shots = load::shots(&clients, stage.gateways().len(), length, &mut random);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let happening = async {
            tokio::time::sleep(healthy).await;
            let gone = stage.now_us();
            self.event.begin(stage, &clients, number).await?;
            if !self.event.is_instant() {
                tokio::time::sleep(away).await;
            }
            self.event.end(stage).await?;
            let returned = stage.now_us();
            tokio::time::sleep(after).await;
            stop.send_replace(true);
            Ok::<_, anyhow::Error>(judge::Moments { gone, returned })
        };
        let (run, moments) =
            tokio::try_join!(load::open_loop(stage, &clients, &shots, stopped), happening)?;
        report.samples(run.asked.len() as u64);
        report.offered(run.offered);
        self.event.mend(stage).await?;
        let trips = stage.breaker_openings() - openings;
        Ok(Round::judge(self.event, &clients, &run, moments, trips))
    }
}

/// The same for the same text everywhere.
fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
