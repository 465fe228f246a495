//! How connections to an upstream are made: in clear, or over TLS to a service whose certificate
//! is of a trusted authority and has the right name.
//!
//! A connection is only handed out after the handshake, so a service that cannot show who it is
//! has been sent nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use http::uri::Scheme;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::server::pem::{self, FileError};
use crate::stream::Transport;

/// Bytes to and from a service.
pub(crate) type Service = Transport<TlsStream<TcpStream>>;

/// What HTTP/2 is called in a handshake.
const H2: &[u8] = b"h2";
/// And HTTP/1.1.
const HTTP_11: &[u8] = b"http/1.1";

/// Why TLS to an upstream cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamTlsError {
    /// No certificate can have this name.
    #[error("is no name or address of a server")]
    ServerName(#[source] InvalidDnsNameError),
    /// The file of authorities.
    #[error("the authorities cannot be used")]
    Authorities(#[source] FileError),
    /// The library refuses.
    #[error("TLS cannot be set up")]
    Library(#[source] rustls::Error),
}

/// TLS to an upstream, checked.
#[derive(Debug, Clone)]
pub struct UpstreamTls {
    server_name: Option<ServerName<'static>>,
    http2: bool,
    /// Tells authorities apart.
    authorities: u64,
    config: Arc<ClientConfig>,
}

/// The same when the file says the same and its authorities are the same.
impl PartialEq for UpstreamTls {
    fn eq(&self, other: &UpstreamTls) -> bool {
        self.server_name == other.server_name
            && self.http2 == other.http2
            && self.authorities == other.authorities
    }
}

impl Eq for UpstreamTls {}

impl UpstreamTls {
    /// To servers called `server_name`, or as their endpoint is; their authority is one of
    /// `ca_file`, or else one that browsers trust.
    pub(crate) fn new(
        server_name: Option<&str>,
        ca_file: Option<&Path>,
        http2: bool,
    ) -> Result<UpstreamTls, UpstreamTlsError> {
        let server_name = server_name
            .map(|name| ServerName::try_from(name.to_owned()))
            .transpose()
            .map_err(UpstreamTlsError::ServerName)?;
        // Before they are read: if they change meanwhile, the next look finds others.
        let authorities = ca_file.map_or(0, |file| pem::digest(&[file]));
        let roots = match ca_file {
            Some(file) => pem::authorities(file).map_err(UpstreamTlsError::Authorities)?,
            None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        };
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(UpstreamTlsError::Library)?
                .with_root_certificates(roots)
                .with_no_client_auth();
        config.alpn_protocols.push(if http2 { H2.to_vec() } else { HTTP_11.to_vec() });
        Ok(UpstreamTls { server_name, http2, authorities, config: Arc::new(config) })
    }

    async fn shake_hands(
        &self,
        stream: TcpStream,
        name: ServerName<'static>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector.connect(name, stream).await?;
        // HTTP/1.1 is also what a server speaks that agrees on nothing.
        if self.http2 && stream.get_ref().1.alpn_protocol() != Some(H2) {
            let what = "the service does not agree on HTTP/2";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok(stream)
    }
}

/// Whether a certificate can be for this host.
pub(crate) fn can_be_named(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// The host of `host:port`, without the brackets of an address.
pub(crate) fn host_of(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _port)| host);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host)
}

/// Makes connections to one upstream.
#[derive(Debug)]
pub(crate) struct Dialer {
    tls: Option<UpstreamTls>,
    /// What the endpoints' names lead to, where certificates go by them.
    found: Mutex<BTreeMap<String, Vec<SocketAddr>>>,
}

impl Dialer {
    /// In clear, or over TLS.
    pub(crate) fn new(tls: Option<UpstreamTls>) -> Dialer {
        Dialer { tls, found: Mutex::default() }
    }

    /// What requests call the connections.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Learns that `endpoint` leads to these addresses, and to no others.
    pub(crate) fn found(&self, endpoint: &str, addresses: &[SocketAddr]) {
        if self.tls.as_ref().is_some_and(|tls| tls.server_name.is_none()) {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.insert(endpoint.to_owned(), addresses.to_vec());
        }
    }

    /// Connects. Put a bound on it.
    pub(crate) async fn dial(&self, address: SocketAddr) -> io::Result<Service> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Transport::Clear(stream)) };
        let name = match &tls.server_name {
            Some(name) => name.clone(),
            None => self.name_of(address).map_err(io::Error::other)?,
        };
        match tls.shake_hands(stream, name).await {
            Ok(stream) => Ok(Transport::Tls(Box::new(stream))),
            Err(error) => {
                tracing::debug!(%address, %error, "no TLS with this endpoint");
                Err(error)
            }
        }
    }

    /// The endpoint's host; the address itself if no name leads there any more.
    fn name_of(&self, address: SocketAddr) -> Result<ServerName<'static>, InvalidDnsNameError> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let named = found.iter().find(|(_, addresses)| addresses.contains(&address));
        named.map_or_else(
            || Ok(ServerName::from(address.ip())),
            |(endpoint, _)| ServerName::try_from(host_of(endpoint).to_owned()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_goes_by_the_endpoints_host() {
        for (endpoint, host) in [
            ("orders-1:8443", "orders-1"),
            ("192.0.2.1:443", "192.0.2.1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
        ] {
            assert_eq!(host_of(endpoint), host);
            assert!(can_be_named(host), "{host}");
        }
    }

    #[test]
    fn tls_is_the_same_as_long_as_the_file_and_its_authorities_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let write = || {
            let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
            std::fs::write(&file, made.cert.pem()).unwrap();
        };
        let tls = |name| UpstreamTls::new(name, Some(&file), false).unwrap();
        write();
        let first = tls(None);
        assert!(first == tls(None), "a reload disturbs no connection");
        assert!(first != tls(Some("a.test")));
        write();
        assert!(first != tls(None), "other authorities are another table");
    }

    #[test]
    fn names_that_moved_are_forgotten() {
        let address = |n: u8| SocketAddr::from(([192, 0, 2, n], 443));
        let dialer = Dialer::new(Some(UpstreamTls::new(None, None, false).unwrap()));
        let name = |n| dialer.name_of(address(n)).unwrap().to_str().into_owned();
        dialer.found("a.test:443", &[address(1), address(2)]);
        dialer.found("b.test:443", &[address(3)]);
        assert_eq!([name(1), name(2), name(3)], ["a.test", "a.test", "b.test"]);
        dialer.found("a.test:443", &[address(4)]);
        assert_eq!([name(1), name(4)], ["192.0.2.1", "a.test"]);
    }
}
