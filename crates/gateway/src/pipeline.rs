//! The corridor: the life of a request on one screen.
//!
//! Rooms are visited in order and do not know each other. The decision falls after the head and
//! before the body; a refused request never reaches a service. One request is charged once,
//! whatever happens to it afterwards.

use std::sync::Arc;

use edge::limiter::Clock;
use edge::limiter::store::BucketStore;
use edge::{Admission, AuthMode, Call, Edge, Observed, Presented, Refusal, Seen, Ticket};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderValue, ORIGIN};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body::Body as _;
use wire::error::ErrorCode;

use crate::access_log::{AccessLog, Note, Tail};
use crate::anonymous;
use crate::body::{Incoming, ReplyBody};
use crate::cors;
use crate::credential::{self, CredentialError};
use crate::forwarded::Heard;
use crate::grpc;
use crate::headers::{self, Identity};
use crate::linger::{self, Keep};
use crate::metrics::Metrics;
use crate::overload::Gate;
use crate::pairing;
use crate::peer::Peer;
use crate::reply::{self, Problem};
use crate::route::{self, NoRoute, Route, RouteTable};
use crate::top::Top;
use crate::upgrade::{self, Upgrades, Wish};
use crate::upstream::{Answer, Failed, NotAnswered, Outgoing, Way};

mod failed; // what a caller is told when its service did not answer
mod id; // a name of its own for each request
mod switch; // requests that end HTTP on their connection
mod understand; // one reading, or none

use self::failed::failed;
use self::understand::{ends_connection, is_announced_too_long, understand};

/// What all requests of a worker share.
#[derive(Debug)]
pub(crate) struct Pipeline<S> {
    pub(crate) edge: Arc<Edge<S>>,
    pub(crate) routes: RouteTable,
    pub(crate) ways: Vec<Way>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) body_bound: Option<u64>,
    pub(crate) head_fields: usize,
    pub(crate) x_ratelimit: bool,
    pub(crate) drain: daemon::Drain,
    pub(crate) upgrades: Upgrades,
    pub(crate) gate: Arc<Gate>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    pub(crate) top: Top,
}

/// A request as the rooms use it, apart from its body.
struct Head<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: Version,
    id: &'a HeaderValue,
    peer: &'a Peer,
    /// The page's, where any route lets other origins read.
    origin: Option<HeaderValue>,
    /// Learns what becomes of it, where answers are logged.
    note: Option<&'a Arc<Note>>,
}

impl Head<'_> {
    fn learns(&self, what: impl FnOnce(&Note)) {
        if let Some(note) = self.note {
            what(note);
        }
    }
}

impl<S: BucketStore> Pipeline<S> {
    /// Answers one request.
    pub(crate) async fn respond(
        &self,
        mut request: Request<Incoming>,
        peer: &Peer,
    ) -> Response<ReplyBody> {
        let id = id::request_id();
        let tail = self.access_log.as_ref().map(|log| log.begin(&id, &request));
        let (wish, wishes) = upgrade::asked(&mut request);
        let (parts, body) = request.into_parts();
        let Parts { method, uri, version, headers, .. } = parts;
        // Whoever waits for a word before the body must not be told to send it in vain.
        let waits = headers.contains_key(EXPECT);
        let grpc = grpc::kind(&method, &headers);
        let origin = if self.routes.has_cors() { headers.get(ORIGIN).cloned() } else { None };
        let note = tail.as_ref().map(Tail::note);
        let head = Head { method: &method, uri: &uri, version, id: &id, peer, origin, note };
        let mut response = match self.walk(&head, headers, body, wish).await {
            Ok(response) => response,
            Err(Refused { problem, unread, route }) => {
                let unclear = route.is_none() && ends_connection(problem.status());
                let by_class = route.and_then(|route| self.metrics.routes.get(route.number));
                by_class.unwrap_or(&self.metrics.unrouted).count(problem.status());
                head.learns(|note| note.is_refused(problem.code()));
                let detail = problem.detail();
                let mut response = problem.response(&method, &id);
                if let Some(kind) = grpc {
                    grpc::translate(&mut response, kind, detail);
                }
                dress(&mut response, route, &head);
                if linger::after_refusal(unread, waits) == Keep::Nothing || unclear {
                    close_after(&mut response, version);
                }
                response
            }
        };
        // After a wish that was not granted it is not sure what the bytes behind it are.
        let last = wishes || self.drain.is_started() || ends_at_the_close(&response, version);
        if last && !upgrade::is_switch(&response) {
            close_after(&mut response, version);
        }
        match tail {
            Some(tail) => tail.follow(response),
            None => response,
        }
    }

    /// The rooms in order.
    async fn walk(
        &self,
        head: &Head<'_>,
        mut headers: HeaderMap,
        body: Incoming,
        wish: Option<Wish>,
    ) -> Result<Response<ReplyBody>, Refused<'_>> {
        let arrived = self.clock.now();
        let (authority, path) = match understand(head, &mut headers, self.head_fields) {
            Ok(understood) => understood,
            Err(problem) => return Err(Refused::before_routing(problem, body)),
        };
        if let Some(answer) = self.preflight(head, &headers, &authority, &path, &body) {
            return Ok(answer);
        }
        let route = match self.route(&authority, &path, head.method, &headers) {
            Ok(route) => route,
            Err(problem) => return Err(Refused::before_routing(problem, body)),
        };
        head.learns(|note| note.takes_route(&route.terms, &path));
        // Before anybody asks whose it is, and before it costs a token.
        let _place = match self.gate.enter() {
            Ok(place) => place,
            Err(problem) => return Err(Refused::on(route, problem, body)),
        };
        let body_bound = route.bounds.body_bytes.unwrap_or(self.body_bound);
        if is_announced_too_long(&headers, body_bound) {
            return Err(Refused::on(route, failed(Failed::BodyTooLarge), body));
        }
        let presented = match presented(&headers, route.terms.auth, head.peer) {
            Ok(presented) => presented,
            Err(problem) => return Err(Refused::on(route, problem, body)),
        };
        let (request_id, method) = (head.id.to_str().unwrap_or_default(), head.method.as_str());
        let call = Call { presented, route: &route.terms, method, request_id };
        let admission = self.edge.admit(&call).await;
        self.metrics.added.observe(self.clock.now().since(arrived));
        head.learns(|note| note.is_admitted(&admission));
        self.top.see(&admission, arrived);
        let ticket = match admission {
            Admission::Forward(ticket) => ticket,
            Admission::Refuse(refusal, ticket) => {
                return Err(Refused::on(route, self.refuse(&refusal, ticket), body));
            }
        };
        let (Some(way), Some(target)) =
            (self.ways.get(route.upstream), target(route, &path, head.uri))
        else {
            return Err(self.not_answered(Failed::NoEndpoint, Some(body), route, ticket));
        };
        let upgrade = match self.upgrade(wish, way, &ticket, presented, head) {
            Ok(upgrade) => upgrade,
            Err(problem) => {
                return Err(Refused::on(route, self.withheld(problem, Some(ticket)), body));
            }
        };
        prepare(&mut headers, route, &ticket, &authority, head);
        if let Some(upgrade) = &upgrade {
            upgrade.wish.ask(&mut headers);
        }
        let (method, bounds) = (head.method.clone(), &route.bounds);
        head.learns(Note::is_forwarded);
        let note = head.note.cloned();
        let outgoing = Outgoing { method, target, headers, body, body_bound, bounds, note };
        match way.forward(outgoing).await {
            Ok(answer) => {
                self.answered(answer, upgrade, way, route, ticket, head).map_err(|refused| *refused)
            }
            Err(NotAnswered { reason, unread }) => {
                Err(self.not_answered(reason, unread, route, ticket))
            }
        }
    }

    /// What a browser asks before it sends, answered without a charge where the route that it is
    /// about lets other origins read; without a key, for browsers show none then.
    fn preflight(
        &self,
        head: &Head<'_>,
        headers: &HeaderMap,
        authority: &HeaderValue,
        path: &str,
        body: &Incoming,
    ) -> Option<Response<ReplyBody>> {
        let method = cors::asked_about(head.method, headers).filter(|_| body.is_end_stream())?;
        let route = self.route(authority, path, &method, headers).ok()?;
        let response = route.cors.as_ref()?.preflight(head.origin.as_ref(), head.id);
        if let Some(by_class) = self.metrics.routes.get(route.number) {
            by_class.count(response.status());
        }
        Some(response)
    }

    /// Room ②.
    fn route(
        &self,
        authority: &HeaderValue,
        path: &str,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<&Route, Problem> {
        let host = authority.to_str().ok().and_then(|text| route::canonical_host(text).ok());
        let Some(host) = host else {
            let detail = "the host is not a name or address with an optional port";
            return Err(Problem::new(ErrorCode::BadRequest, detail));
        };
        self.routes.find(&host, path, method, headers).map_err(|none| match none {
            NoRoute::Unknown => Problem::new(ErrorCode::RouteUnknown, "no route leads there"),
            NoRoute::Method(allowed) => Problem::method(&allowed),
            NoRoute::TwoReadings => {
                let detail =
                    "without its empty segments and parameters the path is another route's";
                Problem::new(ErrorCode::BadRequest, detail)
            }
            NoRoute::UnclearField => {
                let detail = "a field that routes go by stands there twice, as an alias or in vain";
                Problem::new(ErrorCode::BadRequest, detail)
            }
        })
    }

    /// A denial: recorded, and told with the numbers of the plan.
    fn refuse(&self, refusal: &Refusal, ticket: Option<Ticket>) -> Problem {
        let problem = Problem::of(refusal, ticket.as_ref().and_then(Ticket::told));
        self.withheld(problem, ticket)
    }

    /// What no service sees is recorded as that.
    fn withheld(&self, problem: Problem, ticket: Option<Ticket>) -> Problem {
        if let Some(ticket) = ticket {
            let status = problem.status().as_u16();
            self.edge.done(ticket, Observed { status, instance: None, service: Seen::Refused });
        }
        problem
    }

    /// A service's response, recorded and cleaned.
    fn pass_on(
        &self,
        answer: Answer,
        way: &Way,
        route: &Route,
        ticket: Ticket,
        id: &HeaderValue,
    ) -> Response<ReplyBody> {
        let Answer { mut response, instance, .. } = answer;
        let status = response.status();
        let service =
            pairing::seen(way.upstream.config.pairing.as_ref(), status, response.headers());
        let told = ticket.told();
        if ticket.client().is_some() {
            let instance = Some(instance);
            self.edge.done(ticket, Observed { status: status.as_u16(), instance, service });
        }
        headers::clean_response(response.headers_mut(), id);
        if let Some(told) = told {
            reply::set_limit_fields(response.headers_mut(), &told);
            if self.x_ratelimit {
                reply::set_x_limit_fields(response.headers_mut(), &told);
            }
        }
        if let Some(by_class) = self.metrics.routes.get(route.number) {
            by_class.count(status);
        }
        *response.version_mut() = Version::HTTP_11;
        response
    }

    /// No response from the service: recorded as such.
    fn not_answered<'a>(
        &self,
        reason: Failed,
        unread: Option<Incoming>,
        route: &'a Route,
        ticket: Ticket,
    ) -> Refused<'a> {
        let problem = failed(reason);
        let service = match reason {
            Failed::CallerGone | Failed::CallerStalled | Failed::BodyBroken => Seen::CallerGone,
            Failed::NoEndpoint
            | Failed::Overloaded
            | Failed::Unreachable
            | Failed::Timeout
            | Failed::BodyTooLarge => Seen::NoReply,
        };
        let status = problem.status().as_u16();
        self.edge.done(ticket, Observed { status, instance: None, service });
        Refused { problem, unread, route: Some(route) }
    }
}

/// An answer that the gateway gives by itself, with the body that nobody has read.
struct Refused<'a> {
    problem: Problem,
    unread: Option<Incoming>,
    route: Option<&'a Route>,
}

impl<'a> Refused<'a> {
    fn before_routing(problem: Problem, body: Incoming) -> Refused<'a> {
        Refused { problem, unread: Some(body), route: None }
    }

    fn on(route: &'a Route, problem: Problem, body: Incoming) -> Refused<'a> {
        Refused { problem, unread: Some(body), route: Some(route) }
    }
}

/// Says whose pages may read an answer, where the route has a word on it.
fn dress(response: &mut Response<ReplyBody>, route: Option<&Route>, head: &Head<'_>) {
    if let Some(cors) = route.and_then(|route| route.cors.as_ref()) {
        cors.dress(response.headers_mut(), head.origin.as_ref());
    }
}

/// Says that the connection ends; HTTP/2 has another way and no such header.
fn close_after(response: &mut Response<ReplyBody>, version: Version) {
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if version < Version::HTTP_11 {
        // To a newer version the HTTP engine would add that the connection lasts.
        *response.version_mut() = version;
    }
}

/// To a caller of HTTP/1.0, which knows no chunks, only the close ends a body of unknown length,
/// also if it asked for a connection that lasts.
fn ends_at_the_close(response: &Response<ReplyBody>, version: Version) -> bool {
    version < Version::HTTP_11
        && response.body().size_hint().exact().is_none()
        && !response.headers().contains_key(CONTENT_LENGTH)
}

fn presented<'a>(
    headers: &'a HeaderMap,
    auth: AuthMode,
    peer: &Peer,
) -> Result<Presented<'a>, Problem> {
    match auth {
        AuthMode::None => Ok(Presented::Nothing),
        AuthMode::Anonymous => Ok(Presented::Address(anonymous::address(peer, headers))),
        AuthMode::Key => match credential::presented(headers) {
            Ok(Some(key)) => Ok(Presented::Key(key)),
            Ok(None) => Ok(Presented::Nothing),
            Err(CredentialError::Ambiguous) => {
                let detail = "more than one API key was shown";
                Err(Problem::new(ErrorCode::KeyAmbiguous, detail).hint("send exactly one"))
            }
            Err(CredentialError::Malformed) => {
                let detail = "an API key is 1 to 256 visible ASCII characters";
                Err(Problem::new(ErrorCode::KeyMalformed, detail))
            }
        },
    }
}

/// The target as it is sent on: the canonical path, as the route wants it, and the query as it is.
fn target(route: &Route, path: &str, uri: &Uri) -> Option<PathAndQuery> {
    let forwarded = route.forwarded(path);
    match uri.path_and_query() {
        Some(given) if given.path() == forwarded.as_ref() => Some(given.clone()),
        Some(_) | None => {
            let text = match uri.query() {
                Some(query) => format!("{forwarded}?{query}"),
                None => forwarded.into_owned(),
            };
            PathAndQuery::try_from(text).ok()
        }
    }
}

/// Makes the headers fit for the service: what a connection owns and the key go, identity comes.
fn prepare(
    headers: &mut HeaderMap,
    route: &Route,
    ticket: &Ticket,
    authority: &HeaderValue,
    head: &Head<'_>,
) {
    let heard = Heard::of(head.peer, headers);
    headers::remove_hop_by_hop(headers);
    match route.terms.auth {
        AuthMode::Key => credential::remove(headers),
        AuthMode::Anonymous | AuthMode::None => credential::remove_ours(headers),
    }
    let identity = Identity {
        client: ticket.client(),
        plan: ticket.plan(),
        request_id: head.id,
        peer: &head.peer.forwarded,
        host: authority,
    };
    headers::set_identity(headers, &identity);
    if let Some(heard) = heard {
        heard.write(headers);
    }
    headers.insert(HOST, authority.clone());
}
