//! Tokens that the store granted for requests which then did not take them: they go back at once,
//! or not at all. The store does not count them as anybody's, so the bucket refills over them.

use std::time::Duration;

use crate::time::Timestamp;

/// Later than this the bucket may have refilled, and they would be granted twice.
const FRESH: Duration = Duration::from_millis(100);

/// Most keys have none.
#[derive(Debug, Default)]
pub(crate) struct Unused(Option<Box<Surplus>>);

#[derive(Debug)]
struct Surplus {
    tokens: u64,
    /// The oldest were granted then.
    since: Timestamp,
}

impl Unused {
    /// Adds tokens that were granted at `since`.
    pub(crate) fn put(&mut self, tokens: u64, since: Timestamp) {
        if tokens == 0 {
            return;
        }
        match &mut self.0 {
            Some(surplus) => {
                surplus.tokens += tokens;
                surplus.since = surplus.since.min(since);
            }
            None => self.0 = Some(Box::new(Surplus { tokens, since })),
        }
    }

    /// Those that may still go back.
    pub(crate) fn take(&mut self, now: Timestamp) -> u64 {
        let fresh = self.0.take().filter(|surplus| now.since(surplus.since) <= FRESH);
        fresh.map_or(0, |surplus| surplus.tokens)
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
        assert_eq!(unused.take(at(100)), 5);
        assert_eq!(unused.take(at(100)), 0);
        unused.put(2, at(150));
        unused.put(3, at(100));
        assert_eq!(unused.take(at(201)), 0, "they are as old as the oldest");
        assert!(!unused.are_some());
    }
}
