//! Start here: one question in, one [`Decision`] out, within the deadline whatever the store does.
//!
//! Exact mode: requests of one key that wait at the same time share one call to the store (single
//! flight); a denial is repeated locally until the tokens it waits for can exist; a request that
//! waited for the deadline is decided by the plan's failure policy while its call goes on. The
//! outcome of a call that never answered is unknown: it is neither repeated nor charged again.
//!
//! Cancelling `decide` is safe at every point: tokens granted to a caller who has gone are
//! returned to the store at once.

mod entry;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use papaya::HashMap;

use crate::call::{PlanNumbers, PlanVersion, Reply, Request};
use crate::decision::{Basis, Decision, DegradedReason, Outcome, Wait};
use crate::degraded::FailurePolicy;
use crate::key::BucketKey;
use crate::store::{BucketStore, StoreError};
use crate::time::{Clock, Timestamp};
use crate::units::Cost;

use self::entry::{Entry, Join, Landing};

/// A key that was not asked about for this long is forgotten.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// A key that was decided degraded is remembered longer: its local bucket must not start afresh.
const IDLE_DEGRADED_MAX: Duration = Duration::from_secs(600);

/// What a client may do: which bucket, under which numbers, and what without a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contract {
    /// The bucket pair.
    pub key: BucketKey,
    /// The plan's numbers.
    pub plan: PlanNumbers,
    /// Plan version of the key's last reset; 0 if there was none.
    pub reset: PlanVersion,
    /// What is admitted without a store.
    pub failure: FailurePolicy,
}

/// How a limiter waits.
#[derive(Debug, Clone, Copy)]
pub struct LimiterSettings {
    /// A waiting request is decided after this long at the latest.
    pub deadline: Duration,
}

impl Default for LimiterSettings {
    fn default() -> LimiterSettings {
        LimiterSettings { deadline: Duration::from_millis(5) }
    }
}

/// Decides, over one store. Cheap to clone; all clones are one limiter.
#[derive(Debug)]
pub struct Limiter<S> {
    shared: Arc<Shared<S>>,
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Limiter<S> {
        Limiter { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<S> {
    store: Arc<S>,
    clock: Arc<dyn Clock>,
    settings: LimiterSettings,
    gateways: AtomicU32,
    entries: HashMap<BucketKey, Arc<Entry>>,
}

type StoreCall = Pin<Box<dyn Future<Output = Result<Reply, StoreError>> + Send>>;

impl<S: BucketStore> Limiter<S> {
    /// A limiter over `store`; `clock` is its own monotonic clock, never compared with the store's.
    pub fn new(store: Arc<S>, clock: Arc<dyn Clock>, settings: LimiterSettings) -> Limiter<S> {
        let gateways = AtomicU32::new(1);
        let entries = HashMap::new();
        Limiter { shared: Arc::new(Shared { store, clock, settings, gateways, entries }) }
    }

    /// Tells how many gateways share the plans, for this one's degraded part; at least 1.
    pub fn set_fleet(&self, gateways: u32) {
        self.shared.gateways.store(gateways.max(1), Ordering::Relaxed);
    }

    /// May a request of `cost` pass now?
    pub async fn decide(&self, contract: &Contract, cost: Cost) -> Decision {
        let shared = &self.shared;
        let cost = cost.get();
        if cost > contract.plan.limits.smallest_capacity() {
            let outcome = Outcome::Denied { wait: Wait::Never };
            return Decision { outcome, basis: Basis::Store, standing: None };
        }
        let now = shared.clock.now();
        let entry = shared.entry(&contract.key, now);
        match entry.join(contract, cost, shared.gateways(), now) {
            Join::Decided(decision) => decision,
            Join::Waiting(waiter) => self.wait(&entry, contract, waiter).await,
            Join::Fly(request) => self.fly(entry, contract, cost, request, now).await,
        }
    }

    /// Reads the bucket pair at the store without changing it.
    pub async fn inspect(&self, contract: &Contract) -> Result<Reply, StoreError> {
        let request = Request { reset: contract.reset, ..Request::peek(contract.plan) };
        self.shared.store.call(&contract.key, &request).await
    }

    /// Forgets idle keys, here and in a store that lives in this process; to be called every few
    /// seconds.
    pub fn sweep(&self) {
        self.shared.store.sweep();
        let now = self.shared.clock.now();
        self.shared.entries.pin().retain(|_, entry| {
            let idle_max = if entry.was_degraded() { IDLE_DEGRADED_MAX } else { IDLE_MAX };
            entry.idle(now) < idle_max
        });
    }

    /// Keys remembered now.
    pub fn keys(&self) -> usize {
        self.shared.entries.len()
    }

    /// Makes the call that this request found nobody making. A store that answers at once (the
    /// embedded one) is answered to on the spot; any other call moves to a task, so that it goes
    /// on when this request is decided or gone.
    async fn fly(
        &self,
        entry: Arc<Entry>,
        contract: &Contract,
        cost: u64,
        request: Request,
        sent: Timestamp,
    ) -> Decision {
        let mut guard = Grounded { entry: Some(entry) };
        let entry = guard.entry();
        let mut call = self.shared.call(contract.key, request);
        let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        match first {
            Poll::Ready(result) => {
                let landed = entry.land_alone(cost, self.shared.landing(sent, result));
                guard.done();
                if let Some(request) = landed.next {
                    self.go_on(Arc::clone(&entry), contract.key, request);
                }
                match landed.decision {
                    Ok(decision) => decision,
                    Err(reason) => self.degraded(&entry, contract, cost, reason),
                }
            }
            Poll::Pending => {
                let waiter = entry.wait_for_own(cost);
                let shared = Arc::clone(&self.shared);
                spawn(shared.keep_flying(guard, contract.key, call, sent));
                self.wait(&entry, contract, waiter).await
            }
        }
    }

    /// Waits for the call that others make, no longer than the deadline.
    async fn wait(
        &self,
        entry: &Arc<Entry>,
        contract: &Contract,
        mut waiter: entry::Waiting,
    ) -> Decision {
        let answer = tokio::time::timeout(self.shared.settings.deadline, &mut waiter.answer).await;
        match answer {
            Ok(Ok(Ok(decision))) => decision,
            Ok(Ok(Err(reason))) => self.degraded(entry, contract, waiter.cost, reason),
            // The task that made the call is gone, with its runtime.
            Ok(Err(_gone)) => self.degraded(entry, contract, waiter.cost, DegradedReason::Lost),
            Err(_elapsed) => {
                let now = self.shared.clock.now();
                let gateways = self.shared.gateways();
                entry.give_up(contract, waiter, gateways, now)
            }
        }
    }

    fn degraded(
        &self,
        entry: &Entry,
        contract: &Contract,
        cost: u64,
        reason: DegradedReason,
    ) -> Decision {
        let now = self.shared.clock.now();
        entry.decide_degraded(contract, cost, self.shared.gateways(), reason, now)
    }

    /// Serves requests that came while a call was answered on the spot.
    fn go_on(&self, entry: Arc<Entry>, key: BucketKey, request: Request) {
        let shared = Arc::clone(&self.shared);
        let sent = shared.clock.now();
        let call = shared.call(key, request);
        spawn(shared.keep_flying(Grounded { entry: Some(entry) }, key, call, sent));
    }
}

impl<S: BucketStore> Shared<S> {
    fn entry(&self, key: &BucketKey, now: Timestamp) -> Arc<Entry> {
        let entries = self.entries.pin();
        let entry = match entries.get(key) {
            Some(entry) => entry,
            None => entries.get_or_insert_with(*key, || Arc::new(Entry::new(now))),
        };
        entry.touch(now);
        Arc::clone(entry)
    }

    fn gateways(&self) -> u32 {
        self.gateways.load(Ordering::Relaxed)
    }

    fn call(&self, key: BucketKey, request: Request) -> StoreCall {
        let store = Arc::clone(&self.store);
        Box::pin(async move { store.call(&key, &request).await })
    }

    fn landing(&self, sent: Timestamp, result: Result<Reply, StoreError>) -> Landing {
        Landing { sent, received: self.clock.now(), result }
    }

    /// Ends the call, and makes the next ones while requests wait or tokens must go back.
    async fn keep_flying(
        self: Arc<Self>,
        mut guard: Grounded,
        key: BucketKey,
        mut call: StoreCall,
        mut sent: Timestamp,
    ) {
        let entry = guard.entry();
        loop {
            let result = call.await;
            match entry.land(self.landing(sent, result)) {
                Some(request) => {
                    sent = self.clock.now();
                    call = self.call(key, request);
                }
                None => return guard.done(),
            }
        }
    }
}

/// A call that is dropped half-way (its runtime ended) must not leave its key waiting for ever.
struct Grounded {
    entry: Option<Arc<Entry>>,
}

impl Grounded {
    fn entry(&self) -> Arc<Entry> {
        Arc::clone(self.entry.as_ref().expect("a flight has its entry until it is done"))
    }

    fn done(&mut self) {
        self.entry = None;
    }
}

impl Drop for Grounded {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.crash();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this crate stands alone; a call ends by itself")]
fn spawn(call: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(call));
}

#[cfg(test)]
mod tests;
