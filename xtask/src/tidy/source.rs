//! The tree of files that checks look at, and Rust text without its comments, strings and tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Folders that hold nothing a person wrote.
const SKIPPED: &[&str] = &[".git", ".weir", "target", "node_modules"];
/// Larger files are data, not text to read.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Every text file of the workspace, by its path from the root with `/`.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads what lies under `root`; files that are not UTF-8 text are left out.
    pub(crate) fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        let entries =
            fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().with_context(|| format!("cannot look at {path}"))?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && entry.metadata().is_ok_and(|data| data.len() <= BYTES_MAX) {
                // A file may vanish between listing and reading, and need not be text.
                if let Ok(text) = fs::read_to_string(entry.path()) {
                    self.files.insert(path, text);
                }
            }
        }
        Ok(())
    }

    /// A tree for tests.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Tree { files: files.collect() }
    }

    /// All files, by path.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Rust files only.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// One file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}

/// Whether a file holds tests only: such files may name what they like.
pub(crate) fn is_test(path: &str) -> bool {
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.contains("/benches/")
        || path.ends_with("/tests.rs")
}

/// Rust text with comments and the insides of literals blanked out, line numbers kept.
pub(crate) fn code(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let at = |index: usize| bytes.get(index).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut index = 0;
    while index < bytes.len() {
        let end = match (at(index), at(index + 1)) {
            ('/', '/') => line_end(&bytes, index),
            ('/', '*') => comment_end(&bytes, index),
            ('"', _) => string_end(&bytes, index + 1),
            ('r', '"' | '#') if !is_word(at(index.wrapping_sub(1))) => raw_end(&bytes, index),
            ('\'', _) => char_end(&bytes, index),
            _ => index,
        };
        if end == index {
            out.push(at(index));
            index += 1;
        } else {
            let blanked = bytes.iter().skip(index).take(end - index);
            out.extend(blanked.map(|c| if *c == '\n' { '\n' } else { ' ' }));
            index = end;
        }
    }
    out
}

fn line_end(text: &[char], from: usize) -> usize {
    position(text, from, '\n').unwrap_or(text.len())
}

fn position(text: &[char], from: usize, wanted: char) -> Option<usize> {
    text.iter().skip(from).position(|c| *c == wanted).map(|offset| from + offset)
}

fn comment_end(text: &[char], from: usize) -> usize {
    let mut depth = 0_usize;
    let mut index = from;
    while index < text.len() {
        match (text.get(index), text.get(index + 1)) {
            (Some('/'), Some('*')) => (depth, index) = (depth + 1, index + 2),
            (Some('*'), Some('/')) if depth == 1 => return index + 2,
            (Some('*'), Some('/')) => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
    }
    text.len()
}

fn string_end(text: &[char], mut index: usize) -> usize {
    while let Some(c) = text.get(index) {
        match c {
            '\\' => index += 2,
            '"' => return index + 1,
            _ => index += 1,
        }
    }
    text.len()
}

/// The end of `r#"…"#`; a raw identifier (`r#match`) is no literal.
fn raw_end(text: &[char], from: usize) -> usize {
    let hashes = text.iter().skip(from + 1).take_while(|c| **c == '#').count();
    if text.get(from + 1 + hashes) != Some(&'"') {
        return from;
    }
    let mut index = from + 2 + hashes;
    while let Some(quote) = position(text, index, '"') {
        if text.iter().skip(quote + 1).take(hashes).filter(|c| **c == '#').count() == hashes {
            return quote + 1 + hashes;
        }
        index = quote + 1;
    }
    text.len()
}

/// The end of `'x'` or `'\n'`; a lifetime is no literal.
fn char_end(text: &[char], from: usize) -> usize {
    match (text.get(from + 1), text.get(from + 2)) {
        (Some('\\'), _) => position(text, from + 3, '\'').map_or(text.len(), |end| end + 1),
        (Some(_), Some('\'')) => from + 3,
        _ => from,
    }
}

/// Part of an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Code up to its `#[cfg(test)]` module, which stands last in our files.
pub(crate) fn without_tests(code: &str) -> &str {
    let mut from = 0;
    while let Some(offset) = code.get(from..).and_then(|rest| rest.find("#[cfg(test)]")) {
        let begin = from + offset;
        let after = code.get(begin + "#[cfg(test)]".len()..).unwrap_or_default().trim_start();
        if after.starts_with("mod ") && !after.lines().next().unwrap_or_default().ends_with(';') {
            return code.get(..begin).unwrap_or(code);
        }
        from = begin + 1;
    }
    code
}

/// The identifiers of some text, each with the text before and after it.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = text.get(from..)?;
        let begin = from + rest.find(is_word)?;
        let rest = text.get(begin..)?;
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        from = begin + length;
        Some((text.get(..begin)?, text.get(begin..from)?, text.get(from..)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lifetimes_are_not() {
        let text = "fn f<'a>(x: &'a str) { g(\"redis::a \\\" b\", 'r', '\\'', r#\"tokio\"x\"#); } // sqlx::\n/* a /* b */ c */ fn h() {}";
        let code = code(text);
        assert!(code.contains("fn f<'a>(x: &'a str)"), "{code}");
        assert!(code.contains("fn h()"), "{code}");
        for gone in ["redis", "tokio", "sqlx", " b */"] {
            assert!(!code.contains(gone), "{gone} in {code}");
        }
        assert_eq!(code.chars().count(), text.chars().count());
    }

    #[test]
    fn only_the_test_module_is_cut_off() {
        let code = "#[cfg(test)]\nfn helper() {}\nfn kept() {}\n#[cfg(test)]\nmod tests {\n    fn cut() {}\n}\n";
        let kept = without_tests(code);
        assert!(kept.contains("kept") && !kept.contains("cut"));
        let outside = "#[cfg(test)]\nmod tests;\nfn kept() {}\n";
        assert!(without_tests(outside).contains("kept"));
    }

    #[test]
    fn words_come_with_their_surroundings() {
        let found: Vec<_> = words("use a::b_1;").map(|(_, word, _)| word.to_owned()).collect();
        assert_eq!(found, ["use", "a", "b_1"]);
    }
}
