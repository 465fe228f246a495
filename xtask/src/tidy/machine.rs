//! The project speaks of itself alone: no path of somebody's machine, and none that leaves the
//! repository, so that every clone is whole.

use std::path::Path;

use super::Finding;
use super::source::{Tree, is_word};

/// Folders that exist on every machine and may be named.
const COMMON: &[&str] = &["/", "/tmp", "/usr", "/var", "/opt", "/srv", "/home", "/root", "/etc"];

/// Paths that only one machine has.
pub(super) fn check(tree: &Tree, root: &Path) -> Vec<Finding> {
    let private = private_folders(root);
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        for (index, line) in text.lines().enumerate() {
            let place = || format!("{path}:{}", index + 1);
            if let Some(folder) = private.iter().find(|folder| names_folder(line, folder)) {
                let what = format!("names `{folder}`, a folder of one machine");
                findings.push(Finding::new(place(), what));
            }
            if line.split(|c: char| !is_path_char(c)).any(|word| leaves(path, word)) {
                let what = "names a path that leaves the repository: a clone has nothing there";
                findings.push(Finding::new(place(), what));
            }
        }
    }
    findings
}

/// This checkout and the folder that holds it, unless every machine has it.
fn private_folders(root: &Path) -> Vec<String> {
    let folders = root.ancestors().take(2).map(|folder| folder.to_string_lossy().into_owned());
    folders.filter(|folder| !COMMON.contains(&folder.as_str())).collect()
}

fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + folder.len()..).unwrap_or_default();
        !before.is_some_and(|c| is_word(c) || c == '.' || c == '/') && after.starts_with('/')
    })
}

fn is_path_char(c: char) -> bool {
    is_word(c) || matches!(c, '.' | '/' | '-')
}

/// Whether a relative path goes above the root from any place a reader may resolve it: the file's
/// own folder, or the root of its crate.
fn leaves(file: &str, word: &str) -> bool {
    if !word.starts_with("../") {
        return false;
    }
    let depth = file.matches('/').count();
    let up = word.split('/').take_while(|part| *part == "..").count();
    up > depth
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)]), Path::new("/build/ann/weir")).len()
    }

    #[test]
    fn a_folder_of_one_machine_is_found() {
        assert_eq!(found("README.md", "see /build/ann/weir/notes.md"), 1);
        assert_eq!(found("README.md", "see `/build/ann/plans.txt`"), 1);
        assert_eq!(found("README.md", "see /build/anna/x and /usr/lib and api/build/ann/x"), 0);
    }

    #[test]
    fn a_path_that_leaves_the_repository_is_found() {
        assert_eq!(found("README.md", "see ../elsewhere/page.md"), 1);
        assert_eq!(found("docs/adr/0001.md", "see ../semantics.md and ../../README.md"), 0);
        assert_eq!(found("docs/adr/0001.md", "see ../../../secret.md"), 1);
    }

    #[test]
    fn a_clone_in_a_common_folder_bans_only_itself() {
        let root = Path::new("/tmp/weir");
        let tree = Tree::of(&[("a.md", "/tmp/other/x"), ("b.md", "/tmp/weir/x")]);
        assert_eq!(check(&tree, root).len(), 1);
    }
}
