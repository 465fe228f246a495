//! The gateways that are restarted, the services behind them, and what each gateway tells its
//! service manager, which is this program.
//!
//! A successor is no child of ours while its predecessor lives. So gateways end with their standard
//! input, which only this program holds open, and this program inherits every orphan of theirs, so
//! that each one's end is seen.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use demo::Mode;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use system_tests::process::{Child, Launcher, POLL, START_MAX, free_port};
use system_tests::services::Services;
use tokio::net::UnixDatagram;
use tokio::time::{Instant, timeout, timeout_at};
use wire::key::{ApiKey, KeyEnv, Pepper};

/// Answers at once; answers late.
pub const AT_ONCE: &str = "orders";
pub const LATE: &str = "search";
/// Greets no one, echoes frames.
pub const ECHO: &str = "chat";

/// How gateways end.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    pub grace: Duration,
    pub finish: Duration,
}

/// Everything behind the gateways, and what their files say about it.
#[derive(Debug)]
pub struct Behind {
    pub services: Services,
    /// The callers' API key.
    pub key: String,
    routes: String,
    tables: String,
    launcher: Launcher,
    _echo: Child,
}

impl Behind {
    /// Starts the services; the late one takes so long.
    pub async fn start(launcher: &Launcher, late: Duration) -> anyhow::Result<Behind> {
        let late_us = u64::try_from(late.as_micros())?;
        let mode = |service_us| Mode {
            own_limit: false,
            service_us,
            concurrency: 10_000,
            ..Mode::default()
        };
        let mut services = Services::start(launcher, &[AT_ONCE], 1, &mode([0, 0])).await?;
        let slow = Services::start(launcher, &[LATE], 1, &mode([late_us, late_us])).await?;
        services.0.extend(slow.0);
        let (echo, ports) = launcher.start_ready(ECHO, "echo", Vec::new()).await?;
        let mut routes = String::new();
        let mut at: Vec<(String, SocketAddr)> = vec![(ECHO.to_owned(), ports.get("traffic")?)];
        at.extend(services.0.iter().map(|service| (service.name.clone(), service.at)));
        for (name, at) in at {
            writeln!(routes, "[[route]]\npath = \"/{name}\"\nupstream = \"{name}\"")?;
            writeln!(routes, "[upstream.{name}]\nendpoints = [\"{at}\"]")?;
            writeln!(routes, "max_connections = 100000")?;
        }
        let pepper = Pepper::generate().context("a pepper")?;
        let pepper_file = launcher.dir().join("pepper");
        std::fs::write(&pepper_file, pepper.bytes())?;
        let key = ApiKey::generate(KeyEnv::Test, &pepper).context("a key")?;
        let tables = format!(
            "[standalone]\npepper_file = {pepper_file:?}\n[plan.all]\nunlimited = true\n\
             [client.caller]\nplan = \"all\"\n[[key]]\nid = \"{}\"\nclient = \"caller\"\n\
             hash = \"{}\"\n",
            key.id,
            key.hash.to_hex()
        );
        let launcher = launcher.clone();
        Ok(Behind { services, key: key.text, routes, tables, launcher, _echo: echo })
    }
}

/// A gateway, whichever process it is by now.
#[derive(Debug)]
pub struct Member {
    pub traffic: SocketAddr,
    pub operations: SocketAddr,
    name: String,
    file: PathBuf,
    launcher: Launcher,
    manager: UnixDatagram,
    pid: Option<Pid>,
    /// Those who still drain.
    before: Vec<Pid>,
    /// All of its processes end when this is closed.
    held: Option<ChildStdin>,
    /// Processes that did not end as they should.
    pub unclean: u64,
}

impl Member {
    /// Starts it on ports that stay its own.
    pub async fn start(name: &str, drain: Drain, behind: &Behind) -> anyhow::Result<Member> {
        let launcher = behind.launcher.clone();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (traffic, operations) = (at(free_port()?), at(free_port()?));
        let text = format!(
            "workers = 2\n[listen.main]\naddress = \"{traffic}\"\n\
             [operations]\naddress = \"{operations}\"\n\
             [limits]\nconnections_per_worker = 50000\nconnections_per_address = 100000\n\
             upgrades_per_client = 100000\n\
             [drain]\ngrace = \"{}ms\"\nfinish = \"{}ms\"\n{}{}",
            drain.grace.as_millis(),
            drain.finish.as_millis(),
            behind.tables,
            behind.routes,
        );
        let file = launcher.dir().join(format!("{name}.toml"));
        std::fs::write(&file, text)?;
        let manager = UnixDatagram::bind(launcher.dir().join(format!("{name}.notify")))?;
        let mut member = Member {
            traffic,
            operations,
            name: name.to_owned(),
            file,
            launcher,
            manager,
            pid: None,
            before: Vec::new(),
            held: None,
            unclean: 0,
        };
        member.begin().await?;
        Ok(member)
    }

    /// Starts a process for it, which nobody has handed anything to.
    pub async fn begin(&mut self) -> anyhow::Result<()> {
        let log = self.launcher.dir().join(format!("{}.log", self.name));
        let output = std::fs::File::options().create(true).append(true).open(log)?;
        let mut child = Command::new(self.launcher.exe())
            .args(["part", "kept", "gateway", "--config"])
            .arg(&self.file)
            .env("NOTIFY_SOCKET", self.launcher.dir().join(format!("{}.notify", self.name)))
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        self.held = child.stdin.take();
        self.pid = Some(Pid::from_child(&child));
        self.told("READY=1").await?;
        Ok(())
    }

    /// Waits until its manager is told this; the rest of that line.
    async fn told(&self, what: &str) -> anyhow::Result<String> {
        let end = Instant::now() + START_MAX;
        let mut piece = [0; 4_096];
        loop {
            let heard = timeout_at(end, self.manager.recv(&mut piece)).await;
            let length = heard.with_context(|| format!("{} never said {what}", self.name))??;
            let lines = String::from_utf8_lossy(piece.get(..length).unwrap_or_default());
            if let Some(rest) = lines.lines().find_map(|line| line.strip_prefix(what)) {
                return Ok(rest.to_owned());
            }
        }
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<Pid> {
        let pid = self.pid.with_context(|| format!("{} does not run", self.name))?;
        kill_process(pid, signal)?;
        Ok(pid)
    }

    /// Asks for a new process, and waits until it serves.
    pub async fn succeed(&mut self) -> anyhow::Result<()> {
        let old = self.signal(Signal::USR2)?;
        let pid: i32 = self.told("MAINPID=").await?.parse()?;
        self.pid = Some(Pid::from_raw(pid).context("a process has an id")?);
        self.before.push(old);
        Ok(())
    }

    /// Adds a route to its file, and waits until it has taken that.
    pub async fn reload(&mut self, number: u64) -> anyhow::Result<()> {
        let mut file = std::fs::File::options().append(true).open(&self.file)?;
        let route = format!("[[route]]\npath = \"/spare-{number}\"\nupstream = \"{ECHO}\"\n");
        std::io::Write::write_all(&mut file, route.as_bytes())?;
        self.signal(Signal::HUP)?;
        self.told("RELOADING=1").await?;
        self.told("READY=1").await?;
        Ok(())
    }

    /// Tells it to end, and does not wait for that.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self.signal(Signal::TERM)?;
        self.before.push(pid);
        self.pid = None;
        Ok(())
    }

    /// Waits until all processes that were to end have ended.
    pub async fn gone(&mut self, longest: Duration) -> anyhow::Result<()> {
        for pid in std::mem::take(&mut self.before) {
            if !timeout(longest, ended(pid)).await.context("a gateway did not end")?? {
                self.unclean += 1;
            }
        }
        Ok(())
    }
}

/// Waits for a process's end; whether that was as it should be. Before it is an orphan it is not
/// ours to wait for.
async fn ended(pid: Pid) -> anyhow::Result<bool> {
    loop {
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return Ok(status.exit_status() == Some(0)),
            Ok(None) | Err(rustix::io::Errno::CHILD) => tokio::time::sleep(POLL).await,
            Err(error) => bail!("cannot wait for a gateway: {error}"),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Successors end with their standard input; this one need not even wait for that.
        self.held = None;
        if let Some(pid) = self.pid {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}
