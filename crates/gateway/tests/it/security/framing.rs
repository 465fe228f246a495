//! Where a request of HTTP/1.1 ends: said twice, said badly or not said, it is no request, and
//! nothing behind it is one.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{SMUGGLED, head, text, world};
use crate::support::bytes::{Came, write};
use crate::support::{Gateway, KEY, Service, file, standing};

/// A body for which one reader sees an end and another a request behind it.
const SPLIT: &str = "0\r\n\r\n";

/// What the bytes are: refused, before or while they arrive, and the end of their connection.
async fn refused(gateway: &Gateway, service: &Service, bytes: &[u8], statuses: &[u16]) -> Came {
    let came = write(gateway.traffic, bytes).await;
    let shown = String::from_utf8_lossy(bytes).into_owned();
    let [status] = came.statuses[..] else { panic!("{shown:?} → {:?}", came.text) };
    assert!(statuses.contains(&status), "{shown:?} → {}", came.text);
    assert_eq!(service.take_targets(), Vec::<String>::new(), "{shown:?} arrived");
    came
}

#[tokio::test]
async fn s01_with_two_lengths_one_request_arrives_at_most_and_nothing_follows() {
    let (gateway, service) = world().await;
    let lengths = ["content-length: 4", "Content-Length: 5", "CONTENT-LENGTH: 0"];
    let codings =
        ["transfer-encoding: chunked", "Transfer-Encoding: Chunked", "tRANSFER-eNCODING:chunked"];
    let both = lengths.iter().flat_map(|length| codings.map(|coding| (*length, coding)));
    for (length, coding) in both {
        for more in [format!("{length}\r\n{coding}\r\n"), format!("{coding}\r\n{length}\r\n")] {
            let bytes = head("POST /first HTTP/1.1", &more) + SPLIT + SMUGGLED;
            let came = write(gateway.traffic, bytes.as_bytes()).await;
            assert_eq!(came.statuses.len(), 1, "{more:?} → {}", came.text);
            assert!([200, 400].contains(&came.statuses[0]), "{more:?} → {}", came.text);
            let arrived = service.take_targets();
            assert!(arrived.is_empty() || arrived == ["/first"], "{more:?}: {arrived:?}");
        }
    }
}

#[tokio::test]
async fn s02_a_length_that_is_no_plain_number_is_refused() {
    let (gateway, service) = world().await;
    let lengths = [
        "5,5",
        "5, 5",
        "+5",
        "-0",
        "-5",
        "0x5",
        "5 5",
        "",
        "005",
        "00",
        "5.0",
        "5e0",
        "\"5\"",
        "five",
        "18446744073709551616",
        "99999999999999999999999999",
    ];
    for length in lengths {
        let bytes = head("POST / HTTP/1.1", &format!("content-length: {length}\r\n"));
        refused(&gateway, &service, (bytes + "hello" + SMUGGLED).as_bytes(), &[400]).await;
    }
    let two = "content-length: 5\r\ncontent-length: 6\r\n";
    let bytes = head("POST / HTTP/1.1", two) + "hello" + SMUGGLED;
    refused(&gateway, &service, bytes.as_bytes(), &[400]).await;

    // Two that are the same say the same: one request with five bytes, and the next behind it.
    let same = "content-length: 5\r\nContent-Length: 5\r\n";
    let bytes = head("POST /first HTTP/1.1", same)
        + "hello"
        + &head("GET /second HTTP/1.1", "connection: close\r\n");
    let came = write(gateway.traffic, bytes.as_bytes()).await;
    assert_eq!(came.statuses, [200, 200], "{}", came.text);
    assert_eq!(service.take_targets(), ["/first", "/second"]);
    assert_eq!(service.bytes(), 5);
}

#[tokio::test]
async fn s03_a_transfer_coding_that_is_not_chunked_alone_is_refused() {
    let (gateway, service) = world().await;
    let values: [&[u8]; 20] = [
        b"xchunked",
        b"chunkedx",
        b"chunked, identity",
        b"identity",
        b"identity, chunked",
        b"gzip, chunked",
        b"xchunked, chunked",
        b"chunked, chunked",
        b", chunked",
        b"chunked,",
        b"chunked;q=1",
        b"\"chunked\"",
        b"'chunked'",
        b"chunk ed",
        b"\x0bchunked",
        b"chunked\x0c",
        b"chunked\0",
        b"\xffchunked",
        b"",
        b"\r\n chunked",
    ];
    for value in values {
        let line = [b"transfer-encoding: ", value, b"\r\n"].concat();
        let (before, after) = (head("POST / HTTP/1.1", ""), format!("\r\n{SPLIT}{SMUGGLED}"));
        let before = before.strip_suffix("\r\n").unwrap();
        let bytes = [before.as_bytes(), &line, after.as_bytes()].concat();
        refused(&gateway, &service, &bytes, &[400, 501]).await;
    }
    for more in [
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding : chunked\r\n",
        " transfer-encoding: chunked\r\n",
        "transfer\tencoding: chunked\r\n",
        "transfer-encoding: chunked\r\n x: y\r\n",
    ] {
        let bytes = head("POST / HTTP/1.1", more) + SPLIT + SMUGGLED;
        refused(&gateway, &service, bytes.as_bytes(), &[400, 501]).await;
    }
    let old = head("POST / HTTP/1.0", "transfer-encoding: chunked\r\n") + SPLIT + SMUGGLED;
    refused(&gateway, &service, old.as_bytes(), &[400, 501]).await;
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let head = head("POST / HTTP/1.1", "transfer-encoding: chunked\r\n");
    [head.as_bytes(), body, SMUGGLED.as_bytes()].concat()
}

#[tokio::test]
async fn s04_a_chunk_that_is_no_chunk_ends_the_request_and_the_connection() {
    let (gateway, service) = world().await;
    let bodies: [&[u8]; 22] = [
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5_0\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"g\r\nhello\r\n0\r\n\r\n",
        b"5 5\r\nhello\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
        b"10000000000000005\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\rhello\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r0\r\n\r\n",
        b"5\r\nhelloworld\r\n0\r\n\r\n",
        b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\n\r\n",
        b"5\r\nhello\r\n0\r\nx y: 1\r\n\r\n",
        b"5\r\nhello\r\n0\r\nno colon\r\n\r\n",
        b"5\r\nhello\r\n0\r\nx: \0\r\n\r\n",
    ];
    for body in bodies {
        refused(&gateway, &service, &chunked(body), &[400]).await;
    }
}

#[tokio::test]
async fn s04_what_waits_for_the_strict_guard_is_harmless_because_chunks_are_written_anew() {
    let (gateway, service) = world().await;
    for body in [
        &b"5 \r\nhello\r\n0\r\n\r\n"[..],
        b"5\t;x\r\nhello\r\n0\r\n\r\n",
        b"5;a\0b\r\nhello\r\n0\r\n\r\n",
        b"5;\x7f=\"\r\nhello\r\n0\r\n\r\n",
        b"0000000000000005\r\nhello\r\n000\r\n\r\n",
    ] {
        let before = service.bytes();
        let request = head("POST /first HTTP/1.1", "transfer-encoding: chunked\r\n");
        let last = head("GET /second HTTP/1.1", "connection: close\r\n");
        let bytes = [request.as_bytes(), body, last.as_bytes()].concat();
        let came = write(gateway.traffic, &bytes).await;
        assert_eq!(came.statuses, [200, 200], "{body:?} → {}", came.text);
        assert_eq!(service.take_targets(), ["/first", "/second"]);
        assert_eq!(service.bytes() - before, 5, "{body:?}");
    }
}

#[tokio::test]
async fn s05_extensions_and_trailers_without_end_are_cut_off() {
    let (gateway, service) = world().await;
    let extension = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(64 * 1024));
    let many = format!("{}0\r\n\r\n", format!("1;{}\r\nx\r\n", "e".repeat(1_000)).repeat(64));
    let long = format!("0\r\nx: {}\r\n\r\n", "t".repeat(64 * 1024));
    let trailers = format!("0\r\n{}\r\n", "x: 1\r\n".repeat(10_000));
    for body in [extension, many, long, trailers] {
        refused(&gateway, &service, &chunked(body.as_bytes()), &[400]).await;
    }
}

#[tokio::test]
async fn s05_a_trailer_never_takes_the_place_of_a_field_that_routes_frames_or_authorises() {
    let names = "host content-length transfer-encoding authorization x-api-key te trailer cookie \
        set-cookie content-type x-weir-client x-forwarded-for ratelimit x_forwarded_for";
    let lines: String = names.split_whitespace().map(|name| format!("{name}: 0\r\n")).collect();
    let more = format!(
        "transfer-encoding: chunked\r\nte: trailers\r\nconnection: te, close\r\n\
         trailer: x-sum, {}\r\n",
        names.split_whitespace().collect::<Vec<_>>().join(", ")
    );
    let bytes =
        format!("{}2\r\nhi\r\n0\r\nx-sum: 7\r\n{lines}\r\n", head("POST / HTTP/1.1", &more));
    // Byte by byte, and to a service that would take them as they come.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start(&text(listener.local_addr().unwrap())).await;
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"7\r\n\r\n") && !seen.ends_with(b"0\r\n\r\n") {
            seen.push(stream.read_u8().await.unwrap());
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        String::from_utf8(seen).unwrap()
    };
    let (came, seen) = tokio::join!(write(gateway.traffic, bytes.as_bytes()), serving);
    assert_eq!(came.statuses, [200], "{}", came.text);
    let (_, trailers) = seen.split_once("\r\n0\r\n").expect("a last chunk");
    assert_eq!(trailers, "x-sum: 7\r\n\r\n");
}

#[tokio::test]
async fn s10_of_a_thousand_requests_in_one_write_ten_are_admitted_in_order() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 10, refill = \"1/d\" }";
    let gateway = Gateway::over(&file(plan, "", service.address), store, clock).await;
    let bytes: String = (0..1_000)
        .map(|n| {
            let close = if n == 999 { "connection: close\r\n" } else { "" };
            format!("GET /{n} HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n{close}\r\n")
        })
        .collect();
    // Written and read side by side: nobody writes a thousand requests into a full pipe.
    let stream = tokio::net::TcpStream::connect(gateway.traffic).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let mut answers = String::new();
    let (written, read) =
        tokio::join!(writer.write_all(bytes.as_bytes()), reader.read_to_string(&mut answers));
    written.unwrap();
    read.unwrap();
    let statuses: Vec<&str> =
        answers.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
    let expected: Vec<&str> = (0..1_000).map(|n| if n < 10 { "200" } else { "429" }).collect();
    assert_eq!(statuses, expected);
    let admitted: Vec<String> = (0..10).map(|n| format!("/{n}")).collect();
    assert_eq!(service.take_targets(), admitted);
}
