//! The control plane's description, held to its word by a fuzzer from PyPI. Where that cannot be
//! had, the step says so and is left out: everything else here works without a network.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::run;

/// What the script ends with if the packages cannot be had.
const NO_PACKAGES: i32 = 75;

/// Runs the short form.
pub(crate) fn command() -> Result<()> {
    run::must_succeed(run::cargo().args(["build", "--locked", "-p", "admin-cli"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let program = run::root().join(target).join("debug/weir");
    let mut script = std::process::Command::new(run::root().join("tests/clients/api"));
    script.arg(program).arg("--quick");
    println!("$ {}", run::line_of(&script));
    let status = script.status().context("cannot start tests/clients/api")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(NO_PACKAGES) => {
            println!("   left out: python3 with venv or its packages cannot be had here");
            Ok(())
        }
        _ => bail!("the control plane is not what docs/openapi/plans-api.json says: {status}"),
    }
}
