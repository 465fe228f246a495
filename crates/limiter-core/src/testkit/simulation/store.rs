//! The store of a run: one bucket pair under the arithmetic that is judged, a clock that may step,
//! and a memory that may be lost.

use super::ideal::float;
use super::scenario::Scenario;
use crate::bucket::State;
use crate::call::{Found, Reply, Request};
use crate::testkit::mutants::Apply;
use crate::time::Timestamp;

const EPOCH_US: u64 = 1_800_000_000_000_000;
/// Writes that a failover can lose.
const HISTORY_MAX: usize = 4_096;

#[derive(Debug)]
pub(super) struct Store {
    apply: Apply,
    kept: Option<Kept>,
    history: std::collections::VecDeque<(u64, Option<Kept>)>,
    offset_us: i64,
    pub(super) epoch: u64,
    pub(super) away_since: Option<u64>,
    pub(super) away_until: u64,
    pub(super) taken: u64,
    pub(super) owed: u64,
    /// The first broken promise of the arithmetic.
    pub(super) broken: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    state: State,
    until: Timestamp,
}

impl Store {
    pub(super) fn new(scenario: &Scenario) -> Store {
        Store {
            apply: scenario.apply,
            kept: None,
            history: std::collections::VecDeque::new(),
            offset_us: 0,
            epoch: 0,
            away_since: None,
            away_until: 0,
            taken: 0,
            owed: 0,
            broken: None,
        }
    }

    fn now(&self, now_us: u64) -> Timestamp {
        Timestamp::from_us((EPOCH_US + now_us).saturating_add_signed(self.offset_us))
    }

    fn live(&self, now: Timestamp) -> Option<State> {
        self.kept.filter(|kept| now < kept.until).map(|kept| kept.state)
    }

    pub(super) fn is_away(&self, now_us: u64) -> bool {
        now_us < self.away_until
    }

    pub(super) fn call(&mut self, request: &Request, now_us: u64) -> Reply {
        let now = self.now(now_us);
        let state = self.live(now);
        let found = if state.is_some() { Found::Known } else { Found::Nothing };
        let applied = (self.apply)(state, found, request, now);
        if let Some(keep_ms) = applied.keep_ms {
            let until = now.after(std::time::Duration::from_millis(keep_ms));
            self.history.push_back((now_us, self.kept));
            if self.history.len() > HISTORY_MAX {
                self.history.pop_front();
            }
            self.kept = Some(Kept { state: applied.state, until });
        }
        self.taken += applied.reply.granted + applied.reply.lent;
        self.owed += request.owed.burst;
        let outstanding = (applied.state.lent_now + applied.state.lent_before).cast_signed();
        for (level, limit) in applied.state.levels.with(&applied.state.plan.limits) {
            let capacity = limit.capacity().get().cast_signed();
            if level.tokens > 0 && level.tokens + outstanding > capacity && self.broken.is_none() {
                self.broken = Some(format!(
                    "level {} and {outstanding} lent are more than {capacity}",
                    level.tokens
                ));
            }
        }
        applied.reply
    }

    /// Tokens that count as lent now, and the plan version in force.
    pub(super) fn outstanding(&self, now_us: u64) -> (u64, u64) {
        let now = self.now(now_us);
        let Some(state) = self.live(now) else { return (0, 0) };
        let present = now.us() / crate::call::GENERATION_US;
        let lent = match present.saturating_sub(state.generation) {
            0 => state.lent_now + state.lent_before,
            1 => state.lent_now,
            _ => 0,
        };
        (lent, state.plan.version.0)
    }

    pub(super) fn version(&self) -> u64 {
        self.kept.map_or(0, |kept| kept.state.plan.version.0)
    }

    pub(super) fn forget(&mut self) {
        self.kept = None;
        self.history.clear();
        self.epoch += 1;
    }

    pub(super) fn roll_back(&mut self, to_us: u64) {
        while let Some((at, before)) = self.history.pop_back() {
            if at < to_us {
                break;
            }
            self.kept = before;
        }
        self.history.clear();
        self.epoch += 1;
    }

    /// What a step of the clock may add to a bucket, in tokens: forward, what is believed to have
    /// been earned.
    pub(super) fn step(&mut self, by_us: i64, scenario: &Scenario) -> f64 {
        self.offset_us += by_us;
        let ahead = float(u64::try_from(by_us).unwrap_or(0));
        let added = scenario.limits.iter().map(|limit| {
            let rate = float(limit.refill().tokens()) / float(limit.refill().per_us());
            (ahead * rate).min(float(limit.capacity().get()))
        });
        added.fold(0.0, f64::max)
    }
}
