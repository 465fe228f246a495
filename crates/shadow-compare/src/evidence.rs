//! What can be asked: sums in memory and sums in the database, together and never doubled.
//!
//! The sums since the last minute write are in memory, all before in the database. A reader holds
//! off the minute write (not the batches) until it has read both.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limiter_core::Clock;
use tokio::sync::{RwLock, mpsc, oneshot};
use wire::batch::{Batch, BatchAck, Explanation, TallyCell, TopClient};
use wire::client::shadow::{TopBy, Usage, UsageMinute};
use wire::gate::GateReport;
use wire::rollout::RolloutValue;

use crate::book::{Book, MINUTE_MS};
use crate::gate::{Count, Rules};
use crate::keeper::{Take, TakeError};
use crate::metrics::EvidenceMetrics;
use crate::store::{ClientSum, EvidenceStore, StoreError};

/// What the writer and the readers share.
pub(crate) struct Shared<S> {
    /// The database.
    pub store: S,
    /// Written to while sums move from memory to the database.
    pub settling: RwLock<()>,
    /// Metrics.
    pub metrics: EvidenceMetrics,
    clock: Arc<dyn Clock>,
    book: Mutex<Book>,
    trusted: AtomicBool,
}

impl<S: fmt::Debug> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("store", &self.store).finish_non_exhaustive()
    }
}

impl<S> Shared<S> {
    /// Nothing is known yet.
    pub(crate) fn new(store: S, clock: Arc<dyn Clock>, metrics: EvidenceMetrics) -> Shared<S> {
        let (settling, book) = (RwLock::new(()), Mutex::default());
        Shared { store, settling, metrics, clock, book, trusted: AtomicBool::new(false) }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().us() / 1_000
    }

    /// The book; never held across an await.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether memory and database are known to fit together.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Acquire)
    }

    /// Nothing may be told or written before [`Shared::replace`].
    pub(crate) fn distrust(&self) {
        self.trusted.store(false, Ordering::Release);
    }

    /// Goes on with what was read from the database.
    pub(crate) fn replace(&self, mut book: Book) {
        let mut current = self.book();
        book.inherit_recent(&mut current);
        *current = book;
        drop(current);
        self.trusted.store(true, Ordering::Release);
    }

    /// Brings the gauges up to date.
    pub(crate) fn show(&self, now_ms: u64) {
        let book = self.book();
        let lost = book.losses(now_ms).fold((0, 0), |(decisions, records), loss| {
            (decisions + loss.decisions, records + loss.records)
        });
        self.metrics.lost_decisions.set(lost.0);
        self.metrics.lost_records.set(lost.1);
        self.metrics.dead_boots.set(count(book.dead(now_ms)));
        self.metrics.open_cells.set(count(book.tally().len()));
        self.metrics.overflowed_cells.set(book.tally().overflowed());
        self.metrics.recent_bytes.set(count(book.recent().bytes()));
    }
}

fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}

/// Why a question has no answer now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Memory is being read again after a write that failed.
    #[error("the evidence is being read again after a failed write")]
    Doubtful,
    /// The database does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// To post and to ask. Clones share everything.
#[derive(Debug)]
pub(crate) struct Evidence<S> {
    shared: Arc<Shared<S>>,
    takes: mpsc::Sender<Take>,
}

impl<S> Clone for Evidence<S> {
    fn clone(&self) -> Evidence<S> {
        Evidence { shared: Arc::clone(&self.shared), takes: self.takes.clone() }
    }
}

impl<S: EvidenceStore> Evidence<S> {
    /// Of the writer behind `takes`.
    pub(crate) fn new(shared: Arc<Shared<S>>, takes: mpsc::Sender<Take>) -> Evidence<S> {
        Evidence { shared, takes }
    }

    /// Whether batches are taken and questions answered.
    pub(crate) fn is_ready(&self) -> bool {
        self.shared.is_trusted() && !self.takes.is_closed()
    }

    /// Why the last write was not done, if it was not.
    pub(crate) fn unwritable(&self) -> Option<String> {
        self.shared.store.unwritable()
    }

    /// Takes in a checked batch; answered when it is durable.
    pub(crate) async fn take(&self, batch: Batch, bytes: Vec<u8>) -> Result<BatchAck, TakeError> {
        let (reply, answer) = oneshot::channel();
        let take = Take { batch, bytes, reply };
        if self.takes.send(take).await.is_err() {
            return Err(TakeError::Unavailable);
        }
        answer.await.unwrap_or(Err(TakeError::Unavailable))
    }

    /// Counts a batch that was refused before it came here.
    pub(crate) fn refused(&self) {
        self.shared.metrics.batch("refused");
    }

    /// The raw number of a rollout.
    pub(crate) async fn gate(&self, rollout: &RolloutValue) -> Result<GateReport, AskError> {
        let _no_minute_write = self.settled().await?;
        let rules = Rules::of(rollout);
        let now_ms = self.shared.now_ms();
        let mut count = Count::default();
        let heard_ms = {
            let book = self.shared.book();
            book.tally().cells().for_each(|cell| count.cell(&rules, cell));
            book.losses(now_ms).for_each(|loss| count.loss(&rules, &loss));
            book.heard_ms()
        };
        if let Some(earliest) = rules.earliest() {
            let stored = self.shared.store.shadow_since(earliest).await?;
            stored.iter().for_each(|cell| count.cell(&rules, cell));
        }
        Ok(count.report(heard_ms.map(|heard_ms| now_ms.saturating_sub(heard_ms) / 1_000)))
    }

    /// The top `n` clients over the newest `window_minutes`. Cells without a client are no client.
    pub(crate) async fn top(
        &self,
        by: TopBy,
        n: usize,
        window_minutes: u64,
    ) -> Result<Vec<TopClient>, AskError> {
        let _no_minute_write = self.settled().await?;
        let from = self.first_minute(window_minutes);
        let mut top = Top::default();
        {
            let book = self.shared.book();
            let cells = book.tally().cells().filter(|cell| from <= cell.minute);
            cells.for_each(|cell| top.add(&sum_of(cell)));
        }
        self.shared.store.clients_since(from).await?.iter().for_each(|sum| top.add(sum));
        Ok(top.ranked(by, n))
    }

    /// What `client` used over the newest `window_minutes`.
    pub(crate) async fn usage(&self, client: &str, window_minutes: u64) -> Result<Usage, AskError> {
        let _no_minute_write = self.settled().await?;
        let from = self.first_minute(window_minutes);
        let mut minutes = BTreeMap::<u64, UsageMinute>::new();
        let mut complete = true;
        let mut add = |cell: &TallyCell| {
            if cell.client == client {
                let minute = minutes.entry(cell.minute).or_default();
                minute.minute = cell.minute;
                minute.requests += cell.requests;
                minute.edge_denied += cell.edge_denied;
                minute.rejected += cell.rejected;
                minute.service_denied += cell.service_denied;
                minute.cost_allowed += cell.cost_allowed;
            } else if cell.client.is_empty() {
                complete = false;
            }
        };
        let lost = {
            let book = self.shared.book();
            book.tally().cells().filter(|cell| from <= cell.minute).for_each(&mut add);
            book.losses(self.shared.now_ms())
                .any(|loss| 0 < loss.decisions && from * MINUTE_MS <= loss.known_ms)
        };
        self.shared.store.usage_since(client, from).await?.iter().for_each(&mut add);
        let minutes = minutes.into_values().collect();
        Ok(Usage { client: client.to_owned(), complete: complete && !lost, minutes })
    }

    /// One request explained, if its record is among the recent ones.
    pub(crate) fn explain(&self, request_id: &str) -> Option<Explanation> {
        self.shared.book().recent().explain(request_id)
    }

    async fn settled(&self) -> Result<tokio::sync::RwLockReadGuard<'_, ()>, AskError> {
        let guard = self.shared.settling.read().await;
        if self.shared.is_trusted() { Ok(guard) } else { Err(AskError::Doubtful) }
    }

    fn first_minute(&self, window_minutes: u64) -> u64 {
        (self.shared.now_ms() / MINUTE_MS).saturating_sub(window_minutes.saturating_sub(1))
    }
}

fn sum_of(cell: &TallyCell) -> ClientSum {
    ClientSum {
        client: cell.client.clone(),
        phase: cell.phase,
        minute: cell.minute,
        since_revision: cell.since_revision,
        requests: cell.requests,
        would_deny: cell.edge_denied,
        pairs: cell.pairs(),
        disagreements: cell.disagreements(),
    }
}

/// Adds up clients over their phases.
#[derive(Debug, Default)]
struct Top {
    clients: BTreeMap<String, (TopClient, (u64, u64))>,
}

impl Top {
    fn add(&mut self, sum: &ClientSum) {
        if sum.client.is_empty() {
            return;
        }
        let newest = (sum.minute, sum.since_revision);
        let (top, seen) = self.clients.entry(sum.client.clone()).or_insert_with(|| {
            let top = TopClient {
                client: sum.client.clone(),
                phase: sum.phase,
                requests: 0,
                would_deny: 0,
                pairs: 0,
                disagreements: 0,
                state: None,
            };
            (top, newest)
        });
        if *seen <= newest {
            (top.phase, *seen) = (sum.phase, newest);
        }
        top.requests += sum.requests;
        top.would_deny += sum.would_deny;
        top.pairs += sum.pairs;
        top.disagreements += sum.disagreements;
    }

    /// Most first; ties by requests, then by name. Clients with nothing to rank are left out.
    fn ranked(self, by: TopBy, n: usize) -> Vec<TopClient> {
        let rank = |top: &TopClient| match by {
            TopBy::WouldDeny => top.would_deny,
            TopBy::Disagree => top.disagreements,
            TopBy::Requests => top.requests,
        };
        let all = self.clients.into_values().map(|(top, _)| top);
        let mut ranked: Vec<_> = all.filter(|top| 0 < rank(top)).collect();
        ranked.sort_by(|a, b| {
            (rank(b), b.requests).cmp(&(rank(a), a.requests)).then_with(|| a.client.cmp(&b.client))
        });
        ranked.truncate(n);
        ranked
    }
}
