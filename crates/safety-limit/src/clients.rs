//! The buckets of the clients seen lately: bounded, whoever calls.
//!
//! Two generations of equal size: who is seen again moves into the young one, and when that is
//! full the old one is forgotten. A forgotten client starts again with a full bucket.

use std::collections::HashMap;

use limiter_core::Timestamp;

use crate::bucket::{CoarseAnswer, CoarseBucket, CoarseLimit};

/// Most clients that are remembered.
pub const CLIENTS_MAX: usize = 131_072;

/// Buckets by client.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    young: HashMap<String, CoarseBucket>,
    old: HashMap<String, CoarseBucket>,
}

impl Clients {
    /// Takes one token from `client`'s bucket.
    pub(crate) fn take(
        &mut self,
        client: &str,
        limit: CoarseLimit,
        now: Timestamp,
    ) -> CoarseAnswer {
        if let Some(bucket) = self.young.get_mut(client) {
            return bucket.take(limit, now);
        }
        let mut bucket = self.old.remove(client).unwrap_or_else(|| CoarseBucket::full(limit, now));
        let answer = bucket.take(limit, now);
        if self.young.len() >= CLIENTS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(client.to_owned(), bucket);
        answer
    }

    /// How many are remembered.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::{Capacity, Limit, Limits, RefillRate};

    use super::*;

    #[test]
    fn a_flood_of_clients_is_bounded_and_the_busy_one_is_not_forgotten() {
        let one = Limit::new(Capacity::new(1).unwrap(), RefillRate::FIXED_ALLOWANCE).unwrap();
        let limit = CoarseLimit::new(Limits::burst_only(one), 10, 10);
        let now = Timestamp::from_us(1);
        let mut clients = Clients::default();
        let mut admitted = 0;
        for number in 0..CLIENTS_MAX * 2 {
            clients.take(&format!("flood-{number}"), limit, now);
            if number % 1_000 == 0 {
                let answer = clients.take("busy", limit, now);
                admitted += u32::from(matches!(answer, CoarseAnswer::Admitted { .. }));
            }
            assert!(clients.len() <= CLIENTS_MAX);
        }
        assert_eq!(admitted, 1);
    }
}
