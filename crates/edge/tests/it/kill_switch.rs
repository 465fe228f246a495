//! The kill switch: refusals end at once, decisions go on, and what was wrong stays wrong.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use edge::limiter::Cost;
use edge::{
    ControlPlane, FeedError, LookupError, Pending, PolicySource, Refusal, RouteTerms, ToldSwitch,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use wire::batch::Side;
use wire::policy::{
    ClientState, FeedAnswer, FeedRequest, KeyState, LookupAnswer, LookupRequest, Snapshot,
};
use wire::rollout::Phase;

use super::plane::Plane;
use super::world::{
    Setting, World, burst, file, forwarded, observed, route, service, terms, until,
};

#[tokio::test]
async fn while_it_is_set_nobody_is_refused_and_everybody_is_decided_about() {
    let plans = [burst("pro", 3, "0")];
    let world = World::of_file(file(1, &plans, &[("acme", "pro")], &[("key-a", "acme")]));
    let orders = route("orders");
    world.edge.kill_switch().set();
    assert_eq!(world.admitted("key-a", &orders, 8).await, 8);
    let metrics = world.edge.metrics();
    assert_eq!(metrics.decisions("allow", "store", Phase::Shadow), 3);
    assert_eq!(metrics.decisions("deny", "store", Phase::Shadow), 5, "and denials are counted");
    let ticket = forwarded(world.admit("key-a", &orders).await);
    assert_eq!((ticket.phase(), ticket.told()), (Some(Phase::Shadow), None), "no one is told");
    assert_eq!(world.edge.inspect("acme", None).await.unwrap().phase, Phase::Shadow);
    world.edge.done(ticket, observed(200, service(Side::Allow)));
    world.edge.kill_switch().clear();
    let refused = world.request("key-a", &orders).await;
    assert!(matches!(refused, Err(Refusal::Denied { .. })), "what was taken stays taken");
    assert_eq!(world.edge.inspect("acme", None).await.unwrap().phase, Phase::Enforce);
}

#[tokio::test]
async fn what_is_wrong_with_a_caller_stays_refused_under_it() {
    let plane = Plane::new();
    plane.put_plan("pro", 3, "1/s");
    plane.put_client("acme", "pro");
    plane.put_client_state("late", "pro", ClientState::Suspended);
    plane.put_client("lost", "gone");
    plane.put_key("key-a", "acme", KeyState::Active);
    plane.put_key("key-r", "acme", KeyState::Revoked);
    plane.put_key("key-l", "late", KeyState::Active);
    plane.put_key("key-g", "lost", KeyState::Active);
    let world = World::of_plane(plane).await;
    let orders = route("orders");
    world.edge.kill_switch().set();
    for (key, expected) in [
        ("key-a", Ok(())),
        ("key-r", Err(Refusal::KeyInvalid)),
        ("nobody", Err(Refusal::KeyInvalid)),
        ("key-l", Err(Refusal::ClientSuspended)),
        // A plan without numbers is the edge's fault, which shadow never shows.
        ("key-g", Ok(())),
    ] {
        assert_eq!(world.request(key, &orders).await, expected, "{key}");
    }
    world.edge.kill_switch().clear();
    assert_eq!(world.request("key-g", &orders).await, Err(Refusal::PlanInvalid));
}

#[tokio::test]
async fn a_request_too_dear_for_its_plan_passes_too() {
    let plans = [burst("pro", 1, "0")];
    let world = World::of_file(file(1, &plans, &[("acme", "pro")], &[("key-a", "acme")]));
    let dear = Arc::new(RouteTerms { cost: Cost::new(2).unwrap(), ..terms("dear") });
    assert_eq!(world.request("key-a", &dear).await, Err(Refusal::CostExceedsCapacity));
    world.edge.kill_switch().set();
    assert_eq!(world.request("key-a", &dear).await, Ok(()));
}

#[tokio::test]
async fn phases_off_and_shadow_stay_and_what_enforce_counts_is_no_evidence() {
    let plane = Plane::new();
    plane.put_plan("pro", 1, "0");
    for client in ["off", "shadow", "enforce"] {
        plane.put_client(client, "pro");
        plane.put_key(&format!("key-{client}"), client, KeyState::Active);
    }
    let rules = [
        (Some("off"), Phase::Off),
        (Some("shadow"), Phase::Shadow),
        (Some("enforce"), Phase::Enforce),
    ];
    let since = plane.put_rollout(&rules, 10_000);
    let world = World::of_plane(plane).await;
    let orders = route("orders");
    world.edge.kill_switch().set();
    for client in ["off", "shadow", "enforce"] {
        assert_eq!(world.admitted(&format!("key-{client}"), &orders, 3).await, 3, "{client}");
    }
    let shelf = world.finish().await;
    let cells = shelf.cells();
    let of = |client: &str| -> Vec<_> {
        let own = cells.iter().filter(|cell| cell.client == client);
        own.map(|cell| (cell.phase, cell.since_revision, cell.requests, cell.edge_denied)).collect()
    };
    assert!(of("off").is_empty(), "off is not evaluated");
    assert_eq!(of("shadow"), [(Phase::Shadow, since, 3, 2)]);
    assert_eq!(of("enforce"), [(Phase::Shadow, 0, 3, 2)], "no revision has put it there");
}

#[tokio::test]
async fn what_the_control_plane_says_of_it_is_told_on_and_an_own_one_is_named() {
    let plane = Plane::new();
    let world = World::of_plane(plane.clone()).await;
    let switch = world.edge.kill_switch().clone();
    let told = switch.told();
    assert_eq!(*told.borrow(), ToldSwitch::Clear);
    plane.set_killswitch(Some("inc-7"));
    let says = |id: &str| matches!(&*told.borrow(), ToldSwitch::Set(set) if set.id == id);
    until("the switch", || says("inc-7")).await;
    assert!(!switch.is_set(), "what becomes of it is the rim's business");
    plane.set_killswitch(None);
    plane.forget_log();
    until("its end", || *told.borrow() == ToldSwitch::Clear).await;
    switch.set_own(Some("here-1".to_owned()));
    plane.other_write();
    let named = || plane.requests.lock().last().unwrap().killswitch.clone();
    until("the own one", || named().as_deref() == Some("here-1")).await;
}

/// Notes what is told of the switch whenever it is asked for more.
struct Watching {
    plane: Arc<Plane>,
    told: OnceLock<watch::Receiver<ToldSwitch>>,
    said: Mutex<Vec<ToldSwitch>>,
}

impl ControlPlane for Watching {
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>> {
        self.plane.snapshot()
    }

    fn feed<'a>(&'a self, request: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>> {
        let told = self.told.get().map(|told| told.borrow().clone());
        self.said.lock().extend(told);
        self.plane.feed(request)
    }

    fn lookup<'a>(
        &'a self,
        request: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>> {
        self.plane.lookup(request)
    }
}

#[tokio::test]
async fn in_the_middle_of_a_backlog_it_is_not_told_to_be_clear() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::new();
    drop(super::state::used(&plane, folder.path()).await.finish().await);
    for number in 0..1_500 {
        plane.put_client(&format!("client-{number}"), "pro");
    }
    plane.set_killswitch(Some("inc-7"));
    let snapshots = plane.snapshots.load(Ordering::SeqCst);
    let watching = Arc::new(Watching { plane, told: OnceLock::new(), said: Mutex::default() });
    let setting = Setting { state_dir: Some(folder.path().to_owned()), ..Setting::default() };
    let world = World::new(setting, PolicySource::ControlPlane(watching.clone()));
    watching.told.set(world.edge.kill_switch().told()).unwrap();
    let is_set = |told: &ToldSwitch| matches!(told, ToldSwitch::Set(_));
    until("the switch", || watching.said.lock().last().is_some_and(is_set)).await;
    assert_eq!(watching.plane.snapshots.load(Ordering::SeqCst), snapshots, "change by change");
    let said = watching.said.lock().clone();
    assert!(said.len() >= 3 && !said.contains(&ToldSwitch::Clear), "{said:?}");
}
