//! Routes and canonical forms, as tables.

use edge::AuthMode;
use edge::limiter::Cost;

use super::*;

fn route(name: &str, host: HostRule, path: PathRule, methods: &[Method]) -> Route {
    Route {
        host,
        path,
        methods: methods.to_vec(),
        upstream: 0,
        fields: Vec::new(),
        rewrite: Some(String::new()),
        bounds: RouteBounds::default(),
        cors: None,
        number: 0,
        terms: Arc::new(RouteTerms {
            name: name.to_owned(),
            service: "s".to_owned(),
            cost: Cost::ONE,
            auth: AuthMode::Key,
            failure: None,
            pairing: false,
        }),
    }
}

fn table() -> RouteTable {
    let exact = |host: &str| HostRule::Exact(host.to_owned());
    let prefix = |path: &str| PathRule::Prefix(path.to_owned());
    RouteTable::new(vec![
        route("any", HostRule::Any, prefix(""), &[]),
        route("orders", HostRule::Any, prefix("/orders"), &[]),
        route("orders-post", HostRule::Any, prefix("/orders"), &[Method::POST]),
        route("orders-deep", HostRule::Any, prefix("/orders/deep"), &[]),
        route("orders-one", HostRule::Any, PathRule::Exact("/orders/1".to_owned()), &[]),
        route("wild", HostRule::Under(".example.com".to_owned()), prefix("/orders"), &[]),
        route("api", exact("api.example.com"), prefix("/orders"), &[]),
        route("get-only", exact("get.test"), prefix("/x"), &[Method::GET]),
    ])
}

#[track_caller]
fn check(host: &str, path: &str, method: &Method, expected: &str) {
    let table = table();
    let found = table
        .find(host, path, method, &HeaderMap::new())
        .map_or("none", |route| route.terms.name.as_str());
    assert_eq!(found, expected, "{method} {host}{path}");
}

#[test]
fn the_most_specific_route_wins() {
    check("h", "/", &Method::GET, "any");
    check("h", "/orders", &Method::GET, "orders");
    check("h", "/orders/", &Method::GET, "orders");
    check("h", "/ordersx", &Method::GET, "any");
    check("h", "/orders", &Method::POST, "orders-post");
    check("h", "/orders/deep/er", &Method::POST, "orders-deep");
    check("h", "/orders/1", &Method::GET, "orders-one");
    check("h", "/orders/1/2", &Method::GET, "orders");
    check("x.example.com", "/orders/1", &Method::GET, "wild");
    check("api.example.com", "/orders/1", &Method::GET, "api");
    check("api.example.com", "/other", &Method::GET, "any");
    check("example.com", "/orders", &Method::GET, "orders");
}

#[test]
fn a_known_path_with_another_method_says_which_are_allowed() {
    let only = RouteTable::new(vec![route(
        "get-only",
        HostRule::Any,
        PathRule::Prefix("/x".to_owned()),
        &[Method::GET],
    )]);
    let refused =
        only.find("h", "/x", &Method::POST, &HeaderMap::new()).map(|route| &route.terms.name);
    assert_eq!(refused, Err(NoRoute::Method(vec![Method::GET])));
    let refused =
        only.find("h", "/y", &Method::GET, &HeaderMap::new()).map(|route| &route.terms.name);
    assert_eq!(refused, Err(NoRoute::Unknown));
}

#[test]
fn empty_segments_and_parameters_never_lead_around_a_route() {
    let prefix = |path: &str| PathRule::Prefix(path.to_owned());
    let table = RouteTable::new(vec![
        route("all", HostRule::Any, prefix(""), &[]),
        route("dear", HostRule::Any, prefix("/reports"), &[]),
        route("post", HostRule::Any, PathRule::Exact("/x".to_owned()), &[Method::POST]),
    ]);
    let none = HeaderMap::new();
    let name = |route: &Route| route.terms.name.clone();
    let find = |path: &str| table.find("h", path, &Method::GET, &none).map(name);
    for (path, name) in [
        ("//", "all"),
        ("/a//b", "all"),
        ("/get/http://example.com", "all"),
        ("/a;v=1/b", "all"),
        ("/reports//1", "dear"),
        ("/reports/1;v=2", "dear"),
        ("/reports/", "dear"),
    ] {
        assert_eq!(find(path).as_deref(), Ok(name), "{path}");
    }
    for path in
        ["//reports", "/reports;v=1", "/reports%3Bv=1/2", "///reports/1", "/;a/reports", "//x;y"]
    {
        let post = table.find("h", path, &Method::POST, &none).map(name);
        assert_eq!(post, Err(NoRoute::TwoReadings), "{path}");
    }
}

#[test]
fn a_stripped_prefix_leaves_an_absolute_path() {
    let route = route("o", HostRule::Any, PathRule::Prefix("/orders".to_owned()), &[]);
    for (path, sent) in [("/orders", "/"), ("/orders/", "/"), ("/orders/1", "/1")] {
        assert_eq!(route.forwarded(path), sent);
    }
}

#[test]
fn a_rewritten_path_keeps_what_is_below_the_routes() {
    let orders = PathRule::Prefix("/orders".to_owned());
    let of = |path: PathRule| Route {
        rewrite: Some("/v2/o".to_owned()),
        ..route("o", HostRule::Any, path, &[])
    };
    for (path, sent) in [("/orders", "/v2/o"), ("/orders/", "/v2/o/"), ("/orders/1", "/v2/o/1")] {
        assert_eq!(of(orders.clone()).forwarded(path), sent);
    }
    assert_eq!(of(PathRule::Exact("/orders".to_owned())).forwarded("/orders"), "/v2/o");
}

#[test]
fn more_fields_are_more_specific_and_unclear_ones_are_no_choice() {
    let rule = |name: &'static str, value: Option<&'static str>| FieldRule {
        name: HeaderName::from_static(name),
        value: value.map(http::HeaderValue::from_static),
    };
    let with = |name: &str, fields: &[FieldRule]| Route {
        fields: fields.to_vec(),
        ..route(name, HostRule::Any, PathRule::Prefix(String::new()), &[])
    };
    let (beta, any) = (rule("x-tier", Some("beta")), rule("x-debug", None));
    let table = RouteTable::new(vec![
        with("plain", &[]),
        with("beta", std::slice::from_ref(&beta)),
        with("both", &[beta, any]),
    ]);
    let find = |pairs: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        table.find("h", "/", &Method::GET, &headers).map(|route| route.terms.name.clone())
    };
    assert_eq!(find(&[]).as_deref(), Ok("plain"));
    assert_eq!(find(&[("x-tier", "gold")]).as_deref(), Ok("plain"));
    assert_eq!(find(&[("x-tier", "beta")]).as_deref(), Ok("beta"));
    assert_eq!(find(&[("x-tier", "beta"), ("x-debug", "")]).as_deref(), Ok("both"));
    assert_eq!(find(&[("x-tier", "beta"), ("x-tier", "x")]), Err(NoRoute::UnclearField));
}

#[test]
fn a_path_has_one_form_and_keeps_it() {
    for (path, expected) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/%61%2d%7E", "/a-~"),
        ("/a%20b%c3%a9", "/a%20b%C3%A9"),
        ("/a..b/...", "/a..b/..."),
        ("/a;x=1", "/a;x=1"),
        ("/a%3B", "/a%3B"),
    ] {
        let once = canonical_path(path).unwrap();
        assert_eq!(once, expected);
        assert_eq!(canonical_path(&once).unwrap(), expected, "twice");
    }
}

#[test]
fn a_path_with_two_readings_is_refused() {
    for (path, error) in [
        ("", TargetError::NotAbsolute),
        ("*", TargetError::NotAbsolute),
        ("/a/../b", TargetError::DotSegment),
        ("/a/%2e%2E/b", TargetError::DotSegment),
        ("/.", TargetError::DotSegment),
        ("/a/..;v=1/b", TargetError::DotSegment),
        ("/a/..%3bv=1/b", TargetError::DotSegment),
        ("/%2e%3B/b", TargetError::DotSegment),
        ("/a%2Fb", TargetError::HiddenSlash),
        ("/a%2fb", TargetError::HiddenSlash),
        ("/a%5cb", TargetError::HiddenSlash),
        ("/a\\b", TargetError::HiddenSlash),
        ("/a%00", TargetError::HiddenSlash),
        ("/a%", TargetError::BadEncoding),
        ("/a%2", TargetError::BadEncoding),
        ("/a%zz", TargetError::BadEncoding),
        ("/a%+1", TargetError::BadEncoding),
        ("/a%é1", TargetError::BadEncoding),
    ] {
        assert_eq!(canonical_path(path), Err(error), "{path}");
    }
}

#[test]
fn a_host_has_one_form() {
    for (host, expected) in [
        ("api.example.com", "api.example.com"),
        ("API.Example.com:8080", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]:80", "[::1]"),
        ("[::1]", "[::1]"),
        ("[0:0::1]:443", "[::1]"),
        ("[2001:DB8::A]", "[2001:db8::a]"),
    ] {
        assert_eq!(canonical_host(host).unwrap(), expected);
    }
    for bad in [
        "", ":80", "a:b", "a:80:80", "a,b", "u@h", "a/b", "[::1", "[x]", "a:99999", ".", "[::1]80",
        "a:+80",
    ] {
        assert_eq!(canonical_host(bad), Err(TargetError::Host), "{bad}");
    }
}

#[test]
fn services_are_told_the_host_in_its_one_form_and_its_port() {
    for (host, expected) in [
        ("api.example.com", "api.example.com"),
        ("api.example.com:8080", "api.example.com:8080"),
        ("API.Example.com.:080", "api.example.com:80"),
        ("api.example.com.", "api.example.com"),
        ("[::1]:80", "[::1]:80"),
        ("[0::1]", "[::1]"),
        ("a:0", "a:0"),
    ] {
        let once = canonical_authority(host).unwrap();
        assert_eq!(once, expected);
        assert_eq!(canonical_authority(&once).unwrap(), expected, "twice");
    }
}
