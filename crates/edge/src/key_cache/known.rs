//! A key with its holder, immutable but for the time of its last use, and how such entries are
//! found: by the stored form of the key, which is as good as random to whoever lacks the pepper.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::{BucketKey, VersionSource};
use wire::key::KeyHash;
use wire::plan::Scope;
use wire::policy::{ClientValue, KeyState, KeyValue};

use super::log::KeyLine;
use crate::identify::bucket_of;

/// A key and its holder.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) key_id: String,
    pub(crate) client: Arc<ClientValue>,
    state: KeyState,
    /// Of the key or of this secret, whichever ends first.
    until_ms: Option<u64>,
    pub(super) key_revision: u64,
    of_client: BucketKey,
    of_key: BucketKey,
    pub(super) used_ms: AtomicU64,
}

impl Known {
    pub(super) fn new(
        source: VersionSource,
        hash: &KeyHash,
        key: &KeyValue,
        client: Arc<ClientValue>,
        used_ms: u64,
    ) -> Known {
        let bucket = |scope| bucket_of(source, scope, &client.id, Some(&key.id));
        let secret = key.secrets.iter().find(|secret| secret.hash == *hash);
        let ends = [key.expires_at, secret.and_then(|secret| secret.valid_until)];
        Known {
            of_client: bucket(Scope::Client),
            of_key: bucket(Scope::Key),
            key_id: key.id.clone(),
            state: key.state,
            until_ms: ends.into_iter().flatten().min(),
            key_revision: key.revision,
            used_ms: AtomicU64::new(used_ms),
            client,
        }
    }

    /// As it was known before a restart.
    pub(super) fn restored(
        source: VersionSource,
        line: KeyLine,
        client: Arc<ClientValue>,
    ) -> Known {
        let bucket = |scope| bucket_of(source, scope, &client.id, Some(&line.key_id));
        Known {
            of_client: bucket(Scope::Client),
            of_key: bucket(Scope::Key),
            state: line.state,
            until_ms: line.until_ms,
            key_revision: line.revision,
            used_ms: AtomicU64::new(line.used_ms),
            key_id: line.key_id,
            client,
        }
    }

    /// What a restart needs of it.
    pub(super) fn line(&self, hash: KeyHash) -> KeyLine {
        KeyLine {
            hash,
            key_id: self.key_id.clone(),
            client: self.client.id.clone(),
            state: self.state,
            until_ms: self.until_ms,
            revision: self.key_revision,
            used_ms: self.used_ms.load(Ordering::Relaxed),
        }
    }

    /// A caller without a key, of the client that all such callers are counted as.
    pub(crate) fn anonymous(client: Arc<ClientValue>, bucket: BucketKey) -> Known {
        Known {
            key_id: String::new(),
            client,
            state: KeyState::Active,
            until_ms: None,
            key_revision: 0,
            of_client: bucket,
            of_key: bucket,
            used_ms: AtomicU64::new(0),
        }
    }

    /// The key's public id, if there is a key.
    pub(crate) fn key_id(&self) -> Option<&str> {
        (!self.key_id.is_empty()).then_some(self.key_id.as_str())
    }

    /// The same key, after a change of its client.
    pub(super) fn held_by(&self, client: Arc<ClientValue>) -> Known {
        Known {
            key_id: self.key_id.clone(),
            client,
            used_ms: AtomicU64::new(self.used_ms.load(Ordering::Relaxed)),
            ..*self
        }
    }

    /// Whether the key opens at `now_ms`.
    pub(crate) fn opens(&self, now_ms: u64) -> bool {
        self.state == KeyState::Active && self.until_ms.is_none_or(|until| now_ms < until)
    }

    /// The bucket pair that its requests share.
    pub(crate) fn bucket(&self, scope: Scope) -> BucketKey {
        match scope {
            Scope::Client => self.of_client,
            Scope::Key => self.of_key,
        }
    }
}

/// A stored form as a map key. It is a keyed hash already, so its first bytes are as good as any
/// hash of it, and nobody without the pepper can choose them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored(pub(super) KeyHash);

impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (first, _) = self.0.bytes().split_first_chunk().expect("a stored form is 32 bytes");
        state.write_u64(u64::from_le_bytes(*first));
    }
}

/// Takes a number as it is.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
