//! Small files that are whole or not there: written beside, flushed, renamed, and sealed with a hash
//! at the end, so that a cut or a flipped bit is seen.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The hash in hex, between two line feeds.
const SEAL_BYTES: usize = 66;
/// Only the owner reads what is kept.
const MODE: u32 = 0o600;

/// What became of reading a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    /// As it was written.
    Whole(Vec<u8>),
    /// Never written, or taken away.
    Absent,
    /// Something else than what was written.
    Damaged(String),
}

/// Reads a file of at most `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> Sealed {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most => {
            return Sealed::Damaged(format!("longer than {most} bytes"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Sealed::Absent,
        Err(error) => return Sealed::Damaged(error.to_string()),
    }
    let at = bytes.len().checked_sub(SEAL_BYTES);
    let Some((content, seal)) = at.and_then(|at| bytes.split_at_checked(at)) else {
        return Sealed::Damaged("too short to be whole".to_owned());
    };
    if seal != seal_of(content).as_bytes() {
        return Sealed::Damaged("its hash is another one".to_owned());
    }
    bytes.truncate(bytes.len() - SEAL_BYTES);
    Sealed::Whole(bytes)
}

/// Writes a file whole.
pub(super) fn write(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    replace(folder, name, |file| {
        file.write_all(content)?;
        file.write_all(seal_of(content).as_bytes())
    })
}

fn seal_of(content: &[u8]) -> String {
    format!("\n{}\n", blake3::hash(content).to_hex())
}

/// Puts what `fill` writes in the place of a file, at once and on disk.
pub(super) fn replace(
    folder: &Path,
    name: &str,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let beside = folder.join(format!("{name}.new"));
    let written = private(OpenOptions::new().write(true).create(true).truncate(true), &beside)
        .and_then(|mut file| {
            fill(&mut file)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&beside, folder.join(name)));
    if written.is_err() {
        give_room_back(&beside);
    }
    written?;
    sync(folder)
}

/// A half-written file on a full disk is in the way of everything else.
fn give_room_back(beside: &PathBuf) {
    if std::fs::symlink_metadata(beside).is_ok_and(|data| data.is_file()) {
        // It is written anew before it counts, so nothing is lost if it stays.
        drop(std::fs::remove_file(beside));
    }
}

/// Opens a file that only its owner reads.
pub(super) fn private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.mode(MODE).open(path)
}

/// A rename is on disk when its folder is.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_written_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.a");
        assert_eq!(read(&path, 1_000), Sealed::Absent);
        write(folder.path(), "policy.a", b"what is in force").unwrap();
        assert_eq!(read(&path, 1_000), Sealed::Whole(b"what is in force".to_vec()));
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(read(&path, 1_000), Sealed::Damaged(_)), "cut at {cut}");
        }
        for flipped in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[flipped] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(read(&path, 1_000), Sealed::Damaged(_)), "flipped at {flipped}");
        }
        std::fs::write(&path, &whole).unwrap();
        assert!(matches!(read(&path, 20), Sealed::Damaged(_)), "longer than it may be");
    }

    #[test]
    fn only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "keys.mark", b"x").unwrap();
        let mode = std::fs::metadata(folder.path().join("keys.mark")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
