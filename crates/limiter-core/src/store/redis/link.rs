//! One supervised connection: dialled, watched and replaced by a task of its own.
//!
//! Callers never wait for a dial: they find a connection or find none. The client library keeps a
//! connection whose server has stopped answering, so a heartbeat finds out: one goes out every
//! 250 ms and as soon as a call has waited for 100 ms; two that stay unanswered replace it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;

use crate::breaker::{Breaker, Pass};
use crate::key::BucketKey;
use crate::time::Clock;

/// Calls that one connection carries at a time; beyond this a caller finds none.
const CALLS_MAX: usize = 4_096;
/// Keys are told apart by so many bits when two calls of one key must not share a connection.
const LANES: usize = 4_096;

/// A connection that may be there, and the breaker before it.
pub(super) struct Link {
    connection: ArcSwapOption<Dialled>,
    breaker: Mutex<Breaker>,
    pub(super) clock: Arc<dyn Clock>,
    /// A heartbeat is wanted now, or the connection has gone.
    pub(super) attention: Notify,
    calls: AtomicUsize,
    /// Calls that are out, by key.
    lanes: Box<[AtomicU16]>,
    /// Why the last dial failed.
    trouble: ArcSwapOption<String>,
    /// What the account was not allowed at the last call, and whether there is such a thing.
    forbidden: ArcSwapOption<String>,
    is_forbidden: AtomicBool,
}

/// A connection whose server knew the script when it was made.
pub(super) struct Dialled {
    pub(super) connection: MultiplexedConnection,
    tags: AtomicU16,
}

impl Dialled {
    /// Comes again after more calls than a connection carries at a time.
    pub(super) fn next_tag(&self) -> u16 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }
}

/// Why a link carries no call now.
pub(super) enum Closed {
    Tripped(Duration),
    Unlinked,
    Full,
}

impl Link {
    pub(super) fn new(breaker: Breaker, clock: Arc<dyn Clock>) -> Link {
        Link {
            connection: ArcSwapOption::empty(),
            breaker: Mutex::new(breaker),
            clock,
            attention: Notify::new(),
            calls: AtomicUsize::new(0),
            lanes: (0..LANES).map(|_| AtomicU16::new(0)).collect(),
            trouble: ArcSwapOption::empty(),
            forbidden: ArcSwapOption::empty(),
            is_forbidden: AtomicBool::new(false),
        }
    }

    /// Whether a call of this key is out here (or, seldom, one of another key).
    pub(super) fn carries(&self, key: &BucketKey) -> bool {
        self.lane(key).load(Ordering::Relaxed) > 0
    }

    fn lane(&self, key: &BucketKey) -> &AtomicU16 {
        let [first, second, ..] = *key.bytes();
        let index = usize::from(u16::from_le_bytes([first, second])) % LANES;
        self.lanes.get(index).expect("the index is reduced modulo the number of lanes")
    }

    /// A leave to call, if there is a connection and the breaker lets calls out.
    pub(super) fn enter(&self, key: &BucketKey) -> Result<Entered<'_>, Closed> {
        let now = self.clock.now();
        let Some(dialled) = self.connection.load_full() else {
            let tripped = self.breaker.lock().probe_in(now);
            return Err(tripped.map_or(Closed::Unlinked, Closed::Tripped));
        };
        if self.calls.load(Ordering::Relaxed) >= CALLS_MAX {
            return Err(Closed::Full);
        }
        let pass = self.breaker.lock().admit(now).map_err(Closed::Tripped)?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let lane = self.lane(key);
        lane.fetch_add(1, Ordering::Relaxed);
        Ok(Entered { link: self, lane, dialled, pass, reported: false })
    }

    pub(super) fn connection(&self) -> Option<MultiplexedConnection> {
        Some(self.connection.load().as_ref()?.connection.clone())
    }

    pub(super) fn is_linked(&self) -> bool {
        self.connection.load().is_some()
    }

    pub(super) fn probe_in(&self) -> Option<Duration> {
        self.breaker.lock().probe_in(self.clock.now())
    }

    pub(super) fn openings(&self) -> u64 {
        self.breaker.lock().openings()
    }

    pub(super) fn trouble(&self) -> Option<Arc<String>> {
        self.trouble.load_full().or_else(|| self.forbidden.load_full())
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        self.trouble.store(trouble.map(Arc::new));
    }

    pub(super) fn publish(&self, connection: Option<MultiplexedConnection>) {
        let dialled = connection.map(|connection| {
            Arc::new(Dialled { connection, tags: AtomicU16::new(fastrand::u16(..)) })
        });
        self.connection.store(dialled);
    }

    pub(super) fn heartbeat_answered(&self) {
        self.breaker.lock().heartbeat_answered(self.clock.now());
    }

    pub(super) fn heartbeat_missed(&self) {
        self.breaker.lock().heartbeat_missed(self.clock.now());
    }
}

/// One call's stay on a link. Its end is counted however it ends, also by being dropped.
pub(super) struct Entered<'a> {
    link: &'a Link,
    lane: &'a AtomicU16,
    pub(super) dialled: Arc<Dialled>,
    pass: Pass,
    reported: bool,
}

impl Entered<'_> {
    pub(super) fn answered(&self) {
        if self.link.is_forbidden.load(Ordering::Relaxed) {
            self.link.is_forbidden.store(false, Ordering::Relaxed);
            self.link.forbidden.store(None);
        }
        self.link.breaker.lock().answered(self.pass, self.link.clock.now());
    }

    /// Reports a failure, once.
    pub(super) fn failed(&mut self) {
        if !self.reported {
            self.reported = true;
            self.link.breaker.lock().failed(self.pass, self.link.clock.now());
        }
    }

    /// Nothing came for [`Breaker::SILENCE`]: a failure, and the supervisor asks the server at once.
    pub(super) fn silent(&mut self) {
        self.failed();
        self.link.attention.notify_one();
    }

    /// The server will not do for calls as it is: dial again, with pauses.
    pub(super) fn unfit(&self) {
        self.link.heartbeat_missed();
        self.abandon();
    }

    /// The account may not do what calls do.
    pub(super) fn forbidden(&self, what: String) {
        self.link.forbidden.store(Some(Arc::new(what)));
        self.link.is_forbidden.store(true, Ordering::Relaxed);
        self.unfit();
    }

    /// Drops this call's connection, unless it has been replaced already.
    pub(super) fn abandon(&self) {
        let current = self.link.connection.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &self.dialled)) {
            self.link.connection.store(None);
        }
        self.link.attention.notify_one();
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.link.breaker.lock().ended(self.pass);
        self.link.calls.fetch_sub(1, Ordering::Relaxed);
        self.lane.fetch_sub(1, Ordering::Relaxed);
    }
}
