//! One core's share of the gateway: a current-thread runtime, its sockets, its upstream
//! connections.
//!
//! At the connection bound a worker stops accepting; callers wait in the kernel's queue. At the
//! drain it accepts for a grace, so that balancers notice first, then closes what is idle and lets
//! what is under way finish within its bound. What a successor accepts from is left to it at once;
//! the grace is then the time in which connections in use are told to close.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use daemon::Lent;
use edge::limiter::store::BucketStore;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::{TcpListener, TcpStream};

use super::Shared;
use super::activity::{Activity, Answered, Open, Patience, UnderWay};
use super::live::{Door, Live};
use super::opening::{Caller, Opened, Opening};
use super::patience::{Patient, UNREAD_MAX};
use super::room::Taken;
use crate::config::Bounds;
use crate::peer::{Peer, Place, Proxies};
use crate::stream::Transport;
use crate::upstream::Way;

/// Pause after a failed accept: out of file descriptors is not cured by trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often idle upstream connections are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A worker before it runs.
#[derive(Debug)]
pub(crate) struct Worker<S> {
    shared: Arc<Shared<S>>,
    live: Arc<Live<S>>,
    sockets: Vec<Arc<Lent>>,
}

/// A worker's part of a listener.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// Its number among the listeners.
    pub listener: usize,
    /// Its own, until a successor has it.
    pub socket: Arc<Lent>,
    /// HTTP/2 beside HTTP/1.1.
    pub http2: bool,
    /// Proxies whose word about callers is believed.
    pub proxies: Proxies,
    /// What comes before HTTP.
    pub opening: Opening,
}

/// A listener of a running worker.
struct Port {
    socket: Arc<Lent>,
    listener: TcpListener,
}

impl<S: BucketStore> Worker<S> {
    /// A worker for these sockets.
    pub(crate) fn new(
        shared: Arc<Shared<S>>,
        entrances: Vec<Entrance>,
        number: usize,
    ) -> Worker<S> {
        let mut sockets = Vec::with_capacity(entrances.len());
        let live = shared.live(number, |bounds| {
            let door = |Entrance { listener, socket, http2, proxies, opening }| {
                sockets.push(socket);
                Door::new(listener, proxies, opening, http2, bounds)
            };
            entrances.into_iter().map(door).collect()
        });
        Worker { shared, live, sockets }
    }

    /// Runs to the end of the drain, on the caller's thread.
    pub(crate) fn run(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(self.serve());
        runtime.shutdown_background();
        ended
    }

    async fn serve(self) -> io::Result<()> {
        let Worker { shared, live, sockets } = self;
        let gate = Arc::clone(&live.own.gate);
        daemon::tasks::spawn("overload watch", async move { gate.watch().await });
        let mut ports = Vec::with_capacity(sockets.len());
        for socket in sockets {
            ports.push(Port { listener: TcpListener::from_std(socket.listener()?)?, socket });
        }
        let open = Open::new();
        let accepting = accept_all(&ports, &shared, &live, &open);
        tokio::select! {
            () = accepting => {}
            () = sweep(&live) => {}
            () = drained(&shared) => {}
        }
        drop(ports);
        let ended = async { tokio::join!(open.shutdown(), shared.upgrades.ended()) };
        if tokio::time::timeout(shared.in_force.drain_rules().finish, ended).await.is_err() {
            tracing::warn!("requests under way at the end of the drain were cut off");
        }
        Ok(())
    }
}

/// Waits for the drain and its grace.
async fn drained<S>(shared: &Shared<S>) {
    shared.drain.started().await;
    tokio::time::sleep(shared.in_force.drain_rules().grace).await;
}

async fn sweep<S>(live: &Live<S>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        live.current().pipeline.ways.iter().for_each(Way::sweep);
    }
}

async fn accept_all<S: BucketStore>(
    ports: &[Port],
    shared: &Arc<Shared<S>>,
    live: &Arc<Live<S>>,
    open: &Open,
) {
    let mut last = 0;
    loop {
        let place = live.place().await;
        match accept(ports, last).await {
            Ok((stream, peer, port)) => {
                last = port;
                let Some(door) = live.door(port) else { continue };
                take(stream, peer, &door, place, shared, live, open);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type Accepted = (TcpStream, SocketAddr, usize);

/// The next connection of any port, and of which. The one after the `last` comes first, so that a
/// crowd at one keeps nobody from another.
async fn accept(ports: &[Port], last: usize) -> io::Result<Accepted> {
    poll_fn(|cx| {
        let (before, after) = ports.split_at_checked(last + 1).unwrap_or((ports, &[]));
        let numbers = (last + 1..).zip(after).chain(before.iter().enumerate());
        for (number, port) in numbers {
            if port.socket.is_handed_over() {
                continue;
            }
            if let Poll::Ready(accepted) = port.listener.poll_accept(cx) {
                return Poll::Ready(accepted.map(|(stream, peer)| (stream, peer, number)));
            }
        }
        Poll::Pending
    })
    .await
}

fn take<S: BucketStore>(
    stream: TcpStream,
    peer: SocketAddr,
    door: &Arc<Door>,
    taken: Taken,
    shared: &Arc<Shared<S>>,
    live: &Arc<Live<S>>,
    open: &Open,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection gone before it was taken");
        return;
    }
    if door.opening.is_needed() {
        let (door, seat) = (Arc::clone(door), open.seat());
        let (own, live) = (Arc::clone(shared), Arc::clone(live));
        let connection = async move {
            let opened = tokio::select! {
                opened = door.opening.pass(stream, peer.ip(), &door.bounds, &own) => opened,
                () = drained(&own) => None,
            };
            let Some(Opened { stream, peer, entered }) = opened else { return Ok(()) };
            let place: Place = Arc::new((taken, entered));
            let activity = Arc::default();
            let served = serve(&door, stream, peer, place, &activity, &live);
            seat.run(served, activity, patience(&door.bounds)).await
        };
        run(connection, shared);
    } else {
        let Some(entered) = shared.enter(peer.ip()) else { return };
        let place: Place = Arc::new((taken, entered));
        let stream = Transport::Clear(stream);
        let activity = Arc::default();
        let served = serve(door, stream, peer.ip(), place, &activity, live);
        run(open.seat().run(served, activity, patience(&door.bounds)), shared);
    }
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// Runs a connection, which holds its place.
fn run<S>(
    connection: impl Future<Output = Result<(), ConnectionError>> + Send + 'static,
    shared: &Shared<S>,
) {
    let metrics = Arc::clone(&shared.metrics);
    metrics.connections.inc();
    daemon::tasks::spawn("connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended");
        }
        metrics.connections.dec();
    });
}

fn patience(bounds: &Bounds) -> Patience {
    Patience { idle: bounds.idle, unread: UNREAD_MAX }
}

/// The HTTP of one connection; `place` is held to its end, whatever protocol it speaks by then.
fn serve<S: BucketStore>(
    door: &Door,
    stream: Caller,
    peer: IpAddr,
    place: Place,
    activity: &Arc<Activity>,
    live: &Arc<Live<S>>,
) -> impl GracefulConnection<Error = ConnectionError> + Send + 'static + use<S> {
    let forwarded = door.opening.forwarded_by(peer);
    let peer = Peer::new(peer, forwarded, &door.proxies, place);
    let peer = Arc::new(Peer { activity: Arc::clone(activity), ..peer });
    let live = Arc::clone(live);
    let service = service_fn(move |request| {
        let (current, under_way) = (live.current(), UnderWay::begin(&peer));
        async move {
            let response = current.pipeline.respond(request, under_way.peer()).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| Answered::new(body, under_way)))
        }
    });
    // With upgrades the engine reads the version also where it is told to speak HTTP/1 only.
    let stream = Patient::new(stream, door.bounds.first_byte, UNREAD_MAX)
        .without_http2(!door.engine.is_http2_available())
        .with_heads(Arc::clone(activity), door.bounds.head_time);
    door.engine.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_crowd_at_one_port_keeps_nobody_from_another() {
        let sockets = daemon::Sockets::default();
        let (mut ports, mut callers) = (Vec::new(), Vec::new());
        for name in ["main", "other"] {
            let socket = sockets.lend(name, std::net::TcpListener::bind("127.0.0.1:0").unwrap());
            for _ in 0..4 {
                callers.push(std::net::TcpStream::connect(socket.address().unwrap()).unwrap());
            }
            let listener = socket.listener().unwrap();
            listener.set_nonblocking(true).unwrap();
            ports.push(Port { listener: TcpListener::from_std(listener).unwrap(), socket });
        }
        let mut last = 1;
        for turn in 0..8 {
            (_, _, last) = accept(&ports, last).await.unwrap();
            assert_eq!(last, turn % 2);
        }
    }
}
