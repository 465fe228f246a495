//! Whatever a control plane does, the policy here is one that was committed, and never an older
//! one of the same history.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use edge::PlanBook;
use proptest::prelude::*;
use wire::policy::KeyState;
use wire::rollout::Phase;

use super::plane::{Committed, Plane};
use super::world::{World, route, until};

#[derive(Debug, Clone)]
pub(crate) enum Act {
    Plan(usize, u64),
    Broken(usize),
    Delete(usize),
    Client(usize),
    Rollout(u32),
    Other,
    Forget,
    Restore(usize),
    Away,
    Back,
    Restart,
    Rest,
}

pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let plan = 0..4_usize;
    let act = prop_oneof![
        8 => (plan.clone(), 1..100_u64).prop_map(|(plan, size)| Act::Plan(plan, size)),
        3 => plan.clone().prop_map(Act::Broken),
        2 => plan.clone().prop_map(Act::Delete),
        2 => plan.clone().prop_map(Act::Client),
        1 => (0..20_000_u32).prop_map(Act::Rollout),
        2 => Just(Act::Other),
        1 => Just(Act::Forget),
        1 => plan.prop_map(Act::Restore),
        1 => Just(Act::Away),
        1 => Just(Act::Back),
        1 => Just(Act::Restart),
        6 => Just(Act::Rest),
    ];
    prop::collection::vec(act, 1..40)
}

const PLANS: [&str; 4] = ["free", "pro", "team", "vast"];

pub(crate) fn act(plane: &Plane, act: &Act, histories: &mut usize) {
    match *act {
        Act::Plan(plan, size) => drop(plane.put_plan(PLANS[plan], size, "1/s")),
        Act::Broken(plan) => drop(plane.put_broken_plan(PLANS[plan])),
        Act::Delete(plan) => drop(plane.delete_plan(PLANS[plan])),
        Act::Client(plan) => drop(plane.put_client("acme", PLANS[plan])),
        Act::Rollout(share_bp) => drop(plane.put_rollout(&[(None, Phase::Shadow)], share_bp)),
        Act::Other => drop(plane.other_write()),
        Act::Forget => plane.forget_log(),
        Act::Restore(plan) => {
            *histories += 1;
            plane.restore(&format!("history-{histories}"), PLANS[plan]);
        }
        Act::Away => plane.away.store(true, Ordering::SeqCst),
        Act::Back => plane.away.store(false, Ordering::SeqCst),
        Act::Restart | Act::Rest => {}
    }
}

/// The book is what was committed at its revision, except that of a plan whose version is not
/// valid an older one may be in force, or none.
pub(crate) fn check(book: &PlanBook, plane: &Plane) -> Result<(), TestCaseError> {
    let at = (book.history().to_owned(), book.revision());
    let committed: Option<Committed> = plane.committed.lock().get(&at).cloned();
    prop_assert!(committed.is_some(), "{at:?} was never committed");
    let committed = committed.unwrap_or_default();
    let plans = book.plans();
    for (name, (revision, valid)) in &committed {
        match plans.get(name.as_str()) {
            Some(ours) if *valid => prop_assert_eq!(ours, revision, "{} at {:?}", name, at),
            Some(ours) => prop_assert!(ours < revision),
            None => prop_assert!(!valid, "{name} is missing at {at:?}"),
        }
    }
    prop_assert!(plans.keys().all(|name| committed.contains_key(*name)));
    Ok(())
}

async fn follow(script: &[Act]) -> Result<(), TestCaseError> {
    let plane = Plane::new();
    let mut world = World::of_plane(plane.clone()).await;
    let mut histories = 0;
    let mut last = (String::new(), 0);
    let mut look = |world: &World, plane: &Plane| -> Result<(), TestCaseError> {
        let Some(book) = world.edge.book() else { return Ok(()) };
        check(&book, plane)?;
        if book.history() == last.0 {
            prop_assert!(book.revision() >= last.1, "went back");
        }
        last = (book.history().to_owned(), book.revision());
        Ok(())
    };
    for step in script {
        if matches!(step, Act::Restart) && !plane.away.load(Ordering::SeqCst) {
            world = World::of_plane(plane.clone()).await;
        }
        act(&plane, step, &mut histories);
        if matches!(step, Act::Rest) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        tokio::task::yield_now().await;
        look(&world, &plane)?;
    }
    plane.away.store(false, Ordering::SeqCst);
    plane.other_write();
    let head = plane.head();
    until("the newest revision", || {
        world.edge.book().is_some_and(|b| b.history() == head.0 && b.revision() == head.1)
    })
    .await;
    look(&world, &plane)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_policy_is_always_a_committed_one_and_never_goes_back(script in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(follow(&script))?;
    }
}

#[tokio::test]
async fn a_bad_object_is_skipped_alone_reported_and_its_last_valid_version_stays() {
    let plane = Plane::new();
    let good = plane.put_plan("pro", 3, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    assert_eq!(world.admitted("key-a", &route("orders"), 2).await, 2);
    let bad = plane.put_broken_plan("pro");
    let other = plane.put_plan("other", 5, "1/s");
    until("the acknowledgement", || plane.acknowledged() >= other).await;
    let book = world.edge.book().unwrap();
    assert_eq!(book.plans().get("pro"), Some(&good));
    assert_eq!(book.plans().get("other"), Some(&other), "the others are not held up");
    assert_eq!(world.admitted("key-a", &route("orders"), 2).await, 1);
    let rejected = plane.requests.lock().last().unwrap().rejected.clone();
    let [report] = &rejected[..] else { panic!("{rejected:?}") };
    assert_eq!((report.kind.as_str(), report.id.as_str(), report.revision), ("plan", "pro", bad));
    assert!(report.reason.contains("capacity"), "{}", report.reason);
    let mended = plane.put_plan("pro", 9, "0");
    until("the mended one", || plane.acknowledged() >= mended).await;
    assert!(plane.requests.lock().last().unwrap().rejected.is_empty());
}

/// Ten full answers. Time passes only while everybody waits, so what it took is all waiting.
#[tokio::test(start_paused = true)]
async fn a_backlog_is_in_force_as_fast_as_it_is_told() {
    let plane = Plane::new();
    let world = World::of_plane(plane.clone()).await;
    plane.cut_feed(true);
    until("the cut", || plane.is_cut()).await;
    let (_, before) = plane.head();
    for number in 0..9_500 {
        plane.put_client(&format!("client-{number}"), "pro");
    }
    plane.cut_feed(false);
    until("its beginning", || world.edge.revision() > before).await;
    let began = tokio::time::Instant::now();
    until("its end", || world.edge.revision() == plane.head().1).await;
    assert!(began.elapsed() < std::time::Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn after_a_gap_known_keys_are_asked_for_again() {
    let plane = Plane::new();
    plane.put_plan("pro", 100, "0");
    plane.put_client("acme", "pro");
    for key in ["key-a", "key-b"] {
        plane.put_key(key, "acme", KeyState::Active);
    }
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    for key in ["key-a", "key-b"] {
        assert_eq!(world.request(key, &orders).await, Ok(()));
    }
    plane.away.store(true, Ordering::SeqCst);
    plane.put_key("key-a", "acme", KeyState::Revoked);
    plane.forget_log();
    assert_eq!(world.request("key-a", &orders).await, Ok(()), "nobody could have told");
    plane.away.store(false, Ordering::SeqCst);
    let (_, head) = plane.head();
    until("the resync", || plane.acknowledged() >= head).await;
    assert_eq!(world.request("key-a", &orders).await, Err(edge::Refusal::KeyInvalid));
    assert_eq!(world.request("key-b", &orders).await, Ok(()));
}

#[tokio::test]
async fn a_client_that_is_moved_off_a_deleted_plan_is_never_without_one() {
    let plane = Plane::new();
    plane.put_plan("plan-0", 1_000_000_000_000, "0");
    plane.put_client("acme", "plan-0");
    plane.put_key("key-a", "acme", KeyState::Active);
    let world = Arc::new(World::of_plane(plane.clone()).await);
    let orders = route("orders");
    for round in 1..12 {
        plane.put_plan(&format!("plan-{round}"), 1_000_000_000_000, "0");
        plane.put_client("acme", &format!("plan-{round}"));
        let revision = plane.delete_plan(&format!("plan-{}", round - 1));
        while plane.acknowledged() < revision {
            assert_eq!(world.request("key-a", &orders).await, Ok(()));
            tokio::task::yield_now().await;
        }
    }
}
