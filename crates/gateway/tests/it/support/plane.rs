//! A fake control plane: one snapshot, some keys, no changes. And a sink that keeps batches.

use std::sync::{Arc, Mutex};

use edge::{ControlPlane, Evidence, EvidenceError, FeedError, LookupError, Pending};
use wire::batch::{Batch, BatchAck};
use wire::key::{KeyEnv, KeyHash};
use wire::policy::{
    ClientState, ClientValue, FeedAnswer, FeedRequest, FoundKey, KeyState, KeyValue, LookupAnswer,
    LookupRequest, SecretValue, Snapshot,
};
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};
use wire::strict::Problems;

use super::{KEY, pepper};

/// Serves one snapshot for ever.
pub(crate) struct Plane {
    snapshot: Snapshot,
}

impl Plane {
    /// With the plan `pro` as given, and everybody in `phase`.
    pub(crate) fn new(plan: &serde_json::Value, phase: Phase) -> Arc<Plane> {
        let mut problems = Problems::new();
        let plan = wire::plan::PlanSpec::parse("pro", plan, "plan", &mut problems);
        let plan = problems.none_or(plan).expect("the plan of the test is right");
        let rule = RolloutRule { subject: RuleSubject::All, phase, since_revision: 5 };
        let rollout =
            RolloutValue { name: "r".to_owned(), rules: vec![rule], share_bp: 10_000, revision: 5 };
        let snapshot = Snapshot {
            history: "h".to_owned(),
            revision: 5,
            pepper_id: pepper().id(),
            live_gateways: 1,
            plans: vec![plan.to_value(5)],
            rollout: Some(rollout),
            killswitch: None,
        };
        Arc::new(Plane { snapshot })
    }
}

/// The key with this hash and its client.
pub(crate) fn found(hash: KeyHash) -> FoundKey {
    FoundKey {
        hash,
        key: KeyValue {
            id: "k1".to_owned(),
            client: "acme".to_owned(),
            env: KeyEnv::Live,
            state: KeyState::Active,
            expires_at: None,
            secrets: vec![SecretValue { hash, valid_until: None }],
            revision: 5,
        },
        client: ClientValue {
            id: "acme".to_owned(),
            plan: "pro".to_owned(),
            state: ClientState::Active,
            overridden: None,
            reset_revision: 0,
            revision: 5,
        },
    }
}

impl ControlPlane for Plane {
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>> {
        Box::pin(async { Ok(self.snapshot.clone()) })
    }

    fn feed<'a>(&'a self, _: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>> {
        Box::pin(std::future::pending())
    }

    fn lookup<'a>(
        &'a self,
        request: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>> {
        let known = KeyHash::of_key(KEY, &pepper());
        let (found_hashes, missing): (Vec<KeyHash>, Vec<KeyHash>) =
            request.hashes.iter().partition(|hash| **hash == known);
        let found = found_hashes.into_iter().map(found).collect();
        Box::pin(async { Ok(LookupAnswer { revision: 5, found, missing }) })
    }
}

/// Keeps every batch.
#[derive(Default)]
pub(crate) struct Kept(pub(crate) Mutex<Vec<Batch>>);

impl Evidence for Kept {
    fn post<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Result<BatchAck, EvidenceError>> {
        self.0.lock().unwrap().push(batch.clone());
        Box::pin(async { Ok(BatchAck { acked_seq: batch.seq, duplicate: false }) })
    }
}

/// A control plane that nobody can reach.
pub(crate) struct Away;

impl ControlPlane for Away {
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>> {
        Box::pin(async { Err(FeedError::Away("told to be".into())) })
    }

    fn feed<'a>(&'a self, _: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>> {
        Box::pin(async { Err(FeedError::Away("told to be".into())) })
    }

    fn lookup<'a>(
        &'a self,
        _: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>> {
        Box::pin(async { Err(LookupError("told to be".into())) })
    }
}
