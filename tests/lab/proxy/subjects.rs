//! The processes that are compared: gateways in several states, and the peers, each alone on its
//! core and before the same service.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use system_tests::balancers::Balancer;
use system_tests::growth::Protocol;
use system_tests::process::{Launcher, START_MAX, eventually, find_program, free_port};
use tokio::net::TcpStream;

use super::Sabotage;
use super::load::{Extent, Load, Who};
use super::meter::SUBJECT_CORE;
use crate::plain::{Plain, Setting, Subject};
use crate::standalone::Plans;

/// API keys of each plan.
const KEYS: usize = 1_000;
/// Every key several times, before anything counts.
pub const WARM_UP: u64 = 5 * KEYS as u64;

/// One side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// The gateway as shipped: limits on, leases warm, one worker.
    Limits,
    /// The same process once more: what the method itself makes of no difference.
    Again,
    /// Its clients have an unlimited plan.
    Unlimited,
    /// Its clients have used their limits up.
    Refusing,
    /// As the first, with two workers on the same core.
    TwoWorkers,
    /// `limit_req` by header.
    Nginx,
    /// A stick table by header.
    Haproxy,
    /// The local limit by descriptor.
    Envoy,
    /// The gateway of another build, if one was named.
    Before,
}

impl Arm {
    /// All of them.
    pub const ALL: [Arm; 9] = [
        Arm::Limits,
        Arm::Again,
        Arm::Unlimited,
        Arm::Refusing,
        Arm::TwoWorkers,
        Arm::Nginx,
        Arm::Haproxy,
        Arm::Envoy,
        Arm::Before,
    ];

    /// Its name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Arm::Limits => "gateway",
            Arm::Again => "gateway_again",
            Arm::Unlimited => "gateway_unlimited",
            Arm::Refusing => "gateway_refusing",
            Arm::TwoWorkers => "gateway_two_workers",
            Arm::Nginx => "nginx",
            Arm::Haproxy => "haproxy",
            Arm::Envoy => "envoy",
            Arm::Before => "gateway_before",
        }
    }

    /// The process behind it.
    const fn process(self) -> Arm {
        match self {
            Arm::Again => Arm::Limits,
            Arm::Limits
            | Arm::Unlimited
            | Arm::Refusing
            | Arm::TwoWorkers
            | Arm::Nginx
            | Arm::Haproxy
            | Arm::Envoy
            | Arm::Before => self,
        }
    }

    /// Index of the plan whose keys its callers show.
    const fn plan(self) -> usize {
        match self {
            Arm::Unlimited => 1,
            Arm::Refusing => 2,
            Arm::Limits
            | Arm::Again
            | Arm::TwoWorkers
            | Arm::Nginx
            | Arm::Haproxy
            | Arm::Envoy
            | Arm::Before => 0,
        }
    }
}

/// All that is running.
#[derive(Debug)]
pub struct Subjects {
    running: BTreeMap<Arm, Subject>,
    /// Peers that are not there, and why.
    pub missing: BTreeMap<Arm, String>,
    keys: Vec<Vec<String>>,
    // Below what uses it, so that it ends after them.
    /// Redis and the service.
    pub plain: Plain,
}

impl Subjects {
    /// Starts all of them, and shows each gateway every key.
    pub async fn start(
        launcher: &Launcher,
        sabotage: Option<Sabotage>,
        before: Option<&Path>,
    ) -> anyhow::Result<Subjects> {
        let limited = match sabotage {
            Some(Sabotage::CallPerRequest) => "burst = { capacity = 20, refill = \"20000/s\" }",
            Some(Sabotage::BusyThread) | None => {
                "burst = { capacity = 20000, refill = \"20000/s\" }"
            }
        };
        let plans = Plans(vec![
            (limited.to_owned(), KEYS),
            ("unlimited = true".to_owned(), KEYS),
            ("burst = { capacity = 1, refill = \"1/h\" }".to_owned(), KEYS),
        ]);
        let (plain, keys) = Plain::start(launcher, 1, &plans).await?;
        let keys: Vec<String> = keys.into_iter().map(|(_, key)| key).collect();
        let keys = keys.chunks(KEYS).map(<[String]>::to_vec).collect();
        let (running, missing) = (BTreeMap::new(), BTreeMap::new());
        let mut subjects = Subjects { running, missing, keys, plain };
        subjects.start_gateways(launcher, sabotage).await?;
        if let Some(before) = before {
            let args = vec!["exec".into(), before.into(), "part".into(), "gateway".into()];
            subjects.start_gateway(launcher, Arm::Before, 1, args).await?;
        }
        for arm in [Arm::Nginx, Arm::Haproxy, Arm::Envoy] {
            match subjects.start_peer(launcher, arm).await {
                Ok(peer) => drop(subjects.running.insert(arm, peer)),
                Err(why) => drop(subjects.missing.insert(arm, format!("{why:#}"))),
            }
        }
        Ok(subjects)
    }

    async fn start_gateways(
        &mut self,
        launcher: &Launcher,
        sabotage: Option<Sabotage>,
    ) -> anyhow::Result<()> {
        let part = match sabotage {
            Some(Sabotage::BusyThread) => "busy-gateway",
            Some(Sabotage::CallPerRequest) | None => "gateway",
        };
        for (arm, workers) in
            [(Arm::Limits, 1), (Arm::Unlimited, 1), (Arm::Refusing, 1), (Arm::TwoWorkers, 2)]
        {
            // A thread without rest in each of them would leave the core to none.
            let part = if arm == Arm::Limits { part } else { "gateway" };
            self.start_gateway(launcher, arm, workers, vec![part.into()]).await?;
        }
        Ok(())
    }

    async fn start_gateway(
        &mut self,
        launcher: &Launcher,
        arm: Arm,
        workers: usize,
        part: Vec<OsString>,
    ) -> anyhow::Result<()> {
        let setting = Setting { workers, ..Setting::shipped(arm.name()) };
        let mut args = vec![SUBJECT_CORE.to_string().into()];
        args.extend(part);
        let gateway = self.plain.gateway(launcher, setting, "pinned", args).await?;
        self.running.insert(arm, gateway);
        let load = Load { who: Who::InTurn, ..self.load(arm, Protocol::Http1, 0)? };
        let (answers, (), ()) = load.play(Extent::Requests(WARM_UP), || Ok(())).await?;
        anyhow::ensure!(answers.strange == 0, "warm-up of {}: {answers:?}", arm.name());
        Ok(())
    }

    async fn start_peer(&self, launcher: &Launcher, arm: Arm) -> anyhow::Result<Subject> {
        let (program, ending, text) = match arm {
            Arm::Nginx => {
                (find_program("nginx", "nginx-light")?, "conf", include_str!("nginx.conf"))
            }
            Arm::Haproxy => (Balancer::Haproxy.program()?, "cfg", include_str!("haproxy.cfg")),
            Arm::Envoy => (Balancer::Envoy.program()?, "yaml", include_str!("envoy.yaml")),
            Arm::Limits
            | Arm::Again
            | Arm::Unlimited
            | Arm::Refusing
            | Arm::TwoWorkers
            | Arm::Before => {
                anyhow::bail!("{} is no peer", arm.name())
            }
        };
        let (origin, at) = (self.plain.origin, SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        let text = text
            .replace("ORIGIN_PORT", &origin.port().to_string())
            .replace("GATE_PORT", &at.port().to_string())
            .replace("ORIGIN", &origin.to_string())
            .replace("GATE", &at.to_string());
        let file = launcher.dir().join(format!("{}.{ending}", arm.name()));
        std::fs::write(&file, text)?;
        let mut args: Vec<OsString> =
            vec![SUBJECT_CORE.to_string().into(), "exec".into(), program.into()];
        let folder = launcher.dir().as_os_str().to_owned();
        args.extend(match arm {
            Arm::Haproxy => Balancer::Haproxy.arguments(&file),
            Arm::Envoy => Balancer::Envoy.arguments(&file),
            Arm::Nginx
            | Arm::Limits
            | Arm::Again
            | Arm::Unlimited
            | Arm::Refusing
            | Arm::TwoWorkers
            | Arm::Before => vec!["-p".into(), folder, "-c".into(), file.into()],
        });
        let child = launcher.start(arm.name(), "pinned", args)?;
        let subject = Subject { child, at, operations: None };
        let connected = || async { Ok(TcpStream::connect(at).await.ok()) };
        let listens = eventually("it listens", START_MAX, connected).await;
        listens.with_context(|| subject.child.log_tail())?;
        Ok(subject)
    }

    /// The process of an arm; `None` for a peer that is not there.
    pub fn of(&self, arm: Arm) -> Option<&Subject> {
        self.running.get(&arm.process())
    }

    /// What calls an arm.
    pub fn load(&self, arm: Arm, protocol: Protocol, seed: u64) -> anyhow::Result<Load> {
        let target = self.of(arm).with_context(|| format!("{} is not there", arm.name()))?.at;
        let keys = self.keys(arm).to_vec();
        Ok(Load { target, protocol, keys, who: Who::Crowd, seed })
    }

    /// The keys that its callers show.
    pub fn keys(&self, arm: Arm) -> &[String] {
        self.keys.get(arm.plan()).map_or(&[], Vec::as_slice)
    }
}
