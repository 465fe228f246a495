//! The program `weir`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    admin_cli::main(std::env::args_os())
}
