//! Reading settings: process flags over environment, secrets from files; every mistake with its
//! place, not the first alone.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::run::Failure;

/// Flags that every program has.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ProcessFlags {
    /// How log lines look: text for people, json for machines.
    #[arg(long, env = "WEIR_LOG_FORMAT", value_enum, default_value_t, global = true)]
    pub log_format: LogFormat,
    /// Which log lines are written: error, warn, info, debug, or a filter by module.
    #[arg(long, env = "WEIR_LOG_LEVEL", default_value = "info", global = true)]
    pub log_level: String,
    /// Where to write the bound addresses (JSON) once all are ready.
    #[arg(long, env = "WEIR_PORTS_FILE", value_name = "PATH", global = true)]
    pub ports_file: Option<PathBuf>,
}

/// Implemented by a program's flags, which contain [`ProcessFlags`].
pub trait HasProcessFlags {
    /// The process flags in it.
    fn process(&self) -> &ProcessFlags;
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Collects mistakes as lines `path: what is wrong`.
#[derive(Debug, Default)]
pub struct Problems(Vec<String>);

impl Problems {
    /// None yet.
    pub fn new() -> Problems {
        Problems::default()
    }

    /// Notes one.
    pub fn add(&mut self, path: impl Display, what: impl Display) {
        self.0.push(format!("{path}: {what}"));
    }

    /// The value, or a note of what was wrong with it.
    pub fn check<T, E: Display>(&mut self, path: impl Display, value: Result<T, E>) -> Option<T> {
        value.map_err(|error| self.add(path, error)).ok()
    }

    /// Whether nothing was wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A failure with all lines, if there is one.
    pub fn none_or_err(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(Failure::Settings(self.0)) }
    }
}

/// Why a settings file or a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// It is not what it should be.
    #[error("{0}: {1}")]
    Content(PathBuf, String),
}

/// What another process has put into the environment for this one. Settings of people are flags,
/// which know their variables themselves.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Reads a secret text, without the white space around it; an empty one is a mistake.
pub fn secret_file(path: &Path) -> Result<String, FileError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| FileError::Io(path.to_owned(), error))?;
    let text = text.trim();
    if text.is_empty() {
        return Err(FileError::Content(path.to_owned(), "is empty".to_owned()));
    }
    Ok(text.to_owned())
}

/// Writes a file that only its owner may read (0600): whole or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_whole(path, bytes, 0o600).map_err(|error| FileError::Io(path.to_owned(), error))
}

/// Writes beside, flushes, renames.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    let mut file: File =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}
