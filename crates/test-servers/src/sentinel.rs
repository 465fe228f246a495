//! A primary, its replicas, and the sentinels that watch over them.

use anyhow::{Context as _, ensure};

use crate::ports::Port;
use crate::process::Process;
use crate::server::{Server, ServerOptions};
use crate::wait::until;

const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// How long a server must be silent to be taken for dead.
const DOWN_AFTER_MS: u32 = 500;
const FAILOVER_TIMEOUT_MS: u32 = 3_000;
/// Sentinels tell each other of themselves every two seconds and look at roles every ten; a test
/// need not wait for that. Four publish periods must be longer than it takes to notice a promotion:
/// until then another sentinel would take the new primary for a confused replica.
const HURRY: &str =
    "SENTINEL DEBUG publish-period 500 info-period 300 ping-period 100 ask-period 100";

/// A running Sentinel set. Servers keep their index, whatever their role is.
#[derive(Debug)]
pub struct SentinelSet {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
    service: String,
}

#[derive(Debug)]
struct Sentinel {
    port: Port,
    folder: tempfile::TempDir,
    process: Option<Process>,
}

impl SentinelSet {
    /// One primary (server 0) with so many replicas and three sentinels, all agreed.
    pub fn start(replicas: usize) -> anyhow::Result<SentinelSet> {
        SentinelSet::start_with(replicas, ServerOptions::default)
    }

    /// With options for each server.
    pub fn start_with(
        replicas: usize,
        options: impl Fn() -> ServerOptions,
    ) -> anyhow::Result<SentinelSet> {
        let primary = quick(options()).start()?;
        let mut servers = vec![primary];
        for _ in 0..replicas {
            let port = servers.first().map(Server::port).unwrap_or_default();
            let options = quick(options()).setting("replicaof", format!("127.0.0.1 {port}"));
            servers.push(options.start()?);
        }
        let mut set = SentinelSet { servers, sentinels: Vec::new(), service: "weir".to_owned() };
        set.until_synced()?;
        let primary = set.server(0).port();
        for _ in 0..SENTINELS {
            set.sentinels.push(Sentinel::start(&set.service, primary)?);
        }
        set.until_agreed()?;
        Ok(set)
    }

    /// The name that sentinels know the primary by.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// `host:port` of every sentinel, separated by commas.
    pub fn addresses(&self) -> String {
        let all = self.sentinels.iter().map(|sentinel| sentinel.port.address().to_string());
        all.collect::<Vec<_>>().join(",")
    }

    /// Server `index`.
    ///
    /// # Panics
    /// If there is none.
    pub fn server(&self, index: usize) -> &Server {
        self.servers.get(index).expect("there is such a server")
    }

    /// Server `index`, to kill or restart it.
    ///
    /// # Panics
    /// If there is none.
    pub fn server_mut(&mut self, index: usize) -> &mut Server {
        self.servers.get_mut(index).expect("there is such a server")
    }

    /// How many servers there are, dead ones included.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// SIGKILL for sentinel `index`.
    pub fn kill_sentinel(&mut self, index: usize) -> anyhow::Result<()> {
        self.sentinels.get_mut(index).context("no such sentinel")?.process = None;
        Ok(())
    }

    /// The index of the server that most sentinels call the primary and that says so itself.
    pub fn primary(&self) -> anyhow::Result<usize> {
        let mut votes = vec![0; self.servers.len()];
        let mut living = 0;
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.process.is_some()) {
            living += 1;
            let named = sentinel.primary_port(&self.service)?;
            let index = self.servers.iter().position(|server| server.port() == named);
            if let Some(count) = index.and_then(|index| votes.get_mut(index)) {
                *count += 1;
            }
        }
        let most = votes.iter().position(|count| 2 * count > living).context("no agreement")?;
        ensure!(self.server(most).is_running(), "the named primary is dead");
        ensure!(self.server(most).is_primary()?, "the named primary is a replica still");
        Ok(most)
    }

    /// Asks a sentinel to make another server the primary, and waits; the index of the new one.
    pub fn failover(&self) -> anyhow::Result<usize> {
        let before = self.primary()?;
        until("a sentinel begins the failover", || {
            let living = self.sentinels.iter().find(|sentinel| sentinel.process.is_some());
            let command = format!("SENTINEL FAILOVER {}", self.service);
            let _told: redis::Value = living.context("no sentinel lives")?.query(&command)?;
            Ok(Some(()))
        })?;
        self.until_primary_is_not(before)
    }

    /// Waits until another server than `before` is the primary; its index.
    pub fn until_primary_is_not(&self, before: usize) -> anyhow::Result<usize> {
        until("another server becomes the primary", || {
            Ok(Some(self.primary()?).filter(|index| *index != before))
        })
        .with_context(|| self.logs())
    }

    fn logs(&self) -> String {
        let sentinels = self.sentinels.iter().filter_map(|sentinel| sentinel.process.as_ref());
        let servers = self.servers.iter().filter_map(|server| server.process().ok());
        sentinels.chain(servers).map(Process::log_tail).collect::<Vec<_>>().join("\n---\n")
    }

    fn until_synced(&self) -> anyhow::Result<()> {
        let replicas = self.servers.len() - 1;
        until("replicas are in step", || {
            Ok((self.server(0).replicas_in_step()? == replicas).then_some(()))
        })
    }

    fn until_agreed(&self) -> anyhow::Result<()> {
        let replicas = self.servers.len() - 1;
        until("sentinels know each other and the replicas", || {
            for sentinel in &self.sentinels {
                let known: std::collections::HashMap<String, String> =
                    sentinel.query(&format!("SENTINEL MASTER {}", self.service))?;
                let number = |name: &str| known.get(name).and_then(|text| text.parse().ok());
                let good = number("num-slaves") == Some(replicas)
                    && number("num-other-sentinels") == Some(SENTINELS - 1)
                    && known.get("flags").is_some_and(|flags| flags == "master");
                if !good {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }
}

impl Sentinel {
    fn start(service: &str, primary: u16) -> anyhow::Result<Sentinel> {
        let folder = tempfile::tempdir()?;
        let port = Port::free()?;
        let file = folder.path().join("sentinel.conf");
        let settings = format!(
            "bind 127.0.0.1\nport {}\ndir {}\n\
             sentinel monitor {service} 127.0.0.1 {primary} {QUORUM}\n\
             sentinel down-after-milliseconds {service} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {service} {FAILOVER_TIMEOUT_MS}\n",
            port.number(),
            folder.path().display(),
        );
        std::fs::write(&file, settings)?;
        let log = folder.path().join("server.log");
        let arguments = [file.into_os_string(), "--sentinel".into()];
        let process = Process::start("redis-server", arguments, &log)?;
        let mut sentinel = Sentinel { port, folder, process: Some(process) };
        sentinel.hurry()?;
        Ok(sentinel)
    }

    fn hurry(&mut self) -> anyhow::Result<()> {
        let log = self.folder.path().join("server.log");
        until("the sentinel answers", || {
            let _told: redis::Value = self.query("PING")?;
            Ok(Some(()))
        })
        .with_context(|| std::fs::read_to_string(log).unwrap_or_default())?;
        // Servers before 7.0 do not know it, and are slower to agree.
        let _unknown_before_7 = self.query::<redis::Value>(HURRY);
        Ok(())
    }

    fn query<T: redis::FromRedisValue>(&self, command: &str) -> anyhow::Result<T> {
        let client = redis::Client::open(format!("redis://{}/", self.port.address()))?;
        let mut connection = client.get_connection()?;
        let mut words = command.split(' ');
        let mut query = redis::cmd(words.next().unwrap_or_default());
        query.arg(words.collect::<Vec<_>>());
        Ok(query.query(&mut connection)?)
    }

    fn primary_port(&self, service: &str) -> anyhow::Result<u16> {
        let (_, port): (String, u16) =
            self.query(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {service}"))?;
        Ok(port)
    }
}

fn quick(options: ServerOptions) -> ServerOptions {
    options
        .setting("repl-diskless-sync", "yes")
        .setting("repl-diskless-sync-delay", "0")
        .setting("repl-ping-replica-period", "1")
}
