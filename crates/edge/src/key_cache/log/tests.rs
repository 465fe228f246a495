//! A log that was cut, damaged or replaced never says more than what was true at its end.

use proptest::prelude::*;
use wire::policy::{ClientState, OverrideValue};

use super::*;

fn hash(number: u8) -> KeyHash {
    KeyHash::from_bytes([number; 32])
}

fn key(number: u8, state: KeyState, revision: u64) -> Entry {
    Entry::Key(KeyLine {
        hash: hash(number),
        key_id: format!("id-{number}"),
        client: "acme".to_owned(),
        state,
        until_ms: number.is_multiple_of(2).then_some(9_000),
        revision,
        used_ms: 5,
    })
}

fn client(plan: &str) -> Entry {
    Entry::Client(Arc::new(ClientValue {
        id: "acme".to_owned(),
        plan: plan.to_owned(),
        state: ClientState::Active,
        overridden: Some(OverrideValue {
            burst: None,
            sustained: None,
            failure: Some("open".to_owned()),
            expires_at: 9_000,
        }),
        reset_revision: 0,
        revision: 3,
    }))
}

fn written(id: u64, entries: &[Entry]) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    let mut end = begin(&mut bytes, id).unwrap();
    for entry in entries {
        entry.write(&mut bytes, &mut end).unwrap();
    }
    (bytes, end)
}

#[test]
fn a_whole_log_says_what_was_written_last() {
    let entries = [
        client("free"),
        key(1, KeyState::Active, 4),
        key(2, KeyState::Active, 5),
        key(3, KeyState::Disabled, 6),
        client("pro"),
        key(1, KeyState::Revoked, 7),
        Entry::Gone(hash(2)),
    ];
    let (bytes, end) = written(8, &entries);
    let log = read(&bytes[..], Some(end)).unwrap();
    assert_eq!((log.end, log.lost, log.torn), (end, 0, false));
    assert_eq!(log.clients["acme"].plan, "pro");
    assert_eq!(Entry::Key(log.keys[&hash(1)].clone()), key(1, KeyState::Revoked, 7));
    assert_eq!(Entry::Key(log.keys[&hash(3)].clone()), key(3, KeyState::Disabled, 6));
    assert!(!log.keys.contains_key(&hash(2)));
}

#[test]
fn no_secret_and_no_hash_but_the_stored_one_stands_in_it() {
    let (bytes, _) = written(1, &[client("pro"), key(7, KeyState::Active, 1)]);
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains(&hash(7).to_hex()) && !text.contains("weir_live_"));
}

#[test]
fn a_tail_that_was_never_committed_is_left_out_alone() {
    let (bytes, end) = written(1, &[client("pro"), key(1, KeyState::Active, 4)]);
    let mut torn = bytes.clone();
    let mut next = end;
    key(2, KeyState::Active, 5).write(&mut torn, &mut next).unwrap();
    torn.truncate(torn.len() - 3);
    let log = read(&torn[..], Some(end)).unwrap();
    assert_eq!((log.keys.len(), log.lost, log.torn), (1, 0, true));
}

#[test]
fn an_older_log_in_the_place_of_a_newer_one_says_nothing() {
    let (old, _) = written(3, &[client("pro"), key(1, KeyState::Active, 4)]);
    let (_, end) = written(4, &[client("pro"), key(1, KeyState::Revoked, 5)]);
    let log = read(&old[..], Some(end)).unwrap();
    assert!(log.keys.is_empty() && log.lost > 0, "{log:?}");
    assert_eq!(log.end.id, 4, "the next one is numbered after both");
    let absent = read(&b""[..], Some(end)).unwrap();
    assert!(absent.torn && absent.lost > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Keys are made and revoked; then one byte is flipped or the end is cut off.
    #[test]
    fn no_damage_brings_a_revoked_key_back(
        steps in prop::collection::vec((0..6_u8, any::<bool>()), 1..40),
        at in any::<prop::sample::Index>(),
        flip in prop::option::of(1..=255_u8),
    ) {
        let mut entries = vec![client("pro")];
        let mut revoked = [false; 6];
        for (revision, (number, revokes)) in steps.iter().enumerate() {
            let state = if *revokes || revoked[usize::from(*number)] {
                KeyState::Revoked
            } else {
                KeyState::Active
            };
            revoked[usize::from(*number)] |= *revokes;
            entries.push(key(*number, state, revision as u64 + 1));
        }
        let (mut bytes, end) = written(1, &entries);
        let at = at.index(bytes.len());
        match flip {
            Some(bits) => bytes[at] ^= bits,
            None => bytes.truncate(at),
        }
        let log = read(&bytes[..], Some(end)).unwrap();
        let is_back = |known: &KeyLine| {
            known.state != KeyState::Revoked && revoked[usize::from(known.hash.bytes()[0])]
        };
        prop_assert!(!log.keys.values().any(is_back), "a revoked key is back");
    }
}
