//! Names of plans, clients, routes and rollouts: `[a-z0-9][a-z0-9._-]{0,63}`.

use std::fmt;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// A checked name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Checks the spelling.
    pub fn new(text: &str) -> Result<Name, NameError> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        let first =
            text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if first && text.len() <= NAME_BYTES_MAX && text.bytes().all(inner) {
            Ok(Name(text.to_owned()))
        } else {
            Err(NameError { value: text.chars().take(80).collect() })
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name is 1 to 64 of a-z 0-9 . _ - and starts with a letter or digit, not `{value}`")]
pub struct NameError {
    /// What was given.
    pub value: String,
}
