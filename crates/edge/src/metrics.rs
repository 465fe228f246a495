//! Every metric of the decisions, with its labels and help text. All label sets are closed: no
//! client, key, route or address ever becomes a series.

use std::sync::Arc;

use limiter_core::{Basis, Decision, DegradedReason};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use wire::rollout::Phase;

use crate::call::Refusal;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    outcome: &'static str,
    basis: &'static str,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// What happened to a question about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// A call went out.
    Call,
    /// Somebody holds the key.
    Found,
    /// Nobody does.
    Missing,
    /// Asked for again: the answer was out of date.
    Again,
    /// No answer.
    Failed,
    /// Too many wait already.
    Refused,
}

impl Lookup {
    const fn name(self) -> &'static str {
        match self {
            Lookup::Call => "call",
            Lookup::Found => "found",
            Lookup::Missing => "missing",
            Lookup::Again => "again",
            Lookup::Failed => "failed",
            Lookup::Refused => "refused",
        }
    }
}

const OUTCOMES: [&str; 2] = ["allow", "deny"];
const BASES: [&str; 4] = ["store", "lease", "degraded", "unlimited"];
const PHASES: [Phase; 3] = Phase::ALL;
const SERIES: usize = OUTCOMES.len() * BASES.len() * PHASES.len();

/// The metrics of an edge. Clones share them.
#[derive(Debug, Clone)]
pub struct EdgeMetrics {
    /// Made once, so that a decision is one addition and no look-up by label.
    decisions: Arc<[Counter; SERIES]>,
    degraded: Family<ReasonLabels, Counter>,
    refusals: Family<ReasonLabels, Counter>,
    lookups: Family<ResultLabels, Counter>,
    pub(crate) keys_known: Gauge,
    pub(crate) revision: Gauge,
    pub(crate) policy_age_seconds: Gauge,
    pub(crate) objects_rejected: Gauge,
    pub(crate) objects_skipped: Counter,
    pub(crate) revision_saved: Gauge,
    pub(crate) state_unsaved: Gauge,
    pub(crate) state_failures: Counter,
    pub(crate) records: Counter,
    pub(crate) records_dropped: Counter,
    pub(crate) cells_overflowed: Counter,
    pub(crate) batches_dropped: Counter,
    pub(crate) batches_waiting: Gauge,
}

fn place(outcome: usize, basis: usize, phase: Phase) -> usize {
    let phase = PHASES.iter().position(|known| *known == phase).unwrap_or(0);
    (outcome * BASES.len() + basis) * PHASES.len() + phase
}

impl EdgeMetrics {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> EdgeMetrics {
        let decisions = Family::<DecisionLabels, Counter>::default();
        let counters = std::array::from_fn(|index| {
            let (rest, phase) = (index / PHASES.len(), index % PHASES.len());
            let (outcome, basis) = (rest / BASES.len(), rest % BASES.len());
            let labels = DecisionLabels {
                outcome: OUTCOMES.get(outcome).copied().unwrap_or_default(),
                basis: BASES.get(basis).copied().unwrap_or_default(),
                phase: PHASES.get(phase).copied().unwrap_or_default().name(),
            };
            decisions.get_or_create(&labels).clone()
        });
        let metrics = EdgeMetrics {
            decisions: Arc::new(counters),
            degraded: Family::default(),
            refusals: Family::default(),
            lookups: Family::default(),
            keys_known: Gauge::default(),
            revision: Gauge::default(),
            policy_age_seconds: Gauge::default(),
            objects_rejected: Gauge::default(),
            objects_skipped: Counter::default(),
            revision_saved: Gauge::default(),
            state_unsaved: Gauge::default(),
            state_failures: Counter::default(),
            records: Counter::default(),
            records_dropped: Counter::default(),
            cells_overflowed: Counter::default(),
            batches_dropped: Counter::default(),
            batches_waiting: Gauge::default(),
        };
        for reason in DegradedReason::ALL {
            drop(metrics.degraded.get_or_create(&ReasonLabels { reason: reason.name() }));
        }
        metrics.add_state(registry);
        metrics.add_to(registry, decisions);
        metrics
    }

    fn add_state(&self, registry: &mut Registry) {
        registry.register(
            "weir_policy_objects_skipped",
            "Versions of objects that were told and are not valid",
            self.objects_skipped.clone(),
        );
        registry.register(
            "weir_policy_revision_saved",
            "Policy revision that a restart would begin with",
            self.revision_saved.clone(),
        );
        registry.register(
            "weir_state_unsaved",
            "1 while what is in force cannot be written to the state folder",
            self.state_unsaved.clone(),
        );
        registry.register(
            "weir_state_write_failures",
            "Attempts to write to the state folder that failed",
            self.state_failures.clone(),
        );
    }

    fn add_to(&self, registry: &mut Registry, decisions: Family<DecisionLabels, Counter>) {
        let of = "weir_";
        let mut add = |name: &str, help: &str, metric: Kind| {
            let name = format!("{of}{name}");
            match metric {
                Kind::Counter(counter) => registry.register(name, help, counter),
                Kind::Gauge(gauge) => registry.register(name, help, gauge),
                Kind::Reasons(family) => registry.register(name, help, family),
                Kind::Results(family) => registry.register(name, help, family),
                Kind::Decisions(family) => registry.register(name, help, family),
            }
        };
        add(
            "decisions",
            "Decisions about requests of known clients, in every phase that is evaluated",
            Kind::Decisions(decisions),
        );
        add(
            "degraded_decisions",
            "Decisions made without the store, by reason",
            Kind::Reasons(self.degraded.clone()),
        );
        add(
            "refusals",
            "Requests that the edge did not let through, by reason",
            Kind::Reasons(self.refusals.clone()),
        );
        add(
            "key_lookups",
            "Questions to the control plane about keys, by what became of them",
            Kind::Results(self.lookups.clone()),
        );
        add("keys_known", "Keys with a known holder", Kind::Gauge(self.keys_known.clone()));
        add("policy_revision", "Policy revision in force", Kind::Gauge(self.revision.clone()));
        add(
            "config_age_seconds",
            "Time since the control plane was last heard",
            Kind::Gauge(self.policy_age_seconds.clone()),
        );
        add(
            "policy_objects_rejected",
            "Objects of which not the newest version is in force, because that one is not valid",
            Kind::Gauge(self.objects_rejected.clone()),
        );
        add("records", "Decision records made", Kind::Counter(self.records.clone()));
        add(
            "records_dropped",
            "Decision records dropped: over the budget, or the queue was full",
            Kind::Counter(self.records_dropped.clone()),
        );
        add(
            "tally_overflows",
            "Requests counted without their client, because the table of cells was full",
            Kind::Counter(self.cells_overflowed.clone()),
        );
        add(
            "batches_dropped",
            "Batches dropped before they were acknowledged",
            Kind::Counter(self.batches_dropped.clone()),
        );
        add(
            "batches_waiting",
            "Batches not yet acknowledged",
            Kind::Gauge(self.batches_waiting.clone()),
        );
    }

    pub(crate) fn decided(&self, decision: &Decision, phase: Phase) {
        let basis = match decision.basis {
            Basis::Store => 0,
            Basis::Lease => 1,
            Basis::Degraded(reason) => {
                self.degraded.get_or_create(&ReasonLabels { reason: reason.name() }).inc();
                2
            }
        };
        self.count(usize::from(!decision.is_allowed()), basis, phase);
    }

    pub(crate) fn unlimited(&self, phase: Phase) {
        self.count(0, 3, phase);
    }

    fn count(&self, outcome: usize, basis: usize, phase: Phase) {
        if let Some(counter) = self.decisions.get(place(outcome, basis, phase)) {
            counter.inc();
        }
    }

    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.refusals.get_or_create(&ReasonLabels { reason: refusal.name() }).inc();
    }

    pub(crate) fn looked_up(&self, lookup: Lookup, times: usize) {
        let labels = ResultLabels { result: lookup.name() };
        self.lookups.get_or_create(&labels).inc_by(times as u64);
    }

    /// Decisions so far by outcome (`allow`, `deny`), basis (`store`, `lease`, `degraded`,
    /// `unlimited`) and phase; for tests and summaries.
    pub fn decisions(&self, outcome: &str, basis: &str, phase: Phase) -> u64 {
        let outcome = OUTCOMES.iter().position(|known| *known == outcome);
        let basis = BASES.iter().position(|known| *known == basis);
        outcome
            .zip(basis)
            .and_then(|(outcome, basis)| self.decisions.get(place(outcome, basis, phase)))
            .map_or(0, Counter::get)
    }

    /// Whether the state folder takes no writes.
    pub fn state_is_unsaved(&self) -> bool {
        self.state_unsaved.get() != 0
    }

    /// Refusals so far by reason.
    pub fn refusals(&self, refusal: &Refusal) -> u64 {
        self.refusals.get_or_create(&ReasonLabels { reason: refusal.name() }).get()
    }
}

enum Kind {
    Counter(Counter),
    Gauge(Gauge),
    Reasons(Family<ReasonLabels, Counter>),
    Results(Family<ResultLabels, Counter>),
    Decisions(Family<DecisionLabels, Counter>),
}
