//! What shadow-compare counts about itself.

use std::sync::atomic::AtomicU64;

use daemon::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// A gauge of something that is never negative.
pub(crate) type Level = Gauge<u64, AtomicU64>;

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BatchLabels {
    /// `new`, `duplicate`, `refused` or `unavailable`.
    pub result: &'static str,
}

/// All metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct EvidenceMetrics {
    /// Batches by what became of them.
    pub batches: Family<BatchLabels, Counter>,
    /// Decisions in committed batches.
    pub decisions: Counter,
    /// Decisions known to be missing.
    pub lost_decisions: Level,
    /// Records known to be missing, dropped ones included.
    pub lost_records: Level,
    /// Gateway processes that fell silent without a goodbye.
    pub dead_boots: Level,
    /// Cells that are not in the database yet.
    pub open_cells: Level,
    /// Cells that found the table full, since the start.
    pub overflowed_cells: Level,
    /// Memory of recent records.
    pub recent_bytes: Level,
    /// Minute writes.
    pub minute_writes: Counter,
    /// Writes of unknown outcome, after which memory was read again.
    pub doubts: Counter,
    /// How long the last minute write took.
    pub minute_write_ms: Level,
}

impl EvidenceMetrics {
    /// Adds them to the registry.
    pub(crate) fn register(&self, to: &Metrics) {
        to.register(|all| {
            let mut add_level = |name: &str, help: &str, level: &Level| {
                all.register(format!("weir_shadow_{name}"), help, level.clone());
            };
            add_level("lost_decisions", "Decisions known to be missing", &self.lost_decisions);
            add_level("lost_records", "Records known to be missing", &self.lost_records);
            add_level("dead_boots", "Gateway processes gone without a goodbye", &self.dead_boots);
            add_level("open_cells", "Cells not in the database yet", &self.open_cells);
            add_level(
                "overflowed_cells",
                "Cells that found the table full",
                &self.overflowed_cells,
            );
            add_level("recent_bytes", "Memory of recent records", &self.recent_bytes);
            add_level("minute_write_ms", "Length of the last minute write", &self.minute_write_ms);
            let batches = "Batches by what became of them";
            all.register("weir_shadow_batches", batches, self.batches.clone());
            let decisions = "Decisions in committed batches";
            all.register("weir_shadow_decisions", decisions, self.decisions.clone());
            let doubts = "Writes of unknown outcome";
            all.register("weir_shadow_doubts", doubts, self.doubts.clone());
            all.register("weir_shadow_minute_writes", "Minute writes", self.minute_writes.clone());
        });
    }

    /// Counts a batch.
    pub(crate) fn batch(&self, result: &'static str) {
        self.batches.get_or_create(&BatchLabels { result }).inc();
    }
}
