//! Room ⑥: forwards a request to an endpoint of its upstream.
//!
//! Endpoints and their health are shared by all workers; connections belong to one. What is sent
//! again, and when, stands in `retry`. Redirects are the caller's business.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use daemon::Drain;
use edge::limiter::Clock;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Uri, Version};
use http_body::Body;
use tokio::time::Instant;

use self::attempt::{Ended, Times};
use self::connections::{Connections, Lease};
use self::health::{Health, Met, may_eject};
use self::metrics::UpstreamMetrics;
use self::names::Resolve;
pub(crate) use self::place::InFlight;
use self::place::{Aim, Queue};
use self::retry::{Budget, Spare};
use self::tls::Dialer;
use crate::access_log::Note;
use crate::body::{Download, Incoming, ReplyBody, Upload, UploadEnd, UploadWatch};
use crate::config::UpstreamConfig;
use crate::headers::is_chunked_or_nothing;
use crate::route::RouteBounds;

pub(crate) mod fleet; // made, kept and ended, as configurations come and go
mod attempt; // one endpoint, once
mod place; // a place at an endpoint, or a short wait for one
pub mod balance; // which endpoint
mod hash; // the endpoint of a key
mod slow_start; // who came back begins with little
pub mod health; // which endpoints are used at all
pub mod retry; // what is sent again
pub(crate) mod connections; // a worker's own connections
pub mod tls; // how they are made
pub mod names; // from a name to addresses
pub(crate) mod own_ports; // ports that are no services
pub(crate) mod watch; // names resolved, endpoints probed, in the background
pub(crate) mod metrics; // what is counted

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Where it is.
    pub address: SocketAddr,
    /// The same, for request targets.
    authority: Authority,
    /// Its part of the requests, beside those of others.
    weight: AtomicU64,
    /// Its number for hashes: that of its address, so the same in all gateways.
    id: u64,
    /// How it does.
    pub health: Health,
    /// Who waits for room at its upstream.
    queue: Arc<Queue>,
}

impl Endpoint {
    fn new(address: SocketAddr, weight: u64, health: Health, queue: Arc<Queue>) -> Endpoint {
        let text = address.to_string();
        let authority =
            Authority::try_from(text.as_str()).expect("a printed socket address is an authority");
        let id = hash::digest(text.as_bytes());
        Endpoint { address, authority, weight: AtomicU64::new(weight), id, health, queue }
    }
}

/// An upstream as all workers share it.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// As configured.
    pub config: UpstreamConfig,
    /// What it counts.
    pub metrics: UpstreamMetrics,
    dialer: Arc<Dialer>,
    endpoints: RwLock<Arc<[Arc<Endpoint>]>>,
    /// What each configured name last resolved to.
    resolved: Mutex<Vec<Vec<SocketAddr>>>,
    names: Arc<dyn Resolve>,
    queue: Arc<Queue>,
    budget: Budget,
    /// Choices so far, if they go in turn.
    turn: AtomicU64,
    clock: Arc<dyn Clock>,
    /// It is no longer named, and nobody looks after it any more.
    ended: Drain,
}

impl Upstream {
    /// One whose names are not resolved yet.
    pub(crate) fn new(
        config: UpstreamConfig,
        metrics: UpstreamMetrics,
        names: Arc<dyn Resolve>,
        clock: Arc<dyn Clock>,
    ) -> Upstream {
        Upstream {
            dialer: Arc::new(Dialer::new(config.tls.clone())),
            resolved: Mutex::new(vec![Vec::new(); config.endpoints.len()]),
            config,
            metrics,
            endpoints: RwLock::new(Arc::new([])),
            names,
            queue: Arc::default(),
            budget: Budget::default(),
            turn: AtomicU64::new(0),
            clock,
            ended: Drain::new(),
        }
    }

    /// The endpoints in use.
    pub(crate) fn endpoints(&self) -> Arc<[Arc<Endpoint>]> {
        Arc::clone(&self.endpoints.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn now_us(&self) -> u64 {
        self.clock.now().us()
    }

    fn met(&self, endpoint: &Endpoint, met: Met) {
        let rules = &self.config.ejection;
        if endpoint.health.met(met, rules) {
            let now = self.now_us();
            let endpoints = self.endpoints();
            let ejected = endpoints.iter().filter(|other| other.health.is_ejected(now)).count();
            if may_eject(rules, ejected, endpoints.len()) {
                endpoint.health.eject(now, rules);
                self.metrics.ejections.inc();
                self.count_healthy();
                let (upstream, address) = (&self.config.name, endpoint.address);
                tracing::warn!(%upstream, %address, "endpoint set aside: its requests fail");
            }
        }
    }

    /// Updates the gauges of endpoints and of requests that wait for them.
    pub(crate) fn count_healthy(&self) {
        let (now, endpoints) = (self.now_us(), self.endpoints());
        let usable = endpoints.iter().filter(|e| e.health.is_usable(now)).count();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.healthy.set(gauge(usable));
        self.metrics.endpoints.set(gauge(endpoints.len()));
        self.metrics.waiting.set(gauge(self.queue.waiting()));
    }
}

/// What a service is sent.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// As the caller's.
    pub method: Method,
    /// Canonical, with the caller's query.
    pub target: PathAndQuery,
    /// Made fit for a service.
    pub headers: HeaderMap,
    /// As it comes.
    pub body: Incoming,
    /// Longest body.
    pub body_bound: Option<u64>,
    /// The route's own.
    pub bounds: &'a RouteBounds,
    /// Learns what becomes of it, where answers are logged.
    pub note: Option<Arc<Note>>,
}

/// A service's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status, headers and body; the headers are still the service's own.
    pub response: http::Response<ReplyBody>,
    /// Which endpoint gave it.
    pub instance: SocketAddr,
    /// Of a connection that leaves HTTP: counts it among the endpoint's requests, and is its owner.
    pub switched: Option<(InFlight, Lease)>,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// No endpoint is known: its names do not resolve.
    NoEndpoint,
    /// The endpoint has as many requests out as it may.
    Overloaded,
    /// No connection, or what came back was no response.
    Unreachable,
    /// No response head in time, or the service stopped reading.
    Timeout,
    /// The caller stopped sending its body.
    CallerStalled,
    /// The caller broke its body off.
    CallerGone,
    /// The caller's body cannot be read.
    BodyBroken,
    /// The body exceeded its bound.
    BodyTooLarge,
}

/// No answer, and the body if nobody has touched it.
#[derive(Debug)]
pub(crate) struct NotAnswered {
    /// Why.
    pub reason: Failed,
    /// What the caller may still be sending.
    pub unread: Option<Incoming>,
}

/// A worker's way to one upstream. Clones share its connections.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// What all workers share.
    pub upstream: Arc<Upstream>,
    connections: Arc<Connections>,
}

impl Way {
    /// With connections of its own.
    pub(crate) fn new(upstream: Arc<Upstream>) -> Way {
        let config = &upstream.config;
        let dialer = Arc::clone(&upstream.dialer);
        let connections =
            Connections::new(dialer, config.http2, config.connect_timeout, config.keep_idle);
        Way { upstream, connections: Arc::new(connections) }
    }

    /// Closes connections that are no longer of use.
    pub(crate) fn sweep(&self) {
        let endpoints = self.upstream.endpoints();
        self.connections.sweep(|address| endpoints.iter().any(|e| e.address == address));
    }

    /// Sends the request and waits for the head of the response.
    pub(crate) async fn forward(&self, outgoing: Outgoing<'_>) -> Result<Answer, NotAnswered> {
        let total = outgoing.bounds.total_timeout.unwrap_or(self.upstream.config.total_timeout);
        let end = total.map(|total| Instant::now() + total);
        let answered = pin!(self.answered(outgoing, end));
        match end {
            None => answered.await,
            Some(end) => tokio::time::timeout_at(end, answered).await.unwrap_or_else(|_elapsed| {
                self.upstream.metrics.timeout.inc();
                Err(NotAnswered { reason: Failed::Timeout, unread: None })
            }),
        }
    }

    /// Tries, and tries again where that is right.
    async fn answered(
        &self,
        outgoing: Outgoing<'_>,
        end: Option<Instant>,
    ) -> Result<Answer, NotAnswered> {
        let upstream = self.upstream.as_ref();
        let head = outgoing.bounds.head_timeout.unwrap_or(upstream.config.head_timeout);
        let times = Times { head, end };
        let mut aim = Aim::new(upstream, &outgoing.headers);
        let mut left = upstream.config.retry.attempts;
        if left > 0 {
            upstream.budget.request(upstream.now_us());
        }
        let note = outgoing.note;
        let (upload, mut watch) = Upload::new(outgoing.body, outgoing.body_bound, note.clone());
        let mut request = Request::new(upload);
        *request.method_mut() = outgoing.method;
        *request.headers_mut() = outgoing.headers;
        let mut failure = None;
        loop {
            let (index, out) = match upstream.place(&aim).await {
                Ok(place) => place,
                Err(reason) => return Err(not_answered(failure.unwrap_or(reason), Some(request))),
            };
            let spare = if left > 0 { Spare::of(&request) } else { None };
            let use_kept = failure.is_none();
            let attempt =
                self.attempt(request, &outgoing.target, &out.0, use_kept, &mut watch, times);
            let again = match attempt.await {
                Ok((response, mut lease)) => {
                    let whole = |watch: &mut UploadWatch| watch.has_ended();
                    if watch.as_mut().is_some_and(|w| whole(w) != Some(UploadEnd::Complete)) {
                        lease.close_after(); // the service answered before it had the whole body
                    }
                    return Ok(self.answer(response, lease, out, end));
                }
                Err(Ended::Failed(reason)) => return Err(not_answered(reason, None)),
                Err(Ended::Unconnected(request)) => {
                    aim.leave(index, false);
                    Some(*request)
                }
                Err(Ended::Unsent(request)) => {
                    aim.leave(index, true);
                    Some(*request)
                }
                Err(Ended::Cut { .. }) => {
                    aim.leave(index, true);
                    spare.map(Spare::request)
                }
            };
            let may = again.is_some() && aim.has_another() && self.may_retry(&mut left);
            match again {
                Some(whole) if may => {
                    (request, failure) = (whole, Some(Failed::Unreachable));
                    if let Some(note) = &note {
                        note.is_sent_again();
                    }
                }
                again => return Err(not_answered(Failed::Unreachable, again)),
            }
        }
    }

    /// Takes one of the attempts that are left, if the budget has one too.
    fn may_retry(&self, left: &mut u32) -> bool {
        let Some(less) = left.checked_sub(1) else { return false };
        *left = less;
        let upstream = self.upstream.as_ref();
        let granted = upstream.budget.take(upstream.now_us(), &upstream.config.retry);
        let count = if granted { &upstream.metrics.retries } else { &upstream.metrics.unretried };
        count.inc();
        granted
    }

    fn answer(
        &self,
        response: http::Response<Incoming>,
        lease: Lease,
        out: InFlight,
        end: Option<Instant>,
    ) -> Answer {
        let instance = out.0.address;
        let idle = self.upstream.config.idle_timeout;
        if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
            let response = response.map(|_none| ReplyBody::Empty);
            return Answer { response, instance, switched: Some((out, lease)) };
        }
        let response = response.map(|body| {
            if body.is_end_stream() {
                lease.give_back();
                ReplyBody::Empty
            } else {
                ReplyBody::Service(Download::new(body, idle, end, lease, out))
            }
        });
        Answer { response, instance, switched: None }
    }
}

fn not_answered(reason: Failed, request: Option<Request<Upload>>) -> NotAnswered {
    NotAnswered { reason, unread: request.and_then(|request| request.into_body().unread()) }
}

/// Whether a response can be passed on: final (or the end of HTTP on its connection, of which the
/// pipeline knows whether anybody asked for it), and with one length. The connection it came from
/// is in doubt otherwise.
fn is_whole(response: &http::Response<Incoming>) -> bool {
    let headers = response.headers();
    let two_lengths =
        headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH);
    let interim = response.status().is_informational()
        && response.status() != http::StatusCode::SWITCHING_PROTOCOLS;
    !interim && !two_lengths && is_chunked_or_nothing(headers)
}

/// HTTP/1.1 takes the path, and the host from the caller's `Host`; HTTP/2 takes a whole address.
fn address_to(
    request: &mut Request<Upload>,
    target: &PathAndQuery,
    endpoint: &Endpoint,
    scheme: Option<Scheme>,
) {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(target.clone());
    let http2 = scheme.is_some();
    if http2 {
        let host = request.headers_mut().remove(HOST);
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        // Sent again, it has its host there already.
        let host = host.or_else(|| request.uri().authority().cloned());
        parts.scheme = scheme;
        parts.authority = Some(host.unwrap_or_else(|| endpoint.authority.clone()));
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = if http2 { Version::HTTP_2 } else { Version::HTTP_11 };
}
