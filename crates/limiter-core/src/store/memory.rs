//! The embedded store: buckets in this process, nothing to install.
//!
//! It is [`crate::bucket::apply`] behind a map of locks, and forgets a bucket when an untouched
//! one would be the same (full, nothing lent). One process is one store: two gateways with
//! embedded stores do not share a limit.

use std::future::{self, Future};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::bucket::{self, State};
use crate::call::{Found, Reply, Request};
use crate::key::BucketKey;
use crate::store::{BucketStore, StoreError};
use crate::time::{Clock, Timestamp};

/// Locks that buckets are spread over: contention of unrelated keys stays small.
const SHARDS: usize = 64;
/// Expired buckets looked for after this many writes to a shard.
const SWEEP_EVERY_WRITES: usize = 1_024;

#[derive(Debug, Default)]
struct Shard {
    buckets: std::collections::HashMap<BucketKey, Kept>,
    writes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    state: State,
    until: Timestamp,
}

/// Buckets in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    shards: [Mutex<Shard>; SHARDS],
}

impl MemoryStore {
    /// An empty store that asks `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> MemoryStore {
        MemoryStore { clock, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Buckets held now, expired ones included until they are swept.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().buckets.len()).sum()
    }

    /// Whether no bucket is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loses every bucket, as a restart would.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.lock().buckets.clear();
        }
    }

    fn shard(&self, key: &BucketKey) -> &Mutex<Shard> {
        let [first, ..] = *key.bytes();
        let index = usize::from(first) % SHARDS;
        self.shards.get(index).expect("the index is reduced modulo the number of shards")
    }

    fn apply(&self, key: &BucketKey, request: &Request) -> Reply {
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let kept = shard.buckets.get(key).filter(|kept| now < kept.until).copied();
        let found = if kept.is_some() { Found::Known } else { Found::Nothing };
        let applied = bucket::apply(kept.map(|kept| kept.state), found, request, now);
        if let Some(keep_ms) = applied.keep_ms {
            let until = now.after(std::time::Duration::from_millis(keep_ms));
            shard.buckets.insert(*key, Kept { state: applied.state, until });
            shard.writes += 1;
            if shard.writes >= SWEEP_EVERY_WRITES {
                shard.writes = 0;
                shard.buckets.retain(|_, kept| now < kept.until);
            }
        }
        applied.reply
    }
}

impl BucketStore for MemoryStore {
    fn call(
        &self,
        key: &BucketKey,
        request: &Request,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        future::ready(Ok(self.apply(key, request)))
    }

    fn sweep(&self) {
        let now = self.clock.now();
        for shard in &self.shards {
            shard.lock().buckets.retain(|_, kept| now < kept.until);
        }
    }
}
