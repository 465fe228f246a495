//! Writes the state folder in the background: at once when a revision waits to be acknowledged, and
//! now and then what look-ups brought. One writer, never on a thread that answers requests.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::{Folder, Loaded, Saved};
use crate::key_cache::{AsOf, KeyCache};
use crate::metrics::EdgeMetrics;
use crate::plan_book::{PlanBook, Shelf};

/// How often it is looked whether look-ups brought something, or whether the disk is well again.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest wait for the disk before the control plane is asked on without an acknowledgement: what
/// it says next comes into force so much later at most.
const SAVE_PATIENCE: Duration = Duration::from_millis(100);

/// How the folder takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    Failing,
    /// It takes another process's.
    Elsewhere,
}

/// Keeps a state folder.
#[derive(Debug)]
pub(crate) struct Keeper {
    folder: Mutex<Folder>,
    asked: Notify,
    saved: watch::Sender<AsOf>,
    /// Another process keeps the folder from now on.
    left: AtomicBool,
    heard_ms: AtomicU64,
    metrics: EdgeMetrics,
}

impl Keeper {
    /// Of this folder, which is made if it is not there.
    pub(crate) fn at(folder: &Path, metrics: EdgeMetrics) -> io::Result<Keeper> {
        Ok(Keeper {
            folder: Mutex::new(Folder::at(folder)?),
            asked: Notify::new(),
            saved: watch::Sender::new(AsOf::default()),
            left: AtomicBool::new(false),
            heard_ms: AtomicU64::new(0),
            metrics,
        })
    }

    /// What the last process left. Waits for the disk.
    pub(crate) fn load(&self) -> Loaded {
        let loaded = self.folder.lock().load();
        if let Some(as_of) = &loaded.as_of {
            self.saved.send_replace(as_of.clone());
        }
        loaded
    }

    /// From now on a successor writes here, so nothing here waits for the disk.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        self.asked.notify_one();
    }

    /// The control plane was heard at this time.
    pub(crate) fn heard(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The newest revision of a book that a restart would begin with.
    pub(crate) fn acknowledged(&self, book: &PlanBook) -> u64 {
        if self.left.load(Ordering::SeqCst) {
            return book.revision();
        }
        let saved = self.saved.borrow();
        if saved.history == book.history() { saved.revision.min(book.revision()) } else { 0 }
    }

    /// Has a book written, and waits for that a while.
    pub(crate) async fn save_now(&self, book: &PlanBook) {
        self.asked.notify_one();
        // Later is no loss: it is acknowledged when it is there.
        let _in_time = timeout(SAVE_PATIENCE, self.saved_at(book)).await;
    }

    /// Waits until a book is on disk.
    pub(crate) async fn saved_at(&self, book: &PlanBook) {
        let mut saved = self.saved.subscribe();
        while self.acknowledged(book) < book.revision() {
            if saved.changed().await.is_err() {
                return;
            }
        }
    }

    /// Writes until `stop`, and once more then.
    pub(crate) async fn run(
        self: Arc<Keeper>,
        shelf: Arc<Shelf>,
        keys: Arc<KeyCache>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut health = Health::Well;
        loop {
            let stopped = tokio::select! {
                _ended = stop.wait_for(|stopped| *stopped) => true,
                () = self.asked.notified() => false,
                () = sleep(LOOK_EVERY) => false,
            };
            let (keeper, own, known) = (Arc::clone(&self), Arc::clone(&shelf), Arc::clone(&keys));
            let saved = tokio::task::spawn_blocking(move || keeper.save(&own, &known)).await;
            match saved {
                Ok(saved) => health = self.judge(health, saved),
                Err(error) => tracing::error!(%error, "the state folder was not written"),
            }
            if stopped {
                return;
            }
            if health == Health::Failing {
                sleep(LOOK_EVERY).await;
            }
        }
    }

    /// How the folder does; a change of that is said once.
    fn judge(&self, before: Health, saved: io::Result<Health>) -> Health {
        let now = match saved {
            Ok(now) => now,
            Err(error) => {
                self.metrics.state_failures.inc();
                if before != Health::Failing {
                    tracing::error!(%error, "the state folder cannot be written: serving on, but \
                         new revisions are not acknowledged");
                }
                Health::Failing
            }
        };
        match (before, now) {
            (Health::Failing | Health::Elsewhere, Health::Well) => {
                tracing::info!("the state folder takes writes again");
            }
            (Health::Well | Health::Failing, Health::Elsewhere) => {
                tracing::warn!(
                    "another process writes to the state folder: until it ends, new \
                     revisions are not acknowledged here"
                );
            }
            (Health::Well, Health::Well)
            | (Health::Elsewhere, Health::Elsewhere)
            | (_, Health::Failing) => {}
        }
        self.metrics.state_unsaved.set(i64::from(now != Health::Well));
        now
    }

    fn save(&self, shelf: &Shelf, keys: &KeyCache) -> io::Result<Health> {
        let mut folder = self.folder.lock();
        if self.left.load(Ordering::SeqCst) {
            folder.lock = None;
            return Ok(Health::Well);
        }
        // Without a book the keys that the last process left may not have been taken yet. It is read
        // before the keys are: what is known of them is never older than the book.
        let Some(book) = shelf.book() else { return Ok(Health::Well) };
        let heard_ms = self.heard_ms.load(Ordering::Relaxed);
        Ok(match folder.save(&book, keys, heard_ms)? {
            Saved::AsOf(saved) => {
                self.metrics.revision_saved.set(i64::try_from(saved.revision).unwrap_or(i64::MAX));
                self.saved.send_if_modified(|last| {
                    let differs = *last != saved;
                    *last = saved;
                    differs
                });
                Health::Well
            }
            Saved::Apart => Health::Well,
            Saved::Elsewhere => Health::Elsewhere,
        })
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::VersionSource;
    use limiter_core::testkit::ManualClock;

    use super::*;
    use crate::key_cache::CacheBounds;
    use crate::region::RegionShare;

    fn metrics() -> EdgeMetrics {
        EdgeMetrics::register(&mut prometheus_client::registry::Registry::default())
    }

    fn no_keys() -> KeyCache {
        let clock = Arc::new(ManualClock::default());
        KeyCache::new(CacheBounds::default(), VersionSource::ControlPlane, clock, metrics())
    }

    #[test]
    fn a_save_before_what_the_last_process_left_is_taken_leaves_all_of_it() {
        let temporary = tempfile::tempdir().unwrap();
        super::super::tests::leave(temporary.path(), 20_000);
        let keeper = Keeper::at(temporary.path(), metrics()).unwrap();
        let loaded = keeper.load();
        assert_eq!(loaded.keys.keys.len(), 20_000);
        let (shelf, keys) = (Shelf::default(), no_keys());
        keys.remember_changes();
        keeper.save(&shelf, &keys).unwrap();
        assert_eq!(keys.restore(loaded.keys), 20_000);
        shelf.offer(PlanBook::default());
        keeper.save(&shelf, &keys).unwrap();
        drop(keeper);
        let again = Keeper::at(temporary.path(), metrics()).unwrap().load();
        assert_eq!((again.keys.keys.len(), again.keys.lost), (20_000, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_holds_the_next_change_back_for_a_moment() {
        let temporary = tempfile::tempdir().unwrap();
        let keeper = Keeper::at(temporary.path(), metrics()).unwrap();
        let book = PlanBook::from_specs("h", 7, 1, RegionShare::default(), &[], None);
        let began = tokio::time::Instant::now();
        keeper.save_now(&book).await;
        assert!(keeper.acknowledged(&book) < 7, "nobody has written it");
        assert!(began.elapsed() <= Duration::from_millis(110), "{:?}", began.elapsed());
    }
}
