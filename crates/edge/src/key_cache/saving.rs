//! What the disk does not know yet: which keys and clients changed since it was written last, and as
//! of which revision all of them are known. Nothing here touches the disk or waits for it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wire::key::KeyHash;
use wire::policy::{ClientValue, FoundKey, Object};

use super::log::{Entry, KeyLine, ReadLog};
use super::{Index, KeyCache, Known, Newer, Stored, is_sound};

/// Changes that are remembered one by one, keys and clients each; beyond it everything is written.
const CHANGES_MAX: usize = 65_536;

/// A revision of a history that everything known here is as of, or newer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AsOf {
    pub(crate) history: String,
    pub(crate) revision: u64,
}

/// What changed.
#[derive(Debug, Default)]
pub(super) struct Unsaved {
    /// Without a disk nothing is remembered.
    wanted: bool,
    keys: HashSet<KeyHash>,
    clients: HashSet<String>,
    overflowed: bool,
    as_of: Option<AsOf>,
}

impl Unsaved {
    pub(super) fn key(&mut self, hash: KeyHash) {
        if self.room(self.keys.len()) {
            self.keys.insert(hash);
        }
    }

    pub(super) fn client(&mut self, id: &str) {
        if self.room(self.clients.len()) && !self.clients.contains(id) {
            self.clients.insert(id.to_owned());
        }
    }

    /// The feed stands here. While known keys are asked for again nothing is as of any revision.
    pub(super) fn reached(&mut self, revision: u64) {
        if let Some(as_of) = &mut self.as_of {
            as_of.revision = as_of.revision.max(revision);
        }
    }

    fn room(&mut self, taken: usize) -> bool {
        self.overflowed |= self.wanted && CHANGES_MAX <= taken;
        self.wanted && !self.overflowed
    }

    fn take(&mut self) -> (HashSet<KeyHash>, HashSet<String>) {
        self.overflowed = false;
        (std::mem::take(&mut self.keys), std::mem::take(&mut self.clients))
    }
}

/// What is to be written.
#[derive(Debug)]
pub(crate) enum Changes {
    /// These, after what is there.
    Some(Vec<Entry>),
    /// Too much changed: all that is known.
    TooMany,
}

impl KeyCache {
    /// From now on changes are remembered until they are written.
    pub(crate) fn remember_changes(&self) {
        self.index.lock().unsaved.wanted = true;
    }

    /// What was written last cannot be relied on.
    pub(crate) fn save_everything(&self) {
        self.index.lock().unsaved.overflowed = true;
    }

    /// All that is known is as of a revision, or newer.
    pub(crate) fn in_step(&self, as_of: AsOf) {
        self.index.lock().unsaved.as_of = Some(as_of);
    }

    /// What changed since the last call, and what everything is as of with it.
    pub(crate) fn unsaved(&self) -> (Changes, Option<AsOf>) {
        let index = &mut *self.index.lock();
        let as_of = index.unsaved.as_of.clone();
        if index.unsaved.overflowed {
            return (Changes::TooMany, as_of);
        }
        let (keys, clients) = index.unsaved.take();
        let known_clients = clients.iter().filter_map(|id| index.clients.get(id));
        let mut entries: Vec<Entry> =
            known_clients.map(|slot| Entry::Client(Arc::clone(&slot.value))).collect();
        let known = self.known.pin();
        entries.extend(keys.into_iter().map(|hash| match known.get(&Stored(hash)) {
            Some(known) => Entry::Key(known.line(hash)),
            None => Entry::Gone(hash),
        }));
        (Changes::Some(entries), as_of)
    }

    /// All that is known, one by one. What changes meanwhile counts as changed after it.
    pub(crate) fn everything(
        &self,
        mut write: impl FnMut(Entry) -> io::Result<()>,
    ) -> io::Result<Option<AsOf>> {
        let as_of = {
            let index = &mut *self.index.lock();
            index.unsaved.take();
            index.unsaved.as_of.clone()
        };
        let mut clients: HashMap<String, u64> = HashMap::new();
        for (stored, known) in &self.known.pin() {
            let client = &known.client;
            if clients.get(&client.id).is_none_or(|written| *written < client.revision) {
                clients.insert(client.id.clone(), client.revision);
                write(Entry::Client(Arc::clone(client)))?;
            }
            write(Entry::Key(known.line(stored.0)))?;
        }
        Ok(as_of)
    }

    /// Takes what a log says, beside what was asked for meanwhile.
    pub(crate) fn restore(&self, log: ReadLog) -> usize {
        let clients: HashMap<String, Arc<ClientValue>> =
            log.clients.into_iter().map(|(id, client)| (id, Arc::new(client))).collect();
        let index = &mut *self.index.lock();
        let restores = |(hash, line): (KeyHash, KeyLine)| {
            let Some(client) = clients.get(&line.client) else { return false };
            let client = index.clients.get(&line.client).map_or(client, |slot| &slot.value);
            let known = Known::restored(self.source, line, Arc::clone(client));
            self.add(index, hash, known)
        };
        log.keys.into_iter().map(restores).filter(|restored| *restored).count()
    }

    fn add(&self, index: &mut Index, hash: KeyHash, known: Known) -> bool {
        if self.known.pin().contains_key(&Stored(hash)) || self.bounds.known <= self.known.len() {
            return false;
        }
        index.add(hash, &known);
        self.known.pin().insert(Stored(hash), Arc::new(known));
        true
    }

    /// Takes the keys of a file that was exported. They were read page by page, as of its policy's
    /// revision or later.
    pub(crate) fn fill(&self, found: Vec<FoundKey>) {
        let index = &mut *self.index.lock();
        let sound = |found: &FoundKey| is_sound(found, u64::MAX);
        for found in found.into_iter().filter(sound).take(self.bounds.known) {
            let hash = found.hash;
            self.put(index, found, Newer::Wins);
            // Nobody has used it here.
            if let Some(known) = self.known.pin().get(&Stored(hash)) {
                known.used_ms.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Index {
    /// The known keys that an object is, or that a client holds.
    pub(super) fn concerned(&self, object: &Object) -> &[KeyHash] {
        match object.name() {
            ("key", id) => self.keys.get(id).map_or(&[], Vec::as_slice),
            ("client", id) => self.clients.get(id).map_or(&[], |slot| &slot.hashes),
            _ => &[],
        }
    }

    fn add(&mut self, hash: KeyHash, known: &Known) {
        let slot = self.clients.entry(known.client.id.clone()).or_insert_with(|| super::Slot {
            value: Arc::clone(&known.client),
            hashes: Vec::new(),
        });
        slot.hashes.push(hash);
        self.keys.entry(known.key_id.clone()).or_default().push(hash);
    }
}
