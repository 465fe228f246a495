//! What is written stays small, and what cannot be remembered one by one is written whole.

use std::sync::Arc;

use limiter_core::VersionSource;
use limiter_core::testkit::ManualClock;
use wire::key::{KeyEnv, KeyHash};
use wire::policy::{
    Change, ClientState, ClientValue, FoundKey, KeyState, KeyValue, Object, SecretValue,
};

use super::*;
use crate::key_cache::CacheBounds;
use crate::metrics::EdgeMetrics;

fn cache() -> KeyCache {
    let metrics = EdgeMetrics::register(&mut prometheus_client::registry::Registry::default());
    let clock = Arc::new(ManualClock::default());
    let keys = KeyCache::new(CacheBounds::default(), VersionSource::ControlPlane, clock, metrics);
    keys.remember_changes();
    keys.in_step(AsOf { history: "h".to_owned(), revision: 1 });
    keys
}

fn hash(number: u32) -> KeyHash {
    let mut bytes = [7; 32];
    bytes.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
    KeyHash::from_bytes(bytes)
}

fn key(number: u32, state: KeyState, revision: u64) -> KeyValue {
    KeyValue {
        id: format!("id-{number}"),
        client: "acme".to_owned(),
        env: KeyEnv::Live,
        state,
        expires_at: None,
        secrets: vec![SecretValue { hash: hash(number), valid_until: None }],
        revision,
    }
}

fn found(number: u32) -> FoundKey {
    FoundKey { hash: hash(number), key: key(number, KeyState::Active, 1), client: acme() }
}

fn acme() -> ClientValue {
    serde_json::from_value(serde_json::json!({
        "id": "acme", "plan": "pro", "state": ClientState::Active, "revision": 1,
    }))
    .unwrap()
}

fn lines(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join(LOG)).unwrap().lines().count()
}

fn load(folder: &Path) -> ReadLog {
    Folder::at(folder).unwrap().read().keys
}

/// Leaves a folder with so many keys, as a process would.
pub(super) fn leave(path: &Path, known: u32) {
    let (mut folder, keys) = (Folder::at(path).unwrap(), cache());
    keys.fill((0..known).map(found).collect());
    folder.save(&PlanBook::default(), &keys, 0).unwrap();
    assert_eq!(load(path).keys.len(), usize::try_from(known).unwrap());
}

#[test]
fn when_the_control_plane_was_heard_is_written_once_a_minute() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut folder, keys) = (Folder::at(temporary.path()).unwrap(), cache());
    for (heard_ms, written) in [(5_000, 5_000), (64_999, 5_000), (65_000, 65_000), (9, 65_000)] {
        folder.save(&PlanBook::default(), &keys, heard_ms).unwrap();
        let read = Folder::at(temporary.path()).unwrap().read();
        assert_eq!(read.heard_ms, written, "heard at {heard_ms}");
    }
}

#[test]
fn a_log_of_many_changes_is_written_anew_and_says_the_same() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path();
    let (mut folder, keys) = (Folder::at(path).unwrap(), cache());
    keys.fill((0..10).map(found).collect());
    let mut most = 0;
    for round in 0..60_u64 {
        let changes = (0..250_u64).map(|step| {
            let revision = 2 + round * 250 + step;
            let number = u32::try_from(step % 10).unwrap();
            let state = if step % 2 == 0 { KeyState::Disabled } else { KeyState::Active };
            let value = Some(key(number, state, revision));
            Change { revision, object: Object::Key { id: format!("id-{number}"), value } }
        });
        for change in changes {
            keys.apply(std::slice::from_ref(&change), change.revision);
            folder.save_keys(&keys).unwrap();
        }
        most = most.max(lines(path));
    }
    assert!(most <= LINES_MAX + 2 * 10 + 250, "{most} lines");
    assert!(lines(path) < most, "it was written anew");
    let log = load(path);
    assert_eq!((log.keys.len(), log.lost, log.torn), (10, 0, false));
    assert_eq!(log.keys[&hash(0)].state, KeyState::Disabled);
    assert_eq!(log.keys[&hash(1)].state, KeyState::Active);
    assert!(log.keys.values().all(|line| line.revision > 14_990));
}

#[test]
fn more_changes_than_are_remembered_are_all_written() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut folder, keys) = (Folder::at(temporary.path()).unwrap(), cache());
    folder.save_keys(&keys).unwrap();
    keys.fill((0..70_000).map(found).collect());
    folder.save_keys(&keys).unwrap();
    let log = load(temporary.path());
    assert_eq!((log.keys.len(), log.lost, log.torn), (70_000, 0, false));
    assert_eq!(log.clients["acme"].plan, "pro");
    // And then only what changes.
    let before = lines(temporary.path());
    let value = Some(key(5, KeyState::Revoked, 9));
    keys.apply(&[Change { revision: 9, object: Object::Key { id: "id-5".to_owned(), value } }], 9);
    folder.save_keys(&keys).unwrap();
    assert_eq!(lines(temporary.path()), before + 1);
    let again = cache();
    assert_eq!(again.restore(load(temporary.path())), 70_000);
    let known = again.get(&hash(5), 0).unwrap();
    assert!(!known.opens(0) && again.get(&hash(6), 0).unwrap().opens(0));
}
