//! Tokens that the store granted for requests which then did not take them: they go back at once,
//! or not at all. The store does not count them as anybody's, so the bucket refills over them.

use std::time::Duration;

use crate::time::Timestamp;

/// Later than this the bucket may have refilled, and they would be granted twice.
const FRESH: Duration = Duration::from_millis(100);

/// Most keys have none.
#[derive(Debug, Default)]
pub(crate) struct Unused(Option<Box<Surplus>>);

/// Tokens to give back, none by default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Surplus {
    pub(crate) tokens: u64,
    /// The oldest were granted then: an age that no failed call resets.
    pub(crate) since: Timestamp,
}

impl Unused {
    /// Adds tokens that were granted at `since`.
    pub(crate) fn put(&mut self, tokens: u64, since: Timestamp) {
        self.put_back(Surplus { tokens, since });
    }

    /// Adds what a call that was not done would have given back.
    pub(crate) fn put_back(&mut self, more: Surplus) {
        if more.tokens == 0 {
            return;
        }
        match &mut self.0 {
            Some(surplus) => {
                surplus.tokens += more.tokens;
                surplus.since = surplus.since.min(more.since);
            }
            None => self.0 = Some(Box::new(more)),
        }
    }

    /// Those that may still go back.
    pub(crate) fn take(&mut self, now: Timestamp) -> Surplus {
        let fresh = self.0.take().filter(|surplus| now.since(surplus.since) <= FRESH);
        fresh.map_or_else(Surplus::default, |surplus| *surplus)
    }

    pub(crate) fn are_some(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_does_not_go_back() {
        let at = |ms: u64| Timestamp::from_us(1_000_000_000 + ms * 1_000);
        let mut unused = Unused::default();
        unused.put(3, at(0));
        unused.put(2, at(50));
        assert!(unused.are_some());
        assert_eq!(unused.take(at(100)).tokens, 5);
        assert_eq!(unused.take(at(100)).tokens, 0);
        unused.put(2, at(150));
        unused.put(3, at(100));
        assert_eq!(unused.take(at(201)).tokens, 0, "they are as old as the oldest");
        assert!(!unused.are_some());
    }
}
