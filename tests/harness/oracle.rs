//! What right means, as functions over the logs of a run: from what arrived at the services and
//! what callers saw, never from a gateway's own counters.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::services::Arrived;
use crate::traffic::Sent;

/// A contract of one bucket: `capacity` at once and `per_s` over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contract {
    /// Tokens at once.
    pub capacity: f64,
    /// Tokens a second.
    pub per_s: f64,
}

impl Contract {
    /// Tokens over a stretch that begins with a full bucket.
    pub fn over(&self, length: Duration) -> f64 {
        self.capacity + self.per_s * length.as_secs_f64()
    }
}

/// How far a bucket of this contract, full at first, would have been overdrawn at worst by these
/// arrivals (microseconds, ascending): 0 means that the contract was kept at every instant, over
/// every pair of arrivals.
pub fn deepest_excess(arrivals_us: &[u64], contract: Contract) -> f64 {
    let (mut level, mut last, mut deepest) = (contract.capacity, None, 0.0_f64);
    for at in arrivals_us {
        let elapsed = at.saturating_sub(last.unwrap_or(*at));
        last = Some(*at);
        let earned = contract.per_s * Duration::from_micros(elapsed).as_secs_f64();
        level = contract.capacity.min(level + earned) - 1.0;
        deepest = deepest.max(-level);
    }
    deepest
}

/// Arrivals at the services by unique id.
#[derive(Debug, Default)]
pub struct Origin<'a> {
    by_id: HashMap<&'a str, &'a Arrived>,
    /// Ids that arrived more than once.
    pub twice: usize,
}

impl<'a> Origin<'a> {
    /// Of everything that arrived.
    pub fn new(arrivals: &'a [Arrived]) -> Origin<'a> {
        let mut origin = Origin::default();
        for arrived in arrivals {
            if origin.by_id.insert(&arrived.arrival.id, arrived).is_some() {
                origin.twice += 1;
            }
        }
        origin
    }

    /// Whether and how this request arrived.
    pub fn arrival(&self, sent: &Sent) -> Option<&'a Arrived> {
        self.by_id.get(sent.id.as_str()).copied()
    }

    /// When the requests of `all` arrived that a service has worked on; microseconds, ascending.
    pub fn admitted_us<'b>(&self, all: impl IntoIterator<Item = &'b Sent>) -> Vec<u64> {
        let mut admitted: Vec<u64> = all
            .into_iter()
            .filter_map(|sent| self.arrival(sent))
            .filter(|arrived| arrived.arrival.verdict == demo::Verdict::Admitted)
            .map(|arrived| arrived.arrival.at_us)
            .collect();
        admitted.sort_unstable();
        admitted
    }

    /// Requests that the gateway refused and that arrived all the same.
    pub fn refused_and_arrived(&self, all: &[Sent]) -> usize {
        let refused = all.iter().filter(|sent| sent.by_edge && sent.status >= 400);
        refused.filter(|sent| self.arrival(sent).is_some()).count()
    }

    /// Arrivals that no line of `all` explains.
    pub fn unexplained(&self, all: &[Sent]) -> usize {
        let known: HashSet<&str> = all.iter().map(|sent| sent.id.as_str()).collect();
        self.by_id.keys().filter(|id| !known.contains(**id)).count()
    }
}

/// A count as a number to divide by.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub fn float(count: usize) -> f64 {
    count as f64
}

/// The `share`-quantile (0 … 1) of some times; zero if there are none.
pub fn quantile(times: impl IntoIterator<Item = Duration>, share: f64) -> Duration {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort_unstable();
    let wanted = (float(times.len()) * share).ceil();
    let at = (1..times.len()).find(|rank| float(*rank) >= wanted).unwrap_or(times.len());
    times.get(at.saturating_sub(1)).copied().unwrap_or_default()
}

/// The middle of some numbers; of an even count, the lower one.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Share of the intended requests that were sent within `tolerance` of their moment.
pub fn offered_achieved(all: &[Sent], intended: usize, tolerance: Duration) -> f64 {
    let in_time = all.iter().filter(|sent| sent.late <= tolerance).count();
    float(in_time) / float(intended.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRACT: Contract = Contract { capacity: 3.0, per_s: 10.0 };

    #[test]
    fn the_envelope_sees_one_request_too_many_between_any_two() {
        let kept = [0, 0, 0, 100_000, 200_000, 900_000, 900_001, 900_002];
        assert!(deepest_excess(&kept, CONTRACT) < 0.001);
        let broken = [0, 0, 0, 100_000, 100_000];
        assert!((deepest_excess(&broken, CONTRACT) - 1.0).abs() < 0.001);
        let late = [0, 5_000_000, 5_000_000, 5_000_000, 5_000_000, 5_000_000];
        assert!((deepest_excess(&late, CONTRACT) - 2.0).abs() < 0.001);
    }

    #[test]
    fn the_middle_of_nothing_is_no_number() {
        assert!(median([]).is_nan());
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let ms = |n| Duration::from_millis(n);
        let times: Vec<_> = (1..=100).rev().map(ms).collect();
        assert_eq!(quantile(times.clone(), 0.99), ms(99));
        assert_eq!(quantile(times.clone(), 0.5), ms(50));
        assert_eq!(quantile(times, 1.0), ms(100));
        assert_eq!(quantile([ms(7)], 0.99), ms(7));
        assert_eq!(quantile([], 0.99), Duration::ZERO);
    }
}
