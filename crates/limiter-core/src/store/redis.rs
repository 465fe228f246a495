//! Buckets in Redis: one script call per request, over a few supervised connections to each node,
//! whether there is one server, a set watched by Sentinel, or a Cluster.
//!
//! What it never does: wait for a dial or for a look at the topology, queue behind a dead server,
//! or send a call again whose outcome is unknown. Errors that a server answers mean that nothing
//! was taken (the script writes last); silence and broken connections mean that nobody knows.

mod address; // where, as a URL says it
mod cluster; // slots, and who has them
pub(crate) mod command; // what is said
mod counters; // what is counted
mod dial; // a connection that is good for calls
mod health; // what a server says of itself
mod link; // one connection, and the breaker before it
mod node; // start here: a call over one server's links
pub(crate) mod script; // the text
mod sentinel; // who is primary
mod settings; // what it is told at its start
mod slot_map; // the map at one moment
mod slots; // the slot of a key, and how nodes tell theirs
mod supervisor; // keeps a link connected

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use self::address::Topology;
use self::cluster::Cluster;
use self::dial::Wanted;
use self::node::{Failed, Node, Shared};
use self::sentinel::Lookout;
use crate::call::{Reply, Request};
use crate::key::BucketKey;
use crate::store::{BucketStore, StoreError};
use crate::time::Clock;

pub use self::counters::RedisCounters;
pub use self::settings::{CONNECTIONS_MAX, RedisSettings, RedisSettingsError};

/// Buckets in Redis.
pub struct RedisStore {
    servers: Servers,
    shared: Arc<Shared>,
    response_timeout: Duration,
    /// What the search for the primary complains of.
    trouble: Arc<ArcSwapOption<String>>,
    stop: watch::Sender<bool>,
    scout: Mutex<Option<JoinHandle<()>>>,
}

enum Servers {
    /// One at a time.
    One(Arc<Node>),
    Many(Arc<Cluster>),
}

impl RedisStore {
    /// Starts to connect, on `runtime`, and returns at once: until a connection is there, calls
    /// end as unreachable. Dropping the store ends its tasks.
    pub fn connect(
        settings: &RedisSettings,
        runtime: &Handle,
        clock: &Arc<dyn Clock>,
    ) -> Result<RedisStore, RedisSettingsError> {
        let plan = settings.plan()?;
        if plan.servers.tls.is_some() {
            dial::choose_cryptography();
        }
        let shared = Arc::new(Shared {
            counters: Arc::new(RedisCounters::default()),
            clock: Arc::clone(clock),
            runtime: runtime.clone(),
            connections: settings.connections,
            epochs: AtomicU64::new(0),
        });
        let trouble = Arc::new(ArcSwapOption::empty());
        let (stop, stopped) = watch::channel(false);
        let dialler = Arc::new(plan.servers);
        let one = |target, wanted| {
            let signals = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            Arc::new(Node::new(target, &dialler, wanted, signals, &shared))
        };
        let (servers, scout) = match plan.topology {
            Topology::Single(at) => (Servers::One(one(Some(at), Wanted::PrimaryIfItTells)), None),
            Topology::Sentinel { sentinels, service } => {
                let node = one(None, Wanted::Primary);
                let lookout = Lookout {
                    sentinels,
                    service,
                    dialler: Arc::new(plan.sentinels),
                    node: Arc::clone(&node),
                    trouble: Arc::clone(&trouble),
                };
                let scout = runtime.spawn(until_stopped(lookout.run(), stopped));
                (Servers::One(node), Some(scout))
            }
            Topology::Cluster { seeds } => {
                let cluster = Cluster::new(seeds, Arc::clone(&dialler), Arc::clone(&shared));
                let cluster = Arc::new(cluster);
                let scout = runtime.spawn(until_stopped(Arc::clone(&cluster).run(), stopped));
                (Servers::Many(cluster), Some(scout))
            }
        };
        let (response_timeout, scout) = (settings.response_timeout, Mutex::new(scout));
        Ok(RedisStore { servers, shared, response_timeout, trouble, stop, scout })
    }

    /// What was counted.
    pub fn counters(&self) -> &Arc<RedisCounters> {
        &self.shared.counters
    }

    /// Whether at least one connection is there and its breaker closed.
    pub fn is_answering(&self) -> bool {
        match &self.servers {
            Servers::One(node) => node.is_answering(),
            Servers::Many(cluster) => cluster.is_answering(),
        }
    }

    /// Why the last dial, or the last look for the servers, failed, as long as one does: for logs
    /// and for the operator.
    pub fn trouble(&self) -> Option<Arc<String>> {
        match &self.servers {
            Servers::One(node) => self.trouble.load_full().or_else(|| node.trouble()),
            Servers::Many(cluster) => cluster.trouble(),
        }
    }

    /// How often breakers opened, over all connections.
    pub fn breaker_openings(&self) -> u64 {
        match &self.servers {
            Servers::One(node) => node.openings(),
            Servers::Many(cluster) => cluster.openings(),
        }
    }

    /// Ends the connections and their tasks; calls from now on are unreachable.
    pub async fn shut_down(&self) {
        self.stop.send_replace(true);
        let scout = self.scout.lock().take();
        if let Some(scout) = scout
            && let Err(error) = scout.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
        match &self.servers {
            Servers::One(node) => node.shut_down().await,
            Servers::Many(cluster) => cluster.shut_down().await,
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("is_answering", &self.is_answering())
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}

impl BucketStore for RedisStore {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        match &self.servers {
            Servers::One(node) => node
                .call(key, request, false, self.response_timeout)
                .await
                .map_err(|failed| match failed {
                    Failed::Store(error) => error,
                    Failed::Redirected(redirect) => redirect.refused(),
                }),
            Servers::Many(cluster) => cluster.call(key, request, self.response_timeout).await,
        }
    }

    fn epoch(&self, key: &BucketKey) -> u64 {
        match &self.servers {
            Servers::One(node) => node.epoch(),
            Servers::Many(cluster) => cluster.epoch(key),
        }
    }
}

/// Ends with the store, too: whoever drops it drops the other end.
async fn until_stopped(work: impl Future<Output = ()>, mut stopped: watch::Receiver<bool>) {
    tokio::select! {
        () = work => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
}
