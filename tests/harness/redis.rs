//! A Redis server of our own: no persistence, a free port, killed, frozen or flushed at will.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;

use crate::process::{Child, Launcher, START_MAX, eventually, find_program, free_port};

/// A running (or killed) Redis server; its port stays the same.
#[derive(Debug)]
pub struct Redis {
    launcher: Launcher,
    port: u16,
    child: Option<Child>,
}

impl Redis {
    /// Starts one and waits until it answers.
    pub async fn start(launcher: &Launcher) -> anyhow::Result<Redis> {
        let mut redis = Redis { launcher: launcher.clone(), port: free_port()?, child: None };
        redis.restart().await?;
        Ok(redis)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// As settings spell it.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// SIGKILL: gone, with everything that it held.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.take().context("Redis is not running")?.kill()
    }

    /// SIGSTOP: its connections stay open, nothing answers.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.running()?.signal(Signal::STOP)
    }

    /// SIGCONT: as if nothing had been.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.running()?.signal(Signal::CONT)
    }

    fn running(&self) -> anyhow::Result<&Child> {
        self.child.as_ref().context("Redis is not running")
    }

    /// Starts it on its port, empty.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let program = find_program("redis-server", "redis-server")?;
        let port = self.port.to_string();
        let dir = self.launcher.dir().display().to_string();
        let args = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let mut all = vec![program.into_os_string()];
        all.extend(args.into_iter().map(Into::into));
        all.extend(["--dir".into(), dir.into()]);
        self.child = Some(self.launcher.start("redis", "exec", all)?);
        eventually("Redis answers", START_MAX, || async { Ok(self.query("PING").await.ok()) })
            .await
            .map(|_: ::redis::Value| ())
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
