//! What a balancer before several gateways can save: Redis calls per request when HAProxy and
//! Envoy, by the files of `deploy/balancers`, send a client to its own gateway, and when they send
//! it to each in turn.
//!
//! The same clients ask through each, a few of them most (Zipf, 1.2), in an open loop, so that
//! both ways see the same requests a second. Calls are what Redis itself has counted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use demo::incident::Shot;
use serde_json::{Value, json};
use system_tests::balancers::{Balancer, GATEWAYS, Gateway, replaced};
use system_tests::oracle::{float, median, offered_achieved};
use system_tests::process::{Child, START_MAX, eventually, free_port};
use system_tests::traffic::{Callers, Sent};

use crate::crowd::Crowd;
use crate::plain::{Plain, Setting, Subject};
use crate::report::{Limit, Report};
use crate::standalone::{Folder, Plans};
use crate::store::cpu::script_calls;

const CLIENTS: usize = 1_000;
const PER_S: f64 = 2_000.0;
/// Before a stretch counts: leases of the last one end, new ones begin.
const WARM: Duration = Duration::from_secs(2);
/// A request sent later than this is not the intended load.
const LATE_MAX: Duration = Duration::from_millis(50);
/// By hash, a client borrows at one gateway instead of three. How much that saves depends on the
/// crowd: of whom comes less than once in some seconds, each request is a call either way.
const SAVED_TO: f64 = 0.9;
/// And yet no gateway has most of the requests: a third each, and one half more.
const BUSIEST_MAX: f64 = 0.55;

/// A planted defect; each makes another figure fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    /// What goes by hash goes in turn as well.
    InTurn,
    /// Health is asked for where nobody answers.
    WrongCheck,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 2] =
        [("in-turn", Sabotage::InTurn), ("wrong-check", Sabotage::WrongCheck)];

    fn named(name: &str) -> anyhow::Result<Sabotage> {
        crate::report::named(&Sabotage::ALL, name)
    }
}

/// How a balancer chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Choice {
    Hash,
    InTurn,
}

type Arm = (Balancer, Choice);

/// One stretch through one balancer.
struct Stretch {
    sent: Vec<Sent>,
    offered: f64,
    calls: u64,
    /// Decisions of each gateway.
    decided: Vec<f64>,
}

impl Stretch {
    fn calls_per_request(&self) -> f64 {
        float(usize::try_from(self.calls).unwrap_or(usize::MAX)) / float(self.sent.len().max(1))
    }

    fn busiest(&self) -> f64 {
        let all: f64 = self.decided.iter().sum();
        self.decided.iter().copied().fold(0.0, f64::max) / all.max(1.0)
    }

    fn not_served(&self) -> usize {
        self.sent.iter().filter(|sent| sent.status != 200).count()
    }
}

/// Everything, running.
struct Scene {
    gateways: Vec<Subject>,
    callers: BTreeMap<Arm, Callers>,
    _balancers: Vec<Child>,
    // Below the parts that use it, so that it ends after them.
    plain: Plain,
}

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(Sabotage::named).transpose()?;
    let mut report = Report::new("balancers", seed);
    let (rounds, length) =
        if quick { (2, Duration::from_secs(2)) } else { (5, Duration::from_secs(5)) };
    let folder = Folder::new()?;
    let scene = Scene::set(&folder, sabotage, &mut report).await?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut stretches: BTreeMap<Arm, Vec<Stretch>> = BTreeMap::new();
    for _round in 0..rounds {
        let mut arms: Vec<Arm> = scene.callers.keys().copied().collect();
        random.shuffle(&mut arms);
        for arm in arms {
            let stretch = scene.stretch(arm, length, &mut random).await?;
            report.offered(stretch.offered);
            report.samples(stretch.sent.len() as u64);
            report.round(shown(arm, &stretch));
            stretches.entry(arm).or_default().push(stretch);
        }
    }
    report.samples_needed(if quick { 20_000 } else { 150_000 });
    judge(&stretches, &mut report);
    Ok(report)
}

impl Scene {
    async fn set(
        folder: &Folder,
        sabotage: Option<Sabotage>,
        report: &mut Report,
    ) -> anyhow::Result<Scene> {
        let launcher = &folder.launcher;
        let plan = "burst = { capacity = 20000, refill = \"20000/s\" }".to_owned();
        let (plain, keys) = Plain::start(launcher, GATEWAYS, &Plans(vec![(plan, CLIENTS)])).await?;
        let mut gateways = Vec::new();
        for number in 1..=GATEWAYS {
            let name = format!("gw-{number}");
            let setting = Setting::shipped(&name);
            gateways.push(plain.gateway(launcher, setting, "gateway", Vec::new()).await?);
        }
        let (mut callers, mut balancers) = (BTreeMap::new(), Vec::new());
        for balancer in Balancer::ALL {
            for choice in [Choice::Hash, Choice::InTurn] {
                let at = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()?));
                let text = text(balancer, choice, at, &gateways, sabotage)?;
                let name = format!("{}-{choice:?}", balancer.name());
                let file = launcher.dir().join(format!("{name}.conf.yaml"));
                std::fs::write(&file, text)?;
                let program = match balancer.program() {
                    Ok(program) => program,
                    Err(why) => {
                        report.note(format!("{why:#}"));
                        continue;
                    }
                };
                let mut args = vec![program.into_os_string()];
                args.extend(balancer.arguments(&file));
                let child = launcher.start(&name, "exec", args)?;
                let through = Callers::new(&[at], &["orders".to_owned()], &keys)?;
                let ready = eventually("a gateway behind it answers", START_MAX, || async {
                    let sent = through.one(0, 0, 0).await;
                    // With a wrong check the balancer itself answers, and that is the finding.
                    let answered = sent.status == 200
                        || (sabotage == Some(Sabotage::WrongCheck) && sent.status == 503);
                    Ok(answered.then_some(()))
                });
                ready.await.with_context(|| child.log_tail())?;
                callers.insert((balancer, choice), through);
                balancers.push(child);
            }
        }
        Ok(Scene { gateways, callers, _balancers: balancers, plain })
    }

    async fn stretch(
        &self,
        arm: Arm,
        length: Duration,
        random: &mut fastrand::Rng,
    ) -> anyhow::Result<Stretch> {
        let callers = self.callers.get(&arm).context("no such balancer")?;
        callers.open_loop(&shots(WARM, random)).await?;
        let (calls, decided) = (self.calls().await?, self.decided().await?);
        let shots = shots(length, random);
        let sent = callers.open_loop(&shots).await?;
        let calls = self.calls().await? - calls;
        let now = self.decided().await?;
        let decided = now.iter().zip(&decided).map(|(now, before)| now - before).collect();
        let offered = offered_achieved(&sent, shots.len(), LATE_MAX);
        Ok(Stretch { sent, offered, calls, decided })
    }

    /// Script calls that Redis has counted.
    async fn calls(&self) -> anyhow::Result<u64> {
        let client = redis::Client::open(self.plain.redis.url())?;
        tokio::task::spawn_blocking(move || script_calls(&mut client.get_connection()?)).await?
    }

    async fn decided(&self) -> anyhow::Result<Vec<f64>> {
        let mut all = Vec::new();
        for gateway in &self.gateways {
            let operations = gateway.operations.context("no gateway")?;
            all.push(system_tests::gateways::counter(operations, "weir_decisions_total").await?);
        }
        Ok(all)
    }
}

fn text(
    balancer: Balancer,
    choice: Choice,
    at: std::net::SocketAddr,
    gateways: &[Subject],
    sabotage: Option<Sabotage>,
) -> anyhow::Result<String> {
    let addresses = gateways.iter().filter_map(|gateway| Some((gateway.at, gateway.operations?)));
    let addresses: Vec<_> = addresses.collect();
    let addresses: [Gateway; GATEWAYS] =
        addresses.try_into().ok().context("another number of gateways")?;
    let text = balancer.filled(at, &addresses)?;
    let text = match (choice, sabotage) {
        (Choice::InTurn, _) | (Choice::Hash, Some(Sabotage::InTurn)) => balancer.in_turn(&text)?,
        (Choice::Hash, Some(Sabotage::WrongCheck) | None) => text,
    };
    match (sabotage, balancer) {
        (Some(Sabotage::WrongCheck), Balancer::Haproxy) => {
            replaced(&text, "httpchk GET /readyz", "httpchk GET /nowhere")
        }
        (Some(Sabotage::WrongCheck), Balancer::Envoy) => {
            replaced(&text, "path: /readyz", "path: /nowhere")
        }
        (Some(Sabotage::InTurn) | None, Balancer::Haproxy | Balancer::Envoy) => Ok(text),
    }
}

/// Evenly paced requests of clients at random.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, above 0")]
fn shots(length: Duration, random: &mut fastrand::Rng) -> Vec<Shot> {
    let crowd = Crowd::of(CLIENTS);
    let count = (PER_S * length.as_secs_f64()) as usize;
    let one = |number: usize| Shot {
        at: Duration::from_secs_f64((float(number) + random.f64()) / PER_S),
        client: crowd.one(random),
        gateway: 0,
        service: 0,
    };
    (0..count).map(one).collect()
}

fn judge(stretches: &BTreeMap<Arm, Vec<Stretch>>, report: &mut Report) {
    let figure = |arm: Arm, of: fn(&Stretch) -> f64| {
        stretches.get(&arm).map(|stretches| median(stretches.iter().map(of)))
    };
    for balancer in Balancer::ALL {
        let name = balancer.name();
        let calls = |choice| figure((balancer, choice), Stretch::calls_per_request);
        let (hash, in_turn) = (calls(Choice::Hash), calls(Choice::InTurn));
        report.field(&format!("{name}_calls_per_request_by_hash"), json!(hash));
        report.field(&format!("{name}_calls_per_request_in_turn"), json!(in_turn));
        let saved = format!("{name}_hash_over_in_turn");
        let busiest = format!("{name}_busiest_gateway");
        report.limit(&saved, Limit::AtMost(SAVED_TO));
        report.limit(&busiest, Limit::AtMost(BUSIEST_MAX));
        // A balancer that is not there has passed nothing.
        report.field(&saved, json!(hash.zip(in_turn).map(|(hash, in_turn)| hash / in_turn)));
        report.field(&busiest, json!(figure((balancer, Choice::Hash), Stretch::busiest)));
    }
    let strange: usize = stretches.values().flatten().map(Stretch::not_served).sum();
    report.require("not_served", float(strange), Limit::Exactly(0.0));
}

fn shown((balancer, choice): Arm, stretch: &Stretch) -> Value {
    json!({ "balancer": balancer.name(), "choice": format!("{choice:?}"),
            "requests": stretch.sent.len(), "calls": stretch.calls,
            "decided": stretch.decided, "not_served": stretch.not_served() })
}
