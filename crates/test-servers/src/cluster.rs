//! A Redis Cluster: primaries with an equal share of the slots and replicas of each.

use anyhow::{Context as _, ensure};

use crate::ports::Port;
use crate::server::{Server, ServerOptions};
use crate::wait::until;

/// Slots of any Cluster.
pub const SLOTS: u16 = 16_384;
/// How long a node must be silent to be taken for dead, in milliseconds.
const NODE_TIMEOUT_MS: &str = "1000";

/// A running Cluster. Nodes keep their index, whatever their role is; the primaries come first.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    primaries: usize,
    _bus: Vec<Port>,
}

/// A slot on its way: keys go one by one, and each side says where to ask for the others.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl Cluster {
    /// Three primaries with a replica each, all agreed.
    pub fn start() -> anyhow::Result<Cluster> {
        Cluster::start_with(3, 1, ServerOptions::default)
    }

    /// So many primaries, so many replicas of each, and options for each node.
    pub fn start_with(
        primaries: usize,
        replicas_each: usize,
        options: impl Fn() -> ServerOptions,
    ) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster { nodes: Vec::new(), primaries, _bus: Vec::new() };
        for _ in 0..primaries * (1 + replicas_each) {
            let bus = Port::free()?;
            let options = options()
                .setting("cluster-enabled", "yes")
                .setting("cluster-config-file", "nodes.conf")
                .setting("cluster-port", bus.number().to_string())
                .setting("cluster-node-timeout", NODE_TIMEOUT_MS)
                .setting("cluster-require-full-coverage", "no")
                .setting("cluster-replica-validity-factor", "0")
                .setting("repl-diskless-sync-delay", "0");
            cluster.nodes.push(options.start()?);
            cluster._bus.push(bus);
        }
        cluster.deal_slots()?;
        cluster.introduce()?;
        cluster.until_healthy()?;
        Ok(cluster)
    }

    /// `host:port` of every node, separated by commas.
    pub fn addresses(&self) -> String {
        let all = self.nodes.iter().map(|node| node.address().to_string());
        all.collect::<Vec<_>>().join(",")
    }

    /// How many nodes there are, dead ones included.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Node `index`.
    ///
    /// # Panics
    /// If there is none.
    pub fn node(&self, index: usize) -> &Server {
        self.nodes.get(index).expect("there is such a node")
    }

    /// Node `index`, to kill or restart it.
    ///
    /// # Panics
    /// If there is none.
    pub fn node_mut(&mut self, index: usize) -> &mut Server {
        self.nodes.get_mut(index).expect("there is such a node")
    }

    /// The slot of a key, as the servers see it.
    pub fn slot(&self, key: &str) -> anyhow::Result<u16> {
        self.living()?.query_words(&["CLUSTER", "KEYSLOT", key])
    }

    /// The index of the primary of a slot, as node `seen_by` sees it.
    pub fn owner_seen_by(&self, slot: u16, seen_by: usize) -> anyhow::Result<usize> {
        let port = owner_port(self.node(seen_by), slot)?;
        self.index(port)
    }

    /// The index of the primary of a slot, as any living node sees it.
    pub fn owner(&self, slot: u16) -> anyhow::Result<usize> {
        let port = owner_port(self.living()?, slot)?;
        self.index(port)
    }

    /// The index of a replica of node `primary`.
    pub fn replica_of(&self, primary: usize) -> anyhow::Result<usize> {
        let port = self.node(primary).port().to_string();
        let found = self.nodes.iter().position(|node| {
            node.is_running()
                && node.info("role").is_ok_and(|role| role == "slave")
                && node.info("master_port").is_ok_and(|master| master == port)
        });
        found.context("it has no replica")
    }

    /// Makes a replica the primary by agreement, loses nothing, and waits until all nodes know.
    pub fn failover_to(&self, replica: usize) -> anyhow::Result<()> {
        let _told: String = self.node(replica).query("CLUSTER FAILOVER")?;
        self.until_primary(replica)?;
        self.until_agreed()
    }

    /// Waits until node `index` is a primary with slots.
    pub fn until_primary(&self, index: usize) -> anyhow::Result<()> {
        let port = self.node(index).port();
        until("the replica is promoted", || {
            let node = self.node(index);
            Ok((node.is_primary()? && owners(node)?.contains(&port)).then_some(()))
        })
    }

    /// Waits until all living nodes see the same owners, all of them living, and know by which of
    /// their changes: a node that moves a slot without knowing the newest change may be overruled.
    pub fn until_agreed(&self) -> anyhow::Result<()> {
        until("all nodes see the same owners", || {
            let mut views = Vec::new();
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                views.push((owners(node)?, changes(node)?));
            }
            let running = |port: &u16| {
                self.nodes.iter().any(|node| node.port() == *port && node.is_running())
            };
            let same = views.windows(2).all(|pair| pair.first() == pair.last());
            let living = views.first().is_some_and(|(ports, _)| ports.iter().all(running));
            Ok((same && living).then_some(()))
        })
    }

    /// Moves a slot with its keys.
    pub fn migrate(&self, slot: u16, to: usize) -> anyhow::Result<()> {
        let migration = self.begin_migration(slot, to)?;
        migration.move_keys()?;
        migration.finish()
    }

    /// Opens a slot on both sides: keys that are not at the source any more are asked for at the
    /// target.
    pub fn begin_migration(&self, slot: u16, to: usize) -> anyhow::Result<Migration<'_>> {
        let from = self.owner(slot)?;
        ensure!(from != to, "the slot is there already");
        let ids = [self.id(from)?, self.id(to)?];
        let [source, target] = &ids;
        let _told: String =
            self.node(to).query(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"))?;
        let _told: String =
            self.node(from).query(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"))?;
        Ok(Migration { cluster: self, slot, from, to })
    }

    fn living(&self) -> anyhow::Result<&Server> {
        self.nodes.iter().find(|node| node.is_running()).context("no node lives")
    }

    fn index(&self, port: u16) -> anyhow::Result<usize> {
        self.nodes.iter().position(|node| node.port() == port).context("not a node of ours")
    }

    fn id(&self, index: usize) -> anyhow::Result<String> {
        self.node(index).query("CLUSTER MYID")
    }

    fn deal_slots(&self) -> anyhow::Result<()> {
        for (number, node) in self.nodes.iter().take(self.primaries).enumerate() {
            let slots = usize::from(SLOTS);
            let first = slots * number / self.primaries;
            let last = slots * (number + 1) / self.primaries - 1;
            let _told: String = node.query(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
            let _told: String = node.query(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
        }
        Ok(())
    }

    fn introduce(&self) -> anyhow::Result<()> {
        let first = self.node(0);
        for (node, bus) in self.nodes.iter().zip(&self._bus).skip(1) {
            let (port, bus) = (node.port(), bus.number());
            let _told: String = first.query(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
        }
        self.until_all("nodes have met", |info| {
            info.contains(&format!("cluster_known_nodes:{}\r", self.nodes.len()))
        })?;
        for (number, replica) in self.nodes.iter().skip(self.primaries).enumerate() {
            let command = format!("CLUSTER REPLICATE {}", self.id(number % self.primaries)?);
            until("a replica follows its primary", || {
                Ok(Some(replica.query::<String>(&command)?))
            })?;
        }
        Ok(())
    }

    fn until_healthy(&self) -> anyhow::Result<()> {
        self.until_all("the Cluster is ready", |info| info.contains("cluster_state:ok"))?;
        until("replicas are in step", || {
            let mut in_step = 0;
            for primary in self.nodes.iter().take(self.primaries) {
                in_step += primary.replicas_in_step()?;
            }
            Ok((in_step == self.nodes.len() - self.primaries).then_some(()))
        })?;
        self.until_agreed()
    }

    fn until_all(&self, what: &str, holds: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        until(what, || {
            for node in &self.nodes {
                if !holds(&node.query::<String>("CLUSTER INFO")?) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }
}

impl Migration<'_> {
    /// The index of the node that the slot leaves.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Moves every key that the slot has now.
    pub fn move_keys(&self) -> anyhow::Result<usize> {
        let source = self.cluster.node(self.from);
        let keys: Vec<String> =
            source.query(&format!("CLUSTER GETKEYSINSLOT {} 1000", self.slot))?;
        let port = self.cluster.node(self.to).port().to_string();
        for key in &keys {
            let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
            let _told: String = source.query_words(&words)?;
        }
        Ok(keys.len())
    }

    /// Makes the target the owner, at every node.
    pub fn finish(self) -> anyhow::Result<()> {
        let command = format!("CLUSTER SETSLOT {} NODE {}", self.slot, self.cluster.id(self.to)?);
        let _told: String = self.cluster.node(self.to).query(&command)?;
        let _told: String = self.cluster.node(self.from).query(&command)?;
        for node in &self.cluster.nodes {
            // Replicas refuse it, and hear of it from their primaries.
            let _told = node.query::<redis::Value>(&command);
        }
        self.cluster.until_agreed()
    }
}

/// Ports of the primaries, in the order of their slots.
fn owners(node: &Server) -> anyhow::Result<Vec<u16>> {
    Ok(ranges(node)?.into_iter().map(|(_, _, port)| port).collect())
}

/// Each node that has slots, with the number of its last change, as a node sees them.
fn changes(node: &Server) -> anyhow::Result<Vec<(String, String)>> {
    let told: String = node.query("CLUSTER NODES")?;
    let mut changes: Vec<(String, String)> = told
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [id, _address, _flags, _primary, _ping, _pong, epoch, _link, slots @ ..] = &*words
            else {
                return None;
            };
            // One in brackets is on its way, and told by its two nodes only.
            let has_slots = slots.iter().any(|slot| !slot.starts_with('['));
            has_slots.then(|| ((*id).to_owned(), (*epoch).to_owned()))
        })
        .collect();
    changes.sort_unstable();
    Ok(changes)
}

fn owner_port(node: &Server, slot: u16) -> anyhow::Result<u16> {
    let found = ranges(node)?.into_iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
    Ok(found.with_context(|| format!("nobody owns slot {slot}"))?.2)
}

/// First and last slot and the primary's port, for each range.
fn ranges(node: &Server) -> anyhow::Result<Vec<(u16, u16, u16)>> {
    let answer: Vec<redis::Value> = node.query("CLUSTER SLOTS")?;
    let mut ranges = Vec::new();
    for range in answer {
        let range: Vec<redis::Value> = redis::from_redis_value(range)?;
        let [first, last, primary, ..] = range.as_slice() else { continue };
        let primary: Vec<redis::Value> = redis::from_redis_value(primary.clone())?;
        let port = primary.get(1).context("a node without a port")?;
        ranges.push((
            redis::from_redis_value(first.clone())?,
            redis::from_redis_value(last.clone())?,
            redis::from_redis_value(port.clone())?,
        ));
    }
    ranges.sort_unstable();
    Ok(ranges)
}
