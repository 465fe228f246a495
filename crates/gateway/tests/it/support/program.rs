//! The gateway as a program: a process of its own, its service manager, and what both say.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::net::UnixDatagram;
use tokio::time::timeout;

use super::{PATIENCE, eventually};

/// A running gateway and its successors; they end when it is dropped.
pub(crate) struct Program {
    folder: tempfile::TempDir,
    first: Child,
    manager: UnixDatagram,
    /// The process that serves.
    pub(crate) pid: u32,
    pub(crate) traffic: SocketAddr,
    pub(crate) operations: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        for pid in self.started().into_iter().chain([self.pid]) {
            kill_process(id(pid), Signal::KILL).ok();
        }
        drop(self.first.kill());
        drop(self.first.wait());
    }
}

fn id(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).unwrap()
}

/// Whether there is such a process, and it has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
    test_kill_process(id(pid)).is_ok() && state.is_some_and(|state| state != 'Z')
}

impl Program {
    /// Starts one with this file, and waits until it has told its manager that it is ready.
    pub(crate) async fn start(text: &str) -> Program {
        let program = env!("CARGO_BIN_EXE_weir-gateway");
        Program::start_by(text, program, &[], |_| {}).await
    }

    /// By another command, and with something done to it first.
    pub(crate) async fn start_by(
        text: &str,
        program: impl AsRef<OsStr>,
        words: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("gateway.toml"), text).unwrap();
        let manager = UnixDatagram::bind(at("notify")).unwrap();
        let log = std::fs::File::create(at("log")).unwrap();
        let mut command = Command::new(program);
        command.args(words).arg("--config").arg(at("gateway.toml"));
        command.arg("--ports-file").arg(at("ports"));
        command.env("NOTIFY_SOCKET", at("notify"));
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        prepare(&mut command);
        let first = command.spawn().unwrap();
        let pid = first.id();
        let nowhere = SocketAddr::from(([0; 4], 0));
        let (traffic, operations) = (nowhere, nowhere);
        let mut program = Program { folder, first, manager, pid, traffic, operations };
        program.told("READY=1").await;
        program.read_ports();
        program
    }

    /// Reads again where it listens.
    pub(crate) fn read_ports(&mut self) {
        (self.traffic, self.operations) = (self.port("traffic"), self.port("operations"));
    }

    /// Where it listens for this.
    pub(crate) fn port(&self, what: &str) -> SocketAddr {
        let ports = std::fs::read(self.folder.path().join("ports")).unwrap();
        let ports: serde_json::Value = serde_json::from_slice(&ports).unwrap();
        ports[what].as_str().unwrap().parse().unwrap()
    }

    /// Its file.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("gateway.toml")
    }

    /// Everything that was logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Waits until this was logged: a thread of its own writes.
    pub(crate) async fn logged(&self, what: &str) {
        eventually(what, async || self.log().contains(what)).await;
    }

    /// Successors that were started, by what the log says.
    pub(crate) fn started(&self) -> Vec<u32> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains("a new process is starting"));
        lines
            .filter_map(|line| line.split("pid=").nth(1)?.split(' ').next()?.parse().ok())
            .collect()
    }

    /// Waits until the manager is told this; the whole datagram.
    pub(crate) async fn told(&self, what: &str) -> String {
        let mut all = Vec::new();
        let told = async {
            loop {
                let mut piece = [0; 4_096];
                let length = self.manager.recv(&mut piece).await.unwrap();
                let lines = String::from_utf8_lossy(&piece[..length]).into_owned();
                if lines.lines().any(|line| line.starts_with(what)) {
                    return lines;
                }
                all.push(lines);
            }
        };
        let told = timeout(PATIENCE, told).await;
        told.unwrap_or_else(|_| panic!("not told {what}, but {all:?}\n{}", self.log()))
    }

    /// What the manager is told until the serving process has ended.
    pub(crate) async fn every_word(&mut self) -> Vec<String> {
        self.ended(self.pid).await;
        let (mut all, mut piece) = (Vec::new(), [0; 4_096]);
        while let Ok(length) = self.manager.try_recv(&mut piece) {
            all.push(String::from_utf8_lossy(&piece[..length]).into_owned());
        }
        all
    }

    /// Sends the serving process a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(id(self.pid), signal).unwrap();
    }

    /// Asks for a new process, and waits until it serves; the process before it.
    pub(crate) async fn succeed(&mut self) -> u32 {
        self.signal(Signal::USR2);
        let told = self.told("MAINPID=").await;
        let pid = told.lines().find_map(|line| line.strip_prefix("MAINPID=")).unwrap();
        std::mem::replace(&mut self.pid, pid.parse().unwrap())
    }

    /// Waits until a process has ended; its exit code, if it is the first.
    pub(crate) async fn ended(&mut self, pid: u32) -> Option<i32> {
        if pid != self.first.id() {
            eventually("the process ends", async || !is_alive(pid)).await;
            return None;
        }
        let mut status = None;
        eventually("the first process ends", async || {
            status = self.first.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.and_then(|status| status.code())
    }
}
