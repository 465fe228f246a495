//! How a client's bucket stands, read without taking anything.

use std::sync::Arc;

use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{Contract, Reply};
use wire::plan::{PlanLimits, Scope};
use wire::policy::ClientValue;
use wire::rollout::Phase;

use super::Edge;
use crate::identify;
use crate::plan_book::{PlanEntry, version_at};

/// A client's bucket as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The client as known here.
    pub client: ClientValue,
    /// Its plan.
    pub plan: Arc<PlanEntry>,
    /// Its phase.
    pub phase: Phase,
    /// The bucket pair; `None` under an unlimited plan.
    pub bucket: Option<Reply>,
}

/// Why a client cannot be inspected here.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// None of its keys was seen here.
    #[error("no key of this client was seen here")]
    ClientUnknown,
    /// Its plan has no numbers here.
    #[error("the client's plan {0} is unknown here or not valid")]
    PlanInvalid(String),
    /// Its keys have a bucket each.
    #[error("every key of this client has its own bucket: name one")]
    KeyNeeded,
    /// The store did not answer.
    #[error("the bucket store did not answer")]
    Store(#[source] StoreError),
}

impl<S: BucketStore> Edge<S> {
    /// Reads a client's bucket pair without changing it. Under a plan whose keys have a bucket
    /// each, `key_id` says which. The client must have been seen here.
    pub async fn inspect(
        &self,
        client: &str,
        key_id: Option<&str>,
    ) -> Result<Inspection, InspectError> {
        let client = self.keys.client(client).ok_or(InspectError::ClientUnknown)?;
        self.inspect_as(&client, key_id).await
    }

    /// As [`Edge::inspect`], for a client that the caller knows.
    pub async fn inspect_as(
        &self,
        client: &ClientValue,
        key_id: Option<&str>,
    ) -> Result<Inspection, InspectError> {
        let now_ms = self.now_for(client);
        let (plan, phase) = {
            let book = self.shelf.current();
            let plan = book.as_ref().and_then(|book| book.plan(&client.plan));
            let plan = plan.and_then(|plan| plan.for_client(client, now_ms));
            let phase = book.as_ref().map(|book| self.shelf.rule_of(book, &client.id).phase);
            (plan, phase.unwrap_or_default())
        };
        let plan = plan.ok_or_else(|| InspectError::PlanInvalid(client.plan.clone()))?;
        let bucket = match (plan.limits, plan.scope, key_id) {
            (PlanLimits::Unlimited, _, _) => None,
            (PlanLimits::Limited(_), Scope::Key, None) => return Err(InspectError::KeyNeeded),
            (PlanLimits::Limited(limits), scope, key_id) => {
                let key = identify::bucket_of(self.versions, scope, &client.id, key_id);
                let contract = Contract {
                    key,
                    plan: plan.numbers_for(limits, client, now_ms),
                    reset: version_at(client.reset_revision),
                    failure: plan.failure,
                };
                Some(self.limiter.inspect(&contract).await.map_err(InspectError::Store)?)
            }
        };
        Ok(Inspection { client: client.clone(), plan, phase, bucket })
    }
}
