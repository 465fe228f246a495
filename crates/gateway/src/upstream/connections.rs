//! A worker's own connections to the endpoints of one upstream.
//!
//! Low-level connections of the HTTP engine, kept in a small stack: connecting is a step of its
//! own and the engine hands back a request that it did not write, so it is always known whether
//! anything was sent. HTTP/1.1 connections are leased one request at a time; an HTTP/2 connection
//! is shared by all requests of the worker to that endpoint.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::uri::Scheme;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Endpoint;
use super::tls::Dialer;
use crate::body::Upload;

/// Idle connections kept to one endpoint, by each worker.
const IDLE_MAX: usize = 256;
/// What a service may send over HTTP/2 ahead of a caller that does not take it.
const STREAM_WINDOW: u32 = 256 * 1024;
/// As far as HTTP/2 counts: thousands of such callers fit into it, so that they keep nobody else's
/// answer on the same connection back.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Refused, unreachable, or not the protocol.
    #[error("no connection to {0}")]
    Failed(SocketAddr, #[source] io::Error),
    /// Took too long.
    #[error("no connection to {0} within {1:?}")]
    Timeout(SocketAddr, Duration),
}

/// Why a request has no response.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Nothing was written: here it is again.
    Unsent(Box<Request<Upload>>),
    /// Some of it may have arrived.
    Broken(hyper::Error),
}

/// The connections of one worker to one upstream.
#[derive(Debug)]
pub(crate) struct Connections {
    dialer: Arc<Dialer>,
    http2: bool,
    connect_timeout: Duration,
    keep_idle: Duration,
    /// In order: there are few endpoints, and hashing an address costs more than comparing some.
    idle: Mutex<BTreeMap<SocketAddr, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    sender: Sender,
    since: Instant,
}

impl Idle {
    fn is_fresh(&self, keep_idle: Duration) -> bool {
        self.sender.is_in_use() || self.since.elapsed() < keep_idle
    }
}

#[derive(Debug)]
enum Sender {
    Http1(
        http1::SendRequest<Upload>,
        #[expect(dead_code, reason = "it is held for the sake of its end")] Running,
    ),
    /// With a mark that each of its users holds.
    Http2(http2::SendRequest<Upload>, Arc<()>),
}

impl Sender {
    fn is_usable(&self) -> bool {
        match self {
            Sender::Http1(sender, _) => !sender.is_closed(),
            Sender::Http2(sender, _) => !sender.is_closed(),
        }
    }

    fn is_in_use(&self) -> bool {
        matches!(self, Sender::Http2(_, users) if Arc::strong_count(users) > 1)
    }

    async fn ready(&mut self) -> Result<(), hyper::Error> {
        match self {
            Sender::Http1(sender, _) => sender.ready().await,
            Sender::Http2(sender, _) => sender.ready().await,
        }
    }
}

impl Connections {
    /// None yet.
    pub(crate) fn new(
        dialer: Arc<Dialer>,
        http2: bool,
        connect_timeout: Duration,
        keep_idle: Duration,
    ) -> Connections {
        Connections { dialer, http2, connect_timeout, keep_idle, idle: Mutex::default() }
    }

    /// An idle connection, if a usable one is kept.
    pub(crate) async fn kept(self: &Arc<Self>, endpoint: &Arc<Endpoint>) -> Option<Lease> {
        while let Some(mut sender) = self.take(endpoint.address) {
            // The connection's task may not have run since its last response was read.
            if sender.is_usable() && sender.ready().await.is_ok() {
                return Some(self.lease(endpoint, sender));
            }
        }
        None
    }

    /// A new connection.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
    ) -> Result<Lease, ConnectError> {
        let address = endpoint.address;
        let sender = tokio::time::timeout(self.connect_timeout, self.open(address))
            .await
            .map_err(|_elapsed| ConnectError::Timeout(address, self.connect_timeout))?
            .map_err(|error| ConnectError::Failed(address, error))?;
        Ok(self.lease(endpoint, sender))
    }

    fn lease(self: &Arc<Self>, endpoint: &Arc<Endpoint>, sender: Sender) -> Lease {
        if let Sender::Http2(shared, users) = &sender {
            let shared = Sender::Http2(shared.clone(), Arc::clone(users));
            self.lock()
                .insert(endpoint.address, vec![Idle { sender: shared, since: Instant::now() }]);
        }
        let connections = Arc::clone(self);
        Lease { connections, address: endpoint.address, sender, reusable: true }
    }

    async fn open(&self, address: SocketAddr) -> io::Result<Sender> {
        let io = TokioIo::new(self.dialer.dial(address).await?);
        if self.http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW);
            let (sender, connection) = builder.handshake(io).await.map_err(io::Error::other)?;
            let _goes_on = run(connection);
            Ok(Sender::Http2(sender, Arc::default()))
        } else {
            let (sender, connection) =
                http1::Builder::new().handshake(io).await.map_err(io::Error::other)?;
            let running = run(connection.with_upgrades());
            Ok(Sender::Http1(sender, Running(running)))
        }
    }

    /// The connection used last is the least likely to have been closed meanwhile.
    fn take(&self, address: SocketAddr) -> Option<Sender> {
        let mut idle = self.lock();
        let kept = idle.get_mut(&address)?;
        loop {
            let candidate = kept.pop()?;
            if !candidate.is_fresh(self.keep_idle) {
                // Those below are older still.
                kept.clear();
            } else if candidate.sender.is_usable() {
                return Some(candidate.sender);
            }
        }
    }

    fn put(&self, address: SocketAddr, sender: Sender) {
        let mut idle = self.lock();
        let kept = idle.entry(address).or_default();
        if kept.len() < IDLE_MAX {
            kept.push(Idle { sender, since: Instant::now() });
        }
    }

    /// Closes what was idle for too long, and everything to addresses that are no longer used.
    pub(crate) fn sweep(&self, used: impl Fn(SocketAddr) -> bool) {
        let keep_idle = self.keep_idle;
        self.lock().retain(|address, kept| {
            kept.retain(|idle| idle.is_fresh(keep_idle) && idle.sender.is_usable());
            used(*address) && !kept.is_empty()
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SocketAddr, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends with its owner, whatever is still being written: the engine alone would go on sending a
/// body of which the service has said enough.
#[derive(Debug)]
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn run<C>(connection: C) -> AbortHandle
where
    C: Future<Output = Result<(), hyper::Error>> + Send + 'static,
{
    daemon::tasks::spawn("upstream connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "upstream connection ended");
        }
    })
    .abort_handle()
}

/// A connection for one request. Dropped, it is closed; given back, it is kept.
#[derive(Debug)]
pub(crate) struct Lease {
    connections: Arc<Connections>,
    address: SocketAddr,
    sender: Sender,
    reusable: bool,
}

impl Lease {
    /// Does not keep the connection after this exchange.
    pub(crate) fn close_after(&mut self) {
        self.reusable = false;
    }

    /// Nobody else is to use it: it was silent for too long, and may be dead.
    pub(crate) fn abandon(&mut self) {
        self.reusable = false;
        if matches!(self.sender, Sender::Http2(..)) {
            self.connections.lock().remove(&self.address);
        }
    }

    /// The scheme of its requests, if they name one: those of HTTP/2, by `:authority` and `:scheme`.
    pub(crate) fn scheme(&self) -> Option<Scheme> {
        match self.sender {
            Sender::Http1(..) => None,
            Sender::Http2(..) => Some(self.connections.dialer.scheme()),
        }
    }

    /// Sends a request; the response head, or the request itself if nothing of it was written.
    pub(crate) async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, SendError> {
        let sent = match &mut self.sender {
            Sender::Http1(sender, _) => sender.try_send_request(request).await,
            Sender::Http2(sender, _) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut error| match error.take_message() {
            Some(request) => SendError::Unsent(Box::new(request)),
            None => SendError::Broken(error.into_error()),
        })
    }

    /// Keeps the connection. Call it when the response was read to its end.
    pub(crate) fn give_back(self) {
        let kept = matches!(self.sender, Sender::Http1(..)) && self.sender.is_usable();
        if kept && self.reusable {
            self.connections.put(self.address, self.sender);
        }
    }
}
