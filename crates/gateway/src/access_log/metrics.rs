//! What the access log counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// All of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessLogMetrics {
    /// Lines that were not written.
    pub lost: Counter,
}

impl AccessLogMetrics {
    /// Registers it.
    pub(crate) fn register(registry: &mut Registry) -> AccessLogMetrics {
        let metrics = AccessLogMetrics::default();
        let help = "Lines that could not be written, or not soon enough";
        registry.register("weir_gateway_access_log_lost", help, metrics.lost.clone());
        metrics
    }
}
