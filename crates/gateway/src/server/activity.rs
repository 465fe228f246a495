//! What happens on a connection, for the deadlines that the HTTP engine lacks: how long it has been
//! idle, and whether its caller takes the answers that it is owed.
//!
//! One word of atomics for each connection and a guard in each answer; timers exist only where
//! there is something to wait for.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::body::{BodyError, ReplyBody};
use crate::peer::Peer;

/// One exchange, in the lower half of the word.
const OPEN: u64 = 1;
/// One exchange that has begun, in its upper half.
const BEGUN: u64 = 1 << 32;

/// Exchanges of a connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    exchanges: AtomicU64,
    /// Answers with a piece that the engine has and has not asked beyond.
    owed: AtomicU64,
    /// Pieces of answers so far.
    moved: AtomicU64,
}

/// Exchanges at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchanges(u64);

impl Exchanges {
    /// Whether none is under way.
    pub(crate) fn is_idle(self) -> bool {
        self.0.is_multiple_of(BEGUN)
    }
}

impl Activity {
    /// Those of now.
    pub(crate) fn exchanges(&self) -> Exchanges {
        Exchanges(self.exchanges.load(Ordering::Relaxed))
    }

    /// The connection leaves HTTP: what comes on it from now on is no request head.
    pub(crate) fn leaves_http(&self) {
        self.exchanges.fetch_add(OPEN, Ordering::Relaxed);
    }
}

/// A request that counts among its connection's as long as this lives: also one that is abandoned.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Peer>);

impl UnderWay {
    /// Counts one in.
    pub(crate) fn begin(peer: &Arc<Peer>) -> UnderWay {
        peer.activity.exchanges.fetch_add(BEGUN + OPEN, Ordering::Relaxed);
        UnderWay(Arc::clone(peer))
    }

    /// Whose it is.
    pub(crate) fn peer(&self) -> &Peer {
        &self.0
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.activity.exchanges.fetch_sub(OPEN, Ordering::Relaxed);
    }
}

/// An answer until all of it is out.
#[derive(Debug)]
pub(crate) struct Answered {
    body: ReplyBody,
    request: UnderWay,
    owes: bool,
}

impl Answered {
    /// To this request.
    pub(crate) fn new(body: ReplyBody, request: UnderWay) -> Answered {
        Answered { body, request, owes: false }
    }

    fn set_owes(&mut self, owes: bool) {
        let owed = &self.request.peer().activity.owed;
        match (self.owes, owes) {
            (false, true) => owed.fetch_add(1, Ordering::Relaxed),
            (true, false) => owed.fetch_sub(1, Ordering::Relaxed),
            (true, true) | (false, false) => 0,
        };
        self.owes = owes;
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.set_owes(false);
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        this.request.peer().activity.moved.fetch_add(1, Ordering::Relaxed);
        this.set_owes(matches!(polled, Poll::Ready(Some(Ok(_)))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The open connections of a worker: told together that they shall end, and waited for.
#[derive(Debug)]
pub(super) struct Open(watch::Sender<()>);

/// One connection's part of it.
#[derive(Debug)]
pub(super) struct Seat(watch::Receiver<()>);

/// How long a connection may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For the next request.
    pub(super) idle: Duration,
    /// For a caller that takes no piece of any answer.
    pub(super) unread: Duration,
}

/// For what a connection waits; the same as long as nothing happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// A request.
    Request(Exchanges),
    /// A caller that takes what it is owed.
    Caller(u64),
    /// A service.
    Service,
}

impl Waits {
    fn of(activity: &Activity) -> Waits {
        let exchanges = activity.exchanges();
        if exchanges.is_idle() {
            Waits::Request(exchanges)
        } else if activity.owed.load(Ordering::Relaxed) > 0 {
            Waits::Caller(activity.moved.load(Ordering::Relaxed))
        } else {
            Waits::Service
        }
    }

    fn at_most(self, patience: Patience) -> Option<Duration> {
        match self {
            Waits::Request(_) => Some(patience.idle),
            Waits::Caller(_) => Some(patience.unread),
            Waits::Service => None,
        }
    }
}

impl Open {
    /// None yet.
    pub(super) fn new() -> Open {
        Open(watch::Sender::new(()))
    }

    /// For one connection, from its accept.
    pub(super) fn seat(&self) -> Seat {
        Seat(self.0.subscribe())
    }

    /// Tells all to end after what is under way, and waits for them.
    pub(super) async fn shutdown(self) {
        self.0.send_replace(());
        self.0.closed().await;
    }
}

impl Seat {
    /// Runs a connection to its end, which comes after the drain has begun, after idleness, or
    /// with a caller that takes nothing.
    pub(super) async fn run<C: GracefulConnection>(
        mut self,
        connection: C,
        activity: Arc<Activity>,
        patience: Patience,
    ) -> Result<(), C::Error> {
        let mut connection = pin!(connection);
        let mut drain = pin!(self.0.changed());
        let mut timer = pin!(tokio::time::sleep(patience.idle));
        let (mut ending, mut waits) = (false, Waits::Service);
        poll_fn(|cx| {
            loop {
                if !ending && drain.as_mut().poll(cx).is_ready() {
                    (ending, waits) = (true, Waits::Service);
                    connection.as_mut().graceful_shutdown();
                }
                let polled = connection.as_mut().poll(cx);
                if polled.is_ready() {
                    return polled;
                }
                let now = Waits::of(&activity);
                let Some(most) = now.at_most(patience) else {
                    waits = now;
                    return Poll::Pending;
                };
                if now != waits {
                    waits = now;
                    timer.as_mut().reset(Instant::now() + most);
                }
                ready!(timer.as_mut().poll(cx));
                if ending || matches!(now, Waits::Caller(_)) {
                    return Poll::Ready(Ok(()));
                }
                // A caller that does not take the rest of its answers is waited for once more.
                (ending, waits) = (true, Waits::Service);
                connection.as_mut().graceful_shutdown();
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::{IpAddr, Ipv4Addr};

    use http::{Request, Response};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::headers::ForwardedBy;
    use crate::peer::Proxies;

    const PATIENCE: Patience =
        Patience { idle: Duration::from_secs(60), unread: Duration::from_secs(30) };
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    /// Settings with windows of nothing, and a request.
    const CLOSED: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0\
        \0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a";

    /// A connection among the open ones on which a request is answered, or never; and its caller's
    /// end.
    async fn connection(
        open: &Open,
        first: &[u8],
        answers: bool,
    ) -> (JoinHandle<bool>, DuplexStream) {
        let (ours, mut callers) = duplex(65_536);
        callers.write_all(first).await.unwrap();
        let activity = Arc::<Activity>::default();
        let (here, proxies) = (IpAddr::from(Ipv4Addr::LOCALHOST), Proxies::from([]));
        let peer = Peer::new(here, ForwardedBy::new(here), &proxies, Arc::new(()));
        let peer = Arc::new(Peer { activity: Arc::clone(&activity), ..peer });
        let service = service_fn(move |_request: Request<Incoming>| {
            let under_way = UnderWay::begin(&peer);
            async move {
                if !answers {
                    std::future::pending::<()>().await;
                }
                let body = ReplyBody::Own(Bytes::from_static(b"hello"));
                Ok::<_, Infallible>(Response::new(Answered::new(body, under_way)))
            }
        });
        let engine = auto::Builder::new(TokioExecutor::new());
        let served = engine.serve_connection_with_upgrades(TokioIo::new(ours), service);
        let run = open.seat().run(served.into_owned(), activity, PATIENCE);
        (daemon::tasks::spawn("connection", async move { run.await.is_ok() }), callers)
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_and_one_that_waits_for_a_service_does_not() {
        let (open, began) = (Open::new(), Instant::now());
        let (ended, _caller) = connection(&open, REQUEST, true).await;
        assert!(ended.await.unwrap());
        assert_eq!(began.elapsed().as_secs(), PATIENCE.idle.as_secs());
        let (ended, _caller) = connection(&open, REQUEST, false).await;
        assert!(tokio::time::timeout(PATIENCE.idle * 100, ended).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn s14_the_rest_of_an_answer_that_nobody_takes_ends_its_connection_too() {
        let mut narrow = CLOSED.to_vec();
        narrow[38] = 1; // a byte of each answer is taken, and the engine keeps the rest
        let (open, began) = (Open::new(), Instant::now());
        let (ended, caller) = connection(&open, &narrow, true).await;
        daemon::tasks::spawn("caller", answer_pings(caller));
        assert!(tokio::time::timeout(PATIENCE.idle * 100, ended).await.expect("it ends").unwrap());
        assert_eq!(began.elapsed().as_secs(), PATIENCE.idle.as_secs() * 2);
    }

    /// A caller that lives, and no more.
    async fn answer_pings(mut caller: DuplexStream) {
        const PING: u8 = 6;
        let mut head = [0; 9];
        while caller.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; usize::from(head[2])];
            caller.read_exact(&mut payload).await.unwrap();
            if head[3] == PING && head[4] == 0 {
                head[4] = 1;
                caller.write_all(&[&head[..], &payload].concat()).await.unwrap();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn s14_answers_that_nobody_takes_end_their_connection() {
        let (open, began) = (Open::new(), Instant::now());
        let (ended, _caller) = connection(&open, CLOSED, true).await;
        assert!(ended.await.unwrap());
        assert_eq!(began.elapsed().as_secs(), PATIENCE.unread.as_secs());
    }
}
