//! The file that a configuration was read from, so that it can be read again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use wire::error::FieldError;

use super::Config;
use super::file::parse;

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub file: PathBuf,
    /// Tells its contents apart.
    pub(crate) digest: u64,
}

/// Checks what stands in `file`; relative paths in it stand beside it.
pub(crate) fn judge(text: &str, file: &Path) -> Result<Config, Vec<FieldError>> {
    let beside = file.parent().unwrap_or(Path::new("."));
    let config = parse(text, beside)?;
    let origin = Some(Origin { file: file.to_owned(), digest: digest(Some(text)) });
    Ok(Config { origin, ..config })
}

/// Tells contents apart, also from a file that cannot be read. Times of files are not asked: a
/// mounted configuration may keep them.
pub(crate) fn digest(text: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
