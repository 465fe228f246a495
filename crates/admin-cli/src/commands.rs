//! Which command does what; each noun has a file.

mod plans; // plan list|get|set|delete|lint
mod clients; // client …
mod keys; // key …
mod limits; // limit …
mod apply; // apply, validate
mod export; // what apply reads
mod diff; // files against plans-api
mod impact; // whom a change touches
mod changes; // what was different before
mod replay; // a log against plans
mod rollout; // rollout …, gate status
mod shadow; // shadow top|explain
mod gateways; // gateway …
mod explain; // client explain|usage, top
mod overrides; // client override
mod secrets; // key rotate|import|usage
mod verify; // limit try|verify
mod routes; // route list|test
mod bad_day; // killswitch, approvals
mod man; // pages for `man`
mod tokens; // token …
mod audit; // audit list|verify|tip
mod backup; // backup create|restore
mod context; // context …
mod doctor; // is everybody well?
#[cfg(feature = "dev")]
pub(crate) mod dev; // the whole system in this process
#[cfg(feature = "dev")]
mod demo; // the incident and its cure

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{self, Cli, Command, Globals, PlanCommand, RouteCommand};
use crate::failure::{Exit, Failure};
use crate::output::{Output, Report, Shown};
use crate::session::Session;

/// Runs a command to its end, or to Ctrl-C. A command that has something to save then hears it
/// too, and goes first.
pub(crate) async fn run(cli: Cli, output: &Output) -> Result<Report, Failure> {
    let Cli { globals, command } = cli;
    // heard from the first moment on, not only once the command waits
    let mut interrupts = signal(SignalKind::interrupt()).map_err(|error| {
        Failure::new(Exit::Failed, "failed", format!("cannot hear Ctrl-C: {error}"))
    })?;
    tokio::select! {
        biased;
        ended = Box::pin(dispatch(command, &globals, output)) => ended,
        _ = interrupts.recv() => Err(Failure::new(
            Exit::Interrupted,
            "interrupted",
            "interrupted before the answer came; look before you repeat a change",
        )),
    }
}

async fn dispatch(command: Command, globals: &Globals, output: &Output) -> Result<Report, Failure> {
    let open = || Session::open(globals, output);
    match command {
        Command::Version => Ok(version()),
        Command::Completion { shell } => Ok(completion(shell)),
        Command::Context(command) => context::run(command, globals),
        Command::Validate(files) => apply::validate(&files),
        Command::Replay(flags) => replay::run(flags, output),
        Command::Doctor => doctor::run(&open()?).await,
        Command::Plan(PlanCommand::Lint { files }) if !files.is_empty() => {
            plans::lint_files(&files)
        }
        Command::Plan(command) => plans::run(command, &open()?).await,
        Command::Client(command) => clients::run(command, &open()?).await,
        Command::Key(command) => keys::run(command, &open()?).await,
        Command::Limit(command) => limits::run(command, &open()?).await,
        Command::Apply(flags) => apply::run(flags, &open()?).await,
        Command::Export(flags) => export::run(&flags, &open()?).await,
        Command::Diff(flags) => diff::run(flags, &open()?).await,
        Command::Rollout(command) => rollout::run(command, &open()?).await,
        Command::Gate(command) => rollout::gate(command, &open()?).await,
        Command::Shadow(command) => shadow::run(command, &open()?).await,
        Command::Gateway(command) => gateways::run(command, &open()?).await,
        Command::Top(flags) => explain::top(&flags, &open()?).await,
        Command::Route(RouteCommand::List) => routes::list(&open()?).await,
        #[cfg(feature = "dev")]
        Command::Route(RouteCommand::Test(flags)) => routes::test(&flags),
        #[cfg(not(feature = "dev"))]
        Command::Route(RouteCommand::Test(_)) => {
            Err(Failure::usage("this build of weir has no gateway inside: it cannot test routes"))
        }
        Command::Killswitch(command) => bad_day::killswitch(command, &open()?).await,
        Command::Approvals(command) => bad_day::approvals(command, &open()?).await,
        Command::Login { name, production } => {
            context::login(&name, production, globals, output).await
        }
        Command::Man { folder } => man::run(&folder),
        Command::Token(command) => tokens::run(command, &open()?).await,
        Command::Audit(command) => audit::run(command, &open()?).await,
        Command::Backup(command) => backup::run(command, &open()?).await,
        #[cfg(feature = "dev")]
        Command::Dev(_) => Err(Failure::usage("weir dev is a process of its own")),
        #[cfg(feature = "dev")]
        Command::Demo(flags) => demo::run(flags, output).await,
    }
}

fn version() -> Report {
    let version = env!("CARGO_PKG_VERSION");
    let json = json!({ "version": version });
    Report::new(json, Shown::Text(format!("weir {version}"))).named(version)
}

fn completion(shell: args::Shell) -> Report {
    let script = String::from_utf8_lossy(&args::completion(shell)).into_owned();
    Report::new(json!({ "shell": shell.to_string(), "script": script }), Shown::Text(script))
}
