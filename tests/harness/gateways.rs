//! The gateways: a file and a process for each, on ports that stay when one is restarted.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::process::{Child, Launcher, free_port};
use crate::services::Services;

/// Where gateways keep their buckets.
#[derive(Debug, Clone)]
pub enum Store {
    /// Each its own.
    Memory,
    /// Shared, at this URL.
    Redis(String),
}

/// Where gateways get their policy.
#[derive(Debug, Clone)]
pub enum Policy {
    /// From plans-api.
    Control {
        /// Address of plans-api.
        plans_api: String,
        /// Address of shadow-compare.
        shadow_compare: String,
        /// File with a gateway's token.
        token_file: PathBuf,
        /// File with the pepper.
        pepper_file: PathBuf,
    },
    /// From their own file: these tables.
    File(String),
}

/// What all gateways have in common.
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// Where buckets are.
    pub store: Store,
    /// Where the policy comes from.
    pub policy: Policy,
    /// File with the operations token.
    pub operations_token_file: PathBuf,
    /// How long a request waits for Redis.
    pub deadline: &'static str,
}

/// One gateway.
#[derive(Debug)]
pub struct Gateway {
    /// Its id.
    pub id: String,
    /// Where callers go.
    pub traffic: SocketAddr,
    /// Its operations port.
    pub operations: SocketAddr,
    launcher: Launcher,
    child: Option<Child>,
}

impl Gateway {
    /// Writes the file, starts the process, waits until it listens.
    pub async fn start(
        launcher: &Launcher,
        number: usize,
        settings: &GatewaySettings,
        services: &Services,
    ) -> anyhow::Result<Gateway> {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut gateway = Gateway {
            id: format!("gw-{number}"),
            traffic: address(free_port()?),
            operations: address(free_port()?),
            launcher: launcher.clone(),
            child: None,
        };
        std::fs::write(gateway.file(), gateway.text(settings, services)?)?;
        gateway.restart().await?;
        Ok(gateway)
    }

    /// Its settings file.
    pub fn file(&self) -> PathBuf {
        self.launcher.dir().join(format!("{}.toml", self.id))
    }

    /// Starts it (again) with its file.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.child = None;
        let args = vec!["--config".into(), self.file().into_os_string()];
        let (child, _) = self.launcher.start_ready(&self.id, "gateway", args).await?;
        self.child = Some(child);
        Ok(())
    }

    /// SIGTERM and wait.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            let status = child.terminate(Duration::from_secs(45)).await?;
            anyhow::ensure!(status.success(), "{} ended with {status}", self.id);
        }
        Ok(())
    }

    /// The sum of a counter over all its labels, as the operations port tells it.
    pub async fn counter(&self, name: &str) -> anyhow::Result<f64> {
        counter(self.operations, name).await
    }

    /// The process.
    pub fn child(&mut self) -> anyhow::Result<&mut Child> {
        self.child.as_mut().ok_or_else(|| anyhow::anyhow!("{} is not running", self.id))
    }

    fn text(&self, settings: &GatewaySettings, services: &Services) -> anyhow::Result<String> {
        let mut text = String::new();
        writeln!(text, "workers = 1")?;
        writeln!(text, "[listen.main]\naddress = \"{}\"", self.traffic)?;
        writeln!(text, "[operations]\naddress = \"{}\"", self.operations)?;
        writeln!(text, "token_file = {:?}", settings.operations_token_file)?;
        writeln!(text, "[drain]\ngrace = \"100ms\"\nfinish = \"5s\"")?;
        match &settings.store {
            Store::Memory => {}
            Store::Redis(url) => {
                writeln!(text, "[store]\nurl = {url:?}\ndeadline = {:?}", settings.deadline)?;
            }
        }
        match &settings.policy {
            Policy::Control { plans_api, shadow_compare, token_file, pepper_file } => {
                let state_dir = self.launcher.dir().join(format!("{}.state", self.id));
                std::fs::create_dir_all(&state_dir)?;
                writeln!(text, "[control]\nplans_api = {plans_api:?}")?;
                writeln!(text, "shadow_compare = {shadow_compare:?}")?;
                writeln!(text, "token_file = {token_file:?}\npepper_file = {pepper_file:?}")?;
                writeln!(text, "state_dir = {state_dir:?}\ngateway = {:?}", self.id)?;
            }
            Policy::File(tables) => writeln!(text, "{tables}")?,
        }
        for name in services.names() {
            writeln!(text, "[[route]]\nname = {name:?}\npath = \"/{name}\"\nupstream = {name:?}")?;
            writeln!(text, "auth = \"key\"")?;
            let endpoints: Vec<String> =
                services.endpoints(&name).iter().map(ToString::to_string).collect();
            writeln!(text, "[upstream.{name}]\nendpoints = {endpoints:?}")?;
            writeln!(text, "[upstream.{name}.pairing]\ndeny_status = 429")?;
            writeln!(text, "deny_header = {{ name = \"x-limited-by\", value = {name:?} }}")?;
            writeln!(text, "decision_header = \"x-weir-decision\"")?;
        }
        Ok(text)
    }
}

/// The sum of a counter over all its labels, as an operations port tells it.
pub async fn counter(operations: SocketAddr, name: &str) -> anyhow::Result<f64> {
    let [sum] = counters(operations, [name]).await?;
    Ok(sum)
}

/// The same of several counters at one moment.
pub async fn counters<const N: usize>(
    operations: SocketAddr,
    names: [&str; N],
) -> anyhow::Result<[f64; N]> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let text = client.get(format!("http://{operations}/metrics")).send().await?.text().await?;
    Ok(names.map(|name| {
        let lines = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next())?
        });
        lines.filter_map(|value| value.parse::<f64>().ok()).sum()
    }))
}
