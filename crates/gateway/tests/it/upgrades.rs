//! Connections that leave HTTP: decided about once, then left alone until they may not stay.

use std::sync::Arc;
use std::time::Duration;

use edge::limiter::Clock;
use edge::{ControlPlane, FeedError, LookupError, Pending, PolicySource};
use gateway::upstream::names::SystemNames;
use gateway::{Evidently, Parts};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use wire::policy::{
    Change, FeedAnswer, FeedRequest, KeyState, LookupAnswer, LookupRequest, Object, Snapshot,
};
use wire::rollout::Phase;

use crate::support::plane::Plane;
use crate::support::socket::{Echo, Socket, field, handshake, head};
use crate::support::{
    Gateway, KEY, PATIENCE, Service, eventually, file, get, parse, raw, standing, tally,
};

const MANY: &str = "burst = { capacity = 100, refill = \"100/s\" }";

fn open_ones(gateway: &Gateway) -> String {
    let text = gateway.context.metrics.render();
    let line = text.lines().find(|line| line.starts_with("weir_gateway_upgraded_connections "));
    line.expect("the gauge is shown").to_owned()
}

#[tokio::test]
async fn c19_a_websocket_costs_one_token_and_refused_it_is_a_plain_429() {
    let echo = Echo::start().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 2, refill = \"1/9s\" }";
    let gateway = Gateway::over(&file(plan, "", echo.address), store, clock).await;
    let mut socket = Socket::of_acme(gateway.traffic).await;
    for text in ["one", "two", "three"] {
        assert_eq!(socket.say(text).await.as_deref(), Some(text));
    }
    // Of two tokens the handshake took one and the frames none.
    assert_eq!(tally(&gateway.calls(2).await), [(200, 1), (429, 1)]);
    let refused = Socket::open(gateway.traffic, KEY).await.err().expect("no token is left");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert_eq!(field(&refused, "retry-after"), "9");
    assert_eq!(field(&refused, "upgrade"), "");
    assert_eq!(field(&refused, "connection"), "close");
    assert_eq!(echo.opened(), 1, "the refused one reached nobody");
    assert_eq!(socket.say("still").await.as_deref(), Some("still"));
    assert_eq!(open_ones(&gateway), "weir_gateway_upgraded_connections 1");
    drop(socket);
    eventually("the service hears of the end", async || echo.ended() == 2).await;
    eventually("nothing is left", async || open_ones(&gateway).ends_with(" 0")).await;
}

#[tokio::test]
async fn nothing_of_another_protocol_is_sent_before_the_service_agrees() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(MANY, "", listener.local_addr().unwrap());
    let gateway = Gateway::start(&text).await;
    let mut caller = TcpStream::connect(gateway.traffic).await.unwrap();
    let asking = handshake(KEY, "").replace("WebSocket\r\n", "raw/1\r\n");
    caller.write_all(format!("{asking}early").as_bytes()).await.unwrap();
    let (mut service, _) = listener.accept().await.unwrap();
    let asked = head(&mut service).await;
    assert_eq!(field(&asked, "upgrade"), "raw/1");
    let early = tokio::time::timeout(Duration::from_millis(100), service.read_u8()).await;
    assert!(early.is_err(), "{early:?} came before the agreement");
    let agreed = "HTTP/1.1 101 Go\r\nupgrade: RAW/1\r\nconnection: upgrade\r\n\r\nlate";
    service.write_all(agreed.as_bytes()).await.unwrap();
    let mut bytes = [0; 5];
    service.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"early");
    assert!(head(&mut caller).await.starts_with("HTTP/1.1 101 "));
    let mut bytes = [0; 4];
    caller.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"late");
    // One side ends: the other hears it and may still send.
    caller.shutdown().await.unwrap();
    assert_eq!(service.read(&mut bytes).await.unwrap(), 0);
    service.write_all(b"bye").await.unwrap();
    drop(service);
    let mut rest = String::new();
    caller.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "bye");
}

#[tokio::test]
async fn an_answer_other_than_101_passes_and_a_101_for_another_protocol_does_not() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(MANY, "", service.address)).await;
    let answer = raw(gateway.traffic, handshake(KEY, "").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    assert_eq!(field(&answer, "connection"), "close");
    let seen = service.last().headers;
    assert_eq!(seen.get("upgrade").unwrap(), "WebSocket");
    assert_eq!(seen.get("connection").unwrap(), "upgrade");

    let echo = Echo::start().await;
    let gateway = Gateway::start(&file(MANY, "", echo.address)).await;
    let other = handshake(KEY, "").replace("WebSocket\r\n", "websocket, x\r\n");
    let answer = raw(gateway.traffic, other.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("plain"), "{answer}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start(&file(MANY, "", listener.local_addr().unwrap())).await;
    let asking = handshake(KEY, "");
    let answering = async {
        let (mut service, _) = listener.accept().await.unwrap();
        head(&mut service).await;
        let other = "HTTP/1.1 101 Go\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n";
        service.write_all(other.as_bytes()).await.unwrap();
        service
    };
    let (answer, _service) = tokio::join!(raw(gateway.traffic, asking.as_bytes()), answering);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[tokio::test]
async fn h2c_and_halves_of_an_upgrade_are_ignored() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(MANY, "", service.address)).await;
    // What is meant for h2c cannot be taken for a request; of all others nobody knows.
    for (headers, connection) in [
        (
            &[
                ("connection", "upgrade, http2-settings"),
                ("upgrade", "h2c"),
                ("http2-settings", "x"),
            ][..],
            "",
        ),
        (&[("connection", "upgrade"), ("upgrade", "websocket, H2C")], "close"),
        (&[("connection", "keep-alive"), ("upgrade", "websocket")], "close"),
        (&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "x")], "close"),
        (&[("connection", "upgrade")], ""),
    ] {
        let headers = [&[("x-api-key", KEY)], headers].concat();
        let reply = get(gateway.traffic, "/", &headers).await;
        assert_eq!((reply.status, reply.header("connection")), (200, connection), "{headers:?}");
        let seen = service.last().headers;
        for gone in ["upgrade", "connection", "http2-settings"] {
            assert!(!seen.contains_key(gone), "{gone} in {seen:?}");
        }
    }
}

#[tokio::test]
async fn a_client_has_so_many_upgraded_connections_and_no_more() {
    let echo = Echo::start().await;
    let text = file(MANY, "", echo.address) + "[limits]\nupgrades_per_client = 2\n";
    let gateway = Gateway::start(&text).await;
    let first = Socket::of_acme(gateway.traffic).await;
    let mut second = Socket::of_acme(gateway.traffic).await;
    let refused = Socket::open(gateway.traffic, KEY).await.err().expect("two are open");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert_eq!(field(&refused, "retry-after"), "1");
    assert_eq!(tally(&gateway.calls(1).await), [(200, 1)], "plain requests are not counted");
    drop(first);
    eventually("a place is free again", async || Socket::open(gateway.traffic, KEY).await.is_ok())
        .await;
    assert_eq!(second.say("here").await.as_deref(), Some("here"));
}

#[tokio::test]
async fn an_upgraded_connection_counts_among_its_endpoints_requests() {
    let echo = Echo::start().await;
    let text = file(MANY, "", echo.address) + "max_connections = 1\n";
    let gateway = Gateway::start(&text).await;
    let socket = Socket::of_acme(gateway.traffic).await;
    let full = get(gateway.traffic, "/", &[("x-api-key", KEY)]).await;
    assert_eq!((full.status, &*full.code()), (503, "overloaded"));
    drop(socket);
    eventually("there is room again", async || {
        get(gateway.traffic, "/", &[("x-api-key", KEY)]).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn an_upgraded_connection_keeps_its_place_among_its_addresss() {
    let echo = Echo::start().await;
    let text = file(MANY, "", echo.address) + "[limits]\nconnections_per_address = 1\n";
    let gateway = Gateway::start(&text).await;
    let traffic = gateway.traffic;
    let is_served = async || {
        let mut caller = TcpStream::connect(traffic).await.unwrap();
        let asking = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
        // Closed at once, it may be gone before anything is written.
        let written = caller.write_all(asking.as_bytes()).await;
        written.is_ok() && caller.read_u8().await.is_ok()
    };
    let mut socket = Socket::of_acme(traffic).await;
    assert_eq!(socket.say("mine").await.as_deref(), Some("mine"));
    assert!(!is_served().await, "the one place is taken");
    drop(socket);
    eventually("the place is free again", is_served).await;
}

#[tokio::test]
async fn a_listener_without_http2_stays_without_it() {
    let service = Service::hello().await;
    let only_1 =
        file(MANY, "", service.address).replace("[operations]\n", "http2 = false\n[operations]\n");
    for (text, speaks) in [(only_1, false), (file(MANY, "", service.address), true)] {
        let gateway = Gateway::start(&text).await;
        let mut caller = TcpStream::connect(gateway.traffic).await.unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let opening = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
        caller.write_all(&opening).await.unwrap();
        let mut frame = [0; 9];
        let answered = tokio::time::timeout(PATIENCE, caller.read_exact(&mut frame)).await;
        assert_eq!(answered.expect("an answer or the end").is_ok(), speaks);
        assert_eq!(tally(&gateway.calls(1).await), [(200, 1)], "HTTP/1.1 is spoken");
    }
}

#[tokio::test]
async fn an_upgraded_connection_may_be_silent_unless_the_file_says_otherwise() {
    let echo = Echo::start().await;
    let quick = file(MANY, "", echo.address) + "idle_timeout = \"50ms\"\n";
    let gateway = Gateway::start(&quick).await;
    let mut patient = Socket::of_acme(gateway.traffic).await;
    let text = format!("{quick}[limits]\nupgrade_idle = \"1s\"\n");
    let strict = Gateway::start(&text).await;
    let mut silent = Socket::of_acme(strict.traffic).await;
    assert_eq!(silent.say("hello").await.as_deref(), Some("hello"));
    silent.ended().await;
    assert_eq!(patient.say("still here").await.as_deref(), Some("still here"));
}

#[tokio::test]
async fn what_a_caller_says_after_it_left_http_is_no_request_head() {
    let echo = Echo::start().await;
    let text = file(MANY, "", echo.address) + "[limits]\nhead_time = \"200ms\"\n";
    let gateway = Gateway::start(&text).await;
    let mut socket = Socket::of_acme(gateway.traffic).await;
    for text in ["first", "after longer than a head may take"] {
        assert_eq!(socket.say(text).await.as_deref(), Some(text));
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert_eq!(socket.say("and again").await.as_deref(), Some("and again"));
}

#[tokio::test]
async fn the_drain_lets_them_run_up_to_its_bound() {
    let echo = Echo::start().await;
    let text = file(MANY, "", echo.address).replace("finish = \"2s\"", "finish = \"4s\"");
    let mut gateway = Gateway::start(&text).await;
    let traffic = gateway.traffic;
    let mut leaving = Socket::of_acme(traffic).await;
    let mut staying = Socket::of_acme(traffic).await;
    gateway.drain.start();
    eventually("no new connection is taken", async || TcpStream::connect(traffic).await.is_err())
        .await;
    assert_eq!(leaving.say("on").await.as_deref(), Some("on"));
    drop(leaving);
    assert!(!gateway.ended.is_finished(), "one is still open");
    staying.ended().await;
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await.expect("it ends").unwrap();
    assert!(ended.is_ok(), "{ended:?}");
}

/// A control plane that revokes the key when told to.
struct Revoking {
    plane: Arc<Plane>,
    revoked: watch::Sender<bool>,
}

impl Revoking {
    async fn changes(&self) -> FeedAnswer {
        self.revoked.subscribe().wait_for(|revoked| *revoked).await.unwrap();
        let hash = wire::key::KeyHash::of_key(KEY, &crate::support::pepper());
        let mut key = crate::support::plane::found(hash).key;
        (key.state, key.revision) = (KeyState::Revoked, 6);
        let object = Object::Key { id: key.id.clone(), value: Some(key) };
        let changes = vec![Change { revision: 6, object }];
        FeedAnswer { history: "h".to_owned(), head: 6, live_gateways: 1, changes }
    }
}

impl ControlPlane for Revoking {
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>> {
        self.plane.snapshot()
    }

    fn feed<'a>(&'a self, asked: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>> {
        Box::pin(async {
            if asked.after >= 6 { std::future::pending().await } else { Ok(self.changes().await) }
        })
    }

    fn lookup<'a>(
        &'a self,
        request: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>> {
        self.plane.lookup(request)
    }
}

#[tokio::test]
async fn a_revoked_key_loses_its_connections_too() {
    let echo = Echo::start().await;
    let plan = json!({ "burst": { "capacity": 100, "refill": "1/s" } });
    let plane = Plane::new(&plan, Phase::Enforce);
    let plane = Arc::new(Revoking { plane, revoked: watch::Sender::new(false) });
    let (clock, store) = standing();
    let parts = Parts {
        leases: false,
        store,
        clock: clock as Arc<dyn Clock>,
        source: PolicySource::ControlPlane(Arc::clone(&plane) as _),
        evidence: Evidently(None),
        names: Arc::new(SystemNames),
    };
    let text = file("unlimited = true", "", echo.address);
    let gateway = Gateway::with(parse(&text), parts).await;
    eventually("the policy has arrived", async || {
        get(gateway.operations, "/readyz", &[]).await.status == 200
    })
    .await;
    let mut socket = Socket::of_acme(gateway.traffic).await;
    assert_eq!(socket.say("mine").await.as_deref(), Some("mine"));
    plane.revoked.send_replace(true);
    // Within the ten seconds of patience that all tests have.
    socket.ended().await;
    eventually("the service hears of it", async || echo.ended() == 1).await;
    assert_eq!(get(gateway.traffic, "/", &[("x-api-key", KEY)]).await.status, 401);
}
