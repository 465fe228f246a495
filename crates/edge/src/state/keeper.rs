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

use super::{Folder, Loaded};
use crate::key_cache::{AsOf, KeyCache};
use crate::metrics::EdgeMetrics;
use crate::plan_book::{PlanBook, Shelf};

/// How often it is looked whether look-ups brought something, or whether the disk is well again.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest wait for the disk before the control plane is asked on without an acknowledgement.
const SAVE_PATIENCE: Duration = Duration::from_secs(1);

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
        let mut failing = false;
        loop {
            let stopped = tokio::select! {
                _ended = stop.wait_for(|stopped| *stopped) => true,
                () = self.asked.notified() => false,
                () = sleep(LOOK_EVERY) => false,
            };
            let (keeper, own, known) = (Arc::clone(&self), Arc::clone(&shelf), Arc::clone(&keys));
            let saved = tokio::task::spawn_blocking(move || keeper.save(&own, &known)).await;
            match saved {
                Ok(Ok(())) => {
                    if failing {
                        tracing::info!("the state folder takes writes again");
                    }
                    failing = false;
                }
                Ok(Err(error)) => {
                    if !failing {
                        tracing::error!(%error, "the state folder cannot be written: serving on, \
                             but new revisions are not acknowledged");
                    }
                    failing = true;
                    self.metrics.state_failures.inc();
                }
                Err(error) => tracing::error!(%error, "the state folder was not written"),
            }
            self.metrics.state_unsaved.set(i64::from(failing));
            if stopped {
                return;
            }
            if failing {
                sleep(LOOK_EVERY).await;
            }
        }
    }

    fn save(&self, shelf: &Shelf, keys: &KeyCache) -> io::Result<()> {
        let mut folder = self.folder.lock();
        if self.left.load(Ordering::SeqCst) {
            folder.lock = None;
            return Ok(());
        }
        // Read before the keys are: what is known of them is never older than the book.
        let book = shelf.book();
        let heard_ms = self.heard_ms.load(Ordering::Relaxed);
        if let Some(saved) = folder.save(book.as_deref(), keys, heard_ms)? {
            self.metrics.revision_saved.set(i64::try_from(saved.revision).unwrap_or(i64::MAX));
            self.saved.send_if_modified(|last| {
                let differs = *last != saved;
                *last = saved;
                differs
            });
        }
        Ok(())
    }
}
