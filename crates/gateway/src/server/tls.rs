//! TLS of a listener: certificates by name, replaced while connections go on.
//!
//! Files are looked at again every few seconds, by one task for all listeners. What is good is
//! swapped in whole and serves the connections that begin from then on; a pair that cannot be read
//! or does not fit leaves the one before it in use, which the log and a metric tell. So an
//! authority's robot may write the two files one after the other. Early data (0-RTT) stays off:
//! it can be replayed, and a request is charged once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use daemon::Drain;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, Ticketer};
use rustls::pki_types::ServerName;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::expiry::expires;
use super::metrics::TlsMetrics;
use super::pem::{self, FileError, digest};
use crate::config::{ListenerTls, PairFiles};

/// Most certificates of one listener: a handshake may look at each of them.
pub(crate) const PAIRS_MAX: usize = 100;
/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Why a pair cannot be used; each says which file to look at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    /// The certificate's file.
    #[error("no certificate")]
    Certificate(#[source] FileError),
    /// The key's file.
    #[error("no key")]
    Key(#[source] FileError),
    /// Both are good, but not together.
    #[error("{0} is not the key of {1}")]
    Strangers(PathBuf, PathBuf),
}

/// Why TLS cannot begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A certificate or key.
    #[error("a certificate cannot be used")]
    Pair(#[from] PairError),
    /// The file of authorities.
    #[error("the authorities of callers cannot be used")]
    Authorities(#[from] FileError),
    /// The library refuses.
    #[error("TLS cannot be set up")]
    Library(#[from] rustls::Error),
}

/// Accepts the TLS connections of one listener with the certificates of that moment.
#[derive(Debug, Clone)]
pub(crate) struct Acceptor(Arc<ArcSwap<ServerConfig>>);

impl Acceptor {
    /// Shakes hands. Put a bound on it.
    pub(crate) async fn accept<T>(&self, io: T) -> io::Result<TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.0.load_full()).accept(io).await
    }
}

/// The certificates of one listener, and what was last seen in their files.
#[derive(Debug)]
pub(crate) struct Certificates {
    listener: String,
    http2: bool,
    pairs: Vec<KeptPair>,
    clients: Option<KeptClients>,
    current: Arc<ArcSwap<ServerConfig>>,
    /// Something was taken that `current` does not have yet.
    owed: bool,
}

/// Files, and what was made of them when they were last good.
#[derive(Debug)]
struct Kept<F, T> {
    files: F,
    seen: u64,
    current: T,
    stale: bool,
}

type KeptPair = Kept<PairFiles, Arc<CertifiedKey>>;
type KeptClients = Kept<PathBuf, Arc<dyn ClientCertVerifier>>;

impl<F, T> Kept<F, T> {
    /// Takes what is new in the files. True if it is to be used from now on.
    fn look<E: std::error::Error + 'static>(
        &mut self,
        listener: &str,
        digest: impl Fn(&F) -> u64,
        make: impl FnOnce(&F) -> Result<T, E>,
    ) -> bool {
        let seen = digest(&self.files);
        if seen == self.seen {
            return false;
        }
        let made = make(&self.files);
        if digest(&self.files) != seen {
            return false; // somebody is writing: the next look will tell
        }
        self.seen = seen;
        match made {
            Ok(current) => {
                self.current = current;
                self.stale = false;
                true
            }
            Err(error) => {
                self.stale = true;
                let error = pem::chain(&error);
                tracing::warn!(listener, error, "new TLS files are not used; the old stay");
                false
            }
        }
    }
}

impl Certificates {
    /// Reads all files; each must be good at the start.
    pub(crate) fn load(
        listener: &str,
        http2: bool,
        tls: &ListenerTls,
    ) -> Result<Certificates, TlsError> {
        let mut pairs = Vec::with_capacity(tls.pairs.len());
        for files in &tls.pairs {
            let (files, seen) = (files.clone(), digest_of(files));
            let current = Arc::new(pair(&files)?);
            pairs.push(Kept { files, seen, current, stale: false });
        }
        let clients = match &tls.client_ca_file {
            None => None,
            Some(file) => {
                let (seen, current) = (digest(&[file.as_path()]), client_verifier(file)?);
                Some(Kept { files: file.clone(), seen, current, stale: false })
            }
        };
        let config = config(&pairs, clients.as_ref(), http2)?;
        let current = Arc::new(ArcSwap::from_pointee(config));
        let listener = listener.to_owned();
        Ok(Certificates { listener, http2, pairs, clients, current, owed: false })
    }

    /// For the listener's connections.
    pub(crate) fn acceptor(&self) -> Acceptor {
        Acceptor(Arc::clone(&self.current))
    }

    /// Shows when those that are in use end.
    fn show_ends(&self, metrics: &TlsMetrics) {
        for Kept { files, current, .. } in &self.pairs {
            metrics.expires(&files.cert_file, current.cert.first().and_then(expires));
        }
    }

    /// Looks at all files once.
    fn look(&mut self, metrics: &TlsMetrics) {
        for kept in &mut self.pairs {
            self.owed |= kept.look(&self.listener, digest_of, |files| pair(files).map(Arc::new));
        }
        if let Some(kept) = &mut self.clients {
            let digest = |file: &PathBuf| digest(&[file]);
            self.owed |= kept.look(&self.listener, digest, |file| client_verifier(file));
        }
        if self.owed {
            match config(&self.pairs, self.clients.as_ref(), self.http2) {
                Ok(config) => {
                    self.current.store(Arc::new(config));
                    self.owed = false;
                    metrics.reloads.inc();
                    self.show_ends(metrics);
                    tracing::info!(listener = self.listener, "new TLS files are in use");
                }
                Err(error) => tracing::error!(listener = self.listener, %error, "TLS as before"),
            }
        }
        let stale = self.pairs.iter().filter(|kept| kept.stale).count()
            + usize::from(self.clients.as_ref().is_some_and(|kept| kept.stale));
        metrics.stale.set(i64::try_from(stale).unwrap_or(i64::MAX));
    }
}

/// Looks at the files of all listeners, again and again, until the drain.
pub(crate) async fn keep_current(mut all: Vec<(Certificates, TlsMetrics)>, drain: Drain) {
    all.iter().for_each(|(certificates, metrics)| certificates.show_ends(metrics));
    let mut ended = std::pin::pin!(drain.started());
    loop {
        tokio::select! {
            () = &mut ended => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        // A file system that hangs must not hold a thread of the runtime.
        let looked = tokio::task::spawn_blocking(move || {
            all.iter_mut().for_each(|(certificates, metrics)| certificates.look(metrics));
            all
        });
        match looked.await {
            Ok(back) => all = back,
            Err(error) => {
                tracing::error!(%error, "certificates are no longer looked at");
                return;
            }
        }
    }
}

fn config(
    pairs: &[KeptPair],
    clients: Option<&KeptClients>,
    http2: bool,
) -> Result<ServerConfig, TlsError> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(kept) => builder.with_client_cert_verifier(Arc::clone(&kept.current)),
    };
    let by_name = ByName(pairs.iter().map(|kept| Arc::clone(&kept.current)).collect());
    let mut config = builder.with_cert_resolver(Arc::new(by_name));
    config.ticketer = Ticketer::new()?;
    if http2 {
        config.alpn_protocols.push(b"h2".to_vec());
    }
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Reads a pair and sees that it fits.
pub(crate) fn pair(files: &PairFiles) -> Result<CertifiedKey, PairError> {
    let PairFiles { cert_file, key_file } = files;
    let chain = pem::certificates(cert_file).map_err(PairError::Certificate)?;
    if let Some(Err(error)) = chain.first().map(ParsedCertificate::try_from) {
        return Err(PairError::Certificate(FileError::Unusable(cert_file.clone(), error)));
    }
    let key = pem::key(key_file).map_err(PairError::Key)?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| {
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            PairError::Strangers(key_file.clone(), cert_file.clone())
        } else {
            PairError::Key(FileError::Unusable(key_file.clone(), error))
        }
    })
}

fn digest_of(files: &PairFiles) -> u64 {
    digest(&[&files.cert_file, &files.key_file])
}

/// Demands certificates of the authorities in `file`.
pub(crate) fn client_verifier(file: &Path) -> Result<Arc<dyn ClientCertVerifier>, FileError> {
    let roots = Arc::new(pem::authorities(file)?);
    let built = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
    // It fails only without an authority, and the file has one.
    built.map_err(|_none| FileError::Empty(file.to_owned(), "authority"))
}

/// The first certificate for the name that a caller asks for and with a key that it understands;
/// else the first of all.
#[derive(Debug)]
struct ByName(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let fits = |pair: &&Arc<CertifiedKey>| {
            name.as_ref().is_some_and(|name| is_for(pair, name))
                && pair.key.choose_scheme(hello.signature_schemes()).is_some()
        };
        let named = if self.0.len() < 2 { None } else { self.0.iter().find(fits) };
        named.or_else(|| self.0.first()).cloned()
    }
}

fn is_for(pair: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = pair.end_entity_cert().and_then(ParsedCertificate::try_from);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}
