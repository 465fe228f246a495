//! Authorities, their certificates in files, and callers over TLS.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{KEY, PATIENCE, Reply};

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one that nobody trusts yet.
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes it for those who shall trust it.
    pub(crate) fn write(&self, folder: &Path, name: &str) {
        std::fs::write(folder.join(name), self.0.pem()).unwrap();
    }

    /// A certificate for names and addresses, with its key.
    pub(crate) fn pair(&self, names: &[&str]) -> Pair {
        self.pair_until(names, 4096)
    }

    /// The same, until the beginning of a year.
    pub(crate) fn pair_until(&self, names: &[&str], year: i32) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let signed = params.signed_by(&key, &self.0).unwrap();
        Pair { certificate: signed.pem(), key: key.serialize_pem() }
    }
}

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pair {
    /// Writes `name.pem` and `name.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) {
        std::fs::write(folder.join(format!("{name}.pem")), &self.certificate).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), &self.key).unwrap();
    }

    /// What a peer sees of it.
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }

    /// A server that shows it, and speaks these protocols.
    pub(crate) fn server(&self, alpn: &[&str]) -> Arc<rustls::ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.der()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// How a caller shakes hands.
#[derive(Clone, Copy)]
pub(crate) struct Wants<'a> {
    pub(crate) trusts: &'a Authority,
    pub(crate) alpn: &'a [&'a str],
    pub(crate) own: Option<&'a Pair>,
    pub(crate) versions: &'a [&'static rustls::SupportedProtocolVersion],
}

impl<'a> Wants<'a> {
    /// Any version, no certificate of its own, HTTP/1.1 without saying so.
    pub(crate) fn plain(trusts: &'a Authority) -> Wants<'a> {
        Wants { trusts, alpn: &[], own: None, versions: rustls::ALL_VERSIONS }
    }

    /// Shakes hands, asking for `name`, and says nothing yet.
    pub(crate) async fn connect(
        &self,
        to: SocketAddr,
        name: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        self.shake(TcpStream::connect(to).await?, name).await
    }

    async fn shake(&self, stream: TcpStream, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let shaking = TlsConnector::from(self.config()).connect(name, stream);
        tokio::time::timeout(PATIENCE, shaking).await.expect("an end in time")
    }

    fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.trusts.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.own {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![pair.der()], key).unwrap()
            }
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// A caller's connection over TLS.
pub(crate) struct Https {
    sender: Sender,
    /// The certificate that was shown.
    pub(crate) shown: CertificateDer<'static>,
    pub(crate) version: ProtocolVersion,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Https {
    /// Connects and asks for `name`; an address asks for none.
    pub(crate) async fn open(to: SocketAddr, name: &str, wants: Wants<'_>) -> io::Result<Https> {
        let stream = TcpStream::connect(to).await?;
        Https::over(stream, name, wants).await
    }

    /// The same over a connection that was begun.
    pub(crate) async fn over(stream: TcpStream, name: &str, wants: Wants<'_>) -> io::Result<Https> {
        let stream = wants.shake(stream, name).await?;
        let (_, session) = stream.get_ref();
        let shown = session.peer_certificates().unwrap()[0].clone().into_owned();
        let version = session.protocol_version().unwrap();
        let http2 = session.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(stream);
        let sender = if http2 {
            let shaken = http2::handshake(TokioExecutor::new(), io).await;
            let (sender, connection) = shaken.map_err(io::Error::other)?;
            daemon::tasks::spawn("caller", connection);
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await.map_err(io::Error::other)?;
            daemon::tasks::spawn("caller", connection);
            Sender::Http1(sender)
        };
        Ok(Https { sender, shown, version })
    }

    /// Whether HTTP/2 was agreed on.
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// GET with the key of `acme`.
    pub(crate) async fn get(&mut self) -> Result<Reply, hyper::Error> {
        let request = Request::get("/").header("x-api-key", KEY);
        let exchange = async {
            let response = match &mut self.sender {
                Sender::Http1(sender) => {
                    let request = request.header("host", "api.test");
                    sender.send_request(request.body(Full::default()).unwrap()).await?
                }
                Sender::Http2(sender) => {
                    let request = request.uri("https://api.test/");
                    sender.send_request(request.body(Full::default()).unwrap()).await?
                }
            };
            let (head, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
    }
}

/// A service over TLS that answers `secure`, and counts what arrives.
pub(crate) struct SecureService {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<Parts>>>,
    connections: Arc<AtomicU64>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for SecureService {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl SecureService {
    /// Shows `pair` and agrees on these protocols.
    pub(crate) async fn start(pair: &Pair, alpn: &[&str]) -> SecureService {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(pair.server(alpn));
        let (heads, connections) = (Arc::<Mutex<Vec<Parts>>>::default(), Arc::default());
        let (keeping, counting) = (Arc::clone(&heads), Arc::clone(&connections));
        let accepting = daemon::tasks::spawn("secure service", async move {
            while let Ok((stream, _)) = listener.accept().await {
                AtomicU64::fetch_add(&counting, 1, Ordering::SeqCst);
                let (acceptor, keeping) = (acceptor.clone(), Arc::clone(&keeping));
                daemon::tasks::spawn("secure connection", async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let answer = service_fn(move |request: Request<Incoming>| {
                        keeping.lock().unwrap().push(request.into_parts().0);
                        let body = Full::new(Bytes::from_static(b"secure"));
                        async { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
                    });
                    let engine = auto::Builder::new(TokioExecutor::new());
                    engine.serve_connection(TokioIo::new(stream), answer).await.ok();
                });
            }
        });
        SecureService { address, heads, connections, accepting }
    }

    /// Heads of requests that arrived for a path.
    pub(crate) fn heads(&self, path: &str) -> Vec<Parts> {
        let heads = self.heads.lock().unwrap();
        heads.iter().filter(|head| head.uri.path() == path).cloned().collect()
    }

    /// Connections that were made, whatever became of them.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}
