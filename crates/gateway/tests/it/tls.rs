//! TLS on listeners: by name, by protocol, with new files while connections go on, with
//! certificates of callers, and without end for nobody.

use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::tls::{Authority, Https, Wants};
use crate::support::{Gateway, PATIENCE, Service, eventually, file, mistakes, raw};

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";
const ONE: &str = "{ cert_file = \"a.pem\", key_file = \"a.key\" }";

/// A file whose listener has these lines; paths in it stand in `folder`.
fn text(folder: &Path, service: SocketAddr, listen: &str) -> String {
    let listen = listen.replace("_file = \"", &format!("_file = \"{}/", folder.display()));
    let address = "address = \"127.0.0.1:0\"\n";
    let text = file(PLAN, "", service);
    text.replacen(address, &format!("{address}{listen}\n"), 1)
}

struct World {
    folder: TempDir,
    authority: Authority,
    service: Service,
}

impl World {
    /// With a certificate `a` for `a.test` and 127.0.0.1 in its folder.
    async fn new() -> World {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        authority.pair(&["a.test", "127.0.0.1"]).write(folder.path(), "a");
        World { folder, authority, service: Service::hello().await }
    }

    fn text(&self, listen: &str) -> String {
        text(self.folder.path(), self.service.address, listen)
    }

    async fn gateway(&self, listen: &str) -> Gateway {
        Gateway::start(&self.text(listen)).await
    }
}

fn shows(gateway: &Gateway, line: &str) -> bool {
    gateway.context.metrics.render().lines().any(|shown| shown == line)
}

#[tokio::test]
async fn the_protocol_is_agreed_on_and_services_learn_of_tls() {
    let world = World::new().await;
    let gateway = world.gateway(&format!("tls = {ONE}")).await;
    let only_1 = world.gateway(&format!("tls = {ONE}\nhttp2 = false")).await;
    let plain = Wants::plain(&world.authority);
    for (gateway, alpn, http2) in [
        (&gateway, &["h2", "http/1.1"][..], true),
        (&gateway, &["http/1.1"], false),
        (&gateway, &[], false),
        (&only_1, &["h2", "http/1.1"], false),
    ] {
        let wants = Wants { alpn, ..plain };
        let mut caller = Https::open(gateway.traffic, "a.test", wants).await.unwrap();
        assert_eq!(caller.is_http2(), http2, "{alpn:?}");
        let reply = caller.get().await.unwrap();
        assert_eq!((reply.status, reply.body.as_ref()), (200, &b"hello"[..]), "{alpn:?}");
        let seen = world.service.last().headers;
        assert_eq!(seen["x-forwarded-proto"], "https");
        assert_eq!(seen["forwarded"], "for=127.0.0.1;proto=https");
    }
    let wants = Wants { alpn: &["h2"], ..plain };
    assert!(Https::open(only_1.traffic, "a.test", wants).await.is_err(), "no common protocol");
}

#[tokio::test]
async fn both_versions_of_tls_are_spoken() {
    let world = World::new().await;
    let gateway = world.gateway(&format!("tls = {ONE}")).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let wants = Wants { versions: &[version], ..Wants::plain(&world.authority) };
        let mut caller = Https::open(gateway.traffic, "a.test", wants).await.unwrap();
        assert_eq!(caller.version, version.version);
        assert_eq!(caller.get().await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_certificate_goes_by_the_name_asked_for_and_the_first_is_for_all_others() {
    let world = World::new().await;
    let (one, two) = (world.authority.pair(&["*.b.test"]), world.authority.pair(&["c.test"]));
    one.write(world.folder.path(), "b");
    two.write(world.folder.path(), "c");
    let pair = |name: &str| format!("{{ cert_file = \"{name}.pem\", key_file = \"{name}.key\" }}");
    let listen = format!("tls = [{ONE}, {}, {}]", pair("b"), pair("c"));
    let gateway = world.gateway(&listen).await;
    let plain = Wants::plain(&world.authority);
    let first = Https::open(gateway.traffic, "a.test", plain).await.unwrap().shown;
    for (name, shown) in [("x.b.test", one.der()), ("c.test", two.der()), ("127.0.0.1", first)] {
        let mut caller = Https::open(gateway.traffic, name, plain).await.unwrap();
        assert_eq!(caller.shown, shown, "{name}");
        assert_eq!(caller.get().await.unwrap().status, 200, "{name}");
    }
    let error = Https::open(gateway.traffic, "d.test", plain).await.err().expect("no such name");
    assert!(format!("{error:?}").contains("a.test"), "the first is shown: {error:?}");
}

#[tokio::test]
async fn a_new_pair_is_taken_and_a_bad_one_is_not_while_connections_go_on() {
    let world = World::new().await;
    let gateway = world.gateway(&format!("tls = {ONE}")).await;
    let plain = Wants::plain(&world.authority);
    let open = async || Https::open(gateway.traffic, "a.test", plain).await.unwrap();
    let mut before = open().await;
    assert_eq!(before.get().await.unwrap().status, 200);

    let second = world.authority.pair(&["a.test"]);
    second.write(world.folder.path(), "a");
    eventually("the second pair is shown", async || open().await.shown == second.der()).await;
    assert!(shows(&gateway, "weir_gateway_tls_reloads_total{listener=\"main\"} 1"));
    assert!(shows(&gateway, "weir_gateway_tls_stale_files{listener=\"main\"} 0"));
    assert_eq!(before.get().await.unwrap().status, 200, "it was not disturbed");

    // The key of another certificate, then no key at all.
    let third = world.authority.pair(&["a.test"]);
    let stale = "weir_gateway_tls_stale_files{listener=\"main\"} 1";
    std::fs::write(world.folder.path().join("a.key"), &third.key).unwrap();
    eventually("the bad pair is told", async || shows(&gateway, stale)).await;
    std::fs::remove_file(world.folder.path().join("a.key")).unwrap();
    let mut during = open().await;
    assert_eq!(during.shown, second.der());
    assert_eq!(during.get().await.unwrap().status, 200);

    third.write(world.folder.path(), "a");
    eventually("the third pair is shown", async || open().await.shown == third.der()).await;
    assert!(shows(&gateway, "weir_gateway_tls_reloads_total{listener=\"main\"} 2"));
    assert!(shows(&gateway, "weir_gateway_tls_stale_files{listener=\"main\"} 0"));
    for caller in [&mut before, &mut during] {
        assert_eq!(caller.get().await.unwrap().status, 200, "it was not disturbed");
    }
}

#[tokio::test]
async fn the_end_of_each_certificate_in_use_is_shown_and_a_new_one_moves_it() {
    let world = World::new().await;
    let write = |name: &str, year: i32| {
        world.authority.pair_until(&["a.test"], year).write(world.folder.path(), name);
    };
    write("a", 2031);
    write("b", 2075);
    let two = "{ cert_file = \"b.pem\", key_file = \"b.key\" }";
    let gateway = world.gateway(&format!("tls = [{ONE}, {two}]")).await;
    let ends = async |name: &str, year: i32| {
        let file = world.folder.path().join(format!("{name}.pem"));
        let time = humantime::parse_rfc3339(&format!("{year}-01-01T00:00:00Z")).unwrap();
        let seconds = time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let line = format!(
            "weir_gateway_tls_certificate_expires_seconds{{listener=\"main\",file=\"{}\"}} {seconds}",
            file.display()
        );
        eventually(&line, async || shows(&gateway, &line)).await;
    };
    ends("a", 2031).await;
    ends("b", 2075).await;
    write("a", 2044);
    ends("a", 2044).await;
    // One that cannot be used is not what callers see.
    std::fs::write(world.folder.path().join("b.pem"), "nothing").unwrap();
    let stale = "weir_gateway_tls_stale_files{listener=\"main\"} 1";
    eventually("the bad pair is told", async || shows(&gateway, stale)).await;
    ends("b", 2075).await;
}

#[tokio::test]
async fn callers_without_a_certificate_of_the_authority_reach_nothing() {
    let world = World::new().await;
    let (theirs, foreign) = (Authority::new(), Authority::new());
    theirs.write(world.folder.path(), "callers.pem");
    let gateway = world.gateway(&format!("tls = {ONE}\nclient_ca_file = \"callers.pem\"")).await;
    let (good, bad) = (theirs.pair(&["acme"]), foreign.pair(&["acme"]));
    let plain = Wants::plain(&world.authority);
    for versions in [&[&rustls::version::TLS12], &[&rustls::version::TLS13]] {
        for own in [None, Some(&bad)] {
            let wants = Wants { own, versions, ..plain };
            // In TLS 1.3 the caller learns of its refusal with the first answer.
            let answered = match Https::open(gateway.traffic, "a.test", wants).await {
                Ok(mut caller) => caller.get().await.is_ok(),
                Err(_) => false,
            };
            assert!(!answered, "{versions:?} {}", own.is_some());
        }
    }
    assert_eq!(world.service.requests(), 0);
    let dropped = "weir_gateway_connections_dropped_total{reason=\"handshake\"} 4";
    eventually("all are counted", async || shows(&gateway, dropped)).await;
    let wants = Wants { own: Some(&good), ..plain };
    let mut caller = Https::open(gateway.traffic, "a.test", wants).await.unwrap();
    assert_eq!(caller.get().await.unwrap().status, 200);

    // New authorities are taken like new certificates, for connections to come.
    foreign.write(world.folder.path(), "callers.pem");
    let wants = Wants { own: Some(&bad), ..plain };
    eventually("the other authority counts", async || {
        match Https::open(gateway.traffic, "a.test", wants).await {
            Ok(mut caller) => caller.get().await.is_ok_and(|reply| reply.status == 200),
            Err(_) => false,
        }
    })
    .await;
    assert_eq!(caller.get().await.unwrap().status, 200, "it was not disturbed");
}

#[tokio::test]
async fn a_handshake_that_does_not_come_holds_nobody_and_ends() {
    let world = World::new().await;
    let text = world.text(&format!("tls = {ONE}"));
    let gateway = Gateway::start(&format!("{text}\n[limits]\nhandshake_time = \"2s\"\n")).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(gateway.traffic).await.unwrap());
    }
    let plain = Wants::plain(&world.authority);
    let mut caller = Https::open(gateway.traffic, "a.test", plain).await.unwrap();
    assert_eq!(caller.get().await.unwrap().status, 200);
    for mut stream in silent {
        let ended = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 16])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    }
    // Clear text is no handshake.
    let answer = raw(gateway.traffic, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(!answer.contains("HTTP/"), "{answer}");
    let dropped = "weir_gateway_connections_dropped_total{reason=\"handshake\"} 5";
    eventually("all are counted", async || shows(&gateway, dropped)).await;
    eventually("one is left", async || shows(&gateway, "weir_gateway_connections 1")).await;
}

#[tokio::test]
async fn a_caller_that_shakes_hands_and_says_nothing_is_given_up() {
    let world = World::new().await;
    let text = world.text(&format!("tls = {ONE}"));
    let gateway = Gateway::start(&format!("{text}\n[limits]\nfirst_byte = \"200ms\"\n")).await;
    let plain = Wants::plain(&world.authority);
    let mut silent = Https::open(gateway.traffic, "a.test", plain).await.unwrap();
    eventually("it is closed", async || shows(&gateway, "weir_gateway_connections 0")).await;
    assert!(silent.get().await.is_err());
}

#[tokio::test]
async fn connections_of_an_address_are_bounded_before_their_handshake() {
    let world = World::new().await;
    let text = world.text(&format!("tls = {ONE}"));
    let gateway = Gateway::start(&format!("{text}\n[limits]\nconnections_per_address = 1\n")).await;
    let first = TcpStream::connect(gateway.traffic).await.unwrap();
    eventually("it is there", async || shows(&gateway, "weir_gateway_connections 1")).await;
    let plain = Wants::plain(&world.authority);
    assert!(Https::open(gateway.traffic, "a.test", plain).await.is_err());
    assert!(shows(&gateway, "weir_gateway_connections_refused_total 1"));
    drop(first);
    eventually("its place is free", async || {
        Https::open(gateway.traffic, "a.test", plain).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn an_unfinished_handshake_does_not_hold_the_end() {
    let world = World::new().await;
    let text = world.text(&format!("tls = {ONE}"));
    let text = text.replace("finish = \"2s\"", "finish = \"1h\"");
    let mut gateway = Gateway::start(&format!("{text}\n[limits]\nhandshake_time = \"1h\"\n")).await;
    let _silent = TcpStream::connect(gateway.traffic).await.unwrap();
    eventually("it is there", async || shows(&gateway, "weir_gateway_connections 1")).await;
    gateway.drain.start();
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await.expect("it ends").unwrap();
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn every_mistake_about_certificates_is_told_with_its_place() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.pair(&["a.test"]).write(folder.path(), "a");
    authority.pair(&["b.test"]).write(folder.path(), "b");
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    for (listen, place, what) in [
        ("tls = true", "listen.main.tls", "cert_file"),
        ("tls = []", "listen.main.tls", "1 to 100"),
        ("tls = { cert_file = \"a.pem\" }", "listen.main.tls.key_file", ""),
        ("tls = { cert_file = \"a.pem\", key_file = \"a.key\", x = 1 }", "listen.main.tls.x", ""),
        (
            "tls = { cert_file = \"no.pem\", key_file = \"a.key\" }",
            "listen.main.tls.cert_file",
            "no.pem",
        ),
        (
            "tls = { cert_file = \"a.key\", key_file = \"a.key\" }",
            "listen.main.tls.cert_file",
            "no certificate in PEM",
        ),
        (
            "tls = { cert_file = \"a.pem\", key_file = \"a.pem\" }",
            "listen.main.tls.key_file",
            "no private key in PEM",
        ),
        (
            "tls = [{ cert_file = \"a.pem\", key_file = \"a.key\" }, \
              { cert_file = \"a.pem\", key_file = \"b.key\" }]",
            "listen.main.tls[1].key_file",
            "not the key of",
        ),
        ("client_ca_file = \"a.pem\"", "listen.main.client_ca_file", "tls"),
        (
            "tls = { cert_file = \"a.pem\", key_file = \"a.key\" }\nclient_ca_file = \"a.key\"",
            "listen.main.client_ca_file",
            "no certificate in PEM",
        ),
    ] {
        let text = text(folder.path(), nobody, listen);
        let lines = mistakes(&text, Path::new("."), place, what);
        assert!(!lines.concat().contains("PRIVATE KEY"), "{lines:#?}");
    }
}
