//! The table `[access_log]`: whether answers leave a line, where, and which of them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wire::strict::{Fields, Problems, shown};

use super::read::{needed, parsed, wrong};

/// How answers are logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogRules {
    /// Where lines go.
    pub to: LogTarget,
    /// How they look.
    pub format: LineFormat,
    /// The part of the answers that leave a line.
    pub sample: Share,
    /// The same for refusals, failures and answers that broke off.
    pub sample_errors: Share,
    /// With the query of the target.
    pub query: bool,
}

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Standard error, between the lines of the process log.
    Stderr,
    /// To the end of a file; another one of the same name when that is moved away.
    File(PathBuf),
}

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    /// An object.
    Json,
    /// `name=value`, values of callers in quotes.
    Text,
}

/// A part of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    of_ten_thousand: u32,
}

impl Share {
    /// Everything.
    pub const ALL: Share = Share { of_ten_thousand: 10_000 };

    /// Whether a draw takes part; `draw` gives a number below its argument, each as often.
    pub(crate) fn takes(self, draw: impl FnOnce(u32) -> u32) -> bool {
        self == Share::ALL || draw(10_000) < self.of_ten_thousand
    }
}

/// The rules, if there are any.
pub(super) fn read(
    value: Option<&Value>,
    beside: &Path,
    problems: &mut Problems,
) -> Option<AccessLogRules> {
    let mut fields = Fields::of(value?, "access_log", problems);
    let f = &mut fields;
    let to = needed(f, "to", problems).map(|to| match to {
        "stdout" => LogTarget::Stdout,
        "stderr" => LogTarget::Stderr,
        file => LogTarget::File(beside.join(file)),
    });
    if f.get("to").and_then(Value::as_str) == Some("") {
        wrong(problems, f.path("to"), "must be `stdout`, `stderr` or a file");
    }
    let format = parsed(f, "format", problems, |text| match text {
        "json" => Ok(LineFormat::Json),
        "text" => Ok(LineFormat::Text),
        _ => Err("must be json or text"),
    });
    let sample = share(f, "sample", problems);
    let sample_errors = share(f, "sample_errors", problems);
    let query = f.flag("query", problems);
    fields.finish(problems);
    let format = format.unwrap_or(LineFormat::Json);
    Some(AccessLogRules { to: to?, format, sample, sample_errors, query })
}

fn share(fields: &mut Fields<'_>, name: &'static str, problems: &mut Problems) -> Share {
    let Some(value) = fields.get(name) else { return Share::ALL };
    let share = value.as_f64().filter(|share| (0.0..=1.0).contains(share));
    // Through text: a float must not be cut to an integer in passing.
    let parts = share.map(|share| format!("{:.6}", share * 10_000.0));
    let parts = parts.as_deref().and_then(|text| text.strip_suffix(".000000")?.parse().ok());
    let Some(of_ten_thousand) = parts else {
        let what = format!("must be from 0 to 1, with at most 4 decimals, not {}", shown(value));
        wrong(problems, fields.path(name), what);
        return Share::ALL;
    };
    Share { of_ten_thousand }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_drawn_as_often_as_it_says() {
        let mut random = fastrand::Rng::with_seed(11);
        for (of_ten_thousand, draws) in [(0, 10_000), (1, 1_000_000), (2_500, 100_000)] {
            let share = Share { of_ten_thousand };
            let taken = (0..draws).filter(|_| share.takes(|most| random.u32(..most))).count();
            let part = f64::from(of_ten_thousand) / 10_000.0;
            let mean = part * f64::from(draws);
            // Six standard deviations of a binomial: one run in half a milliard.
            let apart = 6.0 * (mean * (1.0 - part)).sqrt();
            let taken = f64::from(u32::try_from(taken).unwrap());
            assert!((taken - mean).abs() <= apart, "{taken} of {draws}, {mean} ± {apart}");
        }
        assert!(Share::ALL.takes(|_| unreachable!("all is no matter of luck")));
    }
}
