//! From request headers to the one API key that was shown (pure).
//!
//! A key stands in `x-api-key` or in `Authorization: Bearer`. It is 1 to 256 visible ASCII bytes.
//! Two readings are refused, not resolved: whoever picks one of two keys picks a bucket. What a
//! key means is not known here.

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use wire::key::KEY_BYTES_MAX;

/// The header that is for API keys alone.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Why no key can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CredentialError {
    /// More than one value, or two places that differ.
    Ambiguous,
    /// Bytes that no key has, nothing at all, or too many.
    Malformed,
}

/// Which key was shown, if any.
pub(crate) fn presented(headers: &HeaderMap) -> Result<Option<&str>, CredentialError> {
    let own = only(headers, &API_KEY)?.map(HeaderValue::as_bytes);
    let bearer = only(headers, &AUTHORIZATION)?.and_then(|value| bearer(value.as_bytes()));
    match (own, bearer) {
        (Some(own), Some(bearer)) if own != bearer => Err(CredentialError::Ambiguous),
        (Some(key), _) | (None, Some(key)) => checked(key).map(Some),
        (None, None) => Ok(None),
    }
}

/// Removes the key that [`presented`] found, so that no service ever sees it.
pub(crate) fn remove(headers: &mut HeaderMap) {
    headers.remove(API_KEY);
    if headers.get(AUTHORIZATION).is_some_and(|value| bearer(value.as_bytes()).is_some()) {
        headers.remove(AUTHORIZATION);
    }
}

/// Removes credentials that are spelled like our keys, on routes that ask for none: there the two
/// headers belong to the service, but a key sent by mistake does not.
pub(crate) fn remove_ours(headers: &mut HeaderMap) {
    let ours = |key: &[u8]| key.starts_with(b"weir_live_") || key.starts_with(b"weir_test_");
    if headers.get_all(API_KEY).iter().any(|value| ours(value.as_bytes())) {
        headers.remove(API_KEY);
    }
    let mut bearers = headers.get_all(AUTHORIZATION).iter();
    if bearers.any(|value| bearer(value.as_bytes()).is_some_and(ours)) {
        headers.remove(AUTHORIZATION);
    }
}

fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, CredentialError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(CredentialError::Ambiguous) } else { Ok(first) }
}

/// What follows the scheme `Bearer`; other schemes carry no API key.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(b"bearer".len())?;
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return None;
    }
    match rest.split_first() {
        None => Some(b""),
        Some((b' ', key)) => Some(key.trim_ascii_start()),
        Some(_) => None,
    }
}

fn checked(key: &[u8]) -> Result<&str, CredentialError> {
    let sized = (1..=KEY_BYTES_MAX).contains(&key.len());
    if sized && key.iter().all(u8::is_ascii_graphic) {
        std::str::from_utf8(key).map_err(|_never_for_ascii| CredentialError::Malformed)
    } else {
        Err(CredentialError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        map
    }

    fn check(pairs: &[(&str, &[u8])], expected: Result<Option<&str>, CredentialError>) {
        assert_eq!(presented(&headers(pairs)), expected, "{pairs:?}");
    }

    #[test]
    fn a_key_is_read_from_either_place() {
        check(&[], Ok(None));
        check(&[("x-api-key", b"k1")], Ok(Some("k1")));
        check(&[("authorization", b"Bearer k1")], Ok(Some("k1")));
        check(&[("authorization", b"bEARER  k1")], Ok(Some("k1")));
        check(&[("authorization", b"Bearer k1"), ("x-api-key", b"k1")], Ok(Some("k1")));
        check(&[("authorization", b"Basic dTpw")], Ok(None));
        check(&[("authorization", b"Bearerk1")], Ok(None));
        check(&[("authorization", b"Basic dTpw"), ("x-api-key", b"k1")], Ok(Some("k1")));
    }

    #[test]
    fn two_readings_are_refused() {
        let ambiguous = Err(CredentialError::Ambiguous);
        check(&[("x-api-key", b"a"), ("x-api-key", b"b")], ambiguous);
        check(&[("x-api-key", b"a"), ("x-api-key", b"a")], ambiguous);
        check(&[("x-api-key", b"a"), ("authorization", b"Bearer b")], ambiguous);
        check(&[("authorization", b"Bearer a"), ("authorization", b"Basic b")], ambiguous);
    }

    #[test]
    fn only_visible_ascii_of_sane_length_is_a_key() {
        let longest = [b'A'; 256];
        check(&[("x-api-key", &longest)], Ok(Some(std::str::from_utf8(&longest).unwrap())));
        check(&[("x-api-key", b"k{x}y")], Ok(Some("k{x}y")));
        check(&[("x-api-key", b"{}")], Ok(Some("{}")));
        for bad in
            [&b""[..], b"two words", "ключ-7".as_bytes(), b"a\tb", &[b'A'; 257], &[b'A'; 8192]]
        {
            check(&[("x-api-key", bad)], Err(CredentialError::Malformed));
        }
        check(&[("authorization", b"Bearer")], Err(CredentialError::Malformed));
        check(&[("authorization", b"Bearer a b")], Err(CredentialError::Malformed));
    }

    #[test]
    fn the_key_does_not_travel_on_but_other_credentials_do() {
        let mut map = headers(&[("x-api-key", b"k"), ("authorization", b"Bearer k")]);
        remove(&mut map);
        assert!(map.is_empty());
        let mut map = headers(&[("x-api-key", b"k"), ("authorization", b"Basic dTpw")]);
        remove(&mut map);
        assert_eq!(map.len(), 1);
        let mut map = headers(&[("x-api-key", b"weir_live_x"), ("authorization", b"Bearer jwt")]);
        remove_ours(&mut map);
        assert_eq!(map.keys().collect::<Vec<_>>(), [AUTHORIZATION]);
    }
}
