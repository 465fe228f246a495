//! Routes that go by a header field (pure).
//!
//! Such a field decides what a request costs and who serves it, so a service must read it as it was
//! judged: told twice, under an alias with underscores, or named by `Connection`, it has two
//! readings.

use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};

use crate::headers::tokens;

/// A field that a request must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRule {
    /// Its name.
    pub name: HeaderName,
    /// Its value, letter by letter; none: any.
    pub value: Option<HeaderValue>,
}

impl FieldRule {
    /// Whether a request has it.
    pub(super) fn fits(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(&self.name);
        given.is_some_and(|given| self.value.as_ref().is_none_or(|wanted| wanted == given))
    }
}

/// Whether a service may read this field in another way than it is judged here.
pub(super) fn is_unclear(name: &HeaderName, headers: &HeaderMap) -> bool {
    let twice = headers.get_all(name).iter().nth(1).is_some();
    let alias = |other: &HeaderName| other != name && is_alias(other.as_str(), name.as_str());
    twice || headers.keys().any(alias) || is_dropped(name, headers)
}

fn is_alias(other: &str, name: &str) -> bool {
    let hyphens = |byte: u8| if byte == b'_' { b'-' } else { byte };
    other.len() == name.len() && other.bytes().map(hyphens).eq(name.bytes().map(hyphens))
}

fn is_dropped(name: &HeaderName, headers: &HeaderMap) -> bool {
    let mut named = headers.get_all(CONNECTION).iter().flat_map(tokens);
    named.any(|token| token.eq_ignore_ascii_case(name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn a_field_fits_by_its_value_or_by_being_there() {
        let rule = |value| FieldRule { name: HeaderName::from_static("x-tier"), value };
        let beta = rule(Some(HeaderValue::from_static("beta")));
        for (pairs, any, exactly) in [
            (&[][..], false, false),
            (&[("x-tier", "beta")], true, true),
            (&[("X-Tier", "beta")], true, true),
            (&[("x-tier", "Beta")], true, false),
            (&[("x-tier", "")], true, false),
            (&[("x-tiers", "beta")], false, false),
        ] {
            let headers = headers(pairs);
            assert_eq!(
                (rule(None).fits(&headers), beta.fits(&headers)),
                (any, exactly),
                "{pairs:?}"
            );
        }
    }

    #[test]
    fn what_a_service_may_read_in_another_way_is_unclear() {
        let name = HeaderName::from_static("x-tier");
        for (pairs, unclear) in [
            (&[][..], false),
            (&[("x-tier", "a")], false),
            (&[("x-tier", "a"), ("connection", "close")], false),
            (&[("x-tier", "a"), ("x-tier", "a")], true),
            (&[("x_tier", "a")], true),
            (&[("x-tier", "a"), ("x_tier", "b")], true),
            (&[("x-tier", "a"), ("connection", "close, X-Tier")], true),
            (&[("connection", ""), ("connection", "x-tier")], true),
        ] {
            assert_eq!(is_unclear(&name, &headers(pairs)), unclear, "{pairs:?}");
        }
    }
}
