//! TLS to services: only one that shows the right certificate is sent anything, be it a request or
//! a probe.

use std::path::Path;

use gateway::config;
use http::Version;
use tempfile::TempDir;

use crate::support::tls::{Authority, SecureService};
use crate::support::{Gateway, KEY, eventually, file, get, mistakes};

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";

struct World {
    folder: TempDir,
    authority: Authority,
}

impl World {
    /// With the file `ca.pem` of its own authority, and `other.pem` of another.
    fn new() -> World {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        authority.write(folder.path(), "ca.pem");
        Authority::new().write(folder.path(), "other.pem");
        World { folder, authority }
    }

    /// A service whose certificate is for `name`.
    async fn service(&self, name: &str, alpn: &[&str]) -> SecureService {
        SecureService::start(&self.authority.pair(&[name]), alpn).await
    }

    /// A gateway before it, with these lines about the upstream.
    async fn gateway(&self, service: &SecureService, lines: &str) -> Gateway {
        let ca = format!("ca_file = \"{}/", self.folder.path().display());
        let text = file(PLAN, "", service.address);
        Gateway::start(&format!("{text}{}\n", lines.replace("ca_file = \"", &ca))).await
    }
}

async fn call(gateway: &Gateway) -> (u16, String) {
    let reply = get(gateway.traffic, "/", &[("x-api-key", KEY)]).await;
    let body = String::from_utf8_lossy(&reply.body).into_owned();
    (reply.status, if reply.status == 200 { body } else { reply.code() })
}

#[tokio::test]
async fn services_are_reached_over_tls_by_both_protocols_and_connections_are_kept() {
    let world = World::new();
    for (protocol, version) in [("http1", Version::HTTP_11), ("http2", Version::HTTP_2)] {
        let service = world.service("127.0.0.1", &["h2", "http/1.1"]).await;
        let lines = format!("protocol = \"{protocol}\"\ntls = {{ ca_file = \"ca.pem\" }}");
        let gateway = world.gateway(&service, &lines).await;
        for _ in 0..3 {
            assert_eq!(call(&gateway).await, (200, "secure".to_owned()), "{protocol}");
        }
        let heads = service.heads("/");
        assert_eq!(heads.len(), 3);
        for head in heads {
            assert_eq!(head.version, version);
            let scheme = (version == Version::HTTP_2).then_some("https");
            assert_eq!(head.uri.scheme_str(), scheme);
        }
        assert_eq!(service.connections(), 1, "{protocol}");
    }
}

#[tokio::test]
async fn a_service_that_is_not_who_it_should_be_is_sent_nothing() {
    let world = World::new();
    let refused = (502, "upstream_failed".to_owned());
    for (name, alpn, lines) in [
        ("127.0.0.1", &[][..], "tls = { ca_file = \"other.pem\" }"),
        ("127.0.0.1", &[], "tls = {}"),
        ("orders.test", &[], "tls = { ca_file = \"ca.pem\" }"),
        ("127.0.0.1", &[], "tls = { ca_file = \"ca.pem\", server_name = \"orders.test\" }"),
        // HTTP/2 must be agreed on.
        ("127.0.0.1", &[], "protocol = \"http2\"\ntls = { ca_file = \"ca.pem\" }"),
        ("127.0.0.1", &["http/1.1"], "protocol = \"http2\"\ntls = { ca_file = \"ca.pem\" }"),
    ] {
        let service = world.service(name, alpn).await;
        let gateway = world.gateway(&service, lines).await;
        assert_eq!(call(&gateway).await, refused, "{name} {alpn:?} {lines}");
        assert!(service.heads("/").is_empty(), "{name} {alpn:?} {lines}");
        assert!(service.connections() > 0, "{name} {alpn:?} {lines}");
        let counted = "weir_gateway_upstream_errors_total{upstream=\"up\",reason=\"connect\"} 1\n";
        assert!(gateway.context.metrics.render().contains(counted), "{lines}");
    }
}

#[tokio::test]
async fn a_service_in_clear_is_sent_nothing_where_tls_is_meant() {
    let world = World::new();
    let clear = crate::support::Service::hello().await;
    let ca = world.folder.path().join("ca.pem");
    let text = file(PLAN, "", clear.address);
    let gateway =
        Gateway::start(&format!("{text}tls = {{ ca_file = \"{}\" }}\n", ca.display())).await;
    assert_eq!(call(&gateway).await.0, 502);
    assert_eq!(clear.requests(), 0);
}

#[tokio::test]
async fn the_name_is_the_endpoints_host_or_the_one_that_is_said() {
    let world = World::new();
    let service = world.service("localhost", &[]).await;
    let text = file(PLAN, "", service.address).replace(
        &format!("[\"{}\"]", service.address),
        &format!("[\"localhost:{}\"]", service.address.port()),
    );
    let ca = world.folder.path().join("ca.pem");
    let gateway =
        Gateway::start(&format!("{text}tls = {{ ca_file = \"{}\" }}\n", ca.display())).await;
    assert_eq!(call(&gateway).await, (200, "secure".to_owned()));

    let service = world.service("orders.test", &[]).await;
    let lines = "tls = { ca_file = \"ca.pem\", server_name = \"orders.test\" }";
    let gateway = world.gateway(&service, lines).await;
    assert_eq!(call(&gateway).await, (200, "secure".to_owned()));
}

#[tokio::test]
async fn probes_go_over_tls_too() {
    let world = World::new();
    let health = "health = { every = \"20ms\", fall = 2 }";
    let healthy = |gateway: &Gateway, count: u8| {
        let line = format!("weir_gateway_upstream_healthy_endpoints{{upstream=\"up\"}} {count}\n");
        gateway.context.metrics.render().contains(&line)
    };
    for (protocol, version) in [("http1", Version::HTTP_11), ("http2", Version::HTTP_2)] {
        let service = world.service("127.0.0.1", &["h2", "http/1.1"]).await;
        let lines =
            |ca| format!("protocol = \"{protocol}\"\ntls = {{ ca_file = \"{ca}.pem\" }}\n{health}");
        let gateway = world.gateway(&service, &lines("ca")).await;
        let probes = || service.heads("/healthz");
        eventually("some probes came", async || probes().len() > 4).await;
        assert!(healthy(&gateway, 1), "{protocol}");
        assert!(probes().iter().all(|head| head.version == version), "{protocol}");
        drop(gateway);
        let gateway = world.gateway(&service, &lines("other")).await;
        eventually("it is down", async || healthy(&gateway, 0)).await;
    }
}

#[test]
fn every_mistake_about_tls_to_a_service_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    Authority::new().write(folder.path(), "ca.pem");
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    let text = |endpoint: &str, tls: &str| {
        format!(
            "[[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = [\"{endpoint}\"]\ntls = {tls}"
        )
    };
    for (endpoint, tls, place, what) in [
        ("a:1", "true", "upstream.up.tls", ""),
        ("a:1", "{ ca_file = \"no.pem\" }", "upstream.up.tls.ca_file", "no.pem"),
        ("a:1", "{ ca_file = \"empty.pem\" }", "upstream.up.tls.ca_file", "no certificate"),
        ("a:1", "{ server_name = \"a b\" }", "upstream.up.tls.server_name", "name or address"),
        ("a:1", "{ verify = false }", "upstream.up.tls.verify", ""),
    ] {
        mistakes(&text(endpoint, tls), folder.path(), place, what);
    }
    let good = text("a:1", "{ ca_file = \"ca.pem\", server_name = \"b.test\" }");
    assert!(config::parse(&good, Path::new(folder.path())).is_ok());
}
