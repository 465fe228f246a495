//! Trips after failures, probes after a pause: a state machine that is told the time.
//!
//! It decides only whether a store may be asked now. Slow is not failed: an answer that comes late
//! but comes never trips it, since tokens that arrive after the deadline are still good. What
//! counts as a failure (an error, or silence for [`Breaker::SILENCE`]) is for the caller to report; only
//! a heartbeat closes the breaker again, so calls from before it opened cannot make it flap.

use std::time::Duration;

use crate::time::Timestamp;

/// So many failures in a row open the breaker; a missed heartbeat counts as as many.
const FAILURES_IN_A_ROW: u32 = 5;
/// With so many calls in the window, one half of them failing opens the breaker.
const WINDOW_CALLS_MIN: u32 = 20;
/// The window: ten slots of 100 ms.
const SLOTS: usize = 10;
const SLOT_US: u64 = 100_000;
/// Pause before the first probe; doubles with each that fails.
const PROBE_FIRST_MS: u64 = 250;
/// Longest pause between probes, before jitter.
const PROBE_MAX_MS: u64 = 1_000;
/// A pause is this much of itself, at least and at most, in per mille.
const JITTER_PERMILLE: (u64, u64) = (700, 1_300);
/// After closing, the first second lets few calls out, and any failure opens again.
const RECOVERY: Duration = Duration::from_secs(1);

/// Keeps calls back from a store that does not answer.
#[derive(Debug)]
pub struct Breaker {
    phase: Phase,
    /// Calls and heartbeats that failed since the last one that was answered.
    failures_in_a_row: u32,
    window: [Slot; SLOTS],
    /// Passes given out and not ended.
    in_flight: u32,
    recovering_max: u32,
    /// Probes that failed since the breaker was last closed for a whole [`RECOVERY`].
    failed_probes: u32,
    openings: u64,
    random: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    Open { probe_at: Timestamp },
    Recovering { until: Timestamp },
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    tick: u64,
    calls: u32,
    failures: u32,
}

/// Leave to make one call. Outcomes of calls that left before the breaker opened are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    opening: u64,
}

impl Breaker {
    /// No answer within this long is a failure, of a call and of a heartbeat.
    pub const SILENCE: Duration = Duration::from_millis(100);

    /// A closed breaker. `seed` spreads the probes of many gateways; `recovering_max` calls may be
    /// out at a time in the first second after closing.
    pub fn new(seed: u64, recovering_max: u32) -> Breaker {
        Breaker {
            phase: Phase::Closed,
            failures_in_a_row: 0,
            window: [Slot::default(); SLOTS],
            in_flight: 0,
            recovering_max: recovering_max.max(1),
            failed_probes: 0,
            openings: 0,
            random: seed | 1,
        }
    }

    /// May a call leave now? If not, how long until it is worth asking again.
    pub fn admit(&mut self, now: Timestamp) -> Result<Pass, Duration> {
        self.settle(now);
        match self.phase {
            Phase::Closed => {}
            Phase::Open { probe_at } => return Err(probe_at.since(now)),
            Phase::Recovering { until } => {
                if self.in_flight >= self.recovering_max {
                    return Err(until.since(now));
                }
            }
        }
        self.in_flight += 1;
        Ok(Pass { opening: self.openings })
    }

    /// A call was answered, however late.
    pub fn answered(&mut self, pass: Pass, now: Timestamp) {
        if pass.opening == self.openings {
            self.good(now);
        }
    }

    /// A call failed: an error, or nothing for [`Breaker::SILENCE`]. Report each call once.
    pub fn failed(&mut self, pass: Pass, now: Timestamp) {
        if pass.opening != self.openings {
            return;
        }
        self.settle(now);
        self.failures_in_a_row += 1;
        self.count(now, 1);
        let (calls, failures) = self.recent(now);
        let half_fail = calls >= WINDOW_CALLS_MIN && 2 * failures >= calls;
        let recovering = matches!(self.phase, Phase::Recovering { .. });
        if self.failures_in_a_row >= FAILURES_IN_A_ROW || half_fail || recovering {
            self.open(now);
        }
    }

    /// A call is over, whatever became of it (also when its caller went away).
    pub fn ended(&mut self, _pass: Pass) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A heartbeat, or the first words on a fresh connection, was answered in time.
    pub fn heartbeat_answered(&mut self, now: Timestamp) {
        self.settle(now);
        match self.phase {
            Phase::Closed | Phase::Recovering { .. } => self.good(now),
            Phase::Open { .. } => {
                self.phase = Phase::Recovering { until: now.after(RECOVERY) };
                self.failures_in_a_row = 0;
                self.window = [Slot::default(); SLOTS];
            }
        }
    }

    /// A heartbeat was not answered in time, or a dial failed: whatever was sent behind it was not
    /// answered either.
    pub fn heartbeat_missed(&mut self, now: Timestamp) {
        self.settle(now);
        self.open(now);
    }

    /// Until the next heartbeat is due as a probe; `None` while calls may leave.
    pub fn probe_in(&self, now: Timestamp) -> Option<Duration> {
        match self.phase {
            Phase::Open { probe_at } => Some(probe_at.since(now)),
            Phase::Closed | Phase::Recovering { .. } => None,
        }
    }

    /// How often it opened.
    pub const fn openings(&self) -> u64 {
        self.openings
    }

    fn good(&mut self, now: Timestamp) {
        self.failures_in_a_row = 0;
        self.count(now, 0);
    }

    fn settle(&mut self, now: Timestamp) {
        if let Phase::Recovering { until } = self.phase
            && until <= now
        {
            self.phase = Phase::Closed;
            self.failed_probes = 0;
        }
    }

    fn open(&mut self, now: Timestamp) {
        match self.phase {
            Phase::Closed => self.openings += 1,
            Phase::Recovering { .. } => {
                self.openings += 1;
                self.failed_probes += 1;
            }
            Phase::Open { .. } => self.failed_probes += 1,
        }
        let pause_ms = (PROBE_FIRST_MS << self.failed_probes.min(8)).min(PROBE_MAX_MS);
        let (least, most) = JITTER_PERMILLE;
        let permille = least + self.next_random() % (most - least + 1);
        let probe_at = now.after(Duration::from_micros(pause_ms * permille));
        self.phase = Phase::Open { probe_at };
        self.failures_in_a_row = 0;
    }

    fn count(&mut self, now: Timestamp, failures: u32) {
        let tick = now.us() / SLOT_US;
        let index = usize::try_from(tick % SLOTS as u64).unwrap_or(0);
        if let Some(slot) = self.window.get_mut(index) {
            if slot.tick != tick {
                *slot = Slot { tick, ..Slot::default() };
            }
            slot.calls += 1;
            slot.failures += failures;
        }
    }

    /// Calls and failures of the last second.
    fn recent(&self, now: Timestamp) -> (u32, u32) {
        let oldest = (now.us() / SLOT_US + 1).saturating_sub(SLOTS as u64);
        let slots = self.window.iter().filter(|slot| slot.tick >= oldest);
        slots.fold((0, 0), |sum, slot| (sum.0 + slot.calls, sum.1 + slot.failures))
    }

    /// xorshift64: spreads probes, nothing else rests on it.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(1_000_000_000 + ms * 1_000)
    }

    /// Plays `ms verb [count]` lines and checks what each promises.
    fn check(script: &str) {
        let mut breaker = Breaker::new(7, 8);
        let mut passes = Vec::new();
        for line in script.split('|').map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let now = at(words.next().unwrap().parse().unwrap());
            let verb = words.next().unwrap();
            let count = words.next().map_or(1, |count| count.parse::<u32>().unwrap());
            for _ in 0..count {
                match verb {
                    "admitted" => passes.push(breaker.admit(now).expect(line)),
                    "kept-back" => assert!(breaker.admit(now).is_err(), "{line}"),
                    "answered" => {
                        let pass = breaker.admit(now).expect(line);
                        breaker.answered(pass, now);
                        breaker.ended(pass);
                    }
                    "failed" => {
                        let pass = breaker.admit(now).expect(line);
                        breaker.failed(pass, now);
                        breaker.ended(pass);
                    }
                    "old-call-fails" => breaker.failed(passes.pop().expect(line), now),
                    "old-call-answered" => breaker.answered(passes.pop().expect(line), now),
                    "old-call-ends" => breaker.ended(passes.pop().expect(line)),
                    "beat" => breaker.heartbeat_answered(now),
                    "missed" => breaker.heartbeat_missed(now),
                    "open" => assert!(breaker.probe_in(now).is_some(), "{line}"),
                    "shut" => assert_eq!(breaker.probe_in(now), None, "{line}"),
                    other => panic!("no verb {other}"),
                }
            }
        }
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        check("0 failed 4 | 0 shut | 1 failed | 1 open | 1 kept-back 100");
        check("0 failed 4 | 1 answered | 2 failed 4 | 2 shut | 3 failed | 3 open");
    }

    #[test]
    fn one_missed_heartbeat_opens_it() {
        check("0 answered 1000 | 1 missed | 1 open | 2 kept-back");
    }

    #[test]
    fn half_of_twenty_calls_failing_opens_it_and_one_fewer_does_not() {
        let pair = "0 answered | 0 failed |".repeat(9);
        check(&format!("{pair} 0 answered | 0 shut | 0 failed | 0 open"));
        check(&format!("{pair} 0 answered 2 | 0 failed | 0 shut"));
        check(&format!("{pair} 0 answered | 1000 failed | 1000 shut"));
    }

    #[test]
    fn late_answers_never_open_it() {
        check("0 admitted 50 | 90 old-call-answered 50 | 90 answered 500 | 240 shut");
    }

    #[test]
    fn only_a_heartbeat_closes_it() {
        check("0 admitted 2 | 0 missed | 50 old-call-answered | 50 open | 60 beat | 60 shut");
    }

    #[test]
    fn the_first_second_after_closing_lets_eight_calls_out_at_a_time() {
        let opened = "0 missed | 300 beat |";
        check(&format!(
            "{opened} 300 admitted 8 | 300 kept-back | 301 old-call-ends | 301 admitted \
             | 301 kept-back | 1299 kept-back | 1300 admitted 100"
        ));
        check(&format!("{opened} 400 failed | 400 open"));
        check(&format!("{opened} 1300 failed 4 | 1300 shut"));
    }

    #[test]
    fn calls_from_before_it_opened_do_not_open_it_again() {
        check("0 admitted 3 | 0 missed | 300 beat | 310 old-call-fails 3 | 310 shut");
    }

    #[test]
    fn pauses_double_up_to_a_second_with_jitter() {
        for seed in 0..200 {
            let mut breaker = Breaker::new(seed * 7_919, 8);
            let mut now = at(0);
            for pause_ms in [250, 500, 1_000, 1_000, 1_000] {
                breaker.heartbeat_missed(now);
                let probe_in = breaker.probe_in(now).unwrap();
                let least = Duration::from_micros(pause_ms * 700);
                let most = Duration::from_micros(pause_ms * 1_300);
                assert!(least <= probe_in && probe_in <= most, "seed {seed}: {probe_in:?}");
                now = now.after(probe_in);
            }
        }
    }

    #[test]
    fn the_pause_starts_over_only_after_a_good_second() {
        let mut breaker = Breaker::new(3, 8);
        breaker.heartbeat_missed(at(0));
        breaker.heartbeat_answered(at(300));
        let pass = breaker.admit(at(400)).unwrap();
        breaker.failed(pass, at(400));
        assert!(breaker.probe_in(at(400)).unwrap() >= Duration::from_millis(350));
        breaker.heartbeat_answered(at(1_000));
        breaker.heartbeat_missed(at(2_000));
        assert!(breaker.probe_in(at(2_000)).unwrap() <= Duration::from_millis(325));
    }
}
