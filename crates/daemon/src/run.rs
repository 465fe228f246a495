//! The life of a process, from its arguments to its exit code.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use crate::context::Context;
use crate::drain::{Drain, Signals, Successions};
use crate::log::{self, chain};
use crate::manager::Manager;
use crate::settings::HasProcessFlags;
use crate::sockets::Sockets;
use crate::succession::{self, Start};

/// Exit code for wrong settings.
const EXIT_SETTINGS: u8 = 64;
/// How long background tasks may take after the service has ended.
const TASKS_END: Duration = Duration::from_secs(10);

/// Why a process ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Wrong settings, one line for each mistake: exit code 64.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
    /// Anything else: exit code 1.
    #[error(transparent)]
    Other(#[from] Box<dyn std::error::Error + Send + Sync>),
}

impl Failure {
    /// Anything else.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        Failure::Other(error.into())
    }
}

/// Parses `args` (with the program's name in front), sets up logs and a runtime, runs `serve` to
/// its end, hears signals meanwhile.
pub fn run<F, S, Fut>(
    name: &'static str,
    args: impl IntoIterator<Item = OsString>,
    serve: S,
) -> ExitCode
where
    F: clap::Parser + HasProcessFlags,
    S: FnOnce(F, Context) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    // Before there are threads: it changes the environment.
    let (sockets, strange) = Sockets::from_environment();
    let flags = match F::try_parse_from(args) {
        Ok(flags) => flags,
        Err(error) => {
            let code =
                if error.use_stderr() { ExitCode::from(EXIT_SETTINGS) } else { ExitCode::SUCCESS };
            return if error.print().is_ok() { code } else { ExitCode::FAILURE };
        }
    };
    let _logs = match log::start(flags.process()) {
        Ok(guard) => guard,
        Err(line) => return exit(name, Err(Failure::Settings(vec![line]))),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit(name, Err(Failure::other(error))),
    };
    for socket in strange {
        tracing::warn!(socket, "a descriptor that was given is of no use");
    }
    let start = match Start::of_this_process() {
        Ok(start) => start,
        Err(error) => return exit(name, Err(Failure::other(error))),
    };
    let (ports_file, manager) = (flags.process().ports_file.clone(), Manager::from_environment());
    let (context, _nobody) = Context::new(Drain::new(), ports_file, sockets, manager);
    let ended = runtime.block_on(supervised(serve(flags, context.clone()), &context, &start));
    runtime.shutdown_background();
    exit(name, ended)
}

async fn supervised(
    service: impl Future<Output = Result<(), Failure>>,
    context: &Context,
    start: &Start,
) -> Result<(), Failure> {
    let mut signals = Signals::hear().map_err(Failure::other)?;
    let successions = Successions::hear().map_err(Failure::other)?;
    let told_twice = async {
        signals.next().await;
        tracing::info!("draining");
        context.drain.start();
        signals.next_wish().await;
    };
    let manager_told = async {
        context.drain.started().await;
        if !context.sockets.is_handed_over() {
            context.manager.stopping();
        }
        std::future::pending().await
    };
    let whole = async {
        let ended = service.await;
        context.drain.start();
        let late = context.tasks.join(TASKS_END).await;
        if !late.is_empty() {
            tracing::warn!(tasks = ?late, "background tasks did not end in time");
        }
        ended
    };
    tokio::select! {
        biased; // the service manager is told before the service can have ended
        () = manager_told => Ok(()),
        ended = whole => ended,
        what = context.tasks.failed() => Err(Failure::other(what)),
        () = told_twice => Err(Failure::other("ended at once by a second signal")),
        () = succession::heed(successions, context, start) => Ok(()),
        () = context.manager.keep_alive() => Ok(()),
    }
}

/// Says why on stderr, in lines for people; logs may be JSON or off.
fn exit(name: &str, ended: Result<(), Failure>) -> ExitCode {
    let (code, lines) = match ended {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Settings(lines)) => (ExitCode::from(EXIT_SETTINGS), lines),
        Err(Failure::Other(error)) => (ExitCode::FAILURE, vec![chain(error.as_ref())]),
    };
    let mut stderr = std::io::stderr().lock();
    for line in lines {
        if writeln!(stderr, "{name}: {line}").is_err() {
            break;
        }
    }
    code
}
