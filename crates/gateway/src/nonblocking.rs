//! How files are opened that may turn out to be pipes: nobody waits for the other end.

use std::io;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The flag for `OpenOptions::custom_flags`. Regular files do not heed it.
pub(crate) const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// Whether a pipe was not opened for writing because nobody reads it.
pub(crate) fn is_without_reader(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
}
