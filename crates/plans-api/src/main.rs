//! The program `weir-plans-api`.

use std::process::ExitCode;

fn main() -> ExitCode {
    plans_api::main(std::env::args_os())
}
