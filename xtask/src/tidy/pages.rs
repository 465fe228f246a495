//! Pages that must keep up with what they describe: migrations on both sides, the configuration
//! page, and the lengths of documents.

use std::collections::BTreeSet;

use super::Finding;
use super::source::Tree;

/// Most lines of a document: a longer one has two jobs.
const LENGTHS: &[(&str, usize)] = &[
    ("README.md", 120),
    ("CONTRIBUTING.md", 80),
    ("SECURITY.md", 30),
    ("docs/README.md", 25),
    ("docs/architecture.md", 250),
    ("docs/semantics.md", 220),
    ("docs/glossary.md", 70),
    ("docs/style.md", 200),
    ("docs/adr/README.md", 60),
    ("migrations/README.md", 30),
];
const ADR_LINES_MAX: usize = 60;

const CONFIGURATION: &str = "docs/configuration.md";
const GATEWAY_FILE: &str = "deploy/config/gateway.toml";

/// Everything about pages.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = migrations(tree);
    findings.extend(configuration(tree));
    findings.extend(lengths(tree));
    findings.extend(decisions(tree));
    findings
}

fn migrations(tree: &Tree) -> Vec<Finding> {
    let side = |name: &str| -> BTreeSet<String> {
        let folder = format!("migrations/{name}/");
        let files = tree.files().filter_map(|(path, _)| path.strip_prefix(&folder));
        files.filter(|file| file.ends_with(".sql")).map(str::to_owned).collect()
    };
    let (postgres, sqlite) = (side("postgres"), side("sqlite"));
    let lonely = postgres.symmetric_difference(&sqlite);
    lonely
        .map(|file| {
            let what = format!(
                "`{file}` is on one side only: a change of the schema has the same number and name \
                 in migrations/postgres and migrations/sqlite"
            );
            Finding::new("migrations", what)
        })
        .collect()
}

fn configuration(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.text(GATEWAY_FILE) else {
        return vec![Finding::new(GATEWAY_FILE, "is missing: the commented defaults of a gateway")];
    };
    let page = tree.text(CONFIGURATION).unwrap_or_default();
    let keys = keys(file);
    let untold = keys.iter().filter(|key| !page.contains(&format!("`{key}`")));
    untold
        .map(|key| {
            let what = format!("`{key}` of {GATEWAY_FILE} is not explained");
            Finding::new(CONFIGURATION, what)
        })
        .collect()
}

/// Names left of `=`, also in inline tables and in defaults that are commented out.
fn keys(file: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for line in file.lines() {
        let line = line.trim_start().trim_start_matches('#').trim_start();
        let mut quoted = false;
        let mut bare = String::new();
        for c in line.chars() {
            quoted ^= c == '"';
            if c == '#' && !quoted {
                break;
            }
            bare.push(if quoted { '"' } else { c });
        }
        let mut parts = bare.split('=').peekable();
        while let (Some(part), true) = (parts.next(), parts.peek().is_some()) {
            let name = part.trim_end().rsplit([' ', ',', '{', '[']).next().unwrap_or_default();
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            // A sentence in a comment has other text before its `=`.
            let alone = part.trim().len() == name.len() || part.contains(['{', ',']);
            if alone && !name.is_empty() && name.chars().all(plain) {
                keys.insert(name.to_owned());
            }
        }
    }
    keys
}

fn lengths(tree: &Tree) -> Vec<Finding> {
    let adrs = tree.files().filter(|(path, _)| is_adr(path)).map(|(path, _)| (path, ADR_LINES_MAX));
    LENGTHS
        .iter()
        .copied()
        .chain(adrs)
        .filter_map(|(path, most)| {
            let Some(text) = tree.text(path) else {
                return Some(Finding::new(path, "is missing"));
            };
            let lines = text.lines().count();
            (lines > most).then(|| {
                let what = format!("{lines} lines, at most {most}: which part has another job?");
                Finding::new(path, what)
            })
        })
        .collect()
}

fn is_adr(path: &str) -> bool {
    path.strip_prefix("docs/adr/")
        .is_some_and(|file| file.starts_with(|c: char| c.is_ascii_digit()))
}

/// Every decision is in the index and has the four parts.
fn decisions(tree: &Tree) -> Vec<Finding> {
    let index = tree.text("docs/adr/README.md").unwrap_or_default();
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_adr(path)) {
        let file = path.rsplit('/').next().unwrap_or_default();
        if !index.contains(&format!("({file})")) {
            findings.push(Finding::new("docs/adr/README.md", format!("does not list {file}")));
        }
        for part in ["Status:", "## Context", "## Decision", "## Consequences", "## Alternatives"] {
            if !text.lines().any(|line| line.starts_with(part)) {
                findings.push(Finding::new(path, format!("lacks its part `{part}`")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_on_one_side_only_is_found() {
        let both = [("migrations/postgres/0001_a.sql", ""), ("migrations/sqlite/0001_a.sql", "")];
        assert!(migrations(&Tree::of(&both)).is_empty());
        assert_eq!(migrations(&Tree::of(&both[..1])).len(), 1);
        let other = [("migrations/postgres/0001_a.sql", ""), ("migrations/sqlite/0002_a.sql", "")];
        assert_eq!(migrations(&Tree::of(&other)).len(), 2);
    }

    #[test]
    fn keys_are_read_from_tables_inline_tables_and_commented_defaults() {
        let file = "# What it is for: a = b is no key\n[store]\nurl = \"redis://x?a=b\" # here c = d\n\
                    # deadline = \"5ms\"\nhealth = { path = \"/\", every = \"5s\" }\n";
        let found: Vec<_> = keys(file).into_iter().collect();
        assert_eq!(found, ["deadline", "every", "health", "path", "url"]);
    }

    #[test]
    fn a_key_that_the_page_does_not_name_is_found() {
        let file = (GATEWAY_FILE, "[store]\nurl = \"\"\ndeadline = \"5ms\"\n");
        let page = (CONFIGURATION, "| `url` | where |");
        let found = configuration(&Tree::of(&[file, page]));
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("`deadline`"));
        assert_eq!(configuration(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn a_document_that_grew_or_vanished_is_found() {
        let long = "x\n".repeat(26);
        let found = lengths(&Tree::of(&[("docs/README.md", &long)]));
        assert_eq!(found.len(), LENGTHS.len());
        assert!(found.iter().any(|finding| finding.what.contains("26 lines, at most 25")));
    }

    #[test]
    fn a_decision_outside_the_index_or_without_alternatives_is_found() {
        let text = "# 3\nStatus: accepted\n## Context\n## Decision\n## Consequences\n";
        let adr = ("docs/adr/0003-token-bucket.md", text);
        assert_eq!(decisions(&Tree::of(&[adr])).len(), 2);
        let whole = format!("{text}## Alternatives\n");
        let index = ("docs/adr/README.md", "[3](0003-token-bucket.md)");
        assert!(decisions(&Tree::of(&[(adr.0, &whole), index])).is_empty());
    }
}
