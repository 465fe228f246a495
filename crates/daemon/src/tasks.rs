//! Background work: named, counted, waited for at the end. A panic in it fails the process, so
//! nothing dies unseen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Spawns on the runtime of the caller (also a current-thread one); not counted, not joined.
#[expect(clippy::disallowed_methods, reason = "the one door to tokio::spawn")]
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tracing::trace!(task = name, "spawned");
    tokio::spawn(future)
}

/// The background tasks of a service. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    running: Mutex<BTreeMap<&'static str, usize>>,
    count: watch::Sender<usize>,
    failed: watch::Sender<Option<String>>,
}

impl Tasks {
    /// None yet.
    pub fn new() -> Tasks {
        Tasks::default()
    }

    /// Runs `future` until it ends by itself; it should hear the drain.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let guard = Running::begin(Arc::clone(&self.shared), name);
        spawn(name, async move {
            let _guard = guard;
            future.await;
        });
    }

    /// Ends the process with this failure.
    pub fn fail(&self, what: impl Into<String>) {
        self.shared.failed.send_replace(Some(what.into()));
    }

    /// Waits until a task panics or somebody calls [`Tasks::fail`].
    pub async fn failed(&self) -> String {
        let mut failed = self.shared.failed.subscribe();
        loop {
            if let Some(what) = failed.borrow_and_update().clone() {
                return what;
            }
            if failed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits for all of them, but not longer than `deadline`; the names of those still running.
    pub async fn join(&self, deadline: Duration) -> Vec<&'static str> {
        let mut count = self.shared.count.subscribe();
        let ended = tokio::time::timeout(deadline, count.wait_for(|count| *count == 0)).await;
        if ended.is_ok() { Vec::new() } else { self.names() }
    }

    /// Names of the running ones.
    pub fn names(&self) -> Vec<&'static str> {
        self.shared.lock().keys().copied().collect()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a task while it lives.
struct Running {
    shared: Arc<Shared>,
    name: &'static str,
}

impl Running {
    fn begin(shared: Arc<Shared>, name: &'static str) -> Running {
        *shared.lock().entry(name).or_default() += 1;
        shared.count.send_modify(|count| *count += 1);
        Running { shared, name }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.failed.send_replace(Some(format!("the task {} panicked", self.name)));
        }
        let mut running = self.shared.lock();
        if let Some(count) = running.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.name);
            }
        }
        drop(running);
        self.shared.count.send_modify(|count| *count -= 1);
    }
}
