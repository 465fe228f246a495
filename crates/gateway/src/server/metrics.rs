//! What listeners count before a connection's first request: those that were dropped, and the
//! state of certificates.

use std::path::Path;

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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateName {
    listener: String,
    file: String,
}

/// Of one listener's certificates.
#[derive(Debug, Clone)]
pub(crate) struct TlsMetrics {
    listener: String,
    expires: Family<CertificateName, Gauge>,
    /// Files whose contents are of no use, so that older ones serve.
    pub stale: Gauge,
    /// Times that new contents were taken.
    pub reloads: Counter,
}

impl TlsMetrics {
    /// Shows when the certificate of this file ends, if anybody knows.
    pub(crate) fn expires(&self, file: &Path, seconds: Option<i64>) {
        let (listener, file) = (self.listener.clone(), file.display().to_string());
        let name = CertificateName { listener, file };
        match seconds {
            Some(seconds) => {
                self.expires.get_or_create(&name).set(seconds);
            }
            None => {
                self.expires.remove(&name);
            }
        }
    }
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
    expires: Family<CertificateName, Gauge>,
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
            expires: Family::default(),
        };
        let help = "Connections closed before a request, because of how they began";
        registry.register("weir_gateway_connections_dropped", help, dropped);
        let help = "TLS files that cannot be used, so that what they held before stays in use";
        registry.register("weir_gateway_tls_stale_files", help, metrics.stale.clone());
        let help = "Times that new TLS files came into use";
        registry.register("weir_gateway_tls_reloads", help, metrics.reloads.clone());
        let help = "When the certificate that is in use ends, in seconds since 1970";
        let name = "weir_gateway_tls_certificate_expires_seconds";
        registry.register(name, help, metrics.expires.clone());
        metrics
    }

    /// Those of one listener's certificates.
    pub(crate) fn tls(&self, listener: &str) -> TlsMetrics {
        let name = ListenerName { listener: listener.to_owned() };
        TlsMetrics {
            listener: listener.to_owned(),
            expires: self.expires.clone(),
            stale: self.stale.get_or_create(&name).clone(),
            reloads: self.reloads.get_or_create(&name).clone(),
        }
    }
}
