//! TLS: old versions and weak suites get no handshake, nothing is taken before its end, and a
//! protocol is agreed on or the connection ends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::KEY;
use crate::support::tls::{Authority, Https, Wants};
use crate::support::{Gateway, PATIENCE, Service, file};

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";
/// Alerts.
const HANDSHAKE_FAILURE: u8 = 40;
const PROTOCOL_VERSION: u8 = 70;

async fn gateway(folder: &Path, service: SocketAddr) -> Gateway {
    let address = "address = \"127.0.0.1:0\"\n";
    let (cert, key) = (folder.join("a.pem"), folder.join("a.key"));
    let tls = format!(
        "tls = {{ cert_file = \"{}\", key_file = \"{}\" }}\n",
        cert.display(),
        key.display()
    );
    Gateway::start(&file(PLAN, "", service).replacen(address, &format!("{address}{tls}"), 1)).await
}

/// A first message of this version with these suites.
fn hello(version: [u8; 2], suites: &[u16]) -> Vec<u8> {
    let with_length = |bytes: Vec<u8>| {
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        [&length[..], &bytes].concat()
    };
    let extension =
        |kind: u16, bytes: Vec<u8>| [kind.to_be_bytes().to_vec(), with_length(bytes)].concat();
    let suites = with_length(suites.iter().flat_map(|suite| suite.to_be_bytes()).collect());
    let extensions = with_length(
        [
            extension(10, with_length(vec![0, 29, 0, 23])), // groups: x25519, P-256
            extension(13, with_length(vec![4, 3, 8, 4, 4, 1, 2, 1])), // signatures, the last with SHA-1
            extension(11, vec![1, 0]),
        ]
        .concat(),
    );
    let body = [&version[..], &[7; 32], &[0], &suites, &[1, 0], &extensions].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = with_length([&[1][..], &length[1..], &body].concat());
    [&[0x16, 3, 1][..], &message].concat()
}

/// The alert with which a hello is refused; `None` if it is answered with another.
async fn alert(to: SocketAddr, hello: &[u8]) -> Option<u8> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(hello).await.unwrap();
    let mut record = [0; 7];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut record)).await.unwrap();
    (read.is_ok() && record[0] == 0x15).then_some(record[6])
}

#[tokio::test]
async fn s41_old_versions_and_weak_suites_get_no_handshake() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.pair(&["a.test"]).write(folder.path(), "a");
    let service = Service::hello().await;
    let gateway = gateway(folder.path(), service.address).await;
    let (strong, all) = (&[0xc02b, 0xc02f][..], &[0xc02b, 0xc02f, 0xc013, 0x002f, 0x000a][..]);
    for (what, version, suites, expected) in [
        ("TLS 1.2 with AES-GCM", [3, 3], strong, None),
        ("TLS 1.2 with both", [3, 3], all, None),
        ("SSL 3.0", [3, 0], all, Some(PROTOCOL_VERSION)),
        ("TLS 1.0", [3, 1], all, Some(PROTOCOL_VERSION)),
        ("TLS 1.1", [3, 2], all, Some(PROTOCOL_VERSION)),
        ("CBC", [3, 3], &[0xc013, 0xc014, 0xc009, 0xc023, 0xc027], Some(HANDSHAKE_FAILURE)),
        ("no forward secrecy", [3, 3], &[0x002f, 0x0035, 0x009c, 0x009d], Some(HANDSHAKE_FAILURE)),
        (
            "3DES, RC4, export, null, nobody",
            [3, 3],
            &[10, 5, 4, 3, 8, 1, 2, 0x34, 0xc006, 0xc010],
            Some(HANDSHAKE_FAILURE),
        ),
    ] {
        assert_eq!(alert(gateway.traffic, &hello(version, suites)).await, expected, "{what}");
    }
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn s41_a_protocol_is_agreed_on_or_the_connection_ends() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.pair(&["a.test"]).write(folder.path(), "a");
    let service = Service::hello().await;
    let gateway = gateway(folder.path(), service.address).await;
    for alpn in [&["http/1.0"][..], &["h3"], &["h2c"], &["ftp", "xmpp-client"]] {
        let wants = Wants { alpn, ..Wants::plain(&authority) };
        let error = Https::open(gateway.traffic, "a.test", wants).await.err();
        let error = error.unwrap_or_else(|| panic!("{alpn:?} is spoken")).to_string();
        assert!(error.contains("NoApplicationProtocol"), "{alpn:?}: {error}");
    }
}

#[tokio::test]
async fn s41_a_session_that_is_resumed_brings_no_early_data() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let pair = authority.pair(&["a.test"]);
    pair.write(folder.path(), "a");
    authority.write(folder.path(), "ca.pem");
    let service = Service::hello().await;
    let gateway = gateway(folder.path(), service.address).await;
    let mut config = client(folder.path());
    config.enable_early_data = true;
    let (config, name) = (Arc::new(config), ServerName::try_from("a.test").unwrap());
    for round in 0..2 {
        let early = ClientConnection::new(Arc::clone(&config), name.clone())
            .unwrap()
            .early_data()
            .is_some();
        assert!(!early, "no ticket allows it");
        let stream = TcpStream::connect(gateway.traffic).await.unwrap();
        let mut stream =
            TlsConnector::from(Arc::clone(&config)).connect(name.clone(), stream).await.unwrap();
        let request = format!(
            "GET / HTTP/1.1\r\nhost: a.test\r\nx-api-key: {KEY}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        let kind = stream.get_ref().1.handshake_kind().unwrap();
        assert_eq!(kind == HandshakeKind::Resumed, round == 1, "{kind:?}");
    }
}

fn client(folder: &Path) -> ClientConfig {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}
