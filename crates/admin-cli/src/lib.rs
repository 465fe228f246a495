//! The operators' hand: the program `weir`.
//!
//! It decides nothing about limits and rollouts: plans-api does, and this asks it, waits, shows
//! and exits with a code that scripts can trust. With the feature `dev` (on by default) it also
//! runs the three services in one process for a first hour: `weir dev` and `weir demo`.
//!
//! What breaks if you change it: the exit codes and the JSON documents are read by other people's
//! scripts; standard output carries data only.

mod args; // the grammar; start here
mod failure; // exit codes
mod output; // what is written, and where
mod contexts; // where plans-api is
mod files; // plans and clients in TOML
mod session; // what every command is given
mod commands; // one noun each

use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::Parsed;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// Parses, runs, prints; `args` start with the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match args::parse(args) {
        Parsed::Run(cli) => *cli,
        Parsed::Show(text) => return output::plain(&text, Exit::Done).into(),
        Parsed::Mistake(text) => return output::plain(&text, Exit::Usage).into(),
    };
    let output = Output::new(&cli.globals);
    #[cfg(feature = "dev")]
    if let args::Command::Dev(flags) = cli.command {
        return commands::dev::main(flags, cli.globals, output);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = Failure::new(Exit::Failed, "failed", format!("no runtime: {error}"));
            return output.failure(&failure).into();
        }
    };
    let ended = runtime.block_on(commands::run(cli, &output));
    runtime.shutdown_background();
    match ended {
        Ok(report) => output.report(report).into(),
        Err(failure) => output.failure(&failure).into(),
    }
}
