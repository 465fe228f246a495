//! Buckets in Redis: one script call per request, over a few supervised connections.
//!
//! What it never does: wait for a dial, queue behind a dead server, or send a call again whose
//! outcome is unknown. Only a server that says that it does not know the script gets the call once
//! more, since then nothing was done. Errors that a server answers mean that nothing was taken
//! (the script writes last); silence and broken connections mean that nobody knows.

pub(crate) mod command; // what is said
mod counters; // what is counted
mod health; // what the server may lose
mod link; // one connection, supervised
pub(crate) mod script; // the text

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisError, ServerErrorKind, TlsCertificates, Value,
};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::link::{Closed, Entered, Link, Supervisor};
use crate::breaker::Breaker;
use crate::call::{Reply, Request};
use crate::key::BucketKey;
use crate::store::{BucketStore, StoreError};
use crate::time::Clock;

pub use self::counters::RedisCounters;

/// Most connections of one gateway to one Redis, whatever the number of its workers.
pub const CONNECTIONS_MAX: usize = 4;
/// Calls out at a time in the first second after the store answers again.
const RECOVERING_CALLS_MAX: u32 = 8;
/// Commands that may wait for the socket; as many as a link carries calls, so nobody waits.
const PIPELINE_MAX: usize = 4_096;
/// A TCP connection without acknowledgements for so long is dead.
const USER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a connection and its greeting.
const CONNECT_MAX: Duration = Duration::from_millis(400);
/// Longest code of an error answer that is passed on.
const CODE_MAX: usize = 32;

/// Where Redis is and how long to wait for it.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://[user:password@]host:port/db`, or `rediss://` for TLS.
    pub url: String,
    /// PEM certificates to trust for `rediss://`, if not the public ones.
    pub trusted_roots: Option<Vec<u8>>,
    /// After this long a call counts as lost. Answers are taken until then, however late.
    pub response_timeout: Duration,
    /// 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
}

impl RedisSettings {
    /// The defaults for a URL: two connections, 250 ms.
    pub fn new(url: impl Into<String>) -> RedisSettings {
        RedisSettings {
            url: url.into(),
            trusted_roots: None,
            response_timeout: Duration::from_millis(250),
            connections: 2,
        }
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("url", &"(may hold a password)")
            .field("response_timeout", &self.response_timeout)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

/// Settings that cannot work, found before anything is dialled.
#[derive(Debug, thiserror::Error)]
pub enum RedisSettingsError {
    /// Not a Redis URL, or certificates that cannot be read.
    #[error("the Redis URL or its certificates cannot be used")]
    Url(#[source] RedisError),
    /// Not 1 to [`CONNECTIONS_MAX`].
    #[error("connections must be 1 to {CONNECTIONS_MAX}, not {0}")]
    Connections(usize),
}

/// Buckets in one Redis.
#[derive(Debug)]
pub struct RedisStore {
    links: Vec<Arc<Link>>,
    counters: Arc<RedisCounters>,
    response_timeout: Duration,
    next_link: AtomicUsize,
    /// Held while the script's text is on its way to a server that did not know it.
    loading: tokio::sync::Mutex<()>,
    loads: AtomicU64,
    stop: watch::Sender<bool>,
    supervisors: Mutex<Vec<JoinHandle<()>>>,
}

impl RedisStore {
    /// Starts to connect, on `runtime`, and returns at once: until a connection is there, calls
    /// end as unreachable. Dropping the store ends its tasks.
    pub fn connect(
        settings: &RedisSettings,
        runtime: &Handle,
        clock: &Arc<dyn Clock>,
    ) -> Result<RedisStore, RedisSettingsError> {
        let connections = settings.connections;
        if !(1..=CONNECTIONS_MAX).contains(&connections) {
            return Err(RedisSettingsError::Connections(connections));
        }
        let client = client(settings).map_err(RedisSettingsError::Url)?;
        let counters = Arc::new(RedisCounters::default());
        let (stop, stopped) = watch::channel(false);
        let recovering = RECOVERING_CALLS_MAX / u32::try_from(connections).unwrap_or(1);
        let mut links = Vec::new();
        let mut supervisors = Vec::new();
        for _ in 0..connections {
            let breaker = Breaker::new(fastrand::u64(..), recovering);
            let link = Arc::new(Link::new(breaker, Arc::clone(clock)));
            let supervisor = Supervisor {
                link: Arc::clone(&link),
                client: client.clone(),
                config: connection_config(),
                counters: Arc::clone(&counters),
                stop: stopped.clone(),
            };
            links.push(link);
            supervisors.push(runtime.spawn(supervisor.run()));
        }
        Ok(RedisStore {
            links,
            counters,
            response_timeout: settings.response_timeout,
            next_link: AtomicUsize::new(0),
            loading: tokio::sync::Mutex::new(()),
            loads: AtomicU64::new(0),
            stop,
            supervisors: Mutex::new(supervisors),
        })
    }

    /// What was counted.
    pub fn counters(&self) -> &Arc<RedisCounters> {
        &self.counters
    }

    /// Whether at least one connection is there and its breaker closed.
    pub fn is_answering(&self) -> bool {
        self.links.iter().any(|link| link.is_linked() && link.probe_in().is_none())
    }

    /// Why the last dial failed, as long as one does: for logs and for the operator.
    pub fn trouble(&self) -> Option<Arc<String>> {
        self.links.iter().find_map(|link| link.trouble())
    }

    /// How often breakers opened, over all connections.
    pub fn breaker_openings(&self) -> u64 {
        self.links.iter().map(|link| link.openings()).sum()
    }

    /// Ends the connections and their tasks; calls from now on are unreachable.
    pub async fn shut_down(&self) {
        self.stop.send_replace(true);
        let supervisors = std::mem::take(&mut *self.supervisors.lock());
        for supervisor in supervisors {
            if let Err(error) = supervisor.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// The next link that carries a call now.
    fn enter(&self) -> Result<Entered<'_>, StoreError> {
        let count = self.links.len();
        let start = self.next_link.fetch_add(1, Ordering::Relaxed) % count;
        let mut tripped: Option<Duration> = None;
        let mut full = false;
        for link in self.links.iter().cycle().skip(start).take(count) {
            match link.enter() {
                Ok(entered) => return Ok(entered),
                Err(Closed::Tripped(wait)) => {
                    tripped = Some(tripped.map_or(wait, |other| other.min(wait)));
                }
                Err(Closed::Full) => full = true,
                Err(Closed::Unlinked) => {}
            }
        }
        Err(match tripped {
            Some(probe_in) => StoreError::Tripped { probe_in },
            None if full => StoreError::Unreachable("too many calls are out".into()),
            None => StoreError::Unreachable("no connection".into()),
        })
    }

    async fn exchange(
        &self,
        mut connection: MultiplexedConnection,
        key: &BucketKey,
        request: &Request,
    ) -> Result<Value, RedisError> {
        let loads = self.loads.load(Ordering::Acquire);
        let by_name = command("EVALSHA", script::digest(), key, request);
        let answer = send(&mut connection, &by_name).await;
        if !says_no_script(&answer) {
            return answer;
        }
        {
            let _loading = self.loading.lock().await;
            if self.loads.load(Ordering::Acquire) == loads {
                let answer = self.teach(&mut connection, key, request).await;
                if answer.is_ok() {
                    self.loads.fetch_add(1, Ordering::Release);
                }
                return answer;
            }
        }
        let answer = send(&mut connection, &by_name).await;
        if says_no_script(&answer) {
            return self.teach(&mut connection, key, request).await;
        }
        answer
    }

    /// The same call with the script's text, which the server keeps.
    async fn teach(
        &self,
        connection: &mut MultiplexedConnection,
        key: &BucketKey,
        request: &Request,
    ) -> Result<Value, RedisError> {
        self.counters.script_loads.fetch_add(1, Ordering::Relaxed);
        send(connection, &command("EVAL", script::TEXT, key, request)).await
    }

    fn failure(&self, entered: &mut Entered<'_>, error: RedisError) -> StoreError {
        entered.failed();
        let Some(code) = error.code() else {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
            entered.abandon();
            return StoreError::Lost(Box::new(error));
        };
        self.counters.count_refused(code);
        let wrong_node = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown];
        if wrong_node.iter().any(|kind| error.kind() == ErrorKind::Server(*kind)) {
            entered.wrong_node();
        }
        StoreError::Refused { code: code.chars().take(CODE_MAX).collect() }
    }

    fn lost(&self, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        self.counters.lost.fetch_add(1, Ordering::Relaxed);
        StoreError::Lost(Box::new(error))
    }
}

impl BucketStore for RedisStore {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        let mut entered = self.enter()?;
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let connection = entered.dialled.connection.clone();
        let mut exchange = pin!(self.exchange(connection, key, request));
        let silence = Breaker::SILENCE.min(self.response_timeout);
        let answer = match timeout(silence, exchange.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                entered.silent();
                match timeout(self.response_timeout - silence, exchange).await {
                    Ok(answer) => answer,
                    Err(elapsed) => {
                        self.counters.timeouts.fetch_add(1, Ordering::Relaxed);
                        return Err(self.lost(io::Error::new(io::ErrorKind::TimedOut, elapsed)));
                    }
                }
            }
        };
        match answer {
            Ok(value) => match reply(&value, request) {
                Ok(reply) => {
                    entered.answered();
                    Ok(reply)
                }
                Err(error) => {
                    entered.failed();
                    entered.abandon();
                    Err(self.lost(error))
                }
            },
            Err(error) => Err(self.failure(&mut entered, error)),
        }
    }
}

fn client(settings: &RedisSettings) -> Result<Client, RedisError> {
    let tcp = TcpSettings::default().set_nodelay(true).set_user_timeout(USER_TIMEOUT);
    let info: ConnectionInfo = settings.url.as_str().into_connection_info()?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        // Fails if the process has chosen already, which is as good.
        let _chosen = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let info = info.set_tcp_settings(tcp);
    match &settings.trusted_roots {
        None => Client::open(info),
        Some(roots) => {
            let root_cert = Some(roots.clone());
            Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
        }
    }
}

/// Time-outs of answers are ours, so that they can tell a failure from a loss.
fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_MAX)
}

fn command(verb: &str, script: &str, key: &BucketKey, request: &Request) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script).arg(1).arg(key.to_string());
    for number in command::arguments(request) {
        command.arg(number);
    }
    command
}

async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(command).await?.extract_error()
}

fn says_no_script(answer: &Result<Value, RedisError>) -> bool {
    let no_script = ErrorKind::Server(ServerErrorKind::NoScript);
    matches!(answer, Err(error) if error.kind() == no_script)
}

fn reply(value: &Value, request: &Request) -> Result<Reply, command::BadReply> {
    let Value::Array(items) = value else { return command::reply(&[], request) };
    let numbers: Vec<i64> = items
        .iter()
        .map_while(|item| if let Value::Int(n) = item { Some(*n) } else { None })
        .collect();
    command::reply(&numbers, request)
}
