//! What a played cell says: against one exact bucket that sees the same requests, and against the
//! contract between any two moments.

use limiter_core::{Found, Limit, Limits, Request, Timestamp, bucket};
use serde_json::{Value, json};
use system_tests::oracle::float;

use super::cells::{ADMISSIONS_MIN, LENGTH_MAX, Pattern};
use super::play::{Asked, Played};

/// A request asked later than this is not the intended load.
const LATE_MAX_US: u64 = 10_000;
/// Calls a second of an active gateway, below the limit.
const CALLS_PER_GATEWAY: f64 = 15.0;
/// Calls a second of the fleet above it: so many times what an empty bucket may be polled.
const CALLS_OVER_POLLS: f64 = 2.5;
const POLLS_PER_GATEWAY: usize = 100;
const POLLS_MAX: usize = 5_000;
/// Gateways that a hopping client has been at within a second.
const HOPPING_ACTIVE: usize = 3;

/// The figures of one cell.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Its name.
    pub name: String,
    /// Requests.
    pub asked: u64,
    /// Requests that may pass.
    pub admitted: u64,
    /// What one exact bucket would have let pass.
    pub ideal: u64,
    /// `admitted` over `ideal`, minus 1.
    pub error: f64,
    /// What the error may be at most.
    pub error_allowed: f64,
    /// Deepest excess over the contract between any two moments, in tokens, of what was admitted
    /// with the store's tokens.
    pub over_burst: f64,
    /// The most that it may be.
    pub over_burst_allowed: f64,
    /// The same if each admission counts at the moment of its question.
    pub over_burst_at_question: f64,
    /// Share of requests decided without the store.
    pub degraded: f64,
    /// Share of requests asked in time.
    pub offered: f64,
    /// 99th percentile of the time that decisions took, in milliseconds …
    pub p99_ms: f64,
    /// … and of what the machine added by itself meanwhile.
    pub control_p99_ms: f64,
    /// Calls a second.
    pub calls_per_s: f64,
    /// The most that they may be.
    pub calls_allowed: f64,
    /// Calls over requests.
    pub calls_per_request: f64,
    /// Whether it was long enough to say something.
    pub enough: bool,
}

impl Figures {
    /// Of a cell.
    pub fn of(played: &Played) -> Figures {
        let Played { cell, plan, asked, .. } = played;
        let admitted = asked.iter().filter(|asked| asked.allowed).count();
        let ideal = ideal(played);
        let capacity = tokens(plan.limits.smallest_capacity());
        let by_store: Vec<Asked> = asked.iter().filter(|asked| !asked.degraded).copied().collect();
        let degraded = asked.iter().filter(|asked| asked.degraded).count();
        let in_time = asked.iter().filter(|asked| asked.late_us <= LATE_MAX_US).count();
        let seconds = played.length.as_secs_f64();
        let long = admitted as u64 >= ADMISSIONS_MIN || played.length >= LENGTH_MAX;
        Figures {
            name: cell.name(),
            asked: asked.len() as u64,
            admitted: admitted as u64,
            ideal: ideal as u64,
            error: float(admitted) / float(ideal.max(1)) - 1.0,
            error_allowed: f64::max(0.001, 2.0 / float(ideal.max(1))),
            over_burst: deepest_excess(&by_store, &plan.limits, |asked| asked.took_us),
            over_burst_allowed: f64::max(2.0, 0.002 * capacity),
            over_burst_at_question: deepest_excess(&by_store, &plan.limits, |_| 0),
            degraded: float(degraded) / float(asked.len().max(1)),
            offered: float(in_time) / tokens(played.intended.max(1)),
            p99_ms: quantile_ms(asked.iter().map(|asked| asked.took_us), 99),
            control_p99_ms: quantile_ms(played.control_us.iter().copied(), 99),
            calls_per_s: tokens(played.calls) / seconds,
            calls_per_request: tokens(played.calls) / float(asked.len().max(1)),
            calls_allowed: calls_allowed(played),
            enough: long,
        }
    }

    /// What the limiter added at the 99th percentile.
    pub fn added_p99_ms(&self) -> f64 {
        self.p99_ms - self.control_p99_ms
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "cell": self.name, "asked": self.asked, "admitted": self.admitted,
            "ideal": self.ideal, "error": round(self.error), "error_allowed": self.error_allowed,
            "over_burst_tokens": round(self.over_burst),
            "over_burst_allowed": self.over_burst_allowed,
            "over_burst_at_question": round(self.over_burst_at_question),
            "degraded_share": round(self.degraded), "offered": round(self.offered),
            "p99_ms": self.p99_ms, "control_p99_ms": self.control_p99_ms,
            "calls_per_s": round(self.calls_per_s), "calls_allowed": self.calls_allowed,
            "calls_per_request": round(self.calls_per_request),
        })
    }
}

fn round(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

fn calls_allowed(played: &Played) -> f64 {
    let gateways = played.cell.gateways;
    if played.cell.is_below_limit() {
        let hops = played.cell.pattern == Pattern::Hopping;
        let active = if hops { gateways.min(HOPPING_ACTIVE) } else { gateways };
        return CALLS_PER_GATEWAY * float(active);
    }
    CALLS_OVER_POLLS * float((POLLS_PER_GATEWAY * gateways).min(POLLS_MAX))
}

/// What one bucket would have let pass that sees every request when it is asked.
fn ideal(played: &Played) -> usize {
    let (mut state, mut admitted) = (None, 0);
    for asked in &played.asked {
        let now = Timestamp::from_us(1_000_000_000_000_000 + asked.at_us);
        let request = Request::take(played.plan, 1, 1);
        let applied = bucket::apply(state, Found::Nothing, &request, now);
        state = Some(applied.state);
        admitted += usize::from(applied.reply.granted > 0);
    }
    admitted
}

/// Most admissions between any two moments, over what the contract allows between them; the worse
/// limit counts. An admission happened at some moment between its question and its answer, nobody
/// outside can tell when: it counts between two moments only if both question and answer do.
fn deepest_excess(asked: &[Asked], limits: &Limits, took: impl Fn(&Asked) -> u64) -> f64 {
    let mut spans: Vec<(u64, u64)> = asked
        .iter()
        .filter(|asked| asked.allowed)
        .map(|asked| (asked.at_us, asked.at_us + took(asked)))
        .collect();
    limits.iter().map(|limit| excess_over(limit, &mut spans)).fold(0.0, f64::max)
}

fn excess_over(limit: Limit, spans: &mut [(u64, u64)]) -> f64 {
    let rate = tokens(limit.refill().tokens()) / tokens(limit.refill().per_us());
    let capacity = tokens(limit.capacity().get());
    // Places of the tree are questions in order; its greatest number is, over all questions, what
    // the contract had earned until then and the admissions since then.
    spans.sort_unstable();
    let mut by_end: Vec<(u64, usize)> =
        spans.iter().enumerate().map(|(place, (_, end))| (*end, place)).collect();
    by_end.sort_unstable();
    let mut tree = Tree::new(spans.len());
    let mut deepest = 0.0_f64;
    for (end, place) in by_end {
        let begin = spans.get(place).map_or(end, |(begin, _)| *begin);
        tree.add(place, rate * tokens(begin));
        deepest = deepest.max(tree.best() - rate * tokens(end) - capacity);
    }
    deepest
}

#[expect(clippy::cast_precision_loss, reason = "counts and microseconds of a run, below 2^53")]
pub fn tokens(count: u64) -> f64 {
    count as f64
}

/// Numbers in a row, of which a beginning is raised by one at a time and the greatest is asked.
struct Tree {
    leaves: usize,
    nodes: Vec<Node>,
}

/// Node `n` has the children `2n` and `2n + 1`.
#[derive(Clone, Copy)]
struct Node {
    /// By how much everything below was raised here.
    raised: f64,
    /// The greatest below, with that.
    greatest: f64,
}

impl Tree {
    /// With room for so many, none of them there yet.
    fn new(places: usize) -> Tree {
        let leaves = places.next_power_of_two();
        let nothing = Node { raised: 0.0, greatest: f64::NEG_INFINITY };
        Tree { leaves, nodes: vec![nothing; 2 * leaves] }
    }

    fn best(&self) -> f64 {
        self.greatest(1)
    }

    fn greatest(&self, node: usize) -> f64 {
        self.nodes.get(node).map_or(f64::NEG_INFINITY, |node| node.greatest)
    }

    fn raise(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.raised += 1.0;
            node.greatest += 1.0;
        }
    }

    /// Puts `number` at `place`, where nothing was, and raises all places up to there, also those
    /// where nothing is yet.
    fn add(&mut self, place: usize, number: f64) {
        let mut node = self.leaves + place;
        self.raise(node);
        if let Some(leaf) = self.nodes.get_mut(node) {
            leaf.greatest = number + leaf.raised;
        }
        while node > 1 {
            if node % 2 == 1 {
                self.raise(node - 1);
            }
            node /= 2;
            let below = self.greatest(2 * node).max(self.greatest(2 * node + 1));
            if let Some(node) = self.nodes.get_mut(node) {
                node.greatest = below + node.raised;
            }
        }
    }
}

/// A percentile in milliseconds.
fn quantile_ms(times_us: impl Iterator<Item = u64>, percent: usize) -> f64 {
    let mut times: Vec<u64> = times_us.collect();
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100).max(1) - 1;
    times.get(rank).map_or(0.0, |time| tokens(*time) / 1e3)
}

#[cfg(test)]
mod tests {
    use limiter_core::{Capacity, RefillRate};

    use super::*;

    fn asked(at_us: u64, took_us: u64) -> Asked {
        Asked { at_us, took_us, late_us: 0, allowed: true, degraded: false }
    }

    fn limits(capacity: u64, per_s: u64) -> Limits {
        let capacity = Capacity::new(capacity).unwrap();
        Limits::burst_only(Limit::new(capacity, RefillRate::per_second(per_s).unwrap()).unwrap())
    }

    fn excess(all: &[Asked], limits: &Limits) -> f64 {
        deepest_excess(all, limits, |asked| asked.took_us)
    }

    #[test]
    fn one_admission_too_many_between_any_two_moments_is_seen() {
        let limits = limits(3, 10);
        let at = |times: &[u64]| times.iter().map(|at| asked(*at, 0)).collect::<Vec<_>>();
        let kept = at(&[0, 0, 0, 100_000, 200_000, 900_000, 900_001, 900_002]);
        assert!(excess(&kept, &limits) < 0.001);
        let broken = at(&[0, 0, 0, 100_000, 100_000]);
        assert!((excess(&broken, &limits) - 1.0).abs() < 0.001);
        let late = at(&[0, 5_000_000, 5_000_000, 5_000_000, 5_000_000, 5_000_000]);
        assert!((excess(&late, &limits) - 2.0).abs() < 0.001);
    }

    #[test]
    fn an_answer_that_took_long_may_have_been_given_at_any_moment_of_it() {
        let limits = limits(1, 10);
        // Asked at once, but the second may have been let pass when its token was there.
        assert!(excess(&[asked(0, 0), asked(0, 100_000)], &limits) < 0.001);
        assert!(excess(&[asked(0, 0), asked(0, 50_000)], &limits) > 0.499);
        // Answered at once, but the first may have been let pass long before.
        assert!(excess(&[asked(0, 100_000), asked(100_000, 0)], &limits) < 0.001);
    }

    #[test]
    fn the_tree_finds_what_a_walk_finds() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..50 {
            let count = random.usize(1..60);
            let mut all: Vec<Asked> =
                (0..count).map(|_| asked(random.u64(..300_000), random.u64(..40_000))).collect();
            all.sort_by_key(|asked| asked.at_us);
            let limit = limits(4, 100);
            let walked = all
                .iter()
                .flat_map(|from| all.iter().map(move |to| (from.at_us, to.at_us + to.took_us)))
                .filter(|(from, to)| from <= to)
                .map(|(from, to)| {
                    let within = |a: &&Asked| a.at_us >= from && a.at_us + a.took_us <= to;
                    float(all.iter().filter(within).count()) - 4.0 - 100.0 * tokens(to - from) / 1e6
                })
                .fold(0.0, f64::max);
            assert!((excess(&all, &limit) - walked).abs() < 1e-6);
        }
    }

    #[test]
    fn percentiles_are_times_that_were_seen() {
        assert!((quantile_ms((1..=100).map(|n| n * 1_000), 99) - 99.0).abs() < 1e-9);
        assert!((quantile_ms([7_000].into_iter(), 99) - 7.0).abs() < 1e-9);
        assert!(quantile_ms([].into_iter(), 99).abs() < 1e-9);
    }
}
