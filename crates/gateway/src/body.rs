//! The two body streams of the seam between pipeline and HTTP engine: up to a service, down to the
//! caller. Pieces pass one by one, so back-pressure passes too; nothing is collected or boxed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
/// A body as the engine hands it over.
pub(crate) use hyper::body::Incoming;
use tokio::sync::oneshot;

pub(crate) use self::download::Download;
use crate::access_log::{Note, Noted};
use crate::headers::clean_trailers;
use crate::linger;

mod download; // a service's body

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The connection that it came from failed.
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
    /// It is longer than the bound.
    #[error("the body is longer than {0} bytes")]
    TooLarge(u64),
    /// No piece came in time.
    #[error("no piece of the body came within {0:?}")]
    Stalled(Duration),
    /// The time for the whole exchange is over.
    #[error("the body did not end in time")]
    Late,
}

/// How a request body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadEnd {
    /// All of it was handed on.
    Complete,
    /// The caller broke it off.
    Broken,
    /// Its framing cannot be read.
    Unframed,
    /// It exceeded the bound.
    TooLarge,
}

/// Watches a request body from outside. Dropped, it leaves what is left of the body to [`linger`].
#[derive(Debug)]
pub(crate) struct UploadWatch {
    end: Option<oneshot::Receiver<Ended>>,
    ended: Option<UploadEnd>,
    rest: Option<Incoming>,
    progress: Arc<Progress>,
}

/// The end of a request body.
#[derive(Debug)]
struct Ended {
    /// None: it was abandoned unfinished.
    how: Option<UploadEnd>,
    /// What the caller may still be sending.
    rest: Option<Incoming>,
}

#[derive(Debug, Default)]
struct Progress {
    pieces: AtomicU64,
    caller_owes: AtomicBool,
}

impl UploadWatch {
    /// Waits for the end; `None` if the body was abandoned unfinished.
    pub(crate) async fn end(&mut self) -> Option<UploadEnd> {
        if let Some(end) = &mut self.end {
            let ended = end.await.ok();
            self.hear(ended);
        }
        self.ended
    }

    /// How it ended, if it has.
    pub(crate) fn has_ended(&mut self) -> Option<UploadEnd> {
        if let Some(Ok(ended)) = self.end.as_mut().map(oneshot::Receiver::try_recv) {
            self.hear(Some(ended));
        }
        self.ended
    }

    fn hear(&mut self, ended: Option<Ended>) {
        self.end = None;
        if let Some(Ended { how, rest }) = ended {
            (self.ended, self.rest) = (how, rest);
        }
    }

    /// Pieces so far: no change for long means that somebody stopped.
    pub(crate) fn pieces(&self) -> u64 {
        self.progress.pieces.load(Ordering::Relaxed)
    }

    /// Whether it is the caller who sends nothing, not the service that reads nothing.
    pub(crate) fn caller_owes(&self) -> bool {
        self.progress.caller_owes.load(Ordering::Relaxed)
    }
}

impl Drop for UploadWatch {
    fn drop(&mut self) {
        match (self.rest.take(), self.end.take()) {
            (Some(rest), _) => linger::after_answer(std::future::ready(Some(rest))),
            (None, Some(end)) => linger::after_answer(async { end.await.ok()?.rest }),
            (None, None) => {}
        }
    }
}

/// A request body on its way to a service.
#[derive(Debug)]
pub(crate) enum Upload {
    /// None.
    Empty,
    /// As it comes.
    Stream(Stream),
}

/// A body that is watched and bounded.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Until it has exceeded its bound.
    body: Option<Incoming>,
    bound: Option<u64>,
    seen: u64,
    progress: Arc<Progress>,
    end: Option<oneshot::Sender<Ended>>,
    /// Present only where answers are logged.
    note: Option<Arc<Note>>,
}

impl Upload {
    /// A body that may have `bound` bytes. Without a body there is nothing to watch.
    pub(crate) fn new(
        body: Incoming,
        bound: Option<u64>,
        note: Option<Arc<Note>>,
    ) -> (Upload, Option<UploadWatch>) {
        if body.is_end_stream() {
            return (Upload::Empty, None);
        }
        let (sender, end) = oneshot::channel();
        let progress = Arc::new(Progress::default());
        let (end, own) = (Some(end), Arc::clone(&progress));
        let watch = UploadWatch { end, ended: None, rest: None, progress: own };
        let (body, end) = (Some(body), Some(sender));
        let stream = Stream { body, bound, seen: 0, progress, end, note };
        (Upload::Stream(stream), Some(watch))
    }

    /// The body, if nothing of it was read yet.
    pub(crate) fn unread(self) -> Option<Incoming> {
        match self {
            Upload::Stream(mut stream) if stream.progress.pieces.load(Ordering::Relaxed) == 0 => {
                stream.body.take()
            }
            Upload::Stream(_) | Upload::Empty => None,
        }
    }
}

impl Stream {
    fn ended(&mut self, how: UploadEnd) {
        self.tell(Ended { how: Some(how), rest: None });
    }

    fn tell(&mut self, ended: Ended) {
        if let Some(sender) = self.end.take()
            && sender.send(ended).is_err()
        {
            tracing::trace!("nobody watches the upload any more");
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        self.progress.caller_owes.store(polled.is_pending(), Ordering::Relaxed);
        match ready!(polled) {
            None => self.ended(UploadEnd::Complete),
            Some(Err(error)) => {
                self.ended(if is_unframed(&error) {
                    UploadEnd::Unframed
                } else {
                    UploadEnd::Broken
                });
                return Poll::Ready(Some(Err(BodyError::Broken(error))));
            }
            Some(Ok(frame)) => {
                let frame = clean(frame);
                self.progress.pieces.fetch_add(1, Ordering::Relaxed);
                self.seen += frame.data_ref().map_or(0, |data| data.len() as u64);
                if let Some(bound) = self.bound.filter(|bound| *bound < self.seen) {
                    let rest = self.body.take();
                    self.tell(Ended { how: Some(UploadEnd::TooLarge), rest });
                    return Poll::Ready(Some(Err(BodyError::TooLarge(bound))));
                }
                if let (Some(note), Some(data)) = (&self.note, frame.data_ref()) {
                    note.gave(data.len());
                }
                if self.is_end_stream() {
                    self.ended(UploadEnd::Complete);
                }
                return Poll::Ready(Some(Ok(frame)));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let rest = self.body.take();
        self.tell(Ended { how: None, rest });
    }
}

/// Whether bytes came that are no body, rather than none any more.
fn is_unframed(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()).is_some_and(|cause| {
        matches!(cause.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData)
    })
}

fn clean(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        clean_trailers(trailers);
    }
    frame
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Upload::Empty => Poll::Ready(None),
            Upload::Stream(stream) => stream.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Upload::Empty => true,
            Upload::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Upload::Empty => SizeHint::with_exact(0),
            Upload::Stream(stream) => stream.body.as_ref().map(Body::size_hint).unwrap_or_default(),
        }
    }
}

/// A response body on its way to the caller.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// None (or all of it is out).
    Empty,
    /// The gateway's own words.
    Own(Bytes),
    /// A service's, as it comes.
    Service(Download),
    /// Any of them, with the note that ends when it does.
    Noted(Box<Noted>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match this {
            ReplyBody::Empty => Poll::Ready(None),
            ReplyBody::Own(bytes) => {
                let bytes = std::mem::take(bytes);
                *this = ReplyBody::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            ReplyBody::Service(download) => download.poll(cx),
            ReplyBody::Noted(noted) => noted.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Empty => true,
            ReplyBody::Own(bytes) => bytes.is_empty(),
            ReplyBody::Service(download) => download.is_end_stream(),
            ReplyBody::Noted(noted) => noted.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Empty => SizeHint::with_exact(0),
            ReplyBody::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ReplyBody::Service(download) => download.size_hint(),
            ReplyBody::Noted(noted) => noted.body.size_hint(),
        }
    }
}
