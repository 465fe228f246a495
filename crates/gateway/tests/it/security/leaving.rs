//! Requests whose connection might leave HTTP: until a service agrees, bytes behind them are
//! nobody's request.

use super::{SMUGGLED, head, world};
use crate::support::KEY;
use crate::support::bytes::write;
use crate::support::socket::field;

#[tokio::test]
async fn s08_bytes_behind_an_upgrade_that_is_not_granted_are_no_request() {
    let (gateway, service) = world().await;
    for more in [
        "connection: upgrade\r\nupgrade: websocket\r\n",
        "connection: keep-alive, Upgrade\r\nupgrade: custom/1\r\n",
        "connection: upgrade\r\nupgrade: websocket, h2c\r\n",
        "connection: upgrade\r\nupgrade: websocket\r\nupgrade: x\r\n",
        "connection: keep-alive\r\nupgrade: websocket\r\n",
    ] {
        let bytes = head("GET /first HTTP/1.1", more) + SMUGGLED;
        let came = write(gateway.traffic, bytes.as_bytes()).await;
        assert_eq!(came.statuses, [200], "{more:?} → {}", came.text);
        assert_eq!(field(&came.text, "connection"), "close", "{more:?}");
        assert_eq!(service.take_targets(), ["/first"], "{more:?}");
    }
}

#[tokio::test]
async fn s08_an_upgrade_with_a_body_is_a_request_with_a_body_and_the_last() {
    let (gateway, service) = world().await;
    let more = "connection: upgrade\r\nupgrade: websocket\r\ncontent-length: 5\r\n";
    let bytes = head("POST /first HTTP/1.1", more) + "hello" + SMUGGLED;
    let came = write(gateway.traffic, bytes.as_bytes()).await;
    assert_eq!(came.statuses, [200], "{}", came.text);
    assert_eq!((service.take_targets(), service.bytes()), (vec!["/first".to_owned()], 5));
}

#[tokio::test]
async fn s08_h2c_is_not_spoken_and_its_bytes_reach_nobody() {
    let (gateway, service) = world().await;
    let more =
        "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let bytes = head("GET /first HTTP/1.1", more) + preface + SMUGGLED;
    let came = write(gateway.traffic, bytes.as_bytes()).await;
    assert!(matches!(came.statuses[..], [200] | [200, 400]), "{}", came.text);
    assert_eq!(service.take_targets(), ["/first"]);
    assert!(!service.last_names().contains(&"http2-settings".to_owned()));
}

#[tokio::test]
async fn s08_connect_is_refused_and_what_follows_is_no_request() {
    let (gateway, service) = world().await;
    for line in ["CONNECT a:443 HTTP/1.1", "CONNECT / HTTP/1.1", "CONNECT http://a/ HTTP/1.1"] {
        let bytes = head(line, "") + SMUGGLED;
        let came = write(gateway.traffic, bytes.as_bytes()).await;
        assert!(matches!(came.statuses[..], [400 | 501]), "{line} → {}", came.text);
    }
    let with_body = format!(
        "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\nx-api-key: {KEY}\r\ncontent-length: 4\r\n\r\nbody"
    );
    let came = write(gateway.traffic, (with_body + SMUGGLED).as_bytes()).await;
    assert!(matches!(came.statuses[..], [400 | 501]), "{}", came.text);
    assert_eq!(service.requests(), 0);
}
