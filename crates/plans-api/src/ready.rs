//! What `/readyz` says: whether calls can be answered, and what `weir doctor` wants to know.

use std::sync::Arc;

use daemon::ops::Readiness;
use limiter_core::Clock;
use serde_json::json;

use crate::metrics::Metrics;
use crate::store::PlanStore;

/// Looks at what is known already; asks nobody.
pub(crate) fn of(store: &PlanStore, metrics: &Metrics, clock: &Arc<dyn Clock>) -> Readiness {
    match (store.reachable(), store.unwritable()) {
        (Some(revision), None) => Readiness::yes(json!({
            "revision": revision,
            "now_ms": clock.now().us() / 1_000,
            "listening": metrics.listening.get() == 1,
            "migrations_missing": metrics.migrations_missing.get(),
        })),
        (Some(_), Some(why)) => Readiness::no(json!(format!("writes fail: {why}"))),
        (None, _) => Readiness::no(json!("the database does not answer")),
    }
}
