//! What is shown of the kill switch.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// All of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct KillSwitchMetrics {
    /// 1 while it is set.
    pub set: Gauge,
}

impl KillSwitchMetrics {
    /// Registers it.
    pub(crate) fn register(registry: &mut Registry) -> KillSwitchMetrics {
        let metrics = KillSwitchMetrics::default();
        let help = "1 while the kill switch is set, so that nobody is refused by a limit";
        registry.register("weir_gateway_kill_switch", help, metrics.set.clone());
        metrics
    }
}
