//! A Postgres server of our own: a cluster in a temporary folder, without fsync, on a free port.
//!
//! Postgres refuses to run as root; then it runs as the user `postgres`, who owns the folder.

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::path::Path;

use anyhow::Context as _;
use rustix::process::{Pid, Signal};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::process::{Child, Launcher, START_MAX, eventually, find_program, free_port};

const USER: &str = "weir";

/// A running Postgres server.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    launcher: Launcher,
    data: tempfile::TempDir,
    child: Option<Child>,
}

impl Postgres {
    /// Makes a cluster, starts it, waits until it answers.
    pub async fn start(launcher: &Launcher) -> anyhow::Result<Postgres> {
        let data = tempfile::Builder::new().prefix("weir-postgres-").tempdir()?;
        let initdb = find_program("initdb", "postgresql")?;
        if let Some((uid, gid)) = other_user()? {
            chown(data.path(), Some(uid), Some(gid))?;
        }
        let mut args = as_other_user()?;
        args.push(initdb.into_os_string());
        let flags = ["--no-sync", "-A", "trust", "-E", "UTF8", "--locale=C", "-U", USER, "-D"];
        args.extend(flags.map(OsString::from));
        args.push(cluster(data.path()));
        launcher.run("initdb", "exec", args).await?;
        let launcher = launcher.clone();
        let mut postgres = Postgres { port: free_port()?, launcher, data, child: None };
        postgres.restart().await?;
        Ok(postgres)
    }

    /// Starts it on its port, with the data it has.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let mut args = as_other_user()?;
        args.push(find_program("postgres", "postgresql")?.into_os_string());
        args.extend(["-D".into(), cluster(self.data.path()), "-p".into()]);
        args.push(self.port.to_string().into());
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
            "shared_buffers=16MB",
            "max_connections=60",
        ] {
            args.extend(["-c".into(), setting.into()]);
        }
        self.child = Some(self.launcher.start("postgres", "exec", args)?);
        eventually("Postgres answers", START_MAX, || async {
            Ok(self.connect("postgres").await.ok())
        })
        .await
        .map(drop)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.take().context("Postgres is not running")?.kill()
    }

    /// SIGSTOP to the server and all of its processes: connections stay, and nobody answers.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// SIGCONT: as if nothing had been.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal_all(Signal::CONT)
    }

    fn signal_all(&self, signal: Signal) -> anyhow::Result<()> {
        let server = self.child.as_ref().context("Postgres is not running")?.id();
        for id in children_of(server)?.into_iter().chain([server]) {
            let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("a process id")?;
            // One that has ended by itself needs no signal.
            let _ended = rustix::process::kill_process(pid, signal);
        }
        Ok(())
    }

    /// As settings spell it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes an empty database; its URL.
    pub async fn create_database(&self, name: &str) -> anyhow::Result<String> {
        self.execute("postgres", &format!("CREATE DATABASE {name}")).await?;
        Ok(self.url(name))
    }

    /// A connection past every door of ours.
    pub async fn connect(&self, database: &str) -> anyhow::Result<PgConnection> {
        let connecting = PgConnection::connect(&self.url(database)).await;
        Ok(connecting?)
    }

    /// One statement past every door of ours; the number of rows.
    pub async fn execute(&self, database: &str, sql: &str) -> anyhow::Result<u64> {
        let mut connection = self.connect(database).await?;
        let statement = sqlx::AssertSqlSafe(sql.to_owned());
        let done = connection.execute(sqlx::raw_sql(statement)).await?;
        connection.close().await?;
        Ok(done.rows_affected())
    }
}

/// Processes whose parent this is.
fn children_of(parent: u32) -> anyhow::Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").context("/proc")? {
        let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end between listing and reading. Its name may hold anything but is in brackets.
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let of = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if of.is_some_and(|of| of == parent.to_string()) {
            children.push(id);
        }
    }
    Ok(children)
}

fn cluster(data: &Path) -> OsString {
    data.join("cluster").into_os_string()
}

/// User and group that Postgres runs as, if we are root.
fn other_user() -> anyhow::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let mut fields = line.context("there is no user `postgres`")?.split(':').skip(2);
    let mut number = || fields.next().and_then(|field| field.parse().ok());
    Ok(number().zip(number()))
}

fn as_other_user() -> anyhow::Result<Vec<OsString>> {
    let Some((uid, gid)) = other_user()? else { return Ok(Vec::new()) };
    let setpriv = find_program("setpriv", "util-linux")?;
    let flags = [
        format!("--reuid={uid}"),
        format!("--regid={gid}"),
        "--clear-groups".to_owned(),
        // A change of user forgets who should die with us.
        "--pdeathsig=KILL".to_owned(),
    ];
    let mut all = vec![setpriv.into_os_string()];
    all.extend(flags.map(OsString::from));
    Ok(all)
}
