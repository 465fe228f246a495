//! The audit's chain: how a row is hashed, and what a walk along the chain tells.
//!
//! `hash = BLAKE3(prev ‖ canonical JSON of the row)`, where `prev` is the 32 bytes of the row before
//! it (zeros before the first). The canonical JSON has every column but the two hashes, in the order
//! of their names, without blanks; `before` and `after` are texts, as they are stored. So whoever
//! has the rows and one tip from elsewhere can check them without us.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The hash of a row, 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHash([u8; 32]);

impl AuditHash {
    /// What stands before the first row.
    pub const START: AuditHash = AuditHash([0; 32]);

    /// From 64 hexadecimal digits, lower case.
    pub fn from_hex(text: &str) -> Option<AuditHash> {
        let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?;
        Some(AuditHash(bytes.try_into().ok()?))
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }

    /// The hash of a row that follows this one.
    #[must_use]
    pub fn link(self, row: &AuditText) -> AuditHash {
        let text = serde_json::to_vec(row).expect("numbers and texts always serialise");
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(&text);
        AuditHash(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl Serialize for AuditHash {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for AuditHash {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<AuditHash, D::Error> {
        let text = String::deserialize(from)?;
        AuditHash::from_hex(&text)
            .ok_or_else(|| serde::de::Error::custom("a hash is 64 hexadecimal digits"))
    }
}

/// A row as it is hashed. The fields stand in the order of their names: that is the canonical form,
/// so a column that comes later takes its place in the order, and is left out where it is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditText {
    /// Whose token.
    pub actor: String,
    /// The object after, as text.
    pub after: Option<String>,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// The object before, as text.
    pub before: Option<String>,
    /// What.
    pub command: String,
    /// Id of the object.
    pub id: String,
    /// Kind of the object.
    pub kind: String,
    /// Why.
    pub reason: String,
    /// Of the request.
    pub request_id: String,
    /// Revision that it made.
    pub revision: Option<u64>,
    /// Its number.
    pub seq: u64,
    /// By which way.
    pub via: String,
}

/// A place in the chain: a row and its hash. Seq 0 is the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditPlace {
    /// Number of the row.
    pub seq: u64,
    /// Its hash.
    pub hash: AuditHash,
}

impl AuditPlace {
    /// Before the first row.
    pub const START: AuditPlace = AuditPlace { seq: 0, hash: AuditHash::START };

    /// Reads `SEQ:HASH`, as [`fmt::Display`] writes it.
    pub fn parse(text: &str) -> Option<AuditPlace> {
        let (seq, hash) = text.split_once(':')?;
        Some(AuditPlace { seq: seq.parse().ok()?, hash: AuditHash::from_hex(hash)? })
    }
}

impl fmt::Display for AuditPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

/// Asks for a walk along a part of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditWalk {
    /// Where the part before ended; absent: from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AuditPlace>,
    /// A tip that was kept elsewhere: the chain has to pass it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<AuditPlace>,
}

/// What a walk found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditWalked {
    /// Rows that were checked in this part.
    pub checked: u64,
    /// The last sound row; where the next part begins.
    pub place: AuditPlace,
    /// Nothing is left to walk, or a fault ended it.
    pub done: bool,
    /// The first bad row.
    pub fault: Option<AuditFault>,
    /// The newest row, as the head has it.
    pub tip: AuditPlace,
    /// Rows that an older process wrote and that the next change puts into the chain.
    pub unlinked: u64,
}

/// The first bad row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditFault {
    /// Its number.
    pub seq: u64,
    /// What is wrong with it.
    pub kind: AuditFaultKind,
    /// For people.
    pub detail: String,
}

/// What is wrong with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AuditFaultKind {
    /// It is not there although later ones are.
    Missing,
    /// Its hash is not that of its content.
    Altered,
    /// It does not follow the row before it: one of both was replaced, put in or moved.
    Displaced,
    /// The newest rows are gone: the head knows them.
    Cut,
    /// It is sound in itself, and not what it was when the kept tip was taken.
    Rewritten,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> AuditText {
        AuditText {
            actor: "ana (x)".to_owned(),
            after: Some(r#"{"a":"ü"}"#.to_owned()),
            at: 7,
            before: None,
            command: "plan set".to_owned(),
            id: "pro".to_owned(),
            kind: "plan".to_owned(),
            reason: String::new(),
            request_id: "r".to_owned(),
            revision: Some(3),
            seq: 1,
            via: "api".to_owned(),
        }
    }

    #[test]
    fn the_canonical_form_is_sorted_without_blanks_and_stays_what_it_is() {
        let text = serde_json::to_string(&row()).unwrap();
        let canonical = concat!(
            r#"{"actor":"ana (x)","after":"{\"a\":\"ü\"}","at":7,"before":null,"#,
            r#""command":"plan set","id":"pro","kind":"plan","reason":"","request_id":"r","#,
            r#""revision":3,"seq":1,"via":"api"}"#
        );
        assert_eq!(text, canonical);
        let mut bytes = vec![0_u8; 32];
        bytes.extend_from_slice(canonical.as_bytes());
        let by_hand = blake3::hash(&bytes).to_hex().to_string();
        assert_eq!(AuditHash::START.link(&row()).to_hex(), by_hand);
    }

    #[test]
    fn every_column_and_the_row_before_are_part_of_the_hash() {
        let plain = AuditHash::START.link(&row());
        assert_ne!(plain, plain.link(&row()), "the row before");
        let others: [fn(&mut AuditText); 12] = [
            |row| row.actor.push('x'),
            |row| row.after = None,
            |row| row.at += 1,
            |row| row.before = Some(String::new()),
            |row| row.command.push('x'),
            |row| row.id.push('x'),
            |row| row.kind.push('x'),
            |row| row.reason.push('x'),
            |row| row.request_id.push('x'),
            |row| row.revision = None,
            |row| row.seq += 1,
            |row| row.via.push('x'),
        ];
        for (index, other) in others.iter().enumerate() {
            let mut changed = row();
            other(&mut changed);
            assert_ne!(plain, AuditHash::START.link(&changed), "column {index}");
        }
    }

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place = AuditPlace { seq: 12, hash: AuditHash::START.link(&row()) };
        assert_eq!(AuditPlace::parse(&place.to_string()), Some(place));
        for wrong in ["", "12", "12:", "x:00", "12:zz", &place.to_string().to_uppercase()] {
            assert_eq!(AuditPlace::parse(wrong), None, "{wrong}");
        }
    }
}
