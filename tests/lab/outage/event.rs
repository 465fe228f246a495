//! What breaks, how it is mended, and what it may cost beyond the policy's own share.

use std::time::Duration;

use anyhow::{Context as _, bail};
use fault_proxy::{Direction, Toxic};
use test_servers::{PATIENCE, Port, Server, until};

use super::clients::{Client, POLICIES, Role};
use super::stage::{Servers, Stage, Topology};

/// The flood of the policy `coarse`, the default, is the first to lose its node.
const FIRST_FLOOD: usize = 2;

/// One way to lose the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// SIGKILL; later it starts again, empty.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Stop,
    /// Every reply later by so many milliseconds.
    Delay(u64),
    /// All keys gone.
    FlushAll,
    /// The script gone.
    ScriptFlush,
    /// A replica of nobody who takes no writes, then a primary again.
    ReadOnly,
    /// No memory for writes.
    Oom,
    /// SIGKILL of the primary; Sentinels promote a replica.
    SentinelFailover,
    /// SIGKILL of a primary; its replica is elected.
    ClusterFailover,
}

/// What an event may cost, for one client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowance {
    /// Full buckets that come back because the store has lost what was taken.
    pub buckets: f64,
}

impl Event {
    /// Those that need this topology.
    pub fn on(topology: Topology) -> Vec<Event> {
        match topology {
            Topology::Single => vec![
                Event::Kill,
                Event::Stop,
                Event::FlushAll,
                Event::ScriptFlush,
                Event::ReadOnly,
                Event::Oom,
            ],
            Topology::Proxied => vec![Event::Delay(3), Event::Delay(6), Event::Delay(50)],
            Topology::Sentinel => vec![Event::SentinelFailover],
            Topology::Cluster => vec![Event::ClusterFailover],
        }
    }

    /// As figures are named.
    pub fn name(self) -> String {
        match self {
            Event::Kill => "kill".to_owned(),
            Event::Stop => "stop".to_owned(),
            Event::Delay(ms) => format!("plus_{ms}_ms"),
            Event::FlushAll => "flushall".to_owned(),
            Event::ScriptFlush => "script_flush".to_owned(),
            Event::ReadOnly => "readonly".to_owned(),
            Event::Oom => "oom".to_owned(),
            Event::SentinelFailover => "sentinel_failover".to_owned(),
            Event::ClusterFailover => "cluster_failover".to_owned(),
        }
    }

    /// What the store may forget, by reason.
    pub fn allowance(self) -> Allowance {
        let buckets = match self {
            // It starts empty: every key is full again, once.
            Event::Kill => 1.0,
            // What it does not have any more it cannot count: once for each flush.
            Event::FlushAll => 1.0,
            // Replication does not wait for replicas: at most what was taken since the last write
            // that the new primary has seen, and never more than a bucket.
            Event::SentinelFailover | Event::ClusterFailover => 1.0,
            // It keeps its memory; calls that it answers late or refuses are counted or not made.
            Event::Stop | Event::Delay(_) | Event::ReadOnly | Event::Oom => 0.0,
            // Buckets are not scripts.
            Event::ScriptFlush => 0.0,
        };
        Allowance { buckets }
    }

    /// Whether it is over as soon as it has happened.
    pub fn is_instant(self) -> bool {
        match self {
            Event::FlushAll | Event::ScriptFlush => true,
            // A failover takes as long as it takes.
            Event::SentinelFailover | Event::ClusterFailover => true,
            Event::Kill | Event::Stop | Event::Delay(_) | Event::ReadOnly | Event::Oom => false,
        }
    }

    /// The longest that it may take from the fault to the return.
    pub fn longest(self, away: Duration) -> Duration {
        match self {
            Event::FlushAll | Event::ScriptFlush => Duration::from_millis(200),
            Event::SentinelFailover | Event::ClusterFailover => PATIENCE,
            Event::Kill | Event::Stop | Event::Delay(_) | Event::ReadOnly | Event::Oom => {
                away + Duration::from_secs(5)
            }
        }
    }

    /// From when after the fault requests must not wait any more; `None` where the store is asked
    /// all the time.
    pub fn settled_after(self) -> Option<Duration> {
        match self {
            Event::FlushAll | Event::ScriptFlush | Event::Delay(..=4) => None,
            // Requests stop waiting when a fifth of the answers of a window are late.
            Event::Delay(_) => Some(Duration::from_millis(700)),
            // Breakers open within 250 ms; a Cluster's as well, of the node that is gone.
            Event::Kill
            | Event::Stop
            | Event::ReadOnly
            | Event::Oom
            | Event::SentinelFailover
            | Event::ClusterFailover => Some(Duration::from_millis(400)),
        }
    }

    /// Whether breakers must stay shut.
    pub fn is_slow_only(self) -> bool {
        matches!(self, Event::Delay(_))
    }

    /// Breaks it. Where only a part of the keys is lost, each round it is that of another policy's
    /// flood.
    pub async fn begin(
        self,
        stage: &Stage,
        clients: &[Client],
        round: usize,
    ) -> anyhow::Result<()> {
        if stage.has_deaf_gateway()
            && let Some(proxy) = stage.proxies().first()
        {
            proxy.set(Toxic::Blackhole(Direction::ToClient));
        }
        if let Event::Delay(ms) = self {
            let deaf = usize::from(stage.has_deaf_gateway());
            for proxy in stage.proxies().iter().skip(deaf) {
                proxy.set(Toxic::delay(Duration::from_millis(ms)));
            }
            return Ok(());
        }
        let mut floods = clients.iter().filter(|client| client.role == Role::Flood);
        let flood = floods.nth((round + FIRST_FLOOD) % POLICIES.len());
        let key = flood.context("nobody floods")?.contract.key.to_string();
        stage.with_servers(move |servers| self.break_servers(servers, &key)).await
    }

    /// Mends it, or waits until it has mended itself.
    pub async fn end(self, stage: &Stage) -> anyhow::Result<()> {
        if let Event::Delay(_) = self {
            let deaf = usize::from(stage.has_deaf_gateway());
            for proxy in stage.proxies().iter().skip(deaf) {
                proxy.clear();
            }
            return Ok(());
        }
        stage.with_servers(move |servers| self.mend_servers(servers)).await
    }

    /// After the round: everything is as before it.
    pub async fn mend(self, stage: &Stage) -> anyhow::Result<()> {
        for proxy in stage.proxies().iter().take(usize::from(stage.has_deaf_gateway())) {
            proxy.clear();
            proxy.close_all();
        }
        stage.with_servers(bring_back_the_dead).await?;
        stage.until_linked().await
    }

    fn break_servers(self, servers: &mut Servers, key: &str) -> anyhow::Result<()> {
        match (self, servers) {
            (Event::Kill, Servers::Single(server)) => server.kill(),
            (Event::Stop, Servers::Single(server)) => server.freeze()?,
            (Event::FlushAll, Servers::Single(server)) => told(server, "FLUSHALL")?,
            (Event::ScriptFlush, Servers::Single(server)) => told(server, "SCRIPT FLUSH")?,
            (Event::ReadOnly, Servers::Single(server)) => {
                let nobody = Port::free()?;
                told(server, &format!("REPLICAOF 127.0.0.1 {}", nobody.number()))?;
            }
            (Event::Oom, Servers::Single(server)) => told(server, "CONFIG SET maxmemory 1")?,
            (Event::SentinelFailover, Servers::Sentinel(set)) => {
                let primary = set.primary()?;
                set.server_mut(primary).kill();
            }
            (Event::ClusterFailover, Servers::Cluster(cluster)) => {
                let primary = cluster.owner(cluster.slot(key)?)?;
                cluster.node_mut(primary).kill();
            }
            (event, _) => bail!("{} needs another topology", event.name()),
        }
        Ok(())
    }

    fn mend_servers(self, servers: &mut Servers) -> anyhow::Result<()> {
        match (self, servers) {
            (Event::Kill, Servers::Single(server)) => server.restart()?,
            (Event::Stop, Servers::Single(server)) => server.thaw()?,
            (Event::ReadOnly, Servers::Single(server)) => told(server, "REPLICAOF NO ONE")?,
            (Event::Oom, Servers::Single(server)) => told(server, "CONFIG SET maxmemory 0")?,
            (Event::SentinelFailover, Servers::Sentinel(set)) => {
                let dead = (0..set.servers()).find(|index| !set.server(*index).is_running());
                set.until_primary_is_not(dead.context("nothing was killed")?)?;
            }
            (Event::ClusterFailover, Servers::Cluster(cluster)) => cluster.until_agreed()?,
            (Event::FlushAll | Event::ScriptFlush, Servers::Single(_)) => {}
            (event, _) => bail!("{} needs another topology", event.name()),
        }
        Ok(())
    }
}

fn told(server: &Server, command: &str) -> anyhow::Result<()> {
    let _ok: String = server.query(command)?;
    Ok(())
}

/// Dead servers come back as replicas, in step with their primary.
fn bring_back_the_dead(servers: &mut Servers) -> anyhow::Result<()> {
    match servers {
        Servers::Single(_) => {}
        Servers::Sentinel(set) => {
            for index in 0..set.servers() {
                if !set.server(index).is_running() {
                    set.server_mut(index).restart()?;
                    until_replica(set.server(index))?;
                }
            }
        }
        Servers::Cluster(cluster) => {
            for index in 0..cluster.nodes() {
                if !cluster.node(index).is_running() {
                    cluster.node_mut(index).restart()?;
                    until_replica(cluster.node(index))?;
                }
            }
            cluster.until_agreed()?;
        }
    }
    Ok(())
}

fn until_replica(server: &Server) -> anyhow::Result<()> {
    until("the server that was killed is a replica in step", || {
        let replica = !server.is_primary()? && server.info("master_link_status")? == "up";
        Ok(replica.then_some(()))
    })
}
