//! What the callers' lines and the service's log say of promises.

use std::collections::HashMap;

use system_tests::oracle::{Contract, Origin, deepest_excess, float};
use system_tests::services::Arrived;

use super::callers::Line;

/// A promise may be this much of a token early: the clocks of Redis and callers do not tick alike,
/// and a token takes microseconds to be counted.
const EARLY_MAX: f64 = 0.02;

/// Retries of some clients.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retries {
    /// First retries.
    pub first: usize,
    /// Those that were let pass.
    pub first_passed: usize,
    /// All retries.
    pub all: usize,
    /// All refusals.
    pub refused: usize,
    /// All requests that were let pass.
    pub passed: usize,
}

impl Retries {
    /// Of these lines.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Retries {
        let mut retries = Retries::default();
        for line in lines {
            retries.first += usize::from(line.attempt == 1);
            retries.first_passed += usize::from(line.attempt == 1 && line.passed);
            retries.all += usize::from(line.attempt > 0);
            retries.refused += usize::from(!line.passed);
            retries.passed += usize::from(line.passed);
        }
        retries
    }

    /// Share of the first retries that were let pass.
    pub fn first_share(&self) -> f64 {
        float(self.first_passed) / float(self.first)
    }

    /// Refusals for each request that was let pass.
    pub fn refusals_per_passed(&self) -> f64 {
        float(self.refused) / float(self.passed)
    }
}

/// Refusals that told a moment at which, for certain, there was no token yet: not even if the
/// requests that were let pass before had taken theirs as early, and those after had taken none.
pub fn too_early(lines: &[Line], contract: Contract) -> usize {
    let mut passed: Vec<&Line> = lines.iter().filter(|line| line.passed).collect();
    passed.sort_by_key(|line| line.sent_us);
    let is_early = |refused: &&Line| {
        let Some(told) = refused.told else { return false };
        let promised = refused.done_us + u64::try_from(told.as_micros()).unwrap_or(u64::MAX);
        let before = passed.iter().filter(|line| line.done_us <= refused.sent_us);
        let taken = before.map(|line| line.sent_us);
        level_at(promised, taken, contract) < 1.0 - EARLY_MAX
    };
    lines.iter().filter(is_early).count()
}

/// Most that a bucket, full at first, can hold after these takings. What was let pass without a
/// token, by a failure policy, is nobody's promise: the level does not fall below zero for it.
fn level_at(at_us: u64, taken_us: impl Iterator<Item = u64>, contract: Contract) -> f64 {
    let (mut level, mut last) = (contract.capacity, None);
    let mut earn = |level: f64, to: u64| {
        let elapsed = std::time::Duration::from_micros(to.saturating_sub(last.unwrap_or(to)));
        last = Some(to);
        contract.capacity.min(level + contract.per_s * elapsed.as_secs_f64())
    };
    for taken in taken_us {
        level = (earn(level, taken) - 1.0).max(0.0);
    }
    earn(level, at_us)
}

/// What one client's key gave, by the service's log.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    /// Arrivals over what the contract allows until the last of them.
    pub share: f64,
    /// Deepest excess over the contract between any two arrivals, in tokens.
    pub excess: f64,
}

/// By the log of the service, from the first request of a client on.
pub fn used(lines: &[Line], by_id: &Arrivals, contract: Contract) -> Used {
    let mut arrived: Vec<u64> =
        lines.iter().filter_map(|line| by_id.0.get(line.id.as_str()).copied()).collect();
    arrived.sort_unstable();
    let first = lines.iter().map(|line| line.sent_us).min().unwrap_or(0);
    let last = arrived.last().copied().unwrap_or(first);
    let length = std::time::Duration::from_micros(last.saturating_sub(first));
    Used {
        share: float(arrived.len()) / contract.over(length),
        excess: deepest_excess(&arrived, contract),
    }
}

/// When the service saw each request, by its id.
#[derive(Debug)]
pub struct Arrivals(HashMap<String, u64>);

impl Arrivals {
    /// Of a log; every line of `lines` that was let pass must be there, once, and no other.
    pub fn new(arrived: &[Arrived], lines: &[Line]) -> anyhow::Result<Arrivals> {
        let twice = Origin::new(arrived).twice;
        anyhow::ensure!(twice == 0, "{twice} requests arrived twice");
        let by_id: HashMap<String, u64> = arrived
            .iter()
            .map(|arrived| (arrived.arrival.id.clone(), arrived.arrival.at_us))
            .collect();
        let differ = lines.iter().find(|line| line.passed != by_id.contains_key(&line.id));
        anyhow::ensure!(differ.is_none(), "callers and service differ: {differ:?}");
        let passed = lines.iter().filter(|line| line.passed).count();
        anyhow::ensure!(passed == by_id.len(), "{} arrived, {passed} passed", by_id.len());
        Ok(Arrivals(by_id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CONTRACT: Contract = Contract { capacity: 1.0, per_s: 10.0 };

    fn line(sent_ms: u64, attempt: u32, told_ms: Option<u64>) -> Line {
        Line {
            id: sent_ms.to_string(),
            client: 0,
            sent_us: 1_000_000_000 + sent_ms * 1_000,
            done_us: 1_000_000_000 + sent_ms * 1_000 + 500,
            attempt,
            passed: told_ms.is_none(),
            told: told_ms.map(Duration::from_millis),
        }
    }

    #[test]
    fn a_promise_before_the_token_is_too_early() {
        let at = |told| vec![line(0, 0, None), line(20, 0, Some(told))];
        assert_eq!(too_early(&at(80), CONTRACT), 0);
        assert_eq!(too_early(&at(40), CONTRACT), 1);
    }

    #[test]
    fn what_was_taken_after_the_promise_does_not_break_it() {
        let lines = [line(0, 0, None), line(20, 0, Some(80)), line(100, 0, None)];
        assert_eq!(too_early(&lines, CONTRACT), 0);
    }

    #[test]
    fn only_the_first_retry_is_a_first_retry() {
        let lines = [
            line(0, 0, Some(1)),
            line(1, 1, Some(1)),
            line(2, 2, None),
            line(3, 0, Some(9)),
            line(12, 1, None),
        ];
        let retries = Retries::of(&lines);
        assert_eq!((retries.first, retries.first_passed, retries.all), (2, 1, 3));
        assert!((retries.refusals_per_passed() - 1.5).abs() < 1e-9);
    }
}
