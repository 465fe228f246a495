//! Crates that must not appear, with the reason and what to take instead.
//!
//! Some names stand in Cargo.lock only because a dependency could use them; for those it counts
//! whether they are really built.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::Finding;
use super::metadata::Metadata;
use crate::run;

/// Not even in Cargo.lock.
const BANNED: &[(&str, &str)] = &[
    ("openssl-sys", "one TLS library: rustls with aws-lc-rs, which needs no system package"),
    ("openssl", "one TLS library: rustls with aws-lc-rs, which needs no system package"),
    ("native-tls", "one TLS library: rustls with aws-lc-rs, which needs no system package"),
    ("rustls-pemfile", "archived; rustls-pki-types reads PEM"),
    ("serde_yaml", "archived; nothing of ours reads or writes YAML, files are TOML"),
    ("serde_yml", "unsound; nothing of ours reads or writes YAML, files are TOML"),
];

/// Not in what we ship; a peer that the lab measures against may bring them.
const NOT_SHIPPED: &[(&str, &str)] = &[
    ("dashmap", "deadlocks when a guard lives across an await; papaya has no such guard"),
    ("moka", "its housekeeping blocks a request; quick_cache is bounded and has none"),
];

/// What we ship.
const SHIPPED: &[&str] =
    &["gateway", "plans-api", "shadow-compare", "admin-cli", "safety-limit", "limiter-core"];

/// Not in a manifest of ours; a dependency may have its own reasons.
const NOT_OURS: &[(&str, &str)] = &[
    ("async-trait", "the language has async functions in traits"),
    ("lazy_static", "std::sync::LazyLock"),
    ("once_cell", "std::sync::OnceLock and LazyLock"),
    ("ring", "one crypto library: aws-lc-rs"),
];

/// In Cargo.lock as somebody's option, but never built.
const NOT_BUILT: &[(&str, &str)] = &[
    ("ring", "one crypto library: aws-lc-rs"),
    ("quinn", "no HTTP/3 here; reqwest's feature http3 must stay off"),
    ("sqlx-mysql", "two back ends, Postgres and SQLite; sqlx's feature mysql must stay off"),
];

/// Banned names in the text of Cargo.lock.
pub(super) fn check_lock(lock: &str) -> Result<Vec<Finding>> {
    let lock: toml::Table = lock.parse().context("cannot read Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let names: BTreeSet<&str> = packages
        .context("Cargo.lock names no package")?
        .iter()
        .filter_map(|package| package.get("name").and_then(toml::Value::as_str))
        .collect();
    Ok(named("Cargo.lock", BANNED, |name| names.contains(name)))
}

/// Names in our own manifests.
pub(super) fn check_manifests(metadata: &Metadata) -> Vec<Finding> {
    let lines = metadata.packages.iter().flat_map(|package| &package.dependencies);
    let names: BTreeSet<&str> = lines.map(|dependency| dependency.name.as_str()).collect();
    named("a Cargo.toml of ours", NOT_OURS, |name| names.contains(name))
}

/// Names that are in the graph of what is built.
pub(super) fn check_graph(built: &BTreeSet<String>) -> Vec<Finding> {
    named("the build graph", NOT_BUILT, |name| built.contains(name))
}

/// Names that are in the graph of what is shipped.
pub(super) fn check_shipped(shipped: &BTreeSet<String>) -> Vec<Finding> {
    named("what is shipped", NOT_SHIPPED, |name| shipped.contains(name))
}

fn named(place: &str, list: &[(&str, &str)], present: impl Fn(&str) -> bool) -> Vec<Finding> {
    let bad = list.iter().filter(|(name, _)| present(name));
    bad.map(|(name, why)| {
        let what = format!(
            "`{name}` is banned: {why}. `cargo tree --workspace --invert {name}` shows who brings it"
        );
        Finding::new(place, what)
    })
    .collect()
}

/// Every package that a build of the workspace with its tests compiles on this machine.
pub(super) fn built_packages() -> Result<BTreeSet<String>> {
    let words = ["tree", "--workspace", "--prefix", "none", "--format", "{p}", "--edges", "all"];
    let text = run::read(run::cargo().args(words))?;
    Ok(package_names(&text))
}

/// Every package in a program or library that leaves this repository.
pub(super) fn shipped_packages() -> Result<BTreeSet<String>> {
    let words = ["tree", "--prefix", "none", "--format", "{p}", "--edges", "normal,build"];
    let packages = SHIPPED.iter().flat_map(|name| ["--package", name]);
    Ok(package_names(&run::read(run::cargo().args(words).args(packages))?))
}

fn package_names(tree: &str) -> BTreeSet<String> {
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banned_crate_in_the_lock_is_found_with_its_reason() {
        let lock = "[[package]]\nname = \"openssl\"\nversion = \"0.10.1\"\n";
        let found = check_lock(lock).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("`openssl` is banned: one TLS library"), "{}", found[0]);
        assert!(check_lock("[[package]]\nname = \"papaya\"\n").unwrap().is_empty());
        assert!(check_lock("").is_err(), "a lock that names nothing was not looked at");
    }

    #[test]
    fn a_crate_that_the_language_has_replaced_is_found_in_our_manifests_only() {
        let manifest = |name: &str| {
            let dependency = format!(r#"{{"name":"{name}","uses_default_features":true}}"#);
            let package = format!(r#"{{"name":"wire","dependencies":[{dependency}]}}"#);
            serde_json::from_str(&format!(r#"{{"packages":[{package}]}}"#)).unwrap()
        };
        assert_eq!(check_manifests(&manifest("lazy_static")).len(), 1);
        assert!(check_manifests(&manifest("papaya")).is_empty());
        assert!(check_lock("[[package]]\nname = \"lazy_static\"\n").unwrap().is_empty());
    }

    #[test]
    fn a_peer_of_the_lab_may_bring_what_is_never_shipped() {
        assert!(check_lock("[[package]]\nname = \"dashmap\"\n").unwrap().is_empty());
        assert_eq!(check_shipped(&package_names("dashmap v6.1.0\n")).len(), 1);
    }

    #[test]
    fn an_optional_crate_may_stand_in_the_lock_but_not_be_built() {
        assert!(check_lock("[[package]]\nname = \"ring\"\n").unwrap().is_empty());
        let tree = "sqlx v0.9.0\nring v0.17.14\nrustls v0.23.46 (*)\n";
        assert_eq!(check_graph(&package_names(tree)).len(), 1);
        assert!(check_graph(&package_names("rustls v0.23.46\nstring v1.0.0\n")).is_empty());
    }
}
