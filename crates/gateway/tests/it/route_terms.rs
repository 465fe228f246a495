//! What a route says beyond host, path and method: fields that a request must have, the path that
//! services see, bounds of its own; and what callers are told of their limits.

use std::path::Path;

use http_body_util::Full;

use crate::support::caller::request;
use crate::support::scripted::{Act, Scripted};
use crate::support::service::text as answer;
use crate::support::{Gateway, KEY, Service, file, get, mistakes, send, standing, tally};

const MANY: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";

/// A file with these further tables of routes and upstreams.
fn with(plan: &str, more: &str, service: &Service) -> String {
    file(plan, more, service.address)
}

#[tokio::test]
async fn a_field_chooses_a_route_and_none_that_may_be_read_otherwise() {
    let (stable, beta) =
        (Service::hello().await, Service::answering(|_| answer(200, "beta")).await);
    let more = format!(
        "[[route]]\nupstream = \"beta\"\ncost = 5\nheaders = {{ x-channel = \"beta\" }}\n\
         [[route]]\nupstream = \"beta\"\npath = \"/debug\"\nheaders = {{ x-debug = \"*\" }}\n\
         [upstream.beta]\nendpoints = [\"{}\"]\n",
        beta.address
    );
    let (clock, store) = standing();
    let plan = "burst = { capacity = 100, refill = \"1/d\" }";
    let gateway = Gateway::over(&with(plan, &more, &stable), store, clock).await;
    let call = async |path: &str, more: &[(&str, &str)]| {
        let headers = [&[("x-api-key", KEY)], more].concat();
        get(gateway.traffic, path, &headers).await
    };
    let left = |reply: &crate::support::Reply| {
        reply.header("ratelimit").split(';').nth(1).unwrap_or_default().to_owned()
    };
    for (path, headers, body, r) in [
        ("/", &[][..], "hello", "r=99"),
        ("/", &[("x-channel", "stable")], "hello", "r=98"),
        ("/", &[("x-channel", "beta")], "beta", "r=93"),
        ("/", &[("X-Channel", "beta")], "beta", "r=88"),
        ("/", &[("x-channel", "BETA")], "hello", "r=87"),
        ("/debug", &[("x-debug", "")], "beta", "r=86"),
        ("/debug", &[], "hello", "r=85"),
    ] {
        let reply = call(path, headers).await;
        assert_eq!(
            (reply.body.as_ref(), left(&reply)),
            (body.as_bytes(), r.to_owned()),
            "{headers:?}"
        );
    }
    let before = (stable.requests(), beta.requests());
    for headers in [
        &[("x-channel", "beta"), ("x-channel", "stable")][..],
        &[("x-channel", "stable"), ("x_channel", "beta")],
        &[("x_channel", "beta")],
        &[("x-channel", "beta"), ("connection", "x-channel")],
    ] {
        let reply = call("/", headers).await;
        assert_eq!((reply.status, &*reply.code()), (400, "bad_request"), "{headers:?}");
    }
    assert_eq!((stable.requests(), beta.requests()), before, "nobody saw those");
}

#[tokio::test]
async fn a_service_sees_the_rewritten_path_and_the_query_as_it_was() {
    let service = Service::hello().await;
    let more = "[[route]]\npath = \"/api\"\nrewrite = \"/v2/internal\"\nupstream = \"up\"\n\
        [[route]]\npath = \"/one\"\nexact = true\nrewrite = \"/other\"\nupstream = \"up\"\n\
        [[route]]\npath = \"/gone\"\nrewrite = \"/\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(&with(MANY, more, &service)).await;
    for (sent, seen) in [
        ("/api", "/v2/internal"),
        ("/api/", "/v2/internal/"),
        ("/api/x/y?a=%2F&b", "/v2/internal/x/y?a=%2F&b"),
        ("/%61pi/%7Ex", "/v2/internal/~x"),
        ("/apix", "/apix"),
        ("/one?q", "/other?q"),
        ("/one/two", "/one/two"),
        ("/gone", "/"),
        ("/gone/x", "/x"),
    ] {
        assert_eq!(get(gateway.traffic, sent, &[("x-api-key", KEY)]).await.status, 200);
        assert_eq!(service.last().uri.to_string(), seen, "{sent}");
    }
}

#[tokio::test]
async fn a_route_has_bounds_of_its_own() {
    let service = Service::hello().await;
    let silent = Scripted::new(|_| Act::Keep).await;
    let more = format!(
        "body_bytes = 3\n\
         [[route]]\npath = \"/large\"\nupstream = \"up\"\nbody_bytes = \"unlimited\"\n\
         [[route]]\npath = \"/quick\"\nupstream = \"silent\"\nhead_timeout = \"100ms\"\n\
         [[route]]\npath = \"/whole\"\nupstream = \"silent\"\ntotal_timeout = \"100ms\"\n\
         [upstream.silent]\nendpoints = [\"{}\"]\n",
        silent.address
    );
    let text = with(MANY, &more, &service) + "[limits]\nbody_bytes = 5\n";
    let gateway = Gateway::start(&text).await;
    for (path, body, status) in
        [("/", "123", 200), ("/", "1234", 413), ("/large", "123456789", 200), ("/large", "", 200)]
    {
        let posted = request("POST", path, &[("x-api-key", KEY)]).map(|_| Full::from(body));
        assert_eq!(send(gateway.traffic, posted).await.status, status, "{path} {body}");
    }
    for path in ["/quick", "/whole"] {
        let reply = get(gateway.traffic, path, &[("x-api-key", KEY)]).await;
        assert_eq!((reply.status, &*reply.code()), (504, "upstream_timeout"), "{path}");
    }
}

#[tokio::test]
async fn the_older_limit_fields_stand_on_every_answer_where_the_file_says_so() {
    let service = Service::hello().await;
    let plan = "burst = { capacity = 2, refill = \"1/d\" }";
    for (choice, on_200) in [("", ["", ""]), ("[limits]\nx_ratelimit = \"always\"\n", ["2", "1"])] {
        let (clock, store) = standing();
        let text = with(plan, "", &service) + choice;
        let gateway = Gateway::over(&text, store, clock).await;
        let replies = gateway.calls(3).await;
        assert_eq!(tally(&replies), [(200, 2), (429, 1)]);
        let [limit, remaining] =
            ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| replies[0].header(name));
        assert_eq!([limit, remaining], on_200);
        assert_eq!(
            replies[0].header("x-ratelimit-retry-after"),
            "",
            "there is nothing to wait for"
        );
        assert_eq!(replies[2].header("x-ratelimit-limit"), "2");
        assert_eq!(replies[2].header("x-ratelimit-remaining"), "0");
    }
}

#[test]
fn every_mistake_about_a_route_is_told_with_its_place() {
    for (line, place) in [
        ("headers = \"x\"", "route[0].headers"),
        ("headers = { \"a b\" = \"x\" }", "route[0].headers.a b"),
        ("headers = { x-a = 1 }", "route[0].headers.x-a"),
        ("headers = { x-a = \"a\\nb\" }", "route[0].headers.x-a"),
        ("headers = { x-api-key = \"k\" }", "route[0].headers.x-api-key"),
        ("rewrite = \"v2\"", "route[0].rewrite"),
        ("rewrite = \"/a/../b\"", "route[0].rewrite"),
        ("rewrite = \"/a?b\"", "route[0].rewrite"),
        ("rewrite = \"/a\"\nstrip_prefix = true", "route[0].rewrite"),
        ("exact = true\nstrip_prefix = true", "route[0].strip_prefix"),
        ("body_bytes = 0", "route[0].body_bytes"),
        ("body_bytes = \"many\"", "route[0].body_bytes"),
        ("head_timeout = \"none\"", "route[0].head_timeout"),
        ("total_timeout = \"soon\"", "route[0].total_timeout"),
    ] {
        let text = file(MANY, &format!("{line}\n"), "127.0.0.1:1".parse().unwrap());
        mistakes(&text, Path::new("."), place, "");
    }
    let text =
        file(MANY, "", "127.0.0.1:1".parse().unwrap()) + "[limits]\nx_ratelimit = \"never\"\n";
    mistakes(&text, Path::new("."), "limits.x_ratelimit", "never");
}
