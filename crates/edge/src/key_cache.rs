//! Keys on demand: who holds which key, as far as somebody has called with it.
//!
//! Reads take no lock. Writers (look-up answers, feed events) share one short lock, and all that
//! decides whether an answer may be believed happens under it: an answer that was read before a
//! change which is already applied here is not taken but asked for again, so a revoked key never
//! comes back through a slow look-up. Bounded: known keys (the longest idle leave first) and the
//! list of keys that nobody holds.

mod known; // one key and its holder
pub(crate) mod log; // how it stands on disk
pub(crate) mod lookup; // single flight, paced
mod recent; // what answers under way cannot know
mod saving; // what the disk does not know yet
pub(crate) mod usage; // when keys were used

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use limiter_core::{Clock, VersionSource};
use parking_lot::Mutex;
use wire::key::KeyHash;
use wire::policy::{Change, ClientValue, FoundKey, KeyValue, LookupAnswer, Object, SecretValue};

use crate::metrics::EdgeMetrics;

pub(crate) use known::Known;
use known::{AsIs, Stored};
use recent::Happened;
use saving::Unsaved;
pub(crate) use saving::{AsOf, Changes};

/// The time of last use is written at most this often: a hot key's entry stays unwritten.
const TOUCH_EVERY_MS: u64 = 1_000;

/// How much a key cache holds and how fast it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheBounds {
    /// Keys with a known holder. Beyond it the longest idle leave.
    pub known: usize,
    /// Keys that nobody holds. Beyond it some are asked for again.
    pub unknown: usize,
    /// How long nobody's key is not asked for again.
    pub unknown_for: Duration,
    /// The same while no feed would tell that somebody has got it.
    pub unknown_without_feed: Duration,
    /// A look-up is given up after this long.
    pub deadline: Duration,
}

impl Default for CacheBounds {
    fn default() -> CacheBounds {
        CacheBounds {
            known: 1_000_000,
            unknown: 65_536,
            unknown_for: Duration::from_secs(30),
            unknown_without_feed: Duration::from_secs(1),
            deadline: Duration::from_secs(1),
        }
    }
}

/// What became of a question about a key.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    /// Somebody holds it; whether it opens is another question.
    Known(Arc<Known>),
    /// Nobody holds it.
    Nobody,
    /// It is not known whether anybody does.
    NotTold {
        /// Worth another try then.
        retry: Duration,
    },
}

/// Who holds which key.
#[derive(Debug)]
pub(crate) struct KeyCache {
    bounds: CacheBounds,
    source: VersionSource,
    clock: Arc<dyn Clock>,
    known: papaya::HashMap<Stored, Arc<Known>, BuildHasherDefault<AsIs>>,
    /// Keys that nobody holds, with the time of that answer.
    unknown: quick_cache::sync::Cache<KeyHash, u64>,
    index: Mutex<Index>,
    feed_alive: AtomicBool,
    flights: lookup::Flights,
    pub(crate) metrics: EdgeMetrics,
}

/// What writers need beside the map itself.
#[derive(Debug, Default)]
struct Index {
    clients: HashMap<String, Slot>,
    keys: HashMap<String, Vec<KeyHash>>,
    /// Newest revision applied, or learned with a snapshot.
    applied: u64,
    /// Every change after this revision that was applied is in `recent`.
    recent_after: u64,
    recent: VecDeque<Happened>,
    /// Grows when a new snapshot makes all answers under way worthless.
    epoch: u64,
    unsaved: Unsaved,
}

#[derive(Debug)]
struct Slot {
    value: Arc<ClientValue>,
    hashes: Vec<KeyHash>,
}

/// What became of an answer.
#[derive(Debug, Default)]
struct Taken {
    /// To be asked for again.
    again: Vec<KeyHash>,
    /// Held by nobody.
    nobodys: Vec<KeyHash>,
}

/// Whether a writer insists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Newer {
    /// The higher revision stays.
    Wins,
    /// Revisions of two histories do not compare: what comes last stays.
    Unknown,
}

impl KeyCache {
    pub(crate) fn new(
        bounds: CacheBounds,
        source: VersionSource,
        clock: Arc<dyn Clock>,
        metrics: EdgeMetrics,
    ) -> KeyCache {
        KeyCache {
            bounds,
            source,
            clock,
            known: papaya::HashMap::default(),
            unknown: quick_cache::sync::Cache::new(bounds.unknown),
            index: Mutex::default(),
            feed_alive: AtomicBool::new(false),
            flights: lookup::Flights::default(),
            metrics,
        }
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().us() / 1_000
    }

    /// The holder of a key, if it is known here.
    pub(crate) fn get(&self, hash: &KeyHash, now_ms: u64) -> Option<Arc<Known>> {
        let known = Arc::clone(self.known.pin().get(&Stored(*hash))?);
        if known.used_ms.load(Ordering::Relaxed) + TOUCH_EVERY_MS <= now_ms {
            known.used_ms.store(now_ms, Ordering::Relaxed);
        }
        Some(known)
    }

    /// Whether it was answered lately that nobody holds a key.
    fn is_nobodys(&self, hash: &KeyHash, now_ms: u64) -> bool {
        let stays = if self.feed_alive.load(Ordering::Relaxed) {
            self.bounds.unknown_for
        } else {
            self.bounds.unknown_without_feed.min(self.bounds.unknown_for)
        };
        let stays = u64::try_from(stays.as_millis()).unwrap_or(u64::MAX);
        self.unknown.get(hash).is_some_and(|since| now_ms < since.saturating_add(stays))
    }

    /// Says whether feed events would arrive now.
    pub(crate) fn set_feed_alive(&self, alive: bool) {
        self.feed_alive.store(alive, Ordering::Relaxed);
    }

    /// Keys with a known holder.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// A client of a known key.
    pub(crate) fn client(&self, id: &str) -> Option<Arc<ClientValue>> {
        self.index.lock().clients.get(id).map(|slot| Arc::clone(&slot.value))
    }

    /// All known keys, to be asked for again.
    pub(crate) fn hashes(&self) -> Vec<KeyHash> {
        self.known.pin().keys().map(|stored| stored.0).collect()
    }

    /// Replaces everything: the keys of a file.
    pub(crate) fn replace_all(&self, found: Vec<FoundKey>) {
        let index = &mut *self.index.lock();
        let listed: std::collections::HashSet<KeyHash> =
            found.iter().map(|found| found.hash).collect();
        self.hashes()
            .iter()
            .filter(|hash| !listed.contains(hash))
            .for_each(|hash| self.remove(index, hash));
        found.into_iter().for_each(|found| self.put(index, found, Newer::Unknown));
    }

    /// A snapshot of `revision` is in force: changes may have been missed before it, so answers
    /// under way are worthless. What is known keeps serving until it was asked for again.
    pub(crate) fn begin_after(&self, revision: u64) {
        let index = &mut *self.index.lock();
        index.epoch += 1;
        index.applied = revision;
        index.recent_after = revision;
        index.recent.clear();
        self.unknown.clear();
    }

    /// Applies what the feed says about keys and clients. `revision` is where the feed stands
    /// after them. The known keys of what is not valid, to be asked for again.
    pub(crate) fn apply(&self, changes: &[Change], revision: u64) -> Vec<KeyHash> {
        let index = &mut *self.index.lock();
        let applied = index.applied;
        let mut unclear = Vec::new();
        for change in changes.iter().filter(|change| change.revision > applied) {
            // Sound or not: an answer from before it is out of date.
            index.happened(change);
            if change.fault().is_some() {
                unclear.extend_from_slice(index.concerned(&change.object));
                continue;
            }
            match &change.object {
                Object::Key { id, value } => {
                    self.apply_key(index, id, value.as_ref(), change.revision);
                }
                Object::Client { id, value } => {
                    self.apply_client(index, id, value.as_ref(), change.revision);
                }
                Object::Plan { .. }
                | Object::Rollout { .. }
                | Object::Killswitch { .. }
                | Object::Unreadable { .. } => {}
            }
        }
        index.applied = index.applied.max(revision);
        index.unsaved.reached(revision);
        unclear
    }

    fn apply_key(&self, index: &mut Index, id: &str, value: Option<&KeyValue>, revision: u64) {
        let secrets: &[SecretValue] = value.map_or(&[], |key| &key.secrets);
        for secret in secrets {
            self.unknown.remove(&secret.hash);
        }
        for hash in index.keys.get(id).cloned().unwrap_or_default() {
            let Some(known) = self.known.pin().get(&Stored(hash)).map(Arc::clone) else { continue };
            if known.key_revision >= revision {
                continue;
            }
            let stays = secrets.iter().any(|secret| secret.hash == hash);
            match value.filter(|key| stays && key.client == known.client.id) {
                None => self.remove(index, &hash),
                Some(key) => {
                    let used_ms = known.used_ms.load(Ordering::Relaxed);
                    let client = Arc::clone(&known.client);
                    let next = Known::new(self.source, &hash, key, client, used_ms);
                    self.known.pin().insert(Stored(hash), Arc::new(next));
                    index.unsaved.key(hash);
                }
            }
        }
    }

    fn apply_client(
        &self,
        index: &mut Index,
        id: &str,
        value: Option<&ClientValue>,
        revision: u64,
    ) {
        let Some(slot) = index.clients.get_mut(id).filter(|slot| slot.value.revision < revision)
        else {
            return;
        };
        match value {
            Some(value) => {
                self.hold(slot, Arc::new(value.clone()));
                index.unsaved.client(id);
            }
            None => slot.hashes.clone().iter().for_each(|hash| self.remove(index, hash)),
        }
    }

    /// Takes an answer read at its revision, asked for in `epoch`, and says what must be asked for
    /// again, because something about it happened after the answer was read.
    fn take(&self, answer: LookupAnswer, asked: &[KeyHash], epoch: u64) -> Taken {
        let index = &mut *self.index.lock();
        let mut taken = Taken::default();
        if epoch != index.epoch || answer.revision < index.recent_after {
            taken.again.extend_from_slice(asked);
            return taken;
        }
        let found = answer.found.into_iter().filter(|found| asked.contains(&found.hash));
        for found in found.filter(|found| is_sound(found, answer.revision)) {
            if index.changed_after(answer.revision, &found.hash, Some(&found)) {
                taken.again.push(found.hash);
            } else {
                self.unknown.remove(&found.hash);
                self.put(index, found, Newer::Wins);
            }
        }
        for hash in answer.missing.into_iter().filter(|hash| asked.contains(hash)) {
            if index.changed_after(answer.revision, &hash, None) {
                taken.again.push(hash);
            } else {
                self.remove(index, &hash);
                self.unknown.insert(hash, self.now_ms());
                taken.nobodys.push(hash);
            }
        }
        taken
    }

    /// Takes an answer about known keys; what changed meanwhile stays as it was told. Whether the
    /// answer knew all that happened.
    pub(crate) fn take_again(&self, answer: LookupAnswer, asked: &[KeyHash]) -> bool {
        let epoch = self.epoch();
        self.take(answer, asked, epoch).again.is_empty()
    }

    /// Takes an answer about keys that were known before a new snapshot.
    pub(crate) fn reconcile(&self, answer: LookupAnswer) {
        let index = &mut *self.index.lock();
        answer.missing.iter().for_each(|hash| self.remove(index, hash));
        // What fails its check stays as it was known.
        let sound = |found: &FoundKey| is_sound(found, answer.revision);
        for found in answer.found.into_iter().filter(sound) {
            self.put(index, found, Newer::Unknown);
        }
    }

    fn put(&self, index: &mut Index, found: FoundKey, newer: Newer) {
        if self.known.len() >= self.bounds.known && self.may_forget() {
            self.evict(index);
        }
        let FoundKey { hash, key, client } = found;
        let before = self.known.pin().get(&Stored(hash)).map(Arc::clone);
        if newer == Newer::Wins
            && before.as_ref().is_some_and(|before| before.key_revision > key.revision)
        {
            return;
        }
        let used_ms = before.map_or_else(|| self.now_ms(), |b| b.used_ms.load(Ordering::Relaxed));
        let held = index.clients.get(&client.id).map(|slot| Arc::clone(&slot.value));
        let client = match held {
            Some(held) if newer == Newer::Wins && held.revision >= client.revision => held,
            Some(_) | None => Arc::new(client),
        };
        self.remove(index, &hash);
        let slot = index
            .clients
            .entry(client.id.clone())
            .or_insert_with(|| Slot { value: Arc::clone(&client), hashes: Vec::new() });
        if *slot.value != *client {
            self.hold(slot, Arc::clone(&client));
        }
        index.unsaved.client(&client.id);
        index.unsaved.key(hash);
        let known = Known::new(self.source, &hash, &key, client, used_ms);
        slot.hashes.push(hash);
        index.keys.entry(key.id).or_default().push(hash);
        self.known.pin().insert(Stored(hash), Arc::new(known));
    }

    /// A client has changed: so have all of its keys' entries.
    fn hold(&self, slot: &mut Slot, value: Arc<ClientValue>) {
        let known = self.known.pin();
        for hash in &slot.hashes {
            if let Some(before) = known.get(&Stored(*hash)) {
                known.insert(Stored(*hash), Arc::new(before.held_by(Arc::clone(&value))));
            }
        }
        slot.value = value;
    }

    fn remove(&self, index: &mut Index, hash: &KeyHash) {
        let Some(known) = self.known.pin().remove(&Stored(*hash)).map(Arc::clone) else { return };
        index.unsaved.key(*hash);
        if let Some(slot) = index.clients.get_mut(&known.client.id) {
            slot.hashes.retain(|held| held != hash);
            if slot.hashes.is_empty() {
                index.clients.remove(&known.client.id);
            }
        }
        if let Some(hashes) = index.keys.get_mut(&known.key_id) {
            hashes.retain(|held| held != hash);
            if hashes.is_empty() {
                index.keys.remove(&known.key_id);
            }
        }
    }

    /// What a file says is all there is: nobody could be asked for it again.
    fn may_forget(&self) -> bool {
        match self.source {
            VersionSource::ControlPlane => true,
            VersionSource::File => false,
        }
    }

    /// Makes room before it is needed.
    pub(crate) fn trim(&self) {
        let almost_full = self.known.len() > self.bounds.known - self.bounds.known / 100;
        if almost_full && self.may_forget() {
            self.evict(&mut self.index.lock());
        }
    }

    /// The longest idle twentieth leaves.
    fn evict(&self, index: &mut Index) {
        let mut idle: Vec<(u64, KeyHash)> = {
            let known = self.known.pin();
            let used = |known: &Arc<Known>| known.used_ms.load(Ordering::Relaxed);
            known.iter().map(|(stored, known)| (used(known), stored.0)).collect()
        };
        let keep = self.bounds.known - self.bounds.known.div_ceil(20);
        let leaving = idle.len().saturating_sub(keep);
        if let Some(last) = leaving.checked_sub(1) {
            idle.select_nth_unstable_by_key(last, |(used, _)| *used);
            idle.iter().take(leaving).for_each(|(_, hash)| self.remove(index, hash));
        }
    }

    fn epoch(&self) -> u64 {
        self.index.lock().epoch
    }
}

/// The last door for what a look-up tells. A key that fails it is one that nobody told about.
fn is_sound(found: &FoundKey, as_of: u64) -> bool {
    let checked = found.check(as_of);
    if let Err(reason) = &checked {
        tracing::warn!(key = found.key.id, reason, "the answer about a key is not valid");
    }
    checked.is_ok()
}
