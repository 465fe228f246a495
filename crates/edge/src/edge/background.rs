//! The tasks of an edge, and their end.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::TICK_EVERY;
use limiter_core::store::BucketStore;

use super::{Background, Edge, signed};
use crate::key_cache::{lookup, usage};
use crate::plan_source::{ControlPlane, PolicySource, http};

/// Idle limiter entries, and positive keys beyond their bound, are looked for this often.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(5);

/// Time for giving borrowed tokens back at the end.
const LEASES_RETURN_MAX: Duration = Duration::from_secs(1);

impl<S: BucketStore> Edge<S> {
    /// The tasks that must run while the edge does. They end at [`Edge::finish`].
    pub fn background(self: &Arc<Self>) -> Vec<Background> {
        let mut tasks: Vec<Background> = Vec::new();
        let edge = Arc::clone(self);
        tasks.push(("edge leases", Box::pin(async move { edge.keep_leases().await })));
        let edge = Arc::clone(self);
        tasks.push(("edge housekeeping", Box::pin(async move { edge.keep_house().await })));
        if let PolicySource::ControlPlane(plane) = &self.source {
            let lookups = lookup::run(Arc::clone(&self.keys), Arc::clone(plane), self.stopped());
            tasks.push(("edge key look-ups", Box::pin(lookups)));
            let (keys, plane, stop) = (Arc::clone(&self.keys), Arc::clone(plane), self.stopped());
            let usage = usage::run(keys, Arc::clone(&plane), self.gateway.clone(), stop);
            tasks.push(("edge use of keys", Box::pin(usage)));
            let edge = Arc::clone(self);
            tasks.push(("edge policy feed", Box::pin(async move { edge.follow(&*plane).await })));
        }
        if let Some(keeper) = &self.keeper {
            let (shelf, keys) = (Arc::clone(&self.shelf), Arc::clone(&self.keys));
            let keeping = Arc::clone(keeper).run(shelf, keys, self.stopped());
            tasks.push(("edge state folder", Box::pin(keeping)));
        }
        if let Some(outbox) = &self.outbox {
            let (outbox, stop) = (Arc::clone(outbox), self.stopped());
            tasks.push(("edge batches", Box::pin(async move { outbox.run(stop).await })));
        }
        tasks
    }

    async fn follow(&self, plane: &dyn ControlPlane) {
        let target = http::Target {
            shelf: &self.shelf,
            keys: &self.keys,
            keeper: self.keeper.as_ref(),
            bootstrap: self.bootstrap.as_deref(),
            clock: &*self.clock,
            pepper_id: self.pepper.id(),
            metrics: &self.metrics,
            set_fleet: &|gateways| self.limiter.set_fleet(gateways),
        };
        self.feed.follow(plane, &target, self.stopped()).await;
    }

    async fn keep_leases(&self) {
        let mut stop = self.stopped();
        let mut ticks = tokio::time::interval(TICK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ended = stop.wait_for(|stopped| *stopped) => return,
                _tick = ticks.tick() => self.limiter.tick(),
            }
        }
    }

    async fn keep_house(&self) {
        let mut stop = self.stopped();
        let mut ticks = tokio::time::interval(HOUSEKEEPING_EVERY);
        loop {
            tokio::select! {
                _ended = stop.wait_for(|stopped| *stopped) => return,
                _tick = ticks.tick() => {}
            }
            self.limiter.sweep();
            self.keys.trim();
            self.metrics.keys_known.set(signed(self.keys.len() as u64));
            if let Some(age) = self.policy_age() {
                self.metrics.policy_age_seconds.set(signed(age.as_secs()));
            }
        }
    }

    fn stopped(&self) -> tokio::sync::watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Ends the background tasks, gives borrowed tokens back, cuts the last batch and sends what is
    /// not acknowledged yet, for at most `within`. Whether everything was.
    pub async fn finish(&self, within: Duration) -> bool {
        self.stop.send_replace(true);
        let returning = LEASES_RETURN_MAX.min(within);
        // What is not returned in time ends by itself.
        let _returned = tokio::time::timeout(returning, self.limiter.drain()).await;
        match &self.outbox {
            Some(outbox) => outbox.finish(within).await,
            None => true,
        }
    }
}
