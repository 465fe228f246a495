//! Program `weir-shadow-compare`.

use std::process::ExitCode;

fn main() -> ExitCode {
    shadow_compare::main(std::env::args_os())
}
