//! What is secret or strange stays out of the log, at the level that tells most.

use tracing::Level;

use super::{PLAN, head};
use crate::support::bytes::write;
use crate::support::frames::{
    END_HEADERS, END_STREAM, Frame, Frames, GOAWAY, HEADERS, RST_STREAM, frame, request,
};
use crate::support::log::Kept;
use crate::support::service::nobody;
use crate::support::{Gateway, KEY, file, get};

#[tokio::test]
async fn s19_no_text_of_a_key_stands_in_a_log_whatever_becomes_of_it() {
    let (kept, logging) = Kept::new(Level::DEBUG);
    tracing::subscriber::set_global_default(logging).unwrap();
    // A service that is down, so that what fails is told too.
    let gateway = Gateway::start(&file(PLAN, "", nobody().await)).await;
    let (bad, long) = ("two-words-of-a secret", "s3cr3t".repeat(50));
    for (headers, status) in [
        (&[("x-api-key", KEY)][..], 502),
        (&[("authorization", "Bearer unknown-s3cr3t")], 401),
        (&[("x-api-key", "unknown-s3cr3t")], 401),
        (&[("x-api-key", bad)], 400),
        (&[("x-api-key", long.as_str())], 400),
        (&[("x-api-key", "one-s3cr3t"), ("authorization", "Bearer other-s3cr3t")], 400),
    ] {
        let reply = get(gateway.traffic, "/?token=in-a-query-s3cr3t", headers).await;
        assert_eq!(reply.status, status, "{headers:?}");
    }
    for strange in ["\x1b[31ms3cr3t\x1b[0m", "s3cr3t\0", "s3cr3t\x07"] {
        let bytes = head("GET / HTTP/1.1", "").replace(KEY, strange);
        assert_eq!(write(gateway.traffic, bytes.as_bytes()).await.statuses, [400], "{strange:?}");
    }
    let mut frames = Frames::open(gateway.traffic).await;
    let strange = request("GET", "/", &[("x-api-key", "s3cr3t\nline")]);
    assert!(frames.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &strange)).await);
    let refused = |frame: Frame| [RST_STREAM, GOAWAY].contains(&frame.kind);
    while !frames.next().await.is_none_or(refused) {}
    let log = kept.text();
    assert!(log.contains("not connected"), "what fails is told: {log}");
    for secret in ["s3cr3t", KEY, "two-words", "secret", "\x1b[31m"] {
        assert!(!log.contains(secret), "{secret:?} in {log}");
    }
}
