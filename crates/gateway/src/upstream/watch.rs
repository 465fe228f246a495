//! Keeps an upstream's endpoints current: names are resolved again every few seconds, endpoints
//! are probed. One task of each kind for the whole gateway, with jitter, so that many gateways do
//! not ask in step.
//!
//! When a name stops resolving, its last good addresses stay in use.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use daemon::Drain;
use daemon::log::chain;
use http::header::{HOST, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::Instant;

use super::health::{Health, ProbeRules, Turn};
use super::{Endpoint, Upstream};

/// Longest wait for a name, so that one that hangs does not keep others from being followed. Less
/// than a gateway waits for names at its start.
const NAME_MAX: Duration = Duration::from_secs(2);
/// How often the gauges are set: ejections end by themselves.
const GAUGES_EVERY: Duration = Duration::from_secs(1);

impl Upstream {
    /// Resolves all names now. Addresses that stay keep their health.
    pub(crate) async fn resolve(&self) {
        let asked = self.config.endpoints.iter().map(|endpoint| async move {
            let answer = tokio::time::timeout(NAME_MAX, self.names.resolve(&endpoint.name)).await;
            answer.unwrap_or_else(|elapsed| Err(elapsed.into()))
        });
        let answers = futures_util::future::join_all(asked).await;
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let mut weights = BTreeMap::new();
        for ((configured, good), answer) in
            self.config.endpoints.iter().zip(resolved.iter_mut()).zip(answers)
        {
            let (upstream, name) = (&self.config.name, configured.name.as_str());
            match answer.map(of_one_family) {
                Ok(found) if !found.is_empty() => {
                    self.dialer.found(name, &found);
                    *good = found;
                }
                Ok(_) => {
                    self.metrics.unresolved.inc();
                    tracing::warn!(%upstream, name, "the name has no address");
                }
                Err(error) => {
                    self.metrics.unresolved.inc();
                    tracing::warn!(%upstream, name, %error, "not resolved");
                }
            }
            for address in good.iter() {
                weights.entry(*address).or_insert(configured.weight);
            }
        }
        drop(resolved);
        self.replace(&weights);
    }

    fn replace(&self, weights: &BTreeMap<SocketAddr, u64>) {
        let before = self.endpoints();
        for endpoint in before.iter() {
            if let Some(weight) = weights.get(&endpoint.address) {
                endpoint.weight.store(*weight, Ordering::Relaxed);
            }
        }
        if weights.keys().eq(before.iter().map(|endpoint| &endpoint.address)) {
            return;
        }
        let endpoint = |(address, weight): (&SocketAddr, &u64)| {
            let known = before.iter().find(|endpoint| endpoint.address == *address);
            known.map_or_else(|| Arc::new(self.endpoint(*address, *weight, &before)), Arc::clone)
        };
        let endpoints: Arc<[Arc<Endpoint>]> = weights.iter().map(endpoint).collect();
        let (upstream, count) = (&self.config.name, endpoints.len());
        tracing::info!(%upstream, count, "endpoints by their names");
        *self.endpoints.write().unwrap_or_else(PoisonError::into_inner) = endpoints;
        self.count_healthy();
    }

    /// One that joins others begins slowly; the first ones of a gateway share the load at once.
    fn endpoint(&self, address: SocketAddr, weight: u64, before: &[Arc<Endpoint>]) -> Endpoint {
        let health =
            if before.is_empty() { Health::default() } else { Health::new_at(self.now_us()) };
        Endpoint::new(address, weight, health, Arc::clone(&self.queue))
    }

    /// Waits for the drain, or for this upstream's own end.
    fn ended(&self, drain: Drain) -> impl Future<Output = ()> + Send + 'static {
        let own = self.ended.started();
        async move {
            tokio::select! {
                () = drain.started() => {}
                () = own => {}
            }
        }
    }

    /// Resolves again until the drain.
    pub(crate) async fn keep_resolved(self: Arc<Self>, drain: Drain) {
        let mut names = self.config.endpoints.iter().map(|endpoint| endpoint.name.as_str());
        let all_fixed = names.all(|name| name.parse::<SocketAddr>().is_ok());
        let mut ended = std::pin::pin!(self.ended(drain));
        let next = || Instant::now() + jittered(self.config.resolve_every);
        let mut resolve_at = next();
        loop {
            let gauges_at = Instant::now() + GAUGES_EVERY;
            tokio::select! {
                () = &mut ended => return,
                () = tokio::time::sleep_until(gauges_at.min(resolve_at)) => {}
            }
            if resolve_at <= Instant::now() {
                if !all_fixed {
                    self.resolve().await;
                }
                resolve_at = next();
            }
            self.count_healthy();
        }
    }

    /// Probes all endpoints until the drain.
    pub(crate) async fn keep_probed(self: Arc<Self>, rules: ProbeRules, drain: Drain) {
        let mut ended = std::pin::pin!(self.ended(drain));
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
        let asked = tokio::time::timeout(rules.timeout, self.ask(endpoint, rules)).await;
        let well = matches!(&asked, Ok(Ok(status)) if status.is_success());
        let Some(turn) = endpoint.health.probed(well, self.now_us(), rules) else { return };
        self.count_healthy();
        let (upstream, address) = (&self.config.name, endpoint.address);
        match turn {
            Turn::Up => tracing::info!(%upstream, %address, "endpoint is up"),
            Turn::Down => {
                let cause = match asked {
                    Ok(Ok(status)) => format!("status {}", status.as_u16()),
                    Ok(Err(error)) => chain(error.as_ref()),
                    Err(_elapsed) => format!("no answer within {:?}", rules.timeout),
                };
                tracing::warn!(%upstream, %address, cause, "endpoint is down");
            }
        }
    }

    /// Probes speak the upstream's protocol over a connection of their own, so they also test
    /// connecting.
    async fn ask(&self, endpoint: &Endpoint, rules: &ProbeRules) -> Result<StatusCode, BoxError> {
        let io = TokioIo::new(self.dialer.dial(endpoint.address).await?);
        let mut request = Request::new(Empty::<bytes::Bytes>::new());
        let agent = HeaderValue::from_static("weir-gateway probe");
        request.headers_mut().insert(USER_AGENT, agent);
        if self.config.http2 {
            let uri = Uri::builder().scheme(self.dialer.scheme());
            let uri = uri.authority(endpoint.authority.clone());
            *request.uri_mut() = uri.path_and_query(&rules.path).build()?;
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            answered(sender.send_request(request), connection).await
        } else {
            *request.uri_mut() = rules.path.parse()?;
            let host = HeaderValue::try_from(endpoint.authority.as_str())?;
            request.headers_mut().insert(HOST, host);
            let (mut sender, connection) = http1::handshake(io).await?;
            answered(sender.send_request(request), connection).await
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn answered(
    response: impl Future<Output = hyper::Result<Response<Incoming>>>,
    connection: impl Future<Output = hyper::Result<()>>,
) -> Result<StatusCode, BoxError> {
    let mut response = std::pin::pin!(response);
    let response = tokio::select! {
        biased;
        response = &mut response => response?,
        // With an answer that closes it a connection ends at once, and the answer is there.
        _ended = connection => response.await?,
    };
    Ok(response.status())
}

/// A name with addresses of both families stands for the same machines twice: one family counts,
/// IPv4 if there is any.
fn of_one_family(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let v4: Vec<SocketAddr> = addresses.iter().copied().filter(SocketAddr::is_ipv4).collect();
    if v4.is_empty() { addresses } else { v4 }
}

/// From 80 % to 100 %: never later than told.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_later_than_told_and_many_do_not_ask_in_step() {
        let every = Duration::from_secs(5);
        let waits: Vec<Duration> = (0..1_000).map(|_| jittered(every)).collect();
        assert!(waits.iter().all(|wait| every.mul_f64(0.79) < *wait && *wait <= every));
        assert!(waits.iter().max() > waits.iter().min().map(|least| *least + every / 10).as_ref());
    }

    #[test]
    fn of_both_families_one_counts() {
        let of = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let both: Vec<SocketAddr> = of(&["[::1]:1", "127.0.0.1:1", "127.0.0.2:1"]);
        assert_eq!(of_one_family(both), of(&["127.0.0.1:1", "127.0.0.2:1"]));
        assert_eq!(of_one_family(of(&["[::1]:1"])), of(&["[::1]:1"]));
    }
}
