//! A caller's connection with the deadlines that the HTTP engine lacks, byte by byte.
//!
//! The engine tells HTTP/1 from HTTP/2 by the first bytes and waits for them without end; its own
//! deadline for a head counts from the end of the request before, so it cannot be shorter than
//! idleness. And it waits without end for a caller that takes no byte of its answer. All would
//! hold a place among the connections for ever. Deadlines on bodies are not here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::activity::{Activity, Exchanges};

/// Longest time in which a caller takes nothing of what is being sent.
pub(crate) const UNREAD_MAX: Duration = Duration::from_secs(60);

/// What HTTP/2 connections begin with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that is given up when its caller keeps it waiting.
#[derive(Debug)]
pub(crate) struct Patient<T> {
    io: T,
    /// Until the protocol is known.
    opening: Option<Opening>,
    /// Of HTTP/1.
    heads: Option<Heads>,
    unread_max: Duration,
    /// Made once a write had to wait, and then used again.
    unread: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    without_http2: bool,
}

/// The deadline of a request head, from its first byte.
#[derive(Debug)]
struct Heads {
    activity: Arc<Activity>,
    time: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// What had happened on the connection when its first byte came.
    begun: Option<Exchanges>,
}

impl Heads {
    /// Sees what a read brought, or that it brought nothing yet.
    fn look(&mut self, bytes: usize, pending: bool, cx: &mut Context<'_>) -> io::Result<()> {
        let now = self.activity.exchanges();
        if self.begun.is_some_and(|begun| begun != now) || !now.is_idle() {
            self.begun = None; // that head was whole
        }
        if self.begun.is_none() && now.is_idle() && bytes > 0 {
            self.begun = Some(now);
            let end = Instant::now() + self.time;
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(end),
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(end))),
            }
        }
        let Some(timer) = self.timer.as_mut().filter(|_| pending && self.begun.is_some()) else {
            return Ok(());
        };
        if timer.as_mut().poll(cx).is_ready() {
            Err(late("a request head took too long"))
        } else {
            Ok(())
        }
    }
}

#[derive(Debug)]
struct Opening {
    over: Pin<Box<Sleep>>,
    /// Bytes of the preface so far.
    alike: usize,
}

impl<T> Patient<T> {
    /// Waits `opening` for the bytes that tell the protocol, and `unread_max` for a caller to take
    /// some bytes.
    pub(crate) fn new(io: T, opening: Duration, unread_max: Duration) -> Patient<T> {
        let over = Box::pin(tokio::time::sleep(opening));
        let opening = Some(Opening { over, alike: 0 });
        Patient { opening, ..Patient::with_protocol(io, unread_max) }
    }

    /// Of a connection whose bytes tell nothing: only waits for a caller to take some.
    pub(crate) fn with_protocol(io: T, unread_max: Duration) -> Patient<T> {
        let without_http2 = false;
        let (opening, heads, unread) = (None, None, None);
        Patient { io, opening, heads, unread_max, unread, waiting: false, without_http2 }
    }

    /// Whether a connection that turns out to be HTTP/2 is given up.
    pub(crate) fn without_http2(self, without_http2: bool) -> Patient<T> {
        Patient { without_http2, ..self }
    }

    /// Gives heads of HTTP/1 so much time from their first byte.
    pub(crate) fn with_heads(self, activity: Arc<Activity>, time: Duration) -> Patient<T> {
        let heads = Some(Heads { activity, time, timer: None, begun: None });
        Patient { heads, ..self }
    }

    fn opened(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(opening) = &mut self.opening else { return Ok(()) };
        for byte in bytes {
            if PREFACE.get(opening.alike) != Some(byte) {
                self.opening = None;
                return Ok(());
            }
            opening.alike += 1;
            if opening.alike == PREFACE.len() {
                self.opening = None;
                self.heads = None;
                let what = "HTTP/2 is not spoken here";
                let unwanted = self.without_http2;
                let error = || io::Error::new(io::ErrorKind::Unsupported, what);
                return if unwanted { Err(error()) } else { Ok(()) };
            }
        }
        Ok(())
    }

    /// Passes a result of writing on, unless it has been `Pending` for too long.
    fn written<R>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.waiting = false;
            return polled;
        }
        let unread_max = self.unread_max;
        let timer = self.unread.get_or_insert_with(|| Box::pin(tokio::time::sleep(unread_max)));
        if !self.waiting {
            self.waiting = true;
            timer.as_mut().reset(Instant::now() + unread_max);
        }
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(late("the caller takes nothing of its answer"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn late(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        if let Some(opening) = &mut this.opening {
            if polled.is_ready() {
                if let Err(error) = this.opened(buf.filled().get(before..).unwrap_or_default()) {
                    return Poll::Ready(Err(error));
                }
            } else if opening.over.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(late("nothing that tells a protocol came")));
            }
        }
        if let Some(heads) = &mut this.heads {
            let bytes = buf.filled().len() - before;
            if let Err(error) = heads.look(bytes, polled.is_pending(), cx) {
                return Poll::Ready(Err(error));
            }
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.written(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.io).poll_write_vectored(cx, pieces);
        this.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const OPENING: Duration = Duration::from_secs(10);

    fn patient(room: usize) -> (Patient<DuplexStream>, DuplexStream) {
        let (ours, callers) = duplex(room);
        (Patient::new(ours, OPENING, UNREAD_MAX), callers)
    }

    async fn kind_after_all_was_read(patient: &mut Patient<DuplexStream>) -> io::ErrorKind {
        let mut bytes = [0; 64];
        loop {
            match patient.read(&mut bytes).await {
                Ok(0) => return io::ErrorKind::UnexpectedEof,
                Ok(_) => {}
                Err(error) => return error.kind(),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_names_no_protocol_is_given_up() {
        for first in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n"] {
            let (mut patient, mut caller) = patient(1_024);
            let began = Instant::now();
            caller.write_all(first).await.unwrap();
            assert_eq!(kind_after_all_was_read(&mut patient).await, io::ErrorKind::TimedOut);
            assert_eq!(began.elapsed().as_secs(), OPENING.as_secs(), "{first:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_named_its_protocol_is_the_engines_business() {
        for first in [&b"G"[..], b"POST", b"PRX", PREFACE] {
            let (mut patient, mut caller) = patient(1_024);
            for byte in first {
                caller.write_all(&[*byte]).await.unwrap();
                patient.read_u8().await.unwrap();
            }
            let waited = tokio::time::timeout(OPENING * 100, patient.read_u8()).await;
            assert!(waited.is_err(), "{first:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_from_its_first_byte() {
        const HEAD: Duration = Duration::from_secs(7);
        let (ours, mut caller) = duplex(64);
        let patient = Patient::with_protocol(ours, UNREAD_MAX);
        let mut patient = patient.with_heads(Arc::default(), HEAD);
        let waited = tokio::time::timeout(HEAD * 100, patient.read_u8()).await;
        assert!(waited.is_err(), "idleness is not counted here");
        caller.write_all(b"GET").await.unwrap();
        let began = Instant::now();
        let slow = daemon::tasks::spawn("slow caller", async move {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                caller.write_all(b"x").await.unwrap();
            }
            caller
        });
        assert_eq!(kind_after_all_was_read(&mut patient).await, io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), HEAD, "more bytes do not prolong it");
        drop(slow.await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (mut patient, mut caller) = patient(8);
        let slow = daemon::tasks::spawn("slow caller", async move {
            for _ in 0..4 {
                tokio::time::sleep(UNREAD_MAX - Duration::from_secs(1)).await;
                caller.read_exact(&mut [0; 8]).await.unwrap();
            }
            caller // stays open and is read no more
        });
        let began = Instant::now();
        let error = patient.write_all(&[7; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), UNREAD_MAX * 5 - Duration::from_secs(4));
        drop(slow.await);
    }
}
