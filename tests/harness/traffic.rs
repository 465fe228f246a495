//! Callers: requests with unique ids through the gateways, in an open loop (at given moments,
//! whatever the answers do) or in a closed one, and a line about each.
//!
//! Nothing is retried here: one line is one request.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use demo::ID_HEADER;
use demo::incident::Shot;
use http::{HeaderMap, HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use limiter_core::{Clock as _, SystemClock};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// A request that takes longer is given up.
pub const GIVE_UP: Duration = Duration::from_secs(15);

/// One request and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Unique in this run; the services log it.
    pub id: String,
    /// Index of the client.
    pub client: usize,
    /// Index of the gateway.
    pub gateway: usize,
    /// Index of the service.
    pub service: usize,
    /// How much later it was sent than intended.
    pub late: Duration,
    /// When it was sent, in microseconds since 1970.
    pub sent_us: u64,
    /// From sending to the last byte of the answer.
    pub took: Duration,
    /// HTTP status; 0 if there was no whole answer.
    pub status: u16,
    /// Refused by the gateway, not by a service.
    pub by_edge: bool,
    /// The marker of a service's own refusal.
    pub by_service: bool,
    /// Any header that tells about an edge limit.
    pub limit_headers: bool,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// `RateLimit-Policy`: the plan's numbers as the gateway tells them.
    pub policy: Option<String>,
    /// The tokens left that `RateLimit` tells for the tightest bucket.
    pub remaining: Option<u64>,
    /// The problem's code.
    pub code: Option<String>,
    /// The request's id at the gateway.
    pub request_id: Option<String>,
    /// Why there is no status.
    pub error: Option<String>,
}

impl Sent {
    /// When the answer was complete, in microseconds since 1970.
    pub fn done_us(&self) -> u64 {
        self.sent_us + u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX)
    }

    /// The capacity that the gateway tells for the burst bucket.
    pub fn capacity_told(&self) -> Option<u64> {
        parameter(self.policy.as_deref()?, "q=")
    }
}

/// Sends requests. Clones share connections and the count of ids.
#[derive(Debug, Clone)]
pub struct Callers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    http: Client<HttpConnector, Empty<Bytes>>,
    clock: SystemClock,
    /// By gateway, then service.
    targets: Vec<Vec<Uri>>,
    /// By client.
    keys: Vec<HeaderValue>,
    names: Vec<String>,
    prefix: u32,
    next: AtomicU64,
}

impl Callers {
    /// `services` are route prefixes; `keys` are clients' names with their API keys.
    pub fn new(
        gateways: &[SocketAddr],
        services: &[String],
        keys: &[(String, String)],
    ) -> anyhow::Result<Callers> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .retry_canceled_requests(false)
            .build(connector);
        let mut targets = Vec::new();
        for gateway in gateways {
            let one = |service: &String| format!("http://{gateway}/{service}/item").parse();
            targets.push(services.iter().map(one).collect::<Result<Vec<Uri>, _>>()?);
        }
        let values = keys.iter().map(|(_, key)| HeaderValue::from_str(key));
        let keys: (Vec<String>, Vec<HeaderValue>) = (
            keys.iter().map(|(name, _)| name.clone()).collect(),
            values.collect::<Result<_, _>>()?,
        );
        let shared = Shared {
            http,
            clock: SystemClock::new(),
            targets,
            keys: keys.1,
            names: keys.0,
            prefix: fastrand::u32(..),
            next: AtomicU64::new(0),
        };
        Ok(Callers { shared: Arc::new(shared) })
    }

    /// Microseconds since 1970, on the clock of [`Sent`].
    pub fn now_us(&self) -> u64 {
        self.shared.clock.now().us()
    }

    /// Index of a client by its name.
    pub fn client(&self, name: &str) -> anyhow::Result<usize> {
        self.shared.names.iter().position(|known| known == name).context("no such client")
    }

    /// Index-to-name of clients.
    pub fn names(&self) -> &[String] {
        &self.shared.names
    }

    /// One request.
    pub async fn one(&self, client: usize, gateway: usize, service: usize) -> Sent {
        let shared = &self.shared;
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}-{number}", shared.prefix);
        let began = Instant::now();
        let sent_us = shared.clock.now().us();
        let answer = timeout(GIVE_UP, self.exchange(&id, client, gateway, service)).await;
        let mut sent = Sent {
            id,
            client,
            gateway,
            service,
            late: Duration::ZERO,
            sent_us,
            took: began.elapsed(),
            status: 0,
            by_edge: false,
            by_service: false,
            limit_headers: false,
            retry_after: None,
            policy: None,
            remaining: None,
            code: None,
            request_id: None,
            error: None,
        };
        match &answer {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => sent.error = Some(format!("{error:#}")),
            Err(_) => sent.error = Some("given up".to_owned()),
        }
        if let Ok(Ok((status, headers, body))) = answer {
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            sent.status = status;
            sent.by_edge = text("x-weir-source") == Some("edge");
            sent.by_service = headers.contains_key(demo::LIMITED_BY_HEADER);
            sent.limit_headers = headers.keys().any(|name| name.as_str().contains("ratelimit"));
            sent.retry_after = text("retry-after").and_then(|text| text.parse().ok());
            sent.policy = text("ratelimit-policy").map(ToOwned::to_owned);
            sent.remaining = text("ratelimit").and_then(|text| parameter(text, "r="));
            sent.request_id = text("x-request-id").map(ToOwned::to_owned);
            if status >= 400 {
                let body: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
                let code = body.as_ref().and_then(|body| body.get("code")?.as_str());
                sent.code = code.map(ToOwned::to_owned);
            }
        }
        sent
    }

    async fn exchange(
        &self,
        id: &str,
        client: usize,
        gateway: usize,
        service: usize,
    ) -> anyhow::Result<(u16, HeaderMap, Bytes)> {
        let shared = &self.shared;
        let uri = shared.targets.get(gateway).and_then(|services| services.get(service));
        let key = shared.keys.get(client).context("no such client")?;
        let request = Request::get(uri.context("no such target")?.clone())
            .header("x-api-key", key.clone())
            .header(ID_HEADER, id)
            .body(Empty::new())?;
        let response = shared.http.request(request).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((head.status.as_u16(), head.headers, body))
    }

    /// Sends each shot at its moment and waits for all answers.
    pub async fn open_loop(&self, shots: &[Shot]) -> anyhow::Result<Vec<Sent>> {
        let start = Instant::now() + Duration::from_millis(20);
        let mut running = JoinSet::new();
        let mut all = Vec::with_capacity(shots.len());
        for shot in shots {
            let moment = start + shot.at;
            if moment > Instant::now() {
                sleep_until(moment).await;
            }
            let (callers, shot) = (self.clone(), *shot);
            running.spawn(async move {
                let late = Instant::now().saturating_duration_since(moment);
                let sent = callers.one(shot.client, shot.gateway, shot.service).await;
                Sent { late, ..sent }
            });
            while let Some(done) = running.try_join_next() {
                all.push(done?);
            }
        }
        while let Some(done) = running.join_next().await {
            all.push(done?);
        }
        all.sort_by_key(|sent| sent.sent_us);
        Ok(all)
    }

    /// `count` requests of one client, one after another, over all gateways and services in turn.
    pub async fn in_turn(&self, client: usize, count: usize) -> Vec<Sent> {
        let gateways = self.shared.targets.len().max(1);
        let services = self.shared.targets.first().map_or(1, Vec::len).max(1);
        let mut all = Vec::with_capacity(count);
        for number in 0..count {
            let service = (number / gateways) % services;
            all.push(self.one(client, number % gateways, service).await);
        }
        all
    }

    /// `count` requests of one client at once, over all gateways and services.
    pub async fn at_once(&self, client: usize, count: usize) -> anyhow::Result<Vec<Sent>> {
        let gateways = self.shared.targets.len().max(1);
        let services = self.shared.targets.first().map_or(1, Vec::len).max(1);
        let shots: Vec<Shot> = (0..count)
            .map(|number| Shot {
                at: Duration::ZERO,
                client,
                gateway: number % gateways,
                service: (number / gateways) % services,
            })
            .collect();
        self.open_loop(&shots).await
    }
}

/// A parameter of the first item: `"burst";q=20;w=2`.
fn parameter(list: &str, name: &str) -> Option<u64> {
    let first = list.split(',').next()?;
    first.split(';').find_map(|part| part.trim().strip_prefix(name)?.parse().ok())
}

/// How many answers have each status.
pub fn statuses(all: &[Sent]) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    for sent in all {
        *counts.entry(sent.status).or_default() += 1;
    }
    counts
}
