//! What browsers of other origins may read (CORS), for the routes that ask for it.
//!
//! On such a route the gateway alone says it, on every answer: also on its own refusals, because a
//! page that cannot read a 429 does not know to wait. An origin that is not listed is told nothing
//! and refused nothing; whether its page may read the answer is the browser's business.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue, ORIGIN, VARY,
};
use http::{HeaderMap, Method, Response, StatusCode};

use crate::body::ReplyBody;
use crate::headers::{REQUEST_ID, SOURCE, tokens};

/// What a page may read of every answer, besides what the route adds.
pub(crate) const EXPOSED: &str = "Retry-After, Retry-After-Ms, RateLimit, RateLimit-Policy, \
    X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Retry-After, X-Request-Id, X-Weir-Source";

/// What a service may say in vain.
const FIELDS: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// How a route answers browsers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// Origins whose pages may read, letter by letter; none given: all.
    pub origins: Option<Vec<HeaderValue>>,
    /// Methods they may use.
    pub methods: HeaderValue,
    /// Headers they may send.
    pub headers: HeaderValue,
    /// Headers they may read.
    pub exposed: HeaderValue,
    /// Whether the browser's cookies come along.
    pub credentials: bool,
    /// Seconds for which a browser does not ask again.
    pub max_age: HeaderValue,
}

impl Cors {
    /// Puts the route's word in place of the service's.
    pub(crate) fn dress(&self, headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
        for name in &FIELDS {
            headers.remove(name);
        }
        // Also for origins that are not listed: their answer must not be cached for others.
        vary_by_origin(headers);
        let listed = |origin: &&HeaderValue| match &self.origins {
            Some(origins) => origins.contains(origin),
            None => true,
        };
        if let Some(origin) = origin.filter(listed) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
            if self.credentials {
                let yes = HeaderValue::from_static("true");
                headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
            }
        }
    }

    /// The answer to a browser that asks before it sends.
    pub(crate) fn preflight(
        &self,
        origin: Option<&HeaderValue>,
        request_id: &HeaderValue,
    ) -> Response<ReplyBody> {
        let mut response = Response::new(ReplyBody::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(SOURCE, HeaderValue::from_static("edge"));
        headers.insert(REQUEST_ID, request_id.clone());
        self.dress(headers, origin);
        if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            headers.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, self.methods.clone());
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, self.headers.clone());
            headers.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        }
        response
    }
}

/// The method that a browser asks about before it sends: `OPTIONS` with both of a preflight's
/// headers.
pub(crate) fn asked_about(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    Method::from_bytes(headers.get(ACCESS_CONTROL_REQUEST_METHOD)?.as_bytes()).ok()
}

fn vary_by_origin(headers: &mut HeaderMap) {
    let origin = |name: &[u8]| name == b"*" || name.eq_ignore_ascii_case(b"origin");
    if !headers.get_all(VARY).iter().flat_map(tokens).any(origin) {
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: Option<&[&'static str]>) -> Cors {
        let text = HeaderValue::from_static;
        Cors {
            origins: origins.map(|origins| origins.iter().map(|origin| text(origin)).collect()),
            methods: text("GET"),
            headers: text("x-api-key"),
            exposed: text(EXPOSED),
            credentials: origins.is_some(),
            max_age: text("600"),
        }
    }

    fn dressed(cors: &Cors, origin: &'static str, given: &[(HeaderName, &'static str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(name, HeaderValue::from_static(value));
        }
        cors.dress(&mut headers, Some(&HeaderValue::from_static(origin)));
        headers.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
        let mut lines: Vec<String> =
            headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        lines.sort();
        lines.join("\n").replace("access-control-allow-", "")
    }

    #[test]
    fn only_a_listed_origin_may_read_and_only_we_say_so() {
        let listed = cors(Some(&["https://app.example"]));
        let fine = "credentials: true\norigin: https://app.example\nvary: Origin";
        assert_eq!(dressed(&listed, "https://app.example", &[]), fine);
        let theirs = [
            (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            (ACCESS_CONTROL_ALLOW_ORIGIN, "https://evil.example"),
            (ACCESS_CONTROL_MAX_AGE, "9"),
        ];
        assert_eq!(dressed(&listed, "https://app.example", &theirs), fine);
        for other in ["https://app.example.evil", "http://app.example", "null", ""] {
            assert_eq!(dressed(&listed, other, &theirs), "vary: Origin", "{other}");
        }
        let all = dressed(&cors(None), "https://any.example", &[]);
        assert_eq!(all, "origin: https://any.example\nvary: Origin");
    }

    #[test]
    fn what_an_answer_varies_by_is_said_once() {
        let cors = cors(Some(&[]));
        for (given, expected) in [
            ("accept-encoding", "vary: Origin\nvary: accept-encoding"),
            ("accept, ORIGIN", "vary: accept, ORIGIN"),
            ("*", "vary: *"),
        ] {
            assert_eq!(dressed(&cors, "https://a.example", &[(VARY, given)]), expected);
        }
    }

    #[test]
    fn a_preflight_is_options_with_both_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("PUT"));
        assert_eq!(asked_about(&Method::OPTIONS, &headers), None);
        headers.insert(ORIGIN, HeaderValue::from_static("https://app.example"));
        assert_eq!(asked_about(&Method::OPTIONS, &headers), Some(Method::PUT));
        assert_eq!(asked_about(&Method::GET, &headers), None);
        headers.remove(ACCESS_CONTROL_REQUEST_METHOD);
        assert_eq!(asked_about(&Method::OPTIONS, &headers), None);
    }
}
