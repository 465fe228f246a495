//! One core's share of the gateway: a current-thread runtime, its sockets, its upstream
//! connections.
//!
//! At the connection bound a worker stops accepting; callers wait in the kernel's queue. At the
//! drain it accepts for a grace, so that balancers notice first, then closes what is idle and lets
//! what is under way finish within its bound.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use edge::limiter::store::BucketStore;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Shared;
use super::activity::{Activity, Answered, Open, Patience, UnderWay};
use super::opening::{Caller, Opened, Opening};
use super::patience::{Patient, UNREAD_MAX};
use crate::config::Bounds;
use crate::peer::{Peer, Place, Proxies};
use crate::pipeline::Pipeline;
use crate::stream::Transport;
use crate::upstream::Way;

/// Pause after a failed accept: out of file descriptors is not cured by trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often idle upstream connections are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// An HTTP/2 connection that is silent for this long is asked whether it lives.
const H2_PING_EVERY: Duration = Duration::from_secs(20);
/// And is closed if it does not answer.
const H2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker before it runs.
#[derive(Debug)]
pub(crate) struct Worker<S> {
    shared: Arc<Shared<S>>,
    entrances: Vec<Entrance>,
}

/// A worker's part of a listener.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// Its own.
    pub socket: std::net::TcpListener,
    /// HTTP/2 beside HTTP/1.1.
    pub http2: bool,
    /// Proxies whose word about callers is believed.
    pub proxies: Proxies,
    /// What comes before HTTP.
    pub opening: Opening,
}

/// A listener of a running worker.
struct Port {
    listener: TcpListener,
    door: Arc<Door>,
}

/// What its connections meet.
struct Door {
    proxies: Proxies,
    opening: Opening,
    engine: auto::Builder<TokioExecutor>,
}

impl<S: BucketStore> Worker<S> {
    /// A worker for these sockets.
    pub(crate) fn new(shared: Arc<Shared<S>>, entrances: Vec<Entrance>) -> Worker<S> {
        Worker { shared, entrances }
    }

    /// Runs to the end of the drain, on the caller's thread.
    pub(crate) fn run(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(self.serve());
        runtime.shutdown_background();
        ended
    }

    async fn serve(self) -> io::Result<()> {
        let shared = self.shared;
        let ways = shared.upstreams.iter().map(|upstream| Way::new(Arc::clone(upstream))).collect();
        let pipeline = Arc::new(Pipeline {
            edge: Arc::clone(&shared.edge),
            routes: shared.routes.clone(),
            ways,
            metrics: Arc::clone(&shared.metrics),
            clock: Arc::clone(&shared.clock),
            body_bound: shared.bounds.body_bytes,
            head_fields: shared.bounds.head_fields,
            x_ratelimit: shared.bounds.x_ratelimit,
            drain: shared.drain.clone(),
            upgrades: shared.upgrades.clone(),
        });
        let mut ports = Vec::new();
        for Entrance { socket, http2, proxies, opening } in self.entrances {
            let door = Door { proxies, opening, engine: engine(&shared.bounds, http2) };
            let door = Arc::new(door);
            ports.push(Port { listener: TcpListener::from_std(socket)?, door });
        }
        let open = Open::new();
        let accepting = accept_all(&ports, &shared, &pipeline, &open);
        tokio::select! {
            () = accepting => {}
            () = sweep(&pipeline) => {}
            () = drained(&shared) => {}
        }
        drop(ports);
        let ended = async { tokio::join!(open.shutdown(), shared.upgrades.ended()) };
        if tokio::time::timeout(shared.drain_rules.finish, ended).await.is_err() {
            tracing::warn!("requests under way at the end of the drain were cut off");
        }
        Ok(())
    }
}

/// Waits for the drain and its grace.
async fn drained<S>(shared: &Shared<S>) {
    shared.drain.started().await;
    tokio::time::sleep(shared.drain_rules.grace).await;
}

async fn sweep<S>(pipeline: &Pipeline<S>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        pipeline.ways.iter().for_each(Way::sweep);
    }
}

async fn accept_all<S: BucketStore>(
    ports: &[Port],
    shared: &Arc<Shared<S>>,
    pipeline: &Arc<Pipeline<S>>,
    open: &Open,
) {
    let room = Arc::new(Semaphore::new(shared.bounds.connections_per_worker));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match accept(ports).await {
            Ok((stream, peer, door)) => {
                take(stream, peer, &door, permit, shared, pipeline, open);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type Accepted = (TcpStream, SocketAddr, Arc<Door>);

/// The next connection of any port.
async fn accept(ports: &[Port]) -> io::Result<Accepted> {
    poll_fn(|cx| {
        for port in ports {
            if let Poll::Ready(accepted) = port.listener.poll_accept(cx) {
                let door = Arc::clone(&port.door);
                return Poll::Ready(accepted.map(|(stream, peer)| (stream, peer, door)));
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
    permit: OwnedSemaphorePermit,
    shared: &Arc<Shared<S>>,
    pipeline: &Arc<Pipeline<S>>,
    open: &Open,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection gone before it was taken");
        return;
    }
    if door.opening.is_needed() {
        let (door, seat) = (Arc::clone(door), open.seat());
        let (own, pipeline) = (Arc::clone(shared), Arc::clone(pipeline));
        let connection = async move {
            let opened = tokio::select! {
                opened = door.opening.pass(stream, peer.ip(), &own) => opened,
                () = drained(&own) => None,
            };
            let Some(Opened { stream, peer, entered }) = opened else { return Ok(()) };
            let place: Place = Arc::new((permit, entered));
            let activity = Arc::default();
            let served = serve(&door, stream, peer, place, &activity, &own, &pipeline);
            seat.run(served, activity, patience(&own.bounds)).await
        };
        run(connection, shared);
    } else {
        let Some(entered) = shared.enter(peer.ip()) else { return };
        let place: Place = Arc::new((permit, entered));
        let stream = Transport::Clear(stream);
        let activity = Arc::default();
        let served = serve(door, stream, peer.ip(), place, &activity, shared, pipeline);
        run(open.seat().run(served, activity, patience(&shared.bounds)), shared);
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
    shared: &Shared<S>,
    pipeline: &Arc<Pipeline<S>>,
) -> impl GracefulConnection<Error = ConnectionError> + Send + 'static + use<S> {
    let forwarded = door.opening.forwarded_by(peer);
    let peer = Peer::new(peer, forwarded, &door.proxies, place);
    let peer = Arc::new(Peer { activity: Arc::clone(activity), ..peer });
    let pipeline = Arc::clone(pipeline);
    let service = service_fn(move |request| {
        let (pipeline, under_way) = (Arc::clone(&pipeline), UnderWay::begin(&peer));
        async move {
            let response = pipeline.respond(request, under_way.peer()).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| Answered::new(body, under_way)))
        }
    });
    // With upgrades the engine reads the version also where it is told to speak HTTP/1 only.
    let stream = Patient::new(stream, shared.bounds.first_byte, UNREAD_MAX)
        .without_http2(!door.engine.is_http2_available())
        .with_heads(Arc::clone(activity), shared.bounds.head_time);
    door.engine.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned()
}

/// The HTTP engine with its bounds. Without a timer its deadlines would silently be off.
fn engine(bounds: &Bounds, http2: bool) -> auto::Builder<TokioExecutor> {
    let mut engine = auto::Builder::new(TokioExecutor::new());
    if !http2 {
        engine = engine.http1_only();
    }
    let mut http1 = engine.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_time.max(bounds.idle)) // it counts idleness as a head
        .max_buf_size(bounds.head_bytes)
        .keep_alive(true);
    if bounds.head_fields != 100 {
        http1.max_headers(bounds.head_fields); // 100 is the engine's own, and cheaper
    }
    engine
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.h2_streams)
        .max_header_list_size(u32::try_from(bounds.head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(H2_PING_EVERY)
        .keep_alive_timeout(H2_PING_TIMEOUT);
    engine
}
