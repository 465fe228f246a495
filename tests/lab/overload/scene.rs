//! The processes of the experiment: a gateway that has a core for itself, and everything else on
//! the other one.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use system_tests::gateways::{Gateway, GatewaySettings, Policy, Store};
use system_tests::process::{Child, Launcher, START_MAX, eventually};
use system_tests::services::Services;

use super::load::Form;
use crate::standalone::{DEADLINE, Plans, tables};

/// Whose key a request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// Whose limit is never reached.
    Free,
    /// Whose limit is used up.
    UsedUp,
    /// Who may have a few a second.
    Small,
}

/// The service, and what gateways are started with.
#[derive(Debug)]
pub struct Scene {
    launcher: Launcher,
    service: Child,
    service_at: SocketAddr,
    /// Plans, clients and keys.
    tables: String,
    /// In the order of [`Client`].
    keys: Vec<String>,
    cores: usize,
    /// Whether processes have cores of their own.
    pub pinned: bool,
    gateways: usize,
}

/// A running gateway.
#[derive(Debug)]
pub struct Subject {
    gateway: Gateway,
    pid: u32,
}

impl Scene {
    /// Starts the service; `small_per_s` is what the small client may have.
    pub async fn set(launcher: &Launcher, small_per_s: u64) -> anyhow::Result<Scene> {
        // Thousands of callers have a connection each, and so has the gateway.
        let files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files })?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pinned = cores >= 2 && pin(std::process::id(), "1").is_ok();
        let (service, ports) = launcher.start_ready("answers", "answers", Vec::new()).await?;
        let plan = |capacity, refill| {
            format!("burst = {{ capacity = {capacity}, refill = \"{refill}\" }}")
        };
        let plans = Plans(vec![
            (plan(100_000_000, "100000000/s".to_owned()), 1),
            (plan(1, "1/d".to_owned()), 1),
            (plan(small_per_s, format!("{small_per_s}/s")), 1),
        ]);
        let (tables, keys) = tables(launcher, 1, &plans)?;
        let keys = keys.into_iter().map(|(_, key)| key).collect();
        let service_at = ports.get("traffic")?;
        let launcher = launcher.clone();
        Ok(Scene { launcher, service, service_at, tables, keys, cores, pinned, gateways: 0 })
    }

    /// A gateway with this table `[overload]`, ready.
    pub async fn gateway(&mut self, overload: &str) -> anyhow::Result<Subject> {
        self.gateways += 1;
        let token_file = self.launcher.dir().join("operations-token");
        std::fs::write(&token_file, "a token for nobody, of more than thirty bytes")?;
        let policy = format!(
            "{}\n[limits]\nconnections_per_address = 5000\nhead_time = \"60s\"\n\
             [overload]\n{overload}\n[[route]]\npath = \"/\"\nupstream = \"answers\"\n\
             [upstream.answers]\nendpoints = [\"{}\"]\n",
            self.tables, self.service_at
        );
        let settings = GatewaySettings {
            store: Store::Memory,
            policy: Policy::File(policy),
            operations_token_file: token_file,
            deadline: DEADLINE,
        };
        let none = Services(Vec::new());
        let mut gateway = Gateway::start(&self.launcher, self.gateways, &settings, &none).await?;
        let pid = gateway.child()?.id();
        if self.pinned {
            pin(pid, "0")?;
        }
        let client = wire::client::Client::new(&format!("http://{}", gateway.operations), None)?;
        eventually("the gateway is ready", START_MAX, || async {
            let ready = client.send_raw(wire::client::Call::get("/readyz")).await;
            Ok(ready.ok().map(drop))
        })
        .await?;
        Ok(Subject { gateway, pid })
    }

    /// A request for `path` by this client.
    pub fn form(&self, path: &str, client: Client) -> anyhow::Result<Form> {
        let index = match client {
            Client::Free => 0,
            Client::UsedUp => 1,
            Client::Small => 2,
        };
        Ok(Form::new(path, self.keys.get(index).context("a key")?))
    }

    /// This process may use all cores again.
    pub fn release(&self) -> anyhow::Result<()> {
        if !self.pinned {
            return Ok(());
        }
        pin(std::process::id(), &format!("0-{}", self.cores - 1))
    }

    /// Ids of all requests that have reached the service.
    pub async fn arrived(&mut self) -> anyhow::Result<HashSet<u64>> {
        anyhow::ensure!(self.service.is_alive(), "the service is gone");
        let url = format!("http://{}/-/arrivals", self.service_at);
        let text = reqwest::Client::builder().no_proxy().build()?.get(url).send().await?;
        let text = text.error_for_status()?.text().await?;
        Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl Subject {
    /// Where callers go.
    pub fn at(&self) -> SocketAddr {
        self.gateway.traffic
    }

    /// Processor time of all its threads so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut nanos = 0_u64;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            // proc_pid_schedstat: time on a processor, in nanoseconds, comes first.
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_whitespace().next().context("schedstat")?;
            nanos += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Requests that it has shed, as it counts them itself.
    pub async fn shed(&self) -> anyhow::Result<f64> {
        self.gateway.counter("weir_gateway_shed_total").await
    }
}

/// Keeps a process, with all its threads, on these cores.
fn pin(pid: u32, cores: &str) -> anyhow::Result<()> {
    let ran = Command::new("taskset").args(["-a", "-c", "-p", cores, &pid.to_string()]).output()?;
    anyhow::ensure!(ran.status.success(), "taskset: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(())
}
