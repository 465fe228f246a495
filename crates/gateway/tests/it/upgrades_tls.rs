//! Upgrades where TLS comes before HTTP: at the gateway and at the service.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::support::socket::{field, handshake, head};
use crate::support::tls::{Authority, Https, Wants};
use crate::support::{Gateway, KEY, PATIENCE, eventually, file};

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";

#[tokio::test]
async fn an_upgrade_passes_over_tls_on_both_sides_and_holds_its_place_to_its_end() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let pair = authority.pair(&["a.test", "127.0.0.1"]);
    pair.write(folder.path(), "a");
    authority.write(folder.path(), "ca.pem");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let acceptor = TlsAcceptor::from(pair.server(&[]));
    let serving = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut service = acceptor.accept(stream).await.unwrap();
        let asked = head(&mut service).await;
        assert_eq!(field(&asked, "x-forwarded-proto"), "https");
        let agreed = "HTTP/1.1 101 Go\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nhello";
        service.write_all(agreed.as_bytes()).await.unwrap();
        service.flush().await.unwrap();
        service
    };
    let at = folder.path().display();
    let tls = format!("tls = {{ cert_file = \"{at}/a.pem\", key_file = \"{at}/a.key\" }}\n");
    let text = file(PLAN, "", listener.local_addr().unwrap()).replacen(
        "[operations]\n",
        &format!("{tls}[operations]\n"),
        1,
    );
    let text = format!(
        "{text}tls = {{ ca_file = \"{at}/ca.pem\" }}\n[limits]\nconnections_per_address = 1\n"
    );
    let gateway = Gateway::start(&text).await;
    let wants = Wants::plain(&authority);
    let opening = async {
        let mut caller = wants.connect(gateway.traffic, "a.test").await.unwrap();
        caller.write_all(handshake(KEY, "").as_bytes()).await.unwrap();
        let answer = head(&mut caller).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        caller
    };
    let both = async { tokio::join!(opening, serving) };
    let (mut caller, mut service) = tokio::time::timeout(PATIENCE, both).await.expect("in time");
    let mut bytes = [0; 5];
    caller.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"hello");
    caller.write_all(b"there").await.unwrap();
    service.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"there");

    let open = async || Https::open(gateway.traffic, "a.test", wants).await;
    assert!(open().await.is_err(), "the one place is taken");
    drop((caller, service));
    eventually("the place is free again", async || open().await.is_ok()).await;
}
