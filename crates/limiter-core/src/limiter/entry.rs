//! One key at this gateway: who waits, which call is out, what the store said last, and the local
//! bucket for the time without a store. All of it behind one short lock; nothing here waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::call::{PlanNumbers, Reply, Request};
use crate::decision::{Basis, Decision, DegradedReason, Outcome, Standing, Wait};
use crate::degraded::{FailurePolicy, LocalAnswer, LocalBucket};
use crate::limiter::Contract;
use crate::store::StoreError;
use crate::time::Timestamp;

/// Told to refused callers of a plan that is closed without a store, when no probe time is known.
const CLOSED_RETRY: Duration = Duration::from_millis(1_000);

/// A denial without an end is repeated for this long; then the store is asked again.
const NEVER_REPEATED_MAX: Duration = Duration::from_secs(1);

/// Requests of one key that may wait for its next call. One more could not be answered before the
/// deadline either: the policy decides it at once.
const WAITERS_MAX: usize = 16_384;

/// Answer to a waiting request: decided, or to be decided by policy.
type Answer = Result<Decision, DegradedReason>;

#[derive(Debug)]
pub(super) struct Entry {
    used_at_us: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Is a call out?
    flying: bool,
    /// The newest contract that anybody asked under.
    contract: Option<Contract>,
    /// Waits for the next call, first come first served.
    queue: VecDeque<Waiter>,
    /// Waits for the call that is out.
    sent: VecDeque<Waiter>,
    next_id: u64,
    /// Tokens granted to requests that did not take them.
    unused_need: u64,
    last: Option<Seen>,
    local: Option<LocalBucket>,
    /// The store answered since the local bucket was used last.
    answered_since_local: bool,
    /// Set by a tripped store: until its next probe.
    probe_at: Option<Timestamp>,
}

/// The store's last word, with the limiter's own times around it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    reply: Reply,
    sent: Timestamp,
    received: Timestamp,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    cost: u64,
    answer: Claim,
}

/// What becomes of a waiter's tokens when they come.
#[derive(Debug)]
enum Claim {
    /// The request still waits for them.
    Waiting(oneshot::Sender<Answer>),
    /// The policy let it pass: the tokens pay for it.
    Passed,
    /// The policy refused it: the tokens go back.
    Left,
}

/// A request's side of a [`Waiter`].
#[derive(Debug)]
pub(super) struct Waiting {
    id: u64,
    pub(super) cost: u64,
    pub(super) answer: oneshot::Receiver<Answer>,
}

/// How a request goes on.
pub(super) enum Join {
    Decided(Decision),
    Waiting(Waiting),
    /// Nobody is asking: this request makes the call.
    Fly(Request),
}

/// A call has ended.
pub(super) struct Landing {
    pub(super) sent: Timestamp,
    pub(super) received: Timestamp,
    pub(super) result: Result<Reply, StoreError>,
}

/// What the maker of a call that ended at once gets.
pub(super) struct LandedAlone {
    pub(super) decision: Answer,
    /// The next call, if others came meanwhile.
    pub(super) next: Option<Request>,
}

impl Entry {
    pub(super) fn new(now: Timestamp) -> Entry {
        Entry { used_at_us: AtomicU64::new(now.us()), inner: Mutex::default() }
    }

    pub(super) fn touch(&self, now: Timestamp) {
        self.used_at_us.store(now.us(), Ordering::Relaxed);
    }

    pub(super) fn idle(&self, now: Timestamp) -> Duration {
        now.since(Timestamp::from_us(self.used_at_us.load(Ordering::Relaxed)))
    }

    pub(super) fn was_degraded(&self) -> bool {
        self.inner.lock().local.is_some()
    }

    pub(super) fn join(
        &self,
        contract: &Contract,
        cost: u64,
        gateways: u32,
        now: Timestamp,
    ) -> Join {
        let mut inner = self.inner.lock();
        inner.hear(contract);
        if let Some(decision) = inner.decide_from_last(contract, cost, now) {
            return Join::Decided(decision);
        }
        if inner.flying {
            if inner.queue.len() >= WAITERS_MAX {
                let reason = DegradedReason::Deadline;
                let decision = inner.decide_degraded(contract, cost, gateways, reason, now);
                return Join::Decided(decision);
            }
            let (waiter, waiting) = inner.waiter(cost);
            inner.queue.push_back(waiter);
            return Join::Waiting(waiting);
        }
        inner.flying = true;
        Join::Fly(inner.request(contract, cost, cost))
    }

    /// The maker of the call waits like others for it.
    pub(super) fn wait_for_own(&self, cost: u64) -> Waiting {
        let mut inner = self.inner.lock();
        let (waiter, waiting) = inner.waiter(cost);
        inner.sent.push_back(waiter);
        waiting
    }

    /// The call made for one request of `cost` ended before anybody else could join it.
    pub(super) fn land_alone(&self, cost: u64, landing: Landing) -> LandedAlone {
        let mut inner = self.inner.lock();
        let decision = match inner.note(landing) {
            Err(reason) => Err(reason),
            Ok(seen) => {
                let mut granted = seen.reply.granted;
                let decision = seen.decide(cost, &mut granted);
                inner.unused_need += granted;
                Ok(decision)
            }
        };
        LandedAlone { decision, next: inner.next_request() }
    }

    /// The call that `sent` waited for has ended. Returns the next one, if there is need.
    pub(super) fn land(&self, landing: Landing) -> Option<Request> {
        let mut inner = self.inner.lock();
        let noted = inner.note(landing);
        let waiters = std::mem::take(&mut inner.sent);
        match noted {
            Err(reason) => waiters.into_iter().for_each(|waiter| waiter.fail(reason)),
            Ok(seen) => {
                let mut granted = seen.reply.granted;
                for waiter in waiters {
                    waiter.serve(&seen, &mut granted);
                }
                inner.unused_need += granted;
            }
        }
        inner.next_request()
    }

    /// The call was dropped with its runtime: nobody may wait for it.
    pub(super) fn crash(&self) {
        let mut inner = self.inner.lock();
        inner.flying = false;
        inner.sent.clear();
        inner.queue.clear();
    }

    /// The deadline passed: the policy decides, the call goes on.
    pub(super) fn give_up(
        &self,
        contract: &Contract,
        mut waiting: Waiting,
        gateways: u32,
        now: Timestamp,
    ) -> Decision {
        let mut inner = self.inner.lock();
        if let Ok(answer) = waiting.answer.try_recv() {
            return match answer {
                Ok(decision) => decision,
                Err(reason) => inner.decide_degraded(contract, waiting.cost, gateways, reason, now),
            };
        }
        inner.leave_queue(waiting.id);
        let reason = DegradedReason::Deadline;
        let decision = inner.decide_degraded(contract, waiting.cost, gateways, reason, now);
        if let Some(waiter) = inner.sent_as(waiting.id) {
            waiter.answer = if decision.is_allowed() { Claim::Passed } else { Claim::Left };
        }
        decision
    }

    pub(super) fn decide_degraded(
        &self,
        contract: &Contract,
        cost: u64,
        gateways: u32,
        reason: DegradedReason,
        now: Timestamp,
    ) -> Decision {
        self.inner.lock().decide_degraded(contract, cost, gateways, reason, now)
    }
}

impl Inner {
    fn hear(&mut self, contract: &Contract) {
        let newer = self.contract.is_none_or(|known| known.plan.version <= contract.plan.version);
        if newer {
            self.contract = Some(*contract);
        }
    }

    /// A denial follows exactly from the last reply until its tokens can exist; a free request
    /// needs no token.
    fn decide_from_last(&self, contract: &Contract, cost: u64, now: Timestamp) -> Option<Decision> {
        let seen = self.last.filter(|seen| contract.plan.version <= seen.reply.plan.version);
        if cost == 0 {
            let limits = contract.plan.limits;
            let full = limits.smallest_capacity();
            let remaining = seen.map_or(full, |seen| seen.reply.levels.available(&limits));
            let outcome = Outcome::Allowed { remaining };
            return Some(Decision {
                outcome,
                basis: Basis::Store,
                standing: seen.map(|seen| seen.standing()),
            });
        }
        let seen = seen?;
        let wait = match seen.reply.wait(cost) {
            Wait::Until(wait) if now < seen.sent.after(wait) => {
                Wait::Until(seen.received.after(wait).since(now))
            }
            // A reset or a newer plan comes as a newer version; tokens that others give back do not.
            Wait::Never if now < seen.sent.after(NEVER_REPEATED_MAX) => Wait::Never,
            Wait::Until(_) | Wait::Never => return None,
        };
        Some(Decision {
            outcome: Outcome::Denied { wait },
            basis: Basis::Store,
            standing: Some(seen.standing()),
        })
    }

    fn waiter(&mut self, cost: u64) -> (Waiter, Waiting) {
        let id = self.next_id;
        self.next_id += 1;
        let (sender, answer) = oneshot::channel();
        (Waiter { id, cost, answer: Claim::Waiting(sender) }, Waiting { id, cost, answer })
    }

    /// Both lines are in the order of their ids, so leaving costs no walk along a long one.
    fn leave_queue(&mut self, id: u64) {
        if let Ok(place) = self.queue.binary_search_by_key(&id, |waiter| waiter.id) {
            drop(self.queue.remove(place));
        }
    }

    fn sent_as(&mut self, id: u64) -> Option<&mut Waiter> {
        let place = self.sent.binary_search_by_key(&id, |waiter| waiter.id).ok()?;
        self.sent.get_mut(place)
    }

    fn request(&mut self, contract: &Contract, need: u64, smallest: u64) -> Request {
        Request {
            reset: contract.reset,
            unused_need: std::mem::take(&mut self.unused_need),
            ..Request::take(contract.plan, need, smallest)
        }
    }

    /// Remembers a reply, or says why there is none.
    fn note(&mut self, landing: Landing) -> Result<Seen, DegradedReason> {
        let Landing { sent, received, result } = landing;
        let error = match result {
            Ok(reply) => {
                let seen = Seen { reply, sent, received };
                self.last = Some(seen);
                self.probe_at = None;
                self.answered_since_local = true;
                return Ok(seen);
            }
            Err(error) => error,
        };
        Err(match error {
            StoreError::Tripped { probe_in } => {
                self.probe_at = Some(received.after(probe_in));
                DegradedReason::Tripped
            }
            StoreError::Unreachable(_) => DegradedReason::Unreachable,
            StoreError::Refused { .. } => DegradedReason::Refused,
            StoreError::Lost(_) => DegradedReason::Lost,
        })
    }

    /// The call for everybody who waits, or for tokens that must go back; else the key rests.
    fn next_request(&mut self) -> Option<Request> {
        let waiting = std::mem::take(&mut self.queue);
        let still = waiting.into_iter().filter(|waiter| !waiter.is_gone());
        self.sent = still.collect();
        let contract = self.contract.filter(|_| !self.sent.is_empty() || self.unused_need > 0);
        let Some(contract) = contract else {
            self.flying = false;
            return None;
        };
        let need = self.sent.iter().map(|waiter| waiter.cost).sum();
        let smallest = self.sent.iter().map(|waiter| waiter.cost).min().unwrap_or(0);
        Some(self.request(&contract, need, smallest))
    }

    fn decide_degraded(
        &mut self,
        contract: &Contract,
        cost: u64,
        gateways: u32,
        reason: DegradedReason,
        now: Timestamp,
    ) -> Decision {
        let outcome = match contract.failure {
            FailurePolicy::Open => {
                let limits = contract.plan.limits;
                let full = limits.smallest_capacity().saturating_sub(cost);
                let remaining = self.last.map_or(full, |seen| seen.reply.levels.available(&limits));
                Outcome::Allowed { remaining }
            }
            FailurePolicy::CLOSED => {
                let probe_in = self.probe_at.map_or(CLOSED_RETRY, |at| at.since(now));
                Outcome::Denied { wait: Wait::Until(probe_in) }
            }
            FailurePolicy::Share(share) => self.take_local(contract, cost, share, gateways, now),
        };
        let standing = self.last.map(|seen| seen.standing());
        Decision { outcome, basis: Basis::Degraded(reason), standing }
    }

    fn take_local(
        &mut self,
        contract: &Contract,
        cost: u64,
        share: u32,
        gateways: u32,
        now: Timestamp,
    ) -> Outcome {
        let limits = &contract.plan.limits;
        let fill = self.last.map(|seen| seen.fill(contract.plan));
        let luck = fastrand::u64(..10_000);
        let fresh = || LocalBucket::start(limits, share, gateways, fill, luck, now);
        let mut local = match self.local {
            Some(mut local) => {
                if !local.knows(limits) {
                    local.learn(&fresh());
                }
                if self.answered_since_local {
                    local.lower_to(&fresh(), limits, share, gateways, now);
                }
                local
            }
            None => fresh(),
        };
        self.answered_since_local = false;
        let answer = local.take(limits, share, gateways, cost, now);
        self.local = Some(local);
        match answer {
            LocalAnswer::Taken { remaining } => Outcome::Allowed { remaining },
            LocalAnswer::Wait(None) => Outcome::Denied { wait: Wait::Never },
            LocalAnswer::Wait(Some(us)) => {
                Outcome::Denied { wait: Wait::Until(Duration::from_micros(us)) }
            }
        }
    }
}

impl Waiter {
    fn is_gone(&self) -> bool {
        match &self.answer {
            Claim::Waiting(sender) => sender.is_closed(),
            Claim::Passed | Claim::Left => false,
        }
    }

    fn fail(self, reason: DegradedReason) {
        if let Claim::Waiting(sender) = self.answer {
            // A caller who has gone needs no answer.
            sender.send(Err(reason)).unwrap_or_default();
        }
    }

    /// Takes this request's tokens out of `granted`, if they suffice and somebody wants them.
    fn serve(self, seen: &Seen, granted: &mut u64) {
        match self.answer {
            Claim::Waiting(sender) => {
                let mut left = *granted;
                let decision = seen.decide(self.cost, &mut left);
                if sender.send(Ok(decision)).is_ok() {
                    *granted = left;
                }
            }
            Claim::Passed => *granted = granted.saturating_sub(self.cost),
            Claim::Left => {}
        }
    }
}

impl Seen {
    /// Decides one of the requests that shared the call; `granted` is what is left of its grant.
    fn decide(&self, cost: u64, granted: &mut u64) -> Decision {
        let reply = &self.reply;
        let outcome = if cost <= *granted {
            *granted -= cost;
            let remaining = reply.levels.available(&reply.plan.limits) + *granted;
            Outcome::Allowed { remaining }
        } else {
            Outcome::Denied { wait: reply.wait(cost) }
        };
        Decision { outcome, basis: Basis::Store, standing: Some(self.standing()) }
    }

    fn standing(&self) -> Standing {
        let reply = &self.reply;
        Standing {
            levels: reply.levels,
            plan: reply.plan,
            outstanding: reply.outstanding,
            at: reply.at,
            round_trip: self.received.since(self.sent),
        }
    }

    /// How full both buckets were, in ten-thousandths.
    fn fill(&self, plan: PlanNumbers) -> [u64; 2] {
        let mut fill = [0; 2];
        for (fill, (level, limit)) in fill.iter_mut().zip(self.reply.levels.with(&plan.limits)) {
            let tokens = u64::try_from(level.tokens).unwrap_or(0);
            let share = u128::from(tokens) * 10_000 / u128::from(limit.capacity().get());
            *fill = u64::try_from(share).unwrap_or(u64::MAX);
        }
        fill
    }
}
