//! Costs, scopes, phases, the failure policy, and what a caller is told.

use std::sync::Arc;
use std::time::Duration;

use edge::limiter::store::memory::MemoryStore;
use edge::limiter::testkit::{Fault, FaultyStore, ManualClock};
use edge::limiter::{Clock, Cost, FailurePolicy, Wait};
use edge::{Admission, InspectError, PolicySource, Refusal, RegionShare, RouteTerms};
use serde_json::json;
use wire::policy::KeyState;
use wire::rollout::Phase;

use super::plane::Plane;
use super::world::{Setting, World, burst, file, forwarded, plan, route, terms, until};

#[tokio::test]
async fn the_first_cost_rule_that_names_route_and_method_is_charged() {
    let pro = plan(
        "pro",
        &json!({
            "burst": { "capacity": 10, "refill": "0" },
            "costs": [
                { "route": "orders", "method": "POST", "cost": 5 },
                { "route": "orders", "cost": 2 },
            ],
        }),
    );
    let world = World::of_file(file(1, &[pro], &[("acme", "pro")], &[("key-a", "acme")]));
    let orders = route("orders");
    let remaining = |admission| forwarded(admission).told().unwrap().tightest.remaining;
    assert_eq!(remaining(world.admit_method("key-a", &orders, "POST").await), 5);
    assert_eq!(remaining(world.admit_method("key-a", &orders, "GET").await), 3);
    // No rule names it: the route's own cost.
    let search = Arc::new(RouteTerms { cost: Cost::new(3).unwrap(), ..terms("search") });
    assert_eq!(remaining(world.admit("key-a", &search).await), 0);
}

#[tokio::test]
async fn a_region_admits_its_share_of_a_plan_and_tells_the_caller_so() {
    let plans = || {
        let pro = json!({ "burst": { "capacity": 10, "refill": "4/s" } });
        file(1, &[plan("pro", &pro)], &[("acme", "pro")], &[("key-a", "acme")])
    };
    let region = RegionShare::of_ten_thousand(3_000);
    let setting = Setting { region: region.unwrap(), ..Setting::default() };
    let world = World::new(setting, PolicySource::File(plans()));
    let orders = route("orders");
    let told = forwarded(world.admit("key-a", &orders).await).told().unwrap();
    assert_eq!((told.burst.capacity, told.tightest.remaining), (3, 2));
    assert_eq!(world.admitted("key-a", &orders, 10).await, 2);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.admitted("key-a", &orders, 10).await, 1, "1.2 of 4 tokens a second");
    // Another version of the file is cut down alike, and only once.
    let _taken = world.edge.load_file(&plans());
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.admitted("key-a", &orders, 10).await, 3);
}

#[tokio::test]
async fn a_route_dearer_than_the_plan_is_never_a_matter_of_waiting() {
    let plans = [burst("pro", 3, "1/s")];
    let world = World::of_file(file(1, &plans, &[("acme", "pro")], &[("key-a", "acme")]));
    let dear = Arc::new(RouteTerms { cost: Cost::new(4).unwrap(), ..terms("dear") });
    assert_eq!(world.request("key-a", &dear).await, Err(Refusal::CostExceedsCapacity));
    assert_eq!(world.admitted("key-a", &route("orders"), 5).await, 3, "and takes nothing");
}

#[tokio::test]
async fn a_denial_says_when_and_a_used_up_allowance_never() {
    let plans = [burst("pro", 1, "1/4s"), burst("gift", 1, "0")];
    let clients = [("acme", "pro"), ("globex", "gift")];
    let keys = [("key-a", "acme"), ("key-g", "globex")];
    let world = World::of_file(file(1, &plans, &clients, &keys));
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Ok(()));
    world.clock.advance(Duration::from_secs(1));
    let wait = Wait::Until(Duration::from_secs(3));
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::Denied { wait }));
    world.clock.advance(Duration::from_secs(3));
    assert_eq!(world.request("key-a", &orders).await, Ok(()), "then it is admitted");
    assert_eq!(world.request("key-g", &orders).await, Ok(()));
    let never = Refusal::Denied { wait: Wait::Never };
    assert_eq!(world.request("key-g", &orders).await, Err(never));
}

#[tokio::test]
async fn callers_are_told_both_limits_and_the_tightest_of_them() {
    let pro = plan(
        "pro",
        &json!({
            "burst": { "capacity": 10, "refill": "5/s" },
            "sustained": { "capacity": 12, "refill": "6/m" },
        }),
    );
    let world = World::of_file(file(1, &[pro], &[("acme", "pro")], &[("key-a", "acme")]));
    let orders = route("orders");
    let told = forwarded(world.admit("key-a", &orders).await).told().unwrap();
    let limits: Vec<_> = told.limits().map(|l| (l.name, l.capacity, l.window_s)).collect();
    assert_eq!(limits, [("burst", 10, Some(2)), ("sustained", 12, Some(120))]);
    assert_eq!((told.tightest.name, told.tightest.remaining), ("burst", 9));
    assert_eq!(told.tightest.reset_s, Some(1), "one token of five a second, rounded up");
    assert_eq!(world.admitted("key-a", &orders, 9).await, 9);
    world.clock.advance(Duration::from_secs(2));
    let told = forwarded(world.admit("key-a", &orders).await).told().unwrap();
    assert_eq!((told.tightest.name, told.tightest.remaining), ("sustained", 1));
    assert_eq!(told.tightest.reset_s, Some(108), "11 tokens at 6 a minute, less two seconds");
}

#[tokio::test]
async fn keys_share_a_clients_bucket_unless_the_plan_says_otherwise() {
    let each = plan("each", &json!({ "burst": { "capacity": 3, "refill": "0" }, "scope": "key" }));
    let plans = [burst("shared", 3, "0"), each];
    let clients = [("acme", "shared"), ("globex", "each")];
    let keys = [("a-1", "acme"), ("a-2", "acme"), ("g-1", "globex"), ("g-2", "globex")];
    let world = World::of_file(file(1, &plans, &clients, &keys));
    let orders = route("orders");
    assert_eq!(world.admitted("a-1", &orders, 5).await, 3);
    assert_eq!(world.admitted("a-2", &orders, 5).await, 0);
    assert_eq!(world.admitted("g-1", &orders, 5).await, 3);
    assert_eq!(world.admitted("g-2", &orders, 5).await, 3);
}

#[tokio::test]
async fn an_unlimited_plan_asks_no_store_and_tells_no_numbers() {
    let plans = [plan("free", &json!({ "unlimited": true }))];
    let world = World::of_file(file(1, &plans, &[("acme", "free")], &[("key-a", "acme")]));
    let ticket = forwarded(world.admit("key-a", &route("orders")).await);
    assert_eq!((ticket.told(), ticket.decision()), (None, None));
    assert!(world.store.is_empty());
}

#[tokio::test]
async fn a_client_whose_plan_is_unknown_is_refused_and_never_unlimited() {
    let plane = Plane::new();
    plane.put_plan("pro", 5, "0");
    plane.put_broken_plan("broken");
    plane.put_client("acme", "broken");
    plane.put_key("key-a", "acme", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.request("key-a", &orders).await, Err(Refusal::PlanInvalid));
    // Shadow stays invisible all the same, and off is not evaluated.
    for phase in [Phase::Shadow, Phase::Off] {
        let revision = plane.put_rollout(&[(None, phase)], 10_000);
        until("the rollout", || world.edge.revision() >= revision).await;
        assert_eq!(world.request("key-a", &orders).await, Ok(()));
    }
}

#[tokio::test]
async fn a_reset_fills_the_bucket_and_nothing_else_does() {
    let plane = Plane::new();
    plane.put_plan("pro", 5, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 9).await, 5);
    let revision = plane.put_client("acme", "pro");
    until("the client", || plane.acknowledged() >= revision).await;
    assert_eq!(world.admitted("key-a", &orders, 9).await, 0);
    let revision = plane.reset_client("acme");
    until("the reset", || plane.acknowledged() >= revision).await;
    assert_eq!(world.admitted("key-a", &orders, 9).await, 5);
}

/// An edge whose store fails as told.
fn faulty(fault: Fault) -> World<FaultyStore<MemoryStore>> {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(clock.clone() as Arc<dyn Clock>)));
    store.always(fault);
    let closed = plan(
        "closed",
        &json!({ "burst": { "capacity": 10, "refill": "10/s" }, "failure": "closed" }),
    );
    let plans = [closed, burst("coarse", 1, "1/s")];
    let clients = [("acme", "closed"), ("globex", "coarse")];
    let policy = file(1, &plans, &clients, &[("key-a", "acme"), ("key-g", "globex")]);
    let setting = Setting { clock, ..Setting::default() };
    World::over(store, setting, PolicySource::File(policy))
}

#[tokio::test]
async fn without_a_store_the_plans_failure_policy_rules_and_a_routes_own_before_it() {
    let world = faulty(Fault::Unreachable);
    let orders = route("orders");
    let refused = world.request("key-a", &orders).await;
    assert!(matches!(refused, Err(Refusal::LimiterClosed { .. })), "{refused:?}");
    let open = Arc::new(RouteTerms { failure: Some(FailurePolicy::Open), ..terms("open") });
    assert_eq!(world.request("key-a", &open).await, Ok(()));
    // Ten times the plan, and then a denial: it is the limit of an outage, not a closed route.
    assert_eq!(world.admitted("key-g", &orders, 10).await, 10);
    let refused = world.request("key-g", &orders).await;
    assert!(matches!(refused, Err(Refusal::Denied { .. })), "{refused:?}");
}

#[tokio::test]
async fn without_a_store_callers_are_not_told_how_the_bucket_stood_before() {
    let world = faulty(Fault::None);
    let orders = route("orders");
    let told = forwarded(world.admit("key-g", &orders).await).told().unwrap();
    assert_eq!((told.tightest.remaining, told.tightest.reset_s), (0, Some(1)));
    world.store.always(Fault::Unreachable);
    world.clock.advance(Duration::from_secs(1));
    let told = forwarded(world.admit("key-g", &orders).await).told().unwrap();
    assert_eq!((told.tightest.remaining, told.tightest.reset_s), (1, None));
    assert_eq!(world.admitted("key-g", &orders, 10).await, 9);
    match world.admit("key-g", &orders).await {
        Admission::Refuse(Refusal::Denied { .. }, Some(ticket)) => {
            let told = ticket.told().unwrap();
            assert_eq!((told.tightest.remaining, told.tightest.reset_s), (0, None));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn inspecting_takes_nothing() {
    let plans = [burst("pro", 5, "0")];
    let world = World::of_file(file(1, &plans, &[("acme", "pro")], &[("key-a", "acme")]));
    let orders = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 2).await, 2);
    for _again in 0..3 {
        let seen = world.edge.inspect("acme", None).await.unwrap();
        assert_eq!(seen.bucket.unwrap().levels.burst.tokens, 3);
        assert_eq!((seen.plan.name.as_str(), seen.phase), ("pro", Phase::Enforce));
    }
    let unknown = world.edge.inspect("nobody", None).await;
    assert!(matches!(unknown, Err(InspectError::ClientUnknown)));
    match world.admit("key-a", &orders).await {
        Admission::Forward(ticket) => assert_eq!(ticket.told().unwrap().tightest.remaining, 2),
        Admission::Refuse(refusal, _) => panic!("{refusal:?}"),
    }
}
