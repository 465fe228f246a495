//! What is counted of new configurations.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// Of new configurations.
#[derive(Debug, Clone)]
pub(crate) struct ReloadMetrics {
    /// Those that were put in force.
    pub taken: Counter,
    /// Those that were not.
    pub refused: Counter,
    /// 1 while the file is not what is in force.
    pub stale: Gauge,
}

impl ReloadMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> ReloadMetrics {
        let reloads = Family::<Outcome, Counter>::default();
        let of = |outcome| reloads.get_or_create(&Outcome { outcome }).clone();
        let metrics =
            ReloadMetrics { taken: of("taken"), refused: of("refused"), stale: Gauge::default() };
        let help = "Times that the configuration was read anew, by what became of it";
        registry.register("weir_gateway_config_reloads", help, reloads);
        let help = "1 while the file was refused, so that an older configuration is in force";
        registry.register("weir_gateway_config_reload_failed", help, metrics.stale.clone());
        metrics
    }
}
