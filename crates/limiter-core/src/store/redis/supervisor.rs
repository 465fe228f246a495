//! Keeps one link connected to the server that its node means at present.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::address::HostPort;
use super::dial::{DialError, Dialler, Greeted, Wanted};
use super::health;
use super::link::Link;
use super::node::{Presence, Shared};
use crate::breaker::Breaker;

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

/// Works until told to stop.
pub(super) struct Supervisor {
    pub(super) link: Arc<Link>,
    pub(super) presence: Arc<Presence>,
    pub(super) dialler: Arc<Dialler>,
    pub(super) wanted: Wanted,
    pub(super) shared: Arc<Shared>,
    pub(super) target: watch::Receiver<Option<HostPort>>,
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
    pub(super) async fn run(mut self) {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = self.supervise() => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
        self.link.publish(None);
    }

    async fn supervise(&mut self) {
        let mut dialled_before = false;
        loop {
            let target = self.target.borrow_and_update().clone();
            let Some(to) = target else {
                if self.target.changed().await.is_err() {
                    return;
                }
                continue;
            };
            self.shared.counters.dials.fetch_add(1, Ordering::Relaxed);
            match self.dial(&to).await {
                Ok(greeted) => {
                    if dialled_before {
                        self.shared.counters.reconnects.fetch_add(1, Ordering::Relaxed);
                    }
                    self.presence.met(greeted.run_id, dialled_before);
                    dialled_before = true;
                    self.link.set_trouble(None);
                    self.serve(greeted.connection).await;
                }
                Err(error) => {
                    self.link.set_trouble(Some(format!("{to}: {error}")));
                    self.missed();
                }
            }
            self.presence.wish.notify_one();
            if let Some(pause) = self.link.probe_in() {
                // A new address is worth a try at once.
                tokio::select! {
                    () = sleep(pause) => {}
                    _ = self.target.changed() => {}
                }
            }
        }
    }

    async fn dial(&self, to: &HostPort) -> Result<Greeted, DialError> {
        let greeted = self.dialler.greet(to, self.wanted, &self.shared.counters);
        timeout(DIAL_MAX, greeted).await.unwrap_or(Err(DialError::TimedOut))
    }

    /// Lets calls use the connection until it has to be replaced.
    async fn serve(&mut self, connection: MultiplexedConnection) {
        let began = self.link.clock.now();
        self.link.heartbeat_answered();
        self.link.publish(Some(connection.clone()));
        self.presence.linked.notify_one();
        let mut target = self.target.clone();
        let moved = tokio::select! {
            () = self.watch(connection) => false,
            changed = target.changed() => changed.is_ok(),
        };
        self.link.publish(None);
        if !moved && self.link.clock.now().since(began) < HEALTHY_AFTER {
            self.missed();
        }
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
                    if beats.is_multiple_of(BEATS_PER_LOOK)
                        && !self.still_fit(&mut connection).await
                    {
                        return;
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

    /// False for a server that was demoted while nobody called.
    async fn still_fit(&self, connection: &mut MultiplexedConnection) -> bool {
        let look = health::look(connection, &self.shared.counters);
        let is_primary = timeout(Breaker::SILENCE, look).await.unwrap_or(true);
        is_primary || self.wanted == Wanted::Any
    }

    fn missed(&self) {
        self.shared.counters.heartbeats_missed.fetch_add(1, Ordering::Relaxed);
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
