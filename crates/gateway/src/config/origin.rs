//! The file that a configuration was read from, so that it can be read again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use wire::error::FieldError;

use super::Config;
use super::file::{WHOLE_FILE, parse};
use super::read::object_of;
use super::schema::effective;

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub file: PathBuf,
    /// Tells its contents apart.
    pub(crate) digest: u64,
    /// All of it with its defaults, without its secrets.
    pub(crate) effective: Arc<Value>,
}

/// Checks what stands in `file`; relative paths in it stand beside it.
pub(crate) fn judge(text: &str, file: &Path) -> Result<Config, Vec<FieldError>> {
    let beside = file.parent().unwrap_or(Path::new("."));
    let config = parse(text, beside).map_err(|mut errors| {
        for error in errors.iter_mut().filter(|error| error.field == WHOLE_FILE) {
            error.field = file.display().to_string();
        }
        errors
    })?;
    // It is valid, so it can be read once more.
    let table: toml::Table = text.parse().unwrap_or_default();
    let effective = Arc::new(effective(&Value::Object(object_of(table))));
    let origin = Origin { file: file.to_owned(), digest: digest(Some(text)), effective };
    Ok(Config { origin: Some(origin), ..config })
}

/// Tells contents apart, also from a file that cannot be read. Times of files are not asked: a
/// mounted configuration may keep them.
pub(crate) fn digest(text: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
