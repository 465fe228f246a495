//! A Redis that is half a millisecond away: every answer of the real store waits that long more.
//!
//! The runtime's timer counts whole milliseconds, so the waiting is done here: whoever drives the
//! experiment looks at the clock all the time and calls [`Distance::pass_on`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::store::redis::RedisStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{BucketKey, Clock, Reply, Request, SystemClock};
use tokio::sync::{Notify, oneshot};

/// What answers wait for.
#[derive(Debug, Clone)]
pub struct Distance {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    by: Duration,
    clock: SystemClock,
    waits: Mutex<Waits>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waits {
    next: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    /// By number, in ascending order: most are at the front.
    waiting: std::collections::BTreeMap<u64, oneshot::Sender<()>>,
}

impl Distance {
    /// Answers come later by `by`.
    pub fn new(by: Duration, clock: SystemClock) -> Distance {
        let (waits, news) = (Mutex::default(), Notify::new());
        Distance { shared: Arc::new(Shared { by, clock, waits, news }) }
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.shared.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Crosses it once.
    pub async fn cross(&self) {
        let due = self.shared.clock.now().after(self.shared.by).us();
        let (sender, receiver) = oneshot::channel();
        {
            let mut waits = self.waits();
            let number = waits.next;
            waits.next += 1;
            waits.due.push(Reverse((due, number)));
            waits.waiting.insert(number, sender);
        }
        self.shared.news.notify_one();
        // Who drives the experiment has ended: so does everything else.
        drop(receiver.await);
    }

    /// Lets go what has waited long enough; whether anything still waits.
    pub fn pass_on(&self, now_us: u64) -> bool {
        let mut waits = self.waits();
        while let Some(Reverse((due, number))) = waits.due.peek().copied() {
            if due > now_us {
                break;
            }
            waits.due.pop();
            if let Some(sender) = waits.waiting.remove(&number) {
                // Gone: nobody wants the answer any more.
                let _gone = sender.send(());
            }
        }
        !waits.due.is_empty()
    }

    /// Returns when something begins to wait.
    pub async fn news(&self) {
        self.shared.news.notified().await;
    }
}

/// A defect of the store, planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// None.
    Sound,
    /// It lends more than it takes from the bucket.
    Generous,
    /// It does not hear what gateways give back.
    Deaf,
}

/// A real store at a distance.
#[derive(Debug)]
pub struct DistantStore {
    store: RedisStore,
    distance: Distance,
    defect: Defect,
    calls: AtomicU64,
}

impl DistantStore {
    /// Puts `store` there.
    pub fn new(store: RedisStore, distance: Distance, defect: Defect) -> DistantStore {
        DistantStore { store, distance, defect, calls: AtomicU64::new(0) }
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The store itself.
    pub fn near(&self) -> &RedisStore {
        &self.store
    }
}

impl BucketStore for DistantStore {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut request = *request;
        if self.defect == Defect::Deaf {
            request.unused_need = 0;
            request.lease = request.lease.map(|lease| {
                let returned = 0;
                limiter_core::LeaseReport { held: 0, returned, counted: 0, ..lease }
            });
        }
        let reply = self.store.call(key, &request).await;
        self.distance.cross().await;
        reply.map(|mut reply| {
            if self.defect == Defect::Generous {
                reply.lent += reply.lent.div_ceil(10);
            }
            reply
        })
    }

    fn epoch(&self, key: &BucketKey) -> u64 {
        self.store.epoch(key)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn nothing_arrives_before_its_time_and_all_in_order() {
        let clock = SystemClock::new();
        let distance = Distance::new(Duration::from_millis(10), clock);
        let before = clock.now().us();
        let mut first = Box::pin(distance.cross());
        let mut second = Box::pin(distance.cross());
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert!(distance.pass_on(before + 9_999));
        assert!((&mut first).now_or_never().is_none());
        assert!(!distance.pass_on(clock.now().us() + 10_000));
        assert!((&mut second).now_or_never().is_some());
        assert!((&mut first).now_or_never().is_some());
    }
}
