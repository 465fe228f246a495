//! What listeners count before a connection's first request: those that were dropped, and the
//! state of certificates.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerName {
    listener: String,
}

/// Of one listener's certificates.
#[derive(Debug, Clone)]
pub(crate) struct TlsMetrics {
    /// Files whose contents are of no use, so that older ones serve.
    pub stale: Gauge,
    /// Times that new contents were taken.
    pub reloads: Counter,
}

/// Of all listeners.
#[derive(Debug, Clone)]
pub(crate) struct ListenMetrics {
    /// Not from a trusted proxy, where only those may connect.
    pub untrusted: Counter,
    /// Without a whole header of the PROXY protocol.
    pub header: Counter,
    /// TLS did not come about.
    pub handshake: Counter,
    stale: Family<ListenerName, Gauge>,
    reloads: Family<ListenerName, Counter>,
}

impl ListenMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> ListenMetrics {
        let dropped = Family::<Reason, Counter>::default();
        let reason = |reason| dropped.get_or_create(&Reason { reason }).clone();
        let metrics = ListenMetrics {
            untrusted: reason("untrusted"),
            header: reason("header"),
            handshake: reason("handshake"),
            stale: Family::default(),
            reloads: Family::default(),
        };
        let help = "Connections closed before a request, because of how they began";
        registry.register("weir_gateway_connections_dropped", help, dropped);
        let help = "TLS files that cannot be used, so that what they held before stays in use";
        registry.register("weir_gateway_tls_stale_files", help, metrics.stale.clone());
        let help = "Times that new TLS files came into use";
        registry.register("weir_gateway_tls_reloads", help, metrics.reloads.clone());
        metrics
    }

    /// Those of one listener's certificates.
    pub(crate) fn tls(&self, listener: &str) -> TlsMetrics {
        let name = ListenerName { listener: listener.to_owned() };
        TlsMetrics {
            stale: self.stale.get_or_create(&name).clone(),
            reloads: self.reloads.get_or_create(&name).clone(),
        }
    }
}
