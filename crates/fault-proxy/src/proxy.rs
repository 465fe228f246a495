//! The proxy: a listener and its connections on a thread of their own, so that neither a busy nor a
//! paused runtime of its user moves its clock.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use crate::connection;
use crate::counters::Counters;
use crate::rules::Rules;
use crate::shared::Shared;

/// Connections at a time; beyond it new ones are closed at once.
pub const CONNECTIONS_MAX: usize = 4_096;
/// For the connection to the server.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// After the system had no descriptor for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running proxy; ends, with its connections, when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl FaultProxy {
    /// Before `upstream`, on a free loopback port, without rules.
    pub fn start(upstream: SocketAddr) -> io::Result<FaultProxy> {
        FaultProxy::start_at((Ipv4Addr::LOCALHOST, 0).into(), upstream)
    }

    /// Before `upstream`, at `listen`.
    pub fn start_at(listen: SocketAddr, upstream: SocketAddr) -> io::Result<FaultProxy> {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared::new(upstream));
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new().name("fault-proxy".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    // It ends only if the runtime refuses the listener.
                    _refused = serve(listener, serving) => {}
                    _ended = stopped => {}
                }
            });
        })?;
        Ok(FaultProxy { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As Redis clients spell it.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Replaces all rules, counts and chance included, for commands that come from now on.
    pub fn set(&self, rules: impl Into<Rules>) {
        self.shared.set(rules.into());
    }

    /// Breaks nothing any more. What was broken stays so: a reply on its way keeps its delay, a
    /// connection with a blackhole delivers nothing.
    pub fn clear(&self) {
        self.shared.set(Rules::default());
    }

    /// What it has seen and done.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// New connections go to this server, as when an address moves; the others stay.
    pub fn retarget(&self, upstream: SocketAddr) {
        *self.shared.target.lock() = upstream;
    }

    /// Closes every connection (FIN).
    pub fn close_all(&self) {
        self.shared.closing.send_modify(|times| *times += 1);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            std::panic::resume_unwind(Box::new("the fault proxy panicked"));
        }
    }
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) if connections.len() < CONNECTIONS_MAX => {
                    let shared = Arc::clone(&shared);
                    connections.spawn_local(carry(client, shared));
                }
                Ok(_one_too_many) => {}
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    }
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let mut closing = shared.closing.subscribe();
    shared.count(|counters| {
        counters.connections += 1;
        counters.open += 1;
    });
    let _closed = Closed(&shared);
    let target = *shared.target.lock();
    let carried = async {
        match timeout(CONNECT_MAX, TcpStream::connect(target)).await {
            Ok(Ok(server)) => {
                // An option that cannot be set only costs time.
                drop((client.set_nodelay(true), server.set_nodelay(true)));
                connection::run(client, server, &shared).await;
            }
            Ok(Err(_)) | Err(_) => shared.count(|counters| counters.unreachable += 1),
        }
    };
    tokio::select! {
        () = carried => {}
        _changed = closing.changed() => {}
    }
}

struct Closed<'a>(&'a Shared);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.count(|counters| counters.open -= 1);
    }
}
