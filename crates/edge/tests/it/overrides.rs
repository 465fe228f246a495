//! A client's own limits hold until their end, and keys that were made elsewhere open like ours.

use std::sync::Arc;
use std::time::Duration;

use edge::Refusal;
use edge::limiter::Clock as _;
use wire::key::KeyHash;
use wire::plan::LimitValue;
use wire::policy::{FeedRequest, KeyState, KeyValue, OverrideValue, SecretValue};

use super::plane::Plane;
use super::world::{World, forwarded, pepper, route, until};

fn plane_with(key: &str) -> Arc<Plane> {
    let plane = Plane::new();
    plane.put_plan("pro", 10, "0");
    plane.put_client("acme", "pro");
    plane.put_key(key, "acme", KeyState::Active);
    plane
}

fn burst_of(capacity: u64, expires_at: u64) -> OverrideValue {
    let burst = Some(LimitValue { capacity, tokens: 0, per_us: 1 });
    OverrideValue { burst, sustained: None, failure: None, expires_at }
}

#[tokio::test]
async fn own_limits_hold_at_once_and_end_by_the_gateways_clock_without_a_word() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 12).await, 10);
    let ends = world.clock.now().us() / 1_000 + 60_000;
    let revision = plane.put_override("acme", Some(burst_of(15, ends)));
    until("the override", || plane.acknowledged() >= revision).await;
    assert_eq!(world.admitted("key-a", &orders, 12).await, 5, "five more than the plan");
    let told = forwarded_or_told(&world).await;
    assert_eq!(told, Some(15), "callers are told the limit that holds");

    let feeds = plane.requests.lock().len();
    world.clock.advance(Duration::from_secs(61));
    assert_eq!(world.admitted("key-a", &orders, 3).await, 0, "what was used stays used");
    let bucket = world.edge.inspect("acme", None).await.unwrap().bucket.unwrap();
    assert_eq!(bucket.plan.limits.burst.capacity().get(), 10, "the plan's again");
    assert_eq!(bucket.plan.version.0 % 2, 1, "only an end is odd");
    assert_eq!(plane.requests.lock().len(), feeds, "nobody had to be asked");

    let revision = plane.put_override("acme", None);
    until("the end is known", || plane.acknowledged() >= revision).await;
    let after = world.edge.inspect("acme", None).await.unwrap().bucket.unwrap();
    assert!(after.plan.version > bucket.plan.version, "and the version still grows");
}

/// The burst capacity that a caller of a fresh bucket is told.
async fn forwarded_or_told(world: &World) -> Option<u64> {
    match world.admit("key-a", &route("orders")).await {
        edge::Admission::Forward(ticket) | edge::Admission::Refuse(_, Some(ticket)) => {
            ticket.told().map(|told| told.burst.capacity)
        }
        edge::Admission::Refuse(_, None) => None,
    }
}

#[tokio::test]
async fn own_limits_that_cannot_be_right_leave_that_client_as_it_was_and_are_named() {
    let plane = plane_with("key-a");
    plane.put_client("zeta", "pro");
    plane.put_key("key-z", "zeta", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    let revision = plane.put_override("acme", Some(burst_of(0, u64::MAX)));
    until("the override", || plane.acknowledged() >= revision).await;
    assert_eq!(forwarded_or_told(&world).await, Some(10), "the last valid version stays");
    assert_eq!(world.request("key-z", &orders).await, Ok(()));
    let named = |request: &FeedRequest| request.rejected.iter().any(|one| one.id == "acme");
    until("it is named", || plane.requests.lock().last().is_some_and(named)).await;
    let revision = plane.put_override("acme", None);
    until("it is mended", || plane.acknowledged() >= revision).await;
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
}

fn imported(text: &str, state: KeyState) -> KeyValue {
    let hash = KeyHash::of_key_if_imported(text, &pepper());
    KeyValue {
        id: "imported-1".to_owned(),
        client: "acme".to_owned(),
        env: wire::key::KeyEnv::Live,
        state,
        expires_at: None,
        secrets: vec![SecretValue { hash, valid_until: None }],
        revision: 0,
    }
}

#[tokio::test]
async fn a_key_that_was_made_elsewhere_opens_by_its_sha256_and_ends_when_revoked() {
    let plane = plane_with("key-a");
    let key = "sk_live_51H8xYz";
    plane.put_key_value(imported(key, KeyState::Active));
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let ticket = forwarded(world.admit(key, &orders).await);
    assert_eq!((ticket.client(), ticket.key_id()), (Some("acme"), Some("imported-1")));
    let lookups = plane.lookups();
    assert_eq!(world.admitted(key, &orders, 5).await, 5);
    assert_eq!(plane.lookups(), lookups, "it is known from then on");
    let pass = world.edge.pass(edge::Presented::Key(key));
    assert!(world.edge.may_stay(pass).await);

    let revision = plane.put_key_value(imported(key, KeyState::Revoked));
    until("the revocation", || plane.acknowledged() >= revision).await;
    assert_eq!(world.request(key, &orders).await, Err(Refusal::KeyInvalid));
    assert!(!world.edge.may_stay(pass).await, "connections end with it");
}

#[tokio::test]
async fn both_secrets_of_a_rotated_key_share_one_bucket_until_the_old_one_ends() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let ends = world.clock.now().us() / 1_000 + 60_000;
    assert_eq!(world.admitted("key-a", &orders, 2).await, 2);
    let secret =
        |text: &str, valid_until| SecretValue { hash: super::world::hash(text), valid_until };
    let rotated = KeyValue {
        id: "id-key-a".to_owned(),
        secrets: vec![secret("key-a", Some(ends)), secret("key-b", None)],
        ..imported("x", KeyState::Active)
    };
    let revision = plane.put_key_value(rotated);
    until("the rotation", || plane.acknowledged() >= revision).await;
    assert_eq!(world.admitted("key-b", &orders, 4).await, 4);
    assert_eq!(world.admitted("key-a", &orders, 10).await, 4, "ten in all");
    world.clock.advance(Duration::from_secs(61));
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::KeyInvalid));
    let denied = world.request("key-b", &orders).await;
    assert!(matches!(denied, Err(Refusal::Denied { .. })), "{denied:?}");
}

#[tokio::test]
async fn a_thousand_requests_with_one_unknown_foreign_key_ask_at_most_five_times() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    for _ in 0..1_000 {
        assert_eq!(world.request("nobodys-key", &orders).await, Err(Refusal::KeyInvalid));
    }
    assert!(plane.lookups() <= 5, "{} look-ups", plane.lookups());
}
