//! An object that is not valid is skipped alone: its last valid version stays, everybody else
//! notices nothing, and the gateway names it.

use serde_json::{Value, json};
use wire::policy::{KeyState, Object};

use super::plane::Plane;
use super::world::{World, route, until};

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
