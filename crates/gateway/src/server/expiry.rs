//! When a certificate ends: the one field that a metric shows, found in its DER.
//!
//! TLS has judged the certificate before this reads it, so nothing is judged here: what does not
//! look as expected has no end that could be shown. A whole parser would be a dependency for a field.

use std::time::UNIX_EPOCH;

use rustls::pki_types::CertificateDer;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Seconds since 1970 after which it is not valid any more.
pub(super) fn expires(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (whole, _) = tagged(SEQUENCE, certificate)?;
    let (signed, _) = tagged(SEQUENCE, whole)?;
    let rest = tagged(VERSION, signed).map_or(signed, |(_, rest)| rest);
    let (_serial, rest) = tagged(INTEGER, rest)?;
    let (_algorithm, rest) = tagged(SEQUENCE, rest)?;
    let (_issuer, rest) = tagged(SEQUENCE, rest)?;
    let (validity, _) = tagged(SEQUENCE, rest)?;
    let (_, _not_before, rest) = element(validity)?;
    let (tag, not_after, _) = element(rest)?;
    seconds(tag, not_after)
}

/// The content of an element with this tag, and what follows it.
fn tagged(expected: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = element(bytes)?;
    (tag == expected).then_some((content, rest))
}

/// Tag and content of the first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// RFC 5280, 4.1.2.5: to the second, in UTC; two digits of a year are those of 1950 to 2049.
fn seconds(tag: u8, time: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    let digits = match tag {
        UTC_TIME if digits.get(..2)? < "50" => format!("20{digits}"),
        UTC_TIME => format!("19{digits}"),
        GENERALIZED_TIME => digits.to_owned(),
        _ => return None,
    };
    if digits.len() != 14 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (date, time) = digits.split_at_checked(8)?;
    let text = format!(
        "{}-{}-{}T{}:{}:{}Z",
        date.get(..4)?,
        date.get(4..6)?,
        date.get(6..)?,
        time.get(..2)?,
        time.get(2..4)?,
        time.get(4..)?
    );
    let time = humantime::parse_rfc3339(&text).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn until(year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.not_before = date_time_ymd(1999, 1, 1);
        params.not_after = date_time_ymd(year, 2, 3);
        let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        signed.der().clone()
    }

    #[test]
    fn an_end_is_read_in_either_spelling() {
        // From 2050 on certificates write years with four digits.
        for (year, expected) in
            [(2031, 1_927_843_200), (2049, 2_495_923_200), (2050, 2_527_459_200)]
        {
            assert_eq!(expires(&until(year)), Some(expected), "{year}");
        }
    }

    #[test]
    fn times_that_are_none_have_no_end() {
        assert_eq!(seconds(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(seconds(GENERALIZED_TIME, b"20310203000000Z"), Some(1_927_843_200));
        assert_eq!(seconds(GENERALIZED_TIME, b"99991231235959Z"), Some(253_402_300_799));
        for (tag, time) in [
            (UTC_TIME, &b"310203000000"[..]),
            (UTC_TIME, b"20310203000000Z"),
            (UTC_TIME, b"310203000000+0100"),
            (GENERALIZED_TIME, b"310203000000Z"),
            (GENERALIZED_TIME, b"20311303000000Z"),
            (GENERALIZED_TIME, b"2031020300\xc3\xa900Z"),
            (GENERALIZED_TIME, b"20310203000000.5Z"),
            (INTEGER, b"20310203000000Z"),
            (UTC_TIME, b""),
        ] {
            assert_eq!(seconds(tag, time), None, "{tag} {time:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_end() {
        let whole = until(2031).to_vec();
        for length in 0..whole.len() {
            assert_eq!(expires(&CertificateDer::from(whole[..length].to_vec())), None, "{length}");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 0xff;
            // Any answer, and no panic.
            let _answer = expires(&CertificateDer::from(other));
        }
    }
}
