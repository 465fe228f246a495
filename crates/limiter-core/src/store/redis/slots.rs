//! Cluster arithmetic: the slot of a key, and which node has which slots. Nothing here talks.

use redis::Value;

use super::address::HostPort;
use super::health;
use crate::key::BucketKey;

/// Slots of any Cluster.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a key: that of its digits alone, since they stand in braces.
pub(super) fn slot_of(key: &BucketKey) -> u16 {
    digits(key).fold(0, crc16) % 16_384
}

/// A key as `Display` spells it, in a tenth of the time: every call does it.
pub(super) fn spelled(key: &BucketKey) -> String {
    let mut text = String::with_capacity(39);
    text.push_str("weir:{");
    text.extend(digits(key).map(char::from));
    text.push('}');
    text
}

fn digits(key: &BucketKey) -> impl Iterator<Item = u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |index: u8| DIGITS.get(usize::from(index)).copied().unwrap_or(0);
    key.bytes().iter().flat_map(move |byte| [digit(byte >> 4), digit(byte & 15)])
}

/// CRC-16/XMODEM; a key has 32 digits, so half a byte at a time will do.
fn crc16(crc: u16, byte: u8) -> u16 {
    const TABLE: [u16; 16] = [
        0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7, 0x8108, 0x9129, 0xa14a,
        0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef,
    ];
    let half = |crc: u16, bits: u8| {
        let index = usize::from((crc >> 12) ^ u16::from(bits)) & 15;
        (crc << 4) ^ TABLE.get(index).copied().unwrap_or(0)
    };
    half(half(crc, byte >> 4), byte & 15)
}

/// Slots from first to last, and their primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: HostPort,
}

/// Reads an answer to CLUSTER SLOTS; `None` if it is not one, or names no slot at all. A range
/// whose primary is not known to the speaker is left out.
pub(super) fn read(answer: &Value, speaker: &HostPort) -> Option<Vec<Range>> {
    let Value::Array(items) = answer else { return None };
    let mut ranges = Vec::new();
    for item in items {
        let Value::Array(parts) = item else { return None };
        let [Value::Int(first), Value::Int(last), primary, ..] = parts.as_slice() else {
            return None;
        };
        let slot = |number: &i64| u16::try_from(*number).ok().filter(|n| usize::from(*n) < SLOTS);
        let (first, last) = (slot(first)?, slot(last)?);
        if last < first {
            return None;
        }
        let primary = node(primary, speaker)?;
        ranges.extend(primary.map(|primary| Range { first, last, primary }));
    }
    (!ranges.is_empty()).then_some(ranges)
}

/// The outer `None` is nonsense, the inner one a node that the speaker cannot name.
fn node(value: &Value, speaker: &HostPort) -> Option<Option<HostPort>> {
    let Value::Array(parts) = value else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = if matches!(host, Value::Nil) { "" } else { health::text(host)? };
    let host = match host {
        "" | "0.0.0.0" | "::" => &speaker.host,
        "?" => return Some(None),
        named => named,
    };
    let port = u16::try_from(*port).ok().filter(|port| *port > 0)?;
    Some(Some(HostPort { host: host.to_owned(), port }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{ScopeId, VersionSource};

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(b"123456789".iter().copied().fold(0, crc16), 0x31c3);
    }

    #[test]
    fn a_key_is_spelled_as_it_is_shown() {
        let key = BucketKey::new(VersionSource::File, ScopeId::Client("acme"));
        assert_eq!(spelled(&key), key.to_string());
    }

    #[test]
    fn keys_of_a_cluster_spread_over_all_its_slots() {
        let keys = (0..4_000_u32).map(|number| {
            BucketKey::new(VersionSource::File, ScopeId::Client(&number.to_string()))
        });
        let mut eighths = [0; 8];
        for key in keys {
            eighths[usize::from(slot_of(&key)) * 8 / SLOTS] += 1;
        }
        assert!(eighths.iter().all(|count| (400..600).contains(count)), "{eighths:?}");
    }

    #[test]
    fn an_answer_is_read_with_the_speakers_own_name_where_it_gives_none() {
        let speaker = HostPort { host: "speaker".into(), port: 1 };
        let read = |items: Vec<Value>| read(&Value::Array(items), &speaker);
        let at = |host: &str| HostPort { host: host.into(), port: 7 };
        for (told, host) in [
            (text("10.0.0.1"), "10.0.0.1"),
            (text(""), "speaker"),
            (text("0.0.0.0"), "speaker"),
            (Value::Nil, "speaker"),
        ] {
            let ranges = read(vec![range(0, 16_383, told, 7)]).unwrap();
            assert_eq!(ranges, [Range { first: 0, last: 16_383, primary: at(host) }]);
        }
        let known = range(0, 5, text("a"), 7);
        let unknown = range(6, 7, text("?"), 7);
        assert_eq!(read(vec![known, unknown]).unwrap().len(), 1);
    }

    #[test]
    fn an_empty_or_senseless_answer_is_none() {
        let speaker = HostPort { host: "speaker".into(), port: 1 };
        for bad in [
            Value::Nil,
            Value::Array(Vec::new()),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(5, 4, text("a"), 7)]),
            Value::Array(vec![range(0, 16_384, text("a"), 7)]),
            Value::Array(vec![range(-1, 4, text("a"), 7)]),
            Value::Array(vec![range(0, 4, text("a"), 0)]),
            Value::Array(vec![range(0, 4, text("a"), 70_000)]),
            Value::Array(vec![range(0, 4, text("?"), 7)]),
            Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(4)])]),
        ] {
            assert_eq!(read(&bad, &speaker), None, "{bad:?}");
        }
    }
}
