//! The services to be limited: replicas of the demo in processes of their own, and what their
//! arrival logs say.

use std::ffi::OsString;
use std::net::SocketAddr;

use anyhow::Context as _;
use demo::{Arrival, Mode, SafetyLimits};
use serde_json::Value;
use wire::client::{Call, Client, Method};

use crate::process::{Child, Launcher};

/// One replica.
#[derive(Debug)]
pub struct Service {
    /// `orders`, `billing` or `search`.
    pub name: String,
    /// Counts from 1 within its name.
    pub instance: u32,
    /// Where it listens.
    pub at: SocketAddr,
    /// The process.
    pub child: Child,
    client: Client,
}

/// All replicas.
#[derive(Debug)]
pub struct Services(pub Vec<Service>);

/// An arrival and where it arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// Name of the service.
    pub service: String,
    /// Its replica.
    pub instance: u32,
    /// The logged line.
    pub arrival: Arrival,
}

impl Services {
    /// Starts `replicas` of each name.
    pub async fn start(
        launcher: &Launcher,
        names: &[&str],
        replicas: u32,
        mode: &Mode,
    ) -> anyhow::Result<Services> {
        let mut services = Vec::new();
        for name in names {
            for instance in 1..=replicas {
                let args = [
                    "--name".to_owned(),
                    (*name).to_owned(),
                    "--instance".to_owned(),
                    instance.to_string(),
                    "--instances".to_owned(),
                    replicas.to_string(),
                    "--mode".to_owned(),
                    serde_json::to_string(mode)?,
                ];
                let args = args.into_iter().map(OsString::from).collect();
                let process = format!("{name}-{instance}");
                let (child, ports) = launcher.start_ready(&process, "service", args).await?;
                let at = ports.get("traffic")?;
                let client = Client::new(&format!("http://{at}"), None)?;
                services.push(Service { name: (*name).to_owned(), instance, at, child, client });
            }
        }
        Ok(Services(services))
    }

    /// Names in order, each once.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.iter().map(|service| service.name.clone()).collect();
        names.dedup();
        names
    }

    /// Addresses of the replicas of `name`.
    pub fn endpoints(&self, name: &str) -> Vec<SocketAddr> {
        self.0.iter().filter(|service| service.name == name).map(|service| service.at).collect()
    }

    /// Changes how all replicas behave.
    pub async fn set_mode(&self, mode: &Mode) -> anyhow::Result<()> {
        self.each(|| Call::new(Method::PUT, "/-/mode").json(mode)).await
    }

    /// Gives all replicas the plans, as `GET /v1/safety-limits` tells them.
    pub async fn set_limits(&self, limits: &SafetyLimits) -> anyhow::Result<()> {
        self.each(|| Call::new(Method::PUT, "/-/limits").json(limits)).await
    }

    /// Every client's own bucket in every replica is full again.
    pub async fn refill(&self) -> anyhow::Result<()> {
        self.each(|| Call::new(Method::PUT, "/-/refill")).await
    }

    /// Empties all arrival logs.
    pub async fn forget_arrivals(&self) -> anyhow::Result<()> {
        self.each(|| Call::new(Method::DELETE, "/-/arrivals")).await
    }

    async fn each(&self, call: impl Fn() -> Call) -> anyhow::Result<()> {
        for service in &self.0 {
            service.client.send_raw(call()).await?;
        }
        Ok(())
    }

    /// Everything that arrived since the logs were emptied, in order of time.
    pub async fn arrivals(&self) -> anyhow::Result<Vec<Arrived>> {
        let mut all = Vec::new();
        for service in &self.0 {
            let text = service.client.send_raw(Call::get("/-/arrivals")).await?;
            for line in std::str::from_utf8(&text)?.lines() {
                let arrival = line.parse().map_err(anyhow::Error::msg)?;
                let (service, instance) = (service.name.clone(), service.instance);
                all.push(Arrived { service, instance, arrival });
            }
        }
        all.sort_by_key(|arrived| arrived.arrival.at_us);
        Ok(all)
    }

    /// A count of the safety limits, added up.
    pub async fn safety_count(&self, name: &str) -> anyhow::Result<u64> {
        let mut sum = 0;
        for service in &self.0 {
            let counts: Value = service.client.send(Call::get("/-/counts")).await?;
            sum += counts.get(name).and_then(Value::as_u64).context("no such count")?;
        }
        Ok(sum)
    }
}
