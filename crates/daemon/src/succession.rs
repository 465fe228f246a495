//! A new process in the place of this one, without a moment in which nobody accepts.
//!
//! On SIGUSR2 the program is started anew, as it is on disk by then, with the same arguments and
//! this process's listening sockets. Once it says that it is ready, this process accepts no more,
//! finishes what was begun and ends. A new process that dies or does not get ready in time is given
//! up, and this one goes on as if nothing had been asked.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping, FdMappingCollision};

use crate::context::Context;
use crate::drain::Successions;
use crate::log::chain;
use crate::sockets::{Lent, PREDECESSOR, READY, UNUSED};

/// Longest wait for a new process to get ready.
const READY_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether it still lives.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The first descriptor that is handed over.
const FIRST_FD: i32 = 3;

/// How this process was started.
#[derive(Debug)]
pub(crate) struct Start {
    program: PathBuf,
    args: Vec<OsString>,
}

/// Why there is no successor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSuccessor {
    /// There is nothing that another process could take over.
    #[error("this program has no sockets to hand over")]
    Nothing,
    /// It cannot be started.
    #[error("cannot start {0}")]
    Start(PathBuf, #[source] io::Error),
    /// Its descriptors cannot be laid out.
    #[error("cannot lay out its descriptors")]
    Layout(#[from] FdMappingCollision),
    /// It cannot be waited for.
    #[error("cannot wait for the new process")]
    Wait(#[from] io::Error),
    /// It ended; its own log says why.
    #[error("the new process ended before it was ready: {0}")]
    Died(ExitStatus),
    /// It lives, but that is all.
    #[error("the new process was not ready within {READY_MAX:?}")]
    Late,
    /// This process is to end meanwhile.
    #[error("this process was told to end before the new one was ready")]
    Ending,
}

impl Start {
    /// As this process was. A program that was called by a path is called by it again, so that a
    /// new file, or a link to another one, is what runs next.
    pub(crate) fn of_this_process() -> io::Result<Start> {
        let mut words = std::env::args_os();
        let called = words.next().map(PathBuf::from);
        let program = match called.filter(|path| path.components().count() > 1) {
            Some(path) => std::path::absolute(path)?,
            None => std::env::current_exe()?,
        };
        Ok(Start { program, args: words.collect() })
    }

    /// Starts it with these sockets, and `theirs` to be told on.
    fn again(&self, lent: &[Arc<Lent>], theirs: UnixDatagram) -> Result<Child, NoSuccessor> {
        let mut names: Vec<&str> = lent.iter().map(|lent| lent.name()).collect();
        names.push(PREDECESSOR);
        let sockets: io::Result<Vec<OwnedFd>> =
            lent.iter().map(|lent| lent.listener().map(OwnedFd::from)).collect();
        let fds = sockets?.into_iter().chain([OwnedFd::from(theirs)]);
        let layout = fds.zip(FIRST_FD..);
        let layout = layout.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            // These name a process, or were meant for one.
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS_FIRST_FD")
            .env_remove("WATCHDOG_PID")
            .fd_mappings(layout.collect())?;
        command.spawn().map_err(|error| NoSuccessor::Start(self.program.clone(), error))
    }
}

/// Hears who asks for a successor, and makes one; never ends by itself.
#[expect(clippy::infinite_loop, reason = "it is raced with the end of the process")]
pub(crate) async fn heed(mut asked: Successions, context: &Context, start: &Start) {
    loop {
        asked.next().await;
        if context.drain.is_started() {
            tracing::info!("no new process is started: this one ends already");
            continue;
        }
        match hand_over(context, start).await {
            Ok(pid) => {
                tracing::info!(pid, "a new process serves; draining");
                context.sockets.hand_over();
                context.drain.start();
                context.manager.succeeded_by(pid);
            }
            Err(error) => {
                let error = chain(&error);
                tracing::error!(error, "no new process takes over; this one goes on");
                if !context.drain.is_started() {
                    context.manager.ready();
                }
            }
        }
    }
}

/// Starts a new process and waits until it serves; its id.
async fn hand_over(context: &Context, start: &Start) -> Result<u32, NoSuccessor> {
    let lent = context.sockets.lent();
    if lent.is_empty() {
        return Err(NoSuccessor::Nothing);
    }
    context.manager.reloading("starting a new process");
    let (ours, theirs) = UnixDatagram::pair()?;
    ours.set_nonblocking(true)?;
    let mut child = start.again(&lent, theirs)?;
    tracing::info!(pid = child.id(), program = %start.program.display(), sockets = lent.len(),
        "a new process is starting");
    let ready = tokio::select! {
        ready = ready(&mut child, ours) => ready,
        () = tokio::time::sleep(READY_MAX) => Err(NoSuccessor::Late),
        () = context.drain.started() => Err(NoSuccessor::Ending),
    };
    match ready {
        Ok(unused) => {
            let used = lent.iter().enumerate().filter(|(number, _)| !unused.contains(number));
            used.for_each(|(_, lent)| lent.hand_over());
            Ok(child.id())
        }
        Err(error) => {
            // It may have ended by itself; then there is nothing to kill.
            drop(child.kill());
            drop(child.wait());
            Err(error)
        }
    }
}

/// Waits until it serves; the numbers of the sockets that it has no use for.
async fn ready(child: &mut Child, ours: UnixDatagram) -> Result<Vec<usize>, NoSuccessor> {
    let ours = tokio::net::UnixDatagram::from_std(ours)?;
    let mut told = [0; 4_096];
    loop {
        if let Ok(heard) = tokio::time::timeout(LOOK_EVERY, ours.recv(&mut told)).await {
            let told = told.get(..heard?).unwrap_or_default();
            if let Some(unused) = unused(&String::from_utf8_lossy(told)) {
                return Ok(unused);
            }
        }
        if let Some(status) = child.try_wait()? {
            return Err(NoSuccessor::Died(status));
        }
    }
}

fn unused(told: &str) -> Option<Vec<usize>> {
    let mut lines = told.lines();
    if lines.next() != Some(READY) {
        return None;
    }
    let numbers = lines.find_map(|line| line.strip_prefix(UNUSED)).unwrap_or_default();
    Some(numbers.split(',').filter_map(|number| number.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Drain;

    fn start(program: &str, args: &[&str]) -> Start {
        Start { program: program.into(), args: args.iter().map(OsString::from).collect() }
    }

    /// A service with one socket, and what keeps that open.
    fn service() -> (Context, Arc<Lent>) {
        let (context, _addresses) = Context::in_process(Drain::new());
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let lent = context.sockets.lend("main", socket);
        (context, lent)
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_gets_ready_is_given_up() {
        let (context, lent) = service();
        let error = hand_over(&context, &start("/bin/sleep", &["1000"])).await.unwrap_err();
        assert!(matches!(error, NoSuccessor::Late), "{error}");
        assert!(!lent.is_handed_over());
    }

    #[tokio::test]
    async fn one_that_dies_cannot_be_started_or_has_nothing_to_do_is_no_successor() {
        let (context, lent) = service();
        let error = hand_over(&context, &start("/bin/sh", &["-c", "exit 7"])).await.unwrap_err();
        assert!(error.to_string().ends_with("exit status: 7"), "{error}");
        let error = hand_over(&context, &start("/nowhere/program", &[])).await.unwrap_err();
        assert!(matches!(error, NoSuccessor::Start(..)), "{error}");
        assert!(!lent.is_handed_over());
        drop(lent);
        let error = hand_over(&context, &start("/bin/true", &[])).await.unwrap_err();
        assert!(matches!(error, NoSuccessor::Nothing), "{error}");
    }

    #[tokio::test]
    async fn a_process_that_is_told_to_end_waits_for_no_successor() {
        let (context, lent) = service();
        context.drain.start();
        let error = hand_over(&context, &start("/bin/sleep", &["1000"])).await.unwrap_err();
        assert!(matches!(error, NoSuccessor::Ending), "{error}");
        assert!(!lent.is_handed_over());
    }

    #[test]
    fn a_successor_says_what_it_leaves() {
        assert_eq!(unused("READY=1\nUNUSED="), Some(vec![]));
        assert_eq!(unused("READY=1\nUNUSED=0,12"), Some(vec![0, 12]));
        assert_eq!(unused("UNUSED=1"), None);
    }
}
