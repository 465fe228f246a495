//! Pages of other origins: they can read refusals, ask before they send, and are told by the
//! gateway alone.

use http::Response;
use http_body_util::{BodyExt, Full};

use crate::support::caller::request;
use crate::support::service::nobody;
use crate::support::{Gateway, KEY, Reply, Service, file, get, raw, send, standing, tally};

const ORIGIN: &str = "https://app.example";
const CORS: &str = "cors = { origins = [\"https://app.example\", \"http://localhost:3000\"] }\n";
const TWO: &str = "burst = { capacity = 2, refill = \"1/7s\" }";
const MANY: &str = "burst = { capacity = 100, refill = \"100/s\" }";

/// Whether pages of `ORIGIN` may read the answer, and what tells them to wait.
fn assert_readable(reply: &Reply) {
    assert_eq!(reply.header("access-control-allow-origin"), ORIGIN, "{reply:?}");
    assert_eq!(reply.header("vary"), "Origin");
    let exposed = reply.header("access-control-expose-headers").to_ascii_lowercase();
    let exposed: Vec<&str> = exposed.split(',').map(str::trim).collect();
    for name in [
        "retry-after",
        "retry-after-ms",
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-retry-after",
    ] {
        assert!(exposed.contains(&name), "{name} in {exposed:?}");
    }
}

fn cors_fields(reply: &Reply) -> Vec<&str> {
    let names = reply.headers.keys().map(http::HeaderName::as_str);
    names.filter(|name| name.starts_with("access-control-")).collect()
}

#[tokio::test]
async fn c23_a_page_of_another_origin_can_read_its_429() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let gateway = Gateway::over(&file(TWO, CORS, service.address), store, clock).await;
    assert_eq!(tally(&gateway.calls(2).await), [(200, 2)]);
    let headers = [("x-api-key", KEY), ("origin", ORIGIN)];
    let got = send(gateway.traffic, request("GET", "/", &headers)).await;
    let head = send(gateway.traffic, request("HEAD", "/", &headers)).await;
    assert_eq!((got.status, head.status), (429, 429));
    assert_readable(&got);
    assert_eq!(got.header("content-type"), "application/problem+json");
    assert_eq!(got.header("retry-after"), "7");
    assert_eq!(got.json()["retry_after"].to_string(), got.header("retry-after"));
    // A client reads no body after HEAD; whoever looks at the bytes sees whether there is one.
    let asking = format!(
        "HEAD / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\norigin: {ORIGIN}\r\n\
         connection: close\r\n\r\n"
    );
    let bytes = raw(gateway.traffic, asking.as_bytes()).await;
    assert!(bytes.starts_with("HTTP/1.1 429") && bytes.ends_with("\r\n\r\n"), "{bytes}");
    assert_eq!(bytes.matches("\r\n\r\n").count(), 1, "a head and nothing else: {bytes}");
    let names = |reply: &Reply| {
        let mut names: Vec<String> = reply.headers.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&got), names(&head));
    for name in names(&got) {
        // Of these every answer has its own; turns come one after the other.
        if !["x-request-id", "date", "retry-after-ms"].contains(&name.as_str()) {
            assert_eq!(got.header(&name), head.header(&name), "{name}");
        }
    }
}

#[tokio::test]
async fn every_refusal_of_such_a_route_can_be_read() {
    let route = format!(
        "{CORS}[[route]]\npath = \"/away\"\nupstream = \"away\"\nauth = \"none\"\n{CORS}\
         [upstream.away]\nendpoints = [\"{}\"]\n",
        nobody().await
    );
    let service = Service::hello().await;
    let text = file(MANY, &route, service.address) + "[limits]\nbody_bytes = 3\n";
    let gateway = Gateway::start(&text).await;
    let origin = ("origin", ORIGIN);
    let refused = [
        (401, get(gateway.traffic, "/", &[origin]).await),
        (401, get(gateway.traffic, "/", &[origin, ("x-api-key", "nobodys")]).await),
        (400, get(gateway.traffic, "/", &[origin, ("x-api-key", "two words")]).await),
        (502, get(gateway.traffic, "/away", &[origin]).await),
        (413, {
            let long = request("POST", "/", &[origin, ("x-api-key", KEY)]);
            send(gateway.traffic, long.map(|_| Full::from("four"))).await
        }),
    ];
    for (status, reply) in &refused {
        assert_eq!(reply.status, *status, "{reply:?}");
        assert_readable(reply);
    }
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn a_browser_that_asks_first_pays_nothing_and_shows_no_key() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let route = "methods = [\"GET\", \"PUT\"]\n\
        cors = { origins = [\"https://app.example\"], headers = [\"X-Api-Key\"], \
        credentials = true, max_age = \"5m\", expose = [\"X-Total\"] }\n";
    let gateway = Gateway::over(&file(TWO, route, service.address), store, clock).await;
    let ask = async |origin: &str, method: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", method),
            ("access-control-request-headers", "x-api-key"),
        ];
        send(gateway.traffic, request("OPTIONS", "/x", &headers)).await
    };
    for _ in 0..20 {
        let answer = ask(ORIGIN, "PUT").await;
        assert_eq!((answer.status, answer.body.len()), (204, 0));
        for (name, value) in [
            ("access-control-allow-origin", ORIGIN),
            ("access-control-allow-methods", "GET, PUT"),
            ("access-control-allow-headers", "X-Api-Key"),
            ("access-control-allow-credentials", "true"),
            ("access-control-max-age", "300"),
            ("vary", "Origin"),
            ("x-weir-source", "edge"),
        ] {
            assert_eq!(answer.header(name), value, "{name}");
        }
    }
    let other = ask("https://evil.example", "PUT").await;
    assert_eq!((other.status, cors_fields(&other)), (204, Vec::new()));
    // A method of no route is no preflight of one: it is refused like the request itself.
    assert_eq!(ask(ORIGIN, "DELETE").await.status, 405);
    assert_eq!(service.requests(), 0, "the service is not asked");
    assert_eq!(tally(&gateway.calls(3).await), [(200, 2), (429, 1)], "nothing was charged");
    let reply = get(gateway.traffic, "/", &[("x-api-key", KEY), ("origin", ORIGIN)]).await;
    assert!(reply.header("access-control-expose-headers").ends_with(", X-Total"));
    assert_eq!(reply.header("access-control-allow-credentials"), "true");
}

#[tokio::test]
async fn what_the_service_says_about_origins_is_replaced_and_others_are_served_in_silence() {
    let service = Service::answering(|_head| {
        Response::builder()
            .header("access-control-allow-origin", "*")
            .header("access-control-allow-credentials", "true")
            .header("access-control-expose-headers", "x-own")
            .header("vary", "Accept-Encoding, origin")
            .body(Full::from("hello").boxed())
            .unwrap()
    })
    .await;
    let plain = "[[route]]\npath = \"/plain\"\nupstream = \"up\"\n";
    let text = file(MANY, &format!("{CORS}{plain}"), service.address);
    let gateway = Gateway::start(&text).await;
    let call = async |path: &str, origin: Option<&str>| {
        let mut headers = vec![("x-api-key", KEY)];
        headers.extend(origin.map(|origin| ("origin", origin)));
        get(gateway.traffic, path, &headers).await
    };
    let reply = call("/", Some("http://localhost:3000")).await;
    assert_eq!(reply.header("access-control-allow-origin"), "http://localhost:3000");
    assert_eq!(reply.header("access-control-allow-credentials"), "");
    assert!(!reply.header("access-control-expose-headers").contains("x-own"));
    assert_eq!(reply.header("vary"), "Accept-Encoding, origin", "said already");
    for origin in [Some("https://evil.example"), Some("https://app.example.evil"), None] {
        let reply = call("/", origin).await;
        assert_eq!((reply.status, reply.body.as_ref()), (200, &b"hello"[..]));
        assert_eq!(cors_fields(&reply), Vec::<&str>::new(), "{origin:?}");
    }
    // A route without CORS leaves it to its service.
    let reply = call("/plain", Some("https://evil.example")).await;
    assert_eq!(reply.header("access-control-allow-origin"), "*");
    let asking = [("origin", ORIGIN), ("access-control-request-method", "GET")];
    let asked = send(gateway.traffic, request("OPTIONS", "/plain", &asking)).await;
    assert_eq!(asked.status, 401, "a request like any other");
    // Nor is it a preflight if it brings a body: that would be a way past the limit.
    let head = format!(
        "OPTIONS / HTTP/1.1\r\nhost: a.test\r\norigin: {ORIGIN}\r\n\
         access-control-request-method: GET\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
    );
    let asked = raw(gateway.traffic, head.as_bytes()).await;
    assert!(asked.starts_with("HTTP/1.1 401"), "{asked}");
}
