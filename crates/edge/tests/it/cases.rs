//! Faults that were reported in public, as tests, by their number.

use std::sync::Arc;
use std::time::Duration;

use edge::limiter::store::memory::MemoryStore;
use edge::limiter::testkit::FaultyStore;
use edge::limiter::{Limits, Wait};
use edge::{PolicySource, Refusal};
use serde_json::json;
use wire::plan::LimitValue;
use wire::policy::KeyState;
use wire::rollout::Phase;

use super::plane::Plane;
use super::world::{Setting, World, burst, file, plan, route, until};

/// A control plane with the client `acme` under a plan `pro`, and its key.
fn plane_with(capacity: u64, refill: &str) -> Arc<Plane> {
    let plane = Plane::new();
    plane.put_plan("pro", capacity, refill);
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    plane
}

#[tokio::test]
async fn c06_a_plan_that_is_cut_or_raised_is_in_force_at_once_and_shown_so() {
    let plane = plane_with(1_000, "1/s");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let shown = async || {
        let bucket = world.edge.inspect("acme", None).await.unwrap().bucket.unwrap();
        let Limits { burst, .. } = bucket.plan.limits;
        (bucket.levels.burst.tokens, burst.capacity().get())
    };
    assert_eq!(world.admitted("key-a", &orders, 100).await, 100);
    assert_eq!(shown().await, (900, 1_000));

    let revision = plane.put_plan("pro", 10, "1/s");
    until("the cut", || plane.acknowledged() >= revision).await;
    assert_eq!(shown().await, (10, 10), "before anybody has asked");
    assert_eq!(world.admitted("key-a", &orders, 12).await, 10);
    assert_eq!(shown().await, (0, 10));

    // Raised while nothing is left, and cut again: what was used stays used, nothing underflows.
    for (capacity, left) in [(50, 40), (20, 20), (5, 5)] {
        let revision = plane.put_plan("pro", capacity, "1/s");
        until("the change", || plane.acknowledged() >= revision).await;
        assert_eq!(shown().await, (left, capacity));
        assert!(world.request("key-a", &orders).await.is_ok());
        assert_eq!(shown().await, (left - 1, capacity));
    }
}

#[tokio::test]
async fn c08_a_plan_that_no_api_would_write_is_denied_and_counted_and_never_unlimited() {
    let limit = |capacity, tokens, per_us| Some(LimitValue { capacity, tokens, per_us });
    for bad in [
        None,
        limit(0, 0, 1),
        limit(0, 0, 0),
        limit(5, 0, 0),
        limit(0, 1, 1_000_000),
        limit(5, 1, 0),
        limit(5, u64::MAX, 1_000_000),
        limit(u64::MAX, 1, 1_000_000),
    ] {
        let plane = Plane::new();
        let mut value = burst("pro", 1, "1/s").to_value(0);
        (value.burst, value.failure) = (bad, "open".to_owned());
        plane.put_plan_value(value);
        plane.put_client("acme", "pro");
        plane.put_key("key-a", "acme", KeyState::Active);
        let world = World::of_plane(plane).await;
        for _ in 0..7 {
            let refused = world.request("key-a", &route("orders")).await;
            assert_eq!(refused, Err(Refusal::PlanInvalid), "{bad:?}");
        }
        assert_eq!(world.edge.metrics().refusals(&Refusal::PlanInvalid), 7);
        assert!(world.store.is_empty(), "no bucket of {bad:?}");
    }
    // (5, 0) is a plan: five requests, and then no time to come back at.
    let world = World::of_plane(plane_with(5, "0")).await;
    assert_eq!(world.admitted("key-a", &route("orders"), 5).await, 5);
    for _ in 0..2 {
        let denied = world.request("key-a", &route("orders")).await;
        assert_eq!(denied, Err(Refusal::Denied { wait: Wait::Never }));
    }
}

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

    // With some left, exactly those are left.
    let world = World::of_file(load(1));
    assert_eq!(world.admitted("key-a", &orders, 4).await, 4);
    for revision in 2..=6 {
        world.edge.load_file(&load(revision));
    }
    assert_eq!(world.admitted("key-a", &orders, 12).await, 6);

    let plane = plane_with(10, "0");
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
    let plane = plane_with(5, "1/d");
    plane.put_rollout(&[(None, Phase::Shadow)], 10_000);
    let setting = Setting::default();
    let store = Arc::new(FaultyStore::new(MemoryStore::new(setting.clock.clone())));
    let world = World::over(store, setting, PolicySource::ControlPlane(plane));
    until("the policy", || world.edge.is_ready()).await;
    assert_eq!(world.admitted("key-a", &route("orders"), 20).await, 20);
    assert_eq!(world.store.calls().len(), 5, "all fifteen denials were answered from memory");
    let edge = Arc::clone(&world.edge);
    let shelf = world.finish().await;
    let cell = shelf.total("acme");
    assert_eq!((cell.requests, cell.edge_denied, cell.rejected), (20, 15, 0));
    let counted = |outcome, phase| edge.metrics().decisions(outcome, "store", phase);
    assert_eq!(counted("deny", Phase::Shadow), 15);
    assert_eq!(counted("allow", Phase::Shadow), 5);
    assert_eq!(counted("deny", Phase::Enforce), 0);
}
