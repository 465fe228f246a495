//! Which crate of ours may import which. Every arrow goes down, so there can be no circles.
//!
//! A new arrow is a design decision: change this table, docs/architecture.md and write an ADR, all
//! in the same change.

use super::Finding;
use super::metadata::{Dependency, Metadata};

/// How much of limiter-core a crate may see.
#[derive(Clone, Copy, PartialEq)]
enum Core {
    /// Arithmetic only: no runtime, no store behind a network.
    Pure,
    /// All of it.
    Whole,
}

struct Arrows {
    from: &'static str,
    to: &'static [&'static str],
    core: Core,
}

const fn arrows(from: &'static str, to: &'static [&'static str], core: Core) -> Arrows {
    Arrows { from, to, core }
}

const ARROWS: &[Arrows] = &[
    arrows("limiter-core", &[], Core::Whole),
    arrows("daemon", &[], Core::Pure),
    // Only for tests: servers, faults before them, and the protocol counted out.
    arrows("test-servers", &[], Core::Pure),
    arrows("fault-proxy", &[], Core::Pure),
    arrows("lease-model", &["limiter-core"], Core::Whole),
    arrows("wire", &["limiter-core"], Core::Pure),
    arrows("safety-limit", &["limiter-core", "wire"], Core::Pure),
    arrows("edge", &["limiter-core", "wire", "daemon"], Core::Whole),
    arrows("plans-api", &["limiter-core", "wire", "daemon"], Core::Pure),
    arrows("shadow-compare", &["limiter-core", "wire", "daemon"], Core::Pure),
    arrows("gateway", &["edge", "wire", "daemon"], Core::Pure),
    arrows("demo", &["safety-limit", "limiter-core"], Core::Pure),
    arrows(
        "admin-cli",
        &["wire", "limiter-core", "daemon", "gateway", "plans-api", "shadow-compare", "demo"],
        Core::Pure,
    ),
    arrows(
        "system-tests",
        &[
            "limiter-core",
            "wire",
            "daemon",
            "edge",
            "gateway",
            "plans-api",
            "shadow-compare",
            "safety-limit",
            "demo",
            "admin-cli",
            "test-servers",
            "fault-proxy",
        ],
        Core::Whole,
    ),
    arrows("xtask", &[], Core::Pure),
];

/// Arrows that are not in the table, and crates that are not.
pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let place = format!("{}'s Cargo.toml", package.name);
        let Some(allowed) = ARROWS.iter().find(|arrows| arrows.from == package.name) else {
            let what = "a crate without a row in xtask/src/tidy/arrows.rs: say what it may import";
            findings.push(Finding::new(place, what));
            continue;
        };
        for dependency in &package.dependencies {
            let ours = metadata.package(&dependency.name).is_some();
            if ours && !allowed.to.contains(&dependency.name.as_str()) && !is_for_tests(dependency)
            {
                let what = format!(
                    "{} may not import {}. Arrows go down only (docs/architecture.md); a new one \
                     needs an ADR and a row in xtask/src/tidy/arrows.rs",
                    package.name, dependency.name
                );
                findings.push(Finding::new(place.clone(), what));
            }
            if is_whole_core(dependency) && allowed.core == Core::Pure && dependency.kind.is_none()
            {
                let what = format!(
                    "{} may only see the pure part of limiter-core: `limiter-core.workspace = \
                     true`, without features",
                    package.name
                );
                findings.push(Finding::new(place.clone(), what));
            }
        }
    }
    findings
}

fn is_whole_core(dependency: &Dependency) -> bool {
    let feature = dependency.features.iter().any(|name| name == "redis" || name == "limiter");
    dependency.name == "limiter-core" && (dependency.uses_default_features || feature)
}

/// Clocks, stores, servers and faults for tests are everybody's.
fn is_for_tests(dependency: &Dependency) -> bool {
    let for_tests = dependency.kind.as_deref() == Some("dev");
    for_tests && ["limiter-core", "test-servers", "fault-proxy"].contains(&&*dependency.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(package: &str, dependency: &str) -> Vec<Finding> {
        let text = format!(
            r#"{{"packages":[{{"name":"{package}","dependencies":[{dependency}]}},
                {{"name":"limiter-core","dependencies":[]}},
                {{"name":"plans-api","dependencies":[]}}]}}"#
        );
        check(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn an_arrow_that_is_not_in_the_table_is_found() {
        let dependency = r#"{"name":"plans-api","kind":null,"uses_default_features":true}"#;
        let found = findings("gateway", dependency);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("gateway may not import plans-api"));
        assert!(findings("admin-cli", dependency).is_empty());
    }

    #[test]
    fn a_dependency_for_tests_is_an_arrow_too() {
        let dependency = r#"{"name":"plans-api","kind":"dev","uses_default_features":true}"#;
        assert_eq!(findings("edge", dependency).len(), 1);
    }

    #[test]
    fn tests_may_take_a_clock_from_the_testkit() {
        let dependency = r#"{"name":"limiter-core","kind":"dev","features":["testkit"],"uses_default_features":true}"#;
        assert!(findings("gateway", dependency).is_empty());
        let ordinary = dependency.replace("\"dev\"", "null");
        assert_eq!(findings("gateway", &ordinary).len(), 2);
    }

    #[test]
    fn the_control_plane_sees_only_arithmetic() {
        let pure = r#"{"name":"limiter-core","kind":null,"uses_default_features":false}"#;
        assert!(findings("wire", pure).is_empty());
        let whole = r#"{"name":"limiter-core","kind":null,"features":["redis"],"uses_default_features":false}"#;
        assert_eq!(findings("wire", whole).len(), 1);
        assert!(findings("edge", whole).is_empty());
    }

    #[test]
    fn an_unknown_crate_is_found_and_foreign_crates_are_not() {
        assert_eq!(findings("common", "").len(), 1);
        let foreign = r#"{"name":"serde","kind":null,"uses_default_features":true}"#;
        assert!(findings("wire", foreign).is_empty());
    }
}
