//! The newest decision records, in memory, to explain one request by its id.
//!
//! The number does not rest on records, so old ones simply fall out. After a restart only the
//! records since the last minute write are here.

use std::collections::VecDeque;

use wire::batch::{DecisionRecord, Explanation, PairSource, ServiceHalf, Side};
use wire::rollout::Phase;

/// Memory for recent records; beyond it the oldest falls out.
pub(crate) const RECENT_BYTES_MAX: usize = 64 << 20;

/// Recent records, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    kept: VecDeque<Kept>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    gateway: String,
    record: DecisionRecord,
    bytes: usize,
}

impl Recent {
    /// Keeps a record.
    pub(crate) fn push(&mut self, gateway: &str, record: &DecisionRecord) {
        self.push_within(gateway, record, RECENT_BYTES_MAX);
    }

    fn push_within(&mut self, gateway: &str, record: &DecisionRecord, bytes_max: usize) {
        let bytes = size(gateway, record);
        self.kept.push_back(Kept { gateway: gateway.to_owned(), record: record.clone(), bytes });
        self.bytes += bytes;
        while self.bytes > bytes_max {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }

    /// Explains the newest request with this id.
    pub(crate) fn explain(&self, request_id: &str) -> Option<Explanation> {
        let kept = self.kept.iter().rev().find(|kept| kept.record.request_id == request_id)?;
        Some(Explanation {
            gateway: kept.gateway.clone(),
            record: kept.record.clone(),
            conclusion: conclusion(&kept.record),
        })
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// About what a record takes in memory.
fn size(gateway: &str, record: &DecisionRecord) -> usize {
    let DecisionRecord { request_id, client, key_id, plan, route, service, instance, .. } = record;
    let told = match &record.service_half {
        ServiceHalf::Paired { client, .. } => client.as_ref().map_or(0, String::len),
        ServiceHalf::Undecided
        | ServiceHalf::Ambiguous
        | ServiceHalf::NoReply
        | ServiceHalf::CallerGone
        | ServiceHalf::NotConfigured
        | ServiceHalf::Rejected => 0,
    };
    let texts = [request_id, client, plan, route, service, &record.edge.basis];
    let optional = [key_id, instance, &record.edge.reason];
    size_of::<Kept>()
        + gateway.len()
        + told
        + texts.iter().map(|text| text.len()).sum::<usize>()
        + optional.iter().map(|text| text.as_ref().map_or(0, String::len)).sum::<usize>()
}

/// What follows from a record, in one sentence.
fn conclusion(record: &DecisionRecord) -> String {
    let edge = match record.edge.outcome {
        Side::Allow => "allows",
        Side::Deny => "denies",
    };
    let service = &record.service;
    match &record.service_half {
        ServiceHalf::Paired { outcome, source, .. } => {
            let (told, judged) = (service_said(*outcome), how(*source));
            let verdict = match (record.edge.outcome, outcome) {
                (Side::Allow, Side::Allow) | (Side::Deny, Side::Deny) => "they agree",
                (Side::Deny, Side::Allow) => "they disagree: the edge is stricter",
                (Side::Allow, Side::Deny) => "they disagree: the edge is looser",
            };
            format!("{verdict}; the edge {edge} and {service} {told} ({judged})")
        }
        ServiceHalf::Undecided => {
            let why = record.edge.reason.as_deref().unwrap_or("no reason given");
            format!("undecided: the edge was degraded ({why}) and has no opinion, so it is no pair")
        }
        ServiceHalf::Ambiguous => format!(
            "unpaired: {service} answered a denial without its marker, so nobody knows whether its \
             limiter spoke; the edge {edge}"
        ),
        ServiceHalf::NoReply => {
            format!("unpaired: {service} gave no response; the edge {edge}")
        }
        ServiceHalf::CallerGone => {
            format!("unpaired: the caller left before {service} answered; the edge {edge}")
        }
        ServiceHalf::NotConfigured => format!(
            "unpaired: pairing is not configured for {service}; the edge {edge}{}",
            would_be(record)
        ),
        ServiceHalf::Rejected => {
            format!("rejected at the edge: {service} was not asked, so it is no pair")
        }
    }
}

const fn would_be(record: &DecisionRecord) -> &'static str {
    match (record.phase, record.edge.outcome) {
        (Phase::Shadow, Side::Deny) => ", which in phase enforce would be a refusal",
        (Phase::Shadow | Phase::Off | Phase::Enforce, Side::Allow | Side::Deny) => "",
    }
}

const fn service_said(outcome: Side) -> &'static str {
    match outcome {
        Side::Allow => "allowed",
        Side::Deny => "denied",
    }
}

const fn how(source: PairSource) -> &'static str {
    match source {
        PairSource::Header => "as its decision header says",
        PairSource::Marker => "by its denial status and marker",
        PairSource::Status => "since its response is not a denial",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{paired, record};

    #[test]
    fn the_newest_record_of_an_id_is_explained() {
        let mut recent = Recent::default();
        recent.push("g1", &record("r1", Side::Allow, paired(Side::Allow)));
        recent.push("g2", &record("r1", Side::Deny, paired(Side::Allow)));
        let explained = recent.explain("r1").unwrap();
        assert_eq!(explained.gateway, "g2");
        assert_eq!(
            explained.conclusion,
            "they disagree: the edge is stricter; the edge denies and orders allowed \
             (since its response is not a denial)"
        );
        assert_eq!(recent.explain("r2"), None);
    }

    #[test]
    fn what_is_not_a_pair_is_never_called_agreement() {
        for half in [
            ServiceHalf::Undecided,
            ServiceHalf::Ambiguous,
            ServiceHalf::NoReply,
            ServiceHalf::CallerGone,
            ServiceHalf::NotConfigured,
            ServiceHalf::Rejected,
        ] {
            let told = conclusion(&record("r", Side::Allow, half));
            assert!(!told.contains("agree"), "{told}");
        }
    }

    #[test]
    fn the_oldest_records_fall_out_at_the_bound() {
        let mut recent = Recent::default();
        let one = size("g", &record("r0", Side::Allow, ServiceHalf::NoReply));
        for id in ["r0", "r1", "r2", "r3"] {
            recent.push_within("g", &record(id, Side::Allow, ServiceHalf::NoReply), 3 * one);
        }
        assert_eq!(recent.explain("r0"), None);
        assert!(recent.explain("r1").is_some() && recent.explain("r3").is_some());
        assert_eq!(recent.bytes(), 3 * one);
    }
}
