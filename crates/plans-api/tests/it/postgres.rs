//! A real Postgres of the test's own: reached by a Unix socket in a temp folder, gone at the end.
//!
//! Postgres refuses to run as root, so as root it runs as `postgres` (or `nobody`). It is told to
//! end with the test, however the test ends.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

const INSTALL: &str = "no Postgres server found; install it: apt-get install -y postgresql";

pub(crate) struct Postgres {
    server: Child,
    programs: PathBuf,
    user: Option<(u32, u32)>,
    folder: TempDir,
}

impl Postgres {
    /// Starts one; needs no free port.
    pub(crate) async fn start() -> Postgres {
        let programs = programs();
        let folder = tempfile::Builder::new().prefix("weir-pg").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("d");
        std::fs::create_dir(&data).unwrap();
        let user = rustix::process::getuid().is_root().then(unprivileged);
        if let Some((uid, gid)) = user {
            chown(&data, Some(uid), Some(gid)).unwrap();
        }
        let mut init = as_user(user, &programs.join("initdb"));
        init.args(["-A", "trust", "-U", "weir", "--no-sync", "-E", "UTF8", "--locale=C", "-D"]);
        let made = init.arg(&data).stdin(Stdio::null()).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut server = as_user(user, &programs.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(&data).args(["-c", "listen_addresses="]);
        server.args(["-c", "fsync=off", "-c", "max_connections=60"]);
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let postgres = Postgres { server, programs, user, folder };
        postgres.wait_until_ready().await;
        postgres
    }

    async fn wait_until_ready(&self) {
        for _ in 0..600 {
            let mut asked = as_user(self.user, &self.programs.join("pg_isready"));
            asked.arg("-q").arg("-h").arg(self.data()).args(["-U", "weir", "-d", "postgres"]);
            if asked.status().unwrap().success() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        panic!("Postgres did not start:\n{log}");
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    /// A dump of a database, as operators make it.
    pub(crate) fn dump(&self, name: &str) -> Vec<u8> {
        let mut dump = as_user(self.user, &self.programs.join("pg_dump"));
        let made = dump.arg("-h").arg(self.data()).args(["-U", "weir", name]).output().unwrap();
        assert!(made.status.success(), "pg_dump: {}", String::from_utf8_lossy(&made.stderr));
        made.stdout
    }

    /// A new database; its URL.
    pub(crate) fn database(&self, name: &str) -> String {
        let name: String = name.chars().take(60).collect();
        let mut create = as_user(self.user, &self.programs.join("createdb"));
        create.arg("-h").arg(self.data()).args(["-U", "weir", &name]);
        assert!(create.status().unwrap().success(), "createdb {name}");
        format!("postgres://weir@localhost/{name}?host={}", self.data().display())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.server);
        // Immediate shutdown: nothing here is worth a checkpoint.
        let told = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        if told.is_err() || self.server.wait().is_err() {
            eprintln!("the Postgres of this test was gone already");
        }
    }
}

/// `setpriv` becomes the program: other user, and an end with the thread that started it.
fn as_user(user: Option<(u32, u32)>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some((uid, gid)) = user {
        command.args([format!("--reuid={uid}"), format!("--regid={gid}")]).arg("--clear-groups");
    }
    command.arg("--").arg(program).current_dir("/").env("LC_ALL", "C");
    command
}

/// Debian keeps them by version, outside the path; the newest complete set wins.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let elsewhere = std::env::split_paths(&path);
    let needed = ["initdb", "postgres", "pg_isready", "createdb", "pg_dump"];
    let complete = |folder: &PathBuf| needed.iter().all(|name| folder.join(name).exists());
    found.into_iter().rev().chain(elsewhere).find(complete).expect(INSTALL)
}

/// Ids of `postgres`, else of `nobody`.
fn unprivileged() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let ids = |name: &str| {
        let line = users.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut parts = line.split(':').skip(2).map(|id| id.parse::<u32>().unwrap());
        Some((parts.next()?, parts.next()?))
    };
    ids("postgres").or_else(|| ids("nobody")).expect("a user that is not root")
}
