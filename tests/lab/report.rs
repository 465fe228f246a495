//! What an experiment has found: figures, the limits that they must keep, and whether all do.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// What a required figure must keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// ≤
    AtMost(f64),
    /// ≥
    AtLeast(f64),
    /// Both ends included.
    Between(f64, f64),
    /// =
    Exactly(f64),
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtMost(most) => value <= most,
            Limit::AtLeast(least) => value >= least,
            Limit::Between(least, most) => value >= least && value <= most,
            Limit::Exactly(wanted) => (value - wanted).abs() < 1e-9,
        }
    }

    fn text(self) -> String {
        match self {
            Limit::AtMost(most) => format!("≤ {}", short(most)),
            Limit::AtLeast(least) => format!("≥ {}", short(least)),
            Limit::Between(least, most) => format!("{} … {}", short(least), short(most)),
            Limit::Exactly(wanted) => format!("= {}", short(wanted)),
        }
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.5}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The sabotage of that name, or the names that there are.
pub fn named<T: Copy>(all: &[(&str, T)], name: &str) -> anyhow::Result<T> {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, sabotage)| *sabotage).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        anyhow::anyhow!("there is no sabotage `{name}`; there are {}", known.join(", "))
    })
}

/// Smallest share of the intended load that must really have been offered.
const OFFERED_MIN: f64 = 0.98;

/// An experiment's result.
#[derive(Debug)]
pub struct Report {
    command: String,
    seed: u64,
    began: Instant,
    fields: Map<String, Value>,
    limits: Vec<(String, Limit)>,
    samples: u64,
    samples_needed: u64,
    offered: Vec<f64>,
    rounds: Vec<Value>,
    notes: Vec<String>,
    broken: bool,
}

impl Report {
    /// Of the experiment `command`; its time begins now.
    pub fn new(command: &str, seed: u64) -> Report {
        Report {
            command: command.to_owned(),
            seed,
            began: Instant::now(),
            fields: Map::new(),
            limits: Vec::new(),
            samples: 0,
            samples_needed: 0,
            offered: Vec::new(),
            rounds: Vec::new(),
            notes: Vec::new(),
            broken: false,
        }
    }

    /// A reported figure.
    pub fn field(&mut self, name: &str, value: Value) {
        self.fields.insert(name.to_owned(), value);
    }

    /// Makes a figure required.
    pub fn limit(&mut self, name: &str, limit: Limit) {
        self.limits.push((name.to_owned(), limit));
    }

    /// A required figure with its value.
    pub fn require(&mut self, name: &str, value: f64, limit: Limit) {
        let rounded = (value * 100_000.0).round() / 100_000.0;
        // What is not a number becomes null, and null keeps no limit.
        self.field(name, json!(rounded));
        self.limit(name, limit);
    }

    /// Adds samples.
    pub fn samples(&mut self, more: u64) {
        self.samples += more;
    }

    /// With fewer samples nothing is ok.
    pub fn samples_needed(&mut self, least: u64) {
        self.samples_needed = least;
    }

    /// How much of a stretch's intended load was offered.
    pub fn offered(&mut self, achieved: f64) {
        self.offered.push(achieved);
    }

    /// Raw figures of one round.
    pub fn round(&mut self, round: Value) {
        self.rounds.push(round);
    }

    /// A sentence for people.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The experiment did not come to its end.
    pub fn broken(&mut self, why: &str) {
        self.broken = true;
        self.note(why);
    }

    /// Names of everything that is not as it must be.
    pub fn not_met(&self) -> Vec<String> {
        let mut failed: Vec<String> = self
            .limits
            .iter()
            .filter(|(name, limit)| {
                let value = self.fields.get(name).and_then(Value::as_f64);
                !value.is_some_and(|value| limit.holds(value))
            })
            .map(|(name, _)| name.clone())
            .collect();
        if self.samples < self.samples_needed {
            failed.push("samples".to_owned());
        }
        if self.offered_achieved() < OFFERED_MIN {
            failed.push("offered_achieved".to_owned());
        }
        if self.broken {
            failed.push("broken".to_owned());
        }
        failed
    }

    /// The least over all stretches: an average would hide one.
    fn offered_achieved(&self) -> f64 {
        self.offered.iter().copied().fold(1.0, f64::min)
    }

    /// Whether everything is as it must be.
    pub fn ok(&self) -> bool {
        self.not_met().is_empty()
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!("{} (seed {})\n", self.command, self.seed);
        let failed = self.not_met();
        for (name, value) in &self.fields {
            let limit = self.limits.iter().find(|(limited, _)| limited == name);
            let verdict = match limit {
                None => String::new(),
                Some((_, limit)) if failed.contains(name) => format!("{:14} FAIL", limit.text()),
                Some((_, limit)) => format!("{:14} ok", limit.text()),
            };
            writeln!(text, "  {name:36} {:>14}   {verdict}", value.to_string()).unwrap_or_default();
        }
        let offered = self.offered_achieved();
        let line = format!("  samples {}, offered {offered:.4}", self.samples);
        writeln!(text, "{line}").unwrap_or_default();
        for note in &self.notes {
            writeln!(text, "  {note}").unwrap_or_default();
        }
        let verdict = if failed.is_empty() { "ok".to_owned() } else { failed.join(", ") };
        writeln!(text, "  → {verdict}").unwrap_or_default();
        text
    }

    /// For programs: one line.
    pub fn json(&self) -> String {
        let mut object = Map::new();
        object.insert("ok".to_owned(), json!(self.ok()));
        object.insert("command".to_owned(), json!(self.command));
        object.insert("machine".to_owned(), json!(machine()));
        object.insert("seed".to_owned(), json!(self.seed));
        object.insert("seconds".to_owned(), json!(self.began.elapsed().as_secs()));
        object.insert("samples".to_owned(), json!(self.samples));
        object.insert("offered_achieved".to_owned(), json!(self.offered_achieved()));
        object.extend(self.fields.clone());
        object.insert("not_met".to_owned(), json!(self.not_met()));
        object.insert("rounds".to_owned(), json!(self.rounds));
        object.insert("notes".to_owned(), json!(self.notes));
        Value::Object(object).to_string()
    }
}

/// What the figures were measured on.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown", |(_, name)| name.trim());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cpus} × {model}, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_figure_is_a_failed_one() {
        let mut report = Report::new("x", 1);
        report.limit("figure", Limit::AtMost(1.0));
        assert_eq!(report.not_met(), ["figure"]);
        report.field("figure", Value::Null);
        assert!(!report.ok());
        report.require("nothing", f64::NAN, Limit::AtMost(1.0));
        assert_eq!(report.not_met(), ["figure", "nothing"]);
        report.field("figure", json!(1.0));
        report.field("nothing", json!(0));
        assert!(report.ok());
    }

    #[test]
    fn too_few_samples_or_too_little_load_is_not_ok() {
        let mut report = Report::new("x", 1);
        report.samples_needed(10);
        report.samples(9);
        assert_eq!(report.not_met(), ["samples"]);
        report.samples(1);
        report.offered(1.0);
        report.offered(0.97);
        assert_eq!(report.not_met(), ["offered_achieved"]);
        assert!(
            report.json().starts_with("{\"command\"") || report.json().contains("\"ok\":false")
        );
    }
}
