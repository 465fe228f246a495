//! A hasher for keys that are digests already.

use std::hash::{BuildHasher, Hasher};

/// Keys are digests already: eight of their bytes are as good as any hash of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DigestHash;

impl BuildHasher for DigestHash {
    type Hasher = DigestHasher;

    fn build_hasher(&self) -> DigestHasher {
        DigestHasher(0)
    }
}

pub(crate) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
