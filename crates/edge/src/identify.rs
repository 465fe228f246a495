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
    /// As it holds for this client now. Absent where the plan is unknown or was never valid.
    pub(crate) plan: Option<Arc<PlanEntry>>,
    pub(crate) rule: PhaseRule,
    pub(crate) revision: u64,
    /// When it was looked at; 0 where nothing about the client depends on it.
    pub(crate) now_ms: u64,
    pub(crate) record: Option<RecordSeed>,
}

impl Subject {
    /// `book` is the one that stands on the shelf now.
    pub(crate) fn new(
        known: Arc<Known>,
        book: &PlanBook,
        shelf: &Shelf,
        request_id: &str,
        now_ms: u64,
    ) -> Subject {
        let client = known.client.id.as_str();
        let record = book.rollout().map(|_active| RecordSeed {
            request_id: request_id.into(),
            // Anonymous callers are no sample of anybody.
            sampled: known.key_id().is_some() && book.samples(client),
        });
        Subject {
            plan: book
                .plan(&known.client.plan)
                .and_then(|plan| plan.for_client(&known.client, now_ms)),
            rule: shelf.rule_of(book, client),
            revision: book.revision(),
            now_ms,
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
    let found = match key::shape(text, pepper) {
        KeyShape::Forged => return Err(Refusal::KeyInvalid),
        KeyShape::Ours => keys.find(hash, now_ms).await,
        KeyShape::Foreign => {
            let imported = KeyHash::of_key_if_imported(text, pepper);
            foreign(hash, imported, keys, now_ms).await
        }
    };
    match found {
        Found::Known(known) => Ok(known),
        Found::Nobody => Err(Refusal::KeyInvalid),
        Found::NotTold { retry } => Err(Refusal::KeyUnverified { retry }),
    }
}

/// The holder of a key that is not spelled like ours: it stands in a file, or it was imported.
/// Both are asked for at once, so which of them it is takes no longer.
async fn foreign(hash: KeyHash, imported: KeyHash, keys: &KeyCache, now_ms: u64) -> Found {
    if let Some(known) = keys.get(&imported, now_ms) {
        return Found::Known(known);
    }
    let (own, imported) = tokio::join!(keys.find(hash, now_ms), keys.find(imported, now_ms));
    match (own, imported) {
        (Found::Known(known), _) | (_, Found::Known(known)) => Found::Known(known),
        (Found::NotTold { retry }, _) | (_, Found::NotTold { retry }) => Found::NotTold { retry },
        (Found::Nobody, Found::Nobody) => Found::Nobody,
    }
}

/// What a connection came in with that outlives its request, to ask later whether it still may
/// stay. Of a key it keeps the stored form only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass(Option<(KeyHash, Option<KeyHash>)>);

impl Pass {
    pub(crate) fn of(presented: Presented<'_>, pepper: &Pepper) -> Pass {
        Pass(match presented {
            Presented::Key(text) => {
                let foreign = key::shape(text, pepper) == KeyShape::Foreign;
                let imported = foreign.then(|| KeyHash::of_key_if_imported(text, pepper));
                Some((KeyHash::of_key(text, pepper), imported))
            }
            Presented::Nothing | Presented::Address(_) => None,
        })
    }

    /// Whether its key would still open at `now_ms`. A key that is not known any more is asked
    /// about again; as long as nobody can be asked, what was good stays good.
    pub(crate) async fn is_good(self, keys: &KeyCache, now_ms: u64) -> bool {
        let Some((hash, imported)) = self.0 else { return true };
        let known = match keys.get(&hash, now_ms) {
            Some(known) => known,
            None => {
                let found = match imported {
                    Some(imported) => foreign(hash, imported, keys, now_ms).await,
                    None => keys.find(hash, now_ms).await,
                };
                match found {
                    Found::Known(known) => known,
                    Found::Nobody => return false,
                    Found::NotTold { .. } => return true,
                }
            }
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
