//! Two borders inside the code: the arithmetic of limits knows neither waiting nor clocks, and the
//! crate `daemon` knows no word of the domain.

use super::Finding;
use super::source::{Tree, code, without_tests, words};

/// Files of limiter-core that are pure: state, request and time in, answer out.
const PURE: &[&str] = &[
    "units",
    "limit",
    "call",
    "bucket",
    "replay",
    "decision",
    "degraded",
    "breaker",
    "key",
    "lease",
    "limiter/books",
    "limiter/demand",
    "limiter/entry",
    "limiter/flight",
    "limiter/lease_book",
    "limiter/meter",
    "limiter/outage",
    "limiter/punctual",
    "limiter/retry",
    "limiter/seen",
    "limiter/settings",
    "limiter/share",
    "limiter/unused",
];

/// What a pure file cannot contain.
const IMPURE: &[&str] = &["async", "await", "tokio", "Instant", "SystemTime", "redis", "serde"];

/// Words of the domain. `key`, `limit` and `client` are not among them: a daemon has primary keys,
/// limits of its own and HTTP clients.
const DOMAIN: &[&str] = &[
    "bucket",
    "buckets",
    "cohort",
    "enforce",
    "lease",
    "limiter",
    "limiter_core",
    "plan",
    "plans",
    "quota",
    "rollout",
    "rollouts",
    "shadow",
    "tenant",
    "upstream",
    "upstreams",
];

/// Past this many lines something in `daemon` does not belong there. A third of it is what outlives a
/// process: sockets, successors, the service manager.
const DAEMON_CODE_LINES_MAX: usize = 1_500;

/// Both borders.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut daemon_lines = 0;
    for (path, text) in tree.rust() {
        let code = code(text);
        let code = without_tests(&code);
        if is_pure(path) {
            findings.extend(impurities(path, code));
        }
        if path.starts_with("crates/daemon/src/") {
            findings.extend(domain_words(path, code));
            daemon_lines += code.lines().filter(|line| !line.trim().is_empty()).count();
        }
    }
    if daemon_lines > DAEMON_CODE_LINES_MAX {
        let what = format!(
            "{daemon_lines} lines of code, at most {DAEMON_CODE_LINES_MAX}: something in it does \
             not belong there; daemon must not become `common`"
        );
        findings.push(Finding::new("crates/daemon", what));
    }
    findings
}

fn is_pure(path: &str) -> bool {
    let file =
        path.strip_prefix("crates/limiter-core/src/").and_then(|file| file.strip_suffix(".rs"));
    let opens = |file: &str, pure: &str| {
        file.strip_prefix(pure).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    file.is_some_and(|file| PURE.iter().any(|pure| opens(file, pure)))
}

fn impurities(path: &str, code: &str) -> Vec<Finding> {
    let bad = words(code).map(|(_, word, _)| word).filter(|word| IMPURE.contains(word));
    bad.map(|word| {
        let what = format!(
            "names `{word}`, but is pure: time is an argument, nothing waits, nothing serialises. \
             What needs more belongs to limiter.rs or store/"
        );
        Finding::new(path, what)
    })
    .collect()
}

fn domain_words(path: &str, code: &str) -> Vec<Finding> {
    let parts = words(code).flat_map(|(_, word, _)| snake_parts(word));
    let bad = parts.filter(|part| DOMAIN.contains(&part.as_str()));
    bad.map(|word| {
        let what = format!(
            "says `{word}`: daemon makes a process a good daemon and knows no word of the domain; \
             move it to the crate that does"
        );
        Finding::new(path, what)
    })
    .collect()
}

/// `PlanBook` and `plan_book` are both `plan`, `book`.
fn snake_parts(word: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for c in word.chars() {
        if c == '_' || c.is_uppercase() {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| c != '_') {
            last.extend(c.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn waiting_and_clocks_in_a_pure_file_are_found() {
        let bucket = "crates/limiter-core/src/bucket.rs";
        assert_eq!(found(bucket, "async fn take() {}"), 1);
        assert_eq!(found(bucket, "use std::time::Instant;"), 1);
        assert_eq!(found("crates/limiter-core/src/bucket/tests_of_time.rs", "use tokio::time;"), 1);
        assert_eq!(found(bucket, "// async is for others\nfn take(now: Timestamp) {}"), 0);
        assert_eq!(found("crates/limiter-core/src/limiter.rs", "async fn decide() {}"), 0);
    }

    #[test]
    fn a_word_of_the_domain_in_daemon_is_found_in_any_spelling() {
        let run = "crates/daemon/src/run.rs";
        assert_eq!(found(run, "struct PlanSource;"), 1);
        assert_eq!(found(run, "fn open_bucket() {}"), 1);
        assert_eq!(found(run, "fn explanation() {} // the plan"), 0);
        assert_eq!(found("crates/edge/src/edge.rs", "struct PlanSource;"), 0);
    }

    #[test]
    fn a_daemon_that_grows_is_found() {
        let text = "fn f() {}\n".repeat(DAEMON_CODE_LINES_MAX + 1);
        assert_eq!(found("crates/daemon/src/run.rs", &text), 1);
    }
}
