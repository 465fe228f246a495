//! Who a caller may say it is: one key from one place, and nothing that a service would believe.

use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};

use super::{PLAN, text, world};
use crate::support::bytes::write;
use crate::support::{
    Gateway, KEY, Service, file, get, key_table, mistakes, parse, send, standing, tally,
};

/// A GET with one field of any bytes.
fn with_bytes(name: &str, value: &[u8]) -> Request<Full<bytes::Bytes>> {
    let value = HeaderValue::from_bytes(value).unwrap();
    let request = Request::get("/").header("host", "api.test").header(name, value);
    request.body(Full::default()).unwrap()
}

#[tokio::test]
async fn s19_a_key_is_visible_ascii_and_no_text_of_it_names_anything() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let gateway = Gateway::over(&text(service.address), store.clone(), clock).await;
    let (long, longer) = ("A".repeat(257), "A".repeat(8_192));
    for (key, status) in [
        (&b"{}"[..], 401),
        (b"*", 401),
        (b"k{x}y", 401),
        (b"%s%n", 401),
        (b"'; drop table plan; --", 400),
        (b"../../etc/passwd", 401),
        (b"a b", 400),
        (b"a\tb", 400),
        ("ключ-7".as_bytes(), 400),
        (b"\xff\xfe", 400),
        (long.as_bytes(), 400),
        (longer.as_bytes(), 400),
    ] {
        let reply = send(gateway.traffic, with_bytes("x-api-key", key)).await;
        let shown: String = String::from_utf8_lossy(key).chars().take(20).collect();
        assert_eq!(reply.status, status, "{shown}");
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(key.len() < 3 || !body.contains(&*String::from_utf8_lossy(key)), "{body}");
    }
    for control in
        [&b"a\x00b"[..], b"a\x0ab", b"a\x0bb", b"a\x0db", b"a\x7fb", b"\x1b[31mred\x1b[0m"]
    {
        let bytes = [b"GET / HTTP/1.1\r\nhost: a\r\nx-api-key: ", control, b"\r\n\r\n"].concat();
        let came = write(gateway.traffic, &bytes).await;
        assert_eq!(came.statuses, [400], "{control:?} → {}", came.text);
    }
    let huge = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {}\r\n\r\n", "A".repeat(1_048_576));
    assert_eq!(write(gateway.traffic, huge.as_bytes()).await.statuses, [431]);
    assert_eq!((service.requests(), store.len()), (0, 0), "no request, no bucket");
    let shown = get(gateway.operations, "/metrics", &[]).await.body;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    for text in ["passwd", "k{x}y", "AAAA", "drop table"] {
        assert!(!shown.contains(text), "{text} in the metrics");
    }
}

#[tokio::test]
async fn s20_connection_takes_away_no_identity_in_either_direction() {
    let service = Service::answering(|_head| {
        Response::builder()
            .header("connection", "x-secret, ratelimit, x-request-id, content-type")
            .header("connection", "keep-alive")
            .header("x-secret", "1")
            .header("x-kept", "1")
            .body(Full::from("hello").boxed())
            .unwrap()
    })
    .await;
    let gateway = Gateway::start(&text(service.address)).await;
    for connection in [
        &["x-api-key"][..],
        &["x-forwarded-for, x-weir-client, x-weir-plan, x-request-id, forwarded, host"],
        &["", "X-Api-Key, X-Forwarded-For"],
        &["close", "x-api-key", "x-weir-client"],
        &["authorization, x-api-key,,,"],
        &["content-length, transfer-encoding, trailer, te"],
    ] {
        let mut headers = vec![("x-api-key", KEY), ("x-weir-client", "victim")];
        headers.extend(connection.iter().map(|value| ("connection", *value)));
        let reply = get(gateway.traffic, "/", &headers).await;
        assert_eq!((reply.status, reply.body.as_ref()), (200, &b"hello"[..]), "{connection:?}");
        let seen = service.last().headers;
        for (name, told) in [
            ("x-weir-client", "acme"),
            ("x-weir-plan", "pro"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-request-id", reply.header("x-request-id")),
            ("host", "api.test"),
        ] {
            assert_eq!(seen[name], told, "{connection:?}");
        }
        assert_eq!(reply.header("x-secret"), "", "what the service's connection owns ends here");
        assert!(reply.header("ratelimit").starts_with("\"burst\";r="));
        assert_eq!(reply.header("x-kept"), "1");
    }
}

#[tokio::test]
async fn s21_what_services_trust_is_never_a_callers_word_under_any_spelling() {
    let (gateway, service) = world().await;
    for (name, mine) in [
        ("x-weir-client", "acme"),
        ("x-weir-plan", "pro"),
        ("x-weir-decision", ""),
        ("x-weir-anything", ""),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "api.test"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-prefix", ""),
        ("x-forwarded-port", ""),
        ("x-forwarded-user", ""),
        ("forwarded", "for=127.0.0.1;proto=http"),
        ("x-real-ip", ""),
        ("x-original-url", ""),
        ("x-rewrite-url", ""),
        ("ratelimit", ""),
        ("ratelimit-policy", ""),
        ("x-ratelimit-remaining", ""),
    ] {
        let aliases = [
            name.to_owned(),
            name.replace('-', "_"),
            name.replacen('-', "_", 1),
            name.to_uppercase(),
        ];
        for alias in aliases {
            let headers = [("x-api-key", KEY), (alias.as_str(), "forged")];
            assert_eq!(get(gateway.traffic, "/", &headers).await.status, 200, "{alias}");
            let seen = service.last().headers;
            let values = seen.iter().filter(|(seen, _)| seen.as_str().replace('_', "-") == name);
            let values: Vec<&str> = values.map(|(_, value)| value.to_str().unwrap()).collect();
            let expected: &[&str] = if mine.is_empty() { &[] } else { &[mine] };
            assert_eq!(values, expected, "{alias}");
        }
    }
    for alias in ["x_api_key", "transfer_encoding", "content_length", "proxy_connection", "host_"] {
        let headers = [("x-api-key", KEY), (alias, "forged")];
        assert_eq!(get(gateway.traffic, "/", &headers).await.status, 200, "{alias}");
        let passes = alias == "host_";
        assert_eq!(service.last().headers.contains_key(alias), passes, "{alias}");
    }
}

#[tokio::test]
async fn s26_a_key_in_another_place_or_spelling_is_no_other_key() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 3, refill = \"1/d\" }";
    let other =
        format!("[client.other]\nplan = \"pro\"\n{}", key_table("k2", "other", "other-key"));
    let text = file(plan, &other, service.address);
    let gateway = Gateway::over(&text, store.clone(), clock).await;
    let call = async |target: &str, headers: &[(&str, &str)]| {
        let reply = get(gateway.traffic, target, headers).await;
        let code = if reply.status == 200 { String::new() } else { reply.code() };
        (reply.status, code)
    };
    let bearer = format!("Bearer {KEY}");
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], u16, &'a str);
    let cases: [Case<'_>; 17] = [
        ("/", &[("x-api-key", KEY), ("x-api-key", KEY)], 400, "key_ambiguous"),
        ("/", &[("x-api-key", KEY), ("x-api-key", "other-key")], 400, "key_ambiguous"),
        ("/", &[("x-api-key", KEY), ("authorization", "Bearer other-key")], 400, "key_ambiguous"),
        ("/", &[("authorization", &bearer), ("authorization", "Basic x")], 400, "key_ambiguous"),
        ("/", &[("x-api-key", "acme-key,other-key")], 401, "key_invalid"),
        ("/", &[("x-api-key", "acme-key, other-key")], 400, "key_malformed"),
        ("/", &[("x-api-key", "ACME-KEY")], 401, "key_invalid"),
        ("/", &[("x-api-key", "acme%2Dkey")], 401, "key_invalid"),
        ("/", &[("x-api-key", "\"acme-key\"")], 401, "key_invalid"),
        ("/", &[("x-api-key", "acme-key.")], 401, "key_invalid"),
        ("/", &[("x-api-key", "acme-ke")], 401, "key_invalid"),
        ("/", &[("x-api-key", "")], 400, "key_malformed"),
        ("/", &[("authorization", "Bearer")], 400, "key_malformed"),
        ("/", &[("authorization", "Bearer acme-key other")], 400, "key_malformed"),
        ("/", &[("authorization", "Bearer, acme-key")], 401, "key_missing"),
        ("/?x-api-key=acme-key&api_key=acme-key", &[], 401, "key_missing"),
        ("/", &[("x_api_key", KEY)], 401, "key_missing"),
    ];
    for (target, headers, status, code) in cases {
        let expected = (status, code.to_owned());
        assert_eq!(call(target, headers).await, expected, "{target} {headers:?}");
    }
    assert_eq!((service.requests(), store.len()), (0, 0));
    // What is the same key draws from the same bucket, however it is shown.
    let shown: [&[(&str, &str)]; 5] = [
        &[("x-api-key", KEY)],
        &[("X-API-KEY", "  acme-key  ")],
        &[("authorization", "bEARER   acme-key")],
        &[("authorization", &bearer), ("x-api-key", KEY)],
        &[("x-api-key", KEY), ("authorization", "Basic dTpw")],
    ];
    let mut replies = Vec::new();
    for headers in shown {
        replies.push(get(gateway.traffic, "/?x-api-key=other-key", headers).await);
    }
    assert_eq!(tally(&replies), [(200, 3), (429, 2)]);
    assert_eq!(store.len(), 1, "one key, one bucket");
}

#[tokio::test]
async fn s38_no_word_of_a_caller_changes_what_a_request_costs() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let plan = "burst = { capacity = 4, refill = \"1/d\" }";
    let gateway = Gateway::over(&file(plan, "cost = 2\n", service.address), store, clock).await;
    let mut replies = Vec::new();
    for cost in ["0", "-1", "-9223372036854775808", "1e308", "NaN", "9223372036854775808"] {
        let headers = [
            ("x-api-key", KEY),
            ("x-weir-cost", cost),
            ("x-ratelimit-cost", cost),
            ("ratelimit-cost", cost),
            ("cost", cost),
        ];
        let target = format!("/?cost={cost}&hits={cost}");
        replies.push(get(gateway.traffic, &target, &headers).await);
    }
    assert_eq!(tally(&replies), [(200, 2), (429, 4)]);
    // And a file does not say it either.
    for cost in ["-1", "1e308", "nan", "9223372036854775808", "\"1\"", "1.5", "1000000000001"] {
        let text = file(PLAN, &format!("cost = {cost}\n"), service.address);
        mistakes_or_toml(&text, "route[0].cost");
        let costs = format!("{PLAN}\ncosts = [{{ route = \"up\", cost = {cost} }}]");
        mistakes_or_toml(&file(&costs, "", service.address), "plan.pro.costs[0].cost");
    }
    // Nothing is a cost that is said out loud, and it adds nothing.
    let free = file(plan, "cost = 0\n", service.address);
    assert!(parse(&free).routes.iter().all(|route| route.terms.cost.get() == 0));
}

/// The file is refused: at its place, or as a number that TOML does not have.
fn mistakes_or_toml(text: &str, place: &str) {
    let place = if text.contains("9223372036854775808") { "the file" } else { place };
    mistakes(text, std::path::Path::new("."), place, "");
}
