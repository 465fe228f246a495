//! One redis-server: without persistence unless told, on a port that it keeps over restarts.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use redis::{Client, Connection, FromRedisValue};
use tempfile::TempDir;

use crate::ports::Port;
use crate::process::Process;
use crate::tls::Tls;
use crate::wait::until;

/// How a server is to be started.
#[derive(Debug, Default)]
pub struct ServerOptions {
    port: Option<Port>,
    tls: Option<Arc<Tls>>,
    settings: Vec<(String, OsString)>,
}

impl ServerOptions {
    /// On this port instead of any.
    #[must_use]
    pub fn port(mut self, port: Port) -> ServerOptions {
        self.port = Some(port);
        self
    }

    /// With a second port that speaks TLS ([`Server::tls_url`]).
    #[must_use]
    pub fn tls(mut self, tls: &Arc<Tls>) -> ServerOptions {
        self.tls = Some(Arc::clone(tls));
        self
    }

    /// With a line of redis.conf; `name` may come more than once.
    #[must_use]
    pub fn setting(mut self, name: &str, value: impl Into<OsString>) -> ServerOptions {
        self.settings.push((name.to_owned(), value.into()));
        self
    }

    /// With the accounts of this file.
    #[must_use]
    pub fn accounts(self, file: &Path) -> ServerOptions {
        self.setting("aclfile", file.as_os_str())
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> anyhow::Result<Server> {
        let folder = tempfile::tempdir()?;
        let port = self.port.map_or_else(Port::free, Ok)?;
        let tls = self.tls.map(|tls| anyhow::Ok((tls, Port::free()?))).transpose()?;
        let mut server = Server { port, tls, settings: self.settings, folder, process: None };
        server.restart()?;
        Ok(server)
    }
}

/// A redis-server that runs, or has been killed.
#[derive(Debug)]
pub struct Server {
    port: Port,
    tls: Option<(Arc<Tls>, Port)>,
    settings: Vec<(String, OsString)>,
    folder: TempDir,
    process: Option<Process>,
}

impl Server {
    /// One with default settings.
    pub fn start() -> anyhow::Result<Server> {
        ServerOptions::default().start()
    }

    /// Where it listens without TLS.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port of [`Server::address`].
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// As clients spell it.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// The port that speaks TLS, if it has one.
    pub fn tls_port(&self) -> Option<u16> {
        self.tls.as_ref().map(|(_, port)| port.number())
    }

    /// As clients spell it, over TLS.
    pub fn tls_url(&self) -> anyhow::Result<String> {
        let port = self.tls_port().context("this server speaks no TLS")?;
        Ok(format!("rediss://127.0.0.1:{port}/"))
    }

    /// SIGKILL: gone, with everything that it held.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills it if it runs, and starts it on its port: empty, unless it was told to persist.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        let log = self.folder.path().join("server.log");
        let mut process = Process::start("redis-server", self.arguments(), &log)?;
        until("the server answers", || {
            process.check_alive()?;
            let answered = self.connection().and_then(|mut connection| {
                redis::cmd("PING").query::<redis::Value>(&mut connection).map_err(Into::into)
            });
            match answered {
                Ok(_) => Ok(Some(())),
                // One that wants a password or loads its data is up as well.
                Err(error) => {
                    let redis = error.downcast_ref::<redis::RedisError>();
                    Ok(redis.and_then(|error| error.code()).map(drop))
                }
            }
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// SIGSTOP: its connections stay open, nothing answers.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.process()?.freeze()
    }

    /// SIGCONT: as if nothing had been.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.process()?.thaw()
    }

    /// Whether it has been started and not killed.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// The child.
    pub fn process(&self) -> anyhow::Result<&Process> {
        self.process.as_ref().context("this server does not run")
    }

    /// Its working folder: data and log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A connection of the default account, without TLS.
    pub fn connection(&self) -> anyhow::Result<Connection> {
        let connection = Client::open(self.url())?.get_connection_with_timeout(SHORT)?;
        connection.set_read_timeout(Some(READ))?;
        Ok(connection)
    }

    /// One command over a connection of its own; words are split at blanks.
    pub fn query<T: FromRedisValue>(&self, command: &str) -> anyhow::Result<T> {
        let words: Vec<&str> = command.split(' ').collect();
        self.query_words(&words)
    }

    /// One command over a connection of its own, word by word.
    pub fn query_words<T: FromRedisValue>(&self, words: &[&str]) -> anyhow::Result<T> {
        let (verb, arguments) = words.split_first().context("a command has a word")?;
        let mut command = redis::cmd(verb);
        command.arg(arguments);
        let answer = command.query(&mut self.connection()?);
        answer.with_context(|| format!("{words:?} at {}", self.address()))
    }

    /// Whether it takes writes by its own account.
    pub fn is_primary(&self) -> anyhow::Result<bool> {
        Ok(self.query::<String>("INFO replication")?.contains("role:master"))
    }

    /// How many replicas get every write of this server from now on. A replica may believe that
    /// it is in step a second before its primary sends it anything.
    pub fn replicas_in_step(&self) -> anyhow::Result<usize> {
        let info: String = self.query("INFO replication")?;
        let replicas = info.lines().filter(|line| line.starts_with("slave"));
        Ok(replicas.filter(|line| line.contains("state=online")).count())
    }

    /// A number or word of `INFO`, such as `total_connections_received`.
    pub fn info(&self, name: &str) -> anyhow::Result<String> {
        let all: String = self.query("INFO everything")?;
        let found = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(found.with_context(|| format!("no `{name}` in INFO"))?.trim().to_owned())
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        let mut set = |name: &str, value: OsString| {
            all.push(format!("--{name}").into());
            all.push(value);
        };
        set("bind", "127.0.0.1".into());
        set("port", self.port().to_string().into());
        set("save", "".into());
        set("appendonly", "no".into());
        set("dir", self.folder.path().into());
        if let Some((tls, port)) = &self.tls {
            set("tls-port", port.number().to_string().into());
            set("tls-cert-file", tls.certificate().into());
            set("tls-key-file", tls.key().into());
            set("tls-ca-cert-file", tls.roots_file().into());
            set("tls-auth-clients", "no".into());
        }
        for (name, value) in &self.settings {
            set(name, value.clone());
        }
        all
    }
}

const SHORT: std::time::Duration = std::time::Duration::from_secs(1);
const READ: std::time::Duration = std::time::Duration::from_secs(5);
