//! A gateway, a service and a caller, in one process.

pub(crate) mod bytes;
pub(crate) mod caller;
pub(crate) mod frames;
pub(crate) mod log;
pub(crate) mod plane;
pub(crate) mod program;
pub(crate) mod scripted;
pub(crate) mod service;
pub(crate) mod socket;
pub(crate) mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use daemon::{Context, Drain};
use edge::PolicySource;
use edge::limiter::store::BucketStore;
use edge::limiter::store::memory::MemoryStore;
use edge::limiter::{Clock, SystemClock};
use gateway::config::{self, Config, PolicyChoice};
use gateway::upstream::names::SystemNames;
use gateway::{Evidently, Parts, file_policy};
use limiter_core::testkit::ManualClock;
use wire::key::{KeyHash, Pepper};

pub(crate) use caller::{Reply, get, raw, send};
pub(crate) use service::Service;

/// Longest wait for anything that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The API key of the client `acme` in [`world`].
pub(crate) const KEY: &str = "acme-key";

/// The pepper of files that name none.
pub(crate) fn pepper() -> Pepper {
    Pepper::from_bytes(b"weir: keys of a file, no pepper.").unwrap()
}

/// The file is refused, and a line of the answer names this place and says this about it; all
/// lines.
pub(crate) fn mistakes(text: &str, beside: &Path, place: &str, what: &str) -> Vec<String> {
    let errors = config::parse(text, beside).expect_err(text);
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let told = |line: &String| line.starts_with(&format!("{place}:")) && line.contains(what);
    assert!(lines.iter().any(told), "{place}, {what}: {lines:#?}");
    lines
}

/// A `[[key]]` table.
pub(crate) fn key_table(id: &str, client: &str, key: &str) -> String {
    let hash = KeyHash::of_key(key, &pepper()).to_hex();
    format!("[[key]]\nid = \"{id}\"\nclient = \"{client}\"\nhash = \"{hash}\"\n")
}

/// What most files begin with: free ports, one worker, a short end.
pub(crate) const HEAD: &str = "workers = 1\n[listen.main]\naddress = \"127.0.0.1:0\"\n\
    [operations]\naddress = \"127.0.0.1:0\"\n[drain]\ngrace = \"1ms\"\nfinish = \"2s\"\n";

/// A file with one client `acme` under `plan`, and one route to `service`.
pub(crate) fn file(plan: &str, route: &str, service: SocketAddr) -> String {
    let key = key_table("k1", "acme", KEY);
    format!(
        "{HEAD}[plan.pro]\n{plan}\n[client.acme]\nplan = \"pro\"\n{key}\
         [[route]]\npath = \"/\"\nupstream = \"up\"\n{route}\n\
         [upstream.up]\nendpoints = [\"{service}\"]\n"
    )
}

/// Reads a file that must be right.
pub(crate) fn parse(text: &str) -> Config {
    config::parse(text, Path::new(".")).unwrap_or_else(|errors| panic!("{errors:#?}\n{text}"))
}

/// A running gateway; it ends when dropped.
pub(crate) struct Gateway {
    pub(crate) traffic: SocketAddr,
    pub(crate) operations: SocketAddr,
    /// All that were announced, by name.
    pub(crate) addresses: daemon::Addresses,
    pub(crate) drain: Drain,
    pub(crate) context: Context,
    pub(crate) ended: tokio::task::JoinHandle<Result<(), daemon::Failure>>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.drain.start();
    }
}

impl Gateway {
    /// Over a memory store of its own and the machine's clock.
    pub(crate) async fn start(text: &str) -> Gateway {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        Gateway::over(text, store, clock).await
    }

    /// Over a given store, with the file's own policy.
    pub(crate) async fn over<S: BucketStore>(
        text: &str,
        store: Arc<S>,
        clock: Arc<dyn Clock>,
    ) -> Gateway {
        let mut config = parse(text);
        if !text.contains("[overload]") {
            // Hundreds of callers at once on a busy machine are overload; few tests are about it.
            config.overload = None;
        }
        Gateway::of(config, store, clock).await
    }

    /// Of a file, over a memory store of its own; it may change.
    pub(crate) async fn of_file(file: &Path) -> Gateway {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        let config = config::load(file).unwrap_or_else(|lines| panic!("{lines:#?}"));
        Gateway::of(config, store, clock).await
    }

    /// Of a configuration, over a given store.
    pub(crate) async fn of<S: BucketStore>(
        config: Config,
        store: Arc<S>,
        clock: Arc<dyn Clock>,
    ) -> Gateway {
        let PolicyChoice::File(file) = &config.policy else { panic!("a file policy is meant") };
        let source = PolicySource::File(file_policy(file, 7));
        Gateway::with(
            config,
            Parts {
                store,
                leases: false,
                clock,
                source,
                evidence: Evidently(None),
                names: Arc::new(SystemNames),
            },
        )
        .await
    }

    /// Over given parts.
    pub(crate) async fn with<S: BucketStore>(config: Config, parts: Parts<S>) -> Gateway {
        Gateway::run(|context| gateway::serve_with(config, parts, context)).await
    }

    /// With everything that the file names.
    pub(crate) async fn whole(text: &str) -> Gateway {
        let config = parse(text);
        Gateway::run(|context| gateway::serve(config, context)).await
    }

    async fn run<F>(serve: impl FnOnce(Context) -> F) -> Gateway
    where
        F: Future<Output = Result<(), daemon::Failure>> + Send + 'static,
    {
        let drain = Drain::new();
        let (context, addresses) = Context::in_process(drain.clone());
        let serving = serve(context.clone());
        let mut ended = daemon::tasks::spawn("gateway", serving);
        let addresses = tokio::select! {
            addresses = addresses.wait() => addresses.expect("the gateway becomes ready"),
            ended = &mut ended => panic!("the gateway ended at once: {ended:?}"),
        };
        let (traffic, operations) = (addresses["traffic"], addresses["operations"]);
        Gateway { traffic, operations, addresses, drain, context, ended }
    }

    /// A number that the gateway shows of the upstream `up`.
    pub(crate) fn shown(&self, name: &str) -> u64 {
        let start = format!("weir_gateway_upstream_{name}{{upstream=\"up\"}} ");
        let text = self.context.metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start}in {text}")).parse().unwrap()
    }

    /// Answers to `count` equal calls, one after the other.
    pub(crate) async fn calls(&self, count: usize) -> Vec<Reply> {
        let mut replies = Vec::new();
        for _ in 0..count {
            replies.push(get(self.traffic, "/", &[("x-api-key", KEY)]).await);
        }
        replies
    }
}

/// A clock that stands, and a store on it.
pub(crate) fn standing() -> (Arc<ManualClock>, Arc<MemoryStore>) {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>));
    (clock, store)
}

/// How often each status came.
pub(crate) fn tally(replies: &[Reply]) -> Vec<(u16, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for reply in replies {
        *counts.entry(reply.status).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// Polls until `holds`, or fails with `what`.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}
