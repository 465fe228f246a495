//! One child process: signalled, killed, and never left behind.
//!
//! A destructor does not run when the test program itself is killed. So a shell waits beside each
//! child for the end of a pipe that the kernel closes with us, and then ends the child.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

const WATCHDOG: &str = r#"read -r _; kill -KILL "$1""#;

/// A running child; dropped means killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    watchdog: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with its output in the file `log`.
    pub fn start(
        program: &str,
        arguments: impl IntoIterator<Item = OsString>,
        log: &Path,
    ) -> anyhow::Result<Process> {
        let output = File::options().create(true).append(true).open(log)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| {
                format!("{program} did not start; install it: apt-get install -y redis-server")
            })?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("the watchdog did not start")?;
        Ok(Process { child, watchdog, log: log.to_owned() })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGSTOP: its connections stay open, nothing answers.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT: as if nothing had been.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Any other signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("the child has ended")
    }

    /// An error with the end of its log if it has ended by itself.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("it ended with {status}\n{}", self.log_tail()),
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The watchdog first: afterwards the child's id may be somebody else's.
        for process in [&mut self.watchdog, &mut self.child] {
            drop(process.kill());
            drop(process.wait());
        }
    }
}
