//! The upstreams of a configuration: made, kept over a change of it, and ended.
//!
//! One whose table is the same stays the same: its connections, its endpoints' health and its
//! counts go on. One whose table changed begins with what is known of its endpoints, so that one
//! that is down is not tried anew, and with connections of its own. Requests that are out end
//! where they began.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use daemon::{Drain, Tasks};
use edge::limiter::Clock;

use super::Upstream;
use super::metrics::UpstreamFamilies;
use super::names::Resolve;
use crate::config::UpstreamConfig;

/// Longest wait for names before the first request; what is not resolved by then comes later.
const RESOLVE_MAX: Duration = Duration::from_secs(3);

/// What upstreams are made of.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Where names point.
    pub names: Arc<dyn Resolve>,
    /// The gateway's clock.
    pub clock: Arc<dyn Clock>,
    /// Where names are followed and endpoints probed.
    pub tasks: Tasks,
    /// The gateway's end.
    pub drain: Drain,
    /// What upstreams count.
    pub metrics: UpstreamFamilies,
}

/// Upstreams in the order of a configuration, and which of them are new.
#[derive(Debug)]
pub(crate) struct Made {
    /// All of them.
    pub all: Vec<Arc<Upstream>>,
    /// Nobody looks after these yet.
    new: Vec<Arc<Upstream>>,
}

impl Fleet {
    /// The upstreams of `configs`, new ones with their names resolved as far as they are.
    pub(crate) async fn make(&self, configs: &[UpstreamConfig], before: &[Arc<Upstream>]) -> Made {
        let mut made = Made { all: Vec::with_capacity(configs.len()), new: Vec::new() };
        for config in configs {
            let known = before.iter().find(|known| known.config.name == config.name);
            if let Some(same) = known.filter(|known| known.config == *config) {
                made.all.push(Arc::clone(same));
                continue;
            }
            let metrics = self.metrics.of(&config.name);
            let (names, clock) = (Arc::clone(&self.names), Arc::clone(&self.clock));
            let upstream = Upstream::new(config.clone(), metrics, names, clock);
            let upstream = known.into_iter().fold(upstream, Upstream::heir_of);
            let upstream = Arc::new(upstream);
            made.all.push(Arc::clone(&upstream));
            made.new.push(upstream);
        }
        let resolved = futures_util::future::join_all(made.new.iter().map(|up| up.resolve()));
        if tokio::time::timeout(RESOLVE_MAX, resolved).await.is_err() {
            tracing::warn!("not all names of upstreams could be resolved in time");
        }
        made
    }

    /// Looks after the new ones, and no more after those of `before` that are not there any more.
    /// How many of either.
    pub(crate) fn take_over(&self, made: &Made, before: &[Arc<Upstream>]) -> (usize, usize) {
        let stays = |upstream: &Arc<Upstream>| made.all.iter().any(|up| Arc::ptr_eq(up, upstream));
        let mut ended = 0;
        for gone in before.iter().filter(|upstream| !stays(upstream)) {
            ended += 1;
            gone.ended.start();
            if !made.all.iter().any(|upstream| upstream.config.name == gone.config.name) {
                self.metrics.forget(&gone.config.name);
            }
        }
        for upstream in &made.new {
            let (own, drain) = (Arc::clone(upstream), self.drain.clone());
            self.tasks.spawn("upstream names", own.keep_resolved(drain));
            if let Some(rules) = upstream.config.health.clone() {
                let (own, drain) = (Arc::clone(upstream), self.drain.clone());
                self.tasks.spawn("upstream probes", own.keep_probed(rules, drain));
            }
        }
        (made.new.len(), ended)
    }
}

impl Upstream {
    /// Begins with the endpoints of `before` and their health, unless that was found in another
    /// way. Endpoints that it does not name leave when its names are resolved.
    fn heir_of(self, before: &Arc<Upstream>) -> Upstream {
        let (old, new) = (&before.config, &self.config);
        if old.health != new.health || old.tls != new.tls || old.http2 != new.http2 {
            return self;
        }
        let known = before.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let good = new.endpoints.iter().map(|endpoint| {
            let mut names = old.endpoints.iter().zip(known.iter());
            let same = names.find(|(other, _)| other.name == endpoint.name);
            same.map(|(_, found)| found.clone()).unwrap_or_default()
        });
        let good: Vec<_> = good.collect();
        drop(known);
        for (endpoint, found) in new.endpoints.iter().zip(&good) {
            self.dialer.found(&endpoint.name, found);
        }
        let resolved = Mutex::new(good);
        let endpoints = RwLock::new(before.endpoints());
        Upstream { resolved, endpoints, queue: Arc::clone(&before.queue), ..self }
    }
}
