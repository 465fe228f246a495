//! Bounds of the table `[limits]` that are more than one number.

use wire::strict::{Fields, Problems};

use super::UpgradeRules;
use super::read::{size, time};

/// Connections that left HTTP, of one client.
const PER_CLIENT: usize = 100;

/// What connections that left HTTP may take.
pub(super) fn upgrades(fields: &mut Fields<'_>, problems: &mut Problems) -> UpgradeRules {
    const IDLE: &str = "upgrade_idle";
    let per_client = size(fields, "upgrades_per_client", problems, 0..=1_000_000, PER_CLIENT);
    let unbounded = fields.get(IDLE).is_none_or(|value| value.as_str() == Some("none"));
    let idle = (!unbounded).then(|| time(fields, IDLE, problems, std::time::Duration::MAX));
    UpgradeRules { per_client, idle }
}
