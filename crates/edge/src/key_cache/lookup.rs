//! Asks the control plane about keys that are not known here: one flight for each key however
//! many wait for it, several keys in one call, a bounded number of calls under way and per second.
//!
//! Whoever is beyond a bound is told "not verified" at once. Nobody is let in because nobody could
//! be asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use wire::key::KeyHash;
use wire::policy::LookupRequest;

use super::{Found, KeyCache};
use crate::metrics::Lookup;
use crate::plan_source::ControlPlane;

/// Calls under way at once.
const FLIGHTS_MAX: usize = 32;
/// Least time between two calls, whoever makes them: at most 200 a second.
const CALL_EVERY: Duration = Duration::from_millis(5);
/// Keys in one call.
const KEYS_PER_CALL: usize = 100;
/// Keys waiting for a call; beyond it callers are told at once that theirs is not verified.
const WAITING_MAX: usize = 4_096;
/// An answer that is out of date is asked for again so often.
const TRIES: usize = 3;
/// Told to callers whose key could not be verified.
const RETRY: Duration = Duration::from_secs(1);

/// A key to be asked about, and where its answer is awaited.
type Wanted = (KeyHash, watch::Sender<Option<Found>>);

/// Questions under way, by key.
#[derive(Debug)]
pub(super) struct Flights {
    under_way: Mutex<HashMap<KeyHash, watch::Receiver<Option<Found>>>>,
    queue: mpsc::Sender<Wanted>,
    queued: Mutex<Option<mpsc::Receiver<Wanted>>>,
    /// When the last call went out, or will.
    last: Mutex<Option<Instant>>,
}

impl Default for Flights {
    fn default() -> Flights {
        let (queue, queued) = mpsc::channel(WAITING_MAX);
        let queued = Mutex::new(Some(queued));
        Flights { under_way: Mutex::default(), queue, queued, last: Mutex::default() }
    }
}

impl Flights {
    /// Takes the next turn for a call.
    fn turn(&self) -> Instant {
        let mut last = self.last.lock();
        let now = Instant::now();
        let turn = last.map_or(now, |last| now.max(last + CALL_EVERY));
        *last = Some(turn);
        turn
    }
}

impl KeyCache {
    /// The holder of a key that was not known a moment ago. Waits for one look-up at most.
    pub(crate) async fn find(&self, hash: KeyHash, now_ms: u64) -> Found {
        if self.source == limiter_core::VersionSource::File || self.is_nobodys(&hash, now_ms) {
            return Found::Nobody;
        }
        let mut answer = match self.board(hash, now_ms) {
            Ok(flight) => flight,
            Err(found) => return found,
        };
        let waited = timeout(self.bounds.deadline, answer.wait_for(Option::is_some)).await;
        match waited.ok().and_then(|told| told.ok().and_then(|found| found.clone())) {
            Some(found) => found,
            None => Found::NotTold { retry: RETRY },
        }
    }

    /// Joins the flight for a key, or starts it.
    fn board(&self, hash: KeyHash, now_ms: u64) -> Result<watch::Receiver<Option<Found>>, Found> {
        let mut under_way = self.flights.under_way.lock();
        if let Some(flight) = under_way.get(&hash) {
            return Ok(flight.clone());
        }
        // It may have landed between the first look and this lock.
        if let Some(known) = self.get(&hash, now_ms) {
            return Err(Found::Known(known));
        }
        if self.is_nobodys(&hash, now_ms) {
            return Err(Found::Nobody);
        }
        let (sender, flight) = watch::channel(None);
        if self.flights.queue.try_send((hash, sender)).is_err() {
            self.metrics.looked_up(Lookup::Refused, 1);
            return Err(Found::NotTold { retry: RETRY });
        }
        under_way.insert(hash, flight.clone());
        Ok(flight)
    }

    /// Waits for the next turn of a call.
    pub(crate) async fn look_up_in_turn(&self) {
        sleep_until(self.flights.turn()).await;
    }

    /// The cache knows by now, so a new question would find the answer there.
    fn land(&self, (hash, waiting): &Wanted, found: Found) {
        self.flights.under_way.lock().remove(hash);
        waiting.send_replace(Some(found));
    }
}

/// Answers the questions until `stop`.
pub(crate) async fn run(
    cache: Arc<KeyCache>,
    plane: Arc<dyn ControlPlane>,
    mut stop: watch::Receiver<bool>,
) {
    let Some(mut queue) = cache.flights.queued.lock().take() else { return };
    let mut flights = FuturesUnordered::new();
    let mut first: Option<Wanted> = None;
    let mut turn = Instant::now();
    loop {
        tokio::select! {
            _ended = stop.wait_for(|stopped| *stopped) => break,
            Some(()) = flights.next(), if !flights.is_empty() => {}
            wanted = queue.recv(), if first.is_none() && flights.len() < FLIGHTS_MAX => {
                first = wanted;
                turn = cache.flights.turn();
            }
            () = sleep_until(turn), if first.is_some() => {
                let more = std::iter::from_fn(|| queue.try_recv().ok());
                let batch = first.take().into_iter().chain(more.take(KEYS_PER_CALL - 1)).collect();
                flights.push(fly(&cache, &*plane, batch));
            }
        }
    }
    drop(flights);
    cache.flights.under_way.lock().clear();
}

/// One call, and again for what changed while it was under way.
async fn fly(cache: &KeyCache, plane: &dyn ControlPlane, mut batch: Vec<Wanted>) {
    for attempt in 0..TRIES {
        if attempt > 0 {
            cache.look_up_in_turn().await;
        }
        let request = LookupRequest { hashes: batch.iter().map(|(hash, _)| *hash).collect() };
        let epoch = cache.epoch();
        cache.metrics.looked_up(Lookup::Call, 1);
        let answer = match timeout(cache.bounds.deadline, plane.lookup(&request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::debug!(%error, keys = batch.len(), "key look-up failed");
                break;
            }
            Err(_elapsed) => {
                tracing::debug!(keys = batch.len(), "key look-up was not answered in time");
                break;
            }
        };
        let taken = cache.take(answer, &request.hashes, epoch);
        let (repeat, landed): (Vec<Wanted>, Vec<Wanted>) =
            batch.into_iter().partition(|(hash, _)| taken.again.contains(hash));
        for wanted in &landed {
            let found = cache.outcome(&wanted.0, taken.nobodys.contains(&wanted.0));
            cache.land(wanted, found);
        }
        batch = repeat;
        if batch.is_empty() {
            return;
        }
        cache.metrics.looked_up(Lookup::Again, batch.len());
    }
    cache.metrics.looked_up(Lookup::Failed, batch.len());
    for wanted in &batch {
        cache.land(wanted, Found::NotTold { retry: RETRY });
    }
}

impl KeyCache {
    /// What is known about a key that was just asked for. An answer that leaves a key out tells
    /// nothing about it.
    fn outcome(&self, hash: &KeyHash, nobodys: bool) -> Found {
        if nobodys {
            self.metrics.looked_up(Lookup::Missing, 1);
            return Found::Nobody;
        }
        match self.get(hash, self.now_ms()) {
            Some(known) => {
                self.metrics.looked_up(Lookup::Found, 1);
                Found::Known(known)
            }
            None => {
                self.metrics.looked_up(Lookup::Failed, 1);
                Found::NotTold { retry: RETRY }
            }
        }
    }
}
