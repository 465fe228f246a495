//! Files of certificates and keys, read within a bound; what is wrong with one names its path.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

pub(crate) use daemon::log::chain;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Largest file that is read; what is behind it is not seen.
const FILE_BYTES_MAX: u64 = 1_048_576;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It is not there, or not for us.
    #[error("cannot read {0}")]
    Unreadable(PathBuf, #[source] io::Error),
    /// It can be read and has not what is looked for.
    #[error("{0} holds no {1} in PEM")]
    Empty(PathBuf, &'static str),
    /// What it holds is no certificate, or a key of no kind that TLS knows.
    #[error("{0} is of no use")]
    Unusable(PathBuf, #[source] rustls::Error),
}

/// All certificates of a file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(FileError::Empty(file.to_owned(), "certificate")),
    }
}

/// The first private key of a file.
pub(crate) fn key(file: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(&read(file)?)
        .map_err(|_none| FileError::Empty(file.to_owned(), "private key"))
}

/// The authorities of a file.
pub(crate) fn authorities(file: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(file)? {
        roots.add(authority).map_err(|error| FileError::Unusable(file.to_owned(), error))?;
    }
    Ok(roots)
}

/// Tells contents apart, also from files that cannot be read. Times of files are not asked: a
/// mounted secret may keep them.
pub(crate) fn digest(files: &[&Path]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        read(file).ok().hash(&mut hasher);
    }
    hasher.finish()
}

fn read(file: &Path) -> Result<Vec<u8>, FileError> {
    let unreadable = |error| FileError::Unreadable(file.to_owned(), error);
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}
