//! Several listeners of one gateway: each with its own address, family and protocol, all with the
//! same routes and limits.

use std::net::SocketAddr;
use std::time::Duration;

use gateway::config::{self, PolicyChoice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::bytes::write;
use crate::support::tls::{Authority, Https, Wants};
use crate::support::{Gateway, KEY, PATIENCE, Service, file, get, tally};

const FEW: &str = "burst = { capacity = 4, refill = \"1/d\" }";
const ADDRESS: &str = "address = \"127.0.0.1:0\"\n";

/// The address of another listener of the gateway.
fn announced(gateway: &Gateway, what: &str) -> SocketAddr {
    gateway.addresses[what]
}

#[tokio::test]
async fn several_listeners_share_routes_and_limits_and_each_has_its_protocol() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.pair(&["a.test"]).write(folder.path(), "a");
    let pem = |name: &str| folder.path().join(name).display().to_string();
    let more = format!(
        "{ADDRESS}[listen.secure]\n{ADDRESS}tls = {{ cert_file = \"{}\", key_file = \"{}\" }}\n\
         [listen.old]\n{ADDRESS}http2 = false\n",
        pem("a.pem"),
        pem("a.key"),
    );
    let service = Service::hello().await;
    let text = file(FEW, "", service.address).replacen(ADDRESS, &more, 1);
    let gateway = Gateway::start(&text).await;
    // `main` first, the others by their names.
    let (old, secure) = (announced(&gateway, "traffic2"), announced(&gateway, "traffic3"));
    let key = [("x-api-key", KEY)];
    let wants = Wants { alpn: &["h2"], ..Wants::plain(&authority) };
    let mut over_tls = Https::open(secure, "a.test", wants).await.unwrap();
    assert!(over_tls.is_http2());
    let mut replies = Vec::new();
    for _ in 0..2 {
        replies.push(get(gateway.traffic, "/", &key).await);
        replies.push(get(old, "/", &key).await);
        replies.push(over_tls.get().await.unwrap());
    }
    assert_eq!(tally(&replies), [(200, 4), (429, 2)], "one limit");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    assert_eq!(write(old, preface).await.text, "", "HTTP/2 is not spoken there");
}

#[tokio::test]
async fn ipv6_is_served_and_its_callers_are_told_as_such() {
    let service = Service::hello().await;
    let text = file(FEW, "", service.address).replacen("127.0.0.1:0", "[::1]:0", 1);
    let gateway = Gateway::start(&text).await;
    assert!(gateway.traffic.is_ipv6());
    let host = gateway.traffic;
    let bytes =
        format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-api-key: {KEY}\r\nconnection: close\r\n\r\n");
    assert_eq!(write(gateway.traffic, bytes.as_bytes()).await.statuses, [200]);
    let seen = service.last().headers;
    assert_eq!(seen["x-forwarded-for"], "::1");
    assert_eq!(seen["forwarded"], "for=\"[::1]\";proto=http");
    assert_eq!(seen["host"], host.to_string());
    // Bound to all addresses, one socket serves both families, and IPv4 callers look as ever.
    let text = file(FEW, "", service.address).replacen("127.0.0.1:0", "[::]:0", 1);
    let gateway = Gateway::start(&text).await;
    for at in ["127.0.0.1", "::1"] {
        let to = SocketAddr::new(at.parse().unwrap(), gateway.traffic.port());
        assert_eq!(write(to, bytes.as_bytes()).await.statuses, [200], "{at}");
        assert_eq!(service.last().headers["x-forwarded-for"], at);
    }
}

#[tokio::test]
async fn a_worker_takes_no_more_connections_than_it_may_and_the_next_one_waits() {
    let service = Service::hello().await;
    let text = file(FEW, "", service.address) + "[limits]\nconnections_per_worker = 1\n";
    let gateway = Gateway::start(&text).await;
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    let mut first = TcpStream::connect(gateway.traffic).await.unwrap();
    first.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(first.read_u8().await.unwrap(), b'H');
    let mut second = TcpStream::connect(gateway.traffic).await.unwrap();
    second.write_all(request.as_bytes()).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), second.read_u8()).await;
    assert!(early.is_err(), "{early:?} although the one place is taken");
    drop(first);
    let answered = tokio::time::timeout(PATIENCE, second.read_u8()).await;
    assert_eq!(answered.expect("a place is free").unwrap(), b'H');
    assert_eq!(service.requests(), 2);
}

#[test]
fn without_a_listener_there_is_one_and_every_mistake_about_them_is_told() {
    let rest = "[[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = [\"127.0.0.1:1\"]\n";
    let config = config::parse(rest, std::path::Path::new(".")).unwrap();
    let [main] = &config.listeners[..] else { panic!("{:?}", config.listeners) };
    assert_eq!(
        (main.name.as_str(), main.address.to_string()),
        ("main", "127.0.0.1:8080".to_owned())
    );
    assert!(matches!(config.policy, PolicyChoice::File(_)));
    for (key, bad) in [("address", "\"8080\""), ("http2", "\"yes\""), ("adress", "\"127.0.0.1:1\"")]
    {
        let text = format!("[listen.x]\n{key} = {bad}\n{rest}");
        crate::support::mistakes(&text, std::path::Path::new("."), &format!("listen.x.{key}"), "");
    }
}
