//! Many hashes in one look-up, on both back ends.

use std::time::Duration;

use wire::client::plans::ImportedKey;
use wire::key::{KeyEnv, KeyHash, Pepper};
use wire::policy::{ClientState, KeyState};

use crate::api::Api;
use crate::catalog::HOUR;

/// Every look-up has this many that nobody has.
const UNKNOWN: u16 = 30;

pub(crate) async fn a_thousand_hashes_are_answered_each_with_its_own(api: &Api) {
    let pepper = std::fs::read(api.state_dir.path().join("pepper")).unwrap();
    let pepper = Pepper::from_bytes(&pepper).unwrap();
    api.plan("pro").await;
    for client in 0..7 {
        api.client(&format!("c{client}"), "pro").await;
    }
    let client_of = |n: u16| format!("c{}", n % 7);
    let sha256 = |n: u16| {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        bytes
    };
    let keys: Vec<ImportedKey> = (UNKNOWN..1_000)
        .map(|n| ImportedKey {
            sha256: sha256(n).iter().map(|byte| format!("{byte:02x}")).collect(),
            client: client_of(n),
            env: KeyEnv::Live,
            expires_at: None,
        })
        .collect();
    let made = api.operator.import_keys(&keys, "move").await.unwrap().items;
    let id_of = |n: u16| made[usize::from(n - UNKNOWN)].id.clone();
    api.operator.suspend("c3", "abuse").await.unwrap();
    api.operator.revoke_key(&id_of(500), "leak").await.unwrap();
    let rotated = api.support.rotate_key(&id_of(600), Some(HOUR), "quarter").await.unwrap();

    let hashes: Vec<KeyHash> =
        (0..1_000).map(|n| KeyHash::of_imported(&sha256(n), &pepper)).collect();
    let answer = api.gateway.lookup(hashes.clone(), Duration::from_secs(60)).await.unwrap();
    assert_eq!(answer.missing, hashes[..usize::from(UNKNOWN)]);
    assert_eq!(answer.found.len(), usize::from(1_000 - UNKNOWN));
    for (n, found) in (UNKNOWN..1_000).zip(&answer.found) {
        assert_eq!((found.hash, &found.key.id), (hashes[usize::from(n)], &id_of(n)), "{n}");
        assert_eq!((&found.key.client, &found.client.id), (&client_of(n), &client_of(n)), "{n}");
        let revoked = found.key.state == KeyState::Revoked;
        let suspended = found.client.state == ClientState::Suspended;
        assert_eq!((revoked, suspended), (n == 500, n % 7 == 3), "{n}");
        let secrets: Vec<KeyHash> = found.key.secrets.iter().map(|secret| secret.hash).collect();
        assert_eq!(secrets.len(), if n == 600 { 2 } else { 1 }, "{n}");
        assert!(secrets.contains(&found.hash) && secrets.is_sorted_by_key(|hash| *hash.bytes()));
    }
    // One alone, and the same one by its other secret.
    let ours = KeyHash::of_key(&rotated.key, &pepper);
    let both = vec![ours, hashes[600], hashes[600]];
    let found = api.gateway.lookup(both, Duration::from_secs(5)).await.unwrap().found;
    assert_eq!(found.len(), 3);
    let alone = api.gateway.lookup(vec![ours], Duration::from_secs(5)).await.unwrap().found;
    assert_eq!((alone.len(), &alone[0]), (1, &found[0]));
}
