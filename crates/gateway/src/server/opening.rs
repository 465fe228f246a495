//! What a connection goes through before its first byte of HTTP, where a listener asks for it: TLS.
//! All of it has a bound in time and takes place in the connection's own task, so that nobody else
//! waits for it. A listener in clear skips this file.

use std::net::IpAddr;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::Shared;
use super::connections::Entered;
use super::patience::{Patient, UNREAD_MAX};
use super::tls::Acceptor;
use crate::headers::ForwardedBy;
use crate::stream::Transport;

/// A caller's bytes. Under TLS they are patient twice: below for a caller that takes nothing, above
/// for one that names no protocol.
pub(super) type Caller = Transport<TlsStream<Patient<TcpStream>>>;

/// What a listener asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Opening {
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
        self.tls.is_some()
    }

    /// What services are told of a caller at `peer`.
    pub(super) fn forwarded_by(&self, peer: IpAddr) -> ForwardedBy {
        if self.tls.is_some() { ForwardedBy::over_tls(peer) } else { ForwardedBy::new(peer) }
    }

    /// Goes through it; `None` if the connection ends here.
    pub(super) async fn pass<S>(
        &self,
        stream: TcpStream,
        peer: IpAddr,
        shared: &Shared<S>,
    ) -> Option<Opened> {
        let entered = shared.enter(peer)?;
        let stream = match &self.tls {
            None => Transport::Clear(stream),
            Some(acceptor) => secured(acceptor, stream, shared).await?,
        };
        Some(Opened { stream, peer, entered })
    }
}

async fn secured<S>(acceptor: &Acceptor, stream: TcpStream, shared: &Shared<S>) -> Option<Caller> {
    let shaking = acceptor.accept(Patient::with_protocol(stream, UNREAD_MAX));
    match timeout(shared.bounds.handshake_time, shaking).await {
        Ok(Ok(stream)) => return Some(Transport::Tls(Box::new(stream))),
        Ok(Err(error)) => tracing::debug!(%error, "no TLS with this caller"),
        Err(_elapsed) => tracing::debug!("a caller did not finish its TLS handshake"),
    }
    shared.metrics.listen.handshake.inc();
    None
}
