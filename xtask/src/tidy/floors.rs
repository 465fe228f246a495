//! Crates whose older versions have a published weakness: Cargo.lock holds none of those.

use anyhow::{Context, Result};

use super::Finding;

/// Name, first version without the weakness, and where it is published.
const FLOORS: &[(&str, &str, &str)] = &[
    ("bytes", "1.11.1", "RUSTSEC-2026-0007"),
    ("h2", "0.4.16", "RUSTSEC-2026-0258, CVE-2025-8671"),
    ("hyper", "0.14.10", "RUSTSEC-2020-0008, CVE-2021-32714, CVE-2021-32715"),
    ("ring", "0.17.12", "RUSTSEC-2025-0009, RUSTSEC-2025-0010"),
    ("rustls-webpki", "0.103.13", "RUSTSEC-2026-0049, -0098, -0099, -0104"),
    ("sqlx", "0.8.1", "RUSTSEC-2024-0363"),
    ("tracing-subscriber", "0.3.20", "CVE-2025-58160"),
];

/// Versions in the text of Cargo.lock that are below their floor, and floors that hold up nothing.
pub(super) fn check(lock: &str) -> Result<Vec<Finding>> {
    let lock: toml::Table = lock.parse().context("cannot read Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let packages = packages.context("Cargo.lock names no package")?;
    let text = |package: &toml::Value, key: &str| {
        package.get(key).and_then(toml::Value::as_str).unwrap_or_default().to_owned()
    };
    let mut findings = Vec::new();
    for (name, floor, weakness) in FLOORS {
        let own = packages.iter().filter(|package| text(package, "name") == *name);
        for version in own.map(|package| text(package, "version")) {
            if parts(&version) < parts(floor) {
                let what = format!("`{name}` {version} is below {floor}: {weakness}");
                findings.push(Finding::new("Cargo.lock", what));
            }
        }
    }
    Ok(findings)
}

/// Numbers of a version; what comes before a release counts as below it.
fn parts(version: &str) -> (Vec<u64>, bool) {
    let version = version.split('+').next().unwrap_or_default();
    let (numbers, is_release) = match version.split_once('-') {
        Some((numbers, _before)) => (numbers, false),
        None => (version, true),
    };
    (numbers.split('.').map(|number| number.parse().unwrap_or(0)).collect(), is_release)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, version: &str) -> usize {
        let lock = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
        check(&lock).unwrap().len()
    }

    #[test]
    fn s42_a_version_with_a_known_weakness_is_found() {
        for (version, findings) in [
            ("0.4.15", 1),
            ("0.3.99", 1),
            ("0.4.16-rc.1", 1),
            ("0.4.16", 0),
            ("0.4.100", 0),
            ("0.10.0+x", 0),
            ("1.0.0", 0),
        ] {
            assert_eq!(found("h2", version), findings, "{version}");
        }
        assert_eq!(found("other", "0.0.1"), 0);
        assert!(check("").is_err(), "a lock that names nothing was not looked at");
    }

    #[test]
    fn s42_our_own_lock_is_above_every_floor() {
        let lock = std::fs::read_to_string(crate::run::root().join("Cargo.lock")).unwrap();
        assert_eq!(check(&lock).unwrap(), Vec::new());
    }
}
