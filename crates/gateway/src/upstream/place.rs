//! A place for a request at an endpoint: chosen by the balancer, counted while the request is out.
//!
//! When every endpoint has as many requests out as it may, a request waits a little for one to
//! end, if not too many wait already.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::Notify;

use super::balance::{self, Balance, Choice, Load, NoChoice, Pick};
use super::{Endpoint, Failed, Upstream, hash, slow_start};

/// Whoever waits for room looks again so often, whatever wakes it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Requests of one upstream that wait for room, of all workers.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: AtomicUsize,
    freed: Notify,
}

impl Queue {
    fn join(&self, most: usize) -> Option<Waiting<'_>> {
        let waiting = Waiting(self);
        (self.waiting.fetch_add(1, Ordering::SeqCst) < most).then_some(waiting)
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts a request out when it has ended, however it ends.
#[derive(Debug)]
pub(crate) struct InFlight(pub(super) Arc<Endpoint>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.health.end();
        if self.0.queue.waiting.load(Ordering::SeqCst) > 0 {
            self.0.queue.freed.notify_one();
        }
    }
}

/// Where a request may go, and where it has been.
#[derive(Debug)]
pub(crate) struct Aim {
    endpoints: Arc<[Arc<Endpoint>]>,
    key: Option<u64>,
    tried: Vec<usize>,
    may_return: bool,
}

impl Aim {
    /// Of a request with these headers, at no endpoint yet.
    pub(crate) fn new(upstream: &Upstream, headers: &HeaderMap) -> Aim {
        let key = match &upstream.config.balance {
            Balance::LeastRequest | Balance::RoundRobin => None,
            Balance::Hash(name) => headers.get(name).map(|value| hash::digest(value.as_bytes())),
        };
        Aim { endpoints: upstream.endpoints(), key, tried: Vec::new(), may_return: false }
    }

    /// Goes elsewhere next. If there is nobody else, it `may_return`.
    pub(crate) fn leave(&mut self, index: usize, may_return: bool) {
        self.tried.push(index);
        self.may_return = may_return;
    }

    /// Whether there is somewhere to go.
    pub(crate) fn has_another(&self) -> bool {
        self.may_return || self.tried.len() < self.endpoints.len()
    }
}

impl Upstream {
    /// A place at an endpoint, and its number; waits if all are full.
    pub(crate) async fn place(&self, aim: &Aim) -> Result<(usize, InFlight), Failed> {
        match self.place_now(aim) {
            Ok(place) => return Ok(place),
            Err(NoChoice::Nobody) => return Err(Failed::NoEndpoint),
            Err(NoChoice::Full) => {}
        }
        let placed = match self.queue.join(self.config.max_pending) {
            Some(_waiting) => {
                let soon = Box::pin(self.place_soon(aim));
                tokio::time::timeout(self.config.connect_timeout, soon).await.ok()
            }
            None => None,
        };
        placed.unwrap_or_else(|| {
            self.metrics.overloaded.inc();
            Err(Failed::Overloaded)
        })
    }

    async fn place_soon(&self, aim: &Aim) -> Result<(usize, InFlight), Failed> {
        loop {
            let mut freed = std::pin::pin!(self.queue.freed.notified());
            // Listens before it looks, so that no end is missed in between.
            freed.as_mut().enable();
            match self.place_now(aim) {
                Ok(place) => return Ok(place),
                Err(NoChoice::Nobody) => return Err(Failed::NoEndpoint),
                // An end may wake one who cannot use it, and a return to health wakes nobody.
                Err(NoChoice::Full) => {
                    let _freed_or_not = tokio::time::timeout(LOOK_EVERY, freed).await;
                }
            }
        }
    }

    fn place_now(&self, aim: &Aim) -> Result<(usize, InFlight), NoChoice> {
        let most = self.config.max_connections;
        // Workers may take the last place of an endpoint from each other; then another is chosen.
        for _again in 0..=aim.endpoints.len() {
            let chosen = match self.choose(aim, &aim.tried) {
                Err(NoChoice::Nobody) if aim.may_return => self.choose(aim, &[]),
                chosen => chosen,
            };
            let Choice { index, panic } = chosen?;
            let endpoint = aim.endpoints.get(index).ok_or(NoChoice::Nobody)?;
            if endpoint.health.begin(most) {
                if panic {
                    self.metrics.panic.inc();
                }
                return Ok((index, InFlight(Arc::clone(endpoint))));
            }
        }
        Err(NoChoice::Full)
    }

    fn choose(&self, aim: &Aim, tried: &[usize]) -> Result<Choice, NoChoice> {
        let now_us = self.now_us();
        let loads = aim.endpoints.iter().map(|endpoint| self.load(endpoint, now_us));
        let pick = match (&self.config.balance, aim.key) {
            (Balance::Hash(_), Some(key)) => Pick::Key(key),
            (Balance::LeastRequest | Balance::Hash(_), _) => Pick::Least,
            (Balance::RoundRobin, _) => Pick::Turn(self.turn.fetch_add(1, Ordering::Relaxed)),
        };
        let panic_percent = self.config.panic_percent;
        balance::choose(loads, panic_percent, tried, pick, |n| fastrand::u64(..n))
    }

    fn load(&self, endpoint: &Endpoint, now_us: u64) -> Load {
        let health = &endpoint.health;
        let in_flight = health.in_flight();
        let weight = endpoint.weight.load(Ordering::Relaxed);
        let share = slow_start::share(health.returned_us(), now_us, self.config.slow_start);
        Load {
            usable: health.is_usable(now_us),
            has_room: in_flight < self.config.max_connections,
            in_flight: u64::try_from(in_flight).unwrap_or(u64::MAX),
            weight,
            ramped: weight * share,
            id: endpoint.id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_a_bound_and_a_place_is_free_again() {
        let queue = Queue::default();
        let (one, two) = (queue.join(2), queue.join(2));
        assert!(one.is_some() && two.is_some() && queue.join(2).is_none());
        assert_eq!(queue.waiting(), 2);
        drop(one);
        assert!(queue.join(2).is_some());
        assert!(Queue::default().join(0).is_none());
    }
}
