//! Keys: who is let in, who is not, and who is asked about it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use edge::{Admission, AuthMode, CacheBounds, Call, PolicySource, Presented, Refusal, RouteTerms};
use tokio::sync::Semaphore;
use wire::key::{ApiKey, KeyEnv, Pepper};
use wire::policy::{ClientState, KeyState, KeyValue, SecretValue};
use wire::rollout::Phase;

use super::plane::Plane;
use super::world::{Setting, World, burst, file, forwarded, hash, pepper, route, terms, until};

fn plane_with(key: &str) -> Arc<Plane> {
    let plane = Plane::new();
    plane.put_plan("pro", 100, "1/s");
    plane.put_client("acme", "pro");
    plane.put_key(key, "acme", KeyState::Active);
    plane
}

fn unverified(result: &Result<(), Refusal>) -> bool {
    matches!(result, Err(Refusal::KeyUnverified { .. }))
}

#[tokio::test]
async fn a_key_is_looked_up_once_and_then_known() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let ticket = forwarded(world.admit("key-a", &orders).await);
    assert_eq!(ticket.client(), Some("acme"));
    assert_eq!(ticket.plan(), Some("pro"));
    assert_eq!(ticket.key_id(), Some("id-key-a"));
    assert_eq!(ticket.phase(), Some(Phase::Enforce));
    assert_eq!(world.admitted("key-a", &orders, 50).await, 50);
    assert_eq!(plane.lookups(), 1);
}

#[tokio::test]
async fn an_invented_key_is_refused_without_asking_anybody() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let mut key = ApiKey::generate(KeyEnv::Live, &pepper()).unwrap().text;
    let last = key.pop().unwrap();
    key.push(if last == 'a' { 'b' } else { 'a' });
    assert_eq!(world.request(&key, &route("orders")).await, Err(Refusal::KeyInvalid));
    assert_eq!(plane.lookups(), 0);
}

#[tokio::test]
async fn with_another_pepper_no_caller_is_blamed_and_the_gateway_is_not_ready() {
    let plane = plane_with("key-a");
    plane.other_pepper.store(true, Ordering::Relaxed);
    let other = Pepper::from_bytes(&[9; 32]).unwrap();
    let world = World::new(Setting::default(), PolicySource::ControlPlane(plane.clone()));
    until("the mistake is told", || {
        plane.requests.lock().iter().any(|request| !request.rejected.is_empty())
    })
    .await;
    assert!(!world.edge.is_ready());
    let key = ApiKey::generate(KeyEnv::Live, &other).unwrap().text;
    assert_eq!(world.request(&key, &route("orders")).await, Err(Refusal::NoPolicy));

    plane.other_pepper.store(false, Ordering::Relaxed);
    plane.other_write();
    plane.forget_log();
    until("it is mended", || world.edge.is_ready()).await;
    assert_eq!(world.request("key-a", &route("orders")).await, Ok(()));
    let key = ApiKey::generate(KeyEnv::Live, &other).unwrap().text;
    assert_eq!(world.request(&key, &route("orders")).await, Err(Refusal::KeyInvalid));
}

#[tokio::test]
async fn without_a_key_nobody_gets_in_where_one_is_needed() {
    let world = World::of_file(file(1, &[], &[], &[]));
    let orders = route("orders");
    for presented in [Presented::Nothing, Presented::Address([127, 0, 0, 1].into())] {
        let call = Call { presented, route: &orders, method: "GET", request_id: "r" };
        match world.edge.admit(&call).await {
            Admission::Refuse(Refusal::KeyMissing, None) => {}
            other => panic!("{other:?}"),
        }
    }
    let open = Arc::new(RouteTerms { auth: AuthMode::None, ..terms("open") });
    let ticket = forwarded(world.admit("whatever", &open).await);
    assert_eq!((ticket.client(), ticket.told()), (None, None));
}

#[tokio::test]
async fn a_connection_may_stay_as_long_as_its_key_would_be_let_in() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    assert_eq!(world.request("key-a", &route("orders")).await, Ok(()));
    let pass = world.edge.pass(Presented::Key("key-a"));
    assert!(world.edge.may_stay(pass).await);
    for (state, stays) in [
        (KeyState::Disabled, false),
        (KeyState::Active, true),
        (KeyState::Revoked, false),
        (KeyState::Active, true),
    ] {
        let revision = plane.put_key("key-a", "acme", state);
        until("its acknowledgement", || plane.acknowledged() >= revision).await;
        assert_eq!(world.edge.may_stay(pass).await, stays, "{state:?}");
    }
    let revision = plane.put_client_state("acme", "pro", ClientState::Suspended);
    until("the suspension", || plane.acknowledged() >= revision).await;
    assert!(!world.edge.may_stay(pass).await);
    let nobodys = world.edge.pass(Presented::Key("nobodys"));
    assert!(!world.edge.may_stay(nobodys).await);
    // Nobody can be asked: that is no reason to close what was open.
    plane.away.store(true, Ordering::Relaxed);
    assert!(world.edge.may_stay(world.edge.pass(Presented::Key("left-the-cache"))).await);
    // Who showed no key is bound to none.
    for presented in [Presented::Nothing, Presented::Address([127, 0, 0, 1].into())] {
        assert!(world.edge.may_stay(world.edge.pass(presented)).await);
    }
}

#[tokio::test]
async fn disabled_revoked_expired_and_suspended_are_refused_when_the_feed_says_so() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    for (state, refused) in
        [(KeyState::Disabled, true), (KeyState::Active, false), (KeyState::Revoked, true)]
    {
        let revision = plane.put_key("key-a", "acme", state);
        until("the change", || world.edge.revision() >= revision).await;
        until("its acknowledgement", || plane.acknowledged() >= revision).await;
        let expected = if refused { Err(Refusal::KeyInvalid) } else { Ok(()) };
        assert_eq!(world.request("key-a", &orders).await, expected);
    }
    // Expiry is judged here, at the time of the request.
    let now_ms = edge::limiter::Clock::now(&*world.clock).us() / 1_000;
    let expiring = KeyValue {
        id: "id-key-b".to_owned(),
        client: "acme".to_owned(),
        env: KeyEnv::Live,
        state: KeyState::Active,
        expires_at: Some(now_ms + 10_000),
        secrets: vec![SecretValue { hash: hash("key-b"), valid_until: None }],
        revision: 0,
    };
    plane.put_key_value(expiring);
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(world.request("key-b", &orders).await, Err(Refusal::KeyInvalid));
    // The client may not call: another answer, and a ticket that says who it is.
    plane.put_key("key-c", "acme", KeyState::Active);
    assert_eq!(world.request("key-c", &orders).await, Ok(()));
    let revision = plane.put_client_state("acme", "pro", ClientState::Suspended);
    until("the suspension", || plane.acknowledged() >= revision).await;
    match world.admit("key-c", &orders).await {
        Admission::Refuse(Refusal::ClientSuspended, Some(ticket)) => {
            assert_eq!(ticket.client(), Some("acme"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_deleted_key_opens_nothing_and_a_rotated_secret_ends() {
    let plane = plane_with("key-a");
    plane.put_key("key-b", "acme", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
    plane.delete_key("key-a");
    let rotated = KeyValue {
        id: "id-key-b".to_owned(),
        client: "acme".to_owned(),
        env: KeyEnv::Live,
        state: KeyState::Active,
        expires_at: None,
        secrets: vec![SecretValue { hash: hash("key-b2"), valid_until: None }],
        revision: 0,
    };
    let revision = plane.put_key_value(rotated);
    until("both changes", || plane.acknowledged() >= revision).await;
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::KeyInvalid));
    assert_eq!(world.request("key-b", &orders).await, Err(Refusal::KeyInvalid));
    assert_eq!(world.request("key-b2", &orders).await, Ok(()));
}

#[tokio::test]
async fn a_known_key_needs_no_control_plane_and_an_unknown_one_is_never_let_in_without() {
    let plane = plane_with("key-a");
    plane.put_key("key-b", "acme", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    plane.away.store(true, Ordering::SeqCst);
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    assert!(unverified(&world.request("key-b", &orders).await));
    plane.away.store(false, Ordering::SeqCst);
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_of_a_control_plane_that_fails_change_nothing_and_are_not_made_worse() {
    const MINUTES: usize = 10;
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    plane.away.store(true, Ordering::SeqCst);
    let (feeds, lookups) = (plane.requests.lock().len(), plane.lookups());
    for second in 0..MINUTES * 60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.clock.advance(Duration::from_secs(1));
        assert_eq!(world.request("key-a", &orders).await, Ok(()), "after {second} s");
    }
    let asked = plane.requests.lock().len() - feeds;
    assert!((MINUTES * 6..=MINUTES * 60).contains(&asked), "{asked} times in {MINUTES} minutes");
    assert_eq!(plane.lookups(), lookups, "a known key asks nobody");

    plane.away.store(false, Ordering::SeqCst);
    let revision = plane.put_plan("other", 1, "1/s");
    until("the change after it", || plane.acknowledged() >= revision).await;
}

#[tokio::test]
async fn before_any_policy_there_is_no_decision() {
    let plane = plane_with("key-a");
    plane.away.store(true, Ordering::SeqCst);
    let source = PolicySource::ControlPlane(plane.clone());
    let world = World::new(Setting::default(), source);
    assert!(!world.edge.is_ready());
    // Whose key it is does not matter, so nobody is asked and nobody waits.
    assert_eq!(world.request("key-a", &route("orders")).await, Err(Refusal::NoPolicy));
    assert_eq!(plane.lookups(), 0);
    plane.away.store(false, Ordering::SeqCst);
    until("the policy", || world.edge.is_ready()).await;
    assert_eq!(world.request("key-a", &route("orders")).await, Ok(()));
}

#[tokio::test]
async fn a_look_up_that_was_overtaken_by_a_revocation_is_asked_again() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let hold = Arc::new(Semaphore::new(0));
    *plane.hold.lock() = Some(Arc::clone(&hold));
    let slow = world.request("key-a", &orders);
    let overtake = async {
        until("the look-up", || plane.held.load(Ordering::SeqCst) == 1).await;
        let revision = plane.put_key("key-a", "acme", KeyState::Revoked);
        until("the revocation", || plane.acknowledged() >= revision).await;
        *plane.hold.lock() = None;
        hold.add_permits(1);
    };
    let (slow, ()) = tokio::join!(slow, overtake);
    assert_eq!(slow, Err(Refusal::KeyInvalid), "the answer from before it must not count");
    assert_eq!(plane.lookups(), 2);
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::KeyInvalid));
}

#[tokio::test]
async fn a_look_up_that_was_overtaken_by_something_else_is_believed() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let hold = Arc::new(Semaphore::new(0));
    *plane.hold.lock() = Some(Arc::clone(&hold));
    let overtake = async {
        until("the look-up", || plane.held.load(Ordering::SeqCst) == 1).await;
        plane.put_client("globex", "pro");
        let revision = plane.put_key("key-z", "globex", KeyState::Active);
        until("the changes", || plane.acknowledged() >= revision).await;
        hold.add_permits(1);
    };
    let (slow, ()) = tokio::join!(world.request("key-a", &orders), overtake);
    assert_eq!(slow, Ok(()));
    assert_eq!(plane.lookups(), 1);
}

#[tokio::test]
async fn callers_with_one_unknown_key_share_one_look_up() {
    let plane = plane_with("key-a");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let hold = Arc::new(Semaphore::new(0));
    *plane.hold.lock() = Some(Arc::clone(&hold));
    let callers = async {
        let first = world.request("key-a", &orders);
        let others = async {
            until("the look-up", || plane.held.load(Ordering::SeqCst) == 1).await;
            let others = (0..50).map(|_| world.request("key-a", &orders));
            futures_util::future::join_all(others).await
        };
        let (first, mut all) = tokio::join!(first, others);
        all.push(first);
        all
    };
    let open = async {
        until("the look-up", || plane.held.load(Ordering::SeqCst) == 1).await;
        // Time for a second call, if there were one.
        tokio::time::sleep(Duration::from_millis(50)).await;
        hold.add_permits(100);
    };
    let (results, ()) = tokio::join!(callers, open);
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(plane.lookups(), 1);
}

#[tokio::test]
async fn a_look_up_that_nobody_answers_ends_at_its_deadline() {
    let plane = plane_with("key-a");
    let keys = CacheBounds { deadline: Duration::from_millis(50), ..CacheBounds::default() };
    let setting = Setting { keys, ..Setting::default() };
    let world = World::new(setting, PolicySource::ControlPlane(plane.clone()));
    until("the policy", || world.edge.is_ready()).await;
    *plane.hold.lock() = Some(Arc::new(Semaphore::new(0)));
    assert!(unverified(&world.request("key-a", &route("orders")).await));
}

#[tokio::test]
async fn the_cache_holds_no_more_than_its_bound_and_keeps_who_came_last() {
    let plane = plane_with("key-a");
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        plane.put_key(key, "acme", KeyState::Active);
    }
    let bounds = CacheBounds { known: 20, ..CacheBounds::default() };
    let setting = Setting { keys: bounds, ..Setting::default() };
    let world = World::new(setting, PolicySource::ControlPlane(plane.clone()));
    until("the policy", || world.edge.is_ready()).await;
    let orders = route("orders");
    for key in &keys {
        assert_eq!(world.request(key, &orders).await, Ok(()));
        // The first key is busy all the time.
        assert_eq!(world.request("key-0", &orders).await, Ok(()));
        world.clock.advance(Duration::from_secs(2));
    }
    assert_eq!(plane.lookups(), 40, "a busy key was never evicted");
    assert_eq!(world.request("key-1", &orders).await, Ok(()));
    assert_eq!(plane.lookups(), 41, "the longest idle one was");
}

#[tokio::test]
async fn a_file_with_another_plan_for_a_client_is_in_force_at_once() {
    let plans = [burst("small", 2, "0"), burst("large", 5, "0")];
    let one = file(1, &plans, &[("acme", "small")], &[("key-a", "acme"), ("key-b", "acme")]);
    let world = World::of_file(one.clone());
    let orders = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 5).await, 2);
    let two = file(2, &plans, &[("acme", "large")], &[("key-a", "acme")]);
    world.edge.load_file(&two);
    assert_eq!(world.admitted("key-a", &orders, 9).await, 3, "what was used stays used");
    assert_eq!(world.request("key-b", &orders).await, Err(Refusal::KeyInvalid));
    // And back: the plan is the older one, its numbers rule all the same.
    world.edge.load_file(&one);
    assert_eq!(world.edge.revision(), 2, "an older file is not taken");
    let three = file(3, &plans, &[("acme", "small")], &[("key-a", "acme")]);
    world.edge.load_file(&three);
    let told = match world.admit("key-a", &orders).await {
        Admission::Refuse(Refusal::Denied { .. }, Some(ticket)) => ticket.told(),
        other => panic!("{other:?}"),
    };
    assert_eq!(told.map(|told| told.burst.capacity), Some(2));
}
