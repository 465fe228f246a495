//! HTTP/2 as no well-meant caller writes it: floods of frames end by an error of the connection or
//! cost no memory, and other callers do not notice.

use std::net::SocketAddr;

use futures_util::future::join_all;
use http::Request;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{KEY, world};
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, block, frame, request,
};
use crate::support::{Gateway, Service, file, get, resident_bytes, standing};

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Statuses of so many requests at once over one connection.
async fn statuses(to: SocketAddr, count: usize) -> Vec<u16> {
    let stream = TcpStream::connect(to).await.unwrap();
    let shaken =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = shaken.unwrap();
    daemon::tasks::spawn("caller", connection);
    let calls = (0..count).map(|_| {
        let mut sender = sender.clone();
        async move {
            let request = Request::get("http://api.test/").header("x-api-key", KEY);
            let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
            sender.send_request(request).await.unwrap().status().as_u16()
        }
    });
    join_all(calls).await
}

#[tokio::test]
async fn s11_of_a_thousand_streams_or_fifty_connections_ten_requests_are_admitted() {
    for (connections, streams) in [(1, 1_000), (50, 20)] {
        let service = Service::hello().await;
        let (clock, store) = standing();
        let plan = "burst = { capacity = 10, refill = \"1/d\" }";
        let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
        let all = (0..connections).map(|_| statuses(gateway.traffic, streams));
        let all = join_all(all).await.concat();
        let of = |status: u16| all.iter().filter(|seen| **seen == status).count();
        assert_eq!((of(200), of(429)), (10, 990), "{connections} connections");
        assert_eq!(service.requests(), 10);
    }
}

#[tokio::test]
async fn s11_a_connection_has_a_hundred_open_streams_and_no_more() {
    let (gateway, service) = world().await;
    let mut frames = Frames::open(gateway.traffic).await;
    let settings = frames.find(SETTINGS).await.unwrap();
    let streams = settings.payload.chunks(6).find(|pair| pair[..2] == [0, 3]).unwrap();
    assert_eq!(streams[2..], 100_u32.to_be_bytes());
    let head = request("POST", "/", &[("x-api-key", KEY), ("content-length", "5")]);
    // Their bodies never come, so all stay open; the first hundred are what a caller may have.
    let mut bytes = frame(SETTINGS, 1, 0, &[]);
    for stream in (1..=301).step_by(2) {
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &head));
    }
    bytes.extend(frame(PING, 0, 0, b"all read"));
    assert!(frames.write(&bytes).await);
    let mut refused = Vec::new();
    loop {
        let frame = frames.next().await.expect("the connection goes on");
        match frame.kind {
            RST_STREAM => {
                assert_eq!(frame.code(), REFUSED_STREAM);
                refused.push(frame.stream);
            }
            PING if frame.payload == b"all read" => break,
            _ => {}
        }
    }
    assert_eq!(refused.len(), 51, "{refused:?}");
    assert!(refused.iter().all(|stream| *stream > 199), "{refused:?}");
    assert_eq!(service.take_targets(), Vec::<String>::new());
}

/// Writes the same bytes again and again; the reason that the other side gives for ending it, if
/// it does within so many.
async fn flood(
    to: SocketAddr,
    first: &[u8],
    again: impl Fn(u32) -> Vec<u8>,
    most: u32,
) -> Option<u32> {
    let mut frames = Frames::open(to).await;
    assert!(frames.write(first).await);
    for round in 0..most {
        if !frames.write(&again(round)).await {
            break;
        }
    }
    frames.find(GOAWAY).await.map(|away| away.code())
}

#[tokio::test]
async fn s13_a_head_that_goes_on_without_end_ends_its_connection() {
    let (gateway, service) = world().await;
    let first = frame(HEADERS, 0, 1, &request("GET", "/", &[("x-api-key", KEY)]));
    // Bytes that Huffman makes many letters of, as a literal that never ends.
    let huffman = [&[0x10, 0xff, 0x80, 0x80, 0x04][..], &[0; 16_000]].concat();
    let pieces: [(&str, Vec<u8>); 4] = [
        ("empty", Vec::new()),
        ("small", block(&[("x", "y")])),
        ("large", block(&[("x", &"y".repeat(16_000))])),
        ("huffman", huffman),
    ];
    for (what, piece) in pieces {
        let again = |_| frame(CONTINUATION, 0, 1, &piece);
        let code = flood(gateway.traffic, &first, again, 20_000).await;
        assert!(code.is_some_and(|code| code != 0), "{what}: {code:?}");
        assert_eq!(get(gateway.traffic, "/other", &[("x-api-key", KEY)]).await.status, 200);
        assert_eq!(service.take_targets(), ["/other"], "{what}");
    }
}

/// Stream `n` of a caller.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

#[tokio::test]
async fn s14_streams_that_are_made_to_be_reset_end_their_connection() {
    let (gateway, service) = world().await;
    let head = request("POST", "/", &[("x-api-key", KEY), ("content-length", "5")]);
    let open = |n: u32| frame(HEADERS, END_HEADERS, stream(n), &head);
    let closed = |n: u32| frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &head);
    let calm = 8_u32.to_be_bytes();
    type Again<'a> = Box<dyn Fn(u32) -> Vec<u8> + 'a>;
    let floods: [(&str, Again<'_>); 6] = [
        ("reset at once", Box::new(|n| [open(n), frame(RST_STREAM, 0, stream(n), &calm)].concat())),
        (
            "window of nothing",
            Box::new(|n| [open(n), frame(WINDOW_UPDATE, 0, stream(n), &[0; 4])].concat()),
        ),
        (
            "window beyond all",
            Box::new(|n| {
                let most = 0x7fff_ffff_u32.to_be_bytes();
                [open(n), frame(WINDOW_UPDATE, 0, stream(n), &most)].concat()
            }),
        ),
        (
            "more than was said",
            Box::new(|n| [open(n), frame(DATA, 0, stream(n), &[0; 9])].concat()),
        ),
        ("less than was said", Box::new(closed)),
        (
            "a field without a name",
            Box::new(|n| {
                let bad = request("GET", "/", &[("", "y"), ("x-api-key", KEY)]);
                frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &bad)
            }),
        ),
    ];
    for (what, again) in floods {
        let code = flood(gateway.traffic, &[], again, 20_000).await;
        let expected = [Some(ENHANCE_YOUR_CALM), Some(PROTOCOL_ERROR)];
        assert!(expected.contains(&code), "{what}: {code:?}");
        assert_eq!(get(gateway.traffic, "/other", &[("x-api-key", KEY)]).await.status, 200);
        assert_eq!(service.take_targets(), ["/other"], "{what}: none arrived whole");
    }
}

#[tokio::test]
async fn s14_frames_that_mean_nothing_cost_no_memory_and_nobody_else() {
    let (gateway, _service) = world().await;
    let head = request("POST", "/", &[("x-api-key", KEY)]);
    let first = frame(HEADERS, END_HEADERS, 1, &head);
    let window = 1_u32.to_be_bytes();
    for (what, bytes) in [
        ("settings", frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 16, 0])),
        ("pings", frame(PING, 0, 0, b"whatever")),
        ("windows", frame(WINDOW_UPDATE, 0, 0, &window)),
        ("empty data", frame(DATA, 0, 1, &[])),
        ("priorities", frame(2, 0, 3, &[0, 0, 0, 0, 1])),
        ("unknown frames", frame(0x77, 0, 0, &[0; 64])),
    ] {
        let before = resident_bytes();
        let many = bytes.repeat(1_000);
        let mut frames = Frames::open(gateway.traffic).await;
        assert!(frames.write(&first).await);
        // What comes back is not read: it must not pile up at the other side.
        let writing = async {
            for _ in 0..200 {
                if !frames.write(&many).await {
                    break;
                }
            }
        };
        let written = tokio::time::timeout(std::time::Duration::from_secs(3), writing).await;
        let reply = get(gateway.traffic, "/", &[("x-api-key", KEY)]).await;
        assert_eq!(reply.status, 200, "{what}");
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 10 * 1024 * 1024, "{what}: memory grew by {grown} bytes ({written:?})");
    }
}
