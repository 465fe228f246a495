//! Nine replicas, a gateway, plans-api and shadow-compare in this process; everything is in a
//! folder that is gone at the end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon::Failure;
use demo::incident::{NOISY_CLIENT, PlanLine, QUIET_PLAN, Script};
use demo::{Mode, Replica};
use limiter_core::{Clock, SystemClock, Timestamp};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use wire::batch::TopClient;
use wire::client::plans::{Gate, PlansClient, TopBy};
use wire::client::{Client, ClientError};
use wire::key::KeyEnv;

use super::load::{self, Answer, Seen};
use crate::commands::dev::parts::{self, Part};
use crate::commands::dev::ports::{self, Ports};
use crate::commands::dev::seed;
use crate::commands::dev::state::{GATEWAY, OPERATIONS, State};

/// The noisy client's plan: small, so that a busy machine keeps up with many times of it.
pub(super) const NOISY_PLAN: PlanLine = PlanLine { name: "noisy", capacity: 10, refill: "10/s" };
/// Times its contract that the noisy client sends: above nine even with nine full buckets.
const TIMES: u64 = 20;
/// Clients that do nothing wrong.
const OTHERS: usize = 50;
/// Requests of each of them in a hundred seconds while evidence is gathered: within the contract.
const OTHERS_PER_100_S: u64 = 800;
const REPLICAS: u32 = 3;
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct World {
    pub(super) api: PlansClient,
    parts: Vec<Part>,
    replicas: Vec<Replica>,
    incident: Script,
    evidence: Script,
    callers: Arc<[Client]>,
    clock: SystemClock,
    _folder: Folder,
}

/// Removed when it is dropped, also when the demo is interrupted.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl World {
    pub(super) async fn start() -> Result<World, Failure> {
        let path = std::env::temp_dir().join(format!("weir-demo-{}", std::process::id()));
        let folder = Folder(path.clone());
        let state = State::take(&path).map_err(|failure| Failure::other(failure.to_string()))?;
        let (mut replica_parts, replicas, upstreams) = replicas().await?;
        let ports = ports::any()?;
        let plans = parts::plans_api(&path, ports.plans, ports.shadow, None).await?;
        let api = seed::tokens(&state, &format!("http://{}", plans.address("api")?)).await?;
        let shadow = parts::shadow_compare(&path, ports.shadow, None).await?;
        let (incident, evidence) = scripts();
        let keys = clients(&api, &incident).await.map_err(Failure::other)?;
        tell_plans(&api, &replicas).await?;
        state.keep("gateway.toml", gateway_toml(&ports, &upstreams).as_bytes())?;
        let gateway = parts::gateway(&Path::new(&path).join("gateway.toml")).await?;
        parts::ready(gateway.address("operations")?, Duration::from_secs(20)).await?;
        let traffic = format!("http://{}", gateway.address("traffic")?);
        let callers = load::callers(&traffic, &keys).map_err(Failure::other)?;
        let mut parts = vec![gateway, plans, shadow];
        parts.append(&mut replica_parts);
        let clock = SystemClock::new();
        Ok(World { api, parts, replicas, incident, evidence, callers, clock, _folder: folder })
    }

    /// The gateway ends first.
    pub(super) async fn stop(&mut self) {
        for part in &mut self.parts {
            part.stop().await;
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// One phase of the script; every replica's bucket is full at its begin.
    pub(super) async fn run(&self, length: Duration) -> Seen {
        self.replicas.iter().for_each(Replica::refill);
        load::run(&self.incident, &self.callers, length).await
    }

    /// The others alone, as fast as their contracts let them.
    pub(super) async fn gather(&self, length: Duration) -> Seen {
        load::run(&self.evidence, &self.callers, length).await
    }

    /// Waits until the gateway has this revision.
    pub(super) async fn applied(
        &self,
        revision: u64,
        patience: Duration,
    ) -> Result<(), ClientError> {
        let start = self.now();
        loop {
            let gateways = self.api.gateways().await?;
            let there = gateways.iter().any(|gateway| gateway.live && gateway.applied >= revision);
            if there || self.now().since(start) >= patience {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What shadow-compare says of a client, once it knows of `requests` of it.
    pub(super) async fn top(
        &self,
        client: &str,
        requests: u64,
        patience: Duration,
    ) -> Result<Option<TopClient>, ClientError> {
        let start = self.now();
        loop {
            let top = self.api.shadow_top(TopBy::Requests, 100).await?;
            let found = top.into_iter().find(|top| top.client == client);
            let known = found.as_ref().is_some_and(|top| top.requests >= requests);
            if known || self.now().since(start) >= patience {
                return Ok(found);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The gate's report once it does not change any more.
    pub(super) async fn settled_gate(&self, rollout: &str) -> Result<Gate, ClientError> {
        let mut last = self.api.gate(rollout).await?;
        loop {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            let gate = self.api.gate(rollout).await?;
            if gate.report.pairs == last.report.pairs {
                return Ok(gate);
            }
            last = gate;
        }
    }

    pub(super) fn forget_arrivals(&self) {
        self.replicas.iter().for_each(Replica::forget_arrivals);
    }

    /// Requests of a client that reached any replica.
    pub(super) fn arrivals_of(&self, client: &str) -> u64 {
        let of = |replica: &Replica| {
            replica.arrivals(0).0.iter().filter(|arrival| arrival.client == client).count() as u64
        };
        self.replicas.iter().map(of).sum()
    }

    /// Sends until the edge refuses.
    pub(super) async fn empty(&self, client: &str) {
        for _ in 0..10 * NOISY_PLAN.capacity {
            if self.once(client).await == Answer::RefusedByEdge {
                return;
            }
        }
    }

    /// Sends until the edge refuses no more: more in a row than the bucket could hold.
    pub(super) async fn until_open(&self, client: &str, patience: Duration) -> bool {
        let start = self.now();
        let mut passed = 0;
        while self.now().since(start) < patience {
            match self.once(client).await {
                Answer::RefusedByEdge => passed = 0,
                Answer::Allowed | Answer::RefusedByService | Answer::Failed => passed += 1,
            }
            if passed > 2 * NOISY_PLAN.capacity {
                return true;
            }
        }
        false
    }

    async fn once(&self, client: &str) -> Answer {
        let at = self.incident.offers.iter().position(|offer| offer.client == client);
        match at.and_then(|at| self.callers.get(at)) {
            Some(caller) => load::send(caller, "orders").await,
            None => Answer::Failed,
        }
    }
}

/// The incident, and the same world without its noisy client.
fn scripts() -> (Script, Script) {
    let mut incident = Script::incident(TIMES, OTHERS);
    for offer in incident.offers.iter_mut().filter(|offer| offer.client == NOISY_CLIENT) {
        offer.plan = NOISY_PLAN;
        offer.per_100_s = NOISY_PLAN.capacity * 100 * TIMES;
    }
    let mut evidence = incident.clone();
    for offer in &mut evidence.offers {
        offer.per_100_s = if offer.client == NOISY_CLIENT { 0 } else { OTHERS_PER_100_S };
    }
    (incident, evidence)
}

/// Three replicas of each service, and the upstreams that they make.
async fn replicas() -> Result<(Vec<Part>, Vec<Replica>, Vec<(&'static str, Vec<String>)>), Failure>
{
    let (mut parts, mut replicas, mut upstreams) = (Vec::new(), Vec::new(), Vec::new());
    for service in demo::SERVICES {
        let mut endpoints = Vec::new();
        for instance in 1..=REPLICAS {
            let mode = Mode {
                own_limit: true,
                safety_limit: false,
                decision_header: false,
                service_us: [2_000, 6_000],
                concurrency: 8,
            };
            let replica = Replica::new(service, instance, REPLICAS, mode);
            let served = replica.clone();
            let part = parts::start("replica", |context| serve(served, context)).await?;
            endpoints.push(part.address("traffic")?.to_string());
            parts.push(part);
            replicas.push(replica);
        }
        upstreams.push((service, endpoints));
    }
    Ok((parts, replicas, upstreams))
}

async fn serve(replica: Replica, context: daemon::Context) -> Result<(), Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Failure::other)?;
    context.announce("traffic", listener.local_addr().map_err(Failure::other)?);
    context.ready();
    tokio::select! {
        ended = demo::serve(listener, replica) => ended.map_err(Failure::other),
        () = context.drain.started() => Ok(()),
    }
}

/// Plans, clients and keys of the script; the keys in the order of its offers.
async fn clients(api: &PlansClient, script: &Script) -> Result<Vec<String>, ClientError> {
    let plan = |line: PlanLine| {
        let burst = json!({ "capacity": line.capacity, "refill": line.refill });
        (line.name.to_owned(), json!({ "burst": burst }))
    };
    let plans: Map<String, Value> = [plan(NOISY_PLAN), plan(QUIET_PLAN)].into_iter().collect();
    let clients: Map<String, Value> = script
        .offers
        .iter()
        .map(|offer| (offer.client.clone(), json!({ "plan": offer.plan.name })))
        .collect();
    let body = json!({ "plan": plans, "client": clients });
    api.apply(&body, "weir demo", wire::client::plans::ApplyMode::Apply).await?;
    let mut keys = Vec::new();
    for offer in &script.offers {
        keys.push(api.create_key(&offer.client, KeyEnv::Test, None, "weir demo").await?.key);
    }
    Ok(keys)
}

/// The services learn the plans as real ones do.
async fn tell_plans(api: &PlansClient, replicas: &[Replica]) -> Result<(), Failure> {
    let limits = api.safety_limits().await.map_err(Failure::other)?;
    let limits = serde_json::to_value(limits).map_err(Failure::other)?;
    let limits: demo::SafetyLimits = serde_json::from_value(limits).map_err(Failure::other)?;
    for replica in replicas {
        let mistakes = replica.set_limits(&limits);
        if !mistakes.is_empty() {
            return Err(Failure::other(mistakes.join("; ")));
        }
    }
    Ok(())
}

fn gateway_toml(ports: &Ports, upstreams: &[(&str, Vec<String>)]) -> String {
    let Ports { traffic, plans, shadow, operations } = ports;
    let mut text = format!(
        "\
[listen.main]
address = \"127.0.0.1:{traffic}\"
[operations]
address = \"127.0.0.1:{operations}\"
token_file = \"{OPERATIONS}\"
[drain]
grace = \"1ms\"
finish = \"5s\"
[control]
plans_api = \"http://127.0.0.1:{plans}\"
shadow_compare = \"http://127.0.0.1:{shadow}\"
token_file = \"{GATEWAY}\"
pepper_file = \"pepper\"
state_dir = \"gateway\"
gateway = \"demo\"
"
    );
    for (name, endpoints) in upstreams {
        text.push_str(&format!(
            "\
[[route]]
name = \"{name}\"
path = \"/{name}\"
upstream = \"{name}\"
[upstream.{name}]
endpoints = {endpoints:?}
[upstream.{name}.pairing]
deny_status = 429
deny_header = {{ name = \"{}\" }}
",
            demo::LIMITED_BY_HEADER
        ));
    }
    text
}
