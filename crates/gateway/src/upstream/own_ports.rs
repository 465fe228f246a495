//! The ports that are no services: the gateway's own operations port and its control plane.
//!
//! What a name points at is known only when it is resolved, so it is looked at there: an endpoint
//! that leads to one of these ports has no address, whatever it is called.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use http::Uri;

use super::names::{Resolve, Resolving};

/// A resolver that finds nothing at those ports.
#[derive(Debug)]
pub(crate) struct NotOwn {
    names: Arc<dyn Resolve>,
    operations: SocketAddr,
    /// `host:port` of what administrates.
    control: Vec<String>,
}

impl NotOwn {
    /// Asks `names`, and keeps away from `operations` and from these base URLs.
    pub(crate) fn new<'a>(
        names: Arc<dyn Resolve>,
        operations: SocketAddr,
        control: impl Iterator<Item = &'a str>,
    ) -> NotOwn {
        NotOwn { names, operations, control: control.filter_map(host_and_port).collect() }
    }

    /// Where the control plane is now, as far as one of its ports is that of an address in `found`.
    async fn control_at(&self, found: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut at = Vec::new();
        for name in &self.control {
            let port = name.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if found.iter().any(|address| Some(address.port()) == port)
                && let Ok(addresses) = self.names.resolve(name).await
            {
                at.extend(addresses);
            }
        }
        at
    }
}

impl Resolve for NotOwn {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            let mut found = self.names.resolve(name).await?;
            let mut own = self.control_at(&found).await;
            own.push(self.operations);
            let all = found.len();
            found.retain(|address| !own.iter().any(|own| leads_to(*address, *own)));
            if found.is_empty() && all > 0 {
                let what = "it is the operations port of this gateway, or its control plane";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
            }
            Ok(found)
        })
    }
}

/// `host:port` of a base URL.
fn host_and_port(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    Some(format!("{}:{port}", uri.host()?))
}

/// Whether a connection to `address` arrives at a listener bound to `own`.
fn leads_to(address: SocketAddr, own: SocketAddr) -> bool {
    let (ip, own_ip) = (address.ip().to_canonical(), own.ip().to_canonical());
    address.port() == own.port()
        && (ip == own_ip
            // Nobody's address is this machine's own, on both sides.
            || (own_ip.is_unspecified() && is_here(ip))
            || (ip.is_unspecified() && is_here(own_ip)))
}

/// Whether this machine has an address: then a socket can be bound to it.
fn is_here(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_listener_has_many_spellings() {
        for (address, own, leads) in [
            ("127.0.0.1:9", "127.0.0.1:9", true),
            ("[::ffff:127.0.0.1]:9", "127.0.0.1:9", true),
            ("127.0.0.1:8", "127.0.0.1:9", false),
            ("127.0.0.2:9", "127.0.0.1:9", false),
            ("127.0.0.2:9", "0.0.0.0:9", true),
            ("0.0.0.0:9", "127.0.0.1:9", true),
            ("[::1]:9", "[::]:9", true),
            ("192.0.2.1:9", "0.0.0.0:9", false),
        ] {
            let [address, own] = [address, own].map(|text| text.parse().unwrap());
            assert_eq!(leads_to(address, own), leads, "{address} {own}");
        }
    }

    /// Three names of two machines.
    #[derive(Debug)]
    struct Names;

    impl Resolve for Names {
        fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
            let (host, port) = name.rsplit_once(':').unwrap();
            let ip = if host == "orders" { "10.0.0.2" } else { "10.0.0.1" };
            let found = vec![format!("{ip}:{port}").parse().unwrap()];
            Box::pin(async { Ok(found) })
        }
    }

    #[tokio::test]
    async fn s33_the_control_plane_is_no_service_under_any_name() {
        let urls = ["http://plans:8081", "https://shadow/"];
        let own = "127.0.0.1:9080".parse().unwrap();
        let names = NotOwn::new(Arc::new(Names), own, urls.into_iter());
        for (endpoint, has_address) in [
            ("plans:8081", false),
            ("alias:8081", false),
            ("alias:443", false),
            ("alias:8082", true),
            ("orders:8081", true),
        ] {
            let found = names.resolve(endpoint).await;
            assert_eq!(found.is_ok(), has_address, "{endpoint}: {found:?}");
        }
    }

    #[test]
    fn a_base_url_names_a_host_and_a_port() {
        for (url, expected) in [
            ("http://127.0.0.1:8081", Some("127.0.0.1:8081")),
            ("http://plans/api", Some("plans:80")),
            ("https://plans", Some("plans:443")),
            ("http://[::1]:1", Some("[::1]:1")),
            ("nonsense://", None),
        ] {
            assert_eq!(host_and_port(url).as_deref(), expected, "{url}");
        }
    }
}
