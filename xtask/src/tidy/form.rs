//! The form of files: each opens by saying what it is for, none is too long, and a `lib.rs` is a
//! table of contents.

use super::Finding;
use super::source::{Tree, code};

/// Longest source file, in lines, tests included.
const FILE_LINES_MAX: usize = 500;
/// Most lines of code in a `lib.rs`: docs, `mod`s in reading order, few `pub use`.
const LIB_CODE_LINES_MAX: usize = 80;
/// Most lines of code in the `main.rs` of a service: the rest belongs to `lib.rs` or `daemon`.
const MAIN_LINES_MAX: usize = 40;

/// How a file of each kind begins: with a comment that says something.
const OPENINGS: &[(&str, &[&str])] = &[
    (".rs", &["//! "]),
    (".lua", &["-- "]),
    (".sql", &["-- "]),
    (".toml", &["# "]),
    (".sh", &["# "]),
    (".service", &["# "]),
    (".yaml", &["# "]),
];

/// Everything about form.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        tree.files().filter_map(|(path, text)| opening(path, text)).collect();
    for (path, text) in tree.rust() {
        findings.extend(length(path, text));
    }
    findings
}

fn opening(path: &str, text: &str) -> Option<Finding> {
    // A crate's manifest says what it is by its name and its folder.
    if path.ends_with("/Cargo.toml") || path.ends_with("rust-toolchain.toml") {
        return None;
    }
    let named = std::path::Path::new(path).file_name().is_some_and(|name| name == "rustfmt.toml");
    if named || path.starts_with(".cargo/") {
        return None;
    }
    let (_, openings) = OPENINGS.iter().find(|(ending, _)| path.ends_with(ending))?;
    // A script may first name its interpreter.
    let engine = |line: &&str| line.starts_with("#!") && !line.starts_with("#![");
    let mut lines = text.lines().filter(|line| !line.trim().is_empty()).skip_while(engine);
    let first = lines.next().unwrap_or_default();
    let good = openings
        .iter()
        .any(|opening| first.starts_with(opening) && first.len() > opening.len() + 8);
    (!good).then(|| {
        let what = format!(
            "does not open with a sentence ({}…) on what it is for, and what it deliberately is not",
            openings.first().copied().unwrap_or_default()
        );
        Finding::new(path, what)
    })
}

fn length(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        let what = format!(
            "{lines} lines, at most {FILE_LINES_MAX}: split it by idea, never by number; tests of \
             more than about 100 lines move to a file of their own"
        );
        findings.push(Finding::new(path, what));
    }
    let code_lines = code(text).lines().filter(|line| !line.trim().is_empty()).count();
    if path.ends_with("/src/lib.rs") && code_lines > LIB_CODE_LINES_MAX {
        let what = format!(
            "{code_lines} lines of code, at most {LIB_CODE_LINES_MAX}: a lib.rs is a table of \
             contents; move the rest into a module"
        );
        findings.push(Finding::new(path, what));
    }
    let service = path.starts_with("crates/") && path.ends_with("/src/main.rs");
    if service && code_lines > MAIN_LINES_MAX {
        let what = format!(
            "{code_lines} lines of code, at most {MAIN_LINES_MAX}: main is a sentence; the rest \
             belongs to lib.rs or daemon"
        );
        findings.push(Finding::new(path, what));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn a_file_that_does_not_say_what_it_is_for_is_found() {
        assert_eq!(found("crates/edge/src/edge.rs", "use std::fmt;\n"), 1);
        assert_eq!(found("crates/edge/src/edge.rs", "//! x\n"), 1);
        assert_eq!(found("crates/edge/src/edge.rs", "//! Start here: admit and done.\n"), 0);
        assert_eq!(found("crates/limiter-core/src/store/take.lua", "#!lua\nlocal a = 1"), 1);
        assert_eq!(found("crates/limiter-core/src/store/take.lua", "#!lua\n-- Takes tokens."), 0);
        assert_eq!(found("migrations/sqlite/0001_catalog.sql", "create table plan (id);\n"), 1);
        assert_eq!(
            found("crates/limiter-core/src/store/take.lua", "-- Takes tokens, atomically.\n"),
            0
        );
    }

    #[test]
    fn a_long_file_is_found() {
        let text = |lines| format!("//! A file of many lines.\n{}", "// more\n".repeat(lines));
        assert_eq!(found("crates/edge/src/edge.rs", &text(FILE_LINES_MAX - 1)), 0);
        assert_eq!(found("crates/edge/src/edge.rs", &text(FILE_LINES_MAX)), 1);
    }

    #[test]
    fn a_lib_that_is_more_than_contents_is_found_and_its_docs_are_free() {
        let docs = "//! What a rim gives and gets.\n".repeat(100);
        assert_eq!(found("crates/edge/src/lib.rs", &docs), 0);
        let text = format!("{docs}{}", "mod a;\n".repeat(LIB_CODE_LINES_MAX + 1));
        assert_eq!(found("crates/edge/src/lib.rs", &text), 1);
        assert_eq!(found("crates/edge/src/edge.rs", &text), 0);
    }

    #[test]
    fn a_main_that_is_more_than_a_sentence_is_found() {
        let text = format!("//! Starts the service.\n{}", "call();\n".repeat(MAIN_LINES_MAX + 1));
        assert_eq!(found("crates/gateway/src/main.rs", &text), 1);
        assert_eq!(found("tests/lab/main.rs", &text), 0);
    }
}
