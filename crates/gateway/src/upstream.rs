//! Room ⑥: forwards a request to an endpoint of its upstream.
//!
//! Endpoints and their health are shared by all workers; connections belong to one. What was sent
//! is never sent again: only a connection that could not be made, or that had closed before
//! anything was written, lets a request try once more. Redirects are the caller's business.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use edge::limiter::Clock;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use http_body::Body;

use self::connections::{ConnectError, Connections, Lease, SendError};
use self::health::{Health, Met, may_eject};
use crate::body::{Download, Incoming, ReplyBody, Upload, UploadEnd, UploadWatch};
use crate::config::UpstreamConfig;
use crate::headers::is_chunked_or_nothing;
use crate::metrics::UpstreamMetrics;

pub(crate) mod balance; // which endpoint
pub mod health; // which endpoints are used at all
pub(crate) mod connections; // a worker's own connections
pub(crate) mod watch; // names resolved, endpoints probed, in the background

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Where it is.
    pub address: SocketAddr,
    /// The same, for request targets.
    authority: Authority,
    /// How it does.
    pub health: Health,
}

impl Endpoint {
    fn new(address: SocketAddr) -> Endpoint {
        let authority = Authority::try_from(address.to_string().as_str())
            .expect("a printed socket address is an authority");
        Endpoint { address, authority, health: Health::default() }
    }
}

/// An upstream as all workers share it.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// As configured.
    pub config: UpstreamConfig,
    /// What it counts.
    pub metrics: UpstreamMetrics,
    endpoints: RwLock<Arc<[Arc<Endpoint>]>>,
    clock: Arc<dyn Clock>,
}

impl Upstream {
    /// One whose names are not resolved yet.
    pub(crate) fn new(
        config: UpstreamConfig,
        metrics: UpstreamMetrics,
        clock: Arc<dyn Clock>,
    ) -> Upstream {
        Upstream { config, metrics, endpoints: RwLock::new(Arc::new([])), clock }
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

    /// Updates the gauge of usable endpoints.
    pub(crate) fn count_healthy(&self) {
        let now = self.now_us();
        let usable = self.endpoints().iter().filter(|e| e.health.load(now).usable).count();
        self.metrics.healthy.set(i64::try_from(usable).unwrap_or(i64::MAX));
    }
}

/// What a service is sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
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
}

/// A service's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status, headers and body; the headers are still the service's own.
    pub response: http::Response<ReplyBody>,
    /// Which endpoint gave it.
    pub instance: SocketAddr,
    /// Counts a connection that leaves HTTP among the endpoint's requests, as long as it lives.
    pub switched: Option<InFlight>,
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

/// Counts a request out when it has ended, however it ends.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Endpoint>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.health.end();
    }
}

/// A worker's way to one upstream.
#[derive(Debug)]
pub(crate) struct Way {
    /// What all workers share.
    pub upstream: Arc<Upstream>,
    connections: Arc<Connections>,
}

impl Way {
    /// With connections of its own.
    pub(crate) fn new(upstream: Arc<Upstream>) -> Way {
        let config = &upstream.config;
        let connections = Connections::new(config.http2, config.connect_timeout, config.keep_idle);
        Way { upstream, connections: Arc::new(connections) }
    }

    /// Closes connections that are no longer of use.
    pub(crate) fn sweep(&self) {
        let endpoints = self.upstream.endpoints();
        self.connections.sweep(|address| endpoints.iter().any(|e| e.address == address));
    }

    /// Sends the request and waits for the head of the response.
    pub(crate) async fn forward(&self, outgoing: Outgoing) -> Result<Answer, NotAnswered> {
        let (upload, mut watch) = Upload::new(outgoing.body, outgoing.body_bound);
        let mut request = Request::new(upload);
        *request.method_mut() = outgoing.method;
        *request.headers_mut() = outgoing.headers;
        let (endpoint, out, lease) = match self.reach().await {
            Ok(reached) => reached,
            Err(reason) => {
                return Err(NotAnswered { reason, unread: request.into_body().unread() });
            }
        };
        let sent = self.exchange(request, &outgoing.target, &endpoint, lease, &mut watch).await;
        match sent {
            Ok((response, mut lease)) => {
                if watch.is_some_and(|mut watch| watch.has_ended() != Some(UploadEnd::Complete)) {
                    lease.close_after(); // the service answered before it had the whole body
                }
                Ok(self.answer(response, lease, out))
            }
            Err(reason) => Err(NotAnswered { reason, unread: None }),
        }
    }

    /// A connection to an endpoint; to another one if the first cannot be reached.
    async fn reach(&self) -> Result<(Arc<Endpoint>, InFlight, Lease), Failed> {
        let endpoints = self.upstream.endpoints();
        let mut tried = None;
        loop {
            let (index, endpoint) = self.choose(&endpoints, tried)?;
            if !endpoint.health.begin(self.upstream.config.max_connections) {
                self.upstream.metrics.overloaded.inc();
                return Err(Failed::Overloaded);
            }
            let out = InFlight(Arc::clone(endpoint));
            match self.connection(endpoint).await {
                Ok(lease) => return Ok((Arc::clone(endpoint), out, lease)),
                Err(error) => {
                    self.upstream.metrics.connect.inc();
                    self.upstream.met(endpoint, Met::Failure);
                    tracing::debug!(upstream = %self.upstream.config.name, %error, "not connected");
                    if tried.replace(index).is_some() || endpoints.len() < 2 {
                        return Err(Failed::Unreachable);
                    }
                }
            }
        }
    }

    fn choose<'a>(
        &self,
        endpoints: &'a [Arc<Endpoint>],
        tried: Option<usize>,
    ) -> Result<(usize, &'a Arc<Endpoint>), Failed> {
        let now = self.upstream.now_us();
        let loads = endpoints.iter().map(|endpoint| endpoint.health.load(now));
        let choice = balance::choose(loads, tried, |n| fastrand::usize(..n));
        let none = if tried.is_some() { Failed::Unreachable } else { Failed::NoEndpoint };
        let choice = choice.ok_or(none)?;
        if choice.panic {
            self.upstream.metrics.panic.inc();
        }
        let endpoint = endpoints.get(choice.index).ok_or(Failed::NoEndpoint)?;
        Ok((choice.index, endpoint))
    }

    async fn connection(&self, endpoint: &Arc<Endpoint>) -> Result<Lease, ConnectError> {
        match self.connections.kept(endpoint).await {
            Some(lease) => Ok(lease),
            None => self.connections.connect(endpoint).await,
        }
    }

    /// Sends over `lease`; if that turns out to be closed with nothing written, once over a new
    /// connection.
    async fn exchange(
        &self,
        mut request: Request<Upload>,
        target: &PathAndQuery,
        endpoint: &Arc<Endpoint>,
        mut lease: Lease,
        watch: &mut Option<UploadWatch>,
    ) -> Result<(http::Response<Incoming>, Lease), Failed> {
        let mut fresh = false;
        loop {
            address_to(&mut request, target, endpoint, lease.is_http2());
            let failed = match self.head(&mut lease, request, watch).await {
                Ok(response) => {
                    let met = match response.status() {
                        StatusCode::BAD_GATEWAY
                        | StatusCode::SERVICE_UNAVAILABLE
                        | StatusCode::GATEWAY_TIMEOUT => Met::Failure,
                        _ => Met::Answer,
                    };
                    self.upstream.met(endpoint, met);
                    return Ok((response, lease));
                }
                Err(HeadError::Unsent(again)) if !fresh => {
                    fresh = true;
                    request = *again;
                    match self.connections.connect(endpoint).await {
                        Ok(new) => {
                            lease = new;
                            continue;
                        }
                        Err(error) => {
                            tracing::debug!(%error, "not connected again");
                            self.upstream.metrics.connect.inc();
                            Failed::Unreachable
                        }
                    }
                }
                Err(HeadError::Unsent(_)) => {
                    self.upstream.metrics.broken.inc();
                    Failed::Unreachable
                }
                Err(HeadError::Failed(failed)) => failed,
            };
            match failed {
                Failed::Unreachable | Failed::Timeout => {
                    self.upstream.met(endpoint, Met::Failure);
                }
                Failed::NoEndpoint
                | Failed::Overloaded
                | Failed::CallerStalled
                | Failed::CallerGone
                | Failed::BodyTooLarge => {}
            }
            return Err(failed);
        }
    }

    /// Waits for the response head: as long as the body moves, and `head_timeout` after its end.
    async fn head(
        &self,
        lease: &mut Lease,
        request: Request<Upload>,
        watch: &mut Option<UploadWatch>,
    ) -> Result<http::Response<Incoming>, HeadError> {
        let mut sending = std::pin::pin!(lease.send(request));
        if let Some(watch) = watch.as_mut() {
            tokio::select! {
                biased;
                sent = &mut sending => return self.sent(sent, Some(watch)),
                stopped = uploaded(watch, self.upstream.config.idle_timeout) => match stopped {
                    Ok(()) => {}
                    Err(failed) => return Err(HeadError::Failed(failed)),
                },
            }
        }
        match tokio::time::timeout(self.upstream.config.head_timeout, sending).await {
            Ok(sent) => self.sent(sent, watch.as_mut()),
            Err(_elapsed) => {
                self.upstream.metrics.timeout.inc();
                Err(HeadError::Failed(Failed::Timeout))
            }
        }
    }

    fn sent(
        &self,
        sent: Result<http::Response<Incoming>, SendError>,
        watch: Option<&mut UploadWatch>,
    ) -> Result<http::Response<Incoming>, HeadError> {
        match sent {
            Ok(response) if is_whole(&response) => Ok(response),
            Ok(response) => {
                self.upstream.metrics.broken.inc();
                let (upstream, status) = (&self.upstream.config.name, response.status());
                tracing::debug!(%upstream, %status, "a response with two readings");
                Err(HeadError::Failed(Failed::Unreachable))
            }
            Err(SendError::Unsent(request)) => Err(HeadError::Unsent(request)),
            Err(SendError::Broken(error)) => {
                let failed = match watch.and_then(UploadWatch::has_ended) {
                    Some(UploadEnd::TooLarge) => Failed::BodyTooLarge,
                    Some(UploadEnd::Broken) => Failed::CallerGone,
                    Some(UploadEnd::Complete) | None => {
                        self.upstream.metrics.broken.inc();
                        tracing::debug!(upstream = %self.upstream.config.name, %error, "no response");
                        Failed::Unreachable
                    }
                };
                Err(HeadError::Failed(failed))
            }
        }
    }

    fn answer(&self, response: http::Response<Incoming>, lease: Lease, out: InFlight) -> Answer {
        let instance = out.0.address;
        let idle = self.upstream.config.idle_timeout;
        if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
            let response = response.map(|_none| ReplyBody::Empty);
            return Answer { response, instance, switched: Some(out) };
        }
        let response = response.map(|body| {
            if body.is_end_stream() {
                lease.give_back();
                ReplyBody::Empty
            } else {
                ReplyBody::Service(Download::new(body, idle, lease, out))
            }
        });
        Answer { response, instance, switched: None }
    }
}

enum HeadError {
    /// Nothing was written.
    Unsent(Box<Request<Upload>>),
    /// It ended.
    Failed(Failed),
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

/// Waits for the end of the upload, as long as it moves.
async fn uploaded(watch: &mut UploadWatch, idle: Duration) -> Result<(), Failed> {
    let mut pieces = watch.pieces();
    loop {
        match tokio::time::timeout(idle, watch.end()).await {
            // Abandoned: the service answered early or is gone; the response will tell.
            Ok(Some(UploadEnd::Complete) | None) => return Ok(()),
            Ok(Some(UploadEnd::Broken)) => return Err(Failed::CallerGone),
            Ok(Some(UploadEnd::TooLarge)) => return Err(Failed::BodyTooLarge),
            Err(_elapsed) => {
                let now = watch.pieces();
                if now == pieces {
                    let caller = watch.caller_owes();
                    return Err(if caller { Failed::CallerStalled } else { Failed::Timeout });
                }
                pieces = now;
            }
        }
    }
}

/// HTTP/1.1 takes the path, and the host from the caller's `Host`; HTTP/2 takes a whole address.
fn address_to(
    request: &mut Request<Upload>,
    target: &PathAndQuery,
    endpoint: &Endpoint,
    http2: bool,
) {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(target.clone());
    if http2 {
        let host = request.headers_mut().remove(HOST);
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(host.unwrap_or_else(|| endpoint.authority.clone()));
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = if http2 { Version::HTTP_2 } else { Version::HTTP_11 };
}
