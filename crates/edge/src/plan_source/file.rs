//! A standalone gateway's policy: what its own file says, already checked, handed over whole.
//!
//! There is no rollout and nobody to look keys up at. The caller gives each version a higher
//! number than any before, also over restarts; plans that did not change keep theirs.

use std::collections::HashMap;
use std::sync::Arc;

use limiter_core::VersionSource;
use wire::key::{KeyEnv, KeyHash};
use wire::plan::PlanSpec;
use wire::policy::{ClientState, ClientValue, FoundKey, KeyState, KeyValue, SecretValue};

/// Buckets of a file are never compared with those of a control plane.
pub(crate) const VERSIONS: VersionSource = VersionSource::File;
/// A file has one history.
pub(crate) const HISTORY: &str = "file";

/// The content of a standalone gateway's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePolicy {
    /// Higher than that of any file before.
    pub revision: u64,
    /// Gateways that share the plans.
    pub gateways: u32,
    /// All plans.
    pub plans: Vec<PlanSpec>,
    /// All clients.
    pub clients: Vec<FileClient>,
    /// All keys. One whose client is not listed opens nothing.
    pub keys: Vec<FileKey>,
}

/// A client in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileClient {
    /// Its id.
    pub id: String,
    /// Its plan's name.
    pub plan: String,
    /// May it call?
    pub state: ClientState,
}

/// A key in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileKey {
    /// Its public id.
    pub id: String,
    /// Whose it is.
    pub client: String,
    /// Its stored form, under the edge's pepper.
    pub hash: KeyHash,
    /// Until when it opens, in milliseconds since 1970.
    pub expires_at: Option<u64>,
}

impl FilePolicy {
    /// The keys with their clients, as a look-up would have found them. A client keeps the
    /// revision of what `before` knows of it while nothing about it changes; a move to another
    /// plan counts as new, because the other plan may be the older one.
    pub(crate) fn found(&self, before: impl Fn(&str) -> Option<Arc<ClientValue>>) -> Vec<FoundKey> {
        let clients: HashMap<&str, ClientValue> = self
            .clients
            .iter()
            .map(|client| {
                let last = before(&client.id).filter(|last| last.plan == client.plan);
                let revision = last.map_or(self.revision, |last| last.revision);
                (client.id.as_str(), client.value(revision))
            })
            .collect();
        let found = |key: &FileKey| {
            let client = clients.get(key.client.as_str())?.clone();
            Some(FoundKey { hash: key.hash, key: key.value(self.revision), client })
        };
        self.keys.iter().filter_map(found).collect()
    }
}

impl FileClient {
    fn value(&self, revision: u64) -> ClientValue {
        ClientValue {
            id: self.id.clone(),
            plan: self.plan.clone(),
            state: self.state,
            overridden: None,
            reset_revision: 0,
            revision,
        }
    }
}

impl FileKey {
    fn value(&self, revision: u64) -> KeyValue {
        KeyValue {
            id: self.id.clone(),
            client: self.client.clone(),
            env: KeyEnv::Live,
            state: KeyState::Active,
            expires_at: self.expires_at,
            secrets: vec![SecretValue { hash: self.hash, valid_until: None }],
            revision,
        }
    }
}
