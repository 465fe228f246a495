//! A new file while the gateway runs: taken whole or not at all, and nobody under way is disturbed.

use std::path::PathBuf;
use std::sync::Arc;

use edge::limiter::Clock;
use gateway::config;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::caller::request;
use crate::support::socket::{Echo, Socket, head};
use crate::support::{
    Gateway, KEY, PATIENCE, Reply, Service, eventually, file, get, send, standing, tally,
};

const MANY: &str = "burst = { capacity = 10000, refill = \"1000/s\" }";
const TOKEN: [(&str, &str); 1] = [("authorization", "Bearer ops-token")];

/// A file with an operations token, that can be written anew.
struct Page {
    folder: tempfile::TempDir,
}

impl Page {
    fn new(text: &str) -> Page {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "ops-token\n").unwrap();
        let page = Page { folder };
        page.write(text);
        page
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("gateway.toml")
    }

    /// Whole, as careful people do.
    fn write(&self, text: &str) {
        let text = text.replace("[operations]\n", "[operations]\ntoken_file = \"token\"\n");
        let beside = self.folder.path().join("new.toml");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(beside, self.path()).unwrap();
    }

    async fn gateway(&self) -> Gateway {
        Gateway::of_file(&self.path()).await
    }
}

async fn reload(gateway: &Gateway) -> Reply {
    send(gateway.operations, request("POST", "/reload", &TOKEN)).await
}

async fn taken(gateway: &Gateway) -> Value {
    let reply = reload(gateway).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    reply.json()
}

async fn configz(gateway: &Gateway) -> Value {
    let reply = get(gateway.operations, "/configz", &TOKEN).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    reply.json()
}

fn metric(gateway: &Gateway, line: &str) -> bool {
    gateway.context.metrics.render().lines().any(|shown| shown == line)
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_one_in_force_and_every_mistake_is_told() {
    let service = Service::hello().await;
    let good = file(MANY, "", service.address);
    let page = Page::new(&good);
    let gateway = page.gateway().await;
    assert_eq!(tally(&gateway.calls(2).await), [(200, 2)]);
    page.write(
        &good
            .replace("10000, refill = \"1000/s\"", "0, refill = \"1/mn\"")
            .replace("upstream = \"up\"\n", "upstream = \"nowhere\"\ncost = -1\n"),
    );
    let refused = reload(&gateway).await;
    assert_eq!(refused.status, 422);
    let places =
        ["plan.pro.burst.capacity", "plan.pro.burst.refill", "route[0].upstream", "route[0].cost"];
    let shown = configz(&gateway).await;
    for errors in [&refused.json()["errors"], &shown["last_reload"]["errors"]] {
        let named: Vec<&str> =
            errors.as_array().unwrap().iter().map(|e| e["field"].as_str().unwrap()).collect();
        for place in places {
            assert!(named.contains(&place), "{place} in {named:?}");
        }
    }
    assert_eq!(shown["stale"], true);
    let ready = get(gateway.operations, "/readyz", &[]).await;
    assert_eq!((ready.status, &ready.json()["detail"]["configuration_stale"]), (200, &true.into()));
    assert!(metric(&gateway, "weir_gateway_config_reload_failed 1"));
    assert!(metric(&gateway, "weir_gateway_config_reloads_total{outcome=\"refused\"} 1"));
    assert_eq!(tally(&gateway.calls(2).await), [(200, 2)], "the old one is in force");

    page.write(&good);
    taken(&gateway).await;
    assert_eq!(configz(&gateway).await["stale"], false);
    assert!(metric(&gateway, "weir_gateway_config_reload_failed 0"));
    assert!(metric(&gateway, "weir_gateway_config_reloads_total{outcome=\"taken\"} 1"));
}

#[tokio::test]
async fn only_the_token_reloads_and_shows() {
    let service = Service::hello().await;
    let page = Page::new(&file(MANY, "", service.address));
    let gateway = page.gateway().await;
    for headers in [&[][..], &[("authorization", "Bearer other")]] {
        let asked = send(gateway.operations, request("POST", "/reload", headers)).await;
        assert_eq!(asked.status, 401);
        assert_eq!(get(gateway.operations, "/configz", headers).await.status, 401);
    }
    assert!(metric(&gateway, "weir_gateway_config_reloads_total{outcome=\"taken\"} 0"));
}

#[tokio::test]
async fn a_changed_file_is_taken_by_itself_also_on_connections_that_are_open() {
    let (one, two) = (Service::hello().await, Service::hello().await);
    let first = file(MANY, "", one.address);
    let page = Page::new(&first);
    let gateway = page.gateway().await;
    let mut caller = TcpStream::connect(gateway.traffic).await.unwrap();
    let mut ask = async |path: &str| {
        let asked = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
        caller.write_all(asked.as_bytes()).await.unwrap();
        let answer = head(&mut caller).await;
        let length = crate::support::socket::field(&answer, "content-length").parse().unwrap();
        let mut body = vec![0; length];
        caller.read_exact(&mut body).await.unwrap();
        answer.get(9..12).unwrap_or_default().to_owned()
    };
    assert_eq!(ask("/").await, "200");
    assert_eq!((one.requests(), two.requests()), (1, 0));
    page.write(&format!(
        "{first}[upstream.two]\nendpoints = [\"{}\"]\n\
         [[route]]\npath = \"/two\"\nupstream = \"two\"\nname = \"second\"\n",
        two.address
    ));
    eventually("the new route leads there", async || {
        assert_eq!(ask("/two").await, "200");
        two.requests() > 0
    })
    .await;
    assert!(gateway.context.metrics.render().contains("upstream=\"two\""));

    page.write(&first);
    let before = two.requests();
    eventually("the route is gone", async || {
        ask("/two").await;
        let names = gateway.context.metrics.render();
        !names.contains("upstream=\"two\"") && !names.contains("route=\"second\"")
    })
    .await;
    let (gone, still) = (two.requests(), one.requests());
    assert_eq!(ask("/two").await, "200");
    assert_eq!((two.requests(), one.requests()), (gone, still + 1), "the first route takes it");
    assert!(before <= gone);
}

/// A service whose answers come piece by piece, when told.
async fn piecemeal(mut go: tokio::sync::mpsc::Receiver<()>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    daemon::tasks::spawn("piecemeal", async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n").await.unwrap();
        while go.recv().await.is_some() {
            stream.write_all(b"piece").await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn streams_and_connections_of_what_did_not_change_survive_twenty_reloads() {
    let (echo, service, other) =
        (Echo::start().await, Service::hello().await, Service::hello().await);
    let (go, told) = tokio::sync::mpsc::channel(1);
    let slow = piecemeal(told).await;
    let text = |round: usize| {
        let base = file(MANY, "", service.address);
        let timeout = round + 1;
        format!(
            "{base}[upstream.echo]\nendpoints = [\"{}\"]\n[[route]]\npath = \"/chat\"\n\
             upstream = \"echo\"\n[upstream.slow]\nendpoints = [\"{slow}\"]\n[[route]]\n\
             path = \"/slow\"\nupstream = \"slow\"\n[upstream.other]\nendpoints = [\"{}\"]\n\
             head_timeout = \"{timeout}s\"\n[[route]]\npath = \"/other{round}\"\n\
             upstream = \"other\"\n",
            echo.address, other.address
        )
    };
    let page = Page::new(&text(0));
    let gateway = page.gateway().await;
    let mut socket = Socket::of_acme(gateway.traffic).await;
    let mut download = TcpStream::connect(gateway.traffic).await.unwrap();
    let asked = format!("GET /slow HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    download.write_all(asked.as_bytes()).await.unwrap();
    assert!(head(&mut download).await.starts_with("HTTP/1.1 200 "));
    gateway.calls(1).await;
    for round in 1..=20 {
        page.write(&text(round));
        let upstreams = &taken(&gateway).await["upstreams"];
        assert_eq!(*upstreams, serde_json::json!({ "kept": 3, "begun": 1, "ended": 1 }));
        let said = format!("round {round}");
        assert_eq!(socket.say(&said).await.as_deref(), Some(said.as_str()));
        go.send(()).await.unwrap();
        let mut piece = [0; 5];
        download.read_exact(&mut piece).await.unwrap();
        assert_eq!(&piece, b"piece");
        let target = format!("/other{round}");
        assert_eq!(get(gateway.traffic, &target, &[("x-api-key", KEY)]).await.status, 200);
        assert_eq!(tally(&gateway.calls(2).await), [(200, 2)]);
    }
    assert_eq!(service.connections(), 1, "one connection served it all along");
    assert_eq!(other.connections(), 20, "a changed one has connections of its own");
    assert_eq!(other.requests(), 20);
}

#[tokio::test]
async fn what_needs_a_restart_is_named_and_then_nothing_of_the_file_is_taken() {
    let service = Service::hello().await;
    let good = file(MANY, "", service.address);
    let page = Page::new(&good);
    let gateway = page.gateway().await;
    let other = good
        .replace("workers = 1", "workers = 2")
        .replace("path = \"/\"\n", "path = \"/elsewhere\"\n");
    page.write(&format!(
        "{other}[listen.more]\naddress = \"127.0.0.1:0\"\n[store]\ndeadline = \"9ms\"\n"
    ));
    let refused = reload(&gateway).await;
    assert_eq!(refused.status, 422);
    let errors = refused.json()["errors"].clone();
    let named: Vec<&str> =
        errors.as_array().unwrap().iter().map(|e| e["field"].as_str().unwrap()).collect();
    assert_eq!(named, ["workers", "store.deadline", "listen.more"]);
    assert!(errors[0]["detail"].as_str().unwrap().contains("restart"));
    assert_eq!(tally(&gateway.calls(1).await), [(200, 1)], "the old route is in force");
}

#[tokio::test]
async fn c30_a_reload_hands_out_no_token_and_a_smaller_plan_holds_at_once() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = |capacity: u64| format!("burst = {{ capacity = {capacity}, refill = \"1/d\" }}");
    let page = Page::new(&file(&plan(10), "", service.address));
    let config = config::load(&page.path()).unwrap();
    let gateway = Gateway::of(config, store, clock as Arc<dyn Clock>).await;
    assert_eq!(tally(&gateway.calls(4).await), [(200, 4)]);
    for round in 0..5 {
        // Something else changes, and what is used stays used.
        page.write(&file(&plan(10), &format!("cost = 1\nname = \"r{round}\""), service.address));
        taken(&gateway).await;
    }
    assert_eq!(tally(&gateway.calls(4).await), [(200, 4)]);
    page.write(&file(&plan(3), "", service.address));
    taken(&gateway).await;
    let after = tally(&gateway.calls(12).await);
    let admitted = after.iter().find(|(status, _)| *status == 200).map_or(0, |(_, count)| *count);
    assert!(admitted <= 2, "two were left, and a smaller plan gives none: {after:?}");
}

#[tokio::test]
async fn clients_and_keys_come_and_go_with_the_file() {
    let service = Service::hello().await;
    let first = file(MANY, "", service.address);
    let page = Page::new(&first);
    let gateway = page.gateway().await;
    let as_guest = async || get(gateway.traffic, "/", &[("x-api-key", "guest-key")]).await.status;
    assert_eq!(as_guest().await, 401);
    let guest = crate::support::key_table("k2", "guest", "guest-key");
    page.write(&format!("{first}[client.guest]\nplan = \"pro\"\n{guest}"));
    taken(&gateway).await;
    assert_eq!(as_guest().await, 200);
    page.write(&format!("{first}[client.guest]\nplan = \"pro\"\nstate = \"suspended\"\n{guest}"));
    taken(&gateway).await;
    assert_eq!(as_guest().await, 403);
    page.write(&first);
    taken(&gateway).await;
    assert_eq!(as_guest().await, 401);
}

#[tokio::test]
async fn bounds_hold_from_the_next_request_or_connection_on() {
    let (service, echo) = (Service::hello().await, Echo::start().await);
    let base = format!(
        "{}[upstream.echo]\nendpoints = [\"{}\"]\n[[route]]\npath = \"/chat\"\nupstream = \"echo\"\n",
        file(MANY, "", service.address),
        echo.address
    );
    let page = Page::new(&base);
    let gateway = page.gateway().await;
    let post = async |length: usize| {
        let mut request = request("POST", "/", &[("x-api-key", KEY)]);
        *request.body_mut() = vec![7; length].into();
        send(gateway.traffic, request).await.status
    };
    assert_eq!(post(100).await, 200);
    let socket = Socket::of_acme(gateway.traffic).await;
    page.write(&format!(
        "{base}[limits]\nbody_bytes = 99\nupgrades_per_client = 1\nconnections_per_worker = 2\n"
    ));
    taken(&gateway).await;
    assert_eq!(post(100).await, 413);
    assert_eq!(post(99).await, 200);
    let refused = Socket::open(gateway.traffic, KEY).await.err().expect("one is open");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    page.write(&format!("{base}[limits]\nconnections_per_address = 1\n"));
    taken(&gateway).await;
    let mut second = TcpStream::connect(gateway.traffic).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, second.read(&mut [0])).await.expect("closed at once");
    assert!(!matches!(read, Ok(1..)), "the address has its connection already");
    drop(socket);
    page.write(&base);
    taken(&gateway).await;
    assert_eq!(post(100).await, 200);
}

#[tokio::test]
async fn nobody_looks_after_an_upstream_that_is_gone_and_one_that_changed_is_not_tried_anew() {
    let service = Service::hello().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = file(MANY, "", service.address);
    let probed = |lines: &str| {
        let silent = silent.local_addr().unwrap();
        format!(
            "{base}[upstream.sick]\nendpoints = [\"{silent}\"]\nhealth = {{ every = \"50ms\", \
             timeout = \"50ms\", fall = 2 }}\n{lines}"
        )
    };
    let page = Page::new(&probed(""));
    let gateway = page.gateway().await;
    let healthy = |count: u32| {
        format!("weir_gateway_upstream_healthy_endpoints{{upstream=\"sick\"}} {count}")
    };
    eventually("it is down", async || metric(&gateway, &healthy(0))).await;
    page.write(&probed("head_timeout = \"3s\"\n"));
    taken(&gateway).await;
    assert!(metric(&gateway, &healthy(0)), "what was known of it is known still");
    assert!(gateway.context.tasks.names().contains(&"upstream probes"));
    page.write(&base);
    taken(&gateway).await;
    eventually("its probes end", async || {
        !gateway.context.tasks.names().contains(&"upstream probes")
    })
    .await;
}

#[tokio::test]
async fn a_gateway_without_a_file_says_so() {
    let service = Service::hello().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "ops-token\n").unwrap();
    let named = format!("[operations]\ntoken_file = \"{}\"\n", token.display());
    let text = file(MANY, "", service.address).replace("[operations]\n", &named);
    let gateway = Gateway::start(&text).await;
    assert_eq!(reload(&gateway).await.status, 501);
}
