//! One replica of orders, billing or search: its own bucket per client (the old world), the safety
//! limit (the new one), work that takes time, and a log of every arrival by its unique id.
//!
//! Any path is work, except `/healthz` and the replica's own `/-/…`. It believes the gateway's
//! identity headers and keeps nothing on disk.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Query, Request, State};
use axum::http::header::{HeaderName, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router, serve::ListenerExt};
use limiter_core::{Clock, Limits, SystemClock, Timestamp};
use parking_lot::Mutex;
use safety_limit::{
    CLIENT_HEADER, CoarseAnswer, CoarseBucket, CoarseLimit, Counts, DECISION_HEADER, PLAN_HEADER,
    SafetyLimit, SafetyLimits, ServiceDecision, Side,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The three services.
pub const SERVICES: [&str; 3] = ["orders", "billing", "search"];
/// A caller's unique id of a request; it stands in the arrival log.
pub const ID_HEADER: &str = "x-demo-id";
/// The marker of a replica's own refusals.
pub const LIMITED_BY_HEADER: &str = "x-limited-by";
/// Most arrivals that are kept; more are counted as lost.
pub const ARRIVALS_MAX: usize = 2_000_000;
/// Most requests that wait for their turn.
const WAITING_MAX: u64 = 10_000;
const DECISION_NAME: HeaderName = HeaderName::from_static(DECISION_HEADER);

/// How a replica behaves; may be changed while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    /// Its own bucket per client refuses.
    pub own_limit: bool,
    /// The safety limit refuses.
    pub safety_limit: bool,
    /// It tells its decisions in a header.
    pub decision_header: bool,
    /// Shortest and longest service time, in microseconds.
    pub service_us: [u64; 2],
    /// Requests served at once; more wait.
    pub concurrency: usize,
}

impl Default for Mode {
    fn default() -> Mode {
        Mode {
            own_limit: true,
            safety_limit: false,
            decision_header: false,
            service_us: [20_000, 50_000],
            concurrency: 2,
        }
    }
}

/// What became of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was worked on.
    Admitted,
    /// The replica's own bucket was empty.
    RefusedByOwnLimit,
    /// The safety limit refused.
    RefusedBySafetyLimit,
    /// Too many waited.
    Overloaded,
}

impl Verdict {
    const ALL: [(Verdict, &'static str); 4] = [
        (Verdict::Admitted, "admitted"),
        (Verdict::RefusedByOwnLimit, "own-limit"),
        (Verdict::RefusedBySafetyLimit, "safety-limit"),
        (Verdict::Overloaded, "overloaded"),
    ];

    fn name(self) -> &'static str {
        Verdict::ALL.iter().find(|(verdict, _)| *verdict == self).map_or("", |(_, name)| name)
    }
}

/// One line of the arrival log: `<microseconds since 1970> <verdict> <client> <id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// When its head was read.
    pub at_us: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// The client that the gateway named, or `-`.
    pub client: String,
    /// The caller's unique id, or `-`.
    pub id: String,
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.at_us, self.verdict.name(), self.client, self.id)
    }
}

impl FromStr for Arrival {
    type Err = String;

    fn from_str(line: &str) -> Result<Arrival, String> {
        let unreadable = || format!("this is no arrival: {line}");
        let mut words = line.split(' ');
        let mut word = || words.next().ok_or_else(unreadable);
        let at_us = word()?.parse().map_err(|error| format!("{}: {error}", unreadable()))?;
        let name = word()?;
        let verdict = Verdict::ALL.iter().find(|(_, known)| *known == name);
        let verdict = verdict.ok_or_else(unreadable)?.0;
        Ok(Arrival { at_us, verdict, client: word()?.to_owned(), id: word()?.to_owned() })
    }
}

/// One replica. Clones share everything.
#[derive(Debug, Clone)]
pub struct Replica {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    service: String,
    instance: u32,
    clock: SystemClock,
    safety: SafetyLimit,
    told: Mutex<SafetyLimits>,
    plans: Mutex<HashMap<String, Limits>>,
    buckets: Mutex<HashMap<String, CoarseBucket>>,
    running: Mutex<Running>,
    waiting: AtomicU64,
    worked: AtomicU64,
    arrivals: Mutex<Vec<Arrival>>,
    lost: AtomicU64,
}

#[derive(Debug)]
struct Running {
    mode: Mode,
    turns: Arc<Semaphore>,
}

impl Replica {
    /// The `instance`-th (from 1) of `instances` replicas of `service`.
    pub fn new(service: &str, instance: u32, instances: u32, mode: Mode) -> Replica {
        let clock = SystemClock::new();
        let turns = Arc::new(Semaphore::new(mode.concurrency));
        let shared = Shared {
            service: service.to_owned(),
            instance,
            clock,
            safety: SafetyLimit::new(instances, Arc::new(clock)),
            told: Mutex::new(SafetyLimits {
                revision: 0,
                multiple: 10,
                plans: Vec::new(),
                overrides: Vec::new(),
            }),
            plans: Mutex::default(),
            buckets: Mutex::default(),
            running: Mutex::new(Running { mode, turns }),
            waiting: AtomicU64::new(0),
            worked: AtomicU64::new(0),
            arrivals: Mutex::default(),
            lost: AtomicU64::new(0),
        };
        Replica { shared: Arc::new(shared) }
    }

    /// How it behaves now.
    pub fn mode(&self) -> Mode {
        self.shared.running.lock().mode.clone()
    }

    /// Changes how it behaves.
    pub fn set_mode(&self, mode: Mode) {
        let mut running = self.shared.running.lock();
        if running.mode.concurrency != mode.concurrency {
            running.turns = Arc::new(Semaphore::new(mode.concurrency));
        }
        running.mode = mode;
        drop(running);
        self.tell_safety_limit();
    }

    /// Takes other plans, for its own buckets and for the safety limit. Mistakes are told; a plan
    /// with one keeps its last good numbers.
    pub fn set_limits(&self, limits: &SafetyLimits) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut plans = self.shared.plans.lock();
        for plan in &limits.plans {
            match plan.check() {
                Ok(_) => match numbers(plan) {
                    Some(numbers) => plans.insert(plan.name.clone(), numbers),
                    None => plans.remove(&plan.name),
                },
                Err(errors) => {
                    mistakes.extend(errors.iter().map(ToString::to_string));
                    None
                }
            };
        }
        drop(plans);
        self.shared.told.lock().clone_from(limits);
        self.tell_safety_limit();
        mistakes
    }

    fn tell_safety_limit(&self) {
        let mut limits = self.shared.told.lock().clone();
        if !self.mode().safety_limit {
            limits.plans.clear();
        }
        // Its mistakes are those that `set_limits` has told.
        drop(self.shared.safety.update(&limits));
    }

    /// Forgets every bucket: each client starts full.
    pub fn refill(&self) {
        self.shared.buckets.lock().clear();
    }

    /// The counts of the safety limit.
    pub fn safety_counts(&self) -> Counts {
        self.shared.safety.counts()
    }

    /// The arrivals from the `from`-th on, and how many were not kept.
    pub fn arrivals(&self, from: usize) -> (Vec<Arrival>, u64) {
        let kept = self.shared.arrivals.lock().get(from..).unwrap_or_default().to_vec();
        (kept, self.shared.lost.load(Ordering::Relaxed))
    }

    /// Forgets all arrivals.
    pub fn forget_arrivals(&self) {
        self.shared.arrivals.lock().clear();
    }

    /// Everything it answers.
    pub fn router(&self) -> Router {
        Router::new()
            .fallback(work)
            .layer(from_fn_with_state(self.clone(), own_limit))
            .layer(self.shared.safety.layer())
            .layer(from_fn_with_state(self.clone(), outermost))
            .merge(control())
            .with_state(self.clone())
    }

    fn decide(&self, client: &str, plan: &str, now: Timestamp) -> Option<CoarseAnswer> {
        let limits = *self.shared.plans.lock().get(plan)?;
        // One time the plan in one instance: exactly the contract, once in every replica.
        let limit = CoarseLimit::new(limits, 1, 1);
        let mut buckets = self.shared.buckets.lock();
        let bucket =
            buckets.entry(client.to_owned()).or_insert_with(|| CoarseBucket::full(limit, now));
        Some(bucket.take(limit, now))
    }

    fn note(&self, arrival: Arrival) {
        let mut arrivals = self.shared.arrivals.lock();
        if arrivals.len() < ARRIVALS_MAX {
            arrivals.push(arrival);
        } else {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The plan's numbers, unless it is unlimited or wrong.
fn numbers(plan: &safety_limit::PlanValue) -> Option<Limits> {
    let burst = plan.burst?.try_into().ok()?;
    let sustained = plan.sustained.map(TryInto::try_into).transpose().ok()?;
    Some(Limits { burst, sustained })
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, replica: Replica) -> io::Result<()> {
    // A reply is small: without this it would wait for the acknowledgement of the one before.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, replica.router()).await
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The response tells that its arrival is in the log.
#[derive(Debug, Clone, Copy)]
struct Noted;

fn noted(replica: &Replica, headers: &HeaderMap, verdict: Verdict) {
    let word = |name| header(headers, name).unwrap_or("-").replace([' ', '\n'], "_");
    let at_us = replica.shared.clock.now().us();
    replica.note(Arrival { at_us, verdict, client: word(CLIENT_HEADER), id: word(ID_HEADER) });
}

/// Outermost: what nobody inside has noted was refused by the safety limit.
async fn outermost(State(replica): State<Replica>, request: Request, next: Next) -> Response {
    let headers = request.headers().clone();
    let mut response = next.run(request).await;
    if response.extensions().get::<Noted>().is_none() {
        noted(&replica, &headers, Verdict::RefusedBySafetyLimit);
    }
    if !replica.mode().decision_header {
        response.headers_mut().remove(DECISION_HEADER);
    }
    response
}

/// The old world: a bucket of the whole plan for each client, in each replica.
async fn own_limit(State(replica): State<Replica>, request: Request, next: Next) -> Response {
    let mode = replica.mode();
    let headers = request.headers();
    let named = header(headers, CLIENT_HEADER).zip(header(headers, PLAN_HEADER));
    let Some((client, plan)) = named.filter(|_| mode.own_limit) else {
        return next.run(request).await;
    };
    let answer = replica.decide(client, plan, replica.shared.clock.now());
    let mut told = ServiceDecision {
        outcome: Side::Allow,
        remaining: Some(0),
        limit: None,
        cost: Some(1),
        client: Some(client.to_owned()),
    };
    let mut response = match answer {
        None => return next.run(request).await,
        Some(CoarseAnswer::Admitted { remaining }) => {
            told.remaining = Some(remaining);
            next.run(request).await
        }
        Some(CoarseAnswer::Refused { retry_after_s }) => {
            told.outcome = Side::Deny;
            noted(&replica, headers, Verdict::RefusedByOwnLimit);
            let wait = retry_after_s.map(|seconds| [(RETRY_AFTER, seconds.to_string())]);
            let body = "this replica's bucket for you is empty\n";
            let marker = [(LIMITED_BY_HEADER, replica.shared.service.clone())];
            let status = StatusCode::TOO_MANY_REQUESTS;
            let mut response = (status, marker, body).into_response();
            for (name, value) in wait.into_iter().flatten() {
                response.headers_mut().extend(value.parse().ok().map(|value| (name, value)));
            }
            response.extensions_mut().insert(Noted);
            response
        }
    };
    let headers = response.headers_mut();
    headers.extend(told.to_string().parse().ok().map(|value| (DECISION_NAME, value)));
    response
}

/// Waits for a turn, takes its time, answers who it was.
async fn work(State(replica): State<Replica>, request: Request) -> Response {
    let shared = &replica.shared;
    let headers = request.headers();
    let client = header(headers, CLIENT_HEADER).unwrap_or("-").to_owned();
    let path = request.uri().path().to_owned();
    let verdict = match shared.waiting.fetch_add(1, Ordering::Relaxed) {
        0..WAITING_MAX => Verdict::Admitted,
        _ => Verdict::Overloaded,
    };
    let _leaves = Waiting(&shared.waiting);
    noted(&replica, headers, verdict);
    let mut response = if verdict == Verdict::Admitted {
        let (turns, [shortest, longest]) = {
            let running = shared.running.lock();
            (running.turns.clone(), running.mode.service_us)
        };
        let turn = turns.acquire_owned().await;
        let number = shared.worked.fetch_add(1, Ordering::Relaxed);
        let spread = longest.saturating_sub(shortest).saturating_add(1);
        let time = shortest.saturating_add(mixed(number) % spread);
        if time > 0 {
            tokio::time::sleep(Duration::from_micros(time)).await;
        }
        drop(turn);
        let (service, instance) = (&shared.service, shared.instance);
        Json(json!({ "service": service, "instance": instance, "client": client, "path": path }))
            .into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "too many wait here\n").into_response()
    };
    response.extensions_mut().insert(Noted);
    response
}

struct Waiting<'a>(&'a AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Spreads a counter evenly (splitmix64): service times differ, and do so again in the next run.
const fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The replica's own paths.
fn control() -> Router<Replica> {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route(
            "/-/mode",
            put(put_mode).get(async |State(replica): State<Replica>| Json(replica.mode())),
        )
        .route("/-/limits", put(put_limits))
        .route("/-/refill", put(async |State(replica): State<Replica>| replica.refill()))
        .route("/-/counts", get(get_counts))
        .route(
            "/-/arrivals",
            get(get_arrivals)
                .delete(async |State(replica): State<Replica>| replica.forget_arrivals()),
        )
}

async fn put_mode(State(replica): State<Replica>, Json(mode): Json<Mode>) {
    replica.set_mode(mode);
}

async fn put_limits(State(replica): State<Replica>, Json(limits): Json<SafetyLimits>) -> Response {
    match replica.set_limits(&limits) {
        mistakes if mistakes.is_empty() => StatusCode::NO_CONTENT.into_response(),
        mistakes => (StatusCode::UNPROCESSABLE_ENTITY, Json(mistakes)).into_response(),
    }
}

async fn get_counts(State(replica): State<Replica>) -> Response {
    let counts = replica.safety_counts();
    Json(json!({
        "admitted": counts.admitted,
        "refused": counts.refused,
        "bypassed": counts.bypassed,
        "unknown_plan": counts.unknown_plan,
        "clients": counts.clients,
        "revision": counts.revision,
    }))
    .into_response()
}

#[derive(Deserialize)]
struct From {
    #[serde(default)]
    from: usize,
}

/// Lines of [`Arrival`]; the header `x-demo-lost` tells how many were not kept.
async fn get_arrivals(
    State(replica): State<Replica>,
    Query(From { from }): Query<From>,
) -> Response {
    let (arrivals, lost) = replica.arrivals(from);
    let mut text = String::with_capacity(arrivals.len() * 48);
    for arrival in arrivals {
        text.push_str(&arrival.to_string());
        text.push('\n');
    }
    ([("x-demo-lost", lost.to_string())], text).into_response()
}
