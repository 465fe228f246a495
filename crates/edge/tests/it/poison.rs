//! An object that is not valid is skipped alone: its last valid version stays, everybody else
//! notices nothing, and the gateway names it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use wire::policy::{KeyState, Object};

use super::plane::Plane;
use super::world::{World, hash, route, until};

/// What would be told if somebody wrote this into the database.
fn object(kind: &str, id: &str, value: &Value) -> Object {
    let change = json!({
        "revision": 1, "object": { "kind": kind, "id": id, "value": value },
    });
    serde_json::from_value::<wire::policy::Change>(change).unwrap().object
}

fn named(plane: &Plane) -> Vec<(String, String)> {
    let requests = plane.requests.lock();
    let rejected = requests.last().unwrap().rejected.iter();
    rejected.map(|report| (report.kind.clone(), report.id.clone())).collect()
}

#[tokio::test]
async fn what_is_told_of_a_key_or_client_and_does_not_read_is_asked_for() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000, "0");
    plane.put_client("acme", "pro");
    plane.put_client("zeta", "pro");
    for (key, client) in [("key-a", "acme"), ("key-b", "acme"), ("key-z", "zeta")] {
        plane.put_key(key, client, KeyState::Active);
    }
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    for key in ["key-a", "key-b", "key-z"] {
        assert_eq!(world.request(key, &orders).await, Ok(()));
    }
    let before = plane.lookups();
    for (kind, id, value) in [
        ("key", "id-key-a", json!({ "id": "id-key-a", "state": "burnt" })),
        ("key", "id-key-b", json!("no object")),
        ("client", "zeta", json!({ "id": "zeta", "plan": -1 })),
        ("cloud", "nine", json!({})),
    ] {
        let revision = plane.put_anything(|_| object(kind, id, &value));
        until("the acknowledgement", || plane.acknowledged() >= revision).await;
        assert!(named(&plane).contains(&(kind.to_owned(), id.to_owned())), "{:?}", named(&plane));
        for key in ["key-a", "key-b", "key-z"] {
            assert_eq!(world.request(key, &orders).await, Ok(()), "{key} after {kind} {id}");
        }
    }
    until("questions about what is unclear", || plane.lookups() >= before + 3).await;
    // What the rows say then is what holds, whatever was told of them.
    plane.quietly(|| plane.put_key("key-a", "acme", KeyState::Revoked));
    let bad = plane.put_anything(|_| object("key", "id-key-a", &json!([])));
    until("the acknowledgement", || plane.acknowledged() >= bad).await;
    until("the answer about it", || plane.lookups() >= before + 4).await;
    let mended = plane.put_client("zeta", "pro");
    until("the acknowledgement", || plane.acknowledged() >= mended).await;
    assert_eq!(world.request("key-a", &orders).await, Err(edge::Refusal::KeyInvalid));
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
    assert!(!named(&plane).iter().any(|(kind, _)| kind == "client"), "mended ones are not named");
}

#[tokio::test]
async fn a_look_up_whose_answer_is_not_valid_is_none_for_that_key_alone() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    plane.put_key_of("key-x", "acme", "an id with spaces");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let (good, bad) =
        tokio::join!(world.request("key-a", &orders), world.request("key-x", &orders));
    assert_eq!(good, Ok(()));
    assert!(matches!(bad, Err(edge::Refusal::KeyUnverified { .. })), "{bad:?}");
}

#[tokio::test]
async fn a_revision_that_is_yet_to_come_hides_no_revocation() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    plane.put_key("key-b", "acme", KeyState::Active);
    plane.set_key_revision("key-a", u64::MAX >> 1);
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let asked = world.request("key-a", &orders).await;
    assert!(matches!(asked, Err(edge::Refusal::KeyUnverified { .. })), "{asked:?}");
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
    let value = json!({
        "id": "id-key-b", "client": "acme", "env": "live", "state": "active",
        "secrets": [{ "hash": hash("key-b") }], "revision": u64::MAX >> 1,
    });
    let told = plane.put_anything(|_| object("key", "id-key-b", &value));
    until("the acknowledgement", || plane.acknowledged() >= told).await;
    assert!(named(&plane).contains(&("key".to_owned(), "id-key-b".to_owned())));
    assert_eq!(world.request("key-b", &orders).await, Ok(()), "the last valid version");
    for key in ["key-a", "key-b"] {
        let revoked = plane.put_key(key, "acme", KeyState::Revoked);
        until("the acknowledgement", || plane.acknowledged() >= revoked).await;
        assert_eq!(world.request(key, &orders).await, Err(edge::Refusal::KeyInvalid), "{key}");
    }
}

#[tokio::test]
async fn an_answer_from_before_a_change_that_does_not_read_is_asked_for_again() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    let world = Arc::new(World::of_plane(plane.clone()).await);
    let gate = Arc::new(Semaphore::new(0));
    *plane.hold.lock() = Some(Arc::clone(&gate));
    let asking = Arc::clone(&world);
    let mut callers = JoinSet::new();
    callers.spawn(async move { asking.request("key-a", &route("orders")).await });
    until("an answer on its way", || plane.held.load(Ordering::SeqCst) == 1).await;
    plane.quietly(|| plane.put_key("key-a", "acme", KeyState::Revoked));
    let bad = plane.put_anything(|_| object("key", "id-key-a", &json!("no object")));
    until("the acknowledgement", || plane.acknowledged() >= bad).await;
    gate.add_permits(100);
    let answer = callers.join_next().await.unwrap().unwrap();
    assert_eq!(answer, Err(edge::Refusal::KeyInvalid));
    assert_eq!(world.request("key-a", &route("orders")).await, Err(edge::Refusal::KeyInvalid));
}
