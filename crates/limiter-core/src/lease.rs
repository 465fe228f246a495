//! Tokens that the store lent: spent here with one compare-and-swap, no lock and no round trip.
//!
//! Amount and deadline are one 64-bit word, so a renewal cannot race a spend, and nothing is
//! spent after the deadline. What the store counts as lent is kept by the owner of the word.
//! It stands on atomics alone: the loom test includes this file as it is.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Length of a tick of the deadline: 2¹⁰ µs.
const TICK_BITS: u32 = 10;

/// A moment in ticks, wrapping after 50 days; two of them can be compared within 25 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tick(u32);

impl Tick {
    /// The tick that holds this microsecond: a deadline is never later than it should be.
    #[expect(clippy::cast_possible_truncation, reason = "ticks wrap on purpose")]
    pub(crate) const fn of_us(us: u64) -> Tick {
        Tick((us >> TICK_BITS) as u32)
    }

    /// Whether `self` lies before `deadline`.
    pub(crate) const fn is_before(self, deadline: Tick) -> bool {
        deadline.0.wrapping_sub(self.0).cast_signed() > 0
    }
}

/// Whether a lease paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spent {
    /// It did.
    Taken {
        /// Tokens left in the lease.
        left: u32,
    },
    /// Too few tokens, or past the deadline: nothing was taken.
    Dry,
}

/// High half: the tick from which on nothing is spent. Low half: tokens.
#[derive(Debug)]
pub(crate) struct LeaseWord(AtomicU64);

impl LeaseWord {
    pub(crate) fn new() -> LeaseWord {
        LeaseWord(AtomicU64::new(0))
    }

    /// Takes `cost` tokens, if they are there and still valid.
    pub(crate) fn spend(&self, cost: u32, now: Tick) -> Spent {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (deadline, tokens) = parts(word);
            if tokens < cost || !now.is_before(deadline) {
                return Spent::Dry;
            }
            let next = packed(deadline, tokens - cost);
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Spent::Taken { left: tokens - cost },
                Err(now_there) => word = now_there,
            }
        }
    }

    /// Tokens that could be spent now.
    pub(crate) fn held(&self, now: Tick) -> u32 {
        let (deadline, tokens) = parts(self.0.load(Ordering::Acquire));
        if now.is_before(deadline) { tokens } else { 0 }
    }

    /// Tokens in it, spendable or dead: what its owner's books are compared with.
    pub(crate) fn tokens(&self) -> u32 {
        parts(self.0.load(Ordering::Acquire)).1
    }

    /// Adds `tokens` and moves the deadline of all of them, as the store has stamped them anew.
    pub(crate) fn renew(&self, tokens: u32, deadline: Tick) {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let next = packed(deadline, parts(word).1.saturating_add(tokens));
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now_there) => word = now_there,
            }
        }
    }

    /// Empties it and tells what could have been spent: tokens that go back, or are dead.
    pub(crate) fn take_all(&self, now: Tick) -> u32 {
        let (deadline, tokens) = parts(self.0.swap(0, Ordering::AcqRel));
        if now.is_before(deadline) { tokens } else { 0 }
    }

    /// Forgets tokens whose deadline has passed, and tells what is left: nothing that has died
    /// may be renewed.
    pub(crate) fn expire(&self, now: Tick) -> u32 {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (deadline, tokens) = parts(word);
            if now.is_before(deadline) {
                return tokens;
            }
            match self.0.compare_exchange_weak(word, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return 0,
                Err(now_there) => word = now_there,
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
const fn parts(word: u64) -> (Tick, u32) {
    (Tick((word >> 32) as u32), word as u32)
}

const fn packed(deadline: Tick, tokens: u32) -> u64 {
    ((deadline.0 as u64) << 32) | tokens as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1 << TICK_BITS;

    #[test]
    fn tokens_are_spent_until_there_are_too_few() {
        let lease = LeaseWord::new();
        lease.renew(5, Tick::of_us(10 * MS));
        let now = Tick::of_us(0);
        assert_eq!(lease.spend(3, now), Spent::Taken { left: 2 });
        assert_eq!(lease.spend(3, now), Spent::Dry);
        assert_eq!(lease.spend(2, now), Spent::Taken { left: 0 });
    }

    #[test]
    fn nothing_is_spent_from_the_deadline_on() {
        let lease = LeaseWord::new();
        lease.renew(5, Tick::of_us(10 * MS + 700));
        assert_eq!(lease.spend(1, Tick::of_us(10 * MS - 1)), Spent::Taken { left: 4 });
        assert_eq!(lease.spend(1, Tick::of_us(10 * MS)), Spent::Dry);
        assert_eq!(lease.held(Tick::of_us(10 * MS)), 0);
        assert_eq!(lease.expire(Tick::of_us(10 * MS)), 0);
        lease.renew(0, Tick::of_us(20 * MS));
        assert_eq!(lease.held(Tick::of_us(11 * MS)), 0, "the dead do not come back");
    }

    #[test]
    fn ticks_that_wrap_are_compared_as_time() {
        let lease = LeaseWord::new();
        let end = u64::from(u32::MAX) * MS;
        lease.renew(1, Tick::of_us(end + 5 * MS));
        assert_eq!(lease.held(Tick::of_us(end - MS)), 1);
        assert_eq!(lease.held(Tick::of_us(end + 4 * MS)), 1);
        assert_eq!(lease.held(Tick::of_us(end + 6 * MS)), 0);
    }

    #[test]
    fn a_returned_lease_is_empty() {
        let lease = LeaseWord::new();
        lease.renew(7, Tick::of_us(10 * MS));
        assert_eq!(lease.take_all(Tick::of_us(9 * MS)), 7);
        assert_eq!(lease.take_all(Tick::of_us(9 * MS)), 0);
        assert_eq!(lease.spend(1, Tick::of_us(0)), Spent::Dry);
    }
}
