//! Ends waits on time: the runtime's timers count whole milliseconds and are up to two late, which
//! is much of a deadline of five.
//!
//! A thread sleeps until the next deadline and rings for all that are due. Most waits end before
//! their deadline; the thread is not told and finds them gone, so that it wakes once per deadline
//! at most, however many wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

/// The thread sleeps so much longer than needed, and rings for all that are due by then.
const TOGETHER: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct Bell {
    rope: Arc<Rope>,
}

#[derive(Debug, Default)]
struct Rope {
    waits: Mutex<Waits>,
    pulled: Condvar,
}

/// Bounded by the requests that began to wait within the last deadline.
#[derive(Debug, Default)]
struct Waits {
    soonest: BinaryHeap<Reverse<Wait>>,
    has_thread: bool,
    closed: bool,
}

#[derive(Debug)]
struct Wait {
    at: Instant,
    ring: oneshot::Sender<()>,
}

impl Bell {
    /// Starts its thread when first needed.
    pub(crate) fn new() -> Bell {
        Bell { rope: Arc::default() }
    }

    /// Answers `Ok` after `wait`, not earlier; an error if the machine has no thread for it.
    pub(crate) fn after(&self, wait: Duration) -> oneshot::Receiver<()> {
        let (ring, rung) = oneshot::channel();
        let Some(at) = now().checked_add(wait) else { return rung };
        let mut waits = self.rope.waits.lock();
        let first = waits.soonest.peek().is_none_or(|Reverse(soonest)| at < soonest.at);
        waits.soonest.push(Reverse(Wait { at, ring }));
        if !waits.has_thread {
            waits.has_thread = self.rope.start();
            if !waits.has_thread {
                waits.soonest.clear();
            }
        } else if first {
            self.rope.pulled.notify_one();
        }
        rung
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.rope.waits.lock().closed = true;
        self.rope.pulled.notify_one();
    }
}

impl Rope {
    fn start(self: &Arc<Rope>) -> bool {
        let rope = Arc::clone(self);
        let name = "weir-deadlines".to_owned();
        thread::Builder::new().name(name).spawn(move || rope.ring()).is_ok()
    }

    fn ring(&self) {
        let mut waits = self.waits.lock();
        while !waits.closed {
            let now = now();
            let due = waits.take_due(now);
            if !due.is_empty() {
                // Whoever is woken may wait again at once.
                MutexGuard::unlocked(&mut waits, || due.into_iter().for_each(Wait::ring));
                continue;
            }
            match waits.soonest.peek() {
                Some(Reverse(next)) => {
                    let pause = next.at.saturating_duration_since(now) + TOGETHER;
                    let _told = self.pulled.wait_for(&mut waits, pause);
                }
                None => self.pulled.wait(&mut waits),
            }
        }
    }
}

impl Waits {
    /// Those that are due; those before the next one that have ended are forgotten.
    fn take_due(&mut self, now: Instant) -> Vec<Wait> {
        let mut due = Vec::new();
        while let Some(Reverse(next)) = self.soonest.peek()
            && (next.at <= now || next.ring.is_closed())
        {
            due.extend(self.soonest.pop().map(|Reverse(wait)| wait));
        }
        due
    }
}

impl Wait {
    /// One that has ended meanwhile hears nothing.
    fn ring(self) {
        let _ended = self.ring.send(());
    }
}

impl Ord for Wait {
    fn cmp(&self, other: &Wait) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl PartialOrd for Wait {
    fn partial_cmp(&self, other: &Wait) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Wait {
    fn eq(&self, other: &Wait) -> bool {
        self.at == other.at
    }
}

impl Eq for Wait {}

#[expect(clippy::disallowed_methods, reason = "a thread sleeps by the machine's clock")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_end_in_the_order_of_their_deadlines_and_not_early() {
        let bell = Bell::new();
        let begin = now();
        let long = bell.after(Duration::from_millis(40));
        let gone = bell.after(Duration::from_millis(5));
        let short = bell.after(Duration::from_millis(10));
        drop(gone);
        short.await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(10));
        long.await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(40));
        assert_eq!(bell.rope.waits.lock().soonest.len(), 0);
    }

    #[tokio::test]
    async fn a_bell_that_is_gone_rings_no_more() {
        let bell = Bell::new();
        let rung = bell.after(Duration::from_secs(3_600));
        let rope = Arc::downgrade(&bell.rope);
        drop(bell);
        // The thread lets go of the rope, and with it of the wait.
        assert!(rung.await.is_err());
        assert!(rope.upgrade().is_none());
    }
}
