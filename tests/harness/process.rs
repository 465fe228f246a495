//! Children: started through this program's own binary, logged into a file, ended with their
//! starter whatever happens to it.
//!
//! `lab part NAME args…` runs a part of Weir in a process of its own; `lab part exec PROGRAM args…`
//! becomes a foreign program. Both ask the kernel for a SIGKILL when the starter dies, so an
//! interrupted run leaves nothing behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How often a bounded wait looks.
pub const POLL: Duration = Duration::from_millis(5);
/// How long a part may take until it is ready; slow machines compile beside us.
pub const START_MAX: Duration = Duration::from_secs(30);

/// The program that the parts are started with.
#[derive(Debug, Clone)]
pub struct Launcher {
    exe: PathBuf,
    /// Logs, settings and state of everything that is started.
    dir: PathBuf,
}

impl Launcher {
    /// `exe` is the lab's binary.
    pub fn new(exe: impl Into<PathBuf>, dir: impl Into<PathBuf>) -> Launcher {
        Launcher { exe: exe.into(), dir: dir.into() }
    }

    /// The lab's binary.
    pub fn exe(&self) -> &Path {
        &self.exe
    }

    /// Where everything is kept.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts `lab part PART args…`; its output goes to `<name>.log`.
    pub fn start(
        &self,
        name: &str,
        part: &str,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<Child> {
        let log = self.dir.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let child = Command::new(&self.exe)
            .args(["part", part])
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {} ({part})", self.exe.display()))?;
        Ok(Child { name: name.to_owned(), child, log })
    }

    /// Starts a part that writes a ports file, and waits for it.
    pub async fn start_ready(
        &self,
        name: &str,
        part: &str,
        args: Vec<OsString>,
    ) -> anyhow::Result<(Child, Ports)> {
        let file = self.dir.join(format!("{name}.ports"));
        remove_if_there(&file)?;
        let mut args = args;
        args.extend(["--ports-file".into(), file.clone().into_os_string()]);
        let mut child = self.start(name, part, args)?;
        let text = child
            .wait_for(START_MAX, || Ok(std::fs::read_to_string(&file).ok()))
            .await
            .with_context(|| format!("{name} did not get ready"))?;
        let ports = serde_json::from_str(&text).with_context(|| format!("ports file: {text}"))?;
        Ok((child, Ports(ports)))
    }

    /// Runs a program to its end.
    pub async fn run(
        &self,
        name: &str,
        part: &str,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<()> {
        let mut child = self.start(name, part, args)?;
        let deadline = tokio::time::Instant::now() + START_MAX * 4;
        loop {
            match child.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{name} ended with {status}\n{}", child.log_tail()),
                None if tokio::time::Instant::now() > deadline => {
                    bail!("{name} did not end\n{}", child.log_tail())
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
    }
}

fn remove_if_there(file: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Addresses that a part has announced.
#[derive(Debug, Clone)]
pub struct Ports(std::collections::BTreeMap<String, SocketAddr>);

impl Ports {
    /// The address for `what`.
    pub fn get(&self, what: &str) -> anyhow::Result<SocketAddr> {
        self.0.get(what).copied().with_context(|| format!("no `{what}` among {:?}", self.0))
    }
}

/// A running child. Dropped means killed.
#[derive(Debug)]
pub struct Child {
    name: String,
    child: std::process::Child,
    log: PathBuf,
}

impl Child {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Ends it at once.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits for that.
    pub async fn terminate(
        &mut self,
        longest: Duration,
    ) -> anyhow::Result<std::process::ExitStatus> {
        self.signal(Signal::TERM)?;
        let deadline = tokio::time::Instant::now() + longest;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if tokio::time::Instant::now() > deadline {
                bail!("{} did not end in {longest:?}\n{}", self.name, self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Whether it has not ended by itself.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Everything that it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of what it has written.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let from = lines.len().saturating_sub(30);
        format!("--- {}\n{}", self.name, lines.get(from..).unwrap_or_default().join("\n"))
    }

    /// Asks until there is something; fails if the child ends first.
    pub async fn wait_for<T>(
        &mut self,
        longest: Duration,
        mut ask: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let deadline = tokio::time::Instant::now() + longest;
        loop {
            if let Some(found) = ask()? {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}\n{}", self.name, self.log_tail());
            }
            if tokio::time::Instant::now() > deadline {
                bail!("{} took longer than {longest:?}\n{}", self.name, self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already; a frozen one dies all the same.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A port that was free a moment ago, below the range that the kernel hands out by itself.
pub fn free_port() -> anyhow::Result<u16> {
    for _ in 0..200 {
        let port = fastrand::u16(15_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port found below 32000")
}

/// Asks until there is something.
pub async fn eventually<T, F>(
    what: &str,
    longest: Duration,
    mut ask: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<Option<T>>>,
{
    let deadline = tokio::time::Instant::now() + longest;
    loop {
        if let Some(found) = ask().await? {
            return Ok(found);
        }
        if tokio::time::Instant::now() > deadline {
            bail!("not within {longest:?}: {what}");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Finds a server's program in PATH or in the folders where Debian hides it; otherwise the error
/// says how to install it.
pub fn find_program(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        let mut versions: Vec<_> = versions.flatten().map(|entry| entry.path()).collect();
        versions.sort();
        folders.extend(versions.into_iter().rev().map(|version| version.join("bin")));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("{name} is missing; install it: apt-get install -y {package}"))
}
