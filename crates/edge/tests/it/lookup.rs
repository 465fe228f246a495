//! Look-ups: one question for each key, and no more of them at a time than there may be.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use edge::limiter::Clock as _;
use edge::{CacheBounds, PolicySource, Refusal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use wire::policy::KeyState;

use super::plane::Plane;
use super::world::{Setting, World, hash, route, until};

#[tokio::test]
async fn at_most_thirty_two_questions_are_under_way_and_who_is_beyond_is_told() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000, "0");
    let world = Arc::new(World::of_plane(plane.clone()).await);
    let gate = Arc::new(Semaphore::new(0));
    *plane.hold.lock() = Some(Arc::clone(&gate));
    let mut callers = JoinSet::new();
    for number in 0..6_000 {
        let world = Arc::clone(&world);
        let key = format!("key-{number}");
        callers.spawn(async move { world.request(&key, &route("orders")).await });
    }
    let mut unverified = 0;
    while let Some(answer) = callers.join_next().await {
        match answer.unwrap() {
            Err(Refusal::KeyUnverified { retry }) => {
                assert_eq!(retry, Duration::from_secs(1));
                unverified += 1;
            }
            other => panic!("nobody was asked: {other:?}"),
        }
    }
    assert_eq!(unverified, 6_000);
    let most = plane.held.load(Ordering::SeqCst);
    assert!((1..=32).contains(&most), "{most} were under way at once");
    gate.add_permits(10_000);
}

#[tokio::test]
async fn questions_come_one_after_the_other_five_milliseconds_apart() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000_000, "0");
    plane.put_client("acme", "pro");
    let world = Arc::new(World::of_plane(plane.clone()).await);
    let before = plane.lookups();
    let started = tokio::time::Instant::now();
    let mut number = 0;
    while started.elapsed() < Duration::from_millis(500) {
        let key = format!("key-{number}");
        plane.put_key(&key, "acme", KeyState::Active);
        assert_eq!(world.request(&key, &route("orders")).await, Ok(()));
        number += 1;
    }
    let asked = plane.lookups() - before;
    let most = started.elapsed().as_millis() / 5 + 2;
    assert!(asked as u128 <= most, "{asked} in {:?}", started.elapsed());
}

#[tokio::test]
async fn without_a_feed_nobodys_key_is_asked_for_again_soon() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000, "0");
    plane.put_client("acme", "pro");
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::KeyInvalid));
    let before = plane.lookups();
    world.clock.advance(Duration::from_millis(1_500));
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::KeyInvalid));
    assert_eq!(plane.lookups(), before, "with a feed it would have been told");
    plane.cut_feed(true);
    plane.put_key("key-a", "acme", KeyState::Active);
    until("the cut", || plane.is_cut()).await;
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
}

#[tokio::test]
async fn a_revocation_that_races_a_question_never_ends_in_an_open_key() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000_000, "0");
    plane.put_client("acme", "pro");
    let world = Arc::new(World::of_plane(plane.clone()).await);
    let orders = route("orders");
    for round in 0..40 {
        let key = format!("key-{round}");
        plane.put_key(&key, "acme", KeyState::Active);
        let mut asking = JoinSet::new();
        let (asker, terms, asked) = (Arc::clone(&world), Arc::clone(&orders), key.clone());
        asking.spawn(async move { asker.request(&asked, &terms).await });
        for _turn in 0..fastrand::usize(..12) {
            tokio::task::yield_now().await;
        }
        let revoked = plane.put_key(&key, "acme", KeyState::Revoked);
        let _either = asking.join_next().await.unwrap();
        until("the revocation", || world.edge.revision() >= revoked).await;
        until("its look-up", || plane.acknowledged() >= revoked).await;
        assert_eq!(world.request(&key, &orders).await, Err(Refusal::KeyInvalid), "{key}");
    }
}

#[tokio::test]
async fn the_idle_leave_first_and_no_key_of_the_last_ten_minutes_while_there_are_others() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000_000, "0");
    plane.put_client("acme", "pro");
    let keys = CacheBounds { known: 40, ..CacheBounds::default() };
    let setting = Setting { keys, ..Setting::default() };
    let world = World::new(setting, PolicySource::ControlPlane(plane.clone()));
    until("the policy", || world.edge.is_ready()).await;
    let orders = route("orders");
    for number in 0..60 {
        plane.put_key(&format!("key-{number}"), "acme", KeyState::Active);
    }
    for number in 0..40 {
        assert_eq!(world.request(&format!("key-{number}"), &orders).await, Ok(()));
    }
    world.clock.advance(Duration::from_secs(601));
    let hot: Vec<String> = (0..20).map(|number| format!("key-{number}")).collect();
    for key in &hot {
        assert_eq!(world.request(key, &orders).await, Ok(()));
    }
    for number in 40..58 {
        assert_eq!(world.request(&format!("key-{number}"), &orders).await, Ok(()));
    }
    let before = plane.lookups();
    for key in &hot {
        assert_eq!(world.request(key, &orders).await, Ok(()));
    }
    assert_eq!(plane.lookups(), before, "those in use stayed");
}

#[tokio::test(start_paused = true)]
async fn once_a_minute_it_is_told_when_keys_were_used() {
    let plane = Plane::new();
    plane.put_plan("pro", 1_000_000, "0");
    plane.put_client("acme", "pro");
    for key in ["key-a", "key-b"] {
        plane.put_key(key, "acme", KeyState::Active);
    }
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    let told = |key: &str| {
        let usage = plane.usage.lock();
        let of = |report: &wire::usage::UsageReport| {
            let used = report.secrets.iter().find(|used| used.hash == hash(key));
            used.map(|used| used.last_used_at)
        };
        usage.iter().rev().find_map(of)
    };
    let now = || world.clock.now().us() / 1_000;
    world.clock.advance(Duration::from_secs(5));
    let used_at = now();
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    let a_minute = async || {
        world.clock.advance(Duration::from_secs(60));
        tokio::time::sleep(Duration::from_secs(70)).await;
    };
    a_minute().await;
    assert_eq!(told("key-a"), Some(used_at));
    assert_eq!(plane.usage.lock()[0].gateway, "gateway-1");
    let reports = plane.usage.lock().len();
    a_minute().await;
    assert_eq!(plane.usage.lock().len(), reports, "nothing was used");
    plane.away.store(true, Ordering::SeqCst);
    let used_at = now();
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    a_minute().await;
    plane.away.store(false, Ordering::SeqCst);
    a_minute().await;
    assert_eq!(told("key-a"), Some(used_at), "what could not be told goes with the next one");
    assert_eq!(told("key-b"), None);
}
