//! What workers say about their queues, and the requests that they shed.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerNumber {
    worker: usize,
}

/// Of all workers.
#[derive(Debug, Clone, Default)]
pub(crate) struct OverloadMetrics {
    shed: Counter,
    delay: Family<WorkerNumber, Gauge<f64, AtomicU64>>,
    shedding: Family<WorkerNumber, Gauge>,
}

/// Of one worker.
#[derive(Debug)]
pub(super) struct OfWorker {
    /// Requests that it, or another one, has shed.
    pub shed: Counter,
    /// How long what is ready waits for it, in seconds.
    pub delay: Gauge<f64, AtomicU64>,
    /// 1 while it has a bound.
    pub shedding: Gauge,
}

impl OverloadMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> OverloadMetrics {
        let metrics = OverloadMetrics::default();
        let help = "Requests refused because their worker had more than it could handle in time";
        registry.register("weir_gateway_shed", help, metrics.shed.clone());
        let help = "How long what is ready now waits for its worker";
        registry.register("weir_gateway_queue_delay_seconds", help, metrics.delay.clone());
        let help = "Whether a worker refuses what it cannot handle in time";
        registry.register("weir_gateway_shedding", help, metrics.shedding.clone());
        metrics
    }

    /// Those of the worker with this number.
    pub(super) fn of(&self, worker: usize) -> OfWorker {
        let worker = WorkerNumber { worker };
        OfWorker {
            shed: self.shed.clone(),
            delay: self.delay.get_or_create(&worker).clone(),
            shedding: self.shedding.get_or_create(&worker).clone(),
        }
    }
}
