//! Callers who do as they are told: a request, and if it is refused, the next one when the refusal
//! says, to the millisecond.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use demo::ID_HEADER;
use http::{HeaderMap, HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use limiter_core::{Clock as _, SystemClock};
use tokio::time::{sleep, timeout};

use super::Sabotage;
use crate::standalone::SERVICE;

/// A request that takes longer ends the experiment.
const GIVE_UP: Duration = Duration::from_secs(15);

/// One request; times in microseconds since 1970.
#[derive(Debug, Clone)]
pub struct Line {
    /// Unique; the service logs it.
    pub id: String,
    /// Index of the client.
    pub client: usize,
    /// When it was sent.
    pub sent_us: u64,
    /// When its answer was complete.
    pub done_us: u64,
    /// Refusals in a row before it: 0 is no retry, 1 is a first one.
    pub attempt: u32,
    /// Whether it was let pass.
    pub passed: bool,
    /// What the refusal told to wait.
    pub told: Option<Duration>,
}

/// Sends requests; clones share connections.
#[derive(Debug, Clone)]
pub struct Callers {
    http: Client<HttpConnector, Empty<Bytes>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    gateways: Vec<Uri>,
    keys: Vec<HeaderValue>,
    clock: SystemClock,
    prefix: u32,
    next: AtomicU64,
    sabotage: Option<Sabotage>,
}

impl Callers {
    /// With these keys, over these gateways.
    pub fn new(
        gateways: &[SocketAddr],
        keys: &[(String, String)],
        sabotage: Option<Sabotage>,
    ) -> anyhow::Result<Callers> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .retry_canceled_requests(false)
            .build(connector);
        let gateways = gateways
            .iter()
            .map(|gateway| format!("http://{gateway}/{SERVICE}/item").parse())
            .collect::<Result<Vec<Uri>, _>>()?;
        let keys = keys
            .iter()
            .map(|(_, key)| HeaderValue::from_str(key))
            .collect::<Result<Vec<_>, _>>()?;
        let (clock, prefix, next) = (SystemClock::new(), fastrand::u32(..), AtomicU64::new(0));
        let shared = Arc::new(Shared { gateways, keys, clock, prefix, next, sabotage });
        Ok(Callers { http, shared })
    }

    /// Microseconds since 1970, on the clock of [`Line`].
    pub fn now_us(&self) -> u64 {
        self.shared.clock.now().us()
    }

    /// One caller of `client`, until that time: asks a gateway at random, and again at once if it
    /// was let pass.
    pub async fn obey(self, client: usize, seed: u64, until_us: u64) -> anyhow::Result<Vec<Line>> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut lines = Vec::new();
        let mut attempt = 0;
        while self.now_us() < until_us {
            let gateway = random.usize(..self.shared.gateways.len());
            let line = timeout(GIVE_UP, self.one(client, gateway, attempt));
            let line = line.await.context("a request took too long")??;
            attempt = if line.passed { 0 } else { attempt + 1 };
            let told = line.told;
            lines.push(line);
            if let Some(told) = told {
                sleep(told).await;
            }
        }
        Ok(lines)
    }

    async fn one(&self, client: usize, gateway: usize, attempt: u32) -> anyhow::Result<Line> {
        let shared = &self.shared;
        let id = format!("{:08x}-{}", shared.prefix, shared.next.fetch_add(1, Ordering::Relaxed));
        let uri = shared.gateways.get(gateway).context("no such gateway")?.clone();
        let key = shared.keys.get(client).context("no such client")?.clone();
        let request = Request::get(uri)
            .header("x-api-key", key)
            .header(ID_HEADER, id.as_str())
            .body(Empty::new())?;
        let sent_us = self.now_us();
        let (head, body) = self.http.request(request).await?.into_parts();
        body.collect().await?;
        let done_us = self.now_us();
        let passed = head.status.is_success();
        ensure!(passed || head.status.as_u16() == 429, "an answer that nobody asked for: {head:?}");
        let told = if passed { None } else { Some(told(&head.headers, shared.sabotage)?) };
        Ok(Line { id, client, sent_us, done_us, attempt, passed, told })
    }
}

/// What a refusal tells; a planted defect tells something else.
fn told(headers: &HeaderMap, sabotage: Option<Sabotage>) -> anyhow::Result<Duration> {
    let number = |name: &str| {
        let value = headers.get(name).with_context(|| format!("a refusal without {name}"))?;
        Ok::<u64, anyhow::Error>(value.to_str()?.parse()?)
    };
    let exact = Duration::from_millis(number("retry-after-ms")?);
    let whole = Duration::from_secs(number("retry-after")?);
    Ok(match sabotage {
        Some(Sabotage::HalvedPromise) => exact / 2,
        Some(Sabotage::WholeSeconds) => whole,
        Some(Sabotage::PerGatewayBuckets) | None => exact,
    })
}
