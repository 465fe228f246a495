//! The books of a lease: what the store counts as ours and under which stamp, what of it is in the
//! entry's word, and what is on its way back.

use std::time::Duration;

use super::flight::Word;
use crate::call::{LeaseReport, Reply};
use crate::time::Timestamp;

/// A lease that nobody spent from for so long goes back.
const IDLE_AFTER: Duration = Duration::from_millis(150);
/// A lease in use is renewed so long before its end.
const RENEWED_BEFORE: Duration = Duration::from_millis(150);

/// So few tokens wait longer, if they are less than one part in so many of the capacity.
pub(crate) const FEW_MAX: u32 = 4;
const MISSED_SOON_PART: u64 = 20;
const IDLE_FEW_AFTER: Duration = Duration::from_millis(400);
/// What was spent is told to the store, unless it is less than one part in so many of the capacity.
const MISSED_PART: u64 = 100;

#[derive(Debug, Default)]
pub(crate) struct LeaseBook {
    counted: u64,
    generation: u64,
    deadline: Timestamp,
    /// Tokens in the word when last entered here; what is missing was spent.
    balance: u64,
    /// Taken out of the word to be given back.
    returned: u64,
    /// The word when last looked at, and when it last moved.
    watched: u32,
    moved_at: Timestamp,
}

impl LeaseBook {
    /// A main call begins; returns what was spent since the last one.
    pub(crate) fn begin(&mut self, word: Word) -> u64 {
        let spent = self.balance.saturating_sub(u64::from(word.in_word));
        self.balance = u64::from(word.held);
        spent
    }

    /// What a main call tells, keeping `held`.
    pub(crate) fn report(&mut self, held: u64) -> Option<LeaseReport> {
        let returned = std::mem::take(&mut self.returned);
        let (generation, counted) = (self.generation, self.counted);
        let something = counted > 0 || held > 0 || returned > 0;
        something.then_some(LeaseReport { generation, counted, held, returned })
    }

    /// The word was emptied, and `valid` of its tokens go back; returns what was spent.
    pub(crate) fn take_back(&mut self, in_word: u32, valid: u32) -> u64 {
        let spent = self.balance.saturating_sub(u64::from(in_word));
        self.balance = 0;
        self.returned += u64::from(valid);
        spent
    }

    /// A call that would have returned tokens was not done.
    pub(crate) fn still_returned(&mut self, tokens: u64) {
        self.returned += tokens;
    }

    /// A main call has an unknown outcome: the store may count more as ours than we know, or less,
    /// until those tokens die.
    pub(crate) fn lost(&mut self) {
        self.counted = 0;
    }

    /// `kept` of the tokens lent are in the word; the others go back.
    pub(crate) fn credited(&mut self, reply: &Reply, kept: u32, deadline: Timestamp) {
        if reply.lease_dead {
            self.balance = 0;
        }
        self.balance += u64::from(kept);
        self.returned += reply.lent.saturating_sub(u64::from(kept));
        self.counted = reply.counted;
        self.generation = reply.generation;
        self.deadline = deadline;
    }

    /// The reply came after the lease's own end.
    pub(crate) fn forfeited(&mut self, reply: &Reply) {
        self.balance = 0;
        self.counted = 0;
        self.generation = reply.generation;
    }

    /// A waiter was served from the word: its cost is in the demand already.
    pub(crate) fn spent_by_waiter(&mut self, cost: u64) {
        self.balance = self.balance.saturating_sub(cost);
    }

    /// Looks at the word.
    pub(crate) fn watch(&mut self, in_word: u32, now: Timestamp) {
        if self.watched != in_word {
            self.watched = in_word;
            self.moved_at = now;
        }
    }

    /// The word is empty or dead: the end of the lease is its end at the store too.
    pub(crate) fn bury(&mut self, now: Timestamp) {
        if now >= self.deadline {
            self.counted = 0;
            self.balance = 0;
        }
    }

    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    pub(crate) fn has_returned(&self) -> bool {
        self.returned > 0
    }

    pub(crate) fn is_in_use(&self, now: Timestamp) -> bool {
        now.since(self.moved_at) < IDLE_AFTER
    }

    pub(crate) fn is_ending(&self, now: Timestamp) -> bool {
        self.deadline.since(now) < RENEWED_BEFORE
    }

    /// Whether it has been without use for so long that it goes back. A few tokens wait longer: the
    /// next request of a slow key is not far; and where they would be earned back at once, they
    /// end with their lease.
    pub(crate) fn goes_back(
        &self,
        held: u32,
        capacity: u64,
        ends_for_free: bool,
        now: Timestamp,
    ) -> bool {
        if ends_for_free && self.is_few() {
            return false;
        }
        let idle = now.since(self.moved_at);
        let is_few = held <= FEW_MAX && self.counted < capacity / MISSED_SOON_PART;
        let missed = held > 0 || self.counted >= (capacity / MISSED_PART).max(1);
        missed && idle >= if is_few { IDLE_FEW_AFTER } else { IDLE_AFTER }
    }

    /// Whether hardly anything is counted as ours.
    pub(crate) fn is_few(&self) -> bool {
        self.counted <= u64::from(FEW_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_000_000_000 + ms * 1_000)
    }

    #[test]
    fn what_nobody_would_miss_ends_with_its_lease_and_the_rest_goes_back() {
        let lease = |counted| LeaseBook { counted, moved_at: at(0), ..LeaseBook::default() };
        // (counted, held, capacity, earned back at once, idle for ms, goes back)
        let cases = [
            (4, 4, 40, true, 900, false),
            (4, 4, 40, false, 149, false),
            (4, 4, 40, false, 150, true),
            (4, 4, 400, false, 399, false),
            (4, 4, 400, false, 400, true),
            (5, 5, 40, true, 150, true),
            (100, 3, 1_000, true, 150, true),
            (1, 1, 400, false, 400, true),
            (3, 0, 400, false, 900, false),
            (4, 0, 400, false, 400, true),
        ];
        for (counted, held, capacity, full, ms, back) in cases {
            let goes_back = lease(counted).goes_back(held, capacity, full, at(ms));
            assert_eq!(goes_back, back, "{counted} {held} of {capacity}, {full}, {ms} ms");
        }
    }
}
