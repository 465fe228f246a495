//! What cargo knows of the workspace: packages, their dependencies and features.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::run;

/// The members of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

/// One member.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
    #[serde(default)]
    pub(crate) targets: Vec<Target>,
}

/// One line of its manifest.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `dev`, `build`, or nothing for an ordinary one.
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) features: Vec<String>,
    pub(crate) uses_default_features: bool,
}

/// A library, program or test.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    kind: Vec<String>,
}

impl Metadata {
    /// Asks cargo.
    pub(crate) fn load() -> Result<Metadata> {
        let words = ["metadata", "--no-deps", "--format-version", "1"];
        let text = run::read(run::cargo().args(words))?;
        serde_json::from_str(&text).context("cannot read what `cargo metadata` wrote")
    }

    /// The member of that name.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }
}

impl Package {
    /// Whether it has a library, hence perhaps doctests.
    pub(crate) fn has_library(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "lib"))
    }
}
