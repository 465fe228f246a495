//! Start here: one question in, one [`Decision`] out, within the deadline whatever the store does.
//!
//! Most requests are paid from a lease: tokens that the store lent, spent here without a lock or a
//! round trip. The others share calls to the store (single flight). A denial is repeated locally
//! until the tokens it waits for can exist; a request that waited for the deadline is decided by
//! the plan's failure policy while its call goes on, and what that call brings is used. The outcome
//! of a call that never answered is unknown: it is neither repeated nor charged again.
//!
//! Cancelling `decide` is safe at every point: tokens granted to a caller who has gone are
//! returned to the store. Whoever owns a limiter calls [`Limiter::tick`] every [`TICK_EVERY`],
//! [`Limiter::sweep`] every few seconds, and [`Limiter::drain`] at the end.

mod bell; // ends waits on time
pub(crate) mod books; // what a key's entry keeps
mod demand; // how fast tokens are asked for
mod digest_hash; // keys are hashes
pub(crate) mod entry; // one key, without I/O
pub(crate) mod flight; // what an entry is asked and answers
mod kept; // what is remembered, in few bytes
mod lease_book; // what the store counts as ours
mod meter; // what was admitted without the store
mod outage; // decisions without the store
mod punctual; // how fast the store answers
mod retry; // whose turn comes when
mod seen; // the last reply
mod settings; // what it is given
mod share; // this gateway's part of a plan
mod unread; // answers that nobody reads
mod unused; // tokens that nobody takes
pub(crate) mod waiters; // who waits

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use papaya::HashMap;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::call::{Reply, Request};
use crate::decision::{Basis, Decision, Outcome, Standing, Wait};
use crate::key::BucketKey;
use crate::store::{BucketStore, StoreError};
use crate::time::{Clock, Timestamp};
use crate::units::Cost;

use self::bell::Bell;
use self::digest_hash::DigestHash;
use self::entry::Entry;
use self::flight::{Ask, Care, Counted, Flight, Landing, Lane, Quick, Settled, Surroundings};
use self::punctual::Punctuality;
use self::unread::Unread;
use self::waiters::Waiting;

pub use self::settings::{Contract, Extras, LimiterSettings, Witnessing};

/// How often [`Limiter::tick`] has to be called: leases are renewed and returned by it.
pub const TICK_EVERY: Duration = Duration::from_millis(50);
/// At its deadline a request lets others of its runtime go first so often: nothing on an idle one.
const TURNS_LEFT: usize = 3;
/// Calls out at a time while leases are given back at the end.
const DRAIN_CALLS_MAX: usize = 256;
/// Looks at leases while calls that were out then come back, a round trip apart.
const DRAIN_LOOKS_MAX: usize = 16;
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

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
    draining: AtomicBool,
    punctuality: Punctuality,
    bell: Bell,
    entries: HashMap<BucketKey, Arc<Entry>, DigestHash>,
    /// Entries with a lease, to be looked after.
    leased: Mutex<Vec<(BucketKey, Arc<Entry>)>>,
    /// Held while that list is looked through: it is empty meanwhile.
    tended: Mutex<()>,
    /// Tasks that make calls.
    flying: AtomicUsize,
}

type StoreCall = Pin<Box<dyn Future<Output = Result<Reply, StoreError>> + Send>>;

impl<S: BucketStore> Limiter<S> {
    /// A limiter over `store`; `clock` is its own monotonic clock, never compared with the store's.
    pub fn new(store: Arc<S>, clock: Arc<dyn Clock>, settings: LimiterSettings) -> Limiter<S> {
        Limiter {
            shared: Arc::new(Shared {
                store,
                clock,
                settings,
                gateways: AtomicU32::new(1),
                draining: AtomicBool::new(false),
                punctuality: Punctuality::new(settings.deadline),
                bell: Bell::new(),
                entries: HashMap::with_hasher(DigestHash),
                leased: Mutex::default(),
                tended: Mutex::default(),
                flying: AtomicUsize::new(0),
            }),
        }
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
        if let Some(decision) = self.spend(contract, cost, now) {
            return decision;
        }
        let entry = shared.entry(&contract.key, now);
        match entry.ask(contract, cost, &shared.around(), now) {
            Ask::Decided(decision) => decision,
            Ask::Wait(waiting) => self.wait(&entry, contract, waiting, now).await,
            Ask::Fly(flight, waiting) => self.fly(&entry, contract, flight, waiting, now).await,
        }
    }

    /// When the turn of a caller who was told to wait for `base` comes: the longer, the more were
    /// refused here before it.
    pub fn turn(&self, contract: &Contract, cost: Cost, base: Duration) -> Duration {
        let shared = &self.shared;
        let now = shared.clock.now();
        let entry = shared.entry(&contract.key, now);
        entry.turn(cost.get(), base, &shared.around(), now)
    }

    /// The bucket pair as this limiter saw it last, for decisions that carry none.
    pub fn standing(&self, key: &BucketKey) -> Option<Standing> {
        self.shared.entries.pin().get(key).and_then(|entry| entry.standing())
    }

    /// Reads the bucket pair at the store without changing it.
    pub async fn inspect(&self, contract: &Contract) -> Result<Reply, StoreError> {
        let request = Request { reset: contract.reset, ..Request::peek(contract.plan) };
        self.shared.store.call(&contract.key, &request).await
    }

    /// Renews leases that are used and returns those that are not; to be called every
    /// [`TICK_EVERY`], on a runtime.
    pub fn tick(&self) {
        let shared = &self.shared;
        let around = shared.around();
        let _tended = shared.tended.lock();
        let mut leased = std::mem::take(&mut *shared.leased.lock());
        leased.retain(|(key, entry)| {
            let now = shared.clock.now();
            // First off the list, so that a lease that comes meanwhile is put on it again.
            entry.unlist();
            match entry.tick(&around, now) {
                Care::Rest => return false,
                Care::Watch => {}
                Care::Fly(flight) => drop(self.launch(entry, *key, flight, now)),
            }
            entry.list()
        });
        shared.leased.lock().append(&mut leased);
    }

    /// Forgets idle keys, here and in a store that lives in this process; to be called every few
    /// seconds.
    pub fn sweep(&self) {
        self.shared.store.sweep();
        let now = self.shared.clock.now();
        self.shared.entries.pin().retain(|_, entry| !entry.may_be_forgotten(now));
    }

    /// Borrows no more and gives everything back: unspent tokens are there for the other gateways
    /// at once. Requests may go on, one call each.
    pub async fn drain(&self) {
        let shared = &self.shared;
        shared.draining.store(true, Ordering::Relaxed);
        let mut calls = Vec::new();
        // A call that was out at a look may bring one more lease.
        for look in 0..DRAIN_LOOKS_MAX {
            let leased = {
                let _tended = shared.tended.lock();
                std::mem::take(&mut *shared.leased.lock())
            };
            let none_out = shared.flying.load(Ordering::Acquire) == 0;
            if look > 1 && leased.is_empty() && none_out {
                return;
            }
            for (key, entry) in leased {
                entry.unlist();
                let now = shared.clock.now();
                match entry.settle(&shared.around(), now) {
                    Settled::Nothing => {}
                    Settled::Later => shared.watch(key, &entry),
                    Settled::Fly(flight) => calls.push(self.launch(&entry, key, flight, now)),
                }
                if calls.len() >= DRAIN_CALLS_MAX {
                    ended(&mut calls).await;
                }
            }
            ended(&mut calls).await;
            tokio::time::sleep(shared.punctuality.round_trip().max(DRAIN_PAUSE)).await;
        }
    }

    /// Keys remembered now.
    pub fn keys(&self) -> usize {
        self.shared.entries.len()
    }

    /// Pays from the lease, and asks for more when it runs low.
    fn spend(&self, contract: &Contract, cost: u64, now: Timestamp) -> Option<Decision> {
        let entries = self.shared.entries.pin();
        let entry = entries.get(&contract.key)?;
        entry.touch(now);
        match entry.quick(contract, cost, now) {
            Quick::Allowed { decision, low } => {
                if low && let Some(flight) = entry.prefetch(&self.shared.around(), now) {
                    drop(self.launch(entry, contract.key, flight, now));
                }
                Some(decision)
            }
            Quick::Ask => None,
        }
    }

    /// Makes the call that this request found nobody making. A store that answers at once (the
    /// embedded one) is answered to on the spot; any other call moves to a task, so that it goes
    /// on when this request is decided or gone.
    async fn fly(
        &self,
        entry: &Arc<Entry>,
        contract: &Contract,
        flight: Flight,
        waiting: Waiting,
        sent: Timestamp,
    ) -> Decision {
        let mut guard = Grounded::new(entry, flight.lane);
        let mut call = self.shared.call(contract.key, flight.request);
        let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        match first {
            Poll::Ready(result) => {
                let next = self.shared.land(entry, contract.key, flight.lane, sent, result);
                guard.done();
                if let Some(flight) = next {
                    let now = self.shared.clock.now();
                    drop(self.launch(entry, contract.key, flight, now));
                }
            }
            Poll::Pending => {
                let shared = Arc::clone(&self.shared);
                drop(spawn(shared.keep_flying(guard, contract.key, call, sent)));
            }
        }
        self.wait(entry, contract, waiting, sent).await
    }

    /// Waits for the call that covers this request, no longer than the deadline; when that call is
    /// slow, sends another one beside it.
    async fn wait(
        &self,
        entry: &Arc<Entry>,
        contract: &Contract,
        waiting: Waiting,
        since: Timestamp,
    ) -> Decision {
        let shared = &self.shared;
        let mut answer = Unread { shared, entry, key: contract.key, waiting: Some(waiting) };
        // A store in this process has answered already.
        match answer.at_once() {
            Some(Ok(decision)) => return decision,
            Some(Err(reason)) => return answer.by_policy(contract, reason),
            None => {}
        }
        let budget = shared.punctuality.budget();
        let around = shared.around();
        let hedge_after = if around.extras.hedge { shared.hedge_after() } else { budget };
        let mut waited = Duration::ZERO;
        let reason = loop {
            let step = hedge_after.min(budget.saturating_sub(waited));
            tokio::select! {
                biased;
                read = answer.read() => match read {
                    Ok(decision) => return decision,
                    Err(reason) => break reason,
                },
                Ok(()) = shared.bell.after(step), if shared.clock.runs_by_itself() => {
                    // On a busy runtime the answer may have come, and the task that reads it wait.
                    for _turn in 0..TURNS_LEFT {
                        tokio::task::yield_now().await;
                    }
                }
                // Late, but there where no thread is, and on the paused time of a test.
                () = tokio::time::sleep(step) => {}
            }
            // The clock of a test may stand still.
            let now = shared.clock.now();
            waited = now.since(since).max(waited + step);
            if waited >= budget {
                return entry.give_up(contract, answer.take(), &around, now);
            }
            if let Some(flight) = entry.hedge(&around, now) {
                drop(self.launch(entry, contract.key, flight, now));
            }
        };
        answer.by_policy(contract, reason)
    }

    /// Makes a call, and those that follow from it, in a task of its own.
    fn launch(
        &self,
        entry: &Arc<Entry>,
        key: BucketKey,
        flight: Flight,
        sent: Timestamp,
    ) -> JoinHandle<()> {
        let shared = Arc::clone(&self.shared);
        let guard = Grounded::new(entry, flight.lane);
        let call = shared.call(key, flight.request);
        spawn(shared.keep_flying(guard, key, call, sent))
    }
}

impl<S> Shared<S> {
    /// Puts an entry on the list of those to look after, once.
    fn watch(&self, key: BucketKey, entry: &Arc<Entry>) {
        if entry.list() {
            self.leased.lock().push((key, Arc::clone(entry)));
        }
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

    fn around(&self) -> Surroundings {
        Surroundings {
            gateways: self.gateways.load(Ordering::Relaxed),
            round_trip: self.punctuality.round_trip(),
            leases: self.settings.leases && !self.draining.load(Ordering::Relaxed),
            extras: self.settings.extras,
        }
    }

    fn hedge_after(&self) -> Duration {
        flight::hedge_after(self.punctuality.round_trip())
    }

    fn call(&self, key: BucketKey, request: Request) -> StoreCall {
        let store = Arc::clone(&self.store);
        Box::pin(async move { store.call(&key, &request).await })
    }

    fn land(
        &self,
        entry: &Arc<Entry>,
        key: BucketKey,
        lane: Lane,
        sent: Timestamp,
        result: Result<Reply, StoreError>,
    ) -> Option<Flight> {
        let received = self.clock.now();
        if result.is_ok() {
            self.punctuality.note(received.since(sent), received);
        }
        let epoch = self.store.epoch(&key);
        let landing = Landing { lane, sent, received, epoch, result };
        let next = entry.land(landing, &self.around());
        if entry.has_lease() {
            self.watch(key, entry);
        }
        next
    }

    /// A lease that comes when this gateway ends is not kept.
    fn returned_at_once(&self, entry: &Entry) -> Option<Flight> {
        if !self.draining.load(Ordering::Relaxed) {
            return None;
        }
        match entry.settle(&self.around(), self.clock.now()) {
            Settled::Fly(flight) => Some(flight),
            Settled::Nothing | Settled::Later => None,
        }
    }

    /// Ends the call, and makes the next ones while requests wait or something must be told.
    async fn keep_flying(
        self: Arc<Self>,
        mut guard: Grounded,
        key: BucketKey,
        mut call: StoreCall,
        mut sent: Timestamp,
    ) {
        let entry = guard.entry();
        let _counted = Counted::one_more(&self.flying);
        loop {
            let result = call.await;
            let answered = result.is_ok();
            let next = self.land(&entry, key, guard.lane, sent, result);
            // A store that does not answer is not asked again only to be given something.
            match next.or_else(|| if answered { self.returned_at_once(&entry) } else { None }) {
                Some(flight) => {
                    guard.lane = flight.lane;
                    sent = self.clock.now();
                    call = self.call(key, flight.request);
                }
                None => return guard.done(),
            }
        }
    }
}

/// A call that is dropped half-way (its runtime ended) must not leave its key waiting for ever.
struct Grounded {
    entry: Option<Arc<Entry>>,
    lane: Lane,
}

impl Grounded {
    fn new(entry: &Arc<Entry>, lane: Lane) -> Grounded {
        Grounded { entry: Some(Arc::clone(entry)), lane }
    }

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
            entry.crash(self.lane);
        }
    }
}

async fn ended(calls: &mut Vec<JoinHandle<()>>) {
    for call in calls.drain(..) {
        // One that broke has lost its lease, which ends by itself.
        drop(call.await);
    }
}

#[expect(clippy::disallowed_methods, reason = "this crate stands alone; a call ends by itself")]
fn spawn(call: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(call)
}

#[cfg(test)]
mod tests;
