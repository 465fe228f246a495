//! Figures of all rounds: for waits the median round of each event and policy, for amounts,
//! errors and the return the worst; and the worst of each at the top.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use system_tests::oracle::{float, median};

use super::clients::POLICIES;
use super::event::Event;
use super::judge::{BACK_MAX, Figures, LATE_SHARE_MAX, OPEN_ADDED_MS_MAX, Round};
use crate::report::{Limit, Report};

/// While they may wait for as long as a deadline.
const SLOW_ADDED_MS_MAX: f64 = 5.0;
const OVER_AFTER_MAX: f64 = 2.0;

/// Everything that was judged.
#[derive(Debug)]
pub struct Verdict {
    rounds: usize,
    events: BTreeMap<Event, Played>,
}

#[derive(Debug, Default)]
struct Played {
    /// All rounds, by policy.
    all: Vec<Vec<Figures>>,
    /// Those whose waits can be judged.
    conclusive: Vec<Vec<Figures>>,
    trips: u64,
    repeated: usize,
}

/// An event's figures under one policy.
struct Line {
    late_share: f64,
    added_ms_p99_open: Option<f64>,
    added_ms_p99: f64,
    errors: usize,
    over: f64,
    bound: f64,
    over_after: f64,
    back_s: f64,
    degraded_share: f64,
}

impl Verdict {
    /// Of so many rounds for each event.
    pub fn new(rounds: usize) -> Verdict {
        Verdict { rounds, events: BTreeMap::new() }
    }

    /// Adds a round.
    pub fn add(&mut self, event: Event, round: &Round) {
        let played = self.events.entry(event).or_default();
        played.trips += round.trips;
        played.all.push(round.policies.clone());
        if round.is_conclusive() {
            played.conclusive.push(round.policies.clone());
        } else {
            played.repeated += 1;
        }
    }

    /// Writes everything into the report.
    pub fn tell(&self, report: &mut Report) {
        let mut worst = Worst::default();
        for (event, played) in &self.events {
            let mut by_policy = serde_json::Map::new();
            for (policy, (name, _)) in POLICIES.iter().enumerate() {
                let line = played.line(policy, self.rounds);
                worst.add(*event, &line);
                by_policy.insert((*name).to_owned(), line.json());
            }
            if event.is_slow_only() {
                worst.trips += played.trips;
            }
            if played.repeated > 0 {
                let (name, count) = (event.name(), played.repeated);
                report.note(format!("{name}: {count} rounds repeated, the machine was noisy"));
            }
            report.note(format!("{:17} {}", event.name(), played.text(self.rounds)));
            report.round(json!({ "event": event.name(), "policies": by_policy }));
        }
        worst.tell(report);
    }
}

impl Played {
    fn line(&self, policy: usize, rounds: usize) -> Line {
        let all = || self.all.iter().filter_map(|figures| figures.get(policy));
        let conclusive = || self.conclusive.iter().filter_map(|figures| figures.get(policy));
        // Inconclusive is not false, and not ok: what is not a number keeps no limit.
        let enough = self.conclusive.len() * 2 > rounds;
        let typical = |values: Vec<f64>| if enough { median(values) } else { f64::NAN };
        let most = |value: fn(&Figures) -> f64| all().map(value).fold(0.0, f64::max);
        let open: Vec<f64> = conclusive().filter_map(|figures| figures.added_ms_p99_open).collect();
        let tightest = all()
            .max_by(|one, other| (one.over / one.bound).total_cmp(&(other.over / other.bound)));
        Line {
            late_share: typical(conclusive().map(|figures| figures.late_share).collect()),
            added_ms_p99_open: (!open.is_empty()).then(|| typical(open)),
            added_ms_p99: typical(conclusive().map(|figures| figures.added_ms_p99).collect()),
            errors: all().map(|figures| figures.errors).sum(),
            over: tightest.map_or(f64::NAN, |figures| figures.over),
            bound: tightest.map_or(f64::NAN, |figures| figures.bound),
            over_after: most(|figures| figures.over_after),
            back_s: most(|figures| figures.back_s),
            degraded_share: most(|figures| figures.degraded_share),
        }
    }

    /// One line for people: each policy's share of degraded decisions, tokens over and their bound,
    /// and the worst of the rest.
    fn text(&self, rounds: usize) -> String {
        let lines: Vec<Line> =
            (0..POLICIES.len()).map(|policy| self.line(policy, rounds)).collect();
        let most = |value: fn(&Line) -> f64| lines.iter().map(value).fold(0.0, f64::max);
        let over = lines
            .iter()
            .zip(POLICIES)
            .map(|(line, (name, _))| format!("{name} {:.1} of {:.1}", line.over, line.bound));
        format!(
            "degraded {:.3}, late {:.5}, p99 +{:.2} ms, once open +{:.2} ms, back {:.1} s, over: {}",
            most(|line| line.degraded_share),
            most(|line| line.late_share),
            most(|line| line.added_ms_p99),
            most(|line| line.added_ms_p99_open.unwrap_or(0.0)),
            most(|line| line.back_s),
            over.collect::<Vec<_>>().join(", "),
        )
    }
}

impl Line {
    fn json(&self) -> Value {
        json!({
            "late_share": self.late_share,
            "added_ms_p99_open": self.added_ms_p99_open,
            "added_ms_p99": self.added_ms_p99,
            "errors_of_ours": self.errors,
            "over_tokens": self.over,
            "over_bound": self.bound,
            "over_after_tokens": self.over_after,
            "back_to_exact_seconds": self.back_s,
            "degraded_share": self.degraded_share,
        })
    }
}

/// The worst of each figure over events and policies.
#[derive(Default)]
struct Worst {
    late_share: f64,
    open_ms: f64,
    slow_ms: f64,
    errors: usize,
    over: f64,
    bound: f64,
    over_after: f64,
    back_s: f64,
    trips: u64,
}

impl Worst {
    fn add(&mut self, event: Event, line: &Line) {
        self.late_share = worse(self.late_share, line.late_share);
        if event.settled_after().is_some() {
            self.open_ms = worse(self.open_ms, line.added_ms_p99_open.unwrap_or(f64::NAN));
        }
        if event.is_slow_only() {
            self.slow_ms = worse(self.slow_ms, line.added_ms_p99);
        }
        self.errors += line.errors;
        if self.bound <= 0.0 || line.over / line.bound > self.over / self.bound {
            (self.over, self.bound) = (line.over, line.bound);
        }
        self.over_after = worse(self.over_after, line.over_after);
        self.back_s = worse(self.back_s, line.back_s);
    }

    fn tell(&self, report: &mut Report) {
        report.require("late_share", self.late_share, Limit::AtMost(LATE_SHARE_MAX));
        report.require("added_ms_p99_open", self.open_ms, Limit::AtMost(OPEN_ADDED_MS_MAX));
        report.require("added_ms_p99_slow", self.slow_ms, Limit::AtMost(SLOW_ADDED_MS_MAX));
        report.require("errors_of_ours", float(self.errors), Limit::Exactly(0.0));
        report.require("over_tokens", self.over, Limit::AtMost(self.bound));
        report.field("over_bound", json!(self.bound));
        report.require("over_after_tokens", self.over_after, Limit::AtMost(OVER_AFTER_MAX));
        let back_max = BACK_MAX.as_secs_f64();
        report.require("back_to_exact_seconds", self.back_s, Limit::AtMost(back_max));
        let trips = usize::try_from(self.trips).unwrap_or(usize::MAX);
        report.require("breaker_trips_when_slow", float(trips), Limit::Exactly(0.0));
    }
}

/// The larger one; what is not a number stays.
fn worse(one: f64, other: f64) -> f64 {
    if one.is_nan() || other.is_nan() { f64::NAN } else { one.max(other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_judged_keeps_no_limit() {
        assert!(worse(1.0, f64::NAN).is_nan() && worse(f64::NAN, 1.0).is_nan());
        let mut worst = Worst::default();
        let round = |open| Line {
            late_share: 0.0,
            added_ms_p99_open: open,
            added_ms_p99: 0.0,
            errors: 0,
            over: 1.0,
            bound: 2.0,
            over_after: 0.0,
            back_s: 0.0,
            degraded_share: 1.0,
        };
        worst.add(Event::Kill, &round(None));
        let mut report = Report::new("outage", 1);
        worst.tell(&mut report);
        assert_eq!(report.not_met(), ["added_ms_p99_open"]);
    }
}
