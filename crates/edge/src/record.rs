//! Room ⑦: what is kept about a request that has ended.
//!
//! Two things, with different promises. A *tally cell* counts every decided request exactly; it
//! cannot drop one, and only its client's name is lost when the table is full. A full *record* is
//! kept for some requests while a rollout is active, within a budget and a bounded queue; beyond
//! either it is dropped and counted. Neither ever makes a request wait.
//!
//! A request in phase off is not decided about, so it is not recorded at all. A degraded decision
//! is no opinion: it is counted as undecided, never as agreement.

pub(crate) mod sink; // batches on their way out
pub(crate) mod tally; // exact counts

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::{Basis, Clock, Decision, Outcome, Wait};
use tokio::sync::mpsc;
use wire::batch::{DecisionRecord, EdgeHalf, ServiceHalf, Side, TallyCell};

use crate::call::{Observed, Seen};
use crate::metrics::EdgeMetrics;
use crate::plan_book::Shelf;
use crate::ticket::{Decided, Judged, RecordSeed};
use tally::{CellName, Tally};

/// Records waiting to leave. Beyond this they are dropped and counted: a request never waits for
/// its own paperwork.
const RECORDS_QUEUED_MAX: usize = 8_192;
/// Records of clients that are not sampled, per second: only their disagreements.
const OTHERS_PER_S: u32 = 200;

/// How much is recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecorderSettings {
    /// Whether anybody wants it.
    pub(crate) active: bool,
    /// Full records per second, all together.
    pub(crate) records_per_s: u32,
}

/// Keeps what was decided.
#[derive(Debug)]
pub(crate) struct Recorder {
    settings: RecorderSettings,
    clock: Arc<dyn Clock>,
    shelf: Arc<Shelf>,
    metrics: EdgeMetrics,
    tally: Tally,
    records: mpsc::Sender<DecisionRecord>,
    /// Numbers records, dropped ones too.
    numbered: AtomicU64,
    dropped: AtomicU64,
    budget: PerSecond,
    others: PerSecond,
}

impl Recorder {
    pub(crate) fn new(
        settings: RecorderSettings,
        clock: Arc<dyn Clock>,
        shelf: Arc<Shelf>,
        metrics: EdgeMetrics,
    ) -> (Recorder, mpsc::Receiver<DecisionRecord>) {
        let (records, queued) = mpsc::channel(RECORDS_QUEUED_MAX);
        let recorder = Recorder {
            settings,
            clock,
            shelf,
            metrics,
            tally: Tally::default(),
            records,
            numbered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            budget: PerSecond::new(settings.records_per_s),
            others: PerSecond::new(OTHERS_PER_S),
        };
        (recorder, queued)
    }

    /// Counts a request that has ended, and records it if it is one to record.
    pub(crate) fn record(&self, decided: &Decided, observed: Observed) {
        let asked = match decided.judged {
            Judged::NotAsked => false,
            Judged::NoNumbers | Judged::Unlimited | Judged::Decided(_) => true,
        };
        if !self.settings.active || !asked {
            return;
        }
        let half = service_half(decided, observed.service);
        let at_us = self.clock.now().us();
        let cell = cell(decided, &half);
        if let Some(seed) = &decided.record
            && (seed.sampled || cell.disagreements() > 0)
        {
            let instance = observed.instance;
            self.keep(decided, seed, half, Ended { at_us, status: observed.status, instance });
        }
        let name = CellName::new(decided, at_us);
        let fits = self.tally.add(name, &cell, || match decided.rule.since_revision {
            0 => 0, // of no rule, so of none for all either
            _ => self.shelf.current().as_ref().map_or(0, |book| book.phase_of_all().since_revision),
        });
        if !fits {
            self.metrics.cells_overflowed.inc();
        }
    }

    /// Sends a record within the budgets. What is beyond the budget of all is a loss; clients that
    /// are not sampled owe nobody a record, so theirs is only left out.
    fn keep(&self, decided: &Decided, seed: &RecordSeed, half: ServiceHalf, ended: Ended) {
        if !seed.sampled && !self.others.take(ended.at_us) {
            self.metrics.records_dropped.inc();
            return;
        }
        let seq = self.numbered.fetch_add(1, Ordering::Relaxed) + 1;
        let sent = self.budget.take(ended.at_us)
            && self.records.try_send(record(decided, seed, half, ended, seq)).is_ok();
        if sent {
            self.metrics.records.inc();
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.metrics.records_dropped.inc();
        }
    }

    /// Records dropped since the process began.
    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// All cells since the last cut.
    fn cut(&self) -> Vec<TallyCell> {
        self.tally.cut()
    }

    fn revision(&self) -> u64 {
        self.shelf.current().as_ref().map_or(0, |book| book.revision())
    }
}

/// How a request ended, for its record.
#[derive(Clone, Copy)]
struct Ended {
    at_us: u64,
    status: u16,
    instance: Option<SocketAddr>,
}

fn record(
    decided: &Decided,
    seed: &RecordSeed,
    service_half: ServiceHalf,
    ended: Ended,
    seq: u64,
) -> DecisionRecord {
    let client = &decided.known.client;
    DecisionRecord {
        at_us: match &decided.judged {
            // The store's own time is what an exact replay needs.
            Judged::Decided(decision) if taken_at_store(decision) => {
                decision.standing.map_or(ended.at_us, |standing| standing.at.us())
            }
            Judged::Decided(_) | Judged::Unlimited | Judged::NoNumbers | Judged::NotAsked => {
                ended.at_us
            }
        },
        seq,
        request_id: seed.request_id.clone().into(),
        client: client.id.clone(),
        key_id: decided.known.key_id().map(str::to_owned),
        plan: client.plan.clone(),
        plan_version: decided.version.0,
        revision: decided.revision,
        phase: decided.rule.phase,
        route: decided.route.name.clone(),
        service: decided.route.service.clone(),
        // Made into text only for requests that are recorded.
        instance: ended.instance.map(|instance| instance.to_string()),
        cost: decided.cost.get(),
        edge: edge_half(&decided.judged),
        service_half,
        status: ended.status,
    }
}

fn taken_at_store(decision: &Decision) -> bool {
    decision.basis == Basis::Store && decision.is_allowed()
}

/// The service's half, or why there is none. What the edge did comes first: a refused request has
/// no service half whatever the rim saw, and a degraded decision pairs with nothing.
fn service_half(decided: &Decided, seen: Seen) -> ServiceHalf {
    if decided.judged.allows().is_none() {
        return ServiceHalf::Undecided;
    }
    if decided.refused {
        return ServiceHalf::Rejected;
    }
    match seen {
        Seen::Decision { outcome, source, remaining, limit, client } => {
            ServiceHalf::Paired { outcome, source, remaining, limit, client }
        }
        Seen::Ambiguous => ServiceHalf::Ambiguous,
        // The rim refused by itself what the edge had let through: the service did not reply.
        Seen::NoReply | Seen::Refused => ServiceHalf::NoReply,
        Seen::CallerGone => ServiceHalf::CallerGone,
        Seen::NotConfigured => ServiceHalf::NotConfigured,
    }
}

/// One request as a cell: it is in exactly one of the counts that tell how it paired.
fn cell(decided: &Decided, half: &ServiceHalf) -> TallyCell {
    let mut cell = TallyCell { requests: 1, ..TallyCell::default() };
    let allowed = match &decided.judged {
        Judged::Unlimited => true,
        Judged::Decided(decision) => decision.is_allowed(),
        Judged::NoNumbers | Judged::NotAsked => !decided.refused,
    };
    if allowed {
        cell.cost_allowed = decided.cost.get();
    }
    match half {
        ServiceHalf::Undecided => cell.undecided = 1,
        ServiceHalf::Rejected => cell.rejected = 1,
        ServiceHalf::Ambiguous => cell.ambiguous = 1,
        ServiceHalf::NoReply => cell.no_reply = 1,
        ServiceHalf::CallerGone => cell.caller_gone = 1,
        ServiceHalf::NotConfigured => cell.not_configured = 1,
        ServiceHalf::Paired { outcome: Side::Allow, .. } if allowed => cell.both_allow = 1,
        ServiceHalf::Paired { outcome: Side::Allow, .. } => cell.stricter = 1,
        ServiceHalf::Paired { outcome: Side::Deny, .. } if allowed => cell.looser = 1,
        ServiceHalf::Paired { outcome: Side::Deny, .. } => cell.both_deny = 1,
    }
    // A degraded denial says nothing about the contract; it counts where it was felt.
    let opinion = decided.judged.allows().is_some();
    cell.edge_denied = u64::from(decided.refused || (opinion && !allowed));
    cell.service_denied = cell.both_deny + cell.looser;
    cell
}

fn edge_half(judged: &Judged) -> EdgeHalf {
    let none = |outcome, basis: &str, reason: Option<&str>| EdgeHalf {
        outcome,
        basis: basis.to_owned(),
        reason: reason.map(ToOwned::to_owned),
        level_burst_mt: None,
        level_sustained_mt: None,
        retry_after_ms: None,
        store_us: None,
    };
    let decision = match judged {
        Judged::Decided(decision) => decision,
        // Nobody needed to be asked; that is what a lease's basis says, too.
        Judged::Unlimited => return none(Side::Allow, "lease", Some("unlimited")),
        Judged::NoNumbers | Judged::NotAsked => {
            return none(Side::Allow, "degraded", Some("plan_invalid"));
        }
    };
    let (basis, reason) = match decision.basis {
        Basis::Store => ("store", None),
        Basis::Lease => ("lease", None),
        Basis::Degraded(reason) => ("degraded", Some(reason.name())),
    };
    let (outcome, retry_after_ms) = match decision.outcome {
        Outcome::Allowed { .. } => (Side::Allow, None),
        Outcome::Denied { wait: Wait::Until(wait) } => (Side::Deny, Some(millis(wait))),
        Outcome::Denied { wait: Wait::Never } => (Side::Deny, None),
    };
    let standing = decision.standing;
    EdgeHalf {
        level_burst_mt: standing
            .map(|standing| milli_tokens(standing.levels.burst, standing.plan.limits.burst)),
        level_sustained_mt: standing.and_then(|standing| {
            let limit = standing.plan.limits.sustained?;
            Some(milli_tokens(standing.levels.sustained, limit))
        }),
        retry_after_ms,
        store_us: standing
            .filter(|_asked| taken_at_store(decision))
            .map(|standing| u64::try_from(standing.round_trip.as_micros()).unwrap_or(u64::MAX)),
        ..none(outcome, basis, reason)
    }
}

fn milli_tokens(level: limiter_core::Level, limit: limiter_core::Limit) -> i64 {
    let part = u128::from(level.remainder) * 1_000 / u128::from(limit.refill().per_us());
    level.tokens.saturating_mul(1_000).saturating_add(i64::try_from(part).unwrap_or(999))
}

fn millis(wait: std::time::Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// So many per second of a clock, without a lock: the second and what was taken in it are one
/// word.
#[derive(Debug)]
struct PerSecond {
    word: AtomicU64,
    most: u32,
}

impl PerSecond {
    fn new(most: u32) -> PerSecond {
        PerSecond { word: AtomicU64::new(0), most }
    }

    fn take(&self, at_us: u64) -> bool {
        const COUNT_BITS: u32 = 24;
        let second = (at_us / 1_000_000) << COUNT_BITS;
        let taken = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let (last, count) = (word >> COUNT_BITS << COUNT_BITS, word & ((1 << COUNT_BITS) - 1));
            let count = if last == second { count } else { 0 };
            (count < u64::from(self.most)).then_some(second | (count + 1))
        });
        taken.is_ok()
    }
}
