//! What is counted.

use std::sync::atomic::AtomicU64;

use daemon::metrics::prometheus_client::encoding::EncodeLabel;
use daemon::metrics::prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use daemon::metrics::prometheus_client::metrics::counter::Counter;
use daemon::metrics::prometheus_client::metrics::family::Family;
use daemon::metrics::prometheus_client::metrics::gauge::Gauge;

/// The numbers. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    /// Answers by class of status.
    pub(crate) answers: Family<Class, Counter>,
    /// Failed tokens.
    pub(crate) token_failures: Counter,
    /// Feed calls.
    pub(crate) polls: Counter,
    /// Whole policies told.
    pub(crate) snapshots: Counter,
    /// Hashes looked up.
    pub(crate) lookups: Counter,
    /// Times that the doorbell's connection was lost.
    pub(crate) doorbell_lost: Counter,
    /// Whether changes made elsewhere are heard at once (1), or only when the head is read.
    pub(crate) listening: Gauge,
    /// Migrations of this program that the database lacks.
    pub(crate) migrations_missing: Gauge<u64, AtomicU64>,
    revision: Gauge<u64, AtomicU64>,
}

/// The first digit of an HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Class(pub(crate) u16);

impl EncodeLabelSet for Class {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        ("class", format!("{}xx", self.0)).encode(encoder.encode_label())
    }
}

impl Metrics {
    /// Adds them to a registry.
    pub(crate) fn register(to: &daemon::metrics::Metrics) -> Metrics {
        let own = Metrics::default();
        to.register(|registry| {
            registry.register("weir_plans_answers", "Answers by class", own.answers.clone());
            registry.register(
                "weir_plans_token_failures",
                "Operator tokens refused",
                own.token_failures.clone(),
            );
            registry.register("weir_plans_feed_polls", "Feed calls", own.polls.clone());
            registry.register(
                "weir_plans_snapshots",
                "Whole policies told to gateways",
                own.snapshots.clone(),
            );
            registry.register("weir_plans_lookups", "API keys looked up", own.lookups.clone());
            registry.register(
                "weir_plans_doorbell_lost",
                "Lost connections that hear changes",
                own.doorbell_lost.clone(),
            );
            let help = "Whether changes made elsewhere are heard at once";
            registry.register("weir_plans_listening", help, own.listening.clone());
            let help = "Migrations that the database lacks";
            registry.register(
                "weir_plans_migrations_missing",
                help,
                own.migrations_missing.clone(),
            );
            registry.register("weir_plans_revision", "Newest revision", own.revision.clone());
        });
        own
    }

    /// Notes the newest revision.
    pub(crate) fn saw_revision(&self, revision: u64) {
        self.revision.set(revision);
    }
}
