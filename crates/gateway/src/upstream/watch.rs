//! Keeps an upstream's endpoints current: names are resolved again every few seconds, endpoints
//! are probed. One task of each kind for the whole gateway, with jitter, so that many gateways do
//! not ask in step.
//!
//! When a name stops resolving, the last good addresses stay in use.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use daemon::Drain;
use http::header::{HOST, HeaderValue, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::health::{ProbeRules, Turn};
use super::{Endpoint, Upstream};

/// How often names are resolved.
const RESOLVE_EVERY: Duration = Duration::from_secs(5);

impl Upstream {
    /// Resolves all names now. Addresses that stay keep their health.
    pub(crate) async fn resolve(&self) {
        let before = self.endpoints();
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for name in &self.config.endpoints {
            match tokio::net::lookup_host(name.as_str()).await {
                Ok(found) => {
                    let found = of_one_family(found.collect());
                    self.dialer.found(name, &found);
                    addresses.extend(found);
                }
                Err(error) => {
                    tracing::warn!(upstream = %self.config.name, name, %error, "not resolved");
                    if !before.is_empty() {
                        return; // the last good set stays
                    }
                }
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.iter().eq(before.iter().map(|endpoint| &endpoint.address)) {
            return;
        }
        let endpoint = |address: SocketAddr| {
            let known = before.iter().find(|endpoint| endpoint.address == address);
            known.map_or_else(|| Arc::new(Endpoint::new(address)), Arc::clone)
        };
        let endpoints: Arc<[Arc<Endpoint>]> = addresses.into_iter().map(endpoint).collect();
        *self.endpoints.write().unwrap_or_else(PoisonError::into_inner) = endpoints;
        self.count_healthy();
    }

    /// Resolves again until the drain.
    pub(crate) async fn keep_resolved(self: Arc<Self>, drain: Drain) {
        let all_fixed = self.config.endpoints.iter().all(|e| e.parse::<SocketAddr>().is_ok());
        let mut ended = std::pin::pin!(drain.started());
        loop {
            tokio::select! {
                () = &mut ended => return,
                () = tokio::time::sleep(jittered(RESOLVE_EVERY)) => {}
            }
            if !all_fixed {
                self.resolve().await;
            }
            self.count_healthy(); // ejections end by themselves
        }
    }

    /// Probes all endpoints until the drain.
    pub(crate) async fn keep_probed(self: Arc<Self>, rules: ProbeRules, drain: Drain) {
        let mut ended = std::pin::pin!(drain.started());
        loop {
            let endpoints = self.endpoints();
            let probes = endpoints.iter().map(|endpoint| self.probe(endpoint, &rules));
            futures_util::future::join_all(probes).await;
            tokio::select! {
                () = &mut ended => return,
                () = tokio::time::sleep(jittered(rules.every)) => {}
            }
        }
    }

    async fn probe(&self, endpoint: &Endpoint, rules: &ProbeRules) {
        let asked = tokio::time::timeout(rules.timeout, self.ask(endpoint.address, rules)).await;
        let well = matches!(asked, Ok(Ok(true)));
        let Some(turn) = endpoint.health.probed(well, rules) else { return };
        self.count_healthy();
        let (upstream, address) = (&self.config.name, endpoint.address);
        match turn {
            Turn::Up => tracing::info!(%upstream, %address, "endpoint is up"),
            Turn::Down => tracing::warn!(%upstream, %address, "endpoint is down"),
        }
    }
    /// Probes speak the upstream's protocol over a connection of their own, so they also test
    /// connecting.
    async fn ask(&self, address: SocketAddr, rules: &ProbeRules) -> Result<bool, BoxError> {
        let io = TokioIo::new(self.dialer.dial(address).await?);
        let mut request = Request::new(Empty::<bytes::Bytes>::new());
        let agent = HeaderValue::from_static("weir-gateway probe");
        request.headers_mut().insert(USER_AGENT, agent);
        if self.config.http2 {
            let uri = Uri::builder().scheme(self.dialer.scheme()).authority(address.to_string());
            *request.uri_mut() = uri.path_and_query(&rules.path).build()?;
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            answered(sender.send_request(request), connection).await
        } else {
            *request.uri_mut() = rules.path.parse()?;
            request.headers_mut().insert(HOST, HeaderValue::try_from(address.to_string())?);
            let (mut sender, connection) = http1::handshake(io).await?;
            answered(sender.send_request(request), connection).await
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn answered(
    response: impl Future<Output = hyper::Result<Response<Incoming>>>,
    connection: impl Future<Output = hyper::Result<()>>,
) -> Result<bool, BoxError> {
    tokio::select! {
        response = response => Ok(response?.status().is_success()),
        ended = connection => ended.map(|()| false).map_err(Into::into),
    }
}

/// A name with addresses of both families stands for the same machines twice: one family counts,
/// IPv4 if there is any.
fn of_one_family(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let v4: Vec<SocketAddr> = addresses.iter().copied().filter(SocketAddr::is_ipv4).collect();
    if v4.is_empty() { addresses } else { v4 }
}

/// From 90 % to 110 %.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.9 + 0.2 * fastrand::f64())
}
