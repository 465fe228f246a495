//! The world of the incident, its clients with their keys, and one stretch of traffic.

use std::time::Duration;

use demo::incident::{NOISY_CLIENT, NOISY_PLAN, Offer, PlanLine, QUIET_PLAN, Script, Shot};
use demo::{Mode, Verdict};
use serde_json::{Value, json};
use system_tests::control::plan;
use system_tests::oracle::{Contract, Origin, float, offered_achieved};
use system_tests::services::Arrived;
use system_tests::traffic::{Callers, Sent};
use system_tests::world::{Shape, World};

use super::Sabotage;
use crate::report::Report;

/// How many times its contract the noisy client offers.
const TIMES: u64 = 10;
/// How many others there are.
const OTHERS: usize = 50;
/// A request that is sent later than this is not the intended load.
const LATE_MAX: Duration = Duration::from_millis(100);
/// A stretch with a larger share of decisions without the store says little about limits: the
/// machine was too slow for Redis to answer in time.
const DEGRADED_MAX: f64 = 0.001;
/// How often such a stretch is played again.
const REPEATS_MAX: usize = 3;
/// Decisions of the gateways about known clients.
const DECISIONS: &str = "weir_decisions_total";
/// Decisions of the gateways that were made without the store.
const DEGRADED: &str = "weir_degraded_decisions_total";
/// Long enough for every bucket of the script to fill.
const FILLED: Duration = Duration::from_millis(2_300);

/// A client that shows one failure policy while Redis is away.
pub struct Probe {
    /// Client and plan.
    pub name: &'static str,
    /// Failure policy of its plan.
    pub failure: &'static str,
    /// Its plan.
    pub line: PlanLine,
    /// What it offers a second.
    pub per_s: u64,
}

const fn probe(name: &'static str, failure: &'static str, per_s: u64) -> Probe {
    let line = PlanLine { name, capacity: 20, refill: "20/s" };
    Probe { name, failure, line, per_s }
}

const fn small_probe(name: &'static str, failure: &'static str) -> Probe {
    let line = PlanLine { name, capacity: 4, refill: "2/s" };
    Probe { name, failure, line, per_s: 200 }
}

/// One client for each policy. `probe-guarded` is the client that only the services' safety limits
/// hold: its gateways let everything through.
pub const PROBES: [Probe; 5] = [
    probe("probe-open", "open", 60),
    small_probe("probe-coarse", "coarse"),
    probe("probe-local", "local", 60),
    probe("probe-closed", "closed", 60),
    small_probe("probe-guarded", "open"),
];

/// The client whose plan is changed.
pub const CHANGED: &str = "changed";

/// Everything set up.
pub struct Scene {
    /// The parts.
    pub world: World,
    /// The callers; clients of the script come first, in its order.
    pub callers: Callers,
    /// Who offers what.
    pub script: Script,
    /// Length of a phase.
    pub length: Duration,
    /// The planted defect.
    pub sabotage: Option<Sabotage>,
    seed: u64,
    stretches: u64,
}

/// One stretch of traffic with what arrived at the services.
#[derive(Debug, Default)]
pub struct Stretch {
    /// What was sent.
    pub sent: Vec<Sent>,
    /// What arrived.
    pub arrivals: Vec<Arrived>,
    /// Decisions that the gateways counted meanwhile.
    pub counted: f64,
    /// Share of the requests that were decided without the store.
    pub degraded: f64,
    /// What was tallied of the noisy client before.
    pub tallied_before: Tallied,
}

/// What shadow-compare has counted of the noisy client.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tallied {
    /// Decided requests.
    pub requests: u64,
    /// Of these, what the edge denied or would have denied.
    pub would_deny: u64,
}

impl Stretch {
    /// The noisy client's requests.
    pub fn noisy(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().filter(|sent| sent.client == 0)
    }

    /// Everybody else's.
    pub fn others(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().filter(|sent| sent.client != 0)
    }

    /// What the noisy client's contract allows over its requests.
    pub fn noisy_contract(&self) -> f64 {
        let first = self.noisy().map(|sent| sent.sent_us).min().unwrap_or(0);
        let last = self.noisy().map(|sent| sent.sent_us).max().unwrap_or(0);
        noisy_contract().over(Duration::from_micros(last - first))
    }

    /// What services have worked on for the noisy client, over its contract.
    pub fn admitted_over_contract(&self) -> f64 {
        let admitted = Origin::new(&self.arrivals).admitted_us(self.noisy()).len();
        float(admitted) / self.noisy_contract()
    }
}

/// The noisy client's contract.
pub fn noisy_contract() -> Contract {
    contract(NOISY_PLAN)
}

/// A plan's numbers.
pub fn contract(line: PlanLine) -> Contract {
    let per_s = line.refill.trim_end_matches("/s").parse().unwrap_or(f64::NAN);
    Contract { capacity: float(usize::try_from(line.capacity).unwrap_or(0)), per_s }
}

impl Scene {
    /// Starts the world in phase off and makes every client known everywhere.
    pub async fn set(
        length: Duration,
        seed: u64,
        sabotage: Option<Sabotage>,
    ) -> anyhow::Result<Scene> {
        let shape = Shape {
            mode: Mode::default(),
            postgres: true,
            redis: sabotage != Some(Sabotage::PerGatewayBuckets),
            ..Shape::default()
        };
        let mut world = World::start(&std::env::current_exe()?, shape).await?;
        if world.redis.is_none() {
            // The outage still needs something to kill.
            world.start_redis().await?;
        }
        let script = Script::incident(TIMES, OTHERS);
        let keys = make_clients(&world, &script).await?;
        world.control.set_all("off").await?;
        let revision = world.control.put_plan(CHANGED, &plan(1_000, "1000/s", "coarse")).await?;
        world.control.wait_applied(world.gateways.len(), revision).await?;
        let limits = world.control.safety_limits().await?;
        world.services.set_limits(&limits).await?;
        let gateways: Vec<_> = world.gateways.iter().map(|gateway| gateway.traffic).collect();
        let callers = Callers::new(&gateways, &world.services.names(), &keys)?;
        let scene = Scene { world, callers, script, length, sabotage, seed, stretches: 0 };
        scene.make_known().await?;
        Ok(scene)
    }

    /// Each key once at each gateway, so that no phase pays for look-ups.
    async fn make_known(&self) -> anyhow::Result<()> {
        for client in 0..self.callers.names().len() {
            for gateway in 0..self.world.gateways.len() {
                let sent = self.callers.one(client, gateway, 0).await;
                anyhow::ensure!(sent.status == 200 || sent.status == 429, "warm-up: {sent:?}");
            }
        }
        Ok(())
    }

    /// Moves everybody, by name: single clients need no gate.
    pub async fn enforce_everybody(&self) -> anyhow::Result<()> {
        let answer = self.world.control.set_clients(self.callers.names(), "enforce").await?;
        let revision = system_tests::control::revision(&answer)?;
        self.world.control.wait_applied(self.world.gateways.len(), revision).await
    }

    /// Fills all buckets, plays the script, reads the arrival logs. Played again, and told, if the
    /// machine was too slow; the last one counts, whatever it was.
    pub async fn play(&mut self, name: &str, report: &mut Report) -> anyhow::Result<Stretch> {
        for attempt in 0.. {
            let degraded = self.counter(DEGRADED).await?;
            let stretch = self.play_once(name, report).await?;
            let share = (self.counter(DEGRADED).await? - degraded) / float(stretch.sent.len());
            if share <= DEGRADED_MAX || attempt == REPEATS_MAX {
                return Ok(Stretch { degraded: share, ..stretch });
            }
            let percent = share * 100.0;
            report.note(format!("{name} played again: {percent:.2} % were decided without Redis"));
        }
        anyhow::bail!("{name} was never played")
    }

    async fn play_once(&mut self, name: &str, report: &mut Report) -> anyhow::Result<Stretch> {
        self.stretches += 1;
        let shots = self.script.shots(self.length, self.seed + self.stretches * 1_000_003);
        self.rest().await?;
        let (counted, tallied_before) = (self.counter(DECISIONS).await?, self.tallied().await?);
        let sent = self.callers.open_loop(&shots).await?;
        let counted = self.counter(DECISIONS).await? - counted;
        report.samples(sent.len() as u64);
        report.offered(offered_achieved(&sent, shots.len(), LATE_MAX));
        let arrivals = self.world.services.arrivals().await?;
        let origin = Origin::new(&arrivals);
        let strangers = origin.unexplained(&sent);
        anyhow::ensure!(origin.twice == 0, "{name}: {} requests arrived twice", origin.twice);
        anyhow::ensure!(strangers == 0, "{name}: {strangers} arrivals that nobody sent");
        Ok(Stretch { sent, arrivals, counted, degraded: 0.0, tallied_before })
    }

    /// What shadow-compare has counted of the noisy client so far.
    pub async fn tallied(&self) -> anyhow::Result<Tallied> {
        let answer = self.world.control.get("/v1/shadow/clients/top?by=would_deny&n=5").await?;
        let items = answer.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        let noisy = items.into_iter().find(|item| item.get("client") == Some(&json!(NOISY_CLIENT)));
        let count = |name: &str| noisy.as_ref().and_then(|item| item.get(name)?.as_u64());
        Ok(Tallied {
            requests: count("requests").unwrap_or(0),
            would_deny: count("would_deny").unwrap_or(0),
        })
    }

    async fn counter(&self, name: &str) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for gateway in &self.world.gateways {
            sum += gateway.counter(name).await?;
        }
        Ok(sum)
    }

    /// Waits until every bucket is full, and empties the logs.
    pub async fn rest(&self) -> anyhow::Result<()> {
        tokio::time::sleep(FILLED).await;
        self.world.services.refill().await?;
        self.world.services.forget_arrivals().await
    }

    /// The probes' traffic for `length`, as shots of this scene's clients.
    pub fn probe_shots(&mut self, length: Duration) -> anyhow::Result<Vec<Shot>> {
        self.stretches += 1;
        let offers = PROBES.iter().map(|probe| Offer {
            client: probe.name.to_owned(),
            plan: probe.line,
            per_100_s: probe.per_s * 100,
            gateways: vec![1, 1, 1],
        });
        let script = Script { offers: offers.collect(), services: self.script.services };
        let mut shots = script.shots(length, self.seed + self.stretches * 1_000_003);
        for shot in &mut shots {
            let probe = PROBES.get(shot.client).map_or("", |probe| probe.name);
            shot.client = self.callers.client(probe)?;
        }
        Ok(shots)
    }
}

async fn make_clients(world: &World, script: &Script) -> anyhow::Result<Vec<(String, String)>> {
    let control = &world.control;
    for line in [NOISY_PLAN, QUIET_PLAN] {
        control.put_plan(line.name, &plan(line.capacity, line.refill, "coarse")).await?;
    }
    for probe in &PROBES {
        let body = plan(probe.line.capacity, probe.line.refill, probe.failure);
        control.put_plan(probe.name, &body).await?;
    }
    control.put_plan(CHANGED, &plan(1_000, "1000/s", "coarse")).await?;
    let scripted = script.offers.iter().map(|offer| (offer.client.as_str(), offer.plan.name));
    let probes = PROBES.iter().map(|probe| (probe.name, probe.name));
    let mut keys = Vec::new();
    for (client, plan) in scripted.chain(probes).chain([(CHANGED, CHANGED)]) {
        control.put_client(client, plan).await?;
        keys.push((client.to_owned(), control.create_key(client).await?.1));
    }
    Ok(keys)
}

/// What the services' logs say of one client: worked on, by service.
pub fn admitted_by_service(stretch: &Stretch, client: usize, from: u64, to: u64) -> Vec<usize> {
    let origin = Origin::new(&stretch.arrivals);
    let mut services: Vec<usize> = vec![0; 3];
    for sent in stretch.sent.iter().filter(|sent| sent.client == client) {
        let worked_on = origin.arrival(sent).is_some_and(|arrived| {
            let arrival = &arrived.arrival;
            arrival.verdict == Verdict::Admitted && (from..to).contains(&arrival.at_us)
        });
        if let Some(count) = services.get_mut(sent.service) {
            *count += usize::from(worked_on);
        }
    }
    services
}
