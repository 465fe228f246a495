//! What is known in memory: every gateway process, the sums since the last minute write, recent
//! records. A pure function of the last checkpoint and the batches after it, in commit order; so a
//! restart is nothing but reading both again, and so is recovery from a write of unknown outcome.

use std::collections::BTreeMap;

use wire::batch::{Batch, TallyCell};

use crate::batch::{Amount, amount};
use crate::boot::{Boot, Contradiction, Fit, Loss, Stamp};
use crate::recent::Recent;
use crate::tally::Tally;

/// Processes that are told apart. Beyond it the one that has been silent longest is forgotten; its
/// losses stay charged.
const BOOTS_MAX: usize = 10_000;
/// How long losses (and the processes that had them) are kept: as long as tallies, so that both
/// halves of the number forget together.
pub(crate) const EVIDENCE_KEPT_MS: u64 = 14 * 24 * 3_600 * 1_000;
/// How long the rows of batches are kept after they are part of the sums.
pub(crate) const BATCHES_KEPT_MS: u64 = 2 * 24 * 3_600 * 1_000;

/// Milliseconds of a minute.
pub(crate) const MINUTE_MS: u64 = 60_000;

/// Which process of which gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootId {
    /// The gateway.
    pub gateway: String,
    /// Its process.
    pub boot: String,
}

/// How far the sums in the database reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Checkpoint {
    /// Number of the last batch in them.
    pub number: u64,
    /// When the newest batch was committed, milliseconds since 1970.
    pub heard_ms: Option<u64>,
    /// Losses of forgotten processes.
    pub forgotten: Loss,
}

/// What one minute write changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct MinuteWrite {
    /// Number of the last batch in the sums before.
    pub previous: u64,
    /// To be added to the sums.
    pub cells: Vec<TallyCell>,
    /// Processes that changed.
    pub boots: Vec<(BootId, Boot)>,
    /// Processes that are forgotten.
    pub gone: Vec<BootId>,
    /// How far the sums reach then.
    pub checkpoint: Checkpoint,
}

#[derive(Debug)]
struct Entry {
    boot: Boot,
    changed: bool,
}

/// Everything in memory.
#[derive(Debug, Default)]
pub(crate) struct Book {
    boots: BTreeMap<BootId, Entry>,
    gone: Vec<BootId>,
    tally: Tally,
    recent: Recent,
    checkpoint: Checkpoint,
    /// Number of the last committed batch.
    committed: u64,
    heard_ms: Option<u64>,
    forgotten: Loss,
}

impl Book {
    /// As of a checkpoint; the batches after it are still to be applied.
    pub(crate) fn restored(checkpoint: Checkpoint, boots: Vec<(BootId, Boot)>) -> Book {
        let entry = |(id, boot)| (id, Entry { boot, changed: false });
        Book {
            boots: boots.into_iter().map(entry).collect(),
            checkpoint,
            committed: checkpoint.number,
            heard_ms: checkpoint.heard_ms,
            forgotten: checkpoint.forgotten,
            ..Book::default()
        }
    }

    /// Number of the last committed batch.
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// What `batch` would be; changes nothing.
    pub(crate) fn judge(&self, batch: &Batch, arrived_ms: u64) -> Result<Fit, Contradiction> {
        let stamp = stamp(batch, amount(batch), arrived_ms);
        match self.boots.get(&boot_id(batch)) {
            Some(entry) => entry.boot.judge(&stamp),
            None => Boot::new().judge(&stamp),
        }
    }

    /// Takes in a batch that was committed as `number`.
    pub(crate) fn apply(&mut self, number: u64, batch: &Batch, arrived_ms: u64) {
        self.committed = self.committed.max(number);
        self.heard_ms = self.heard_ms.max(Some(arrived_ms));
        let entry = self
            .boots
            .entry(boot_id(batch))
            .or_insert_with(|| Entry { boot: Boot::new(), changed: true });
        entry.boot.take(&stamp(batch, amount(batch), arrived_ms));
        entry.changed = true;
        for cell in &batch.cells {
            self.tally.add(cell, arrived_ms / MINUTE_MS);
        }
        for record in &batch.records {
            self.recent.push(&batch.gateway, record);
        }
        if self.boots.len() > BOOTS_MAX {
            self.forget_most_silent();
        }
    }

    /// The sums since the last minute write.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Recent records.
    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Keeps the records of the book that this one replaces.
    pub(crate) fn inherit_recent(&mut self, before: &mut Book) {
        if before.recent.bytes() > 0 {
            self.recent = std::mem::take(&mut before.recent);
        }
    }

    /// Everything that is missing, as known at `now_ms`.
    pub(crate) fn losses(&self, now_ms: u64) -> impl Iterator<Item = Loss> {
        let boots = self.boots.values().flat_map(move |entry| entry.boot.losses(now_ms));
        boots.chain([self.forgotten])
    }

    /// Processes that fell silent without a goodbye.
    pub(crate) fn dead(&self, now_ms: u64) -> usize {
        self.boots.values().filter(|entry| entry.boot.is_dead(now_ms)).count()
    }

    /// When the newest batch was committed.
    pub(crate) fn heard_ms(&self) -> Option<u64> {
        self.heard_ms
    }

    /// Forgets processes and losses that are too old.
    pub(crate) fn forget(&mut self, now_ms: u64) {
        let before_ms = now_ms.saturating_sub(EVIDENCE_KEPT_MS);
        for entry in self.boots.values_mut() {
            entry.changed |= entry.boot.forget(before_ms);
        }
        let gone = self.boots.iter().filter(|(_, entry)| entry.boot.heard_ms() < before_ms);
        self.gone.extend(gone.map(|(id, _)| id.clone()));
        self.boots.retain(|_, entry| entry.boot.heard_ms() >= before_ms);
        if self.forgotten.known_ms < before_ms {
            self.forgotten = Loss::default();
        }
    }

    /// Hands out what has to be written now. Until [`Book::written`] this book lacks it and must
    /// not be read; if the write fails, it must be read again from the database.
    pub(crate) fn minute_write(&mut self) -> MinuteWrite {
        let cells = self.tally.take();
        let changed = self.boots.iter().filter(|(_, entry)| entry.changed);
        MinuteWrite {
            previous: self.checkpoint.number,
            cells,
            boots: changed.map(|(id, entry)| (id.clone(), entry.boot.clone())).collect(),
            gone: std::mem::take(&mut self.gone),
            checkpoint: Checkpoint {
                number: self.committed,
                heard_ms: self.heard_ms,
                forgotten: self.forgotten,
            },
        }
    }

    /// Everything of [`Book::minute_write`] is in the database, and nothing was applied since.
    pub(crate) fn written(&mut self, checkpoint: Checkpoint) {
        debug_assert_eq!(checkpoint.number, self.committed, "no batch between write and commit");
        self.checkpoint = checkpoint;
        self.boots.values_mut().for_each(|entry| entry.changed = false);
    }

    fn forget_most_silent(&mut self) {
        let most = self.boots.iter().min_by_key(|(_, entry)| entry.boot.heard_ms());
        let Some(id) = most.map(|(id, _)| id.clone()) else { return };
        if let Some(entry) = self.boots.remove(&id) {
            // It counts as dead: nothing of it can heal any more.
            self.forgotten = entry.boot.losses(u64::MAX).fold(self.forgotten, Loss::with);
            self.gone.push(id);
        }
    }
}

fn boot_id(batch: &Batch) -> BootId {
    BootId { gateway: batch.gateway.clone(), boot: batch.boot.clone() }
}

fn stamp(batch: &Batch, own: Amount, arrived_ms: u64) -> Stamp {
    Stamp {
        seq: batch.seq,
        last: batch.last,
        revision: batch.revision,
        since_boot: Amount { decisions: batch.cum_decisions, records: batch.cum_records },
        own,
        arrived_ms,
    }
}

#[cfg(test)]
mod tests;
