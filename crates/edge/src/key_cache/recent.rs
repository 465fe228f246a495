//! Changes of keys and clients that were applied lately, to be compared with look-ups under way: an
//! answer from before one of them is out of date.

use wire::key::KeyHash;
use wire::policy::{Change, FoundKey, Object};

use super::Index;

/// Changes that are remembered. An answer older than all of them is asked for again whatever it is
/// about.
const RECENT_MAX: usize = 4_096;

/// A change of a key or a client.
#[derive(Debug)]
pub(super) struct Happened {
    revision: u64,
    subject: Changed,
    hashes: Vec<KeyHash>,
}

#[derive(Debug, PartialEq, Eq)]
enum Changed {
    Key(String),
    Client(String),
}

impl Index {
    pub(super) fn happened(&mut self, change: &Change) {
        let subject = match change.object.name() {
            ("key", id) => Changed::Key(id.to_owned()),
            ("client", id) => Changed::Client(id.to_owned()),
            _ => return,
        };
        let hashes = match &change.object {
            Object::Key { value: Some(key), .. } => {
                key.secrets.iter().map(|secret| secret.hash).collect()
            }
            Object::Key { value: None, .. }
            | Object::Client { .. }
            | Object::Plan { .. }
            | Object::Rollout { .. }
            | Object::Killswitch { .. }
            | Object::Unreadable { .. } => Vec::new(),
        };
        self.recent.push_back(Happened { revision: change.revision, subject, hashes });
        if self.recent.len() > RECENT_MAX
            && let Some(forgotten) = self.recent.pop_front()
        {
            self.recent_after = forgotten.revision;
        }
    }

    /// Whether something about a key, or about its holder, was applied that an answer read at
    /// `revision` cannot know.
    pub(super) fn changed_after(
        &self,
        revision: u64,
        hash: &KeyHash,
        found: Option<&FoundKey>,
    ) -> bool {
        let concerns = |happened: &Happened| {
            let named = found.is_some_and(|found| match &happened.subject {
                Changed::Key(id) => *id == found.key.id,
                Changed::Client(id) => *id == found.client.id,
            });
            named || happened.hashes.contains(hash)
        };
        self.recent.iter().rev().take_while(|last| last.revision > revision).any(concerns)
    }
}
