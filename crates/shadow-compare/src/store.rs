//! The port to the database: a batch as one row, sums once a minute, forget the old.

pub(crate) mod sql; // the one SQL text, for Postgres and SQLite
pub(crate) mod claim; // one instance at a time

use std::fmt::Debug;

use daemon::sql::SqlError;
use wire::batch::TallyCell;
use wire::rollout::Phase;

use crate::book::{BootId, Checkpoint, MinuteWrite};
use crate::boot::Boot;

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// It may or may not have happened: read again before going on.
    #[error("the evidence cannot be read or written")]
    Database(#[from] SqlError),
    /// Another instance has taken over: end.
    #[error("another weir-shadow-compare has taken over this database")]
    TakenOver,
    /// What is stored cannot be read: end, and let somebody look.
    #[error("{0} in the database cannot be read")]
    Corrupt(String, #[source] serde_json::Error),
}

/// A batch on its way to the database.
#[derive(Debug)]
pub(crate) struct NewBatch<'a> {
    /// In commit order.
    pub number: u64,
    /// Which process made it.
    pub id: BootId,
    /// Its number in the process.
    pub seq: u64,
    /// When it came, milliseconds since 1970.
    pub arrived_ms: u64,
    /// As it came.
    pub bytes: &'a [u8],
}

/// A batch as it was stored.
#[derive(Debug)]
pub(crate) struct StoredBatch {
    /// In commit order.
    pub number: u64,
    /// When it came, milliseconds since 1970.
    pub arrived_ms: u64,
    /// As it came.
    pub bytes: Vec<u8>,
}

/// What a commit found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// A new row.
    New,
    /// The row was there.
    Known,
}

/// Sums of one client in one phase, over a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientSum {
    /// The client.
    pub client: String,
    /// The phase.
    pub phase: Phase,
    /// Newest minute with a cell.
    pub minute: u64,
    /// Newest revision at which the phase began.
    pub since_revision: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that the edge denied or would deny.
    pub would_deny: u64,
    /// Pairs.
    pub pairs: u64,
    /// Disagreements.
    pub disagreements: u64,
}

/// Where evidence lives. One transaction for each method.
pub(crate) trait EvidenceStore: Debug + Send + Sync + 'static {
    /// The last checkpoint and the processes as of it.
    fn restore(
        &self,
    ) -> impl Future<Output = Result<(Checkpoint, Vec<(BootId, Boot)>), StoreError>> + Send;

    /// The next batches after `number`, in commit order; an empty answer is the end.
    fn batches_after(
        &self,
        number: u64,
    ) -> impl Future<Output = Result<Vec<StoredBatch>, StoreError>> + Send;

    /// Why the last write was not done, if it was not.
    fn unwritable(&self) -> Option<String>;

    /// Tries whether writes work; nothing of it is kept.
    fn try_write(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Makes a batch durable.
    fn commit(
        &self,
        batch: &NewBatch<'_>,
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send;

    /// Adds to the sums, moves the checkpoint, drops the bytes of batches that are in the sums.
    fn write_minute(
        &self,
        write: &MinuteWrite,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Sums of phase shadow by client and by the revision at which it began, from `revision` on.
    fn shadow_since(
        &self,
        revision: u64,
    ) -> impl Future<Output = Result<Vec<TallyCell>, StoreError>> + Send;

    /// Sums by client and phase over the minutes from `minute` on.
    fn clients_since(
        &self,
        minute: u64,
    ) -> impl Future<Output = Result<Vec<ClientSum>, StoreError>> + Send;

    /// Sums of one client, and of cells without a client, by minute from `minute` on.
    fn usage_since(
        &self,
        client: &str,
        minute: u64,
    ) -> impl Future<Output = Result<Vec<TallyCell>, StoreError>> + Send;

    /// Forgets some of the batches that came before `batches_ms` and of the sums before `minute`;
    /// called again and again.
    fn forget(
        &self,
        batches_ms: u64,
        minute: u64,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
