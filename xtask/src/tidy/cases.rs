//! tests/CASES.md and the tests named by case id are the same list, and every other test that the
//! page names is there.

use std::collections::BTreeMap;

use super::Finding;
use super::source::{Tree, code, words};

const PAGE: &str = "tests/CASES.md";
/// How a row says that its case is not tested yet.
const LATER: &str = "later";

struct Row {
    id: String,
    /// The files with its tests; none if it comes later.
    files: Vec<String>,
}

/// Rows without a test where they say, and tests without a row.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let tests = case_tests(tree);
    let rows = rows(tree.text(PAGE).unwrap_or_default());
    let mut findings: Vec<Finding> = rows.iter().flat_map(|row| missing(row, &tests)).collect();
    for (id, files) in &tests {
        if !rows.iter().any(|row| row.id == *id) {
            let what = format!("has a test named for {id}, which has no row in {PAGE}");
            findings.extend(files.iter().map(|file| Finding::new(*file, what.clone())));
        }
    }
    findings.extend(named(tree));
    findings
}

/// Tests that the page names as `file.rs::test`, several of one file with commas, and that are not
/// there.
fn named(tree: &Tree) -> Vec<Finding> {
    let page = tree.text(PAGE).unwrap_or_default();
    let quoted = page.split('`').skip(1).step_by(2);
    let names = quoted.filter_map(|text| text.split_once(".rs::"));
    let mut findings = Vec::new();
    for (file, test) in names {
        let path = format!("{file}.rs");
        let text = tree.text(&path).map(code).unwrap_or_default();
        if !words(&text).any(|(before, name, _)| before.ends_with("fn ") && name == test) {
            let what = format!("names the test `{test}` in `{path}`; there is no such function");
            findings.push(Finding::new(PAGE, what));
        }
    }
    findings
}

fn missing(row: &Row, tests: &BTreeMap<String, Vec<&str>>) -> Vec<Finding> {
    let files = tests.get(&row.id).map(Vec::as_slice).unwrap_or_default();
    let name = row.id.to_lowercase();
    let gone = row.files.iter().filter(|file| !files.contains(&file.as_str())).map(|file| {
        format!("{} says that `{file}` has its test; there is no function {name}_… in it", row.id)
    });
    let untold = files.iter().filter(|file| !row.files.iter().any(|told| told == *file));
    let untold = untold.map(|file| format!("{} has a test in `{file}`: say so in its row", row.id));
    gone.chain(untold).map(|what| Finding::new(PAGE, what)).collect()
}

/// Rows of the tables: `| C01 | … | `file`, `file` |`, or `later`. A row with neither says that its
/// test is in an unnamed file, which is nowhere.
fn rows(page: &str) -> Vec<Row> {
    page.lines()
        .filter_map(|line| {
            let cells: Vec<&str> =
                line.trim().trim_matches('|').split('|').map(str::trim).collect();
            let id = cells.first().filter(|id| is_id(id))?;
            let last = cells.last().copied().unwrap_or_default();
            let files = last.split(',').map(|file| file.trim().trim_matches('`').to_owned());
            let files = if last == LATER { Vec::new() } else { files.collect() };
            Some(Row { id: (*id).to_owned(), files })
        })
        .collect()
}

fn is_id(text: &str) -> bool {
    text.strip_prefix(['C', 'F', 'S'])
        .is_some_and(|number| number.len() == 2 && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Files with a test function `cNN_…`, by id.
fn case_tests(tree: &Tree) -> BTreeMap<String, Vec<&str>> {
    let mut tests: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (path, text) in tree.rust() {
        let code = code(text);
        let functions = words(&code).filter(|(before, _, _)| before.ends_with("fn "));
        for (_, name, _) in functions {
            let id = name.split('_').next().unwrap_or_default().to_uppercase();
            if is_id(&id) && name.len() > id.len() + 1 {
                let files = tests.entry(id).or_default();
                if !files.contains(&path) {
                    files.push(path);
                }
            }
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, test: &str) -> Vec<Finding> {
        let file = "crates/limiter-core/tests/it/cases.rs";
        check(&Tree::of(&[(PAGE, page), (file, test)]))
    }

    const HERE: &str = "| C01 | waits | `crates/limiter-core/tests/it/cases.rs` |";

    #[test]
    fn a_row_and_its_test_agree() {
        assert!(found(HERE, "fn c01_waits_are_never_zero() {}").is_empty());
        assert!(found("| C16 | leases | later |", "").is_empty());
    }

    #[test]
    fn a_row_without_its_test_is_found() {
        assert_eq!(found(HERE, "").len(), 1);
        assert_eq!(found("| C01 | waits | |", "").len(), 1);
        assert_eq!(found(HERE, "// fn c01_waits() {}").len(), 1);
        let elsewhere = "| C01 | waits | `crates/edge/tests/it/cases.rs` |";
        assert_eq!(found(elsewhere, "fn c01_waits() {}").len(), 2, "gone there, untold here");
        let both = "| C01 | waits | `crates/limiter-core/tests/it/cases.rs`, `tests/system/a.rs` |";
        assert_eq!(found(both, "fn c01_waits() {}").len(), 1);
    }

    #[test]
    fn rows_about_faults_and_security_are_cases_too() {
        for (id, test) in [("F01", "fn f01_a_killed_store() {}"), ("S01", "fn s01_lengths() {}")] {
            let here = format!("| {id} | a kind | `crates/limiter-core/tests/it/cases.rs` |");
            assert!(found(&here, test).is_empty());
            assert_eq!(found(&here, "").len(), 1);
            assert_eq!(found("", test).len(), 1);
        }
    }

    #[test]
    fn a_test_that_the_page_names_is_there() {
        let row = "| routes | the most specific | `crates/limiter-core/tests/it/cases.rs::it_is` |";
        assert!(found(row, "fn it_is() {}").is_empty());
        assert_eq!(found(row, "fn it_was() {}").len(), 1);
        assert_eq!(found("see `crates/none.rs::it_is`", "fn it_is() {}").len(), 1);
    }

    #[test]
    fn a_test_without_a_row_is_found() {
        assert_eq!(found("", "fn c07_both_or_none() {}").len(), 1);
        assert_eq!(found("| C07 | both | later |", "fn c07_both_or_none() {}").len(), 1);
        assert!(found("", "fn c7x() {} fn c64_is_a_computer() {}").len() == 1);
    }
}
