//! What a worker cannot handle in time it refuses at once, so that what it takes on is answered
//! soon. Requests are never queued here: those that no worker has read wait in the kernel.
//!
//! A worker is one thread, so whatever is ready waits for everything that was ready before. A task
//! measures that wait: it goes to the end of the worker's queue and sees how long its turn takes to
//! come. One long wait says nothing (the machine may have paused the process); a wait that has not
//! been short even once for a while says that more comes than can be done, and sooner if the worker
//! was at work in it. Only then there is a
//! bound on the requests under way, and it moves until the wait is short again: what comes on top
//! is told to come back, before anybody asks whose it is.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::time::Instant;
use wire::error::ErrorCode;

use crate::config::OverloadRules;
use crate::reply::Problem;

mod judge; // from waits to a bound
mod metrics; // what is counted
#[cfg(test)]
mod model; // a worker on a clock of events

use judge::{Judge, Seen};
use metrics::OfWorker;
pub(crate) use metrics::OverloadMetrics;

/// Pause between two looks at the queue.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Who is refused is told to come back after so many seconds, at random: not all at once.
const RETRY_S: std::ops::RangeInclusive<u64> = 1..=3;

/// A worker's own: every request passes it.
#[derive(Debug)]
pub(crate) struct Gate {
    rules: Option<OverloadRules>,
    /// Most requests under way.
    room: AtomicUsize,
    under_way: AtomicUsize,
    came: AtomicU64,
    shed: AtomicU64,
    /// Nobody comes, so nobody looks.
    asleep: AtomicBool,
    wake: Notify,
    metrics: OfWorker,
}

impl Gate {
    /// Of the worker with this number. Without rules it lets everything pass.
    pub(crate) fn new(
        rules: Option<OverloadRules>,
        metrics: &OverloadMetrics,
        worker: usize,
    ) -> Gate {
        Gate {
            rules,
            room: AtomicUsize::new(usize::MAX),
            under_way: AtomicUsize::new(0),
            came: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            wake: Notify::new(),
            metrics: metrics.of(worker),
        }
    }

    /// A place for a request until its service has begun to answer; none if it is to be refused.
    pub(crate) fn enter(&self) -> Result<Place<'_>, Problem> {
        if self.rules.is_none() {
            return Ok(Place(None));
        }
        self.came.fetch_add(1, Relaxed);
        if self.asleep.load(Relaxed) {
            self.asleep.store(false, Relaxed);
            self.wake.notify_one();
        }
        if self.room.load(Relaxed) <= self.under_way.load(Relaxed) {
            self.shed.fetch_add(1, Relaxed);
            self.metrics.shed.inc();
            return Err(come_back());
        }
        self.under_way.fetch_add(1, Relaxed);
        Ok(Place(Some(self)))
    }

    /// Looks at the worker's queue for ever. A task of that worker: elsewhere it would see another
    /// queue.
    pub(crate) async fn watch(&self) {
        let Some(rules) = self.rules else { return };
        let mut judge = Judge::new(rules);
        let (mut came, mut delay) = (0, Duration::ZERO);
        loop {
            // A turn that takes longer than the pause is pause enough.
            if delay < LOOK_EVERY {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let (begun, before) = (Instant::now(), on_processor());
            tokio::task::yield_now().await;
            let now = Instant::now();
            delay = now.duration_since(begun);
            let worked = on_processor().saturating_sub(before);
            let (under_way, shed) = (self.under_way.load(Relaxed), self.shed.load(Relaxed));
            let room = judge.look(&Seen { now, delay, worked, under_way, shed });
            self.room.store(room.unwrap_or(usize::MAX), Relaxed);
            self.metrics.shedding.set(i64::from(room.is_some()));
            self.metrics.delay.set(delay.as_secs_f64());
            let more = self.came.load(Relaxed);
            if more == came && room.is_none() {
                self.metrics.delay.set(0.0);
                self.asleep.store(true, Relaxed);
                self.wake.notified().await;
            }
            came = more;
        }
    }
}

/// Counts a request under way until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a>(Option<&'a Gate>);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            gate.under_way.fetch_sub(1, Relaxed);
        }
    }
}

/// Processor time of this thread so far.
fn on_processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn come_back() -> Problem {
    let detail = "the gateway has more requests than it can handle in time";
    Problem::new(ErrorCode::Overloaded, detail).retry(Duration::from_secs(fastrand::u64(RETRY_S)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: OverloadRules =
        OverloadRules { target: Duration::from_millis(5), interval: Duration::from_millis(100) };

    #[test]
    fn beyond_its_room_requests_are_refused_and_a_place_is_free_again() {
        let gate = Gate::new(Some(RULES), &OverloadMetrics::default(), 0);
        gate.room.store(2, Relaxed);
        let (one, two) = (gate.enter(), gate.enter());
        assert!(one.is_ok() && two.is_ok());
        let refused = gate.enter().expect_err("there is no room");
        assert_eq!(refused.status().as_u16(), 503);
        assert_eq!(gate.metrics.shed.get(), 1);
        drop(one);
        assert!(gate.enter().is_ok());
    }

    #[test]
    fn without_rules_everything_passes() {
        let gate = Gate::new(None, &OverloadMetrics::default(), 0);
        gate.room.store(0, Relaxed);
        assert!(gate.enter().is_ok());
        assert_eq!(gate.under_way.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn nobody_looks_while_nobody_comes() {
        let gate = std::sync::Arc::new(Gate::new(Some(RULES), &OverloadMetrics::default(), 0));
        let own = std::sync::Arc::clone(&gate);
        let watching = daemon::tasks::spawn("watch", async move { own.watch().await });
        let asleep = async || {
            while !gate.asleep.load(Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let patience = Duration::from_secs(10);
        tokio::time::timeout(patience, asleep()).await.expect("it falls asleep");
        drop(gate.enter());
        assert!(!gate.asleep.load(Relaxed), "a request wakes it");
        tokio::time::timeout(patience, asleep()).await.expect("it falls asleep again");
        watching.abort();
    }
}
