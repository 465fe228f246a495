//! What the state folder remembers of the kill switch: `killswitch` while it is set, and
//! `killswitch.cleared`, which names the latch that was cleared last.
//!
//! That a file is there says that it is set, whatever it holds. That it is gone says nothing: only
//! the second file tells another process on the same folder, as there is during a restart in place,
//! that an operator cleared what it has set.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use daemon::settings::write_private;
use serde::Deserialize;
use serde_json::json;
use wire::name::Name;

use super::Latch;
use crate::nonblocking::NONBLOCK;

/// What is read of a file; more is no file of ours.
const FILE_BYTES_MAX: u64 = 4_096;

/// Where the files stand.
#[derive(Debug)]
pub(super) struct Folder {
    folder: PathBuf,
    set: PathBuf,
    cleared: PathBuf,
}

/// What the folder says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is set; `None` where nobody can tell under which id.
    Set(Option<There>),
    /// It is not, and this one was cleared last.
    Cleared(There),
    /// It is not.
    Nothing,
    /// Nothing that could be relied on: the next look tells.
    Unsure,
}

/// What a file of ours holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct There {
    pub(super) id: Name,
    pub(super) set_at: Option<String>,
    pub(super) told: bool,
}

#[derive(Deserialize)]
struct Written {
    id: String,
    set_at: Option<String>,
    #[serde(default)]
    told: bool,
}

impl Folder {
    /// In this folder, which is made if it is not there.
    pub(super) fn at(folder: &Path) -> io::Result<Folder> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        Ok(Folder {
            folder: folder.to_owned(),
            set: folder.join("killswitch"),
            cleared: folder.join("killswitch.cleared"),
        })
    }

    /// Looks. Nothing that stands there can hold it up.
    pub(super) fn find(&self) -> Found {
        match open(&self.set) {
            Ok(file) => Found::Set(there(file)),
            Err(error) => self.without_reading(&error),
        }
    }

    /// What can be said of a file that could not be opened. A process that has run out of
    /// descriptors must not take that for a file: its callers could bring that about.
    fn without_reading(&self, error: &io::Error) -> Found {
        let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match std::fs::symlink_metadata(&self.set) {
            Err(error) if is_absent(&error) => self.find_cleared(),
            // It has come this moment.
            Ok(metadata) if is_absent(error) && !metadata.is_symlink() => Found::Unsure,
            // It cannot be read, or leads nowhere; or nobody can tell whether it is there.
            Ok(_) | Err(_) => Found::Set(None),
        }
    }

    fn find_cleared(&self) -> Found {
        match open(&self.cleared) {
            Ok(file) => there(file).map_or(Found::Nothing, Found::Cleared),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
            Err(_unreadable) => Found::Unsure,
        }
    }

    /// Remembers that this is set.
    pub(super) fn keep(&self, latch: &Latch) -> io::Result<()> {
        let text = text(latch);
        write_private(&self.set, text.as_bytes()).map_err(io::Error::other)?;
        remove(&self.cleared)?;
        self.sync()
    }

    /// Remembers that this was cleared, and forgets that it was set.
    pub(super) fn clear(&self, latch: &Latch) -> io::Result<()> {
        let text = text(latch);
        // A full disk must not keep it set: only another process on this folder needs to be told.
        if let Err(error) = write_private(&self.cleared, text.as_bytes()) {
            tracing::warn!(%error, "that the kill switch was cleared could not be written down");
        }
        remove(&self.set)?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

fn open(file: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NONBLOCK).open(file)
}

fn there(file: File) -> Option<There> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let Written { id, set_at, told } = serde_json::from_str(&text).ok()?;
    let set_at = set_at.filter(|time| humantime::parse_rfc3339_weak(time).is_ok());
    Some(There { id: Name::new(&id).ok()?, set_at, told })
}

fn text(latch: &Latch) -> String {
    let Latch { id, set_at, told, .. } = latch;
    json!({ "id": id.as_str(), "set_at": set_at, "told": told }).to_string() + "\n"
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_descriptors_finds_a_file_that_is_there_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let files = Folder::at(folder.path()).unwrap();
        let exhausted = io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
        assert_eq!(files.without_reading(&exhausted), Found::Nothing);
        std::fs::write(folder.path().join("killswitch"), "").unwrap();
        assert_eq!(files.without_reading(&exhausted), Found::Set(None));
        let absent = io::ErrorKind::NotFound.into();
        assert_eq!(files.without_reading(&absent), Found::Unsure, "it came in between");
    }
}
