//! Room ①: listeners and worker threads.
//!
//! Every worker has a runtime of one thread, its own `SO_REUSEPORT` socket for each listener and
//! its own upstream connections, so a request never changes threads. What workers share is immutable
//! or made of atomics.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;

use daemon::{Lent, Sockets};
use edge::Edge;
use edge::limiter::Clock;
use edge::limiter::store::BucketStore;
use tokio::sync::oneshot;

use crate::access_log::AccessLog;
use crate::config::{Listener, OverloadRules};
use crate::kill_switch::KillSwitch;
use crate::metrics::Metrics;
use crate::peer::Proxies;
use crate::upgrade::Upgrades;

mod activity; // how long a connection may wait, and for whom
pub(crate) mod sockets; // handed over or bound
mod connections; // how many, and from where
pub(crate) mod descriptors; // how many there is room for
mod expiry; // when a certificate ends
pub(crate) mod live; // what may change meanwhile
mod room; // places for a worker's connections
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
use self::live::InForce;
use self::opening::Opening;
use self::tls::{Certificates, TlsError};
use self::worker::{Entrance, Worker};

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
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) drain: daemon::Drain,
    pub(crate) addresses: PerAddress,
    /// So many connections of a worker there are file descriptors for.
    pub(crate) connections_most: usize,
    pub(crate) upgrades: Upgrades,
    pub(crate) overload: Option<OverloadRules>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    pub(crate) kill_switch: Arc<KillSwitch>,
    /// What a reload may change.
    pub(crate) in_force: InForce<S>,
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
    /// Those of each worker.
    sockets: Vec<Vec<Arc<Lent>>>,
}

/// Binds a listener for all workers, or takes over what listens there.
pub(crate) fn bind(
    listener: &Listener,
    workers: usize,
    sockets: &Sockets,
) -> Result<Bound, ServeError> {
    let certificates = certificates(listener)?;
    let (address, sockets) =
        sockets::of_workers(&listener.name, listener.address, workers, sockets)
            .map_err(|error| ServeError::Bind(listener.address, error))?;
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
        let listeners = sockets.iter_mut().enumerate();
        let own = listeners.flat_map(|(listener, (http2, proxies, opening, sockets))| {
            let own = sockets.next().unwrap_or_default().into_iter();
            own.map(move |socket| {
                let (proxies, opening) = (Arc::clone(proxies), opening.clone());
                Entrance { listener, socket, http2: *http2, proxies, opening }
            })
        });
        let worker = Worker::new(Arc::clone(&shared), own.collect(), number);
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
    all_ended(ends).await
}

/// Waits for the end of all workers, or for the first that ends in another way.
async fn all_ended(ends: Vec<oneshot::Receiver<io::Result<()>>>) -> Result<(), ServeError> {
    let ends = ends.into_iter().map(async |end| match end.await {
        Ok(ran) => ran.map_err(ServeError::Worker),
        Err(_panicked) => Err(ServeError::Died),
    });
    futures_util::future::try_join_all(ends).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_dies_is_noticed_while_others_run() {
        let (running, one) = oneshot::channel();
        let (dying, other) = oneshot::channel::<io::Result<()>>();
        drop(dying);
        let ended = all_ended(vec![one, other]);
        let ended = tokio::time::timeout(std::time::Duration::from_secs(1), ended).await;
        assert!(matches!(ended, Ok(Err(ServeError::Died))), "{ended:?}");
        drop(running);
    }
}
