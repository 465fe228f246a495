//! A database server that is there and says nothing.

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection as _, Row as _};
use system_tests::world::{PLANS_DATABASE, World};

/// All processes of the server, stopped. Dropped, they go on.
#[derive(Debug)]
pub struct Frozen(Vec<Pid>);

impl Frozen {
    /// SIGSTOP to all of them: connections stay open.
    pub async fn freeze(world: &World) -> anyhow::Result<Frozen> {
        let mut connection = world.postgres()?.connect(PLANS_DATABASE).await?;
        let own = sqlx::query("select pg_backend_pid() as pid").fetch_one(&mut connection).await?;
        let own: i32 = own.try_get("pid")?;
        let all = processes()?;
        connection.close().await?;
        let server = all.iter().find(|(pid, _)| *pid == own).map(|(_, parent)| *parent);
        let server = server.context("the database server is none of this machine's processes")?;
        let mut found: Vec<Pid> = Pid::from_raw(server).into_iter().collect();
        let children = all.iter().filter(|(_, parent)| *parent == server);
        found.extend(children.filter_map(|(pid, _)| Pid::from_raw(*pid)));
        let frozen = Frozen(found);
        frozen.signal(Signal::STOP)?;
        Ok(frozen)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        for pid in &self.0 {
            match kill_process(*pid, signal) {
                // One that has just ended needs no signal.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).context("a signal to the database server"),
            }
        }
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Whoever is gone needs no signal.
        drop(self.signal(Signal::CONT));
    }
}

/// Every process with its parent.
fn processes() -> anyhow::Result<Vec<(i32, i32)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(stat) = std::fs::read_to_string(entry?.path().join("stat")) else { continue };
        // `pid (name) state parent …`, and the name may hold anything.
        let pid = stat.split(' ').next().and_then(|pid| pid.parse().ok());
        let rest = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let parent = rest.split(' ').nth(1).and_then(|parent| parent.parse().ok());
        all.extend(pid.zip(parent));
    }
    Ok(all)
}
