//! Which bucket pair: a digest of the scope's identity, and its spelling in Redis.
//!
//! The digest takes every part with its length, so `("a","b:c")` and `("a:b","c")` differ, and no
//! byte of an identity reaches the store: braces in it cannot choose a Cluster slot, and the key's
//! length does not depend on it. Route, gateway and plan are no part of it: one client, one bucket.

use std::fmt;

/// Whose tokens are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScopeId<'a> {
    /// All API keys of a client share one bucket pair.
    Client(&'a str),
    /// Each API key of a client has its own.
    ApiKey {
        /// The client.
        client: &'a str,
        /// The API key's public id.
        key: &'a str,
    },
    /// Anonymous callers: an address prefix.
    Address {
        /// The plan that anonymous callers of this route have.
        plan: &'a str,
        /// The address or prefix in canonical text.
        prefix: &'a str,
    },
}

/// Who numbers the plan versions. Buckets of different sources are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VersionSource {
    /// Revisions of the control plane.
    ControlPlane,
    /// A standalone gateway's file.
    File,
}

/// Names one bucket pair: 128 bits, spelled `weir:{<32 hex digits>}` in Redis (one Cluster slot).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey([u8; 16]);

impl BucketKey {
    /// The bucket pair of a scope.
    pub fn new(source: VersionSource, scope: ScopeId<'_>) -> BucketKey {
        let source = match source {
            VersionSource::ControlPlane => "control-plane",
            VersionSource::File => "file",
        };
        let parts: [&str; 4] = match scope {
            ScopeId::Client(client) => [source, "client", client, ""],
            ScopeId::ApiKey { client, key } => [source, "key", client, key],
            ScopeId::Address { plan, prefix } => [source, "address", plan, prefix],
        };
        let mut hasher = blake3::Hasher::new_derive_key("weir bucket key 1");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let mut bytes = [0; 16];
        hasher.finalize_xof().fill(&mut bytes);
        BucketKey(bytes)
    }

    /// The digest itself.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("weir:{")?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketKey({self})")
    }
}
