//! Gateways with their plans and keys in their own file, one service, and a Redis if they share
//! one: a world without a control plane, for experiments about requests alone.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Context as _;
use demo::Mode;
use system_tests::gateways::{Gateway, GatewaySettings, Policy, Store};
use system_tests::process::{Launcher, START_MAX, eventually};
use system_tests::services::Services;
use wire::key::{ApiKey, KeyEnv, Pepper};

/// The one service.
pub const SERVICE: &str = "orders";
/// How long a request waits for the store by default.
pub const DEADLINE: &str = "5ms";
/// Decisions of the gateways.
const DECISIONS: &str = "weir_decisions_total";
/// Those made without the store.
const DEGRADED: &str = "weir_degraded_decisions_total";

/// Clients by plan: the text of each plan's table, and how many clients have it.
#[derive(Debug, Clone)]
pub struct Plans(pub Vec<(String, usize)>);

/// Everything, running.
#[derive(Debug)]
pub struct Standalone {
    /// The gateways.
    pub gateways: Vec<Gateway>,
    /// The service.
    pub services: Services,
    /// Names of the clients with their API keys, in the order of the plans.
    pub keys: Vec<(String, String)>,
}

/// Logs and files of an experiment, and what starts its processes.
#[derive(Debug)]
pub struct Folder {
    /// Starts processes that log there.
    pub launcher: Launcher,
    /// Goes, with everything in it, when dropped; kept if asked for.
    _folder: tempfile::TempDir,
}

impl Folder {
    /// A new one.
    pub fn new() -> anyhow::Result<Folder> {
        let mut folder = tempfile::Builder::new().prefix("weir-lab-").tempdir()?;
        folder.disable_cleanup(std::env::var_os(system_tests::world::KEEP).is_some());
        let launcher = Launcher::new(std::env::current_exe()?, folder.path());
        Ok(Folder { launcher, _folder: folder })
    }
}

impl Standalone {
    /// Starts the service and `gateways` gateways over `store`, which requests wait for until
    /// `deadline`, and returns when all are ready.
    pub async fn start(
        launcher: &Launcher,
        gateways: usize,
        store: Store,
        deadline: &'static str,
        plans: &Plans,
    ) -> anyhow::Result<Standalone> {
        let mode =
            Mode { own_limit: false, service_us: [0, 0], concurrency: 10_000, ..Mode::default() };
        let services = Services::start(launcher, &[SERVICE], 1, &mode).await?;
        let (tables, keys) = tables(launcher, gateways, plans)?;
        let token_file = launcher.dir().join("operations-token");
        std::fs::write(&token_file, "a token for nobody, of more than thirty bytes")?;
        let settings = GatewaySettings {
            store,
            policy: Policy::File(tables),
            operations_token_file: token_file,
            deadline,
        };
        let mut started = Vec::new();
        for number in 1..=gateways {
            started.push(Gateway::start(launcher, number, &settings, &services).await?);
        }
        let world = Standalone { gateways: started, services, keys };
        world.wait_ready().await?;
        Ok(world)
    }

    async fn wait_ready(&self) -> anyhow::Result<()> {
        for gateway in &self.gateways {
            let url = format!("http://{}", gateway.operations);
            let client = wire::client::Client::new(&url, None)?;
            eventually(&format!("{} is ready", gateway.id), START_MAX, || async {
                let ready = client.send_raw(wire::client::Call::get("/readyz")).await;
                Ok(ready.ok().map(drop))
            })
            .await?;
        }
        Ok(())
    }

    /// Where callers go.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.gateways.iter().map(|gateway| gateway.traffic).collect()
    }

    /// Decisions so far: all, and those without the store.
    pub async fn decisions(&self) -> anyhow::Result<(f64, f64)> {
        let (mut all, mut degraded) = (0.0, 0.0);
        for gateway in &self.gateways {
            all += gateway.counter(DECISIONS).await?;
            degraded += gateway.counter(DEGRADED).await?;
        }
        Ok((all, degraded))
    }
}

/// The tables of a gateway's file, and the keys that they hold.
pub fn tables(
    launcher: &Launcher,
    gateways: usize,
    plans: &Plans,
) -> anyhow::Result<(String, Vec<(String, String)>)> {
    let pepper = Pepper::generate().context("a pepper")?;
    let pepper_file = launcher.dir().join("pepper");
    std::fs::write(&pepper_file, pepper.bytes())?;
    let mut text = format!("[standalone]\ngateways = {gateways}\npepper_file = {pepper_file:?}\n");
    let mut keys = Vec::new();
    let mut clients = String::new();
    for (number, (plan, count)) in plans.0.iter().enumerate() {
        writeln!(text, "[plan.plan-{number}]\n{plan}")?;
        for client in 0..*count {
            let name = format!("client-{number}-{client}");
            let key = ApiKey::generate(KeyEnv::Test, &pepper).context("a key")?;
            writeln!(clients, "[client.{name}]\nplan = \"plan-{number}\"\n[[key]]")?;
            let hash = key.hash.to_hex();
            writeln!(clients, "id = \"{}\"\nclient = \"{name}\"\nhash = \"{hash}\"", key.id)?;
            keys.push((name, key.text));
        }
    }
    Ok((text + &clients, keys))
}
