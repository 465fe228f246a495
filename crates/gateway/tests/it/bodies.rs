//! Bodies pass as they come, and a refused one never costs the caller its answer.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::service::text;
use crate::support::socket::{field, head};
use crate::support::{
    Gateway, KEY, PATIENCE, Service, eventually, file, raw, resident_bytes, standing, tally,
};

const PLAN: &str = "burst = { capacity = 10000, refill = \"10000/s\" }";
const PIECE: usize = 64 * 1024;

/// Reads one answer with a `content-length`: head and body.
async fn answer(stream: &mut BufReader<TcpStream>) -> (String, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).await.unwrap() > 0, "{head}");
    }
    let mut body = vec![0; field(&head, "content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

async fn post(to: SocketAddr, pieces: usize) -> std::io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let length = pieces * PIECE;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let piece = vec![b'x'; PIECE];
    for _ in 0..pieces {
        stream.write_all(&piece).await?;
    }
    Ok(BufReader::new(stream))
}

#[tokio::test]
async fn c18_a_caller_that_writes_all_before_it_reads_still_gets_its_429() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 1, refill = \"1/d\" }";
    let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
    assert_eq!(tally(&gateway.calls(1).await), [(200, 1)]);
    for round in 0..5 {
        let exchange = async {
            let mut stream = post(gateway.traffic, 128).await.expect("8 MiB can be written");
            let answer = answer(&mut stream).await;
            let mut rest = Vec::new();
            let end = stream.read_to_end(&mut rest).await.map(|_| rest.len());
            assert_eq!(end.ok(), Some(0), "the connection ends without a reset");
            answer
        };
        let (status, body) = tokio::time::timeout(PATIENCE, exchange).await.expect("in time");
        assert!(status.starts_with("HTTP/1.1 429"), "round {round}: {status}");
        assert_eq!(
            field(&status, "connection"),
            "close",
            "round {round}: it is told to be the last"
        );
        assert!(field(&status, "retry-after").parse::<u64>().unwrap() >= 86_400);
        assert!(body.contains("quota_exceeded"), "round {round}: {body}");
    }
    assert_eq!((service.requests(), service.bytes()), (1, 0));
}

#[tokio::test]
async fn a_caller_that_waits_for_a_word_is_refused_instead_of_told_to_send() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 1, refill = \"1/d\" }";
    let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: 5\r\n\
         expect: 100-continue\r\n\r\n"
    );
    let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert!(line.starts_with("HTTP/1.1 100"), "{line}");
    stream.read_line(&mut line).await.unwrap();
    stream.get_mut().write_all(b"hello").await.unwrap();
    assert!(answer(&mut stream).await.0.starts_with("HTTP/1.1 200"));
    let refused = crate::support::raw(gateway.traffic, head.as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert_eq!(service.bytes(), 5);
}

#[tokio::test]
async fn a_caller_that_writes_all_before_it_reads_hears_of_a_service_that_is_down() {
    let nobody = crate::support::service::nobody().await;
    let gateway = Gateway::start(&file(PLAN, "", nobody)).await;
    let mut stream = post(gateway.traffic, 128).await.expect("8 MiB can be written");
    let (status, _) = answer(&mut stream).await;
    assert!(status.starts_with("HTTP/1.1 502"), "{status}");
}

#[tokio::test]
async fn after_a_short_refused_body_the_connection_lives_on() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 1, refill = \"1/d\" }";
    let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
    gateway.calls(1).await;
    let mut stream = post(gateway.traffic, 1).await.unwrap();
    assert!(answer(&mut stream).await.0.starts_with("HTTP/1.1 429"));
    let again = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    stream.get_mut().write_all(again.as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.0.starts_with("HTTP/1.1 429"), "a second answer");
}

#[tokio::test]
async fn an_upload_arrives_whole_and_its_bytes_are_not_collected() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let before = resident_bytes();
    let mut stream = post(gateway.traffic, 1_024).await.unwrap();
    let (status, body) = answer(&mut stream).await;
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    assert_eq!((body.as_str(), service.bytes()), ("hello", 64 * 1024 * 1024));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 48 * 1024 * 1024, "memory grew by {grown} bytes while 64 MiB passed");
}

#[tokio::test]
async fn a_download_passes_piece_by_piece() {
    let service = Service::answering(|_head| {
        let pieces = (0..1_024).map(|_| Ok(Frame::data(vec![b'y'; PIECE].into())));
        let body = StreamBody::new(futures_util::stream::iter(pieces)).boxed();
        Response::builder().header("x-kept", "1").body(body).unwrap()
    })
    .await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let before = resident_bytes();
    let stream = TcpStream::connect(gateway.traffic).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    daemon::tasks::spawn("caller", connection);
    let request = crate::support::caller::request("GET", "/", &[("x-api-key", KEY)]);
    let mut body = sender.send_request(request).await.unwrap().into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(bytes, 64 * 1024 * 1024);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 48 * 1024 * 1024, "memory grew by {grown} bytes while 64 MiB passed");
}

#[tokio::test]
async fn a_caller_that_does_not_read_holds_its_service_no_longer_than_the_whole_may_take() {
    let service = Service::answering(|head| {
        if head.uri.path() != "/endless" {
            return text(200, "hello");
        }
        let pieces =
            futures_util::stream::repeat_with(|| Ok(Frame::data(vec![b'y'; PIECE].into())));
        Response::new(StreamBody::new(pieces).boxed())
    })
    .await;
    let lines = "total_timeout = \"500ms\"\nmax_connections = 1\nmax_pending = 0\n";
    let gateway = Gateway::start(&(file(PLAN, "", service.address) + lines)).await;
    let mut unread = TcpStream::connect(gateway.traffic).await.unwrap();
    let head = format!("GET /endless HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    unread.write_all(head.as_bytes()).await.unwrap();
    let others = async || tally(&gateway.calls(1).await);
    eventually("it has the only place", async || others().await == [(503, 1)]).await;
    eventually("the place is free", async || others().await == [(200, 1)]).await;
    let read = tokio::time::timeout(PATIENCE, unread.read_to_end(&mut Vec::new())).await;
    assert!(read.is_ok(), "what is left of it ends as well");
}

#[tokio::test]
async fn over_http2_callers_that_do_not_read_keep_nobody_elses_answer_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap()) + "protocol = \"http2\"\n";
    let gateway = Gateway::start(&text).await;
    let service = daemon::tasks::spawn("http2 service", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = service_fn(async |request: Request<Incoming>| {
                let many = if request.uri().path() == "/endless" { usize::MAX } else { 1 };
                let piece = || Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'y'; PIECE])));
                let pieces = std::iter::repeat_with(piece).take(many);
                let pieces = futures_util::stream::iter(pieces);
                Ok::<_, std::io::Error>(Response::new(StreamBody::new(pieces)))
            });
            let engine = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            daemon::tasks::spawn("http2", engine.serve_connection(TokioIo::new(stream), answer));
        }
    });
    assert_eq!(gateway.calls(1).await[0].status, 200, "from now on there is one connection");
    let mut unread = Vec::new();
    for _ in 0..8 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut stream = socket.connect(gateway.traffic).await.unwrap();
        let head = format!("GET /endless HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        unread.push(stream);
    }
    for _ in 0..100 {
        let reply = &gateway.calls(1).await[0];
        assert_eq!((reply.status, reply.body.len()), (200, PIECE));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    service.abort();
}

#[tokio::test]
async fn an_old_caller_gets_no_chunks_and_a_lasting_connection_only_if_it_asks() {
    // The service's length is not known before its end.
    let service = Service::answering(|_head| {
        let pieces = (0..3).map(|_| Ok(Frame::data("piece".into())));
        Response::new(StreamBody::new(futures_util::stream::iter(pieces)).boxed())
    })
    .await;
    let plan = "burst = { capacity = 2, refill = \"1/d\" }";
    let gateway = Gateway::start(&file(plan, "", service.address)).await;
    let head = format!("GET / HTTP/1.0\r\nhost: a\r\nx-api-key: {KEY}\r\n");
    for more in ["", "connection: keep-alive\r\n"] {
        // Read to the end: only the close says where this body ends.
        let whole = raw(gateway.traffic, format!("{head}{more}\r\n").as_bytes()).await;
        let (fields, body) = whole.split_once("\r\n\r\n").unwrap();
        assert!(fields.starts_with("HTTP/1.0 200"), "{fields}");
        let fields = fields.to_ascii_lowercase();
        assert!(!fields.contains("transfer-encoding"), "{fields}");
        assert!(!fields.contains("keep-alive"), "{fields}");
        assert_eq!(body, "piecepiecepiece");
    }
    let refused = raw(gateway.traffic, format!("{head}\r\n").as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.0 429"), "{refused}");
    assert!(!refused.to_ascii_lowercase().contains("keep-alive"), "{refused}");

    // An answer whose length is told may leave the connection open, to who has asked for that.
    let mut stream = BufReader::new(TcpStream::connect(gateway.traffic).await.unwrap());
    for _ in 0..2 {
        let asking = format!("{head}connection: keep-alive\r\n\r\n");
        stream.get_mut().write_all(asking.as_bytes()).await.unwrap();
        let (status, body) = answer(&mut stream).await;
        assert!(status.starts_with("HTTP/1.0 429"), "{status}");
        assert!(body.contains("quota_exceeded"), "{body}");
    }
}

#[tokio::test]
async fn a_body_over_the_bound_is_refused_and_the_caller_reads_it() {
    let service = Service::hello().await;
    let text = format!("{}[limits]\nbody_bytes = 1000\n", file(PLAN, "", service.address));
    let gateway = Gateway::start(&text).await;
    let mut stream = post(gateway.traffic, 16).await.unwrap();
    let (status, body) = answer(&mut stream).await;
    assert!(status.starts_with("HTTP/1.1 413"), "{status}");
    assert!(body.contains("body_too_large"), "{body}");
    assert_eq!(service.requests(), 0);

    // Without a length it shows on the way.
    let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunk = format!("258\r\n{}\r\n", "z".repeat(600));
    stream.write_all(format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes()).await.unwrap();
    let (status, _) = answer(&mut BufReader::new(stream)).await;
    assert!(status.starts_with("HTTP/1.1 413"), "{status}");
}

#[tokio::test]
async fn a_caller_that_writes_all_before_it_reads_hears_what_was_said_meanwhile() {
    // A service that answers by the head alone, and reads no more.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap());
    let service = daemon::tasks::spawn("service", async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            head(&mut stream).await;
            let early = b"HTTP/1.1 403 No\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
            stream.write_all(early).await.unwrap();
            open.push(stream);
        }
    });
    let patient = Service::hello().await;
    let bounded = file(PLAN, "", patient.address) + "[limits]\nbody_bytes = 100000\n";
    for (text, status) in [(text, "HTTP/1.1 403"), (bounded, "HTTP/1.1 413")] {
        let gateway = Gateway::start(&text).await;
        let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
        let asked = format!(
            "POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        stream.write_all(asked.as_bytes()).await.unwrap();
        let chunk = format!("{PIECE:x}\r\n{}\r\n", "z".repeat(PIECE));
        for _ in 0..256 {
            stream.write_all(chunk.as_bytes()).await.expect("it may write all");
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        let (heard, _) = answer(&mut BufReader::new(stream)).await;
        assert!(heard.starts_with(status), "{heard}");
    }
    service.abort();
}

#[tokio::test]
async fn a_connection_with_half_a_request_on_it_is_not_used_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap());
    let hasty = daemon::tasks::spawn("hasty service", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            daemon::tasks::spawn("hasty answer", async move {
                let mut head = [0; 4_096];
                // Answers as soon as something has come, and never reads on.
                while stream.read(&mut head).await.is_ok_and(|bytes| bytes > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhasty";
                    stream.write_all(answer).await.unwrap();
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    let gateway = Gateway::start(&text).await;
    let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
    let head =
        format!("POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: 10\r\n\r\nabc");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut stream = BufReader::new(stream);
    assert_eq!(answer(&mut stream).await.1, "hasty");
    // The first caller still owes seven bytes; the next one does not wait for them.
    assert_eq!(tally(&gateway.calls(1).await), [(200, 1)]);
    hasty.abort();
}

#[tokio::test]
async fn trailers_pass_upwards_and_downwards() {
    let service = Service::answering(|head| {
        let te = head.headers.get("te").is_some_and(|te| te == "trailers");
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static(if te { "asked" } else { "un" }));
        let pieces = [Ok(Frame::data("hi".into())), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures_util::stream::iter(pieces)).boxed();
        Response::builder().header("trailer", "x-sum").body(body).unwrap()
    })
    .await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let head = format!(
        "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\nte: trailers\r\n\
         connection: te, close\r\n\r\n"
    );
    let answer = crate::support::raw(gateway.traffic, head.as_bytes()).await;
    assert!(answer.contains("x-sum: asked"), "{answer}");
}

#[tokio::test]
async fn a_caller_that_stops_sending_does_not_hold_the_service() {
    let service = Service::hello().await;
    let text = file(PLAN, "", service.address) + "idle_timeout = \"100ms\"\n";
    let gateway = Gateway::start(&text).await;
    let mut stream = TcpStream::connect(gateway.traffic).await.unwrap();
    let head =
        format!("POST / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-length: 10\r\n\r\nabc");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut stream = BufReader::new(stream);
    let read = tokio::time::timeout(PATIENCE, answer(&mut stream)).await;
    let (status, body) = read.expect("an answer in time");
    assert!(status.starts_with("HTTP/1.1 408"), "{status}");
    assert!(body.contains("request_timeout"), "{body}");
}
