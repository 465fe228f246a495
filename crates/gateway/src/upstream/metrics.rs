//! What is counted of each upstream. Labels are the names that the configuration gives.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamReason {
    upstream: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamName {
    upstream: String,
}

/// What an upstream's part of the gateway counts.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamMetrics {
    /// No connection.
    pub connect: Counter,
    /// No answer in time.
    pub timeout: Counter,
    /// The connection broke, or what came was no HTTP.
    pub broken: Counter,
    /// Too many requests out.
    pub overloaded: Counter,
    /// Requests sent again.
    pub retries: Counter,
    /// Requests that were not sent again because the budget was used up.
    pub unretried: Counter,
    /// Endpoints that are usable now.
    pub healthy: Gauge,
    /// All endpoints.
    pub endpoints: Gauge,
    /// Requests that wait for room.
    pub waiting: Gauge,
    /// Requests sent although too few endpoints were usable.
    pub panic: Counter,
    /// Endpoints set aside because their requests failed.
    pub ejections: Counter,
    /// Names that did not resolve.
    pub unresolved: Counter,
}

/// Those of all upstreams, by name.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamFamilies {
    errors: Family<UpstreamReason, Counter>,
    retries: Family<UpstreamName, Counter>,
    unretried: Family<UpstreamName, Counter>,
    panic: Family<UpstreamName, Counter>,
    ejections: Family<UpstreamName, Counter>,
    unresolved: Family<UpstreamName, Counter>,
    healthy: Family<UpstreamName, Gauge>,
    endpoints: Family<UpstreamName, Gauge>,
    waiting: Family<UpstreamName, Gauge>,
}

/// Why an attempt failed.
const REASONS: [&str; 4] = ["connect", "timeout", "broken", "overloaded"];

impl UpstreamFamilies {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> UpstreamFamilies {
        let errors = Family::<UpstreamReason, Counter>::default();
        let help = "Attempts that an upstream failed";
        registry.register("weir_gateway_upstream_errors", help, errors.clone());
        let mut counter = |name: &str, help: &str| {
            let family = Family::<UpstreamName, Counter>::default();
            registry.register(format!("weir_gateway_upstream_{name}"), help, family.clone());
            family
        };
        let retries = counter("retries", "Requests that were sent again");
        let help = "Requests that were not sent again because the budget was used up";
        let unretried = counter("retries_over_budget", help);
        let help = "Requests sent although too few endpoints were usable: then all are used";
        let panic = counter("panic", help);
        let help = "Endpoints set aside because their requests failed in a row";
        let ejections = counter("ejections", help);
        let help = "Times that a name did not resolve: its last addresses stay in use";
        let unresolved = counter("names_unresolved", help);
        let mut gauge = |name: &str, help: &str| {
            let family = Family::<UpstreamName, Gauge>::default();
            registry.register(format!("weir_gateway_upstream_{name}"), help, family.clone());
            family
        };
        let healthy = gauge("healthy_endpoints", "Endpoints that are usable now");
        let endpoints = gauge("endpoints", "Endpoints, usable or not");
        let waiting = gauge("waiting", "Requests that wait for room at an endpoint");
        UpstreamFamilies {
            errors,
            retries,
            unretried,
            panic,
            ejections,
            unresolved,
            healthy,
            endpoints,
            waiting,
        }
    }

    /// Those of one upstream; the same ones for the same name.
    pub(crate) fn of(&self, upstream: &str) -> UpstreamMetrics {
        let [connect, timeout, broken, overloaded] = REASONS.map(|reason| {
            let labels = UpstreamReason { upstream: upstream.to_owned(), reason };
            self.errors.get_or_create(&labels).clone()
        });
        let named = UpstreamName { upstream: upstream.to_owned() };
        UpstreamMetrics {
            connect,
            timeout,
            broken,
            overloaded,
            retries: self.retries.get_or_create(&named).clone(),
            unretried: self.unretried.get_or_create(&named).clone(),
            healthy: self.healthy.get_or_create(&named).clone(),
            endpoints: self.endpoints.get_or_create(&named).clone(),
            waiting: self.waiting.get_or_create(&named).clone(),
            panic: self.panic.get_or_create(&named).clone(),
            ejections: self.ejections.get_or_create(&named).clone(),
            unresolved: self.unresolved.get_or_create(&named).clone(),
        }
    }

    /// Shows an upstream no more.
    pub(crate) fn forget(&self, upstream: &str) {
        for reason in REASONS {
            self.errors.remove(&UpstreamReason { upstream: upstream.to_owned(), reason });
        }
        let named = UpstreamName { upstream: upstream.to_owned() };
        for family in
            [&self.retries, &self.unretried, &self.panic, &self.ejections, &self.unresolved]
        {
            family.remove(&named);
        }
        for family in [&self.healthy, &self.endpoints, &self.waiting] {
            family.remove(&named);
        }
    }
}
