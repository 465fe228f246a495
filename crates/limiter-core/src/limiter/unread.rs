//! An answer between its key and its request: whatever becomes of the request, no token is lost.

use std::sync::Arc;

use super::Shared;
use super::entry::Entry;
use super::waiters::{Answer, Waiting};
use crate::decision::{Decision, DegradedReason};
use crate::key::BucketKey;
use crate::limiter::Contract;
use crate::store::BucketStore;

/// An answer that its request has not read yet. A request that is cancelled just when its tokens
/// have come gives them back.
pub(super) struct Unread<'a, S: BucketStore> {
    pub(super) shared: &'a Shared<S>,
    pub(super) entry: &'a Arc<Entry>,
    pub(super) key: BucketKey,
    pub(super) waiting: Option<Waiting>,
}

impl<S: BucketStore> Unread<'_, S> {
    pub(super) async fn read(&mut self) -> Answer {
        let waiting = self.waiting.as_mut().expect("an answer is read once");
        // If it is dropped, the task that made the call is gone, with its runtime.
        let answer = (&mut waiting.answer).await.unwrap_or(Err(DegradedReason::Lost));
        if answer.is_ok() {
            self.waiting = None;
        }
        answer
    }

    pub(super) fn at_once(&mut self) -> Option<Answer> {
        let answer = self.waiting.as_mut()?.answer.try_recv().ok()?;
        if answer.is_ok() {
            self.waiting = None;
        }
        Some(answer)
    }

    /// The call ended without a reply.
    pub(super) fn by_policy(&mut self, contract: &Contract, reason: DegradedReason) -> Decision {
        let (shared, cost) = (self.shared, self.take().cost);
        let now = shared.clock.now();
        self.entry.decide_degraded(contract, cost, &shared.around(), reason, now)
    }

    pub(super) fn take(&mut self) -> Waiting {
        self.waiting.take().expect("an answer is read once")
    }
}

impl<S: BucketStore> Drop for Unread<'_, S> {
    fn drop(&mut self) {
        let Some(mut waiting) = self.waiting.take() else { return };
        // From here on nobody can send any more, so what is looked for is not missed.
        waiting.answer.close();
        if let Ok(Ok(decision)) = waiting.answer.try_recv()
            && decision.is_allowed()
        {
            self.entry.give_back(waiting.cost, self.shared.clock.now());
            self.shared.watch(self.key, self.entry);
        }
    }
}
