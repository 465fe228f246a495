//! Room ③: from a presented key to a subject: whose bucket, under which plan, in which phase.
//!
//! A key that was seen before costs one keyed hash and one look into a map. A key of our own
//! spelling with a wrong tag is refused without asking anybody. Only a key that could exist and is
//! not known yet waits for a look-up, and then for one second at most.

use std::sync::Arc;

use limiter_core::{BucketKey, ScopeId, VersionSource};
use wire::key::{self, KeyHash, KeyShape, Pepper};
use wire::plan::Scope;
use wire::policy::ClientState;

use crate::call::{Presented, Refusal};
use crate::key_cache::{Found, KeyCache, Known};
use crate::plan_book::{PhaseRule, PlanBook, PlanEntry, Shelf};
use crate::ticket::RecordSeed;

/// Who is calling, as the policy in force sees it.
pub(crate) struct Subject {
    pub(crate) known: Arc<Known>,
    /// Absent where the plan is unknown or was never valid.
    pub(crate) plan: Option<Arc<PlanEntry>>,
    pub(crate) rule: PhaseRule,
    pub(crate) revision: u64,
    pub(crate) record: Option<RecordSeed>,
}

impl Subject {
    /// `book` is the one that stands on the shelf now.
    pub(crate) fn new(
        known: Arc<Known>,
        book: &PlanBook,
        shelf: &Shelf,
        request_id: &str,
    ) -> Subject {
        let client = known.client.id.as_str();
        let record = book.rollout().map(|_active| RecordSeed {
            request_id: request_id.into(),
            // Anonymous callers are no sample of anybody.
            sampled: known.key_id().is_some() && book.samples(client),
        });
        Subject {
            plan: book.plan(&known.client.plan).cloned(),
            rule: shelf.rule_of(book, client),
            revision: book.revision(),
            record,
            known,
        }
    }
}

/// The holder of a presented key, if the key opens at `now_ms`.
pub(crate) async fn holder(
    presented: Presented<'_>,
    keys: &KeyCache,
    pepper: &Pepper,
    now_ms: u64,
) -> Result<Arc<Known>, Refusal> {
    let text = match presented {
        Presented::Key(text) => text,
        Presented::Nothing | Presented::Address(_) => return Err(Refusal::KeyMissing),
    };
    let hash = KeyHash::of_key(text, pepper);
    let known = match keys.get(&hash, now_ms) {
        Some(known) => known,
        // Apart, for it is rare and large.
        None => Box::pin(unseen(text, hash, keys, pepper, now_ms)).await?,
    };
    if known.opens(now_ms) { Ok(known) } else { Err(Refusal::KeyInvalid) }
}

/// A key that is not in the cache.
async fn unseen(
    text: &str,
    hash: KeyHash,
    keys: &KeyCache,
    pepper: &Pepper,
    now_ms: u64,
) -> Result<Arc<Known>, Refusal> {
    match key::shape(text, pepper) {
        KeyShape::Forged => return Err(Refusal::KeyInvalid),
        KeyShape::Ours | KeyShape::Foreign => {}
    }
    match keys.find(hash, now_ms).await {
        Found::Known(known) => Ok(known),
        Found::Nobody => Err(Refusal::KeyInvalid),
        Found::NotTold { retry } => Err(Refusal::KeyUnverified { retry }),
    }
}

/// What a connection came in with that outlives its request, to ask later whether it still may
/// stay. Of a key it keeps the stored form only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass(Option<KeyHash>);

impl Pass {
    pub(crate) fn of(presented: Presented<'_>, pepper: &Pepper) -> Pass {
        Pass(match presented {
            Presented::Key(text) => Some(KeyHash::of_key(text, pepper)),
            Presented::Nothing | Presented::Address(_) => None,
        })
    }

    /// Whether its key would still open at `now_ms`. A key that is not known any more is asked
    /// about again; as long as nobody can be asked, what was good stays good.
    pub(crate) async fn is_good(self, keys: &KeyCache, now_ms: u64) -> bool {
        let Some(hash) = self.0 else { return true };
        let known = match keys.get(&hash, now_ms) {
            Some(known) => known,
            None => match keys.find(hash, now_ms).await {
                Found::Known(known) => known,
                Found::Nobody => return false,
                Found::NotTold { .. } => return true,
            },
        };
        known.opens(now_ms) && may_call(&known).is_ok()
    }
}

/// Whether the holder may call at all. Judged in every phase.
pub(crate) fn may_call(known: &Known) -> Result<(), Refusal> {
    match known.client.state {
        ClientState::Active => Ok(()),
        ClientState::Suspended => Err(Refusal::ClientSuspended),
    }
}

/// The bucket pair of a client's key. Neither route, gateway nor plan is part of it: wherever and
/// under whatever numbers the client calls, it is one bucket.
pub(crate) fn bucket_of(
    source: VersionSource,
    scope: Scope,
    client: &str,
    key_id: Option<&str>,
) -> BucketKey {
    match (scope, key_id) {
        (Scope::Key, Some(key)) => BucketKey::new(source, ScopeId::ApiKey { client, key }),
        (Scope::Key, None) | (Scope::Client, _) => BucketKey::new(source, ScopeId::Client(client)),
    }
}
