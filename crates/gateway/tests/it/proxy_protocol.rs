//! PROXY protocol, version 2: a trusted balancer says where a caller is; from everybody else, and
//! in every other form, it closes the connection.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::tls::{Authority, Https, Wants};
use crate::support::{Gateway, KEY, PATIENCE, Service, eventually, file, mistakes};

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";
const TRUSTED: &str = "proxy_protocol = true\ntrusted_proxies = [\"127.0.0.0/8\"]";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A file whose listener has these lines.
fn text(service: SocketAddr, listen: &str) -> String {
    let address = "address = \"127.0.0.1:0\"\n";
    file(PLAN, "", service).replacen(address, &format!("{address}{listen}\n"), 1)
}

fn header(command: u8, transport: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, transport], &length, block].concat()
}

/// A header that passes a caller on.
fn from(source: &str) -> Vec<u8> {
    match source.parse().unwrap() {
        IpAddr::V4(ip) => {
            header(0x21, 0x11, &[&ip.octets()[..], &[192, 0, 2, 9], &[0, 7, 0, 80]].concat())
        }
        IpAddr::V6(ip) => {
            header(0x21, 0x21, &[&ip.octets()[..], &[9; 16], &[0, 7, 0, 80]].concat())
        }
    }
}

fn request() -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-api-key: {KEY}\r\n\r\n").into()
}

/// What comes back until the connection ends, if only by a reset.
async fn answer(to: SocketAddr, pieces: &[&[u8]]) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        for piece in pieces {
            if stream.write_all(piece).await.is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an end in time")
}

fn shows(gateway: &Gateway, line: &str) -> bool {
    gateway.context.metrics.render().lines().any(|shown| shown == line)
}

#[tokio::test]
async fn a_trusted_balancer_says_where_the_caller_is() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&text(service.address, TRUSTED)).await;
    let id = [0x05, 0, 3, b'a', b'b', b'c'];
    let with_id = {
        let block = [&[198, 51, 100, 8, 192, 0, 2, 9, 0, 7, 0, 80][..], &id].concat();
        header(0x21, 0x11, &block)
    };
    for (head, address) in [
        (from("198.51.100.7"), "198.51.100.7"),
        (with_id, "198.51.100.8"),
        (from("2001:db8::7"), "2001:db8::7"),
        (from("::ffff:198.51.100.9"), "198.51.100.9"),
        (header(0x20, 0x00, &[]), "127.0.0.1"),
        (header(0x20, 0x11, &[7; 12]), "127.0.0.1"),
    ] {
        let answered = answer(gateway.traffic, &[&head, &request()]).await;
        assert!(answered.starts_with("HTTP/1.1 200 "), "{address}: {answered}");
        assert_eq!(service.last().headers["x-forwarded-for"], address);
        // The same byte by byte, and the request in one piece with the end of the header.
        let (begin, end) = head.split_at(head.len() - 1);
        let mut pieces: Vec<&[u8]> = begin.chunks(1).collect();
        let end = [end, &request()].concat();
        pieces.push(&end);
        let answered = answer(gateway.traffic, &pieces).await;
        assert!(answered.starts_with("HTTP/1.1 200 "), "{address}: {answered}");
        assert_eq!(service.last().headers["x-forwarded-for"], address);
    }
}

#[tokio::test]
async fn who_counts_is_the_caller_that_the_balancer_names() {
    let service = Service::hello().await;
    let route = "upstream = \"up\"\nauth = \"anonymous\"\n[anonymous]\nplan = \"free\"\n\
        [plan.free]\nburst = { capacity = 1, refill = \"1/d\" }\n";
    let text = text(service.address, TRUSTED).replacen("upstream = \"up\"\n", route, 1);
    let gateway = Gateway::start(&text).await;
    for (named, written, status) in [
        ("198.51.100.7", "203.0.113.1", "200"),
        ("198.51.100.7", "203.0.113.2", "429"), // its own words choose no bucket
        ("198.51.100.8", "198.51.100.7", "200"),
        ("127.0.0.3", "198.51.100.7", "429"), // a trusted proxy's do
        ("127.0.0.3", "198.51.100.9", "200"),
    ] {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-forwarded-for: {written}\r\n\r\n"
        );
        let answered = answer(gateway.traffic, &[&from(named), request.as_bytes()]).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answered.starts_with(&expected), "{named} {written}: {answered}");
    }
    assert_eq!(service.last().headers["x-forwarded-for"], "198.51.100.9, 127.0.0.3");
}

#[tokio::test]
async fn a_forged_header_of_anybody_else_gets_no_answer() {
    let service = Service::hello().await;
    let listen = TRUSTED.replace("127.0.0.0/8", "192.0.2.0/24\", \"2001:db8::1");
    let gateway = Gateway::start(&text(service.address, &listen)).await;
    for head in [from("192.0.2.1"), header(0x20, 0x00, &[]), Vec::new()] {
        assert_eq!(answer(gateway.traffic, &[&head, &request()]).await, "");
    }
    assert!(shows(&gateway, "weir_gateway_connections_dropped_total{reason=\"untrusted\"} 3"));
    eventually("none is left", async || shows(&gateway, "weir_gateway_connections 0")).await;
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn a_listener_that_does_not_speak_it_believes_nobody() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&text(service.address, "")).await;
    let answered = answer(gateway.traffic, &[&from("198.51.100.7"), &request()]).await;
    assert!(!answered.contains(" 200 "), "{answered}");
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn a_malformed_header_of_a_trusted_balancer_closes_the_connection() {
    let service = Service::hello().await;
    let limits = "\n[limits]\nhead_time = \"300ms\"\n";
    let text = format!("{}{limits}", text(service.address, TRUSTED));
    let gateway = Gateway::start(&text).await;
    let good = from("198.51.100.7");
    let mut wrong = vec![
        Vec::new(), // no header at all
        b"PROXY TCP4 198.51.100.7 192.0.2.9 7 80\r\n".to_vec(),
        header(0x31, 0x11, &good[16..]),
        header(0x21, 0x31, &[0; 216]),
        header(0x21, 0x00, &[]),
        header(0x21, 0x11, &good[16..24]),
        header(0x21, 0x11, &[&good[16..], &[1, 0, 9]].concat()),
        [&good[..14], &[0xFF, 0xFF]].concat(),
    ];
    for bytes in &wrong {
        assert_eq!(answer(gateway.traffic, &[bytes, &request()]).await, "", "{bytes:?}");
    }
    // Cut off, and then silence.
    for cut in [&good[..0], &good[..5], &good[..16], &good[..27]] {
        assert_eq!(answer(gateway.traffic, &[cut]).await, "", "{cut:?}");
        wrong.push(cut.to_vec());
    }
    let count = wrong.len();
    let dropped = format!("weir_gateway_connections_dropped_total{{reason=\"header\"}} {count}");
    eventually("all are counted", async || shows(&gateway, &dropped)).await;
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn connections_are_counted_by_the_callers_address_not_by_the_balancers() {
    let service = Service::hello().await;
    let limits = "\n[limits]\nconnections_per_address = 1\n";
    let gateway = Gateway::start(&format!("{}{limits}", text(service.address, TRUSTED))).await;
    let mut held = TcpStream::connect(gateway.traffic).await.unwrap();
    held.write_all(&from("198.51.100.7")).await.unwrap();
    let silent = TcpStream::connect(gateway.traffic).await.unwrap();
    eventually("a second of that caller is closed", async || {
        answer(gateway.traffic, &[&from("198.51.100.7"), &request()]).await.is_empty()
    })
    .await;
    let answered = answer(gateway.traffic, &[&from("198.51.100.8"), &request()]).await;
    assert!(answered.starts_with("HTTP/1.1 200 "), "{answered}");
    assert!(shows(&gateway, "weir_gateway_connections_refused_total 1"));
    drop((held, silent));
    eventually("its place is free", async || {
        let answered = answer(gateway.traffic, &[&from("198.51.100.7"), &request()]).await;
        answered.starts_with("HTTP/1.1 200 ")
    })
    .await;
}

#[tokio::test]
async fn tls_begins_behind_the_header() {
    let service = Service::hello().await;
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.pair(&["a.test"]).write(folder.path(), "a");
    let place = folder.path().display();
    let tls = format!("tls = {{ cert_file = \"{place}/a.pem\", key_file = \"{place}/a.key\" }}");
    let gateway = Gateway::start(&text(service.address, &format!("{TRUSTED}\n{tls}"))).await;
    let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
    stream.write_all(&from("198.51.100.7")).await.unwrap();
    let plain = Wants::plain(&authority);
    let mut caller = Https::over(stream, "a.test", plain).await.unwrap();
    assert_eq!(caller.get().await.unwrap().status, 200);
    let seen = service.last().headers;
    assert_eq!(seen["forwarded"], "for=198.51.100.7;proto=https");
    assert!(Https::open(gateway.traffic, "a.test", plain).await.is_err(), "no header");
}

#[tokio::test]
async fn a_balancer_that_says_nothing_does_not_hold_the_end() {
    let service = Service::hello().await;
    let text = text(service.address, TRUSTED).replace("finish = \"2s\"", "finish = \"1h\"");
    let mut gateway = Gateway::start(&format!("{text}\n[limits]\nhead_time = \"1h\"\n")).await;
    let _silent = TcpStream::connect(gateway.traffic).await.unwrap();
    eventually("it is there", async || shows(&gateway, "weir_gateway_connections 1")).await;
    gateway.drain.start();
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await.expect("it ends").unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    let late = gateway.context.tasks.join(Duration::from_secs(5)).await;
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn every_mistake_about_proxies_is_told_with_its_place() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    for (listen, place, what) in [
        ("proxy_protocol = true", "listen.main.proxy_protocol", "trusted_proxies"),
        ("proxy_protocol = \"v2\"", "listen.main.proxy_protocol", ""),
        (
            "proxy_protocol = true\ntrusted_proxies = [\"10.0.0.0/8\", \"10.0.0.0/33\"]",
            "listen.main.trusted_proxies[1]",
            "must be a network",
        ),
        (
            "proxy_protocol = true\ntrusted_proxies = [\"balancer\"]",
            "listen.main.trusted_proxies[0]",
            "must be a network",
        ),
        (
            "proxy_protocol = true\ntrusted_proxies = [\"::ffff:10.0.0.0/104\"]",
            "listen.main.trusted_proxies[0]",
            "must be a network",
        ),
    ] {
        mistakes(&text(nobody, listen), Path::new("."), place, what);
    }
}
