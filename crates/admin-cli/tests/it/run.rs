//! Runs the program and keeps what it said.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program, in an environment of its own.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args).stdin(Stdio::null());
    for name in ["WEIR_ADDR", "WEIR_TOKEN", "WEIR_CONTEXT", "WEIR_LOG_LEVEL", "CARGO"] {
        command.env_remove(name);
    }
    // away from the checkout, where a developer's own `weir dev` may have left its folder
    command.current_dir(std::env::temp_dir());
    command.env("XDG_CONFIG_HOME", "/nonexistent/of-no-use");
    command
}

/// Runs it to its end.
pub(crate) fn finish(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs it without a control plane.
pub(crate) fn alone(args: &[&str]) -> Ran {
    finish(command(args))
}

/// Runs it in a folder.
pub(crate) fn within(folder: &Path, args: &[&str]) -> Ran {
    let mut command = command(args);
    command.current_dir(folder);
    finish(command)
}

impl Ran {
    /// Standard output as the one document that it is.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("no single JSON document ({error}): {self:#?}"))
    }

    /// Must have ended with this code.
    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }
}
