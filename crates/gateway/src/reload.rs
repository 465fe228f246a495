//! A new configuration while the gateway runs: read whole, judged whole, swapped whole.
//!
//! Asked for by a SIGHUP, by the operations port, or by the file itself: its content is looked at
//! every second and taken when two looks in a row found the same, because half a file that is
//! being written may be a valid one. What is wrong is told with its path in the log, on the
//! operations port and as a metric, and what was in force stays. What cannot change while the
//! gateway runs refuses the whole file, so that what is in force is always one file and never a
//! mixture.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon::{Drain, Hangups, Manager};
use edge::limiter::store::BucketStore;
use edge::limiter::{Clock, Timestamp};
use tokio::sync::Mutex as AsyncMutex;
use wire::error::{ErrorCode, FieldError};

use crate::assembly::{file_policy, route_names};
use crate::config::{self, Config, PolicyChoice, digest, fixed};
use crate::server::Shared;
use crate::server::live::Settings;
use crate::upstream::Upstream;
use crate::upstream::fleet::{Fleet, Made};

pub(crate) mod metrics; // how often, and how it ended

/// How often the file is looked at; a change is in force after two or three looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Mistakes of one file that are logged; all are shown on the operations port.
const LOGGED_MAX: usize = 100;

/// Who asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The file has changed.
    File,
    /// SIGHUP.
    Signal,
    /// The operations port.
    Operator,
}

impl Asked {
    /// In one word.
    pub(crate) const fn by(self) -> &'static str {
        match self {
            Asked::File => "file",
            Asked::Signal => "signal",
            Asked::Operator => "operator",
        }
    }
}

/// What a new configuration brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Routes in force.
    pub routes: usize,
    /// Upstreams that are as they were, with their connections.
    pub kept: usize,
    /// Upstreams that are new or changed.
    pub begun: usize,
    /// Upstreams that are gone or changed.
    pub ended: usize,
}

/// What became of the last reload.
#[derive(Debug, Clone)]
pub(crate) struct Last {
    /// Who asked.
    pub asked: Asked,
    /// When, by the gateway's clock.
    pub at: Timestamp,
    /// Empty if it was taken.
    pub errors: Vec<FieldError>,
}

/// Puts new configurations in force.
#[derive(Debug)]
pub(crate) struct Reloader<S> {
    file: PathBuf,
    shared: Arc<Shared<S>>,
    fleet: Fleet,
    /// One at a time.
    running: AsyncMutex<Running>,
    /// What stands at the operations port.
    last: Mutex<Option<Last>>,
}

/// What is in force.
#[derive(Debug)]
struct Running {
    config: Config,
    upstreams: Vec<Arc<Upstream>>,
    /// Of the content that was judged last.
    judged: u64,
    /// Of another content that the last look has found.
    found: Option<u64>,
}

impl<S: BucketStore> Reloader<S> {
    /// For a gateway that runs with `config`; `None` if that did not come from a file.
    pub(crate) fn new(
        config: Config,
        upstreams: Vec<Arc<Upstream>>,
        shared: Arc<Shared<S>>,
        fleet: Fleet,
    ) -> Option<Reloader<S>> {
        let origin = config.origin.clone()?;
        let running = Running { config, upstreams, judged: origin.digest, found: None };
        let (running, last) = (AsyncMutex::new(running), Mutex::default());
        Some(Reloader { file: origin.file, shared, fleet, running, last })
    }

    /// The file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// What became of the last reload, if there was one.
    pub(crate) fn last(&self) -> Option<Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is in force, with defaults and without secrets.
    pub(crate) async fn effective(&self) -> Option<Arc<serde_json::Value>> {
        let running = self.running.lock().await;
        running.config.origin.as_ref().map(|origin| Arc::clone(&origin.effective))
    }

    /// The gateway's clock.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// Does what signals and the file ask for, until the drain.
    pub(crate) async fn run(self: Arc<Self>, mut hangups: Hangups, manager: Manager, drain: Drain) {
        let mut ended = std::pin::pin!(drain.started());
        loop {
            tokio::select! {
                () = &mut ended => return,
                () = hangups.next() => {
                    manager.reloading("reading its configuration anew");
                    // What became of it is logged and kept.
                    let _told = self.reload(Asked::Signal).await;
                    if self.shared.edge.is_ready() {
                        manager.ready();
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY) => self.look().await,
            }
        }
    }

    /// Reads the file and puts it in force, or tells every mistake.
    pub(crate) async fn reload(&self, asked: Asked) -> Result<Taken, Vec<FieldError>> {
        let mut running = self.running.lock().await;
        let text = self.read().await;
        self.judge(&mut running, text, asked).await
    }

    /// Looks whether the file has changed, and does not any more.
    async fn look(&self) {
        let mut running = self.running.lock().await;
        let text = self.read().await;
        let digest = digest_of(&text);
        if digest == running.judged {
            running.found = None;
        } else if running.found.replace(digest) == Some(digest) {
            let _told = self.judge(&mut running, text, Asked::File).await;
        }
    }

    /// A file system that hangs must not hold a thread of the runtime.
    async fn read(&self) -> io::Result<String> {
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file));
        read.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    async fn judge(
        &self,
        running: &mut Running,
        text: io::Result<String>,
        asked: Asked,
    ) -> Result<Taken, Vec<FieldError>> {
        running.judged = digest_of(&text);
        running.found = None;
        let taken = match self.understood(text, &running.config).await {
            Ok(config) => Ok(self.put_in_force(running, config).await),
            Err(errors) => Err(errors),
        };
        self.tell(asked, &taken);
        taken
    }

    /// A configuration that may take the place of the running one.
    async fn understood(
        &self,
        text: io::Result<String>,
        running: &Config,
    ) -> Result<Config, Vec<FieldError>> {
        let unreadable = |what: String| {
            let field = self.file.display().to_string();
            vec![FieldError { field, code: ErrorCode::InvalidValue, detail: what }]
        };
        let text = text.map_err(|error| unreadable(error.to_string()))?;
        let file = self.file.clone();
        // It reads further files: of secrets and of certificates.
        let judged = tokio::task::spawn_blocking(move || config::judge(&text, &file)).await;
        let config = judged.unwrap_or_else(|error| Err(unreadable(error.to_string())))?;
        let differing = fixed::differences(running, &config);
        if differing.is_empty() { Ok(config) } else { Err(differing) }
    }

    /// Plans first, so that no route is in force whose plan is not there yet.
    async fn put_in_force(&self, running: &mut Running, config: Config) -> Taken {
        let made = self.fleet.make(&config.upstreams, &running.upstreams).await;
        let edge = &self.shared.edge;
        if let PolicyChoice::File(file) = &config.policy {
            let now_ms = self.shared.clock.now().us() / 1_000;
            edge.load_file(&file_policy(file, now_ms.max(edge.revision() + 1)));
        }
        edge.renew(route_names(&config.routes), config.anonymous.clone());
        let metrics = Arc::new(self.shared.metrics.of(&config.routes));
        self.shared.put_in_force(settings(&config, &made, metrics));
        let (begun, ended) = self.fleet.take_over(&made, &running.upstreams);
        let named = route_names(&config.routes);
        for gone in route_names(&running.config.routes) {
            if !named.contains(&gone) {
                self.shared.metrics.forget(&gone);
            }
        }
        let kept = made.all.len() - begun;
        let taken = Taken { routes: config.routes.iter().count(), kept, begun, ended };
        running.upstreams = made.all;
        running.config = config;
        taken
    }

    fn tell(&self, asked: Asked, result: &Result<Taken, Vec<FieldError>>) {
        let metrics = &self.shared.metrics.reload;
        let by = asked.by();
        let errors = match result {
            Ok(Taken { routes, kept, begun, ended }) => {
                metrics.taken.inc();
                tracing::info!(by, routes, kept, begun, ended, "a new configuration is in force");
                Vec::new()
            }
            Err(errors) => {
                metrics.refused.inc();
                for FieldError { field, detail, .. } in errors.iter().take(LOGGED_MAX) {
                    tracing::error!(field, detail, "a mistake in the new configuration");
                }
                let mistakes = errors.len();
                tracing::error!(by, mistakes, "the new configuration is refused; the old stays");
                errors.clone()
            }
        };
        metrics.stale.set(i64::from(!errors.is_empty()));
        let last = Last { asked, at: self.shared.clock.now(), errors };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }
}

/// What `config` says to workers, with these upstreams.
pub(crate) fn settings(
    config: &Config,
    made: &Made,
    metrics: Arc<crate::metrics::Metrics>,
) -> Settings {
    Settings {
        routes: config.routes.clone(),
        upstreams: made.all.clone(),
        bounds: config.limits.clone(),
        drain_rules: config.drain,
        listeners: config.listeners.clone(),
        metrics,
    }
}

fn digest_of(text: &io::Result<String>) -> u64 {
    digest(text.as_ref().ok().map(String::as_str))
}
