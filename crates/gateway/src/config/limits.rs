//! Bounds of the table `[limits]` that are more than one number.

use serde_json::Value;
use wire::strict::{Fields, Problems};

use super::UpgradeRules;
use super::read::{parsed, size, time_unless, whole, wrong};

/// Connections that left HTTP, of one client.
const PER_CLIENT: usize = 100;

/// What connections that left HTTP may take.
pub(super) fn upgrades(fields: &mut Fields<'_>, problems: &mut Problems) -> UpgradeRules {
    let per_client = size(fields, "upgrades_per_client", problems, 0..=1_000_000, PER_CLIENT);
    let idle = time_unless(fields, "upgrade_idle", "none", problems).flatten();
    UpgradeRules { per_client, idle }
}

/// The longest body: a number, or none where the file says `unlimited`; outer none: not said.
pub(super) fn body_bytes(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Option<u64>> {
    const NAME: &str = "body_bytes";
    match fields.get(NAME) {
        None => None,
        Some(Value::String(text)) if text == "unlimited" => Some(None),
        Some(Value::String(text)) => {
            let what = format!("must be a whole number or \"unlimited\", not `{text}`");
            wrong(problems, fields.path(NAME), what);
            None
        }
        Some(_) => whole(fields, NAME, problems, 1..=u64::MAX).map(Some),
    }
}

/// On which answers the older limit fields stand.
pub(super) fn x_ratelimit(fields: &mut Fields<'_>, problems: &mut Problems) -> bool {
    let always = parsed(fields, "x_ratelimit", problems, |text| match text {
        "refusals" => Ok(false),
        "always" => Ok(true),
        _ => Err("must be refusals or always"),
    });
    always.unwrap_or(false)
}
