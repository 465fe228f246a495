//! Turns of slices, one for each arm, and the ratios that follow from slices of the same turn.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use system_tests::oracle::float;

use super::load::Answers;
use super::subjects::Arm;
use crate::report::{Limit, Report};
use crate::store::quartiles;

/// A slice that lost more than this to another guest says nothing.
const STOLEN_MAX: Duration = Duration::from_millis(50);
/// With fewer clean pairs a comparison is inconclusive.
const PAIRS_MIN: usize = 5;

/// A short stretch of requests to one process.
#[derive(Debug, Clone)]
pub struct Slice {
    /// Which.
    pub arm: Arm,
    /// What came back.
    pub answers: Answers,
    /// Processor time of the process, all threads.
    pub spent: Duration,
    /// What another guest had instead of us.
    pub stolen: Duration,
    /// Script calls that Redis has counted.
    pub calls: u64,
}

/// One slice of each.
pub type Turn = BTreeMap<Arm, Slice>;

impl Slice {
    /// Whether it can be compared.
    pub fn is_clean(&self) -> bool {
        self.stolen <= STOLEN_MAX && self.answers.all() > 0
    }

    /// What one request cost.
    pub fn us_per_request(&self) -> f64 {
        self.spent.as_secs_f64() * 1e6 / count(self.answers.all())
    }

    fn per_s(&self) -> f64 {
        count(self.answers.all()) / self.answers.took.as_secs_f64()
    }

    /// The share of its core that the process had.
    fn busy(&self) -> f64 {
        self.spent.as_secs_f64() / self.answers.took.as_secs_f64()
    }

    fn calls_per_request(&self) -> f64 {
        count(self.calls) / count(self.answers.all())
    }

    /// Answers that this arm never gives.
    pub fn unexpected(&self) -> u64 {
        let expected =
            if self.arm == Arm::Refusing { self.answers.refused } else { self.answers.passed };
        self.answers.all() - expected
    }
}

fn count(number: u64) -> f64 {
    float(usize::try_from(number).unwrap_or(usize::MAX))
}

/// A figure with three decimals.
pub fn rounded(value: f64) -> Value {
    json!((value * 1_000.0).round() / 1_000.0)
}

/// Two arms, and what must hold between them.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    name: &'static str,
    over: Arm,
    under: Arm,
    limit: Option<Limit>,
}

impl Comparison {
    /// `over` ÷ `under`, which must keep a limit.
    pub const fn of(name: &'static str, over: Arm, under: Arm, limit: Limit) -> Comparison {
        Comparison { name, over, under, limit: Some(limit) }
    }

    /// `over` ÷ `under`, told where both are there.
    pub const fn told(name: &'static str, over: Arm, under: Arm) -> Comparison {
        Comparison { name, over, under, limit: None }
    }

    /// Whether both sides are there.
    pub fn is_among(&self, there: &[Arm]) -> bool {
        there.contains(&self.over) && there.contains(&self.under)
    }

    /// One ratio for each turn in which both slices are clean.
    pub fn ratios(&self, turns: &[Turn]) -> Vec<f64> {
        let clean = |turn: &Turn, arm: Arm| {
            let slice = turn.get(&arm).filter(|slice| slice.is_clean())?;
            Some(slice.us_per_request())
        };
        turns
            .iter()
            .filter_map(|turn| Some(clean(turn, self.over)? / clean(turn, self.under)?))
            .collect()
    }
}

/// All figures of the turns.
pub fn judge(comparisons: &[Comparison], turns: &[Turn], there: &[Arm], report: &mut Report) {
    let mut fewest = usize::MAX;
    for comparison in comparisons {
        let (name, ratios) = (comparison.name, comparison.ratios(turns));
        if let Some(limit) = comparison.limit {
            report.limit(name, limit);
        }
        if !comparison.is_among(there) {
            report.field(name, Value::Null);
            continue;
        }
        fewest = fewest.min(ratios.len());
        if ratios.len() < PAIRS_MIN {
            report.field(name, Value::Null);
            report.note(format!("{name} is inconclusive: {} clean pairs", ratios.len()));
            continue;
        }
        let (low, middle, high) = quartiles(&ratios);
        report.field(name, rounded(middle));
        report.field(&format!("{name}_quartiles"), json!([rounded(low), rounded(high)]));
        if comparison.over == Arm::Again {
            let noise = (1.0 - low).abs().max((high - 1.0).abs());
            report.field("noise", rounded(noise));
        }
    }
    report.samples(u64::try_from(fewest).unwrap_or(0));
    let all: Vec<&Slice> = turns.iter().flat_map(BTreeMap::values).collect();
    let spoilt = all.iter().filter(|slice| !slice.is_clean()).count();
    report.note(format!("{} slices in {} turns, {spoilt} spoilt", all.len(), turns.len()));
    let unexpected: u64 = all.iter().map(|slice| slice.unexpected()).sum();
    report.require("unexpected_answers", count(unexpected), Limit::Exactly(0.0));
    for (figure, of) in FIGURES {
        let mut by_arm = Map::new();
        for arm in there {
            let clean = all.iter().filter(|slice| slice.arm == *arm && slice.is_clean());
            let values: Vec<f64> = clean.map(|slice| of(slice)).collect();
            by_arm.insert(arm.name().to_owned(), rounded(quartiles(&values).1));
        }
        report.field(figure, Value::Object(by_arm));
    }
}

/// What is told of each arm, by name.
type Figure = (&'static str, fn(&Slice) -> f64);

const FIGURES: [Figure; 6] = [
    ("us_per_request", Slice::us_per_request),
    ("answers_per_s", Slice::per_s),
    ("busy_share", Slice::busy),
    ("store_calls_per_request", Slice::calls_per_request),
    ("p50_ms", |slice| slice.answers.p50_ms),
    ("p99_ms", |slice| slice.answers.p99_ms),
];

/// Raw figures of one turn.
pub fn shown(turn: &Turn) -> Value {
    let one = |slice: &Slice| {
        let us = rounded(slice.us_per_request());
        json!({ "arm": slice.arm.name(), "us_per_request": us, "answers": slice.answers.all(),
                "stolen_ms": slice.stolen.as_secs_f64() * 1e3, "calls": slice.calls, "unexpected": slice.unexpected() })
    };
    Value::Array(turn.values().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(arm: Arm, us: u64, stolen_ms: u64) -> Slice {
        let took = Duration::from_secs(1);
        let answers = Answers { passed: 1_000, took, ..Answers::default() };
        let spent = Duration::from_micros(us * 1_000);
        Slice { arm, answers, spent, stolen: Duration::from_millis(stolen_ms), calls: 0 }
    }

    fn turn(gateway: u64, nginx: u64, stolen_ms: u64) -> Turn {
        let slices = [slice(Arm::Limits, gateway, 0), slice(Arm::Nginx, nginx, stolen_ms)];
        slices.into_iter().map(|slice| (slice.arm, slice)).collect()
    }

    const P1: Comparison = Comparison::of("p1", Arm::Limits, Arm::Nginx, Limit::AtMost(1.15));

    fn judged(turns: &[Turn]) -> Report {
        let mut report = Report::new("proxy", 1);
        judge(&[P1], turns, &[Arm::Limits, Arm::Nginx], &mut report);
        report
    }

    #[test]
    fn only_clean_slices_of_the_same_turn_are_compared() {
        let turns = [turn(20, 10, 0), turn(99, 10, 60), turn(30, 10, 50)];
        assert_eq!(P1.ratios(&turns), [2.0, 3.0]);
    }

    #[test]
    fn too_few_clean_pairs_are_inconclusive_and_never_ok() {
        let good = || turn(11, 10, 0);
        assert!(judged(&[good(), good(), good(), good(), good()]).ok());
        let four = judged(&[good(), good(), good(), good(), turn(11, 10, 70)]);
        assert_eq!(four.not_met(), ["p1"]);
    }

    #[test]
    fn a_peer_that_is_not_there_is_not_passed() {
        let mut report = Report::new("proxy", 1);
        judge(&[P1], &[], &[Arm::Limits], &mut report);
        assert_eq!(report.not_met(), ["p1"]);
    }

    #[test]
    fn a_refusal_where_none_belongs_is_told() {
        let mut turns =
            [turn(11, 10, 0), turn(11, 10, 0), turn(11, 10, 0), turn(11, 10, 0), turn(11, 10, 0)];
        turns[0].get_mut(&Arm::Limits).unwrap().answers.refused = 1;
        assert_eq!(judged(&turns).not_met(), ["unexpected_answers"]);
    }
}
