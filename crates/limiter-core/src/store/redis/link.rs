//! One supervised connection: dialled, watched and replaced by a task of its own.
//!
//! Callers never wait for a dial: they find a connection or find none. The client library keeps a
//! connection whose server has stopped answering, so a heartbeat finds out: one goes out every
//! 250 ms and as soon as a call has waited for 100 ms; two that stay unanswered replace it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::counters::RedisCounters;
use super::{health, script};
use crate::breaker::{Breaker, Pass};
use crate::time::Clock;

/// Pause between heartbeats while all is well.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(250);
/// Heartbeats in a row without an answer after which a connection is replaced.
const MISSES_MAX: u32 = 2;
/// Heartbeats between two looks at the server's own state.
const BEATS_PER_LOOK: u32 = 8;
/// For the connection, its greeting and the script together.
const DIAL_MAX: Duration = Duration::from_millis(600);
/// A connection that lived for less is no sign of health: the next dial waits.
const HEALTHY_AFTER: Duration = Duration::from_secs(1);
/// Calls that one connection carries at a time; beyond this a caller finds none.
const CALLS_MAX: usize = 4_096;

/// A connection that may be there, and the breaker before it.
#[derive(Debug)]
pub(super) struct Link {
    connection: ArcSwapOption<Dialled>,
    breaker: Mutex<Breaker>,
    clock: Arc<dyn Clock>,
    /// A heartbeat is wanted now, or the connection has gone.
    attention: Notify,
    calls: AtomicUsize,
    /// Why the last dial failed.
    trouble: ArcSwapOption<String>,
}

/// A connection whose server knew the script when it was made.
pub(super) struct Dialled {
    pub(super) connection: MultiplexedConnection,
}

impl std::fmt::Debug for Dialled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialled")
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
            trouble: ArcSwapOption::empty(),
        }
    }

    /// A leave to call, if there is a connection and the breaker lets calls out.
    pub(super) fn enter(&self) -> Result<Entered<'_>, Closed> {
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
        Ok(Entered { link: self, dialled, pass, reported: false })
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
        self.trouble.load_full()
    }

    fn heartbeat_answered(&self) {
        self.breaker.lock().heartbeat_answered(self.clock.now());
    }

    fn heartbeat_missed(&self) {
        self.breaker.lock().heartbeat_missed(self.clock.now());
    }
}

/// One call's stay on a link. Its end is counted however it ends, also by being dropped.
pub(super) struct Entered<'a> {
    link: &'a Link,
    pub(super) dialled: Arc<Dialled>,
    pass: Pass,
    reported: bool,
}

impl Entered<'_> {
    pub(super) fn answered(&self) {
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

    /// The server is not one that takes writes: dial again, with pauses.
    pub(super) fn wrong_node(&self) {
        self.link.heartbeat_missed();
        self.abandon();
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
    }
}

/// Keeps a link connected until told to stop.
pub(super) struct Supervisor {
    pub(super) link: Arc<Link>,
    pub(super) client: Client,
    pub(super) config: AsyncConnectionConfig,
    pub(super) counters: Arc<RedisCounters>,
    pub(super) stop: watch::Receiver<bool>,
}

enum Beat {
    Answered,
    /// The server speaks, but not of health (it loads, or wants a password).
    Unwell,
    Silent,
    Broken,
}

impl Supervisor {
    pub(super) async fn run(self) {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = self.supervise() => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
        self.link.connection.store(None);
    }

    async fn supervise(&self) {
        let mut dialled_before = false;
        loop {
            self.counters.dials.fetch_add(1, Ordering::Relaxed);
            let dialled = timeout(DIAL_MAX, self.dial()).await;
            match dialled.unwrap_or_else(|elapsed| Err(io::Error::from(elapsed).into())) {
                Ok(connection) => {
                    if dialled_before {
                        self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
                    }
                    dialled_before = true;
                    self.link.trouble.store(None);
                    self.serve(connection).await;
                }
                Err(error) => {
                    self.link.trouble.store(Some(Arc::new(error.to_string())));
                    self.missed();
                }
            }
            if let Some(pause) = self.link.probe_in() {
                sleep(pause).await;
            }
        }
    }

    /// Lets calls use the connection until it has to be replaced.
    async fn serve(&self, connection: MultiplexedConnection) {
        let began = self.link.clock.now();
        self.link.heartbeat_answered();
        let dialled = Dialled { connection: connection.clone() };
        self.link.connection.store(Some(Arc::new(dialled)));
        self.watch(connection).await;
        self.link.connection.store(None);
        if self.link.clock.now().since(began) < HEALTHY_AFTER {
            self.missed();
        }
    }

    async fn dial(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&self.config).await?;
        // Before the long text: to a stranger this says why, the text only breaks the protocol.
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        script::load(&mut connection).await?;
        health::look(&mut connection, &self.counters).await;
        Ok(connection)
    }

    /// Returns when the connection has to be replaced.
    async fn watch(&self, mut connection: MultiplexedConnection) {
        let mut misses = 0;
        let mut beats: u32 = 0;
        loop {
            self.pause().await;
            if !self.link.is_linked() {
                return;
            }
            match beat(&mut connection).await {
                Beat::Answered => {
                    misses = 0;
                    self.link.heartbeat_answered();
                    beats = beats.wrapping_add(1);
                    if beats.is_multiple_of(BEATS_PER_LOOK) {
                        let look = health::look(&mut connection, &self.counters);
                        let _unanswered = timeout(Breaker::SILENCE, look).await;
                    }
                }
                Beat::Unwell => self.missed(),
                Beat::Silent => {
                    self.missed();
                    misses += 1;
                    if misses >= MISSES_MAX {
                        return;
                    }
                }
                Beat::Broken => return,
            }
        }
    }

    fn missed(&self) {
        self.counters.heartbeats_missed.fetch_add(1, Ordering::Relaxed);
        self.link.heartbeat_missed();
    }

    /// Until the next heartbeat: at its time, or at once when a call waits in vain; while the
    /// breaker is open, not before the probe is due. Ends early when the connection has gone.
    async fn pause(&self) {
        let mut wait = self.link.probe_in().unwrap_or(HEARTBEAT_EVERY);
        loop {
            let _elapsed = timeout(wait, self.link.attention.notified()).await.is_err();
            match self.link.probe_in() {
                Some(probe) if !probe.is_zero() && self.link.is_linked() => wait = probe,
                Some(_) | None => return,
            }
        }
    }
}

/// The text comes back, so an answer that belongs to another command is noticed too.
async fn beat(connection: &mut MultiplexedConnection) -> Beat {
    let text = fastrand::u64(..).to_string();
    let mut ping = redis::cmd("PING");
    ping.arg(&text);
    match timeout(Breaker::SILENCE, ping.query_async::<String>(connection)).await {
        Ok(Ok(echo)) if echo == text => Beat::Answered,
        Ok(Err(error)) if error.code().is_some() => Beat::Unwell,
        Ok(Ok(_) | Err(_)) => Beat::Broken,
        Err(_) => Beat::Silent,
    }
}
