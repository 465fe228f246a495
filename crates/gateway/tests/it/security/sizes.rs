//! Heads that are too large: refused before anything is decided, in both versions of HTTP.

use super::{KEY, SMUGGLED, text, world};
use crate::support::Gateway;
use crate::support::bytes::write;
use crate::support::frames::{
    END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, block, frame, request,
};
use crate::support::scripted::{Act, OK, Scripted};

#[tokio::test]
async fn s16_a_head_beyond_its_bounds_is_refused() {
    let (gateway, service) = world().await;
    let key = format!("host: a\r\nx-api-key: {KEY}\r\n");
    let many: String = (0..99).map(|n| format!("x-{n}: 1\r\n")).collect();
    for (head, statuses) in [
        (format!("GET / HTTP/1.1\r\n{key}x: {}\r\n", "y".repeat(17 * 1024)), &[431][..]),
        (format!("GET / HTTP/1.1\r\n{key}{}: y\r\n", "x".repeat(17 * 1024)), &[431]),
        (format!("GET / HTTP/1.1\r\n{key}x: {}\r\n", "y".repeat(1_048_576)), &[431]),
        (format!("GET / HTTP/1.1\r\n{key}{many}"), &[431]),
        (format!("GET /{} HTTP/1.1\r\n{key}", "p".repeat(8 * 1024)), &[414]),
        (format!("GET /?{} HTTP/1.1\r\n{key}", "q".repeat(8 * 1024)), &[414]),
        (format!("GET /{} HTTP/1.1\r\n{key}", "p".repeat(65_536)), &[414, 431]),
        (format!("{} / HTTP/1.1\r\n{key}", "M".repeat(65_536)), &[431]),
    ] {
        let came = write(gateway.traffic, format!("{head}\r\n{SMUGGLED}").as_bytes()).await;
        let shown: String = head.chars().take(80).collect();
        let [status] = came.statuses[..] else { panic!("{shown} → {}", came.text) };
        assert!(statuses.contains(&status), "{shown} → {}", came.text);
    }
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn s16_the_largest_head_that_fits_is_a_request_like_any_other() {
    // A service that takes heads of any size: the gateway adds fields of its own.
    let service = Scripted::new(|_| Act::Say(OK)).await;
    let gateway = Gateway::start(&text(service.address)).await;
    let (key, last) = (format!("host: a\r\nx-api-key: {KEY}\r\n"), "connection: close\r\n");
    let fields: String = (0..97).map(|n| format!("x-{n}: 1\r\n")).collect();
    let field = format!("x: {}\r\n", "y".repeat(16_384 - 200));
    for more in [fields, field] {
        let bytes = format!("GET / HTTP/1.1\r\n{key}{more}{last}\r\n");
        let came = write(gateway.traffic, bytes.as_bytes()).await;
        assert_eq!(came.statuses, [200], "{}", came.text);
    }
    assert_eq!(service.arrived().len(), 2);
}

/// The status with which a request over HTTP/2 is answered; 0 if its stream or connection ends
/// without one.
pub(super) async fn status_over_http2(to: std::net::SocketAddr, blocks: &[Vec<u8>]) -> u16 {
    let mut frames = Frames::open(to).await;
    let (first, rest) = blocks.split_first().unwrap();
    let flags = |last: bool| if last { END_HEADERS } else { 0 };
    let mut bytes = frame(HEADERS, END_STREAM | flags(rest.is_empty()), 1, first);
    for (index, block) in rest.iter().enumerate() {
        bytes.extend(frame(9, flags(index + 1 == rest.len()), 1, block));
    }
    frames.write(&bytes).await;
    while let Some(frame) = frames.next().await {
        match frame.kind {
            HEADERS => return status_of(&frame.payload),
            RST_STREAM | GOAWAY => return 0,
            _ => {}
        }
    }
    0
}

/// Of a block that begins with `:status`, as the engine writes it.
fn status_of(block: &[u8]) -> u16 {
    match block[0] {
        0x88 => 200,
        0x8c => 400,
        // A literal behind a name of the static table: its digits, plain or by Huffman.
        _ if block[1] & 0x80 == 0 => std::str::from_utf8(&block[2..5]).unwrap().parse().unwrap(),
        _ => huffman_digits(&block[2..2 + usize::from(block[1] & 0x7f)]),
    }
}

/// Three digits: `0` to `2` take five bits, the others six.
fn huffman_digits(bytes: &[u8]) -> u16 {
    let mut bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
    let mut take = |bits_of: usize, from: u16| {
        (0..bits_of).fold(from, |number, _| number * 2 + u16::from(bits.next().unwrap()))
    };
    let mut digit = || match take(5, 0) {
        few @ 0..=2 => few,
        more => take(1, more) - 25 + 3,
    };
    (0..3).fold(0, |number, _| number * 10 + digit())
}

#[tokio::test]
async fn s16_the_same_over_http2_and_a_block_that_unfolds_is_no_way_around_it() {
    // A service that takes heads of any size, so that it is not the one that refuses.
    let service = Scripted::new(|_| Act::Say(OK)).await;
    let gateway = Gateway::start(&text(service.address)).await;
    let long = "y".repeat(16_000);
    let many: Vec<(String, &str)> = (0..101).map(|n| (format!("x-{n}"), "1")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, *value)).collect();
    let key = ("x-api-key", KEY);
    let target = format!("/{}", "p".repeat(8 * 1024));
    let fits = request("GET", "/", &[key]);
    assert_eq!(status_over_http2(gateway.traffic, &[fits]).await, 200);
    assert_eq!(service.arrived().len(), 1);
    for (what, blocks, statuses) in [
        ("list", vec![request("GET", "/", &[key, ("x", &long)]), block(&[("y", &long)])], [431, 0]),
        ("fields", vec![request("GET", "/", &[&[key], &many[..]].concat())], [431, 431]),
        ("target", vec![request("GET", &target, &[key])], [414, 414]),
        ("bomb", vec![bomb()], [431, 0]),
    ] {
        let status = status_over_http2(gateway.traffic, &blocks).await;
        assert!(statuses.contains(&status), "{what}: {status}");
        assert_eq!(service.arrived().len(), 1, "{what} arrived");
    }
}

/// A field of 4,000 bytes that goes into the table once, and is meant ten thousand times.
fn bomb() -> Vec<u8> {
    let mut bytes = request("GET", "/", &[("x-api-key", KEY)]);
    let value = "b".repeat(3_900);
    let mut entry = block(&[("x-bomb", &value)]);
    entry[0] = 0x40; // with indexing
    bytes.extend(entry);
    bytes.extend(std::iter::repeat_n(0x80 | 62, 10_000));
    bytes
}
