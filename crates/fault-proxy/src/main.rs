//! The fault proxy as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    fault_proxy::program::main(std::env::args_os())
}
