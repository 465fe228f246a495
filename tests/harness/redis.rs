//! A Redis server of our own: no persistence, a free port, killed, frozen or flushed at will.
//!
//! The server itself is the crate `test-servers`'; here it learns not to stop the callers of a
//! test while it starts.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use test_servers::Server;

use crate::process::Launcher;

/// A running (or killed) Redis server; its port stays the same.
#[derive(Debug)]
pub struct Redis {
    /// Only missing while it is being restarted.
    server: Option<Server>,
    address: SocketAddr,
}

impl Redis {
    /// Starts one and waits until it answers. It ends with this program, whoever started that.
    pub async fn start(_launcher: &Launcher) -> anyhow::Result<Redis> {
        let server = tokio::task::spawn_blocking(Server::start).await??;
        Ok(Redis { address: server.address(), server: Some(server) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As settings spell it.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// SIGKILL: gone, with everything that it held.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.server.as_mut().context("Redis could not be restarted")?.kill();
        Ok(())
    }

    /// SIGSTOP: its connections stay open, nothing answers.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.server()?.freeze()
    }

    /// SIGCONT: as if nothing had been.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.server()?.thaw()
    }

    fn server(&self) -> anyhow::Result<&Server> {
        self.server.as_ref().context("Redis could not be restarted")
    }

    /// Starts it on its port, empty.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let mut server = self.server.take().context("Redis could not be restarted")?;
        let restarted = tokio::task::spawn_blocking(move || {
            let outcome = server.restart();
            (server, outcome)
        });
        let (server, outcome) = restarted.await?;
        self.server = Some(server);
        outcome
    }

    /// One command of its own connection; words are split at blanks.
    pub async fn query<T: ::redis::FromRedisValue>(&self, command: &str) -> anyhow::Result<T> {
        let client = ::redis::Client::open(self.url())?;
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut words = command.split(' ');
            let mut cmd = ::redis::cmd(words.next().unwrap_or_default());
            for word in words {
                cmd.arg(word);
            }
            cmd.query_async(&mut connection).await
        };
        Ok(tokio::time::timeout(Duration::from_secs(2), asked).await??)
    }
}
