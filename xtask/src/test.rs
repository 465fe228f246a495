//! All tests, or those of some crates, after a look whether the programs they start are installed.
//!
//! The tests start Redis and Postgres themselves, on free ports and in folders of their own; no
//! running service is needed or touched. A missing program fails here with the line that installs
//! it: a test that skips itself in silence proves nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;
use crate::tidy::metadata::Metadata;

/// Runs `test [--crate NAME]…`.
pub(crate) fn command(arguments: &[&str]) -> Result<()> {
    let crates = parse(arguments)?;
    let missing = missing_programs();
    if !missing.is_empty() {
        bail!(
            "the tests start real programs, and this machine lacks {}; install with:\n  \
             sudo apt-get install --no-install-recommends {}",
            missing.iter().map(|program| program.what).collect::<Vec<_>>().join(" and "),
            missing.iter().map(|program| program.package).collect::<Vec<_>>().join(" "),
        );
    }
    let metadata = Metadata::load()?;
    for name in &crates {
        metadata.package(name).with_context(|| format!("there is no crate `{name}` here"))?;
    }
    run_tests(&metadata, &crates)
}

fn parse(arguments: &[&str]) -> Result<Vec<String>> {
    let mut crates = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match (*argument, rest.next()) {
            ("--crate", Some(name)) => crates.push((*name).to_owned()),
            ("--crate", None) => bail!("--crate wants a name"),
            (other, _) => bail!("test does not know `{other}`, only --crate NAME"),
        }
    }
    Ok(crates)
}

fn run_tests(metadata: &Metadata, crates: &[String]) -> Result<()> {
    let chosen = || {
        let mut words = Vec::new();
        if crates.is_empty() {
            words.push("--workspace".to_owned());
        }
        crates.iter().for_each(|name| words.extend(["-p".to_owned(), name.clone()]));
        words
    };
    let has_library =
        |name: &String| metadata.package(name).is_some_and(|package| package.has_library());
    if run::succeeds(run::cargo().args(["nextest", "--version"])) {
        run::must_succeed(run::cargo().args(["nextest", "run", "--locked"]).args(chosen()))?;
    } else {
        run::must_succeed(run::cargo().args(["test", "--locked", "--all-targets"]).args(chosen()))?;
    }
    if crates.is_empty() || crates.iter().any(has_library) {
        let libraries = crates.iter().filter(|name| has_library(name));
        let words = libraries.flat_map(|name| ["-p".to_owned(), name.clone()]);
        let all = crates.is_empty().then(|| "--workspace".to_owned());
        run::must_succeed(run::cargo().args(["test", "--locked", "--doc"]).args(all).args(words))?;
    }
    Ok(())
}

struct Program {
    what: &'static str,
    package: &'static str,
}

fn missing_programs() -> Vec<Program> {
    let mut missing = Vec::new();
    if !run::succeeds(Command::new("redis-server").arg("--version")) {
        missing.push(Program { what: "a Redis server", package: "redis-server" });
    }
    let on_path = run::succeeds(Command::new("initdb").arg("--version"));
    if !on_path && postgres_folders(Path::new("/usr/lib/postgresql")).is_empty() {
        missing.push(Program { what: "a Postgres server", package: "postgresql" });
    }
    if !run::succeeds(Command::new("curl").arg("--version")) {
        missing.push(Program { what: "curl", package: "curl" });
    }
    missing
}

/// Debian keeps Postgres' server programs off the path, one folder per version.
fn postgres_folders(versions: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(versions).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_named_one_by_one_and_nothing_else_is_accepted() {
        assert_eq!(parse(&["--crate", "wire", "--crate", "edge"]).unwrap(), ["wire", "edge"]);
        assert!(parse(&["--crate"]).is_err());
        assert!(parse(&["wire"]).is_err());
    }

    #[test]
    fn a_machine_without_postgres_is_told_apart_from_one_with_it() {
        let folder = std::env::temp_dir().join(format!("xtask-postgres-{}", std::process::id()));
        let bin = folder.join("15/bin");
        std::fs::create_dir_all(&bin).unwrap();
        assert!(postgres_folders(&folder).is_empty());
        std::fs::write(bin.join("initdb"), "").unwrap();
        assert_eq!(postgres_folders(&folder), [bin]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
