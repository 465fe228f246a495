//! Who asks most, now: by a sample, in bounded memory, one sketch for each worker.
//!
//! One request in sixteen is looked at. A sketch has a fixed number of places; who comes when all
//! are taken takes the place of the rarest and inherits its count as a possible error (Metwally's
//! space-saving), so whoever has more than one in sixty-four of a worker's samples is always there.
//! Two windows of ten seconds: the one before is whole, the one that runs is not shown.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use edge::limiter::Timestamp;
use edge::{Admission, Refusal, Ticket};

/// One in so many requests is looked at.
const SAMPLE: u8 = 16;
/// Keys that a worker knows.
const PLACES: usize = 64;
/// Longest id of a key or client that is kept; both are bounded where they are made.
const ID_BYTES: usize = 64;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(10);

/// What was seen of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    client: String,
    /// Empty where there is none: callers that are known by their address.
    key: String,
    samples: u64,
    /// At most so many of them were another's.
    error: u64,
    denied: u64,
}

impl Seen {
    fn is(&self, client: &str, key: &str) -> bool {
        self.client == client && self.key == key
    }
}

/// One worker's sketch.
#[derive(Debug, Default)]
struct Sketch {
    began: Timestamp,
    now: Vec<Seen>,
    before: Vec<Seen>,
}

impl Sketch {
    fn turn(&mut self, at: Timestamp) {
        let age = at.since(self.began);
        if WINDOW <= age {
            std::mem::swap(&mut self.now, &mut self.before);
            if WINDOW * 2 <= age {
                self.before.clear(); // nobody came for a whole window
            }
            self.now.clear();
            self.began = at;
        }
    }

    fn count(&mut self, client: &str, key: &str, denied: bool) {
        let denied = u64::from(denied);
        if let Some(seen) = self.now.iter_mut().find(|seen| seen.is(client, key)) {
            seen.samples += 1;
            seen.denied += denied;
        } else if self.now.len() < PLACES {
            let (client, key) = (client.to_owned(), key.to_owned());
            self.now.push(Seen { client, key, samples: 1, error: 0, denied });
        } else if let Some(rarest) = self.now.iter_mut().min_by_key(|seen| seen.samples) {
            rarest.client.clear();
            rarest.client.push_str(client);
            rarest.key.clear();
            rarest.key.push_str(key);
            rarest.error = rarest.samples;
            rarest.samples += 1;
            rarest.denied = denied;
        }
    }
}

/// A worker's part; on its thread nobody else but a reader ever holds the lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Top(Arc<Mutex<Sketch>>);

impl Top {
    /// Perhaps counts a request.
    pub(crate) fn see(&self, admission: &Admission, at: Timestamp) {
        if fastrand::u8(..SAMPLE) != 0 {
            return;
        }
        let (ticket, denied) = match admission {
            Admission::Forward(ticket) => (Some(ticket), false),
            Admission::Refuse(refusal, ticket) => {
                (ticket.as_ref(), matches!(refusal, Refusal::Denied { .. }))
            }
        };
        let Some(client) = ticket.and_then(Ticket::client) else { return };
        let key = ticket.and_then(Ticket::key_id).unwrap_or_default();
        if client.len() <= ID_BYTES && key.len() <= ID_BYTES {
            let mut sketch = self.lock();
            sketch.turn(at);
            sketch.count(client, key, denied);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sketch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the busiest keys.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct Busy {
    /// Whose it is.
    pub client: String,
    /// Its public id; absent for callers that are known by their address.
    pub key: Option<String>,
    /// Requests of the last whole window, about.
    pub requests: u64,
    /// At most so many of them were others'.
    pub error: u64,
    /// Those of them that were denied, about.
    pub denied: u64,
}

/// The busiest keys over all workers, the busiest first, and the seconds they were counted over.
pub(crate) fn busiest(tops: &[Top], at: Timestamp, most: usize) -> (Vec<Busy>, u64) {
    let mut all: BTreeMap<(String, String), Seen> = BTreeMap::new();
    for top in tops {
        let mut sketch = top.lock();
        sketch.turn(at);
        for seen in &sketch.before {
            let sum = all.entry((seen.client.clone(), seen.key.clone())).or_default();
            sum.samples += seen.samples;
            sum.error += seen.error;
            sum.denied += seen.denied;
        }
    }
    let times = u64::from(SAMPLE);
    let mut busy: Vec<Busy> = all
        .into_iter()
        .map(|((client, key), seen)| Busy {
            client,
            key: (!key.is_empty()).then_some(key),
            requests: seen.samples * times,
            error: seen.error * times,
            denied: seen.denied * times,
        })
        .collect();
    busy.sort_by_key(|busy| std::cmp::Reverse(busy.requests));
    busy.truncate(most);
    (busy, WINDOW.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_us(seconds * 1_000_000)
    }

    #[test]
    fn the_busy_are_found_among_many_and_memory_has_a_bound() {
        let top = Top::default();
        for round in 0..10_000_u64 {
            let mut sketch = top.lock();
            sketch.count("busy", "k1", round % 4 == 0);
            sketch.count(&format!("rare-{}", round % 1_000), "k", false);
        }
        assert_eq!(top.lock().now.len(), PLACES);
        let (busy, seconds) = busiest(&[top.clone(), Top::default()], at(10), 3);
        assert_eq!((busy.len(), seconds), (3, 10));
        let first = busy.first().unwrap();
        assert_eq!((first.client.as_str(), first.key.as_deref()), ("busy", Some("k1")));
        assert_eq!((first.requests, first.error, first.denied), (160_000, 0, 40_000));
        assert!(busy.iter().skip(1).all(|busy| busy.requests - busy.error < 160_000));
    }

    #[test]
    fn a_window_is_shown_when_it_is_whole_and_then_forgotten() {
        let tops = [Top::default()];
        tops[0].lock().count("acme", "", false);
        assert!(busiest(&tops, at(9), 10).0.is_empty());
        let shown = busiest(&tops, at(11), 10).0;
        assert_eq!((shown.len(), shown[0].key.as_deref()), (1, None));
        assert_eq!(busiest(&tops, at(19), 10).0, shown);
        assert!(busiest(&tops, at(40), 10).0.is_empty());
    }

    #[test]
    fn keys_are_summed_over_workers() {
        let tops = [Top::default(), Top::default()];
        for top in &tops {
            top.lock().count("acme", "k1", true);
        }
        let shown = busiest(&tops, at(10), 10).0;
        assert_eq!((shown.len(), shown[0].requests, shown[0].denied), (1, 32, 32));
    }
}
