//! What one key's entry keeps under its lock: who waits, which calls are out, what of the lease
//! the store counts as ours, what it said last, and what must be told to it.

use std::time::Duration;

mod degraded; // decisions without the store, and what they cost later

use super::demand::Demand;
use super::flight::{Flight, Lane, Surroundings, Word, hedge_after, poll_us};
use super::kept::{KeptSeen, KeptTerms};
use super::lease_book::{FEW_MAX, LeaseBook};
use super::outage::Outage;
use super::retry::RetryQueue;
use super::seen::Seen;
use super::settings::{Terms, Witnessing};
use super::share::LearnedShare;
use super::unused::{Surplus, Unused};
use super::waiters::Waiters;
use crate::bucket::PLENTY;
use crate::call::{Owed, PlanNumbers, Reply, Request, Witness};
use crate::decision::{Basis, Decision, DegradedReason, Outcome, Wait};
use crate::limit::Limit;
use crate::store::StoreError;
use crate::time::Timestamp;

/// A bucket smaller than this is asked each time: a tenth of it would be too few tokens to be worth
/// hiding from the other gateways.
const LEASED_CAPACITY_MIN: u64 = 40;
/// A hedge asks for at most one part in so many of what the bucket held last.
const HEDGED_PART: u64 = 20;
/// Of a bucket that is filled to three quarters nobody misses a few tokens.
const NEARLY_FULL: (i64, i64) = (3, 4);
/// A quiet key is remembered until its bucket must be full again, but for so long at least …
const REMEMBERED_MIN: Duration = Duration::from_secs(30);
/// … and at most.
const REMEMBERED_MAX: Duration = Duration::from_secs(600);

/// What has to be known of a call when it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    sent: Timestamp,
    /// Tokens wanted for waiting requests.
    pub(crate) need: u64,
    surplus: Surplus,
    returned: u64,
    owed: Owed,
    testified: bool,
}

impl Out {
    fn new(request: &Request, surplus: Surplus, sent: Timestamp) -> Box<Out> {
        Box::new(Out {
            sent,
            need: request.need,
            surplus,
            returned: request.lease.map_or(0, |lease| lease.returned),
            owed: request.owed,
            testified: request.witness.is_some(),
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) waiters: Waiters,
    pub(crate) demand: Demand,
    outage: Option<Box<Outage>>,
    /// Tokens granted to requests that did not take them.
    pub(crate) unused: Unused,
    /// The newest terms that anybody asked under.
    terms: Option<KeptTerms>,
    main: Option<Box<Out>>,
    beside: Option<Box<Out>>,
    last: Option<KeptSeen>,
    /// What the store seems to have forgotten.
    testimony: Option<Box<Witness>>,
    pub(crate) lease: LeaseBook,
    /// No call before this, while the bucket is empty.
    next_call: Timestamp,
    share: Option<Box<LearnedShare>>,
    retry: RetryQueue,
}

impl Books {
    pub(crate) fn terms(&self) -> Option<Terms> {
        self.terms.as_ref().map(KeptTerms::terms)
    }

    pub(crate) fn plan(&self) -> Option<PlanNumbers> {
        self.terms().map(|terms| terms.plan)
    }

    pub(crate) fn last(&self) -> Option<Seen> {
        self.last.as_ref().map(KeptSeen::seen)
    }

    /// Whether a few tokens that end with their lease are missed by nobody: the bucket was nearly
    /// full, and earns them back within a second.
    pub(crate) fn ends_for_free(&self) -> bool {
        self.last().is_some_and(|seen| {
            let limits = &seen.reply.plan.limits;
            let is_quick = |limit: &Limit| {
                let refill = limit.refill();
                u128::from(refill.tokens()) * 1_000_000
                    >= u128::from(refill.per_us()) * u128::from(FEW_MAX)
            };
            limits.iter().all(|limit| is_quick(&limit))
                && seen.reply.levels.are_filled_to(limits, NEARLY_FULL)
        })
    }

    /// Keeps the newest terms; true if its plan is another one than before.
    pub(crate) fn hear(&mut self, terms: &Terms) -> bool {
        let version = terms.plan.version;
        let known = self.terms().map(|known| known.plan.version);
        match &mut self.terms {
            Some(kept) if known.is_none_or(|known| known <= version) => kept.replace(terms),
            Some(_) => {}
            None => self.terms = Some(KeptTerms::new(terms)),
        }
        known.is_none_or(|known| known < version)
    }

    /// Whether the store answered under an older plan than the one heard of here.
    pub(crate) fn is_outdated(&self, reply: &Reply) -> bool {
        self.plan().is_some_and(|plan| plan.version > reply.plan.version)
    }

    /// The whole lease was taken out of its word, to be given back.
    pub(crate) fn take_back(&mut self, in_word: u32, valid: u32) {
        self.demand.ask(self.lease.take_back(in_word, valid));
    }

    pub(crate) fn is_out(&self, lane: Lane) -> bool {
        match lane {
            Lane::Main => self.main.is_some(),
            Lane::Beside => self.beside.is_some(),
        }
    }

    pub(crate) fn landed(&mut self, lane: Lane) -> Option<Box<Out>> {
        match lane {
            Lane::Main => self.main.take(),
            Lane::Beside => self.beside.take(),
        }
    }

    pub(crate) fn crash(&mut self, lane: Lane) {
        let out = self.landed(lane);
        self.lose(lane, out.as_deref());
        self.waiters.clear();
    }

    /// A denial follows exactly from the last reply until its tokens can exist; a free request
    /// needs no token.
    pub(crate) fn decide_from_last(
        &self,
        terms: &Terms,
        cost: u64,
        held: u64,
        now: Timestamp,
    ) -> Option<Decision> {
        let known = |seen: &Seen| terms.plan.version <= seen.reply.plan.version;
        let seen = self.last().filter(known);
        let standing = seen.as_ref().map(Seen::standing);
        if cost == 0 {
            let full = terms.plan.limits.smallest_capacity();
            let remaining = seen.map_or(full, |seen| seen.available() + held);
            let outcome = Outcome::Allowed { remaining };
            return Some(Decision { outcome, basis: Basis::Store, standing });
        }
        let wait = self.told(seen?.denial(cost.saturating_sub(held), now)?, now);
        Some(Decision { outcome: Outcome::Denied { wait }, basis: Basis::Store, standing })
    }

    /// Whether the last reply came within a poll interval, with a bucket below a quarter: then only
    /// who waits asks again.
    pub(crate) fn was_scarce_just_now(&self, around: &Surroundings, now: Timestamp) -> bool {
        self.last().is_some_and(|seen| {
            let limits = &seen.reply.plan.limits;
            let pause = Duration::from_micros(poll_us(limits, around.gateways));
            !seen.reply.levels.are_filled_to(limits, PLENTY) && now < seen.sent.after(pause)
        })
    }

    pub(crate) fn is_paced(&self, now: Timestamp) -> bool {
        now < self.next_call
    }

    /// Denied until the next poll of a bucket that was empty, and until `short` tokens can be there.
    pub(crate) fn paced(&self, terms: &Terms, short: u64, now: Timestamp) -> Option<Decision> {
        let seen = self.last()?;
        if !self.is_paced(now) || terms.plan.version > seen.reply.plan.version {
            return None;
        }
        let outcome = Outcome::Denied { wait: self.told(seen.wait(short, now), now) };
        Some(Decision { outcome, basis: Basis::Lease, standing: Some(seen.standing()) })
    }

    /// What a caller is told who has to wait for tokens: who came before the next poll would be
    /// refused once more.
    pub(crate) fn told(&self, wait: Wait, now: Timestamp) -> Wait {
        match wait {
            Wait::Until(wait) => Wait::Until(wait.max(self.next_call.since(now))),
            Wait::Never => Wait::Never,
        }
    }

    /// After a reply: an empty bucket is not asked again before a token can be there, nor more
    /// often than the fleet may poll it.
    pub(crate) fn pace(&mut self, seen: &Seen, in_word: u32, around: &Surroundings) {
        // An older answer may land last.
        let seen = &self.last().unwrap_or(*seen);
        if !around.leases || in_word > 0 || seen.available() > 0 {
            self.next_call = Timestamp::default();
            return;
        }
        let limits = &seen.reply.plan.limits;
        let poll = seen.sent.after(Duration::from_micros(poll_us(limits, around.gateways)));
        let token_at = match seen.reply.wait(1) {
            Wait::Until(wait) => seen.sent.after(wait),
            Wait::Never => seen.sent,
        };
        self.next_call = poll.max(token_at);
    }

    /// The main call: serves the queue, settles the lease, asks for more.
    pub(crate) fn main(
        &mut self,
        terms: &Terms,
        word: Word,
        around: &Surroundings,
        now: Timestamp,
    ) -> Flight {
        let held = u64::from(word.held);
        self.demand.note(self.lease.begin(word), now);
        let (need, least) = self.waiters.send();
        let terms = self.newest(terms);
        let mut request = Request {
            reset: terms.reset,
            smallest_need: least.saturating_sub(held),
            ..Request::take(terms.plan, need, least)
        };
        if around.leases && terms.plan.limits.smallest_capacity() >= LEASED_CAPACITY_MIN {
            request.demand_per_s = self.demand.lease_demand(self.ends_for_free());
        }
        if request.demand_per_s > 0 {
            request.low_water = self.demand.low_water(around.round_trip);
            request.scarce_poll_us = poll_us(&terms.plan.limits, around.gateways);
        }
        let surplus = self.report(&mut request, held, around, now);
        self.main = Some(Out::new(&request, surplus, now));
        Flight { lane: Lane::Main, request }
    }

    /// A main call that gives the whole lease back.
    pub(crate) fn return_all(
        &mut self,
        terms: &Terms,
        around: &Surroundings,
        now: Timestamp,
    ) -> Flight {
        let terms = self.newest(terms);
        let mut request = Request { reset: terms.reset, ..Request::take(terms.plan, 0, 0) };
        let surplus = self.report(&mut request, 0, around, now);
        self.main = Some(Out::new(&request, surplus, now));
        Flight { lane: Lane::Main, request }
    }

    fn report(
        &mut self,
        request: &mut Request,
        held: u64,
        around: &Surroundings,
        now: Timestamp,
    ) -> Surplus {
        let surplus = self.unused.take(now);
        request.lease = self.lease.report(held);
        request.unused_need = surplus.tokens;
        if let Some(outage) = &mut self.outage {
            request.owed = outage.owed(around, now);
        }
        request.witness = self.witness(around, request.owed);
        surplus
    }

    /// Of what is owed a bucket that the store has forgotten would make good.
    fn witness(&self, around: &Surroundings, owed: Owed) -> Option<Witness> {
        let when = around.extras.witness;
        let unasked = when == Witnessing::Always || owed != Owed::default();
        let seen = || self.last().filter(|_| unasked).map(|seen| seen.witness(false));
        let witness = self.testimony.as_deref().copied().or_else(seen);
        witness.filter(|_| when != Witnessing::Off)
    }

    /// The call beside the main one.
    pub(crate) fn beside(
        &mut self,
        need: u64,
        least: u64,
        around: &Surroundings,
        now: Timestamp,
    ) -> Option<Flight> {
        let terms = self.terms()?;
        if self.beside.is_some() {
            return None;
        }
        let surplus = self.unused.take(now);
        let request = Request {
            reset: terms.reset,
            unused_need: surplus.tokens,
            witness: self.witness(around, Owed::default()),
            ..Request::take(terms.plan, need, least)
        };
        self.beside = Some(Out::new(&request, surplus, now));
        Some(Flight { lane: Lane::Beside, request })
    }

    fn newest(&self, terms: &Terms) -> Terms {
        self.terms().unwrap_or(*terms)
    }

    /// Whether something should go to the store although nobody waits.
    pub(crate) fn has_to_tell(&self) -> bool {
        self.beside.is_none() && (self.unused.are_some() || self.testimony.is_some())
    }

    pub(crate) fn has_to_return(&self) -> bool {
        self.unused.are_some() || self.lease.has_returned()
    }

    /// Whether the main call is slow, and asking for `need` once more could not deny others what
    /// is only in flight.
    pub(crate) fn may_hedge(&self, need: u64, around: &Surroundings, now: Timestamp) -> bool {
        let slow = hedge_after(around.round_trip);
        let capacity = self.plan().map_or(0, |plan| plan.limits.smallest_capacity());
        let available = self.last().map_or(capacity, |seen| seen.available());
        need > 0
            && need <= available / HEDGED_PART
            && self.beside.is_none()
            && self.main.as_ref().is_some_and(|out| now.since(out.sent) >= slow)
    }

    /// A reply: remembers it, and notes what it says about the store.
    pub(crate) fn note(&mut self, seen: &Seen, asked: Option<&Out>, around: &Surroundings) {
        if asked.is_some_and(|out| out.testified) {
            self.testimony = None;
        }
        let reply = &seen.reply;
        let taken = reply.granted + reply.lent;
        if around.extras.learned_share {
            let share = self.share.get_or_insert_default();
            share.note(taken, reply.granted_total, reply.incarnation, seen.received);
        }
        match self.last() {
            Some(last) => {
                if around.extras.witness == Witnessing::OnSuspicion
                    && let Some(witness) = last.contradicts(seen)
                {
                    self.testimony = Some(Box::new(witness));
                }
                let age = |reply: &Reply| (reply.at, reply.granted_total);
                let older = age(reply) < age(&last.reply)
                    && reply.incarnation == last.reply.incarnation
                    && reply.plan.version <= last.reply.plan.version;
                if !older {
                    self.last = Some(KeptSeen::new(seen, self.terms.as_ref()));
                }
            }
            None => self.last = Some(KeptSeen::new(seen, self.terms.as_ref())),
        }
        self.answered(asked.map_or(Owed::default(), |out| out.owed), seen.received);
    }

    /// No reply: what was not done is done again by a later call; what may have been done is not.
    pub(crate) fn note_failure(
        &mut self,
        lane: Lane,
        asked: Option<&Out>,
        error: &StoreError,
        now: Timestamp,
    ) -> DegradedReason {
        let returned = asked.map_or(0, |out| out.returned);
        let reason = match error {
            StoreError::Lost(_) => {
                self.lose(lane, asked);
                return DegradedReason::Lost;
            }
            StoreError::Tripped { probe_in } => {
                self.outage().tripped(now.after(*probe_in));
                DegradedReason::Tripped
            }
            StoreError::Unreachable(_) => DegradedReason::Unreachable,
            StoreError::Refused { .. } => DegradedReason::Refused,
        };
        self.lease.still_returned(returned);
        if let Some(out) = asked {
            self.unused.put_back(out.surplus);
        }
        reason
    }

    /// A call has an unknown outcome: what it may have done is not done again.
    fn lose(&mut self, lane: Lane, asked: Option<&Out>) {
        if lane == Lane::Main {
            self.lease.lost();
        }
        if let Some(outage) = &mut self.outage {
            outage.charged(asked.map_or(Owed::default(), |out| out.owed));
        }
    }

    pub(crate) fn turn(
        &mut self,
        cost: u64,
        base: Duration,
        around: &Surroundings,
        now: Timestamp,
    ) -> Duration {
        let binding = self.last().and_then(|seen| seen.binding_limit(cost));
        let (Some(limit), true) = (binding, around.extras.retry_queue) else { return base };
        let part = self.part(around, now);
        self.retry.promise(base, cost, limit, part, now)
    }

    pub(crate) fn may_be_forgotten(&self, idle: Duration) -> bool {
        let fill = self.plan().map_or(Duration::ZERO, |plan| {
            let windows = plan.limits.iter().map(|limit| limit.window().unwrap_or(REMEMBERED_MAX));
            windows.max().unwrap_or(Duration::ZERO)
        });
        let kept = if self.outage.as_ref().is_some_and(|outage| outage.is_remembered()) {
            REMEMBERED_MAX
        } else {
            fill.clamp(REMEMBERED_MIN, REMEMBERED_MAX)
        };
        idle >= kept && self.main.is_none() && self.beside.is_none() && !self.waiters.any_waiting()
    }
}
