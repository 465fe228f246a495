//! What is known of one gateway process: which batches came, and exactly what is missing.
//!
//! Every batch says how many decisions there were since the process began. So what lies between
//! two received batches is known even if it never arrives: `before` of the later one (its counter
//! less its own decisions) minus the counter of the earlier one. Received batches are kept as
//! *runs* without a hole; between two runs lies a *gap* with its loss. A late batch splits or
//! closes a gap, and the loss it had been charged with disappears by itself.
//!
//! A process that falls silent without saying goodbye has lost what it had not sent. Nobody can
//! know how much; charged is twice the highest count of one batch among its last sixty (a minute):
//! the second that was being counted and the one under way. A longer backlog that dies with the
//! process, because we were unreachable for longer before it was killed, is not seen by this rule,
//! and neither is a process that never got its first batch through. What is charged so counts as
//! decided under the newest revision that the process reported.
//!
//! A gap is charged to the policy revision of the batch that ends it: the newest under which its
//! decisions can have been made.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::batch::Amount;

/// Silence after which a process without a last batch is taken for dead, in milliseconds. It is
/// taken back when the process speaks again.
pub(crate) const SILENT_MS: u64 = 30_000;
/// Gaps of one process that can still heal. Beyond it the oldest stays charged for ever, and its
/// late batches are taken for known ones.
const RUNS_MAX: usize = 512;
/// Batches that make up the last minute of a process.
const LAST_MINUTE_BATCHES: u64 = 60;

/// The counters and place of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    /// Its number in the process.
    pub seq: u64,
    /// Nothing comes after it.
    pub last: bool,
    /// Policy revision at its cut.
    pub revision: u64,
    /// Since the process began.
    pub since_boot: Amount,
    /// In the batch.
    pub own: Amount,
    /// When it was committed, milliseconds since 1970.
    pub arrived_ms: u64,
}

/// Decisions and records that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Loss {
    /// Newest policy revision under which they can have been made.
    pub revision: u64,
    /// When the loss became known.
    pub known_ms: u64,
    /// Missing decisions.
    pub decisions: u64,
    /// Missing records, dropped ones included.
    pub records: u64,
}

impl Loss {
    /// Both together, at the worst of both places.
    pub(crate) fn with(self, other: Loss) -> Loss {
        Loss {
            revision: self.revision.max(other.revision),
            known_ms: self.known_ms.max(other.known_ms),
            decisions: self.decisions + other.decisions,
            records: self.records + other.records,
        }
    }

    fn is_nothing(&self) -> bool {
        self.decisions == 0 && self.records == 0
    }
}

/// What a batch is to the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It came before.
    Known,
    /// It is new and fits.
    New,
}

/// Why a batch cannot belong to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Contradiction {
    /// The counters run back.
    #[error("the counters of batch {0} do not fit to those of batch {1}")]
    Counters(u64, u64),
    /// There was, or is, something after the last batch.
    #[error("batch {0} comes after batch {1}, which is the last one")]
    AfterLast(u64, u64),
}

/// Received batches without a hole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    first: u64,
    last: u64,
    revision: u64,
    arrived_ms: u64,
    decisions_before: u64,
    decisions_after: u64,
    records_before: u64,
    records_after: u64,
}

impl Run {
    /// Before the first batch: nothing has happened.
    const ORIGIN: Run = Run {
        first: 0,
        last: 0,
        revision: 0,
        arrived_ms: 0,
        decisions_before: 0,
        decisions_after: 0,
        records_before: 0,
        records_after: 0,
    };

    fn of(stamp: &Stamp) -> Run {
        let Amount { decisions, records } = stamp.since_boot;
        Run {
            first: stamp.seq,
            last: stamp.seq,
            revision: stamp.revision,
            arrived_ms: stamp.arrived_ms,
            decisions_before: decisions.saturating_sub(stamp.own.decisions),
            decisions_after: decisions,
            records_before: records.saturating_sub(stamp.own.records),
            records_after: records,
        }
    }

    /// Whether `next` can come after this.
    fn precedes(&self, next: &Run) -> bool {
        self.last < next.first
            && self.decisions_after <= next.decisions_before
            && self.records_after <= next.records_before
    }

    /// What is missing between this and `next`.
    fn gap_to(&self, next: &Run) -> Loss {
        Loss {
            revision: next.revision,
            known_ms: next.arrived_ms,
            decisions: next.decisions_before.saturating_sub(self.decisions_after),
            records: next.records_before.saturating_sub(self.records_after),
        }
    }

    /// Takes in `next`; what lay between is forgotten.
    fn extend(&mut self, next: &Run) {
        self.last = next.last;
        self.decisions_after = next.decisions_after;
        self.records_after = next.records_after;
    }
}

/// One process of a gateway. Written to the database as it stands here, so fields may be added but
/// never change their meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Boot {
    /// In order, never empty, the first one starts at the origin.
    runs: VecDeque<Run>,
    /// Gaps that can heal no more.
    settled: Loss,
    /// Decisions of the last minute's batches.
    minute: BTreeMap<u64, u64>,
    /// Number of the batch that said goodbye.
    goodbye: Option<u64>,
    /// When its newest commit was.
    heard_ms: u64,
    /// Newest revision it worked under.
    revision: u64,
}

impl Boot {
    /// One of which nothing is known.
    pub(crate) fn new() -> Boot {
        Boot {
            runs: VecDeque::from([Run::ORIGIN]),
            settled: Loss::default(),
            minute: BTreeMap::new(),
            goodbye: None,
            heard_ms: 0,
            revision: 0,
        }
    }

    /// What this batch would be; changes nothing.
    pub(crate) fn judge(&self, stamp: &Stamp) -> Result<Fit, Contradiction> {
        let at = self.place(stamp.seq);
        let before = at.checked_sub(1).and_then(|index| self.runs.get(index));
        let Some(before) = before else { return Ok(Fit::Known) };
        if stamp.seq <= before.last {
            return Ok(Fit::Known);
        }
        let run = Run::of(stamp);
        if !before.precedes(&run) {
            return Err(Contradiction::Counters(stamp.seq, before.last));
        }
        if let Some(after) = self.runs.get(at)
            && !run.precedes(after)
        {
            return Err(Contradiction::Counters(stamp.seq, after.first));
        }
        match self.goodbye {
            Some(last) if last < stamp.seq => Err(Contradiction::AfterLast(stamp.seq, last)),
            None if stamp.last && stamp.seq < self.newest() => {
                Err(Contradiction::AfterLast(self.newest(), stamp.seq))
            }
            Some(_) | None => Ok(Fit::New),
        }
    }

    /// Takes in a batch that was judged new.
    pub(crate) fn take(&mut self, stamp: &Stamp) {
        self.runs.insert(self.place(stamp.seq), Run::of(stamp));
        self.join_around(stamp.seq);
        if self.runs.len() > RUNS_MAX {
            self.settle_oldest_gap();
        }
        self.heard_ms = self.heard_ms.max(stamp.arrived_ms);
        self.revision = self.revision.max(stamp.revision);
        if stamp.last {
            self.goodbye = self.goodbye.max(Some(stamp.seq));
        }
        self.minute.insert(stamp.seq, stamp.own.decisions);
        let from = self.minute_start();
        self.minute.retain(|seq, _| *seq >= from);
    }

    /// Everything that is missing, as known at `now_ms`.
    pub(crate) fn losses(&self, now_ms: u64) -> impl Iterator<Item = Loss> {
        let gaps = self.gaps().map(|(before, after)| before.gap_to(after));
        let unsent = self.is_dead(now_ms).then(|| self.unsent());
        gaps.chain([self.settled]).chain(unsent).filter(|loss| !loss.is_nothing())
    }

    /// When its newest batch was committed.
    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Whether it said nothing for too long, and no goodbye.
    pub(crate) fn is_dead(&self, now_ms: u64) -> bool {
        self.goodbye.is_none() && now_ms.saturating_sub(self.heard_ms) > SILENT_MS
    }

    /// Forgets gaps that became known before `before_ms`; whether there were any.
    pub(crate) fn forget(&mut self, before_ms: u64) -> bool {
        let was = (self.runs.len(), self.settled);
        while self.runs.get(1).is_some_and(|run| run.arrived_ms < before_ms) {
            self.drop_oldest_gap();
        }
        if self.settled.known_ms < before_ms {
            self.settled = Loss::default();
        }
        was != (self.runs.len(), self.settled)
    }

    fn unsent(&self) -> Loss {
        Loss {
            revision: self.revision,
            known_ms: self.heard_ms.saturating_add(SILENT_MS),
            decisions: self.peak().saturating_mul(2),
            records: 0,
        }
    }

    /// Most decisions of one batch in the last minute; of lost ones their mean.
    fn peak(&self) -> u64 {
        let from = self.minute_start();
        let lost = self.gaps().filter(|(_, after)| after.first > from).map(|(before, after)| {
            let batches = (after.first - before.last).saturating_sub(1);
            before.gap_to(after).decisions.checked_div(batches).map_or(0, |mean| mean + 1)
        });
        self.minute.values().copied().chain(lost).max().unwrap_or(0)
    }

    fn gaps(&self) -> impl Iterator<Item = (&Run, &Run)> {
        self.runs.iter().zip(self.runs.iter().skip(1))
    }

    fn newest(&self) -> u64 {
        self.runs.back().map_or(0, |run| run.last)
    }

    fn minute_start(&self) -> u64 {
        (self.newest() + 1).saturating_sub(LAST_MINUTE_BATCHES)
    }

    /// Where a run that starts at `seq` stands or would stand.
    fn place(&self, seq: u64) -> usize {
        self.runs.partition_point(|run| run.first <= seq)
    }

    /// Joins the run that starts at `seq` with its neighbours where nothing is missing between.
    fn join_around(&mut self, seq: u64) {
        let own = self.place(seq).saturating_sub(1);
        for earlier in [Some(own), own.checked_sub(1)].into_iter().flatten() {
            let Some(next) = self.runs.get(earlier + 1).cloned() else { continue };
            let Some(run) = self.runs.get_mut(earlier) else { continue };
            if run.last + 1 == next.first && run.gap_to(&next).is_nothing() {
                run.extend(&next);
                self.runs.remove(earlier + 1);
            }
        }
    }

    fn settle_oldest_gap(&mut self) {
        if let Some(loss) = self.drop_oldest_gap() {
            self.settled = self.settled.with(loss);
        }
    }

    fn drop_oldest_gap(&mut self) -> Option<Loss> {
        let next = self.runs.remove(1)?;
        let origin = self.runs.front_mut()?;
        let loss = origin.gap_to(&next);
        origin.extend(&next);
        Some(loss)
    }
}

#[cfg(test)]
mod tests;
