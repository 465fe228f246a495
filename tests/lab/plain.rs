//! Gateways before a service that costs next to nothing, with their plans in their own file: for
//! experiments about what a gateway itself costs.

use std::ffi::OsString;
use std::net::SocketAddr;

use system_tests::origin;
use system_tests::process::{Child, Launcher, free_port};
use system_tests::redis::Redis;

use crate::standalone::{self, Plans};

/// What they have in common.
#[derive(Debug)]
pub struct Plain {
    /// Where their buckets are.
    pub redis: Redis,
    /// Where the service is.
    pub origin: SocketAddr,
    tables: String,
    _origin: Child,
}

/// A process under test.
#[derive(Debug)]
pub struct Subject {
    /// The process.
    pub child: Child,
    /// Where callers go.
    pub at: SocketAddr,
    /// Its operations port, if it is a gateway.
    pub operations: Option<SocketAddr>,
}

/// What stands in a gateway's file beside what all have in common.
#[derive(Debug, Clone, Default)]
pub struct Added {
    /// Tables of their own.
    pub tables: String,
    /// Keys of the route.
    pub route: String,
    /// Keys of the upstream.
    pub upstream: String,
}

/// What differs between gateways.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    /// Name of its files.
    pub name: &'a str,
    /// Worker threads.
    pub workers: usize,
    /// How long a request waits for Redis.
    pub deadline: &'a str,
    /// And more.
    pub added: Added,
}

impl<'a> Setting<'a> {
    /// As shipped, with one worker.
    pub fn shipped(name: &'a str) -> Setting<'a> {
        Setting { name, workers: 1, deadline: standalone::DEADLINE, added: Added::default() }
    }
}

impl Plain {
    /// Starts Redis and the service; and the clients' API keys, in the order of the plans.
    pub async fn start(
        launcher: &Launcher,
        gateways: usize,
        plans: &Plans,
    ) -> anyhow::Result<(Plain, Vec<(String, String)>)> {
        let redis = Redis::start(launcher).await?;
        let (child, origin) = origin::start(launcher).await?;
        let (tables, keys) = standalone::tables(launcher, gateways, plans)?;
        Ok((Plain { redis, origin, tables, _origin: child }, keys))
    }

    /// Starts a gateway by this part with these first words.
    pub async fn gateway(
        &self,
        launcher: &Launcher,
        setting: Setting<'_>,
        part: &str,
        mut args: Vec<OsString>,
    ) -> anyhow::Result<Subject> {
        let Setting { name, workers, deadline, added } = setting;
        let Added { tables, route, upstream } = added;
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let operations = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let text = format!(
            "workers = {workers}\n[listen.main]\naddress = \"{at}\"\n\
             [operations]\naddress = \"{operations}\"\n[drain]\ngrace = \"10ms\"\n\
             [store]\nurl = {:?}\ndeadline = {deadline:?}\n\
             {tables}\n[[route]]\npath = \"/\"\nupstream = \"service\"\n{route}\n\
             [upstream.service]\nendpoints = [\"{}\"]\n{upstream}\n{}",
            self.redis.url(),
            self.origin,
            self.tables,
        );
        let file = launcher.dir().join(format!("{name}.toml"));
        std::fs::write(&file, text)?;
        args.extend(["--config".into(), file.into_os_string()]);
        let (child, _ports) = launcher.start_ready(name, part, args).await?;
        Ok(Subject { child, at, operations: Some(operations) })
    }
}
