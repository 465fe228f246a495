//! A database that fails before or after it has done what was asked: nothing is lost and nothing
//! is counted twice.

use std::sync::atomic::{AtomicU64, Ordering};

use daemon::sql::{Database, SqlError};
use limiter_core::SystemClock;
use wire::batch::TallyCell;
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};

use super::*;
use crate::book::{Checkpoint, MinuteWrite};
use crate::boot::Boot;
use crate::metrics::EvidenceMetrics;
use crate::store::sql::SqlStore;
use crate::store::{ClientSum, StoredBatch};
use crate::testing::{batch, paired, record, shadow_cell};

/// Fails about one call in three, half of them after the call was done; by a seed.
#[derive(Debug)]
struct Flaky {
    store: SqlStore,
    state: AtomicU64,
}

impl Flaky {
    fn roll(&self) -> u64 {
        let step = |x: u64| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let before =
            self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |x| Some(step(x)));
        (step(before.unwrap()) >> 33) % 6
    }

    async fn maybe<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let gone = || StoreError::Database(SqlError::Url("made to fail".to_owned()));
        match self.roll() {
            0 => Err(gone()),
            1 => call.await.and(Err(gone())),
            _ => call.await,
        }
    }
}

impl EvidenceStore for Flaky {
    async fn restore(&self) -> Result<(Checkpoint, Vec<(BootId, Boot)>), StoreError> {
        self.maybe(self.store.restore()).await
    }
    async fn batches_after(&self, number: u64) -> Result<Vec<StoredBatch>, StoreError> {
        self.maybe(self.store.batches_after(number)).await
    }
    fn unwritable(&self) -> Option<String> {
        self.store.unwritable()
    }
    async fn try_write(&self) -> Result<(), StoreError> {
        self.maybe(self.store.try_write()).await
    }
    async fn commit(&self, batch: &NewBatch<'_>) -> Result<Committed, StoreError> {
        self.maybe(self.store.commit(batch)).await
    }
    async fn write_minute(&self, write: &MinuteWrite) -> Result<(), StoreError> {
        self.maybe(self.store.write_minute(write)).await
    }
    async fn shadow_since(&self, revision: u64) -> Result<Vec<TallyCell>, StoreError> {
        self.store.shadow_since(revision).await
    }
    async fn clients_since(&self, minute: u64) -> Result<Vec<ClientSum>, StoreError> {
        self.store.clients_since(minute).await
    }
    async fn usage_since(&self, client: &str, minute: u64) -> Result<Vec<TallyCell>, StoreError> {
        self.store.usage_since(client, minute).await
    }
    async fn forget(&self, batches_ms: u64, minute: u64) -> Result<(), StoreError> {
        self.maybe(self.store.forget(batches_ms, minute)).await
    }
}

async fn flaky_store(folder: &tempfile::TempDir, seed: u64) -> Flaky {
    let url = format!("sqlite://{}", folder.path().join(format!("{seed}.db")).display());
    let database = Database::open(&url).await.unwrap();
    let store = SqlStore::take_over(database, "one".to_owned()).await.unwrap();
    Flaky { store, state: AtomicU64::new(seed) }
}

async fn open_at_last(folder: &tempfile::TempDir, seed: u64) -> (Keeper<Flaky>, Evidence<Flaky>) {
    for attempt in 0..100 {
        let mut store = flaky_store(folder, seed).await;
        store.state = AtomicU64::new(seed * 1_000 + attempt);
        let shared = Shared::new(store, Arc::new(SystemClock::new()), EvidenceMetrics::default());
        if let Ok(opened) = open(shared, Duration::from_secs(60)).await {
            return opened;
        }
    }
    panic!("seed {seed}: never opened");
}

/// More failures in a row than any seed makes.
const TRIES_MAX: u64 = 200;

/// Commits as a gateway does, again and again; how often it was refused.
async fn commit_at_last(keeper: &Keeper<Flaky>, batch: &Batch, bytes: &[u8]) -> u64 {
    for refused in 0..TRIES_MAX {
        if keeper.commit(batch, bytes).await.unwrap().is_ok() {
            return refused;
        }
    }
    panic!("batch {} is never taken", batch.seq);
}

async fn trust_at_last(keeper: &Keeper<Flaky>) {
    for _ in 0..TRIES_MAX {
        if keeper.shared.is_trusted() || keeper.try_reload().await.unwrap() {
            return;
        }
    }
    panic!("memory stays in doubt");
}

fn all_in_shadow() -> RolloutValue {
    let rule = RolloutRule { subject: RuleSubject::All, phase: Phase::Shadow, since_revision: 1 };
    RolloutValue { name: "edge".into(), rules: vec![rule], share_bp: 10_000, revision: 10 }
}

#[tokio::test]
async fn writes_of_unknown_outcome_lose_nothing_and_double_nothing() {
    const BATCHES: u64 = 60;
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=5 {
        let (mut keeper, mut evidence) = open_at_last(&folder, seed).await;
        let mut unavailable = 0;
        for seq in 1..=BATCHES {
            let mut next = batch("g", "b", seq, seq * 11);
            next.cells = vec![shadow_cell("c", 10, 1)];
            let bytes = serde_json::to_vec(&next).unwrap();
            unavailable += commit_at_last(&keeper, &next, &bytes).await;
            if seq % 7 == 0 {
                keeper.settle().await.unwrap();
                keeper.forget(keeper.shared.now_ms()).await.unwrap();
            }
            if seq % 20 == 0 {
                (keeper, evidence) = open_at_last(&folder, seed).await; // as after a kill
            }
        }
        trust_at_last(&keeper).await;
        let report = evidence.gate(&all_in_shadow()).await.unwrap();
        let expected = (BATCHES * 11, BATCHES, 0);
        let counted = (report.pairs, report.disagreements, report.lost);
        assert_eq!(counted, expected, "seed {seed}");
        assert!(0 < unavailable, "seed {seed}: the database never failed");
    }
}

#[tokio::test]
async fn nothing_is_told_while_memory_is_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let (keeper, evidence) = open_at_last(&folder, 9).await;
    keeper.shared.distrust();
    assert!(!evidence.is_ready());
    assert!(evidence.gate(&all_in_shadow()).await.is_err());
}

#[tokio::test]
async fn recent_records_outlive_a_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let (keeper, evidence) = open_at_last(&folder, 9).await;
    let mut with_record = batch("g", "b", 1, 0);
    let side = wire::batch::Side::Allow;
    with_record.records = vec![record("r1", side, paired(side))];
    with_record.cum_records = 1;
    let bytes = serde_json::to_vec(&with_record).unwrap();
    commit_at_last(&keeper, &with_record, &bytes).await;
    keeper.shared.distrust();
    trust_at_last(&keeper).await;
    assert_eq!(evidence.explain("r1").unwrap().gateway, "g");
}

#[tokio::test]
async fn an_instance_that_was_taken_over_writes_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("shadow.db").display());
    let database = Database::open(&url).await.unwrap();
    let first = SqlStore::take_over(database.clone(), "first".to_owned()).await.unwrap();
    let second = SqlStore::take_over(database, "second".to_owned()).await.unwrap();
    let id = BootId { gateway: "g".to_owned(), boot: "b".to_owned() };
    let row = NewBatch { number: 1, id, seq: 1, arrived_ms: 1, bytes: b"{}" };
    assert!(matches!(first.commit(&row).await, Err(StoreError::TakenOver)));
    assert!(matches!(
        first.write_minute(&MinuteWrite::default()).await,
        Err(StoreError::TakenOver)
    ));
    assert_eq!(second.commit(&row).await.unwrap(), Committed::New);
}
