//! `weir-gateway`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    gateway::main(std::env::args_os())
}
