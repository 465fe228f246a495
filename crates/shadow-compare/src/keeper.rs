//! The one task that writes: batches in the order in which they come, sums once a minute.
//!
//! A batch is acknowledged after it is durable, then added to memory; both happen here, so a caller
//! who leaves cannot come between. When a write fails, nobody knows whether it happened. Then
//! memory is thrown away and read again from the database, exactly as after a restart, before
//! anything else is written or told.

use std::sync::Arc;
use std::time::Duration;

use daemon::log::chain;
use tokio::sync::{mpsc, oneshot};
use wire::batch::{Batch, BatchAck};

use crate::book::{BATCHES_KEPT_MS, Book, BootId, EVIDENCE_KEPT_MS, MINUTE_MS};
use crate::boot::{Contradiction, Fit};
use crate::evidence::{Evidence, Shared};
use crate::store::{Committed, EvidenceStore, NewBatch, StoreError};

/// Batches that wait for the writer. Beyond it callers wait, with their bodies, to be let in.
pub(crate) const TAKES_QUEUED_MAX: usize = 16;
/// How often the writer looks whether something is due.
const TICK: Duration = Duration::from_secs(1);

/// A checked batch that wants to be taken in.
#[derive(Debug)]
pub(crate) struct Take {
    /// The batch.
    pub batch: Batch,
    /// As it came.
    pub bytes: Vec<u8>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<BatchAck, TakeError>>,
}

/// Why a batch is not taken in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeError {
    /// It cannot be true; sending it again is useless.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// Send it again later.
    #[error("the batch cannot be stored now")]
    Unavailable,
}

/// Why the keeper cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeeperError {
    /// Stored evidence cannot be read, or another instance took over.
    #[error(transparent)]
    Store(StoreError),
    /// A stored batch cannot be read.
    #[error("batch {0} in the database cannot be read")]
    Batch(u64, #[source] serde_json::Error),
}

/// Owns the order of all writes.
#[derive(Debug)]
pub(crate) struct Keeper<S> {
    shared: Arc<Shared<S>>,
    takes: mpsc::Receiver<Take>,
    settle_ms: u64,
    settle_next_ms: u64,
}

/// Reads everything from `store` and makes the writer and the handle to ask and to post.
pub(crate) async fn open<S: EvidenceStore>(
    shared: Shared<S>,
    settle_every: Duration,
) -> Result<(Keeper<S>, Evidence<S>), KeeperError> {
    let shared = Arc::new(shared);
    reload(&shared).await?;
    let (sender, takes) = mpsc::channel(TAKES_QUEUED_MAX);
    let settle_ms = u64::try_from(settle_every.as_millis()).unwrap_or(MINUTE_MS);
    let settle_next_ms = shared.now_ms().saturating_add(settle_ms);
    let keeper = Keeper { shared: Arc::clone(&shared), takes, settle_ms, settle_next_ms };
    Ok((keeper, Evidence::new(shared, sender)))
}

impl<S: EvidenceStore> Keeper<S> {
    /// Works until told to stop; then takes in what waits, writes the sums and ends.
    pub(crate) async fn run(mut self, stop: oneshot::Receiver<()>) -> Result<(), KeeperError> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                biased;
                _told_or_dropped = &mut stop => break,
                _now = tick.tick() => self.look().await?,
                take = self.takes.recv() => match take {
                    Some(take) => self.take(take).await?,
                    None => break,
                },
            }
        }
        self.takes.close();
        while let Some(take) = self.takes.recv().await {
            self.take(take).await?;
        }
        self.settle().await
    }

    async fn take(&mut self, take: Take) -> Result<(), KeeperError> {
        let Take { batch, bytes, reply } = take;
        let answer = self.commit(&batch, &bytes).await;
        self.shared.metrics.batch(match &answer {
            Ok(Ok(BatchAck { duplicate: false, .. })) => "new",
            Ok(Ok(BatchAck { duplicate: true, .. })) => "duplicate",
            Ok(Err(TakeError::Contradiction(_))) => "refused",
            Ok(Err(TakeError::Unavailable)) | Err(_) => "unavailable",
        });
        let (answer, ended) = match answer {
            Ok(answer) => (answer, Ok(())),
            Err(error) => (Err(TakeError::Unavailable), Err(error)),
        };
        if reply.send(answer).is_err() {
            tracing::debug!(gateway = %batch.gateway, "the sender of a batch has left");
        }
        ended
    }

    async fn commit(
        &self,
        batch: &Batch,
        bytes: &[u8],
    ) -> Result<Result<BatchAck, TakeError>, KeeperError> {
        if !self.shared.is_trusted() && !self.try_reload().await? {
            return Ok(Err(TakeError::Unavailable));
        }
        let arrived_ms = self.shared.now_ms();
        let ack = |duplicate| Ok(Ok(BatchAck { acked_seq: batch.seq, duplicate }));
        let number = {
            let book = self.shared.book();
            match book.judge(batch, arrived_ms) {
                Err(error) => return Ok(Err(error.into())),
                Ok(Fit::Known) => return ack(true),
                Ok(Fit::New) => book.committed() + 1,
            }
        };
        let id = BootId { gateway: batch.gateway.clone(), boot: batch.boot.clone() };
        let row = NewBatch { number, id, seq: batch.seq, arrived_ms, bytes };
        match self.shared.store.commit(&row).await {
            Ok(Committed::New) => {
                self.shared.book().apply(number, batch, arrived_ms);
                self.shared.metrics.decisions.inc_by(crate::batch::amount(batch).decisions);
                ack(false)
            }
            // Memory knows every batch but those of processes forgotten at a bound.
            Ok(Committed::Known) => ack(true),
            Err(error) => {
                self.doubt(error)?;
                Ok(Err(TakeError::Unavailable))
            }
        }
    }

    /// Does what is due.
    async fn look(&mut self) -> Result<(), KeeperError> {
        if !self.shared.is_trusted() {
            self.try_reload().await?;
        }
        self.write_again().await?;
        let now_ms = self.shared.now_ms();
        if self.settle_next_ms <= now_ms {
            self.settle_next_ms = now_ms.saturating_add(self.settle_ms);
            self.settle().await?;
            self.forget(now_ms).await?;
        }
        self.shared.show(now_ms);
        Ok(())
    }

    /// After a write that failed, tries one: whoever is not ready may not be sent batches.
    async fn write_again(&self) -> Result<(), KeeperError> {
        if self.shared.store.unwritable().is_none() {
            return Ok(());
        }
        match self.shared.store.try_write().await {
            Ok(()) => tracing::info!("the database takes writes again"),
            Err(StoreError::Database(error)) => {
                tracing::warn!(error = %chain(&error), "the database takes no writes");
            }
            Err(error @ (StoreError::TakenOver | StoreError::Corrupt(..))) => {
                return Err(KeeperError::Store(error));
            }
        }
        Ok(())
    }

    /// Writes the sums. Nobody reads meanwhile: what is in memory now is in the database then.
    async fn settle(&self) -> Result<(), KeeperError> {
        if !self.shared.is_trusted() {
            return Ok(());
        }
        let _nobody_reads = self.shared.settling.write().await;
        let began_ms = self.shared.now_ms();
        let write = {
            let mut book = self.shared.book();
            book.forget(began_ms);
            book.minute_write()
        };
        match self.shared.store.write_minute(&write).await {
            Ok(()) => {
                self.shared.book().written(write.checkpoint);
                let took_ms = self.shared.now_ms().saturating_sub(began_ms);
                self.shared.metrics.minute_writes.inc();
                self.shared.metrics.minute_write_ms.set(took_ms);
                Ok(())
            }
            Err(error) => self.doubt(error),
        }
    }

    async fn forget(&self, now_ms: u64) -> Result<(), KeeperError> {
        let minute = now_ms.saturating_sub(EVIDENCE_KEPT_MS) / MINUTE_MS;
        let batches_ms = now_ms.saturating_sub(BATCHES_KEPT_MS);
        match self.shared.store.forget(batches_ms, minute).await {
            Ok(()) => Ok(()),
            Err(StoreError::Database(error)) => {
                // Memory rests on nothing that is forgotten here, so there is nothing to doubt.
                tracing::warn!(error = %chain(&error), "old evidence was not forgotten");
                Ok(())
            }
            Err(error @ (StoreError::TakenOver | StoreError::Corrupt(..))) => {
                Err(KeeperError::Store(error))
            }
        }
    }

    /// A write failed: trust memory no more, or give up.
    fn doubt(&self, error: StoreError) -> Result<(), KeeperError> {
        match error {
            StoreError::TakenOver | StoreError::Corrupt(..) => Err(KeeperError::Store(error)),
            StoreError::Database(error) => {
                tracing::warn!(error = %chain(&error), "evidence was not written; reading again");
                self.shared.metrics.doubts.inc();
                self.shared.distrust();
                Ok(())
            }
        }
    }

    /// Whether memory could be read again.
    async fn try_reload(&self) -> Result<bool, KeeperError> {
        match reload(&self.shared).await {
            Ok(()) => Ok(true),
            Err(KeeperError::Store(StoreError::Database(error))) => {
                tracing::warn!(error = %chain(&error), "evidence cannot be read");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads the checkpoint and the batches after it into a new book.
async fn reload<S: EvidenceStore>(shared: &Shared<S>) -> Result<(), KeeperError> {
    let (checkpoint, boots) = shared.store.restore().await.map_err(KeeperError::Store)?;
    let mut book = Book::restored(checkpoint, boots);
    loop {
        let batches =
            shared.store.batches_after(book.committed()).await.map_err(KeeperError::Store)?;
        if batches.is_empty() {
            break;
        }
        for stored in batches {
            let batch = serde_json::from_slice(&stored.bytes)
                .map_err(|error| KeeperError::Batch(stored.number, error))?;
            book.apply(stored.number, &batch, stored.arrived_ms);
        }
    }
    shared.replace(book);
    Ok(())
}

#[cfg(test)]
mod tests;
