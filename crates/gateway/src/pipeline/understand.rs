//! One reading of a request's head, or a refusal (pure).
//!
//! What has two readings is refused before anything is decided, and its connection ends: it is not
//! sure what the bytes behind it are. What is understood has one form, which routes, services and
//! records share.

use std::borrow::Cow;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, StatusCode, Version};
use wire::error::ErrorCode;

use super::Head;
use crate::headers;
use crate::reply::Problem;
use crate::route;

/// Longest request target.
const TARGET_BYTES_MAX: usize = 8_192;
/// Longest method; `UPDATEREDIRECTREF` is the longest that is registered.
const METHOD_BYTES_MAX: usize = 32;

/// Refuses what has two readings or is not supported, before anything is decided; otherwise the
/// canonical host and path.
pub(super) fn understand<'a>(
    head: &Head<'a>,
    headers: &mut HeaderMap,
    fields_max: usize,
) -> Result<(HeaderValue, Cow<'a, str>), Problem> {
    let bad = |detail| Problem::new(ErrorCode::BadRequest, detail);
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return Err(Problem::new(ErrorCode::NotImplemented, "CONNECT and TRACE are not supported"));
    }
    // `post` is another method than `POST`, but not to every service, and costs go by methods.
    let method = head.method.as_str().as_bytes();
    let usual = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    if METHOD_BYTES_MAX < method.len() || !method.iter().all(usual) {
        let detail = "a method is a word of capitals";
        return Err(Problem::new(ErrorCode::NotImplemented, detail));
    }
    // The engine of HTTP/1.1 counts them itself, that of HTTP/2 does not.
    if fields_max < headers.len() {
        return Err(Problem::new(ErrorCode::HeadTooLarge, "the request has too many fields"));
    }
    if !headers::is_chunked_or_nothing(headers) {
        return Err(bad("the only transfer coding is chunked, once"));
    }
    if !headers::has_plain_length(headers) {
        return Err(bad("a length is one whole number without leading zeros"));
    }
    let target = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
    if TARGET_BYTES_MAX < target.len() {
        return Err(Problem::new(ErrorCode::TargetTooLong, "the request target is over 8 KiB"));
    }
    let authority = authority(head, headers).ok_or_else(|| bad("exactly one host is needed"))?;
    let authority = canonical(authority)
        .ok_or_else(|| bad("the host is not a name or address with an optional port"))?;
    let path = route::canonical_path(head.uri.path()).map_err(|_two_readings| {
        bad("the path has dot segments, hidden slashes or a broken encoding")
    })?;
    if head.version == Version::HTTP_2 {
        headers::join_cookies(headers);
    }
    Ok((authority, path))
}

/// Whether a refusal before routing leaves it open where the next request begins.
pub(super) fn ends_connection(status: StatusCode) -> bool {
    status != StatusCode::NOT_FOUND && status != StatusCode::METHOD_NOT_ALLOWED
}

pub(super) fn is_announced_too_long(headers: &HeaderMap, bound: Option<u64>) -> bool {
    let Some(bound) = bound else { return false };
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| bound < length)
}

/// The one host that a request names: in its target, or in `Host`; if in both, the same.
fn authority(head: &Head<'_>, headers: &HeaderMap) -> Option<HeaderValue> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return None;
    }
    match (head.uri.authority(), host) {
        (Some(target), Some(host)) => {
            host.as_bytes().eq_ignore_ascii_case(target.as_str().as_bytes()).then(|| host.clone())
        }
        (Some(target), None) => HeaderValue::from_str(target.as_str()).ok(),
        (None, Some(host)) => Some(host.clone()),
        // HTTP/1.0 has no hosts.
        (None, None) if head.version < Version::HTTP_11 => {
            Some(HeaderValue::from_static("localhost"))
        }
        (None, None) => None,
    }
}

/// Services are told the host in the form that routes are compared with, and its port.
fn canonical(authority: HeaderValue) -> Option<HeaderValue> {
    let text = authority.to_str().ok()?;
    let other = match route::canonical_authority(text).ok()? {
        Cow::Borrowed(same) if same.len() == text.len() => None,
        other @ (Cow::Borrowed(_) | Cow::Owned(_)) => Some(HeaderValue::from_str(&other).ok()?),
    };
    Some(other.unwrap_or(authority))
}
