//! The rim's metrics: requests, upstreams, connections, and the time that a decision adds.
//!
//! Labels are closed sets that the configuration names; nothing a caller sends becomes one.
//! Counters are looked up once, at the start, so that a request touches atomics only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use edge::limiter::store::redis::RedisStore;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::access_log::AccessLogMetrics;
use crate::config::Config;
use crate::kill_switch::metrics::KillSwitchMetrics;
use crate::overload::OverloadMetrics;
use crate::reload::metrics::ReloadMetrics;
use crate::route::RouteTable;
use crate::server::metrics::ListenMetrics;
use crate::upstream::metrics::UpstreamFamilies;

/// Upper bounds of the histogram of added time, in microseconds.
const BOUNDS_US: [u64; 14] =
    [10, 25, 50, 100, 250, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 25_000, 100_000, 1_000_000];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteClass {
    route: String,
    class: &'static str,
}

/// Requests of one route by class of status.
#[derive(Debug, Clone)]
pub(crate) struct ByClass([Counter; 5]);

impl ByClass {
    /// Counts an answer.
    pub(crate) fn count(&self, status: http::StatusCode) {
        let index = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.0.get(index) {
            counter.inc();
        }
    }
}

/// The classes of status.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// All of them. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    requests: Family<RouteClass, Counter>,
    /// By number of the route in the file.
    pub routes: Vec<ByClass>,
    /// Requests that no route took.
    pub unrouted: ByClass,
    /// Of upstreams.
    pub upstreams: UpstreamFamilies,
    /// Of new configurations.
    pub reload: ReloadMetrics,
    /// Open connections of callers.
    pub connections: Gauge,
    /// Connections closed at once because their address had too many.
    pub connections_refused: Counter,
    /// Of connections before their first request.
    pub listen: ListenMetrics,
    /// Connections that have left HTTP, so far.
    pub upgrades: Counter,
    /// Those that are open.
    pub upgraded: Gauge,
    /// From arrival to decision.
    pub added: AddedTime,
    /// Requests that were shed.
    pub overload: OverloadMetrics,
    /// Lines that were lost.
    pub access_log: AccessLogMetrics,
    /// Whether everybody is in shadow.
    pub kill_switch: KillSwitchMetrics,
}

impl Metrics {
    /// Registers everything; for the routes of `config`.
    pub(crate) fn register(registry: &mut Registry, config: &Config) -> Metrics {
        let requests = Family::<RouteClass, Counter>::default();
        let metrics = Metrics {
            routes: Vec::new(),
            unrouted: by_class(&requests, "(none)"),
            upstreams: UpstreamFamilies::register(registry),
            reload: ReloadMetrics::register(registry),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            listen: ListenMetrics::register(registry),
            upgrades: Counter::default(),
            upgraded: Gauge::default(),
            added: AddedTime::default(),
            overload: OverloadMetrics::register(registry),
            access_log: AccessLogMetrics::register(registry),
            kill_switch: KillSwitchMetrics::register(registry),
            requests,
        };
        let (r, requests) = (registry, metrics.requests.clone());
        r.register("weir_gateway_requests", "Answers by route and class of status", requests);
        let help = "Open connections of callers";
        r.register("weir_gateway_connections", help, metrics.connections.clone());
        let help = "Connections closed at once because their address had too many";
        r.register("weir_gateway_connections_refused", help, metrics.connections_refused.clone());
        let help = "Connections that left HTTP for another protocol";
        r.register("weir_gateway_upgrades", help, metrics.upgrades.clone());
        let help = "Open connections that have left HTTP";
        r.register("weir_gateway_upgraded_connections", help, metrics.upgraded.clone());
        let help = "Time from a request's arrival to its decision";
        r.register("weir_gateway_added_seconds", help, metrics.added.clone());
        metrics.of(&config.routes)
    }

    /// The same, for other routes.
    pub(crate) fn of(&self, routes: &RouteTable) -> Metrics {
        let mut routes: Vec<(usize, &str)> =
            routes.iter().map(|route| (route.number, route.terms.name.as_str())).collect();
        routes.sort_unstable();
        let routes = routes.into_iter().map(|(_, name)| by_class(&self.requests, name)).collect();
        Metrics { routes, ..self.clone() }
    }

    /// Shows a route's name no more.
    pub(crate) fn forget(&self, route: &str) {
        for class in CLASSES {
            self.requests.remove(&RouteClass { route: route.to_owned(), class });
        }
    }
}

fn by_class(requests: &Family<RouteClass, Counter>, route: &str) -> ByClass {
    ByClass(CLASSES.map(|class| {
        requests.get_or_create(&RouteClass { route: route.to_owned(), class }).clone()
    }))
}

/// A histogram of atomics: workers never wait for each other to count.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddedTime(Arc<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl AddedTime {
    /// Counts one decision.
    pub(crate) fn observe(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let index = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(count) = self.0.counts.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.0.sum_us.fetch_add(us, Ordering::Relaxed);
    }
}

impl EncodeMetric for AddedTime {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let bounds = BOUNDS_US.iter().map(|us| seconds(*us)).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = seconds(self.0.sum_us.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// What a Redis store has counted, read when somebody asks.
#[derive(Debug)]
pub(crate) struct StoreCounts(pub(crate) Arc<RedisStore>);

impl Collector for StoreCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let answering = ConstGauge::new(i64::from(self.0.is_answering()));
        let help = "Whether a connection to the store is there and its breaker closed";
        let name = "weir_store_answering";
        answering.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let counters = self.0.counters();
        let may_evict = ConstGauge::new(i64::from(counters.may_evict.load(Ordering::Relaxed)));
        let help = "Whether the store's settings let it drop live buckets when its memory is full";
        let name = "weir_store_may_evict";
        may_evict.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let openings = self.0.breaker_openings();
        let refused = counters.refused().map(|(_, count)| count).sum();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, help, count) in [
            ("weir_store_calls", "Calls that were sent", read(&counters.calls)),
            ("weir_store_timeouts", "Calls without an answer in time", read(&counters.timeouts)),
            ("weir_store_lost", "Calls whose outcome is unknown", read(&counters.lost)),
            ("weir_store_refused", "Calls answered with an error", refused),
            ("weir_store_reconnects", "Connections made again", read(&counters.reconnects)),
            ("weir_store_script_loads", "Times the script was sent", read(&counters.script_loads)),
            ("weir_store_breaker_openings", "Times a breaker opened", openings),
            (
                "weir_store_evicted",
                "Keys that the store dropped when full",
                read(&counters.evicted),
            ),
        ] {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_time_is_counted_below_its_bound() {
        let mut registry = Registry::default();
        let added = AddedTime::default();
        registry.register("added_seconds", "h", added.clone());
        for us in [1, 10, 11, 5_000_000] {
            added.observe(Duration::from_micros(us));
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "added_seconds_bucket{le=\"0.00001\"} 2",
            "added_seconds_bucket{le=\"0.000025\"} 3",
            "added_seconds_bucket{le=\"1.0\"} 3",
            "added_seconds_bucket{le=\"+Inf\"} 4",
            "added_seconds_count 4",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
