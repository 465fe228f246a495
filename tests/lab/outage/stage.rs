//! Three gateways over one Redis of some topology, and what stands between them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fault_proxy::FaultProxy;
use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::{Clock, Limiter, LimiterSettings, SystemClock, TICK_EVERY};
use parking_lot::Mutex;
use system_tests::process::{START_MAX, eventually};
use test_servers::{Cluster, SentinelSet, Server};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::Sabotage;
use super::clients::{self, Client};

const GATEWAYS: u32 = 3;
/// A gateway forgets idle keys this often.
const SWEEP_EVERY: u32 = 100;
/// What a gateway with [`Sabotage::WaitsForStore`] waits.
const FOR_EVER: Duration = Duration::from_secs(2);

/// How Redis is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// One server behind a proxy for each gateway.
    Proxied,
    /// A primary with two replicas, and three sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
}

impl Topology {
    /// In the order of the run.
    pub const ALL: [Topology; 4] =
        [Topology::Single, Topology::Proxied, Topology::Sentinel, Topology::Cluster];
}

/// The servers; what is done to them blocks, so it is done elsewhere.
#[derive(Debug)]
pub enum Servers {
    /// One.
    Single(Server),
    /// Watched over.
    Sentinel(SentinelSet),
    /// Sharing the keys.
    Cluster(Cluster),
}

/// A limiter with its store.
pub struct Gateway {
    /// Asked by callers.
    pub limiter: Limiter<RedisStore>,
    store: Arc<RedisStore>,
}

/// Everything that a round needs.
pub struct Stage {
    gateways: Vec<Gateway>,
    servers: Arc<Mutex<Servers>>,
    /// One for each gateway that has one.
    proxies: Vec<FaultProxy>,
    clock: Arc<dyn Clock>,
    sabotage: Option<Sabotage>,
    ticking: JoinSet<()>,
}

impl Stage {
    /// Starts the servers and links the gateways.
    pub async fn set(topology: Topology, sabotage: Option<Sabotage>) -> anyhow::Result<Stage> {
        let servers = tokio::task::spawn_blocking(move || start(topology)).await??;
        let mut proxies = Vec::new();
        if let Servers::Single(server) = &servers {
            let needed = match (topology, sabotage) {
                (Topology::Proxied, _) => GATEWAYS,
                (Topology::Single, Some(Sabotage::DeafGateway)) => 1,
                (Topology::Single | Topology::Sentinel | Topology::Cluster, _) => 0,
            };
            for _ in 0..needed {
                proxies.push(FaultProxy::start(server.address())?);
            }
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut stage = Stage {
            gateways: Vec::new(),
            servers: Arc::new(Mutex::new(servers)),
            proxies,
            clock,
            sabotage,
            ticking: JoinSet::new(),
        };
        let direct = url(&stage.servers.lock());
        for number in 0..GATEWAYS {
            let proxy = stage.proxies.get(usize::try_from(number)?);
            let url = proxy.map_or_else(|| direct.clone(), FaultProxy::url);
            stage.add_gateway(&url)?;
        }
        stage.until_linked().await?;
        Ok(stage)
    }

    fn add_gateway(&mut self, url: &str) -> anyhow::Result<()> {
        let clock = Arc::clone(&self.clock);
        let settings = RedisSettings::new(url);
        let store = Arc::new(RedisStore::connect(&settings, &Handle::current(), &clock)?);
        let mut settings = LimiterSettings::default();
        if self.sabotage == Some(Sabotage::WaitsForStore) {
            settings.deadline = FOR_EVER;
        }
        let limiter = Limiter::new(Arc::clone(&store), clock, settings);
        limiter.set_fleet(match self.sabotage {
            Some(Sabotage::AloneInFleet) => 1,
            Some(Sabotage::WaitsForStore | Sabotage::FailsOpen | Sabotage::DeafGateway) | None => {
                GATEWAYS
            }
        });
        let ticked = limiter.clone();
        self.ticking.spawn(async move {
            let mut ticks = tokio::time::interval(TICK_EVERY);
            for tick in 0_u32.. {
                ticks.tick().await;
                ticked.tick();
                if tick.is_multiple_of(SWEEP_EVERY) {
                    ticked.sweep();
                }
            }
        });
        self.gateways.push(Gateway { limiter, store });
        Ok(())
    }

    /// The gateways.
    pub fn gateways(&self) -> &[Gateway] {
        &self.gateways
    }

    /// The proxies, one for each gateway from the first.
    pub fn proxies(&self) -> &[FaultProxy] {
        &self.proxies
    }

    /// Whether the first gateway is to stay deaf after a fault.
    pub fn has_deaf_gateway(&self) -> bool {
        self.sabotage == Some(Sabotage::DeafGateway)
    }

    /// New clients.
    pub fn clients(&self, round: &str) -> anyhow::Result<Vec<Client>> {
        clients::all(round, self.sabotage)
    }

    /// The clock of all figures.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// Now, on the clock of all figures.
    pub fn now_us(&self) -> u64 {
        self.clock.now().us()
    }

    /// How often breakers opened so far.
    pub fn breaker_openings(&self) -> u64 {
        self.gateways.iter().map(|gateway| gateway.store.breaker_openings()).sum()
    }

    /// Does something to the servers, on a thread that may block.
    pub async fn with_servers<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Servers) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let servers = Arc::clone(&self.servers);
        tokio::task::spawn_blocking(move || act(&mut servers.lock())).await?
    }

    /// Until every gateway has its connections and asks them.
    pub async fn until_linked(&self) -> anyhow::Result<()> {
        let linked = || self.gateways.iter().all(|gateway| gateway.store.is_answering());
        let asked = eventually("every gateway is linked", START_MAX, || async {
            Ok(linked().then_some(()))
        });
        asked.await.with_context(|| {
            let troubles = self.gateways.iter().filter_map(|gateway| gateway.store.trouble());
            format!("troubles: {:?}", troubles.collect::<Vec<_>>())
        })
    }

    /// Ends it all.
    pub async fn strike(mut self) {
        self.ticking.abort_all();
        for gateway in &self.gateways {
            gateway.limiter.drain().await;
            gateway.store.shut_down().await;
        }
    }
}

fn start(topology: Topology) -> anyhow::Result<Servers> {
    Ok(match topology {
        Topology::Single | Topology::Proxied => Servers::Single(Server::start()?),
        Topology::Sentinel => Servers::Sentinel(SentinelSet::start(2)?),
        Topology::Cluster => Servers::Cluster(Cluster::start()?),
    })
}

fn url(servers: &Servers) -> String {
    match servers {
        Servers::Single(server) => server.url(),
        Servers::Sentinel(set) => {
            format!("redis+sentinel://{}/{}", set.addresses(), set.service())
        }
        Servers::Cluster(cluster) => format!("redis+cluster://{}", cluster.addresses()),
    }
}
