//! Whether an endpoint is used: what probes say (active) and what requests met (passive).
//!
//! Two state machines that are told the time, behind atomics that all workers share. An endpoint
//! is used unless its probes failed `fall` times in a row, or its requests failed so often in a
//! row that it is set aside for a while, or until `rise` probes in a row find it well. An unprobed
//! endpoint counts as well: a gateway that starts must not refuse what it has not asked yet.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Active probes of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeRules {
    /// Path that is asked for.
    pub path: String,
    /// How often.
    pub every: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Failures in a row until it is down.
    pub fall: u32,
    /// Successes in a row until it is up again.
    pub rise: u32,
}

/// Passive ejection of an upstream's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EjectionRules {
    /// Failed requests in a row that eject an endpoint; 0 never does.
    pub consecutive: u32,
    /// For how long.
    pub period: Duration,
    /// Most endpoints ejected at once, in hundredths of all.
    pub max_percent: usize,
}

/// What a request met at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// An answer that shows a working service.
    Answer,
    /// No connection, no answer, or one that says that it cannot serve (502, 503, 504).
    Failure,
}

/// Health of one endpoint, shared by workers and probes.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Down by probes; false until they say so.
    down: AtomicBool,
    /// Probes in a row that said the other thing than `down` does.
    against: AtomicU32,
    /// Requests in a row that failed.
    failed: AtomicU32,
    /// End of an ejection, microseconds of the gateway's clock; 0 if there was none.
    ejected_until_us: AtomicU64,
    /// Probes in a row that found it well while it was ejected.
    cured: AtomicU32,
    /// When probes last found it up again, or it was found by its name; 0 if it never was away.
    up_since_us: AtomicU64,
    /// Requests out now.
    in_flight: AtomicUsize,
}

impl Health {
    /// Of an endpoint that is new at `now_us`.
    pub(crate) fn new_at(now_us: u64) -> Health {
        Health { up_since_us: AtomicU64::new(now_us), ..Health::default() }
    }

    /// Whether it is used at `now_us`.
    pub(crate) fn is_usable(&self, now_us: u64) -> bool {
        !self.down.load(Ordering::Relaxed) && !self.is_ejected(now_us)
    }

    /// Requests out now.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// When it was last away until; 0 if it never was.
    pub(crate) fn returned_us(&self) -> u64 {
        let ejected_until_us = self.ejected_until_us.load(Ordering::Relaxed);
        self.up_since_us.load(Ordering::Relaxed).max(ejected_until_us)
    }

    /// Whether it is set aside at `now_us`.
    pub(crate) fn is_ejected(&self, now_us: u64) -> bool {
        now_us < self.ejected_until_us.load(Ordering::Relaxed)
    }

    /// Counts a request in, if fewer than `most` are out.
    pub(crate) fn begin(&self, most: usize) -> bool {
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if before < most {
            true
        } else {
            self.end();
            false
        }
    }

    /// Counts it out. Who waits for room is looked for after this, never before.
    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes a probe's result; whether the endpoint went up or down by it.
    pub(crate) fn probed(&self, well: bool, now_us: u64, rules: &ProbeRules) -> Option<Turn> {
        let turn = self.turned(well, rules);
        let cured = self.cured(well, now_us, rules);
        let up = cured || turn == Some(Turn::Up);
        if up {
            self.up_since_us.store(now_us, Ordering::Relaxed);
        }
        if up && self.is_usable(now_us) { Some(Turn::Up) } else { turn.filter(|_| !up) }
    }

    /// Ends an ejection when enough probes have found it well since.
    fn cured(&self, well: bool, now_us: u64, rules: &ProbeRules) -> bool {
        if !well || !self.is_ejected(now_us) {
            self.cured.store(0, Ordering::Relaxed);
            return false;
        }
        let cured = rules.rise <= self.cured.fetch_add(1, Ordering::Relaxed) + 1;
        if cured {
            self.ejected_until_us.store(0, Ordering::Relaxed);
        }
        cured
    }

    fn turned(&self, well: bool, rules: &ProbeRules) -> Option<Turn> {
        let down = self.down.load(Ordering::Relaxed);
        if well != down {
            self.against.store(0, Ordering::Relaxed);
            return None;
        }
        let against = self.against.fetch_add(1, Ordering::Relaxed) + 1;
        let needed = if down { rules.rise } else { rules.fall };
        if against < needed {
            return None;
        }
        self.against.store(0, Ordering::Relaxed);
        self.down.store(!down, Ordering::Relaxed);
        Some(if down { Turn::Up } else { Turn::Down })
    }

    /// Takes what a request met. True if the endpoint has failed often enough to be ejected; the
    /// caller knows whether that is allowed and calls [`Health::eject`].
    pub(crate) fn met(&self, met: Met, rules: &EjectionRules) -> bool {
        match met {
            Met::Answer => {
                // Read first: in good times this line stays shared between the cores.
                if self.failed.load(Ordering::Relaxed) != 0 {
                    self.failed.store(0, Ordering::Relaxed);
                }
                false
            }
            Met::Failure => {
                let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
                rules.consecutive > 0 && failed >= rules.consecutive
            }
        }
    }

    /// Sets it aside.
    pub(crate) fn eject(&self, now_us: u64, rules: &EjectionRules) {
        self.failed.store(0, Ordering::Relaxed);
        self.cured.store(0, Ordering::Relaxed);
        let period_us = u64::try_from(rules.period.as_micros()).unwrap_or(u64::MAX);
        self.ejected_until_us.store(now_us.saturating_add(period_us), Ordering::Relaxed);
    }
}

/// A change by probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is used again.
    Up,
    /// It is no longer used.
    Down,
}

/// Whether one more of `all` endpoints may be ejected when `ejected` are.
pub(crate) const fn may_eject(rules: &EjectionRules, ejected: usize, all: usize) -> bool {
    (ejected + 1) * 100 <= rules.max_percent * all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(fall: u32, rise: u32) -> ProbeRules {
        let second = Duration::from_secs(1);
        ProbeRules { path: "/".to_owned(), every: second, timeout: second, fall, rise }
    }

    const EJECTION: EjectionRules =
        EjectionRules { consecutive: 3, period: Duration::from_secs(10), max_percent: 50 };

    #[test]
    fn probes_need_several_in_a_row() {
        let (health, rules) = (Health::default(), probes(3, 2));
        let turns: Vec<_> = "ffwfffwfww"
            .chars()
            .filter_map(|c| health.probed(c == 'w', 9, &rules).map(|turn| (c, turn)))
            .collect();
        assert_eq!(turns, [('f', Turn::Down), ('w', Turn::Up)]);
        assert!(health.is_usable(9));
        assert_eq!(health.returned_us(), 9);
    }

    #[test]
    fn probes_that_find_it_well_end_an_ejection_early() {
        let (health, rules) = (Health::default(), probes(3, 2));
        health.eject(0, &EJECTION);
        for (well, turn) in [(true, None), (false, None), (true, None), (true, Some(Turn::Up))] {
            assert!(!health.is_usable(5));
            assert_eq!(health.probed(well, 5, &rules), turn);
        }
        assert!(health.is_usable(5));
        assert_eq!(health.returned_us(), 5);
        // One that is down by its probes too comes back when they say so.
        let turns: Vec<_> = (0..3).map(|_| health.probed(false, 6, &rules)).collect();
        assert_eq!(turns, [None, None, Some(Turn::Down)]);
        health.eject(6, &EJECTION);
        assert_eq!(health.probed(true, 7, &rules), None);
        assert_eq!(health.probed(true, 7, &rules), Some(Turn::Up));
        assert!(health.is_usable(7));
    }

    #[test]
    fn failures_in_a_row_eject_for_a_while() {
        let health = Health::default();
        assert!(!health.met(Met::Failure, &EJECTION));
        assert!(!health.met(Met::Failure, &EJECTION));
        assert!(!health.met(Met::Answer, &EJECTION));
        assert!(!health.met(Met::Failure, &EJECTION));
        assert!(!health.met(Met::Failure, &EJECTION));
        assert!(health.met(Met::Failure, &EJECTION));
        health.eject(5, &EJECTION);
        assert!(!health.is_usable(10_000_004));
        assert!(health.is_usable(10_000_005));
        assert_eq!(health.returned_us(), 10_000_005);
    }

    #[test]
    fn ejection_can_be_off_and_has_a_share() {
        let health = Health::default();
        let off = EjectionRules { consecutive: 0, ..EJECTION };
        assert!(!(0..100).any(|_| health.met(Met::Failure, &off)));
        assert!(!may_eject(&EJECTION, 0, 1));
        assert!(may_eject(&EJECTION, 0, 2));
        assert!(!may_eject(&EJECTION, 1, 3));
    }

    #[test]
    fn requests_out_are_bounded() {
        let health = Health::default();
        assert!(health.begin(2) && health.begin(2) && !health.begin(2));
        health.end();
        assert!(health.begin(2));
        assert_eq!(health.in_flight(), 2);
    }
}
