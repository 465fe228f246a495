//! One line for each answer, for those who ask for it.
//!
//! A note goes along with a request and learns what becomes of it; it ends with the answer's body,
//! also if the caller is gone by then. It is put into words on a thread of its own, behind a queue
//! with a bound: a reader that does not read costs lines, which are counted, and never a request.
//! A key is in no line, and neither is a query unless it is asked for.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use edge::limiter::{Basis, Clock, Timestamp};
use edge::{Admission, RouteTerms, Ticket};
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body::{Body as _, Frame};

use crate::body::{BodyError, ReplyBody};
use crate::config::AccessLogRules;
use crate::headers::only;

mod line; // a note in words
mod metrics; // lines that are lost
mod writer; // the thread, and where its lines go

pub(crate) use metrics::AccessLogMetrics;
pub(crate) use writer::Ended;

/// Notes that wait to be written; beyond it they are lost, and counted.
const QUEUED_MAX: usize = 8_192;
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Where notes go.
#[derive(Debug)]
pub(crate) struct AccessLog {
    rules: AccessLogRules,
    queue: SyncSender<Finished>,
    clock: Arc<dyn Clock>,
    metrics: AccessLogMetrics,
}

/// A note to which nothing is added any more.
#[derive(Debug)]
struct Finished {
    note: Arc<Note>,
    took: Duration,
    bytes_out: u64,
    end: End,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All of it was handed on.
    Whole,
    /// The service broke it off, or took too long.
    Broken,
    /// Nobody wanted the rest.
    CallerGone,
}

/// What the limiter said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    Admitted,
    Denied,
    AdmittedByPolicy,
    DeniedByPolicy,
}

/// What is known of a request.
pub(crate) struct Note {
    log: Arc<AccessLog>,
    came: Timestamp,
    id: HeaderValue,
    method: &'static str,
    target: Option<PathAndQuery>,
    trace: Option<[u8; 32]>,
    bytes_in: AtomicU64,
    retries: AtomicU32,
    learnt: Mutex<Learnt>,
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Note").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Learnt {
    route: Option<Arc<RouteTerms>>,
    path: Option<String>,
    client: Option<String>,
    decided: Option<Decided>,
    code: Option<&'static str>,
    forwarded: Option<Timestamp>,
    answered: Option<(SocketAddr, Duration)>,
    status: Option<u16>,
}

impl AccessLog {
    /// Begins a note about a request that has just come.
    pub(crate) fn begin<B>(self: &Arc<AccessLog>, id: &HeaderValue, request: &Request<B>) -> Tail {
        let note = Note {
            came: self.clock.now(),
            log: Arc::clone(self),
            id: id.clone(),
            method: usual(request.method()),
            target: request.uri().path_and_query().cloned(),
            trace: trace_id(request.headers()),
            bytes_in: AtomicU64::new(0),
            retries: AtomicU32::new(0),
            learnt: Mutex::default(),
        };
        Tail { note: Arc::new(note), bytes_out: 0, end: End::CallerGone }
    }

    fn takes(&self, status: Option<u16>, refused: bool, end: End) -> bool {
        let failed = refused || end != End::Whole || status.is_none_or(|status| 500 <= status);
        let share = if failed { self.rules.sample_errors } else { self.rules.sample };
        share.takes(|most| fastrand::u32(..most))
    }
}

impl Note {
    fn learnt(&self) -> std::sync::MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it goes; `path` is the canonical one.
    pub(crate) fn takes_route(&self, route: &Arc<RouteTerms>, path: &str) {
        let mut learnt = self.learnt();
        learnt.route = Some(Arc::clone(route));
        if self.target.as_ref().is_some_and(|target| target.path() != path) {
            learnt.path = Some(path.to_owned());
        }
    }

    /// Whose it is, and what the limiter says.
    pub(crate) fn is_admitted(&self, admission: &Admission) {
        let (Admission::Forward(ticket) | Admission::Refuse(_, Some(ticket))) = admission else {
            return;
        };
        let mut learnt = self.learnt();
        learnt.client = ticket.client().map(str::to_owned);
        learnt.decided = decided(ticket);
    }

    /// It goes to its service now.
    pub(crate) fn is_forwarded(&self) {
        self.learnt().forwarded = Some(self.log.clock.now());
    }

    /// It is sent once more.
    pub(crate) fn is_sent_again(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// So much more of its body went to the service.
    pub(crate) fn gave(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// An endpoint has begun to answer.
    pub(crate) fn is_answered(&self, endpoint: SocketAddr) {
        let mut learnt = self.learnt();
        let since = learnt.forwarded.unwrap_or(self.came);
        learnt.answered = Some((endpoint, self.log.clock.now().since(since)));
    }

    /// The gateway refuses it, or answers in the service's place.
    pub(crate) fn is_refused(&self, code: &'static str) {
        let mut learnt = self.learnt();
        (learnt.code, learnt.answered) = (Some(code), None);
    }
}

fn decided(ticket: &Ticket) -> Option<Decided> {
    let decision = ticket.decision()?;
    Some(match (decision.basis, decision.is_allowed()) {
        (Basis::Store | Basis::Lease, true) => Decided::Admitted,
        (Basis::Store | Basis::Lease, false) => Decided::Denied,
        (Basis::Degraded(_), true) => Decided::AdmittedByPolicy,
        (Basis::Degraded(_), false) => Decided::DeniedByPolicy,
    })
}

/// The end of a note: whoever drops it, drops it for good, and its line is written.
#[derive(Debug)]
pub(crate) struct Tail {
    note: Arc<Note>,
    bytes_out: u64,
    end: End,
}

impl Tail {
    /// What may still be learnt.
    pub(crate) fn note(&self) -> &Arc<Note> {
        &self.note
    }

    /// Goes along with the answer, to the end of its body.
    pub(crate) fn follow(mut self, response: Response<ReplyBody>) -> Response<ReplyBody> {
        self.note.learnt().status = Some(response.status().as_u16());
        if response.body().is_end_stream() {
            self.end = End::Whole;
            return response;
        }
        response.map(|body| ReplyBody::Noted(Box::new(Noted { body, tail: self })))
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let log = &self.note.log;
        let (status, refused) = {
            let learnt = self.note.learnt();
            (learnt.status, learnt.code.is_some())
        };
        if !log.takes(status, refused, self.end) {
            return;
        }
        let note = Arc::clone(&self.note);
        let took = log.clock.now().since(note.came);
        let finished = Finished { note, took, bytes_out: self.bytes_out, end: self.end };
        match log.queue.try_send(finished) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                log.metrics.lost.inc();
            }
        }
    }
}

/// An answer's body with the note about it.
#[derive(Debug)]
pub(crate) struct Noted {
    /// As it is without.
    pub body: ReplyBody,
    tail: Tail,
}

impl Noted {
    /// The next piece, counted.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(piece) = &polled {
            match piece {
                Some(Ok(frame)) => {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    self.tail.bytes_out += bytes as u64;
                    // After the last byte of a length that it knows the engine asks no more.
                    if self.body.is_end_stream() {
                        self.tail.end = End::Whole;
                    }
                }
                Some(Err(_)) => self.tail.end = End::Broken,
                None if self.tail.end == End::CallerGone => self.tail.end = End::Whole,
                None => {}
            }
        }
        polled
    }
}

/// A method as it is logged: callers choose among these words and no others.
fn usual(method: &Method) -> &'static str {
    const USUAL: [&str; 9] =
        ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"];
    USUAL.into_iter().find(|usual| *usual == method.as_str()).unwrap_or("other")
}

/// The id of the W3C's trace context, if there is exactly one that is well formed.
fn trace_id(headers: &HeaderMap) -> Option<[u8; 32]> {
    let mut parts = only(headers, &TRACE_PARENT)?.as_bytes().split(|byte| *byte == b'-');
    let (version, id, parent) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &[u8]| text.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let nothing = id.iter().all(|byte| *byte == b'0');
    let well = version.len() == 2 && parent.len() == 16 && hex(version) && hex(parent) && hex(id);
    id.try_into().ok().filter(|_| well && !nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_trace_is_named() {
        let id = "0af7651916cd43dd8448eb211c80319c";
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRACE_PARENT, value.parse().unwrap());
            }
            trace_id(&headers).map(|id| String::from_utf8(id.to_vec()).unwrap())
        };
        let good = format!("00-{id}-b7ad6b7169203331-01");
        assert_eq!(of(&[&good]).as_deref(), Some(id));
        assert_eq!(of(&[&format!("cc-{id}-b7ad6b7169203331-01-more")]).as_deref(), Some(id));
        for bad in [
            String::new(),
            id.to_owned(),
            good.to_uppercase(),
            good.replace("0af", "0ag"),
            good.replace("0af", "0a"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
        ] {
            assert_eq!(of(&[&bad]), None, "{bad}");
        }
        assert_eq!(of(&[&good, &good]), None, "two of them");
    }

    #[test]
    fn methods_are_a_closed_set() {
        assert_eq!(usual(&Method::PATCH), "PATCH");
        assert_eq!(usual(&Method::from_bytes(b"PURGE").unwrap()), "other");
    }
}
