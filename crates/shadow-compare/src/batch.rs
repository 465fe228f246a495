//! Judges one batch by itself: what a gateway may say, before anything is stored.
//!
//! A batch that contradicts itself is refused whole, with every mistake named; half a batch is
//! never counted. Whether it fits to the other batches of its process is judged by [`crate::boot`].

use wire::batch::{Batch, CELLS_MAX, COST_ALLOWED_MAX, RECORDS_MAX, TallyCell};
use wire::error::{ErrorCode, FieldError};
use wire::rollout::Phase;

/// Largest body of a batch in bytes: full tables of cells and records fit twice.
pub(crate) const BATCH_BYTES_MAX: usize = 32 << 20;
/// Largest count in one cell: sums over two weeks of such cells still fit in 63 bits.
const COUNT_MAX: u64 = 1 << 40;
/// Longest text (gateway, boot, client, service) in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Mistakes that are told; more are only counted.
const MISTAKES_MAX: usize = 20;

/// What a batch amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Amount {
    /// Decisions: the requests of all cells.
    pub decisions: u64,
    /// Records.
    pub records: u64,
}

/// Checks everything that a batch says about itself.
pub(crate) fn check(batch: &Batch) -> Result<Amount, Vec<FieldError>> {
    let mut found = Mistakes::default();
    found.text("gateway", &batch.gateway);
    found.text("boot", &batch.boot);
    if batch.seq == 0 || batch.seq > COUNT_MAX {
        found.add("seq", format!("batches are counted from 1, not {}", batch.seq));
    }
    if batch.cells.len() > CELLS_MAX {
        found.add("cells", format!("at most {CELLS_MAX} cells, not {}", batch.cells.len()));
    }
    if batch.records.len() > RECORDS_MAX {
        found.add("records", format!("at most {RECORDS_MAX} records, not {}", batch.records.len()));
    }
    for (index, cell) in batch.cells.iter().enumerate() {
        check_cell(&format!("cells[{index}]"), cell, &mut found);
    }
    let amount = amount(batch);
    for (field, said, held) in [
        ("cum_decisions", batch.cum_decisions, amount.decisions),
        ("cum_records", batch.cum_records, amount.records),
    ] {
        if said < held {
            found.add(field, format!("{said} since boot cannot be less than {held} in this batch"));
        } else if said > COUNT_MAX {
            found.add(field, format!("{said} is more than a process can have decided"));
        }
    }
    if found.0.is_empty() { Ok(amount) } else { Err(found.0) }
}

/// Decisions and records in a batch.
pub(crate) fn amount(batch: &Batch) -> Amount {
    let decisions = batch.cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(cell.requests));
    Amount { decisions, records: u64::try_from(batch.records.len()).unwrap_or(u64::MAX) }
}

fn check_cell(path: &str, cell: &TallyCell, found: &mut Mistakes) {
    if !cell.client.is_empty() {
        found.text(&format!("{path}.client"), &cell.client);
    }
    found.text(&format!("{path}.service"), &cell.service);
    let ways = [
        cell.both_allow,
        cell.both_deny,
        cell.stricter,
        cell.looser,
        cell.undecided,
        cell.ambiguous,
        cell.no_reply,
        cell.caller_gone,
        cell.not_configured,
        cell.rejected,
    ];
    let sum = ways.iter().fold(0, |sum: u64, way| sum.saturating_add(*way));
    if cell.requests > COUNT_MAX || cell.cost_allowed > COST_ALLOWED_MAX {
        found.add(format!("{path}.requests"), "is more than a second can hold".to_owned());
    } else if sum > cell.requests || (cell.phase == Phase::Shadow && sum != cell.requests) {
        let requests = cell.requests;
        found.add(
            format!("{path}.requests"),
            format!("{requests} requests, but {sum} in the ways that one can end"),
        );
    }
    if cell.edge_denied > cell.requests || cell.service_denied > cell.requests {
        found.add(format!("{path}.edge_denied"), "more denials than requests".to_owned());
    }
}

#[derive(Default)]
struct Mistakes(Vec<FieldError>);

impl Mistakes {
    fn add(&mut self, field: impl Into<String>, detail: String) {
        if self.0.len() < MISTAKES_MAX {
            let code = ErrorCode::InvalidValue;
            self.0.push(FieldError { field: field.into(), code, detail });
        }
    }

    fn text(&mut self, field: &str, text: &str) {
        // Postgres cannot store a zero byte in a text.
        if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.contains('\0') {
            self.add(field, format!("1 to {TEXT_BYTES_MAX} bytes of text are needed"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, shadow_cell};

    fn mistakes(batch: &Batch) -> Vec<String> {
        check(batch).err().unwrap_or_default().into_iter().map(|m| m.field).collect()
    }

    #[test]
    fn a_sound_batch_amounts_to_the_requests_of_its_cells() {
        let mut sound = batch("g", "b", 1, 7);
        sound.cells = vec![shadow_cell("c", 5, 1), shadow_cell("d", 1, 0)];
        assert_eq!(check(&sound).unwrap(), Amount { decisions: 7, records: 0 });
    }

    #[test]
    fn every_mistake_is_named_at_once() {
        let mut wrong = batch("", "b\0", 0, 3);
        wrong.cells = vec![shadow_cell("c", 5, 1)];
        wrong.cells[0].both_allow += 1;
        wrong.cells[0].service = String::new();
        wrong.cells[0].edge_denied = 7;
        assert_eq!(
            mistakes(&wrong),
            [
                "gateway",
                "boot",
                "seq",
                "cells[0].service",
                "cells[0].requests",
                "cells[0].edge_denied",
                "cum_decisions"
            ]
        );
    }

    #[test]
    fn pairs_cannot_outnumber_requests_and_sums_cannot_overflow() {
        let mut wrong = batch("g", "b", 1, u64::MAX);
        wrong.cells = vec![shadow_cell("c", 1, 0)];
        wrong.cells[0].both_allow = u64::MAX;
        wrong.cells[0].both_deny = u64::MAX;
        assert_eq!(mistakes(&wrong), ["cells[0].requests", "cum_decisions"]);
    }

    #[test]
    fn clients_may_have_no_name_but_no_zero_byte() {
        let mut wrong = batch("g", "b", 1, 2);
        wrong.cells = vec![shadow_cell("", 1, 0), shadow_cell("a\0", 1, 0)];
        assert_eq!(mistakes(&wrong), ["cells[1].client"]);
    }
}
