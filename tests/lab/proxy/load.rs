//! A closed loop: callers who send the next request when the last one is answered. They run on one
//! thread of their own and cost little, so that the process under test is the one that is busy.
//!
//! Over HTTP/1.1 a request is bytes made beforehand, and of an answer only status and length are
//! read. Over HTTP/2 it is a client of the usual kind, several streams on each connection.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use system_tests::growth::Protocol;
use system_tests::origin::{end_of_head, number_of};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::crowd::Crowd;

/// Requests that are under way at once: over HTTP/1.1 as many connections.
pub const CALLERS: usize = 32;
/// Streams of one HTTP/2 connection.
const STREAMS: usize = 8;
/// Nothing takes so long, but a hung process would.
const GIVE_UP: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Who calls whom.
#[derive(Debug, Clone)]
pub struct Load {
    /// The process under test.
    pub target: SocketAddr,
    /// What its callers speak.
    pub protocol: Protocol,
    /// API keys.
    pub keys: Vec<String>,
    /// Which of them a request shows.
    pub who: Who,
    /// Seed of that.
    pub seed: u64,
}

/// Whose requests they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Of clients at random, of a few of them most.
    Crowd,
    /// Of one after the other.
    InTurn,
}

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// For so long, after a first stretch that does not count.
    Time { warm: Duration, counted: Duration },
    /// So many requests.
    Requests(u64),
}

/// What came back in the stretch that counts.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// By status: 200, 429, anything else.
    pub passed: u64,
    /// Refused.
    pub refused: u64,
    /// Neither.
    pub strange: u64,
    /// How long the stretch was.
    pub took: Duration,
    /// Milliseconds that answers took.
    pub p50_ms: f64,
    /// The same.
    pub p99_ms: f64,
}

impl Answers {
    /// Whatever the answers were.
    pub fn all(&self) -> u64 {
        self.passed + self.refused + self.strange
    }
}

/// What the callers share.
struct Counts {
    answers: RefCell<Answers>,
    times_us: RefCell<Histogram<u64>>,
    /// Requests that may still be sent.
    left: Cell<u64>,
    counts: Cell<bool>,
    who: Who,
    crowd: Crowd,
    /// Index of the last client, if they go in turn.
    last: Cell<usize>,
}

impl Counts {
    fn new(left: u64, counts: bool, who: Who, clients: usize) -> anyhow::Result<Counts> {
        Ok(Counts {
            answers: RefCell::default(),
            times_us: RefCell::new(Histogram::new_with_bounds(1, 60_000_000, 3)?),
            left: Cell::new(left),
            counts: Cell::new(counts),
            who,
            crowd: Crowd::of(clients),
            last: Cell::new(0),
        })
    }

    /// Index of the client whose request is next, of so many.
    fn client(&self, of: usize, random: &mut fastrand::Rng) -> usize {
        match self.who {
            Who::Crowd => self.crowd.one(random),
            Who::InTurn => {
                self.last.set((self.last.get() + 1) % of.max(1));
                self.last.get()
            }
        }
    }

    /// Whether there is another request to send.
    fn take(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    fn answered(&self, status: u16, took: Duration) {
        if self.counts.get() {
            let mut answers = self.answers.borrow_mut();
            match status {
                200 => answers.passed += 1,
                429 => answers.refused += 1,
                _ => answers.strange += 1,
            }
            let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.times_us.borrow_mut().saturating_record(us);
        }
    }

    fn result(&self, took: Duration) -> Answers {
        let times = self.times_us.borrow();
        let ms = |share| {
            system_tests::oracle::float(
                usize::try_from(times.value_at_quantile(share)).unwrap_or(0),
            ) / 1e3
        };
        Answers { took, p50_ms: ms(0.5), p99_ms: ms(0.99), ..self.answers.borrow().clone() }
    }
}

impl Load {
    /// Plays it on a thread of its own. `edges` is called where the stretch that counts begins and
    /// where it ends; nothing is sent or read meanwhile.
    pub async fn play<T: Send + 'static>(
        &self,
        extent: Extent,
        mut edges: impl FnMut() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<(Answers, T, T)> {
        let load = self.clone();
        let playing = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            LocalSet::new().block_on(&runtime, load.played(extent, &mut edges))
        });
        playing.await?
    }

    async fn played<T>(
        &self,
        extent: Extent,
        edges: &mut impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<(Answers, T, T)> {
        let (left, counts) = match extent {
            Extent::Time { .. } => (u64::MAX, false),
            Extent::Requests(count) => (count, true),
        };
        let counts = Rc::new(Counts::new(left, counts, self.who, self.keys.len())?);
        let callers = match self.protocol {
            Protocol::Http1 => self.callers_http1().await?,
            Protocol::Http2 => self.callers_http2().await?,
        };
        let playing = try_join_all(callers.into_iter().enumerate().map(|(number, caller)| {
            let random = fastrand::Rng::with_seed(self.seed.wrapping_add(number as u64));
            let task = caller.calls(random, Rc::clone(&counts));
            let task = tokio::task::spawn_local(task);
            async move { task.await? }
        }));
        match extent {
            Extent::Requests(_) => {
                // Tasks run only while this one waits, so nothing was sent yet.
                let before = edges()?;
                let began = Instant::now();
                tokio::time::timeout(GIVE_UP * 10, playing).await.context("no end")??;
                Ok((counts.result(began.elapsed()), before, edges()?))
            }
            Extent::Time { warm, counted } => {
                let clock = async {
                    tokio::time::sleep(warm).await;
                    let before = edges()?;
                    counts.counts.set(true);
                    let began = Instant::now();
                    tokio::time::sleep(counted).await;
                    counts.counts.set(false);
                    let took = began.elapsed();
                    let after = edges()?;
                    counts.left.set(0);
                    anyhow::Ok((took, before, after))
                };
                let both = async { tokio::try_join!(clock, playing) };
                let ((took, before, after), _) =
                    tokio::time::timeout(warm + counted + GIVE_UP, both)
                        .await
                        .context("no end")??;
                Ok((counts.result(took), before, after))
            }
        }
    }

    async fn callers_http1(&self) -> anyhow::Result<Vec<Caller>> {
        let request = |key: &String| {
            format!("GET /item HTTP/1.1\r\nhost: {}\r\nx-api-key: {key}\r\n\r\n", self.target)
        };
        let requests: Rc<Vec<String>> = Rc::new(self.keys.iter().map(request).collect());
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            let stream = TcpStream::connect(self.target).await?;
            stream.set_nodelay(true)?;
            let buffer = BytesMut::with_capacity(ANSWER_BYTES_MAX);
            callers.push(Caller::Http1 { stream, buffer, requests: Rc::clone(&requests) });
        }
        Ok(callers)
    }

    async fn callers_http2(&self) -> anyhow::Result<Vec<Caller>> {
        let uri: Uri = format!("http://{}/item", self.target).parse()?;
        let keys = self.keys.iter().map(|key| HeaderValue::from_str(key));
        let keys: Rc<Vec<HeaderValue>> = Rc::new(keys.collect::<Result<_, _>>()?);
        let mut callers = Vec::new();
        for _ in 0..CALLERS / STREAMS {
            let stream = TcpStream::connect(self.target).await?;
            stream.set_nodelay(true)?;
            let io = TokioIo::new(stream);
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            tokio::task::spawn_local(connection);
            callers.extend((0..STREAMS).map(|_| Caller::Http2 {
                sender: sender.clone(),
                uri: uri.clone(),
                keys: Rc::clone(&keys),
            }));
        }
        Ok(callers)
    }
}

/// One who waits for an answer before the next request.
enum Caller {
    Http1 { stream: TcpStream, buffer: BytesMut, requests: Rc<Vec<String>> },
    Http2 { sender: http2::SendRequest<Empty<Bytes>>, uri: Uri, keys: Rc<Vec<HeaderValue>> },
}

impl Caller {
    async fn calls(mut self, mut random: fastrand::Rng, counts: Rc<Counts>) -> anyhow::Result<()> {
        while counts.take() {
            let began = Instant::now();
            let status = match &mut self {
                Caller::Http1 { stream, buffer, requests } => {
                    let request = requests.get(counts.client(requests.len(), &mut random));
                    stream.write_all(request.context("no key")?.as_bytes()).await?;
                    answer(stream, buffer).await?
                }
                Caller::Http2 { sender, uri, keys } => {
                    let key = keys.get(counts.client(keys.len(), &mut random)).context("no key")?;
                    let request = Request::get(uri.clone()).header("x-api-key", key.clone());
                    sender.ready().await?;
                    let response = sender.send_request(request.body(Empty::new())?).await?;
                    let status = response.status().as_u16();
                    response.into_body().collect().await?;
                    status
                }
            };
            counts.answered(status, began.elapsed());
        }
        Ok(())
    }
}

/// Reads one answer of HTTP/1.1, and says its status.
async fn answer(stream: &mut TcpStream, buffer: &mut BytesMut) -> anyhow::Result<u16> {
    loop {
        if let Some((status, whole)) = measured(buffer)?
            && whole <= buffer.len()
        {
            buffer.advance(whole);
            if buffer.is_empty() {
                buffer.clear();
                buffer.reserve(ANSWER_BYTES_MAX);
            }
            return Ok(status);
        }
        ensure!(buffer.len() < ANSWER_BYTES_MAX, "an endless answer");
        ensure!(stream.read_buf(buffer).await? > 0, "the connection ended without an answer");
    }
}

/// Status and whole length of an answer, once its head is there.
fn measured(bytes: &[u8]) -> anyhow::Result<Option<(u16, usize)>> {
    let Some(end) = end_of_head(bytes) else { return Ok(None) };
    let head = bytes.get(..end).unwrap_or_default();
    let status = head.get(9..12).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let length = number_of(head, b"content-length").context("an answer without a length")?;
    Ok(Some((status.context("no status")?, end + usize::try_from(length)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_measured_once_its_head_is_there() {
        let whole = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(measured(whole).unwrap(), Some((429, whole.len())));
        assert_eq!(measured(&whole[..20]).unwrap(), None);
        assert!(measured(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").is_err());
    }

    #[test]
    fn so_many_requests_and_no_more() {
        let counts = Counts::new(2, true, Who::InTurn, 3).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        assert_eq!([(); 4].map(|()| counts.client(3, &mut random)), [1, 2, 0, 1]);
        assert_eq!([counts.take(), counts.take(), counts.take()], [true, true, false]);
        counts.answered(200, Duration::from_millis(1));
        counts.answered(429, Duration::from_millis(1));
        counts.answered(503, Duration::from_millis(1));
        let answers = counts.result(Duration::from_secs(1));
        assert_eq!((answers.passed, answers.refused, answers.strange), (1, 1, 1));
    }
}
