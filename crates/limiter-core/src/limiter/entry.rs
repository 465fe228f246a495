//! One key at this gateway, as a machine without I/O: it is asked, told of replies and of the
//! time, and says which calls to make. The limiter drives it with tasks and timers, the simulator
//! with an event queue.
//!
//! Tokens come in two kinds. Those granted for waiting requests serve them and nobody else: what
//! they do not take goes back at once. Those lent are spent with one compare-and-swap, until their
//! deadline. At most two calls of a key are out: the main one, which settles the lease, and one
//! beside it, which only asks for waiting requests, returns tokens or testifies.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Contract;
use super::books::Books;
use super::flight::{Ask, Care, Flight, Landing, Lane, Quick, Settled, Surroundings, Word};
use super::seen::Seen;
use super::settings::Terms;
use super::waiters::{Claim, Waiting};
use crate::decision::{Basis, Decision, DegradedReason, Outcome, Standing, Wait};
use crate::lease::{LeaseWord, Spent, Tick};
use crate::time::Timestamp;

/// Requests of one key that may wait for its next call. One more could not be answered before the
/// deadline either: the policy decides it at once.
const WAITERS_MAX: usize = 16_384;

/// One key.
#[derive(Debug)]
pub(crate) struct Entry {
    lease: LeaseWord,
    /// Tokens that the store had left after its newest reply.
    left_at_store: AtomicU64,
    /// A spend that leaves fewer tokens than this prefetches.
    prefetch_below: AtomicU32,
    /// No prefetch now: the main call is out, or the key is paced.
    busy: AtomicBool,
    /// Newest plan version that was heard: a lease under an older plan goes back.
    version: AtomicU64,
    /// Last use, in seconds of the limiter's clock; written at most once a second.
    used_at_s: AtomicU64,
    /// On the list of entries that the limiter looks after.
    listed: AtomicBool,
    books: Mutex<Books>,
}

impl Entry {
    pub(crate) fn new(now: Timestamp) -> Entry {
        Entry {
            lease: LeaseWord::new(),
            left_at_store: AtomicU64::new(0),
            prefetch_below: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            version: AtomicU64::new(0),
            used_at_s: AtomicU64::new(now.us() / 1_000_000),
            listed: AtomicBool::new(false),
            books: Mutex::default(),
        }
    }

    pub(crate) fn touch(&self, now: Timestamp) {
        let second = now.us() / 1_000_000;
        if self.used_at_s.load(Ordering::Relaxed) != second {
            self.used_at_s.store(second, Ordering::Relaxed);
        }
    }

    /// Since the last use, to the second.
    pub(crate) fn idle(&self, now: Timestamp) -> Duration {
        let used = self.used_at_s.load(Ordering::Relaxed);
        Duration::from_secs((now.us() / 1_000_000).saturating_sub(used))
    }

    /// The way of most requests: no lock, no call.
    pub(crate) fn quick(&self, contract: &Contract, cost: u64, now: Timestamp) -> Quick {
        if contract.plan.version.0 > self.version.load(Ordering::Relaxed) || cost == 0 {
            return Quick::Ask;
        }
        self.pay(cost, now)
    }

    fn pay(&self, cost: u64, now: Timestamp) -> Quick {
        let Ok(cost) = u32::try_from(cost) else { return Quick::Ask };
        let Spent::Taken { left } = self.lease.spend(cost, Tick::of_us(now.us())) else {
            return Quick::Ask;
        };
        let low = left < self.prefetch_below.load(Ordering::Relaxed)
            && !self.busy.load(Ordering::Relaxed);
        Quick::Allowed { decision: self.lent(left), low }
    }

    /// May a request of `cost` pass now?
    pub(crate) fn ask(
        &self,
        contract: &Contract,
        cost: u64,
        around: &Surroundings,
        now: Timestamp,
    ) -> Ask {
        let terms = contract.terms();
        let mut books = self.books.lock();
        if books.hear(&terms) {
            self.version.store(contract.plan.version.0, Ordering::Relaxed);
            books.take_back(self.lease.tokens(), self.lease.take_all(Tick::of_us(now.us())));
        }
        if let Quick::Allowed { decision, .. } = self.quick(contract, cost, now) {
            return Ask::Decided(decision);
        }
        books.demand.ask(cost);
        let held = u64::from(self.lease.held(Tick::of_us(now.us())));
        if let Some(decision) = books.decide_from_last(&terms, cost, held, now) {
            return Ask::Decided(decision);
        }
        if books.is_out(Lane::Main) {
            if books.waiters.queued() >= WAITERS_MAX {
                let reason = DegradedReason::Deadline;
                return Ask::Decided(books.decide_degraded(&terms, cost, around, reason, now));
            }
            return Ask::Wait(books.waiters.enqueue(cost));
        }
        if let Some(decision) = books.paced(&terms, cost.saturating_sub(held), now) {
            return Ask::Decided(decision);
        }
        let waiting = books.waiters.enqueue(cost);
        let flight = self.main(&mut books, &terms, around, now);
        Ask::Fly(flight, waiting)
    }

    /// The lease runs low: asks for more before it is empty.
    pub(crate) fn prefetch(&self, around: &Surroundings, now: Timestamp) -> Option<Flight> {
        let mut books = self.books.lock();
        let terms = books.terms()?;
        let too_soon = books.is_paced(now) || books.was_scarce_just_now(around, now);
        if books.is_out(Lane::Main) || !around.leases || too_soon {
            return None;
        }
        Some(self.main(&mut books, &terms, around, now))
    }

    /// The main call is slow: the same question goes out once more, on another connection. What
    /// both are granted and only one needs goes back.
    pub(crate) fn hedge(&self, around: &Surroundings, now: Timestamp) -> Option<Flight> {
        let mut books = self.books.lock();
        let (need, least) = books.waiters.wanted();
        if !around.extras.hedge || !books.may_hedge(need, around, now) {
            return None;
        }
        books.waiters.send();
        books.beside(need, least, around, now)
    }

    /// A call has ended. Returns the next one to make, if there is need.
    pub(crate) fn land(&self, landing: Landing, around: &Surroundings) -> Option<Flight> {
        let mut books = self.books.lock();
        let books = &mut *books;
        let Landing { lane, sent, received, epoch, result } = landing;
        let out = books.landed(lane);
        let answered = result.is_ok();
        match result {
            Ok(reply) => {
                let seen = Seen { reply, sent, received, epoch };
                books.note(&seen, out.as_deref(), around);
                // First of all: what a reply lends is not left at the store any more.
                let left = books.last().map_or(0, |last| last.available());
                self.left_at_store.store(left, Ordering::Relaxed);
                if lane == Lane::Main {
                    self.credit(books, &seen);
                }
                self.serve(books, &seen, around, out.is_some_and(|out| out.need > 0));
                self.publish(books, &seen, around);
            }
            Err(error) => {
                let reason = books.note_failure(lane, out.as_deref(), &error, received);
                if !books.is_out(Lane::Main) && !books.is_out(Lane::Beside) {
                    for waiter in books.waiters.take_sent() {
                        let unpaid = matches!(waiter.claim, Claim::Passed);
                        if unpaid && reason != DegradedReason::Lost {
                            books.meter_newest(waiter.cost, around, received);
                        }
                        waiter.answer(Err(reason));
                    }
                }
            }
        }
        self.busy.store(books.is_out(Lane::Main), Ordering::Relaxed);
        let terms = books.terms()?;
        if !books.is_out(Lane::Main) && books.waiters.queued() > 0 {
            return Some(self.main(books, &terms, around, received));
        }
        // A store that does not answer is not asked again only to be given or told something.
        let next = if answered && books.has_to_tell() {
            books.beside(0, 0, around, received)
        } else {
            None
        };
        books.waiters.rest();
        next
    }

    /// The deadline passed: the policy decides, the call goes on.
    pub(crate) fn give_up(
        &self,
        contract: &Contract,
        mut waiting: Waiting,
        around: &Surroundings,
        now: Timestamp,
    ) -> Decision {
        let terms = &contract.terms();
        let mut books = self.books.lock();
        let (reason, outcome_unknown) = match waiting.answer.try_recv() {
            Ok(Ok(decision)) => return decision,
            Ok(Err(reason)) => (reason, reason == DegradedReason::Lost),
            Err(_nothing_yet) => {
                let covered = books.waiters.give_up(&waiting).is_some();
                (DegradedReason::Deadline, covered)
            }
        };
        let cost = waiting.cost;
        let decision = if outcome_unknown {
            books.decide_unmetered(terms, cost, around, reason, now)
        } else {
            books.decide_degraded(terms, cost, around, reason, now)
        };
        if let Some(waiter) = books.waiters.give_up(&waiting) {
            waiter.claim = if decision.is_allowed() { Claim::Passed } else { Claim::Left };
        }
        decision
    }

    /// Decides by policy what no call is out for.
    pub(crate) fn decide_degraded(
        &self,
        contract: &Contract,
        cost: u64,
        around: &Surroundings,
        reason: DegradedReason,
        now: Timestamp,
    ) -> Decision {
        let terms = &contract.terms();
        let mut books = self.books.lock();
        if reason == DegradedReason::Lost {
            books.decide_unmetered(terms, cost, around, reason, now)
        } else {
            books.decide_degraded(terms, cost, around, reason, now)
        }
    }

    /// When this refused caller's turn comes: not before its tokens can exist, and not at the same
    /// instant as the other callers who were refused here.
    pub(crate) fn turn(
        &self,
        cost: u64,
        base: Duration,
        around: &Surroundings,
        now: Timestamp,
    ) -> Duration {
        self.books.lock().turn(cost, base, around, now)
    }

    /// The bucket pair as last seen.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.books.lock().last().as_ref().map(Seen::standing)
    }

    /// Looks after the lease: renews it while it is used, returns it when it is not.
    pub(crate) fn tick(&self, around: &Surroundings, now: Timestamp) -> Care {
        let mut books = self.books.lock();
        if books.is_out(Lane::Main) {
            return Care::Watch;
        }
        let in_word = self.lease.tokens();
        let held = self.lease.expire(Tick::of_us(now.us()));
        books.lease.watch(in_word, now);
        if held == 0 {
            books.lease.bury(now);
        }
        if books.has_to_tell()
            && let Some(flight) = books.beside(0, 0, around, now)
        {
            return Care::Fly(flight);
        }
        if held == 0 && books.lease.counted() == 0 {
            return Care::Rest;
        }
        let Some(terms) = books.terms() else { return Care::Rest };
        let capacity = terms.plan.limits.smallest_capacity();
        let for_free = books.ends_for_free();
        if books.lease.goes_back(held, capacity, for_free, now) {
            return Care::Fly(self.return_all(&mut books, &terms, around, now));
        }
        if held == 0 || !books.lease.is_ending(now) {
            return Care::Watch;
        }
        let pays = around.leases && books.demand.is_quick() && books.lease.is_in_use(now);
        if pays {
            Care::Fly(self.main(&mut books, &terms, around, now))
        } else if for_free && books.lease.is_few() {
            Care::Watch
        } else {
            Care::Fly(self.return_all(&mut books, &terms, around, now))
        }
    }

    /// Tokens that could be spent now.
    #[cfg(feature = "testkit")]
    pub(crate) fn held(&self, now: Timestamp) -> u64 {
        u64::from(self.lease.held(Tick::of_us(now.us())))
    }

    /// Tokens of a request that was cancelled after they had come; the next look returns them.
    pub(crate) fn give_back(&self, tokens: u64, now: Timestamp) {
        self.books.lock().unused.put(tokens, now);
    }

    /// Gives everything back, for a gateway that ends.
    pub(crate) fn settle(&self, around: &Surroundings, now: Timestamp) -> Settled {
        let mut books = self.books.lock();
        if books.is_out(Lane::Main) {
            return Settled::Later;
        }
        let held = self.lease.expire(Tick::of_us(now.us()));
        // What was spent is told as well: until then the store keeps room for it in the bucket.
        let something = held > 0 || books.lease.counted() > 0 || books.has_to_return();
        match books.terms().filter(|_| something) {
            Some(terms) => Settled::Fly(self.return_all(&mut books, &terms, around, now)),
            None => Settled::Nothing,
        }
    }

    /// Whether nothing would be lost with it.
    pub(crate) fn may_be_forgotten(&self, now: Timestamp) -> bool {
        let idle = self.idle(now);
        let books = self.books.lock();
        self.lease.held(Tick::of_us(now.us())) == 0 && books.may_be_forgotten(idle)
    }

    /// Puts it on the list of entries to look after; false if it is there already.
    pub(crate) fn list(&self) -> bool {
        !self.listed.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn has_lease(&self) -> bool {
        self.lease.tokens() > 0
    }

    pub(crate) fn unlist(&self) {
        self.listed.store(false, Ordering::Relaxed);
    }

    /// A call was dropped with its runtime: nobody may wait for it.
    pub(crate) fn crash(&self, lane: Lane) {
        let mut books = self.books.lock();
        books.crash(lane);
        self.busy.store(books.is_out(Lane::Main), Ordering::Relaxed);
    }

    fn lent(&self, left: u32) -> Decision {
        let remaining = self.left_at_store.load(Ordering::Relaxed) + u64::from(left);
        let outcome = Outcome::Allowed { remaining };
        Decision { outcome, basis: Basis::Lease, standing: None }
    }

    /// The call that serves the queue, settles the lease and asks for more.
    fn main(
        &self,
        books: &mut Books,
        terms: &Terms,
        around: &Surroundings,
        now: Timestamp,
    ) -> Flight {
        let in_word = self.lease.tokens();
        let held = self.lease.expire(Tick::of_us(now.us()));
        self.busy.store(true, Ordering::Relaxed);
        books.main(terms, Word { in_word, held }, around, now)
    }

    fn return_all(
        &self,
        books: &mut Books,
        terms: &Terms,
        around: &Surroundings,
        now: Timestamp,
    ) -> Flight {
        books.take_back(self.lease.tokens(), self.lease.take_all(Tick::of_us(now.us())));
        self.busy.store(true, Ordering::Relaxed);
        books.return_all(terms, around, now)
    }

    fn credit(&self, books: &mut Books, seen: &Seen) {
        let reply = &seen.reply;
        if reply.lease_dead {
            self.lease.take_all(Tick::of_us(seen.received.us()));
        }
        let deadline = seen.sent.after(reply.valid);
        let lent = u32::try_from(reply.lent).unwrap_or(u32::MAX);
        if Tick::of_us(seen.received.us()).is_before(Tick::of_us(deadline.us())) {
            let kept = if books.is_outdated(reply) { 0 } else { lent };
            self.lease.renew(kept, Tick::of_us(deadline.us()));
            books.lease.credited(reply, kept, deadline);
        } else {
            self.lease.take_all(Tick::of_us(seen.received.us()));
            books.lease.forfeited(reply);
        }
    }

    /// Waiters take what was granted, then what was lent; who cannot be served and has to wait
    /// for tokens is denied. Who only has to ask again stays in a line.
    fn serve(&self, books: &mut Books, seen: &Seen, around: &Surroundings, asked: bool) {
        let now = seen.received;
        let tick = Tick::of_us(now.us());
        let mut granted = seen.reply.granted;
        let standing = Some(seen.standing());
        let other_is_out = books.is_out(Lane::Main) || books.is_out(Lane::Beside);
        if !asked && other_is_out {
            self.pay_covered(books, standing, now);
        }
        let covered =
            if asked || !other_is_out { books.waiters.take_sent() } else { Default::default() };
        let queued = books.waiters.take_queue();
        for (waiter, was_sent) in
            covered.into_iter().map(|w| (w, true)).chain(queued.into_iter().map(|w| (w, false)))
        {
            let cost = waiter.cost;
            match waiter.claim {
                Claim::Passed if granted >= cost => granted -= cost,
                Claim::Passed => books.meter_newest(cost, around, now),
                Claim::Left => {}
                Claim::Waiting(_) if !waiter.is_waiting() => {}
                Claim::Waiting(_) if granted >= cost => {
                    let held = u64::from(self.lease.held(tick));
                    let left = self.left_at_store.load(Ordering::Relaxed);
                    let remaining = left + (granted - cost) + held;
                    let outcome = Outcome::Allowed { remaining };
                    if waiter.answer(Ok(Decision { outcome, basis: Basis::Store, standing })) {
                        granted -= cost;
                    }
                }
                Claim::Waiting(_) => {
                    // What was granted pays first, the lease the rest of it.
                    let rest = cost - granted;
                    if let Quick::Allowed { mut decision, .. } = self.pay(rest, now) {
                        decision.standing = standing;
                        books.lease.spent_by_waiter(rest);
                        if waiter.answer(Ok(decision)) {
                            granted = 0;
                        } else {
                            books.unused.put(rest, now);
                        }
                        continue;
                    }
                    // What was granted too much goes back, and is there again.
                    let short = rest.saturating_sub(u64::from(self.lease.held(tick)));
                    match seen.wait(short, now) {
                        Wait::Until(Duration::ZERO) if was_sent && other_is_out => {
                            books.waiters.stay(waiter);
                        }
                        Wait::Until(Duration::ZERO) => books.waiters.put_back(waiter),
                        wait @ (Wait::Until(_) | Wait::Never) => {
                            books.pace(seen, self.lease.tokens(), around);
                            let outcome = Outcome::Denied { wait: books.told(wait, now) };
                            waiter.answer(Ok(Decision { outcome, basis: Basis::Store, standing }));
                        }
                    }
                }
            }
        }
        books.unused.put(granted, now);
    }

    /// Those who are covered by the other call need not wait for it if a lease has come.
    fn pay_covered(&self, books: &mut Books, standing: Option<Standing>, now: Timestamp) {
        for waiter in books.waiters.take_sent() {
            if !waiter.is_waiting() {
                books.waiters.stay(waiter);
                continue;
            }
            let cost = waiter.cost;
            let Quick::Allowed { mut decision, .. } = self.pay(cost, now) else {
                books.waiters.stay(waiter);
                continue;
            };
            decision.standing = standing;
            books.lease.spent_by_waiter(cost);
            if !waiter.answer(Ok(decision)) {
                books.unused.put(cost, now);
            }
        }
    }

    fn publish(&self, books: &mut Books, seen: &Seen, around: &Surroundings) {
        let in_word = self.lease.tokens();
        let below = books.demand.prefetch_below(around.round_trip).min(u64::from(in_word / 2) + 1);
        self.prefetch_below.store(u32::try_from(below).unwrap_or(u32::MAX), Ordering::Relaxed);
        books.pace(seen, in_word, around);
    }
}
