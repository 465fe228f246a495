//! The table `[overload]`: when a worker has more than it can handle in time.

use std::time::Duration;

use serde_json::Value;
use wire::strict::{Fields, Problems};

use super::read::{flag_or_true, time};

/// When a worker refuses requests because it has too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverloadRules {
    /// The longest wait of what is ready that is no sign of overload.
    pub target: Duration,
    /// Overload is a wait that was above the target for so long, without a single exception.
    pub interval: Duration,
}

/// The rules; none if they are switched off.
pub(super) fn read(value: Option<&Value>, problems: &mut Problems) -> Option<OverloadRules> {
    let rules =
        OverloadRules { target: Duration::from_millis(20), interval: Duration::from_millis(200) };
    let Some(value) = value else { return Some(rules) };
    let mut fields = Fields::of(value, "overload", problems);
    let shed = flag_or_true(&mut fields, "shed", problems);
    let rules = OverloadRules {
        target: time(&mut fields, "target", problems, rules.target),
        interval: time(&mut fields, "interval", problems, rules.interval),
    };
    fields.finish(problems);
    shed.then_some(rules)
}
