//! Refusals as gRPC callers read them: HTTP 200 with the status in the head alone ("trailers
//! only"), and when to try again where their retry policies look for it. All else about gRPC
//! passes like any request.

use std::fmt::Write;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Method, Response, StatusCode};

use crate::body::ReplyBody;
use crate::reply::RETRY_AFTER_MS;

/// Media types have no case (RFC 9110, section 8.3.1).
const GRPC: &[u8] = b"application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Milliseconds until a retry is worth while; negative: it never is.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The kind of gRPC that a request speaks, if it speaks any.
pub(crate) fn kind(method: &Method, headers: &HeaderMap) -> Option<HeaderValue> {
    if method != Method::POST {
        return None;
    }
    let content_type = headers.get(CONTENT_TYPE)?;
    let (name, rest) = content_type.as_bytes().split_at_checked(GRPC.len())?;
    let fits = matches!(rest.trim_ascii_start().first(), None | Some(b'+' | b'-' | b';'));
    (name.eq_ignore_ascii_case(GRPC) && fits).then(|| content_type.clone())
}

/// Makes a refusal one that callers of this kind understand.
pub(crate) fn translate(response: &mut Response<ReplyBody>, kind: HeaderValue, message: &str) {
    let status = response.status();
    *response.status_mut() = StatusCode::OK;
    *response.body_mut() = ReplyBody::Empty;
    let headers = response.headers_mut();
    let pushback = pushback(status, headers);
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(GRPC_STATUS, HeaderValue::from(code(status)));
    if let Ok(message) = HeaderValue::try_from(encoded(message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    if let Some(pushback) = pushback {
        headers.insert(PUSHBACK, HeaderValue::from(pushback));
    }
}

/// The gRPC status of a refusal.
fn code(status: StatusCode) -> u16 {
    const INVALID_ARGUMENT: u16 = 3;
    const DEADLINE_EXCEEDED: u16 = 4;
    const PERMISSION_DENIED: u16 = 7;
    const RESOURCE_EXHAUSTED: u16 = 8;
    const UNIMPLEMENTED: u16 = 12;
    const INTERNAL: u16 = 13;
    const UNAVAILABLE: u16 = 14;
    const UNAUTHENTICATED: u16 = 16;
    match status.as_u16() {
        400 | 414 | 431 => INVALID_ARGUMENT,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 | 405 | 501 => UNIMPLEMENTED,
        // Also a message that is too large.
        413 | 429 => RESOURCE_EXHAUSTED,
        // It may have had its effect, so it is not told to be safe to try again.
        408 | 504 => DEADLINE_EXCEEDED,
        502 | 503 => UNAVAILABLE,
        _ => INTERNAL,
    }
}

/// What the refusal says about trying again.
fn pushback(status: StatusCode, headers: &HeaderMap) -> Option<i32> {
    let number = |name: &HeaderName| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let wait = number(&RETRY_AFTER_MS)
        .or_else(|| number(&RETRY_AFTER).map(|seconds| seconds.saturating_mul(1_000)));
    match wait {
        Some(ms) => Some(i32::try_from(ms).unwrap_or(i32::MAX)),
        // Without a time waiting does not help.
        None if status == StatusCode::TOO_MANY_REQUESTS => Some(-1),
        None => None,
    }
}

/// A message as gRPC wants it: visible ASCII and spaces, all else and `%` as `%XX`.
fn encoded(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' => text.push_str("%25"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => write!(text, "%{byte:02X}").expect("a String takes everything"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_have_no_case_and_end_somewhere() {
        let of = |content_type: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type.parse().unwrap())]);
            kind(&Method::POST, &headers).is_some()
        };
        for grpc in ["application/grpc", "Application/GRPC", "application/grpc ;x=1"] {
            assert!(of(grpc), "{grpc}");
        }
        assert!(of("application/grpc+proto") && of("application/grpc-web"));
        assert!(!of("application/grpcx") && !of("application/json") && !of("a"));
    }

    #[test]
    fn grpc_is_told_by_the_content_type_of_a_post() {
        for (content_type, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc-web+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpcish", false),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(kind(&Method::POST, &headers).is_some(), expected, "{content_type}");
            assert_eq!(kind(&Method::GET, &headers), None);
        }
    }

    #[test]
    fn a_message_is_percent_encoded() {
        assert_eq!(encoded("100 % of the plan: é\n"), "100 %25 of the plan: %C3%A9%0A");
    }

    #[test]
    fn what_waiting_does_not_help_is_not_to_be_tried_again() {
        let told = |status: StatusCode, name: &HeaderName, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            pushback(status, &headers)
        };
        let (denied, away) = (StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(told(denied, &RETRY_AFTER_MS, "101"), Some(101));
        assert_eq!(told(away, &RETRY_AFTER, "2"), Some(2_000));
        assert_eq!(told(away, &RETRY_AFTER, "99999999999"), Some(i32::MAX));
        assert_eq!(told(denied, &CONTENT_TYPE, "x"), Some(-1));
        assert_eq!(told(StatusCode::UNAUTHORIZED, &CONTENT_TYPE, "x"), None);
    }
}
