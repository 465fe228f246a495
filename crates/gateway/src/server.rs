//! Room ①: listeners and worker threads.
//!
//! Every worker has a runtime of one thread, its own `SO_REUSEPORT` socket for each listener and
//! its own upstream connections, so a request never changes threads. The first worker binds, the
//! others join its port, so port 0 works too. What workers share is immutable or made of atomics.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;

use edge::Edge;
use edge::limiter::Clock;
use edge::limiter::store::BucketStore;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::oneshot;

use crate::config::{Bounds, DrainRules, Listener};
use crate::metrics::Metrics;
use crate::peer::Proxies;
use crate::route::RouteTable;
use crate::upgrade::Upgrades;
use crate::upstream::Upstream;

mod activity; // how long a connection may wait, and for whom
mod connections; // how many, and from where
pub(crate) mod metrics; // what listeners count
mod opening; // before the first byte of HTTP
mod proxy_protocol; // what a balancer says about its caller
mod patience; // callers that keep a connection waiting
pub(crate) mod pem; // files of certificates and keys
pub(crate) mod tls; // certificates by name, and new ones
mod worker; // one core's runtime and accept loops

pub(crate) use self::activity::Activity;
use self::connections::Entered;
pub(crate) use self::connections::PerAddress;
use self::opening::Opening;
use self::tls::{Certificates, TlsError};
use self::worker::{Entrance, Worker};

/// Connections that wait in the kernel for a worker.
const BACKLOG: i32 = 4_096;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// An address cannot be bound.
    #[error("cannot listen on {0}")]
    Bind(SocketAddr, #[source] io::Error),
    /// Its certificates are of no use.
    #[error("no TLS on listener {0}")]
    Tls(String, #[source] TlsError),
    /// A thread or its runtime cannot be made.
    #[error("cannot start a worker")]
    Worker(#[source] io::Error),
    /// A worker ended before it should.
    #[error("a worker died")]
    Died,
}

/// What every worker gets.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    pub(crate) edge: Arc<Edge<S>>,
    pub(crate) routes: RouteTable,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bounds: Bounds,
    pub(crate) drain_rules: DrainRules,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) drain: daemon::Drain,
    pub(crate) addresses: PerAddress,
    pub(crate) upgrades: Upgrades,
}

impl<S> Shared<S> {
    /// Counts a connection of `address` in, unless there are as many as there may be.
    fn enter(&self, address: IpAddr) -> Option<Entered> {
        let entered = self.addresses.enter(address);
        if entered.is_none() {
            self.metrics.connections_refused.inc();
        }
        entered
    }
}

/// A bound listener.
#[derive(Debug)]
pub(crate) struct Bound {
    /// Where.
    pub address: SocketAddr,
    /// Its name and what it shows to callers, if it speaks TLS.
    pub certificates: Option<(String, Certificates)>,
    http2: bool,
    /// Proxies whose word about callers is believed.
    proxies: Proxies,
    opening: Opening,
    /// One socket for each worker.
    sockets: Vec<std::net::TcpListener>,
}

/// Binds a listener for all workers.
pub(crate) fn bind(listener: &Listener, workers: usize) -> Result<Bound, ServeError> {
    let certificates = certificates(listener)?;
    let mut address = listener.address;
    if address.port() != 0 {
        // Sockets that share a port also share it with another gateway, unseen: ask alone first.
        socket(address, Shares::Alone).map_err(|error| ServeError::Bind(address, error))?;
    }
    let mut sockets = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = socket(address, Shares::WithWorkers)
            .map_err(|error| ServeError::Bind(address, error))?;
        address = socket.local_addr().map_err(|error| ServeError::Bind(address, error))?;
        sockets.push(socket);
    }
    let proxies: Proxies = listener.trusted_proxies.as_slice().into();
    let tls = certificates.as_ref().map(|(_, certificates)| certificates.acceptor());
    let opening = Opening { trusted: listener.proxy_protocol.then(|| Arc::clone(&proxies)), tls };
    Ok(Bound { address, certificates, http2: listener.http2, proxies, opening, sockets })
}

fn certificates(listener: &Listener) -> Result<Option<(String, Certificates)>, ServeError> {
    let Some(tls) = &listener.tls else { return Ok(None) };
    let name = listener.name.clone();
    match Certificates::load(&name, listener.http2, tls) {
        Ok(certificates) => Ok(Some((name, certificates))),
        Err(error) => Err(ServeError::Tls(name, error)),
    }
}

/// Whether other sockets may have the same port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shares {
    Alone,
    WithWorkers,
}

fn socket(address: SocketAddr, shares: Shares) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares == Shares::WithWorkers)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Runs all workers until the drain has ended.
pub(crate) async fn run<S: BucketStore>(
    shared: Arc<Shared<S>>,
    bound: Vec<Bound>,
    workers: usize,
) -> Result<(), ServeError> {
    let mut ends = Vec::with_capacity(workers);
    let mut sockets: Vec<_> = bound
        .into_iter()
        .map(|bound| (bound.http2, bound.proxies, bound.opening, bound.sockets.into_iter()))
        .collect();
    for number in 0..workers {
        let own = sockets.iter_mut().filter_map(|(http2, proxies, opening, sockets)| {
            let (http2, proxies, opening) = (*http2, Arc::clone(proxies), opening.clone());
            Some(Entrance { socket: sockets.next()?, http2, proxies, opening })
        });
        let worker = Worker::new(Arc::clone(&shared), own.collect());
        let (ended, end) = oneshot::channel();
        let builder = thread::Builder::new().name(format!("weir-worker-{number}"));
        let body = move || {
            let ran = worker.run();
            if ended.send(ran).is_err() {
                tracing::debug!("nobody waits for the worker");
            }
        };
        builder.spawn(body).map_err(ServeError::Worker)?;
        ends.push(end);
    }
    for end in futures_util::future::join_all(ends).await {
        match end {
            Ok(ran) => ran.map_err(ServeError::Worker)?,
            Err(_panicked) => return Err(ServeError::Died),
        }
    }
    Ok(())
}
