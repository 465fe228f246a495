//! An upstream is as untrusted as a caller: what is malformed, incomplete, late or silent becomes a
//! 502, a 504 or a visible break, never something that looks whole, and a connection in doubt is
//! never used again.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::scripted::{Act, OK, Scripted};
use crate::support::service::nobody;
use crate::support::{Gateway, KEY, PATIENCE, Service, file, get, raw, tally};

const PLAN: &str = "burst = { capacity = 10000, refill = \"10000/s\" }";

/// What a caller sees of one GET, to the end of its connection.
async fn seen(gateway: &Gateway) -> String {
    let head =
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\nconnection: close\r\n\r\n");
    raw(gateway.traffic, head.as_bytes()).await
}

/// Whether a caller can tell that it has the whole answer.
fn looks_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| length.parse::<usize>().unwrap() <= body.len())
}

#[tokio::test]
async fn f35_a_refused_upstream_is_a_502_and_one_of_three_that_is_refused_is_not_noticed() {
    let gateway = Gateway::start(&file(PLAN, "", nobody().await)).await;
    assert_eq!(tally(&gateway.calls(20).await), [(502, 20)]);
    assert_eq!(gateway.shown("retries_total"), 0, "there is nobody else");

    let (one, two, gone) = (Service::hello().await, Service::hello().await, nobody().await);
    let endpoints = format!("\"{}\", \"{}\", \"{gone}\"", one.address, two.address);
    let text = file(PLAN, "", one.address).replace(&format!("\"{}\"", one.address), &endpoints);
    let gateway = Gateway::start(&text).await;
    assert_eq!(tally(&gateway.calls(200).await), [(200, 200)]);
    assert_eq!(gateway.shown("ejections_total"), 1);
    assert_eq!(gateway.shown("retries_total"), 5, "then it was set aside");
    assert_eq!(one.requests() + two.requests(), 200);
}

#[tokio::test]
async fn f36_an_upstream_that_is_silent_or_slow_is_a_504_and_others_do_not_notice() {
    let silent = Scripted::new(|_| Act::Keep).await;
    let slow = Scripted::new(|_| Act::Trickle(OK, Duration::from_millis(40))).await;
    let well = Service::hello().await;
    let route = "[[route]]\npath = \"/silent\"\nupstream = \"silent\"\n\
        [[route]]\npath = \"/slow\"\nupstream = \"slow\"\n";
    let more = |name: &str, address| {
        format!("[upstream.{name}]\nendpoints = [\"{address}\"]\nhead_timeout = \"200ms\"\n")
    };
    let text = file(PLAN, route, well.address)
        + &more("silent", silent.address)
        + &more("slow", slow.address);
    let gateway = Gateway::start(&text).await;
    let mut held = Vec::new();
    for path in ["/silent", "/slow"] {
        for _ in 0..10 {
            let traffic = gateway.traffic;
            let call = async move { get(traffic, path, &[("x-api-key", KEY)]).await };
            held.push(daemon::tasks::spawn("held", call));
        }
    }
    assert_eq!(tally(&gateway.calls(50).await), [(200, 50)]);
    for call in held {
        let reply = call.await.unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (504, "upstream_timeout"));
        assert_eq!(reply.header("x-weir-source"), "edge");
    }
    assert_eq!(silent.arrived().len(), 10, "what timed out is not sent again");
}

#[tokio::test]
async fn f36_a_head_that_comes_byte_by_byte_but_in_time_is_an_answer() {
    let slow = Scripted::new(|_| Act::Trickle(OK, Duration::from_millis(1))).await;
    let gateway = Gateway::start(&file(PLAN, "", slow.address)).await;
    assert_eq!(tally(&gateway.calls(3).await), [(200, 3)]);
}

#[tokio::test]
async fn a_connection_that_is_accepted_by_nobody_is_given_up_in_time() {
    // A listener whose queue is full: connecting takes for ever.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut filling = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address))
            .await
    {
        filling.push(stream);
    }
    let text = file(PLAN, "", address) + "connect_timeout = \"100ms\"\n";
    let gateway = Gateway::start(&text).await;
    let reply = tokio::time::timeout(PATIENCE, gateway.calls(1)).await.expect("in time");
    assert_eq!((reply[0].status, reply[0].code().as_str()), (502, "upstream_failed"));
}

#[tokio::test]
async fn what_is_no_http_or_has_two_readings_is_a_502() {
    for answer in [
        "what?\r\n\r\n",
        "\0\0\0\x04\x01\r\n\r\n",
        "HTTP/1.1 2OO OK\r\n\r\n",
        "HTTP/9.9 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5x\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    ] {
        let service = Scripted::new(move |_| Act::SayAndClose(answer)).await;
        let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
        let reply = seen(&gateway).await;
        assert!(reply.starts_with("HTTP/1.1 502"), "{answer:?}: {reply}");
        assert!(reply.contains("x-weir-source: edge"), "{answer:?}: {reply}");
        assert_eq!(service.arrived().len(), 1, "{answer:?} is not asked again");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_never_looks_whole() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\na\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
    ] {
        let service = Scripted::new(move |_| Act::SayAndClose(answer)).await;
        let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
        let reply = seen(&gateway).await;
        // Where the break comes with the head, the caller may see nothing at all.
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 200"), "{answer:?}: {reply}");
        assert!(!looks_whole(&reply), "{answer:?}: {reply}");
    }
    for whole in [OK, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"] {
        let service = Scripted::new(move |_| Act::SayAndClose(whole)).await;
        let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
        assert!(looks_whole(&seen(&gateway).await), "{whole:?}");
    }
}

#[tokio::test]
async fn a_body_that_stalls_is_broken_off_after_the_idle_time() {
    let stalls = Scripted::new(|arrived| match arrived.header("x-id") {
        "" => Act::Say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello"),
        _ => Act::Say(OK),
    })
    .await;
    let text = file(PLAN, "", stalls.address) + "idle_timeout = \"100ms\"\n";
    let gateway = Gateway::start(&text).await;
    let reply = seen(&gateway).await;
    assert!(reply.ends_with("hello") && !looks_whole(&reply), "{reply}");
    // The rest of that answer may still come: its connection serves nobody else.
    let other = get(gateway.traffic, "/", &[("x-api-key", KEY), ("x-id", "2")]).await;
    assert_eq!((other.status, &other.body[..]), (200, &b"ok"[..]));
    assert!(stalls.arrived().iter().all(|arrived| arrived.nth == 0), "a new connection");
}

#[tokio::test]
async fn more_than_was_told_belongs_to_no_other_caller() {
    for (status, answer) in [
        (200, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 418 Evil\r\n\r\n"),
        (200, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nevil"),
        (204, "HTTP/1.1 204 None\r\n\r\nHTTP/1.1 418 Evil\r\ncontent-length: 0\r\n\r\n"),
        (304, "HTTP/1.1 304 Same\r\ncontent-length: 4\r\n\r\nevil"),
        (
            200,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n\
             HTTP/1.1 418 Evil\r\n\r\n",
        ),
    ] {
        let chatty = Scripted::new(move |_| Act::Say(answer)).await;
        let gateway = Gateway::start(&file(PLAN, "", chatty.address)).await;
        assert_eq!(tally(&gateway.calls(10).await), [(status, 10)], "{answer:?}");
        assert!(chatty.arrived().iter().all(|arrived| arrived.nth == 0), "never used again");
    }
}

#[tokio::test]
async fn interim_answers_are_not_the_answer_and_an_endless_row_of_them_ends() {
    const HINTED: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n\
        HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let hinting = Scripted::new(|_| Act::Say(HINTED)).await;
    let gateway = Gateway::start(&file(PLAN, "", hinting.address)).await;
    for reply in gateway.calls(3).await {
        assert_eq!((reply.status, &reply.body[..]), (200, &b"ok"[..]));
    }
    const HINT: &str = "HTTP/1.1 103 Early Hints\r\n\r\n";
    let endless = Scripted::new(|_| Act::Trickle(HINT, Duration::from_millis(1))).await;
    let text = file(PLAN, "", endless.address) + "head_timeout = \"200ms\"\n";
    let gateway = Gateway::start(&text).await;
    assert_eq!(gateway.calls(1).await[0].status, 504);
}

#[tokio::test]
async fn an_early_answer_reaches_the_caller_and_ends_the_connection_to_the_service() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counting = std::sync::Arc::clone(&accepted);
    let hasty = daemon::tasks::spawn("hasty service", async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            counting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let answer = b"HTTP/1.1 413 Too Much\r\ncontent-length: 2\r\n\r\nno";
            let mut some = [0; 64];
            tokio::io::AsyncReadExt::read(&mut stream, &mut some).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
            open.push(stream);
        }
    });
    let gateway = Gateway::start(&file(PLAN, "", address)).await;
    let head =
        format!("POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: 9\r\n\r\nabc");
    for round in 1..=3 {
        let answer = raw_start(gateway.traffic, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.ends_with("no"), "{answer}");
        assert_eq!(accepted.load(std::sync::atomic::Ordering::SeqCst), round);
    }
    hasty.abort();
}

/// Writes bytes and reads until an answer of two bytes is whole; the rest of the request never
/// comes.
async fn raw_start(to: std::net::SocketAddr, bytes: &[u8]) -> String {
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, bytes).await.unwrap();
        let mut answer = Vec::new();
        while !String::from_utf8_lossy(&answer).contains("\r\n\r\nno") {
            let mut piece = [0; 512];
            let count = tokio::io::AsyncReadExt::read(&mut stream, &mut piece).await.unwrap();
            assert!(count > 0, "{:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
}

#[tokio::test]
async fn a_bound_for_the_whole_exchange_holds_before_and_within_the_answer() {
    const LONG: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n";
    let slow = Scripted::new(|arrived| match arrived.header("x-id") {
        "silent" => Act::Keep,
        "" => Act::Trickle(LONG, Duration::from_millis(1)),
        _ => Act::Say(OK),
    })
    .await;
    let text = file(PLAN, "", slow.address) + "total_timeout = \"300ms\"\n";
    let gateway = Gateway::start(&text).await;
    let id = |id: &'static str| [("x-api-key", KEY), ("x-id", id)];
    assert_eq!(get(gateway.traffic, "/", &id("silent")).await.status, 504);
    assert_eq!(get(gateway.traffic, "/", &id("well")).await.status, 200);
    // Its body never ends; the idle time of a minute is not what ends it.
    let reply = seen(&gateway).await;
    assert!(reply.starts_with("HTTP/1.1 200") && !looks_whole(&reply), "{reply}");
}

#[tokio::test]
async fn who_is_silent_to_the_end_of_the_whole_time_is_set_aside() {
    let (silent, well) = (Scripted::new(|_| Act::Keep).await, Service::hello().await);
    let endpoints = format!("\"{}\", \"{}\"", silent.address, well.address);
    let text = file(PLAN, "", well.address).replace(&format!("\"{}\"", well.address), &endpoints)
        + "total_timeout = \"500ms\"\nejection = { consecutive = 2 }\n";
    let gateway = Gateway::start(&text).await;
    let replies = gateway.calls(40).await;
    assert_eq!(tally(&replies), [(200, 38), (504, 2)]);
    assert_eq!(gateway.shown("ejections_total"), 1);
}

/// Passes bytes on to `service`, both ways; those of the first connection only until it is `cut`.
async fn leaky(
    service: SocketAddr,
    cut: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
) -> SocketAddr {
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = front.local_addr().unwrap();
    daemon::tasks::spawn("front", async move {
        while let Ok((stream, _)) = front.accept().await {
            let is_first = accepted.fetch_add(1, Ordering::SeqCst) == 0;
            let cut = Arc::clone(&cut);
            daemon::tasks::spawn("pipe", async move {
                let (mut from, mut to) = stream.into_split();
                let behind = TcpStream::connect(service).await.unwrap();
                let (mut answers, mut questions) = behind.into_split();
                let back = async move { tokio::io::copy(&mut answers, &mut to).await };
                daemon::tasks::spawn("back", back);
                let mut bytes = [0; 4_096];
                while let Ok(count @ 1..) = from.read(&mut bytes).await {
                    let is_lost = is_first && cut.load(Ordering::SeqCst);
                    if !is_lost && questions.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn an_http2_connection_that_went_silent_is_used_no_more() {
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let behind = service.local_addr().unwrap();
    daemon::tasks::spawn("service", async move {
        while let Ok((stream, _)) = service.accept().await {
            let answer = service_fn(async |_request: http::Request<hyper::body::Incoming>| {
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from("ok"))))
            });
            let engine = http2::Builder::new(TokioExecutor::new());
            daemon::tasks::spawn("call", engine.serve_connection(TokioIo::new(stream), answer));
        }
    });
    let (cut, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let front = leaky(behind, Arc::clone(&cut), Arc::clone(&accepted)).await;
    let lines = "protocol = \"http2\"\nhead_timeout = \"300ms\"\nejection = { consecutive = 0 }\n";
    let gateway = Gateway::start(&(file(PLAN, "", front) + lines)).await;
    assert_eq!(tally(&gateway.calls(3).await), [(200, 3)]);
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    cut.store(true, Ordering::SeqCst);
    assert_eq!(tally(&gateway.calls(5).await), [(200, 4), (504, 1)]);
    assert_eq!(accepted.load(Ordering::SeqCst), 2);
}
