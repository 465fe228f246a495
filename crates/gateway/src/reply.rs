//! Every answer that the gateway gives by itself.
//!
//! All are problem+json, carry the request's id and say `x-weir-source: edge`, so nobody takes
//! them for a service's. A denial tells when it ends in whole seconds, rounded up and never 0; one
//! that waiting does not help tells no time at all. The `RateLimit` fields follow draft 10 of the
//! IETF's header fields; their names moved between revisions, so they are written in one place.

use std::time::Duration;

use bytes::Bytes;
use edge::limiter::Wait;
use edge::{Refusal, Told};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, Method, Response, StatusCode};
use serde::Serialize;
use wire::error::{ErrorCode, PROBLEM_JSON};

use crate::body::ReplyBody;
use crate::headers::{REQUEST_ID, SOURCE, remove_limit_fields};
use crate::text::Text;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// When a denial ends, for clients that can use it.
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");

/// Fields of a denial, and about the bytes of its body: reserved at once.
const FIELDS: usize = 12;
const BODY_BYTES: usize = 384;

/// Told where nothing says when it will be better.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A refusal being put together.
#[derive(Debug)]
pub(crate) struct Problem {
    code: ErrorCode,
    detail: &'static str,
    hint: Option<&'static str>,
    retry: Option<Duration>,
    told: Option<Box<Told>>,
    allow: Option<HeaderValue>,
}

/// Its body; the same fields as `wire::error::ErrorBody`, and those of an exceeded quota.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(rename = "type")]
    problem_type: &'a str,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<[&'a str; 1]>,
}

impl Problem {
    /// One with nothing but what happened.
    pub(crate) fn new(code: ErrorCode, detail: &'static str) -> Problem {
        Problem { code, detail, hint: None, retry: None, told: None, allow: None }
    }

    /// Says when to try again.
    pub(crate) fn retry(self, after: Duration) -> Problem {
        Problem { retry: Some(after), ..self }
    }

    /// Says what to do.
    pub(crate) fn hint(self, hint: &'static str) -> Problem {
        Problem { hint: Some(hint), ..self }
    }

    /// Its status.
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What happened, for programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code.name()
    }

    /// What happened, for people.
    pub(crate) fn detail(&self) -> &'static str {
        self.detail
    }

    /// 405 with the methods that are allowed.
    pub(crate) fn method(allowed: &[Method]) -> Problem {
        let names = allowed.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        let allow = HeaderValue::try_from(names).ok();
        let detail = "the path is known, but not with this method";
        Problem { allow, ..Problem::new(ErrorCode::MethodNotAllowed, detail) }
    }

    /// What the edge refuses, with the numbers that the caller may be told.
    pub(crate) fn of(refusal: &Refusal, told: Option<Told>) -> Problem {
        let problem = match *refusal {
            Refusal::KeyMissing => Problem::new(ErrorCode::KeyMissing, "no API key was shown")
                .hint("send it in `x-api-key` or as `Authorization: Bearer`"),
            Refusal::KeyInvalid => Problem::new(ErrorCode::KeyInvalid, "the API key is not valid"),
            Refusal::ClientSuspended => {
                Problem::new(ErrorCode::ClientSuspended, "the client of this API key is suspended")
            }
            Refusal::KeyUnverified { retry } => {
                let detail = "nobody can be asked about the API key now";
                Problem::new(ErrorCode::KeyUnverified, detail).retry(retry)
            }
            Refusal::PlanInvalid => {
                let detail = "the client's plan is unknown or not valid";
                Problem::new(ErrorCode::PlanInvalid, detail).retry(TRY_AGAIN)
            }
            Refusal::NoPolicy => {
                let detail = "the gateway has not been told any plans yet";
                Problem::new(ErrorCode::NoPolicy, detail).retry(TRY_AGAIN)
            }
            Refusal::Denied { wait: Wait::Until(wait) } => {
                let detail = "the client's limit is used up for now";
                Problem::new(ErrorCode::QuotaExceeded, detail).retry(wait)
            }
            Refusal::Denied { wait: Wait::Never } => {
                let detail = "the client's allowance is used up and does not refill";
                Problem::new(ErrorCode::QuotaExceeded, detail)
            }
            Refusal::CostExceedsCapacity => {
                let detail = "the request costs more than the plan can ever hold";
                Problem::new(ErrorCode::CostExceedsCapacity, detail)
            }
            Refusal::LimiterClosed { retry } => {
                let detail = "the limit cannot be checked now, and the plan refuses then";
                Problem::new(ErrorCode::LimiterClosed, detail).retry(retry)
            }
        };
        let told = told.filter(|_| matches!(refusal, Refusal::Denied { .. }));
        Problem { told: told.map(Box::new), ..problem }
    }

    /// The response; to HEAD with the same headers and no body.
    pub(crate) fn response(self, method: &Method, request_id: &HeaderValue) -> Response<ReplyBody> {
        let body = self.body(request_id);
        let length = body.len();
        let own = if method == Method::HEAD { ReplyBody::Empty } else { ReplyBody::Own(body) };
        let mut response = Response::new(own);
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.reserve(FIELDS);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(SOURCE, HeaderValue::from_static("edge"));
        headers.insert(REQUEST_ID, request_id.clone());
        if self.code.status() == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, allow);
        }
        if let Some(retry) = self.retry {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(retry)));
        }
        if let Some(told) = &self.told {
            insert_limit_fields(headers, told);
            set_denial_fields(headers, told, self.retry);
        }
        response
    }

    fn body(&self, request_id: &HeaderValue) -> Bytes {
        let problem_type = self.code.problem_type();
        let shown = Shown {
            problem_type: &problem_type,
            title: self.code.title(),
            status: self.code.status(),
            code: self.code.name(),
            detail: self.detail,
            hint: self.hint,
            request_id: request_id.to_str().unwrap_or_default(),
            retry_after: self.retry.map(seconds),
            violated_policies: self.told.as_ref().map(|told| [told.tightest.name]),
        };
        let mut body = Vec::with_capacity(BODY_BYTES);
        let written = serde_json::to_writer(&mut body, &shown);
        written.map_or_else(|_never_for_texts| Bytes::new(), |()| Bytes::from(body))
    }
}

/// Tells an admitted or denied caller where it stands, in place of whatever an upstream said.
pub(crate) fn set_limit_fields(headers: &mut HeaderMap, told: &Told) {
    remove_limit_fields(headers);
    insert_limit_fields(headers, told);
}

fn insert_limit_fields(headers: &mut HeaderMap, told: &Told) {
    insert_text(headers, RATE_LIMIT_POLICY, &policy_field(told));
    insert_text(headers, RATE_LIMIT, &standing_field(told));
}

/// The same for older clients.
pub(crate) fn set_x_limit_fields(headers: &mut HeaderMap, told: &Told) {
    let tightest = told.tightest;
    let limit = told.limits().find(|limit| limit.name == tightest.name).unwrap_or(told.burst);
    headers.insert(X_LIMIT, HeaderValue::from(limit.capacity));
    headers.insert(X_REMAINING, HeaderValue::from(tightest.remaining));
}

fn set_denial_fields(headers: &mut HeaderMap, told: &Told, retry: Option<Duration>) {
    set_x_limit_fields(headers, told);
    if let Some(retry) = retry {
        headers.insert(X_RETRY_AFTER, HeaderValue::from(seconds(retry)));
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis(told.turn.unwrap_or(retry))));
    }
}

/// `"burst";q=100;w=2, "sustained";q=1000;w=20`.
fn policy_field(told: &Told) -> Text {
    told.limits().fold(Text::new(), |text, limit| {
        let comma = if text.is_empty() { "\"" } else { ", \"" };
        let text = text.word(comma).word(limit.name).word("\";q=").number(limit.capacity);
        match limit.window_s {
            Some(window) => text.word(";w=").number(window),
            None => text,
        }
    })
}

/// `"burst";r=99;t=1`.
fn standing_field(told: &Told) -> Text {
    let tightest = told.tightest;
    let text = Text::new().word("\"").word(tightest.name).word("\";r=").number(tightest.remaining);
    match tightest.reset_s {
        Some(reset) => text.word(";t=").number(reset),
        None => text,
    }
}

fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: &Text) {
    if let Some(value) = text.value() {
        headers.insert(name, value);
    }
}

/// Whole seconds, rounded up, never 0.
fn seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// Whole milliseconds, rounded up, never 0.
fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use edge::{ToldLimit, ToldTightest};

    use super::*;

    fn told(remaining: u64) -> Told {
        Told {
            turn: None,
            burst: ToldLimit { name: "burst", capacity: 10, window_s: Some(1) },
            sustained: Some(ToldLimit { name: "sustained", capacity: 50, window_s: None }),
            tightest: ToldTightest { name: "burst", remaining, reset_s: Some(1) },
        }
    }

    fn shown(refusal: &Refusal) -> (u16, Vec<String>) {
        let id = HeaderValue::from_static("id1");
        let response = Problem::of(refusal, Some(told(0))).response(&Method::GET, &id);
        let mut lines: Vec<String> = response
            .headers()
            .iter()
            .filter(|(name, _)| name.as_str().contains("r") && *name != REQUEST_ID)
            .filter(|(name, _)| {
                let name = name.as_str();
                name.contains("retry") || name.contains("ratelimit")
            })
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        (response.status().as_u16(), lines)
    }

    #[test]
    fn a_denial_tells_when_it_ends() {
        let wait = Wait::Until(Duration::from_micros(100_001));
        let (status, lines) = shown(&Refusal::Denied { wait });
        assert_eq!(status, 429);
        assert_eq!(
            lines,
            [
                "ratelimit-policy: \"burst\";q=10;w=1, \"sustained\";q=50",
                "ratelimit: \"burst\";r=0;t=1",
                "retry-after-ms: 101",
                "retry-after: 1",
                "x-ratelimit-limit: 10",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-retry-after: 1",
            ]
        );
    }

    #[test]
    fn limits_at_their_largest_are_told_whole() {
        let most = u64::MAX;
        let limit = |name| ToldLimit { name, capacity: most, window_s: Some(most) };
        let told = Told {
            burst: limit("burst"),
            sustained: Some(limit("sustained")),
            tightest: ToldTightest { name: "sustained", remaining: most, reset_s: Some(most) },
            turn: None,
        };
        let mut headers = HeaderMap::new();
        set_limit_fields(&mut headers, &told);
        let policy = format!("\"burst\";q={most};w={most}, \"sustained\";q={most};w={most}");
        assert_eq!(headers.get(&RATE_LIMIT_POLICY).unwrap(), policy.as_str());
        let standing = format!("\"sustained\";r={most};t={most}");
        assert_eq!(headers.get(&RATE_LIMIT).unwrap(), standing.as_str());
    }

    #[test]
    fn what_waiting_does_not_help_tells_no_time() {
        let (status, lines) = shown(&Refusal::Denied { wait: Wait::Never });
        assert_eq!(status, 429);
        assert!(!lines.iter().any(|line| line.contains("retry")), "{lines:?}");
        assert_eq!(shown(&Refusal::CostExceedsCapacity), (403, Vec::new()));
    }

    #[test]
    fn a_missing_limiter_is_no_denial() {
        let retry = Duration::from_millis(1_001);
        let (status, lines) = shown(&Refusal::LimiterClosed { retry });
        assert_eq!((status, lines), (503, vec!["retry-after: 2".to_owned()]));
    }

    #[test]
    fn a_wait_is_never_zero_and_never_early() {
        for (us, expected) in [(0, 1), (1, 1), (1_000_000, 1), (1_000_001, 2), (9_999_999, 10)] {
            assert_eq!(seconds(Duration::from_micros(us)), expected);
        }
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
    }

    #[test]
    fn the_body_reads_as_the_shared_problem() {
        let id = HeaderValue::from_static("id1");
        for code in ErrorCode::ALL.iter().copied() {
            let body = Problem::new(code, "d").retry(TRY_AGAIN).body(&id);
            let body: wire::error::ErrorBody = serde_json::from_slice(&body).unwrap();
            assert_eq!((body.code, body.status), (code, code.status()));
            assert_eq!(body.request_id.as_deref(), Some("id1"));
        }
        let head = Problem::new(ErrorCode::KeyInvalid, "d").response(&Method::HEAD, &id);
        assert!(matches!(head.body(), ReplyBody::Empty));
        assert!(head.headers().contains_key(CONTENT_LENGTH));
    }
}
