//! A real Postgres on a free port, in a folder of its own; ends with the test.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How often a start is tried: somebody else may take the free port first.
const STARTS_MAX: usize = 3;
/// How long a server may take until it answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Postgres {
    folder: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
    child: Child,
}

impl Postgres {
    /// Makes a cluster and starts it.
    pub(crate) fn start() -> Postgres {
        let programs = programs();
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        if let Some((uid, gid)) = other_user() {
            for path in [folder.path(), &data] {
                std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
        let made = command(&programs.join("initdb"))
            .args(["--no-sync", "--auth=trust", "--username=weir", "--encoding=UTF8", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        for _ in 0..STARTS_MAX {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(child) = run(&programs, folder.path(), port) {
                return Postgres { folder, programs, port, child };
            }
        }
        panic!("postgres does not start: {}", log_of(folder.path()));
    }

    /// Its one database.
    pub(crate) fn url(&self) -> String {
        format!("postgres://weir@127.0.0.1:{}/postgres", self.port)
    }

    /// Ends the server at once, as a crash would.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The postmaster's children notice by themselves; their port and memory must be free again.
        let pid_file = self.folder.path().join("data/postmaster.pid");
        if pid_file.exists() {
            std::fs::remove_file(pid_file).unwrap();
        }
    }

    /// Starts it again after a crash.
    pub(crate) fn start_again(&mut self) {
        for _ in 0..20 {
            if let Some(child) = run(&self.programs, self.folder.path(), self.port) {
                self.child = child;
                return;
            }
        }
        panic!("postgres does not start again: {}", log_of(self.folder.path()));
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT: fast shutdown, so that no shared memory stays behind.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            rustix::process::kill_process(pid, rustix::process::Signal::INT).ok();
        }
        self.child.wait().ok();
    }
}

/// Starts a server and waits until it answers; `None` if it ended instead.
fn run(programs: &Path, folder: &Path, port: u16) -> Option<Child> {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let mut child = command(&programs.join("postgres"))
        .arg("-D")
        .arg(folder.join("data"))
        .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c"])
        .arg(format!("unix_socket_directories={}", folder.display()))
        .args(["-c", "shared_buffers=16MB", "-c", "max_connections=30"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut left = ANSWERS_WITHIN;
    while !left.is_zero() {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        let asked = command(&programs.join("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
            .status();
        if asked.unwrap().success() {
            return Some(child);
        }
        let pause = Duration::from_millis(50);
        std::thread::sleep(pause);
        left = left.saturating_sub(pause);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

fn log_of(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// A command as a user whom Postgres accepts: it refuses to run as root.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/");
    if let Some((uid, gid)) = other_user() {
        command.uid(uid).gid(gid);
    }
    command
}

/// User and group `postgres`, if we are root.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let fields: Vec<&str> = line.expect(MISSING).split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

const MISSING: &str =
    "these tests need a real Postgres: apt-get install --yes --no-install-recommends postgresql";

/// The folder with `initdb` and `postgres`: on the path, or where Debian puts them.
fn programs() -> PathBuf {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&on_path).collect();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.map(|version| version.unwrap().path().join("bin")));
    }
    let whole = |folder: &PathBuf| {
        ["initdb", "postgres", "pg_isready"].iter().all(|name| folder.join(name).exists())
    };
    folders.into_iter().find(whole).expect(MISSING)
}
