//! Header hygiene in both directions (pure).
//!
//! Fields that belong to one connection, and every field that `Connection` names, end here.
//! What a service may trust (`x-weir-*`, `x-request-id`, forwarded fields) is written last, after
//! everything of the same name, or an alias of it with underscores, was dropped.

use http::HeaderMap;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    COOKIE, EXPECT, FORWARDED, HOST, HeaderName, HeaderValue, MAX_FORWARDS, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, RANGE, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Names the client to services.
pub(crate) const CLIENT: HeaderName = HeaderName::from_static("x-weir-client");
/// Names the client's plan to services.
pub(crate) const PLAN: HeaderName = HeaderName::from_static("x-weir-plan");
/// The request's id, to services and callers.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Tells answers of the gateway from those of a service.
pub(crate) const SOURCE: HeaderName = HeaderName::from_static("x-weir-source");

/// Addresses that a request came by, each appended by the next.
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// How the caller reached the first of them.
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The host the caller asked for.
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Limit headers that upstreams may send and that ours replace when the gateway limits.
const LIMIT_FIELDS: [HeaderName; 8] = [
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// What a connection knows about its peer, as header values made once.
#[derive(Debug, Clone)]
pub(crate) struct ForwardedBy {
    address: HeaderValue,
    element: HeaderValue,
    proto: HeaderValue,
}

impl ForwardedBy {
    /// Of the peer at `ip`.
    pub(crate) fn new(ip: std::net::IpAddr) -> ForwardedBy {
        ForwardedBy::by(ip, "http")
    }

    /// Of a peer that speaks TLS with us.
    pub(crate) fn over_tls(ip: std::net::IpAddr) -> ForwardedBy {
        ForwardedBy::by(ip, "https")
    }

    fn by(ip: std::net::IpAddr, proto: &'static str) -> ForwardedBy {
        let ip = ip.to_canonical();
        let element = match ip {
            std::net::IpAddr::V4(ip) => format!("for={ip};proto={proto}"),
            std::net::IpAddr::V6(ip) => format!("for=\"[{ip}]\";proto={proto}"),
        };
        let value = |text: String| {
            HeaderValue::try_from(text).expect("an address is printed in visible ASCII")
        };
        let proto = HeaderValue::from_static(proto);
        ForwardedBy { address: value(ip.to_string()), element: value(element), proto }
    }
}

/// Removes what belongs to the connection only. `te: trailers` is the one thing kept of it.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // A look at each name costs less than a look-up of each that must go, and most have none.
    if !headers.keys().any(|name| is_hop_by_hop(name.as_str())) {
        return;
    }
    let trailers = |coding: &[u8]| coding.eq_ignore_ascii_case(b"trailers");
    let trailers = headers.get_all(TE).iter().flat_map(tokens).any(trailers);
    if headers.contains_key(CONNECTION) {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a field is one of [`HOP_BY_HOP`].
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let tokens = headers.get_all(CONNECTION).iter().flat_map(tokens);
    tokens.filter_map(|token| HeaderName::from_bytes(token).ok()).collect()
}

/// What a field lists, separated by commas.
pub(crate) fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let tokens = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    tokens.filter(|token| !token.is_empty())
}

/// The value of a field that stands there exactly once.
pub(crate) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

/// What a service is told about the caller.
#[derive(Debug)]
pub(crate) struct Identity<'a> {
    /// The client, if the route asks for one.
    pub client: Option<&'a str>,
    /// Its plan.
    pub plan: Option<&'a str>,
    /// Id of the request.
    pub request_id: &'a HeaderValue,
    /// The peer.
    pub peer: &'a ForwardedBy,
    /// The host the caller asked for.
    pub host: &'a HeaderValue,
}

/// Makes a request's headers fit for a service. Call it after [`remove_hop_by_hop`].
pub(crate) fn set_identity(headers: &mut HeaderMap, identity: &Identity<'_>) {
    remove_matching(headers, is_reserved);
    headers.remove(EXPECT);
    headers.insert(FORWARDED, identity.peer.element.clone());
    headers.insert(FORWARDED_FOR, identity.peer.address.clone());
    headers.insert(FORWARDED_PROTO, identity.peer.proto.clone());
    headers.insert(FORWARDED_HOST, identity.host.clone());
    headers.insert(REQUEST_ID, identity.request_id.clone());
    let named = [(CLIENT, identity.client), (PLAN, identity.plan)];
    for (name, value) in named {
        // Names are checked where they enter: lower-case letters, digits and `._-`.
        if let Some(value) = value.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    }
}

/// Makes a response's headers fit for the caller.
pub(crate) fn clean_response(headers: &mut HeaderMap, request_id: &HeaderValue) {
    remove_hop_by_hop(headers);
    headers.remove(TE);
    remove_matching(headers, |name| name.starts_with("x-weir-"));
    headers.insert(REQUEST_ID, request_id.clone());
}

/// Makes one field of a `Cookie` whose pairs came in fields of their own, as HTTP/2 allows and
/// nobody else understands (RFC 9113, section 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let pairs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&pairs.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Whether a message is framed in the one way that is passed on: no transfer coding, or `chunked`
/// once.
pub(crate) fn is_chunked_or_nothing(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let first = codings.next();
    first.is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

/// Whether a body's length is told once and in one way, or not at all: another reader might take
/// leading zeros for an octal number.
pub(crate) fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next().map(HeaderValue::as_bytes) else { return true };
    let digits = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    digits && (first == b"0" || !first.starts_with(b"0")) && lengths.next().is_none()
}

/// Fields that frame, route, authorise or explain a message, which stand before its body or
/// nowhere (RFC 9110, section 6.5.1).
const NO_TRAILERS: [HeaderName; 12] = [
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    EXPECT,
    HOST,
    MAX_FORWARDS,
    RANGE,
    SET_COOKIE,
    TRAILER,
];

/// Trailers are headers to many: in both directions they lose what a header would lose.
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    remove_limit_fields(trailers);
    for name in &NO_TRAILERS {
        trailers.remove(name);
    }
    remove_matching(trailers, |name| {
        is_reserved(name) || name == "x-api-key" || name == "authorization" || name == "te"
    });
}

/// Removes an upstream's own limit headers, where the gateway's take their place.
pub(crate) fn remove_limit_fields(headers: &mut HeaderMap) {
    let may_be_one = |name: &HeaderName| {
        let name = name.as_str();
        name.starts_with("ratelimit") || name.starts_with("x-ratelimit")
    };
    if !headers.keys().any(may_be_one) {
        return;
    }
    for name in &LIMIT_FIELDS {
        headers.remove(name);
    }
}

fn remove_matching(headers: &mut HeaderMap, matches: impl Fn(&str) -> bool) {
    // Nearly every request has none, and then nothing is allocated.
    if headers.keys().any(|name| matches(name.as_str())) {
        let names: Vec<HeaderName> =
            headers.keys().filter(|name| matches(name.as_str())).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// What only the gateway may write, or what makes a service see another request than was decided
/// about: a caller's word on it ends here.
const RESERVED: [&str; 5] =
    ["forwarded", "x-request-id", "x-real-ip", "x-original-url", "x-rewrite-url"];
/// The same, by how they begin.
const RESERVED_STARTS: [&str; 4] = ["x-weir-", "x-forwarded-", "ratelimit", "x-ratelimit-"];
/// What the gateway reads or ends under its own name. Under an alias it would pass, and reach
/// services that take the one for the other.
const NO_ALIAS: [&str; 16] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
];

/// Whether a field ends here; underscores count as hyphens, because many servers read them so.
fn is_reserved(name: &str) -> bool {
    // All of those begin with one of these, and most fields with none.
    if !name.starts_with(['x', 'f', 'r']) && !name.contains('_') {
        return false;
    }
    let same = |wanted: &&str| {
        name.len() == wanted.len() && starts_with_alias(name.as_bytes(), wanted.as_bytes())
    };
    let starts = |wanted: &&str| starts_with_alias(name.as_bytes(), wanted.as_bytes());
    RESERVED_STARTS.iter().any(starts)
        || RESERVED.iter().any(same)
        || (name.contains('_') && NO_ALIAS.iter().any(same))
}

fn starts_with_alias(name: &[u8], wanted: &[u8]) -> bool {
    let mut pairs = name.iter().zip(wanted);
    name.len() >= wanted.len()
        && pairs.all(|(have, want)| have == want || (*have == b'_' && *want == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn shown(map: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<String> =
            map.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_connections_own_fields_and_those_it_names_end_here() {
        let mut headers = map(&[
            ("connection", ""),
            ("connection", "close, X-Secret , keep-alive"),
            ("connection", "@"),
            ("keep-alive", "timeout=5"),
            ("x-secret", "1"),
            ("proxy-connection", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "gzip, trailers"),
            ("accept", "*/*"),
            ("trailer", "x-sum"),
        ]);
        remove_hop_by_hop(&mut headers);
        assert_eq!(shown(&headers), ["accept: */*", "te: trailers", "trailer: x-sum"]);
        let mut headers = map(&[("te", "gzip")]);
        remove_hop_by_hop(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn what_services_trust_is_written_by_the_gateway_alone() {
        let mut headers = map(&[
            ("connection", "x-weir-client"),
            ("x-weir-client", "victim"),
            ("X_Weir_Client", "victim"),
            ("x-weir-decision", "v1;d=allow"),
            ("x_forwarded-for", "9.9.9.9"),
            ("x-forwarded-prefix", "/admin"),
            ("x_api_key", "k"),
            ("x-request-id", "mine"),
            ("forwarded", "for=9.9.9.9"),
            ("expect", "100-continue"),
            ("accept", "*/*"),
        ]);
        remove_hop_by_hop(&mut headers);
        let id = HeaderValue::from_static("id1");
        let host = HeaderValue::from_static("api.example.com");
        let peer = ForwardedBy::new("::ffff:192.0.2.1".parse().unwrap());
        let (client, plan) = (Some("acme"), Some("pro"));
        let identity = Identity { client, plan, request_id: &id, peer: &peer, host: &host };
        set_identity(&mut headers, &identity);
        assert_eq!(
            shown(&headers),
            [
                "accept: */*",
                "forwarded: for=192.0.2.1;proto=http",
                "x-forwarded-for: 192.0.2.1",
                "x-forwarded-host: api.example.com",
                "x-forwarded-proto: http",
                "x-request-id: id1",
                "x-weir-client: acme",
                "x-weir-plan: pro",
            ]
        );
    }

    #[test]
    fn every_field_that_must_go_is_seen_at_a_glance() {
        for name in &HOP_BY_HOP {
            assert!(is_hop_by_hop(name.as_str()), "{name}");
            let mut headers = map(&[("x-kept", "1")]);
            headers.insert(name, HeaderValue::from_static("x"));
            remove_hop_by_hop(&mut headers);
            assert_eq!(shown(&headers), ["x-kept: 1"], "{name}");
        }
        for name in &LIMIT_FIELDS {
            let mut headers = map(&[("x-kept", "1")]);
            headers.insert(name, HeaderValue::from_static("x"));
            remove_limit_fields(&mut headers);
            assert_eq!(shown(&headers), ["x-kept: 1"], "{name}");
        }
    }

    #[test]
    fn a_response_loses_what_only_we_may_say() {
        let mut headers = map(&[
            ("connection", "x-internal"),
            ("x-internal", "1"),
            ("x-weir-decision", "v1;d=deny"),
            ("x-weir-source", "edge"),
            ("x-request-id", "upstream's"),
            ("content-type", "text/plain"),
        ]);
        clean_response(&mut headers, &HeaderValue::from_static("id1"));
        assert_eq!(shown(&headers), ["content-type: text/plain", "x-request-id: id1"]);
    }

    #[test]
    fn an_alias_of_what_is_read_or_written_here_ends_here_and_others_pass() {
        for name in [
            "transfer_encoding",
            "proxy-connection_x",
            "content_length",
            "x_api_key",
            "x_real-ip",
            "rate_limit",
            "ratelimit-policy",
            "x_ratelimit_limit",
            "x_original-url",
        ] {
            let ends = !["proxy-connection_x", "rate_limit"].contains(&name);
            assert_eq!(is_reserved(name), ends, "{name}");
        }
        for name in ["accept", "range", "referer", "x-cart", "user_agent", "from", "content-length"]
        {
            assert!(!is_reserved(name), "{name}");
        }
    }

    #[test]
    fn a_length_is_told_once_and_plainly() {
        for (lengths, plain) in [
            (&[][..], true),
            (&["0"], true),
            (&["10"], true),
            (&["00"], false),
            (&["010"], false),
            (&["+5"], false),
            (&["-0"], false),
            (&["0x5"], false),
            (&["5,5"], false),
            (&[""], false),
            (&["5", "5"], false),
        ] {
            let pairs: Vec<_> = lengths.iter().map(|length| ("content-length", *length)).collect();
            assert_eq!(has_plain_length(&map(&pairs)), plain, "{lengths:?}");
        }
    }

    #[test]
    fn what_frames_or_routes_a_message_is_no_trailer() {
        let names = "host content-length transfer-encoding authorization x-api-key te trailer \
            set-cookie cookie x-weir-client ratelimit proxy-authorization x_forwarded_for";
        let pairs: Vec<_> = names.split_whitespace().map(|name| (name, "1")).collect();
        let mut trailers = map(&[&pairs[..], &[("grpc-status", "0"), ("x-sum", "7")]].concat());
        clean_trailers(&mut trailers);
        assert_eq!(shown(&trailers), ["grpc-status: 0", "x-sum: 7"]);
    }

    #[test]
    fn an_ipv6_peer_is_quoted() {
        let peer = ForwardedBy::new("2001:db8::1".parse().unwrap());
        assert_eq!(peer.element.to_str().unwrap(), "for=\"[2001:db8::1]\";proto=http");
    }
}
