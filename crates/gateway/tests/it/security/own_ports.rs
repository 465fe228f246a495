//! The gateway's own ports and its control plane are no services, whatever they are called.

use std::net::SocketAddr;

use crate::support::bytes::write;
use crate::support::{Gateway, KEY, Service, file, get, service::nobody};

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";

#[tokio::test]
async fn s33_no_host_and_no_target_leads_to_the_operations_port() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let own = gateway.operations;
    for (target, host) in [
        (format!("http://{own}/metrics"), own.to_string()),
        ("/metrics".to_owned(), own.to_string()),
        ("/metrics".to_owned(), format!("localhost:{}", own.port())),
        (
            format!("http://localhost:{}/limits/acme", own.port()),
            format!("localhost:{}", own.port()),
        ),
    ] {
        let bytes = format!(
            "GET {target} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {KEY}\r\nconnection: close\r\n\r\n"
        );
        let came = write(gateway.traffic, bytes.as_bytes()).await;
        assert!(came.text.ends_with("\r\n\r\nhello"), "{target}: {}", came.text);
    }
    assert_eq!(service.requests(), 4, "all went to the service of the route");
}

#[tokio::test]
async fn s33_an_upstream_that_turns_out_to_be_the_operations_port_has_no_address() {
    // A port that is free now, so that the file can name it in several ways.
    let own: SocketAddr = nobody().await;
    for endpoint in [
        format!("localhost:{}", own.port()),
        format!("0.0.0.0:{}", own.port()),
        format!("[::ffff:127.0.0.1]:{}", own.port()),
    ] {
        let text = file(PLAN, "", "127.0.0.1:1".parse().unwrap())
            .replace("\"127.0.0.1:1\"", &format!("\"{endpoint}\""))
            .replacen("[operations]\naddress = \"127.0.0.1:0\"", &operations(own), 1);
        let gateway = Gateway::start(&text).await;
        assert_eq!(gateway.operations, own);
        for path in ["/metrics", "/limits/acme", "/livez"] {
            let reply = get(gateway.traffic, path, &[("x-api-key", KEY)]).await;
            let expected = (503, "upstream_unavailable");
            assert_eq!((reply.status, &*reply.code()), expected, "{endpoint}");
            assert_eq!(reply.header("retry-after"), "1");
        }
        gateway.drain.start();
        let mut gateway = gateway;
        (&mut gateway.ended).await.unwrap().unwrap();
    }
}

fn operations(own: SocketAddr) -> String {
    format!("[operations]\naddress = \"{own}\"")
}
