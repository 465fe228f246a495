//! The word that a lease lives in, under every order in which threads can meet in it (loom).
//!
//! The file itself is included, with loom's atomics in place of the processor's. What each test
//! says holds in every execution that the memory model allows, not only in those of one machine.

#[path = "../../limiter-core/src/lease.rs"]
#[expect(dead_code, reason = "the file belongs to another crate, which uses more of it")]
mod lease;

use lease::{LeaseWord, Spent, Tick};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// A tick is 2¹⁰ µs.
fn tick(ticks: u64) -> Tick {
    Tick::of_us(ticks << 10)
}

fn spend(word: &LeaseWord, cost: u32, now: Tick) -> u32 {
    match word.spend(cost, now) {
        Spent::Taken { .. } => cost,
        Spent::Dry => 0,
    }
}

/// Two spenders and a renewal: what was spent and what is left is what was put in.
#[test]
fn i12_spent_and_left_are_what_was_lent() {
    loom::model(|| {
        let word = Arc::new(LeaseWord::new());
        word.renew(2, tick(10));
        let spenders = [1, 2].map(|cost| {
            let word = Arc::clone(&word);
            thread::spawn(move || spend(&word, cost, tick(1)))
        });
        word.renew(2, tick(10));
        let spent: u32 = spenders.into_iter().map(|spender| spender.join().unwrap()).sum();
        assert_eq!(spent + word.tokens(), 4);
    });
}

/// More is wanted than there is: nobody takes what another has taken.
#[test]
fn i12_a_lease_is_never_spent_twice() {
    loom::model(|| {
        let word = Arc::new(LeaseWord::new());
        word.renew(3, tick(10));
        let spenders = [0, 1].map(|_| {
            let word = Arc::clone(&word);
            thread::spawn(move || spend(&word, 2, tick(1)))
        });
        let spent: u32 = spenders.into_iter().map(|spender| spender.join().unwrap()).sum();
        assert_eq!((spent, word.tokens()), (2, 1));
    });
}

/// A spender that comes late meets a renewal: it pays with the renewed lease or not at all.
#[test]
fn i12_nothing_is_spent_from_the_deadline_on() {
    loom::model(|| {
        let word = Arc::new(LeaseWord::new());
        word.renew(1, tick(5));
        let late = {
            let word = Arc::clone(&word);
            thread::spawn(move || spend(&word, 1, tick(5)))
        };
        // What has died is forgotten before a renewal, or it would come back.
        let alive = word.expire(tick(5));
        word.renew(1, tick(20));
        let spent = late.join().unwrap();
        assert_eq!(alive, 0);
        assert_eq!(spent + word.tokens(), 1, "the dead token came back");
    });
}

/// A lease goes back while somebody spends: each token goes one way.
#[test]
fn i12_a_returned_token_is_not_spent_as_well() {
    loom::model(|| {
        let word = Arc::new(LeaseWord::new());
        word.renew(3, tick(10));
        let spender = {
            let word = Arc::clone(&word);
            thread::spawn(move || spend(&word, 1, tick(1)) + spend(&word, 1, tick(1)))
        };
        let returned = word.take_all(tick(1));
        let spent = spender.join().unwrap();
        assert_eq!(spent + returned + word.tokens(), 3);
        assert_eq!(word.tokens(), 0);
    });
}

/// The end of a lease, a renewal and two spenders at once: the tokens of one word never become
/// more than were put into it, and never fewer than nothing.
#[test]
fn i12_an_end_a_renewal_and_spenders_lose_no_count() {
    loom::model(|| {
        let word = Arc::new(LeaseWord::new());
        word.renew(2, tick(5));
        let early = {
            let word = Arc::clone(&word);
            thread::spawn(move || spend(&word, 1, tick(4)))
        };
        let late = {
            let word = Arc::clone(&word);
            thread::spawn(move || spend(&word, 1, tick(6)))
        };
        let alive = word.expire(tick(5));
        word.renew(1, tick(20));
        let (early, late) = (early.join().unwrap(), late.join().unwrap());
        assert_eq!(alive, 0);
        assert!(early + late + word.tokens() <= 3);
        assert!(late + word.tokens() <= 1, "a token outlived its deadline");
    });
}

/// The search is sharp: a word that is read and then written loses tokens, and loom shows how.
#[test]
#[should_panic(expected = "spent twice")]
fn i12_a_word_without_compare_and_swap_is_caught() {
    loom::model(|| {
        let word = Arc::new(AtomicU64::new(1));
        let take = |word: &AtomicU64| {
            let tokens = word.load(Ordering::Acquire);
            if tokens == 0 {
                return 0;
            }
            word.store(tokens - 1, Ordering::Release);
            1
        };
        let other = {
            let word = Arc::clone(&word);
            thread::spawn(move || take(&word))
        };
        let spent = take(&word) + other.join().unwrap();
        assert!(spent <= 1, "spent twice");
    });
}
