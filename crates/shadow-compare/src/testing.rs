//! Small worlds for the tests inside this crate: a cell, a record, a batch.

use wire::batch::{Batch, DecisionRecord, EdgeHalf, PairSource, ServiceHalf, Side, TallyCell};
use wire::rollout::Phase;

/// A minute in which everything happens.
pub(crate) const MINUTE: u64 = 29_000_000;

/// A shadow cell of service `orders` in which all pairs agree but `stricter` of them.
pub(crate) fn shadow_cell(client: &str, agreeing: u64, stricter: u64) -> TallyCell {
    TallyCell {
        minute: MINUTE,
        client: client.to_owned(),
        service: "orders".to_owned(),
        phase: Phase::Shadow,
        since_revision: 7,
        requests: agreeing + stricter,
        both_allow: agreeing,
        stricter,
        edge_denied: stricter,
        cost_allowed: agreeing,
        ..TallyCell::default()
    }
}

/// An empty batch.
pub(crate) fn batch(gateway: &str, boot: &str, seq: u64, cum_decisions: u64) -> Batch {
    Batch {
        gateway: gateway.to_owned(),
        boot: boot.to_owned(),
        seq,
        revision: 10,
        last: false,
        cum_decisions,
        cum_records: 0,
        cells: Vec::new(),
        records: Vec::new(),
    }
}

/// A service half that is known.
pub(crate) fn paired(outcome: Side) -> ServiceHalf {
    let source = PairSource::Status;
    ServiceHalf::Paired { outcome, source, remaining: None, limit: None, client: None }
}

/// A record of service `orders`.
pub(crate) fn record(request_id: &str, edge: Side, service_half: ServiceHalf) -> DecisionRecord {
    DecisionRecord {
        at_us: MINUTE * 60_000_000,
        seq: 1,
        request_id: request_id.to_owned(),
        client: "c_1".to_owned(),
        key_id: None,
        plan: "free".to_owned(),
        plan_version: 2,
        revision: 10,
        phase: Phase::Shadow,
        route: "orders".to_owned(),
        service: "orders".to_owned(),
        instance: None,
        cost: 1,
        edge: EdgeHalf {
            outcome: edge,
            basis: "store".to_owned(),
            reason: None,
            level_burst_mt: None,
            level_sustained_mt: None,
            retry_after_ms: None,
            store_us: None,
        },
        service_half,
        status: 200,
    }
}
