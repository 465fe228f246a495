//! Stores over real servers, and bounded waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::store::BucketStore;
use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::{
    BucketKey, Capacity, Clock, Limit, Limits, PlanNumbers, PlanVersion, RefillRate, Reply,
    Request, ScopeId, SystemClock, VersionSource,
};
use rustix::process::Signal;
use test_servers::Port;
use tokio::runtime::Handle;

/// How long anything local may take before a test gives up.
pub(crate) const PATIENCE: Duration = test_servers::PATIENCE;

/// A running server; killed when dropped.
pub(crate) struct Server {
    server: test_servers::Server,
    pub(crate) port: u16,
}

impl Server {
    /// Starts one and waits until it answers.
    pub(crate) fn start() -> Server {
        let server = test_servers::Server::start().unwrap();
        let port = server.port();
        Server { server, port }
    }

    /// Starts one on a certain port.
    pub(crate) fn start_at(port: Port) -> Server {
        let number = port.number();
        let server = test_servers::ServerOptions::default().port(port).start().unwrap();
        Server { server, port: number }
    }

    /// Kills it and starts another one, empty, on the same port.
    pub(crate) fn restart(&mut self) {
        self.server.restart().unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.server.kill();
    }

    /// Stops (SIGSTOP) or continues (SIGCONT) it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.server.process().unwrap().signal(signal).unwrap();
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        self.server.connection().unwrap()
    }

    /// A store over this server that is linked.
    pub(crate) async fn store(&self, connections: usize) -> Arc<RedisStore> {
        let store = store_at(&self.url(), connections);
        until("the store is linked", || store.is_answering()).await;
        store
    }
}

/// A store that may not be linked yet.
pub(crate) fn store_at(url: &str, connections: usize) -> Arc<RedisStore> {
    store_with(&RedisSettings { connections, ..RedisSettings::new(url) })
}

/// The same with other settings.
pub(crate) fn store_with(settings: &RedisSettings) -> Arc<RedisStore> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Arc::new(RedisStore::connect(settings, &Handle::current(), &clock).unwrap())
}

/// Polls until `holds`, for as long as [`PATIENCE`].
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let clock = SystemClock::new();
    let started = clock.now();
    while !holds() {
        assert!(clock.now().since(started) < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Polls until the store tells a trouble with one of these words in it.
pub(crate) async fn until_told(store: &RedisStore, words: &[&str]) {
    let clock = SystemClock::new();
    let started = clock.now();
    loop {
        let trouble = store.trouble();
        if trouble.as_ref().is_some_and(|told| words.iter().any(|word| told.contains(word))) {
            return;
        }
        let waited = clock.now().since(started);
        assert!(waited < PATIENCE / 2, "told is {trouble:?}, nothing of {words:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// How late a thread that only sleeps woke up at worst: what a test saw in a time when nobody was
/// given the processor is nobody's fault.
pub(crate) struct Stalls {
    worst_us: Arc<AtomicU64>,
    go_on: Arc<AtomicBool>,
}

impl Stalls {
    pub(crate) fn watch() -> Stalls {
        let (worst_us, go_on) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
        let (worst, on) = (Arc::clone(&worst_us), Arc::clone(&go_on));
        std::thread::spawn(move || {
            let clock = SystemClock::new();
            while on.load(Ordering::Relaxed) {
                let (nap, began) = (Duration::from_millis(2), clock.now());
                std::thread::sleep(nap);
                let late = clock.now().since(began).saturating_sub(nap);
                worst.fetch_max(u64::try_from(late.as_micros()).unwrap(), Ordering::Relaxed);
            }
        });
        Stalls { worst_us, go_on }
    }

    /// Whether the machine itself may have made a call late.
    pub(crate) fn excuse(&self) -> bool {
        self.worst_us.load(Ordering::Relaxed) > 20_000
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.go_on.store(false, Ordering::Relaxed);
    }
}

/// Runs what blocks (what one does to servers) while stores and callers of this test go on.
pub(crate) fn meanwhile<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// A bucket of so many tokens that hardly refills.
pub(crate) fn plan(capacity: u64) -> PlanNumbers {
    let refill = RefillRate::new(1, 3_600_000_000).unwrap();
    let burst = Limit::new(Capacity::new(capacity).unwrap(), refill).unwrap();
    PlanNumbers { version: PlanVersion(2), limits: Limits::burst_only(burst) }
}

pub(crate) fn key(client: &str) -> BucketKey {
    BucketKey::new(VersionSource::File, ScopeId::Client(client))
}

/// Calls for one token until one is answered; how long that took, and its reply.
pub(crate) async fn until_answered(
    store: &RedisStore,
    key: &BucketKey,
    capacity: u64,
) -> (Duration, Reply) {
    let clock = SystemClock::new();
    let started = clock.now();
    loop {
        let outcome = store.call(key, &Request::take(plan(capacity), 1, 1)).await;
        let waited = clock.now().since(started);
        match outcome {
            Ok(reply) => return (waited, reply),
            Err(error) => {
                let trouble = store.trouble();
                assert!(waited < PATIENCE, "no answer for {waited:?}: {error:?}, {trouble:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
