//! Faults that were reported in public, as tests, by their number.

use std::time::Duration;

use edge::Refusal;
use serde_json::json;
use wire::policy::KeyState;
use wire::rollout::Phase;

use super::plane::Plane;
use super::world::{World, burst, file, plan, route, until};

#[tokio::test]
async fn c09_identities_that_join_to_the_same_text_do_not_share_a_bucket() {
    let each = plan("each", &json!({ "burst": { "capacity": 3, "refill": "0" }, "scope": "key" }));
    // Keys are named after their text, so the pairs are ("a", "b:c") and ("a:b", "c").
    let mut policy =
        file(1, &[each], &[("a", "each"), ("a:b", "each")], &[("b:c", "a"), ("c", "a:b")]);
    for key in &mut policy.keys {
        key.id = key.id.trim_start_matches("id-").to_owned();
    }
    let world = World::of_file(policy);
    let orders = route("orders");
    assert_eq!(world.admitted("b:c", &orders, 5).await, 3);
    assert_eq!(world.admitted("c", &orders, 5).await, 3, "draining one leaves the other full");
}

#[tokio::test]
async fn c09_keys_with_braces_and_of_full_length_are_keys_like_any_other() {
    let long = "A".repeat(256);
    let keys = [("k{x}y", "one"), ("{}", "two"), (long.as_str(), "three")];
    let clients = [("one", "pro"), ("two", "pro"), ("three", "pro")];
    let world = World::of_file(file(1, &[burst("pro", 2, "0")], &clients, &keys));
    for (key, _client) in keys {
        assert_eq!(world.admitted(key, &route("orders"), 4).await, 2);
    }
}

#[tokio::test]
async fn c11_one_client_has_one_bucket_over_routes_and_policy_revisions() {
    let plane = Plane::new();
    plane.put_plan("pro", 9, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    let routes = ["orders", "billing", "search"].map(route);
    let mut admitted = 0;
    for round in 0..9 {
        if round == 4 {
            let revision = plane.put_plan("pro", 9, "0");
            until("the new version", || plane.acknowledged() >= revision).await;
        }
        for route in &routes {
            admitted += world.admitted("key-a", route, 3).await;
        }
    }
    assert_eq!(admitted, 9, "of 81");
    assert_eq!(world.store.len(), 1, "one bucket before and after");
}

#[tokio::test]
async fn c26_an_unknown_key_is_found_as_soon_as_the_feed_tells_of_it() {
    let plane = Plane::new();
    plane.put_plan("pro", 10, "0");
    plane.put_client("acme", "pro");
    let worlds = [World::of_plane(plane.clone()).await, World::of_plane(plane.clone()).await];
    let orders = route("orders");
    for world in &worlds {
        assert_eq!(world.request("key-new", &orders).await, Err(Refusal::KeyInvalid));
    }
    // No clock moves: nothing but the feed can end the refusal.
    let revision = plane.put_key("key-new", "acme", KeyState::Active);
    for world in &worlds {
        until("the feed", || world.edge.revision() >= revision).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(world.request("key-new", &orders).await, Ok(()));
    }
}

#[tokio::test]
async fn c26_a_thousand_requests_with_one_unknown_key_are_five_look_ups_at_most() {
    let plane = Plane::new();
    plane.put_plan("pro", 10, "0");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    for _burst in 0..10 {
        let callers = (0..100).map(|_| world.request("key-none", &orders));
        let results = futures_util::future::join_all(callers).await;
        assert!(results.iter().all(|result| *result == Err(Refusal::KeyInvalid)));
        world.clock.advance(Duration::from_secs(1));
    }
    assert!(plane.lookups() <= 5, "{} look-ups", plane.lookups());
}

#[tokio::test]
async fn c30_a_drained_bucket_stays_drained_over_reloads_and_changes_of_others() {
    let plans = |other: u64| [burst("pro", 10, "0"), burst("other", other, "1/s")];
    let load =
        |revision: u64| file(revision, &plans(revision), &[("acme", "pro")], &[("key-a", "acme")]);
    let world = World::of_file(load(1));
    let orders = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 12).await, 10);
    for revision in 2..=6 {
        world.edge.load_file(&load(revision));
        assert_eq!(world.edge.revision(), revision);
        let refused = world.request("key-a", &orders).await;
        assert!(matches!(refused, Err(Refusal::Denied { .. })), "{refused:?}");
        let book = world.edge.book().unwrap();
        assert_eq!(book.plans().get("pro"), Some(&1), "a reload is no change of it");
        assert_eq!(book.plans().get("other"), Some(&revision));
    }

    let plane = Plane::new();
    plane.put_plan("pro", 10, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    assert_eq!(world.admitted("key-a", &orders, 12).await, 10);
    for edit in 1..=5 {
        let revision = plane.put_plan("other", edit, "1/s");
        until("the edit", || plane.acknowledged() >= revision).await;
        let refused = world.request("key-a", &orders).await;
        assert!(matches!(refused, Err(Refusal::Denied { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn c31_would_be_denials_are_counted_by_every_path_also_the_local_one() {
    let plane = Plane::new();
    plane.put_plan("pro", 5, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    plane.put_rollout(&[(None, Phase::Shadow)], 10_000);
    let world = World::of_plane(plane).await;
    assert_eq!(world.admitted("key-a", &route("orders"), 20).await, 20);
    let edge = std::sync::Arc::clone(&world.edge);
    let shelf = world.finish().await;
    let cell = shelf.total("acme");
    assert_eq!((cell.requests, cell.edge_denied, cell.rejected), (20, 15, 0));
    let counted = |outcome, phase| edge.metrics().decisions(outcome, "store", phase);
    assert_eq!(counted("deny", Phase::Shadow), 15);
    assert_eq!(counted("allow", Phase::Shadow), 5);
    assert_eq!(counted("deny", Phase::Enforce), 0);
}
