//! Runs programs at the root of the workspace: says what it runs, and names what failed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The folder with the workspace's `Cargo.toml`.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The cargo that started us, so that its toolchain stays the same.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Runs to the end, with our terminal; an exit code other than 0 is an error.
pub(crate) fn must_succeed(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// What a program wrote to standard output, and whether it exited with 0.
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) success: bool,
}

/// Runs to the end and keeps standard output; standard error goes to our own.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let line = line_of(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    let text = String::from_utf8(output.stdout).with_context(|| format!("output of `{line}`"))?;
    Ok(Output { text, success: output.status.success() })
}

/// As [`output`], but failure is an error.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let line = line_of(command);
    let output = output(command)?;
    if !output.success {
        bail!("`{line}` failed");
    }
    Ok(output.text)
}

/// Whether a program starts and succeeds, quietly.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command as a person would type it.
pub(crate) fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    std::iter::once(program)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
