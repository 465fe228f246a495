//! Batches on their way to whoever keeps the evidence: one is cut each second, also when nothing
//! happened, numbered without gaps; what is not acknowledged is kept in memory and sent again.
//!
//! Counters since the process began go with each batch and agree exactly with what the batches
//! hold, so the other side computes any loss instead of guessing it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use wire::batch::{Batch, BatchAck, DecisionRecord, RECORDS_MAX, TallyCell};
use wire::client::shadow::ShadowClient;
use wire::error::ErrorCode;

use super::Recorder;
use crate::plan_source::Pending;

/// A batch leaves this often.
const CUT_EVERY: Duration = Duration::from_secs(1);
/// Batches not yet acknowledged, in bytes of their text, roughly. Beyond it the oldest is dropped.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// First and longest pause after a batch was not taken.
const BACKOFF: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(5);
/// An answer that takes longer is no answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Text of an empty batch, a cell and a record without their names, roughly.
const BATCH_BYTES: usize = 256;
const CELL_BYTES: usize = 360;
const RECORD_BYTES: usize = 560;

/// Keeps the evidence.
pub trait Evidence: Send + Sync + 'static {
    /// Takes a batch, for good.
    fn post<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Result<BatchAck, EvidenceError>>;
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// Send it again later.
    #[error("nobody takes the batch now")]
    Away(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It will never be taken: do not let it hold up the others.
    #[error("the batch is refused for good")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Evidence for ShadowClient {
    fn post<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Result<BatchAck, EvidenceError>> {
        Box::pin(async {
            self.post_batch(batch, PATIENCE).await.map_err(|error| {
                let code = error.refused().map(|body| body.code);
                match code {
                    Some(
                        ErrorCode::InvalidValue | ErrorCode::BadRequest | ErrorCode::BodyTooLarge,
                    ) => EvidenceError::Refused(Box::new(error)),
                    Some(_) | None => EvidenceError::Away(Box::new(error)),
                }
            })
        })
    }
}

/// What has been cut and not yet acknowledged.
pub(crate) struct Outbox {
    gateway: String,
    boot: String,
    evidence: Arc<dyn Evidence>,
    recorder: Arc<Recorder>,
    scissors: Mutex<Scissors>,
    waiting: Mutex<Waiting>,
    more: Notify,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.waiting.lock().batches.len();
        f.debug_struct("Outbox").field("waiting", &waiting).finish_non_exhaustive()
    }
}

/// What one cut leaves for the next.
#[derive(Debug)]
struct Scissors {
    queued: mpsc::Receiver<DecisionRecord>,
    seq: u64,
    decisions: u64,
    records: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<(Arc<Batch>, usize)>,
    bytes: usize,
}

impl Outbox {
    pub(crate) fn new(
        gateway: String,
        boot: String,
        evidence: Arc<dyn Evidence>,
        recorder: Arc<Recorder>,
        queued: mpsc::Receiver<DecisionRecord>,
    ) -> Outbox {
        let scissors = Scissors { queued, seq: 0, decisions: 0, records: 0, ended: false };
        Outbox {
            gateway,
            boot,
            evidence,
            recorder,
            scissors: Mutex::new(scissors),
            waiting: Mutex::default(),
            more: Notify::new(),
        }
    }

    /// Cuts and sends until `stop`.
    pub(crate) async fn run(&self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            _ended = stop.wait_for(|stopped| *stopped) => {}
            () = self.cut_each_second() => {}
            () = self.send_all() => {}
        }
    }

    async fn cut_each_second(&self) {
        let mut ticks = interval(CUT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.cut(Cut::Ordinary);
        }
    }

    async fn send_all(&self) {
        let mut pause = *BACKOFF.start();
        loop {
            let news = self.more.notified();
            match self.send_oldest().await {
                Sent::Nothing => news.await,
                Sent::One => pause = *BACKOFF.start(),
                Sent::NotTaken => {
                    sleep(pause.mul_f64(fastrand::f64().mul_add(0.2, 0.9))).await;
                    pause = (pause * 2).min(*BACKOFF.end());
                }
            }
        }
    }

    /// The last cut, and everything that still waits, for at most `within`.
    pub(crate) async fn finish(&self, within: Duration) -> bool {
        self.cut(Cut::Last);
        let all = async {
            loop {
                match self.send_oldest().await {
                    Sent::Nothing => return,
                    Sent::One => {}
                    Sent::NotTaken => sleep(*BACKOFF.start()).await,
                }
            }
        };
        timeout(within, all).await.is_ok()
    }

    async fn send_oldest(&self) -> Sent {
        let oldest = self.waiting.lock().batches.front().map(|(batch, _)| Arc::clone(batch));
        let Some(batch) = oldest else { return Sent::Nothing };
        match timeout(PATIENCE, self.evidence.post(&batch)).await {
            Ok(Ok(_acknowledged)) => {
                self.forget(batch.seq);
                Sent::One
            }
            Ok(Err(EvidenceError::Refused(error))) => {
                tracing::error!(seq = batch.seq, %error, "a batch is refused for good: dropped");
                self.recorder.metrics.batches_dropped.inc();
                self.forget(batch.seq);
                Sent::One
            }
            Ok(Err(EvidenceError::Away(error))) => {
                tracing::debug!(seq = batch.seq, %error, "batch not taken");
                Sent::NotTaken
            }
            Err(_elapsed) => Sent::NotTaken,
        }
    }

    fn forget(&self, seq: u64) {
        let mut waiting = self.waiting.lock();
        // It may have been dropped for its size meanwhile.
        if waiting.batches.front().is_some_and(|(batch, _)| batch.seq == seq) {
            waiting.pop();
        }
        self.show(&waiting);
    }

    fn cut(&self, cut: Cut) {
        let mut scissors = self.scissors.lock();
        if scissors.ended {
            return;
        }
        scissors.ended = cut == Cut::Last;
        loop {
            let batch = self.one_batch(&mut scissors, cut);
            let full = batch.records.len() >= RECORDS_MAX;
            self.keep(batch);
            // Only the last cut may not leave records for the next one.
            if !(full && cut == Cut::Last) {
                break;
            }
        }
        drop(scissors);
        self.more.notify_one();
    }

    fn one_batch(&self, scissors: &mut Scissors, cut: Cut) -> Batch {
        let mut records = Vec::new();
        while records.len() < RECORDS_MAX {
            let Ok(record) = scissors.queued.try_recv() else { break };
            records.push(record);
        }
        let cells = self.recorder.cut();
        scissors.seq += 1;
        scissors.decisions += cells.iter().map(|cell| cell.requests).sum::<u64>();
        scissors.records += records.len() as u64;
        Batch {
            gateway: self.gateway.clone(),
            boot: self.boot.clone(),
            seq: scissors.seq,
            revision: self.recorder.revision(),
            last: cut == Cut::Last && records.len() < RECORDS_MAX,
            cum_decisions: scissors.decisions,
            cum_records: scissors.records + self.recorder.dropped(),
            cells,
            records,
        }
    }

    fn keep(&self, batch: Batch) {
        let bytes = bytes_of(&batch);
        let mut waiting = self.waiting.lock();
        waiting.batches.push_back((Arc::new(batch), bytes));
        waiting.bytes += bytes;
        while waiting.bytes > WAITING_BYTES_MAX && waiting.batches.len() > 1 {
            waiting.pop();
            self.recorder.metrics.batches_dropped.inc();
        }
        self.show(&waiting);
    }

    fn show(&self, waiting: &Waiting) {
        let batches = i64::try_from(waiting.batches.len()).unwrap_or(i64::MAX);
        self.recorder.metrics.batches_waiting.set(batches);
    }
}

impl Waiting {
    fn pop(&mut self) {
        if let Some((_, bytes)) = self.batches.pop_front() {
            self.bytes -= bytes;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Ordinary,
    Last,
}

enum Sent {
    Nothing,
    One,
    NotTaken,
}

fn bytes_of(batch: &Batch) -> usize {
    let cell = |cell: &TallyCell| CELL_BYTES + cell.client.len() + cell.service.len();
    let record = |record: &DecisionRecord| {
        RECORD_BYTES
            + record.request_id.len()
            + record.client.len()
            + record.plan.len()
            + record.route.len()
            + record.service.len()
    };
    BATCH_BYTES
        + batch.cells.iter().map(cell).sum::<usize>()
        + batch.records.iter().map(record).sum::<usize>()
}
