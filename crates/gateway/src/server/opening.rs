//! What a connection goes through before its first byte of HTTP, where a listener asks for it: the
//! word of a balancer about its caller, then TLS. All of it has a bound in time and takes place in
//! the connection's own task, so that nobody else waits for it. A listener that asks for neither
//! skips this file.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::Shared;
use super::connections::Entered;
use super::patience::{Patient, UNREAD_MAX};
use super::proxy_protocol::{self, Told};
use super::tls::Acceptor;
use crate::config::Bounds;
use crate::headers::ForwardedBy;
use crate::stream::Transport;

/// A caller's bytes. Under TLS they are patient twice: below for a caller that takes nothing, above
/// for one that names no protocol.
pub(super) type Caller = Transport<TlsStream<Patient<TcpStream>>>;

/// What a listener asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Opening {
    /// The PROXY protocol, from peers in these networks and from nobody else.
    pub trusted: Option<Arc<[IpNet]>>,
    /// TLS.
    pub tls: Option<Acceptor>,
}

/// A connection that may speak HTTP.
pub(super) struct Opened {
    pub(super) stream: Caller,
    pub(super) peer: IpAddr,
    pub(super) entered: Entered,
}

impl Opening {
    /// Whether there is anything to go through.
    pub(super) fn is_needed(&self) -> bool {
        self.trusted.is_some() || self.tls.is_some()
    }

    /// What services are told of a caller at `peer`.
    pub(super) fn forwarded_by(&self, peer: IpAddr) -> ForwardedBy {
        if self.tls.is_some() { ForwardedBy::over_tls(peer) } else { ForwardedBy::new(peer) }
    }

    /// Goes through it; `None` if the connection ends here.
    pub(super) async fn pass<S>(
        &self,
        mut stream: TcpStream,
        peer: IpAddr,
        bounds: &Bounds,
        shared: &Shared<S>,
    ) -> Option<Opened> {
        let peer = match &self.trusted {
            None => peer,
            Some(trusted) => told(trusted, &mut stream, peer, bounds, shared).await?,
        };
        // By the caller's address, not by that of the balancer.
        let entered = shared.enter(peer)?;
        let stream = match &self.tls {
            None => Transport::Clear(stream),
            Some(acceptor) => secured(acceptor, stream, bounds, shared).await?,
        };
        Some(Opened { stream, peer, entered })
    }
}

/// The address that a trusted peer tells, or its own if it speaks for itself.
async fn told<S>(
    trusted: &[IpNet],
    stream: &mut TcpStream,
    peer: IpAddr,
    bounds: &Bounds,
    shared: &Shared<S>,
) -> Option<IpAddr> {
    let dropped = &shared.metrics.listen;
    let canonical = peer.to_canonical();
    if !trusted.iter().any(|network| network.contains(&canonical)) {
        tracing::debug!(%peer, "no trusted proxy");
        dropped.untrusted.inc();
        return None;
    }
    match timeout(bounds.head_time, proxy_protocol::read(stream)).await {
        Ok(Ok(Told::Local)) => return Some(peer),
        Ok(Ok(Told::Source(address))) => return Some(address),
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::debug!(%peer, %error, cause, "a trusted proxy tells no caller");
        }
        Err(_elapsed) => tracing::debug!(%peer, "a trusted proxy tells nothing"),
    }
    dropped.header.inc();
    None
}

async fn secured<S>(
    acceptor: &Acceptor,
    stream: TcpStream,
    bounds: &Bounds,
    shared: &Shared<S>,
) -> Option<Caller> {
    match timeout(bounds.handshake_time, patiently(acceptor, stream)).await {
        Ok(Ok(stream)) => return Some(Transport::Tls(Box::new(stream))),
        Ok(Err(error)) => tracing::debug!(%error, "no TLS with this caller"),
        Err(_elapsed) => tracing::debug!("a caller did not finish its TLS handshake"),
    }
    shared.metrics.listen.handshake.inc();
    None
}

/// TLS holds bytes back for a while, so only below it can be seen whether a caller takes any.
async fn patiently<T>(acceptor: &Acceptor, io: T) -> io::Result<TlsStream<Patient<T>>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    acceptor.accept(Patient::with_protocol(io, UNREAD_MAX)).await
}

#[cfg(test)]
mod tests {
    use rcgen::generate_simple_self_signed;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::Instant;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::config::{ListenerTls, PairFiles};
    use crate::server::tls::Certificates;

    #[tokio::test(start_paused = true)]
    async fn under_tls_too_a_caller_that_takes_nothing_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let made = generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let file = |name: &str| folder.path().join(name);
        let files = PairFiles { cert_file: file("a.pem"), key_file: file("a.key") };
        std::fs::write(&files.cert_file, made.cert.pem()).unwrap();
        std::fs::write(&files.key_file, made.signing_key.serialize_pem()).unwrap();
        let tls = ListenerTls { pairs: vec![files], client_ca_file: None };
        let acceptor = Certificates::load("main", true, &tls).unwrap().acceptor();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();

        let (ours, theirs) = duplex(1_024);
        let name = ServerName::try_from("a.test").unwrap();
        let (served, _caller) = tokio::join!(
            patiently(&acceptor, ours),
            TlsConnector::from(Arc::new(config)).connect(name, theirs),
        );
        let mut served = served.unwrap();
        let began = Instant::now();
        // It fits into what TLS holds back, so only the flush has to wait for the caller.
        served.write_all(&[7; 8_192]).await.unwrap();
        let error = served.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), UNREAD_MAX.as_secs());
    }
}
