//! Tells the control plane once a minute when keys were used last, so that an operator sees when an
//! old secret is idle. Nothing depends on it: a report that fails goes with the next one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use wire::usage::{SecretUse, USAGE_SECRETS_MAX, UsageReport};

use super::KeyCache;
use crate::plan_source::{ControlPlane, jittered};

/// How often it is told.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Longest wait for one report to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reports until `stop`.
pub(crate) async fn run(
    cache: Arc<KeyCache>,
    plane: Arc<dyn ControlPlane>,
    gateway: String,
    mut stop: watch::Receiver<bool>,
) {
    let mut told_until = cache.now_ms();
    loop {
        tokio::select! {
            _ended = stop.wait_for(|stopped| *stopped) => return,
            () = sleep(jittered(REPORT_EVERY)) => {}
        }
        let now_ms = cache.now_ms();
        if report(&cache, &*plane, &gateway, told_until).await {
            told_until = now_ms;
        }
    }
}

/// Tells of every use since `told_until`; whether all of it was taken.
pub(crate) async fn report(
    cache: &Arc<KeyCache>,
    plane: &dyn ControlPlane,
    gateway: &str,
    told_until: u64,
) -> bool {
    let reading = Arc::clone(cache);
    // Among a million keys it takes a while.
    let used = tokio::task::spawn_blocking(move || reading.used_since(told_until)).await;
    for secrets in used.unwrap_or_default().chunks(USAGE_SECRETS_MAX) {
        let report = UsageReport { gateway: gateway.to_owned(), secrets: secrets.to_vec() };
        match timeout(PATIENCE, plane.usage(&report)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "the use of keys could not be reported");
                return false;
            }
            Err(_elapsed) => return false,
        }
    }
    true
}

impl KeyCache {
    /// Keys that were used at or after a time. What is written of a use may be a second old.
    fn used_since(&self, since_ms: u64) -> Vec<SecretUse> {
        let known = self.known.pin();
        let uses = known.iter().map(|(stored, known)| SecretUse {
            hash: stored.0,
            last_used_at: known.used_ms.load(Ordering::Relaxed),
        });
        uses.filter(|used| since_ms <= used.last_used_at).collect()
    }
}
