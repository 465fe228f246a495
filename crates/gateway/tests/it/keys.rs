//! What an API key is, where it stands, and that nothing else is taken for one.

use http::{HeaderValue, Request};
use http_body_util::Full;

use crate::support::{Gateway, KEY, Service, file, get, key_table, raw, send, standing};

const PLAN: &str = "burst = { capacity = 100, refill = \"100/s\" }";

#[tokio::test]
async fn c09_only_visible_ascii_is_a_key_and_nothing_else_is_an_error_of_ours() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let (longest, long) = ("A".repeat(256), "A".repeat(8 * 1024));
    let cases: [(&[u8], u16, &str); 9] = [
        (longest.as_bytes(), 401, "key_invalid"),
        (&long.as_bytes()[..257], 400, "key_malformed"),
        (b"k{x}y", 401, "key_invalid"),
        (b"{}", 401, "key_invalid"),
        (b"*", 401, "key_invalid"),
        (b"two words", 400, "key_malformed"),
        ("ключ-7".as_bytes(), 400, "key_malformed"),
        (long.as_bytes(), 400, "key_malformed"),
        (b"", 400, "key_malformed"),
    ];
    for (key, status, code) in cases {
        let request = Request::builder()
            .uri("/")
            .header("host", "api.test")
            .header("x-api-key", HeaderValue::from_bytes(key).unwrap())
            .body(Full::default())
            .unwrap();
        let reply = send(gateway.traffic, request).await;
        let shown = String::from_utf8_lossy(key).chars().take(20).collect::<String>();
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{shown}");
        assert_eq!(reply.header("x-weir-source"), "edge");
    }
    for control in [b"a\x00b", b"a\x0ab", b"a\x0bb", b"a\x0db", b"a\x7fb"] {
        let mut bytes = b"GET / HTTP/1.1\r\nhost: api.test\r\nx-api-key: ".to_vec();
        bytes.extend_from_slice(control);
        bytes.extend_from_slice(b"\r\nconnection: close\r\n\r\n");
        let answer = raw(gateway.traffic, &bytes).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn c09_a_key_may_hold_braces_and_has_a_bucket_of_its_own() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let longest = "A".repeat(256);
    let keys = ["k{x}y", "{}", "a:b", longest.as_str()];
    let tables: String = (0..).zip(keys).fold(String::new(), |text, (number, key)| {
        let table = key_table(&format!("n{number}"), &format!("c{number}"), key);
        format!("{text}[client.c{number}]\nplan = \"pro\"\n{table}")
    });
    let text = file("burst = { capacity = 2, refill = \"1/d\" }", &tables, service.address);
    let gateway = Gateway::over(&text, store, clock).await;
    for key in keys {
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(get(gateway.traffic, "/", &[("x-api-key", key)]).await.status);
        }
        assert_eq!(statuses, [200, 200, 429], "{key}");
    }
}

#[tokio::test]
async fn two_keys_are_refused_and_one_key_in_two_places_is_one() {
    let service = Service::hello().await;
    let gateway = Gateway::start(&file(PLAN, "", service.address)).await;
    let bearer = format!("Bearer {KEY}");
    type Case<'a> = (&'a [(&'a str, &'a str)], u16, &'a str);
    let cases: [Case<'_>; 6] = [
        (&[("x-api-key", KEY), ("x-api-key", KEY)], 400, "key_ambiguous"),
        (&[("x-api-key", KEY), ("authorization", "Bearer other")], 400, "key_ambiguous"),
        (&[("x-api-key", KEY), ("authorization", &bearer)], 200, ""),
        (&[("authorization", &bearer)], 200, ""),
        (&[("x-api-key", KEY), ("authorization", "Basic dTpw")], 200, ""),
        (&[], 401, "key_missing"),
    ];
    for (headers, status, code) in cases {
        let reply = get(gateway.traffic, "/", headers).await;
        assert_eq!(reply.status, status, "{headers:?}");
        if status != 200 {
            assert_eq!(reply.code(), code, "{headers:?}");
        }
    }
    let missing = get(gateway.traffic, "/", &[]).await;
    assert_eq!(missing.header("www-authenticate"), "Bearer");
}

#[tokio::test]
async fn a_suspended_client_is_told_so() {
    let service = Service::hello().await;
    let text = file(PLAN, "", service.address)
        .replace("[client.acme]\n", "[client.acme]\nstate = \"suspended\"\n");
    let gateway = Gateway::start(&text).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!((reply.status, reply.code().as_str()), (403, "client_suspended"));
    assert_eq!(service.requests(), 0);
}
