//! `test`, `ci` and `tidy`: what a developer runs, and the robot runs the same, so that what passes
//! here passes there.
//!
//! It imports no crate of ours: it must build and run while they do not.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command for people")]

mod api;
mod ci;
mod run;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--crate NAME]...   all tests, or those of some crates, with the servers they need
  ci [--only STEP,...]     what the robot runs: fmt, clippy, tidy, docs, test, api, lab
  tidy                     the house rules that a machine can check";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["test", rest @ ..] => test::command(rest),
        ["ci", rest @ ..] => ci::command(rest),
        ["tidy"] => tidy::command(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
