//! Tallies, records and batches: exact where exactness is promised, bounded where not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use edge::limiter::store::memory::MemoryStore;
use edge::limiter::testkit::{Fault, FaultyStore, ManualClock};
use edge::{PolicySource, RouteTerms, Seen};
use serde_json::json;
use wire::batch::{Batch, PairSource, ServiceHalf, Side};
use wire::policy::KeyState;
use wire::rollout::Phase;

use super::plane::Plane;
use super::world::{
    Setting, Shelf, World, burst, file, forwarded, observed, plan, route, service, until,
};

/// A control plane with one client under a plan of `capacity`, in `phase`.
fn plane_in(phase: Phase, capacity: u64, share_bp: u32) -> Arc<Plane> {
    let plane = Plane::new();
    plane.put_plan("pro", capacity, "0");
    plane.put_client("acme", "pro");
    plane.put_key("key-a", "acme", KeyState::Active);
    plane.put_rollout(&[(None, phase)], share_bp);
    plane
}

/// What every run must keep, whatever happened in it.
fn check_accounts(batches: &[Batch]) {
    let mut decisions = 0;
    for (index, batch) in batches.iter().enumerate() {
        assert_eq!(batch.seq, index as u64 + 1, "no gaps");
        assert_eq!(batch.last, index + 1 == batches.len());
        decisions += batch.cells.iter().map(|cell| cell.requests).sum::<u64>();
        assert_eq!(batch.cum_decisions, decisions);
        for cell in &batch.cells {
            let ways = cell.pairs()
                + cell.undecided
                + cell.ambiguous
                + cell.no_reply
                + cell.caller_gone
                + cell.not_configured
                + cell.rejected;
            assert_eq!(ways, cell.requests, "each request ends in exactly one way: {cell:?}");
        }
    }
    assert!(batches.last().is_some_and(|batch| batch.last));
}

fn records(shelf: &Shelf) -> Vec<wire::batch::DecisionRecord> {
    shelf.batches.lock().iter().flat_map(|batch| batch.records.clone()).collect()
}

#[tokio::test]
async fn every_way_a_request_can_end_is_counted_once() {
    let plane = plane_in(Phase::Shadow, 2, 10_000);
    let world = World::of_plane(plane).await;
    let orders = route("orders");
    let endings = [
        service(Side::Allow), // both allow
        service(Side::Deny),  // looser: the edge has a second token
        service(Side::Allow), // stricter: it has none left
        service(Side::Deny),  // both deny
        Seen::Ambiguous,
        Seen::NoReply,
        Seen::CallerGone,
        Seen::NotConfigured,
        Seen::Refused, // the rim refused by itself
    ];
    for seen in endings {
        assert_eq!(world.request_seen("key-a", &orders, seen).await, Ok(()));
    }
    drop(forwarded(world.admit("key-a", &orders).await));
    let shelf = world.finish().await;
    let cell = shelf.total("acme");
    assert_eq!(cell.requests, 10);
    assert_eq!((cell.both_allow, cell.looser, cell.stricter, cell.both_deny), (1, 1, 1, 1));
    assert_eq!((cell.ambiguous, cell.no_reply, cell.not_configured), (1, 2, 1));
    assert_eq!(cell.caller_gone, 2, "a dropped ticket is a caller who left");
    assert_eq!((cell.edge_denied, cell.service_denied, cell.cost_allowed), (8, 2, 2));
    let cells = shelf.cells();
    assert!(cells.iter().all(|cell| cell.service == "orders-service"));
    assert!(cells.iter().all(|cell| cell.phase == Phase::Shadow && cell.since_revision == 5));
    check_accounts(&shelf.batches.lock());
}

#[tokio::test]
async fn a_rejected_request_has_no_service_half_and_one_in_phase_off_no_record_at_all() {
    let plane = plane_in(Phase::Enforce, 1, 10_000);
    let world = World::of_plane(plane.clone()).await;
    let orders = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 4).await, 1);
    let revision = plane.put_rollout(&[(None, Phase::Off)], 10_000);
    until("the rollout", || world.edge.revision() >= revision).await;
    assert_eq!(world.admitted("key-a", &orders, 7).await, 7);
    let shelf = world.finish().await;
    let cell = shelf.total("acme");
    assert_eq!((cell.requests, cell.both_allow, cell.rejected), (4, 1, 3));
    assert_eq!(cell.edge_denied, 3);
    assert_eq!(records(&shelf).len(), 4);
    assert_eq!(
        records(&shelf).iter().filter(|r| r.service_half == ServiceHalf::Rejected).count(),
        3
    );
}

#[tokio::test]
async fn one_record_carries_both_decisions() {
    let plane = plane_in(Phase::Shadow, 5, 10_000);
    let world = World::of_plane(plane).await;
    let orders = route("orders");
    let ticket = forwarded(world.admit("key-a", &orders).await);
    assert_eq!(ticket.told(), None, "shadow tells callers nothing");
    let seen = Seen::Decision {
        outcome: Side::Deny,
        source: PairSource::Header,
        remaining: Some(0),
        limit: Some(20),
        client: Some("acme".to_owned()),
    };
    world.edge.done(ticket, observed(429, seen));
    let shelf = world.finish().await;
    let [record] = &records(&shelf)[..] else { panic!("one record") };
    assert_eq!((record.client.as_str(), record.plan.as_str()), ("acme", "pro"));
    assert_eq!((record.route.as_str(), record.service.as_str()), ("orders", "orders-service"));
    assert_eq!((record.request_id.as_str(), record.seq), ("request-1", 1));
    assert_eq!((record.cost, record.status), (1, 429));
    assert_eq!(record.key_id.as_deref(), Some("id-key-a"));
    assert_eq!(record.plan_version, 6, "twice the newest of plan (2) and client (3)");
    assert_eq!(record.edge.outcome, Side::Allow);
    assert_eq!(record.edge.basis, "store");
    assert_eq!(record.edge.level_burst_mt, Some(4_000));
    assert!(matches!(
        &record.service_half,
        ServiceHalf::Paired { outcome: Side::Deny, limit: Some(20), .. }
    ));
}

#[tokio::test]
async fn without_a_rollout_everything_is_counted_and_nothing_recorded() {
    let plans = [burst("pro", 2, "0")];
    let world = World::of_file(file(1, &plans, &[("acme", "pro")], &[("key-a", "acme")]));
    assert_eq!(world.admitted("key-a", &route("orders"), 5).await, 2);
    let shelf = world.finish().await;
    assert_eq!(shelf.total("acme").requests, 5);
    assert!(records(&shelf).is_empty());
    check_accounts(&shelf.batches.lock());
}

#[tokio::test]
async fn clients_that_are_not_sampled_leave_only_their_disagreements_up_to_200_a_second() {
    let plane = plane_in(Phase::Shadow, 1, 0);
    let world = World::of_plane(plane).await;
    let orders = route("orders");
    // The first agrees; then the edge would deny, and the service does not.
    assert_eq!(world.admitted("key-a", &orders, 501).await, 501);
    let shelf = world.finish().await;
    let cell = shelf.total("acme");
    assert_eq!((cell.both_allow, cell.stricter), (1, 500), "the number does not depend on it");
    assert_eq!(records(&shelf).len(), 200);
    let batches = shelf.batches.lock();
    assert_eq!(batches.last().unwrap().cum_records, 200, "they owe nobody a record: no loss");
}

#[tokio::test]
async fn records_beyond_the_budget_are_dropped_and_counted_and_the_tally_stays_exact() {
    let plane = plane_in(Phase::Shadow, 1_000, 10_000);
    let setting = Setting { records_per_s: 30, ..Setting::default() };
    let world = World::new(setting, PolicySource::ControlPlane(plane));
    until("the policy", || world.edge.is_ready()).await;
    let orders = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 100).await, 100);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.admitted("key-a", &orders, 10).await, 10);
    let shelf = world.finish().await;
    assert_eq!(records(&shelf).len(), 40, "30 in the first second, 10 in the next");
    let batches = shelf.batches.lock();
    assert_eq!(batches.last().unwrap().cum_records, 110, "dropped ones included");
    assert_eq!(batches.last().unwrap().cum_decisions, 110);
}

#[tokio::test]
async fn batches_go_on_being_numbered_while_nobody_takes_them_and_none_is_lost() {
    let plane = plane_in(Phase::Shadow, 1_000, 10_000);
    let world = World::of_plane(plane).await;
    world.evidence.away.store(true, Ordering::SeqCst);
    let orders = route("orders");
    let shelf = Arc::clone(&world.evidence);
    for _round in 0..3 {
        assert_eq!(world.admitted("key-a", &orders, 5).await, 5);
        tokio::time::sleep(Duration::from_millis(1_050)).await;
    }
    assert!(shelf.batches.lock().iter().all(|batch| batch.cells.is_empty()));
    shelf.away.store(false, Ordering::SeqCst);
    let shelf = world.finish().await;
    assert_eq!(shelf.total("acme").requests, 15);
    assert!(shelf.batches.lock().len() >= 4, "one a second, also before anything happened");
    check_accounts(&shelf.batches.lock());
}

/// An edge in shadow whose store cannot be reached.
async fn without_store(plane: Arc<Plane>) -> World<FaultyStore<MemoryStore>> {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(clock.clone())));
    let setting = Setting { clock, ..Setting::default() };
    let world = World::over(store, setting, PolicySource::ControlPlane(plane));
    until("the policy", || world.edge.is_ready()).await;
    world
}

#[tokio::test]
async fn c33_what_was_decided_without_a_store_is_undecided_and_never_agreement() {
    let plane = plane_in(Phase::Shadow, 1_000_000, 10_000);
    let world = without_store(plane).await;
    let orders = route("orders");
    for disagree in 0..100 {
        let side = if disagree < 2 { Side::Deny } else { Side::Allow };
        assert_eq!(world.request_seen("key-a", &orders, service(side)).await, Ok(()));
    }
    world.store.always(Fault::Unreachable);
    assert_eq!(world.admitted("key-a", &orders, 900).await, 900);
    let shelf = world.finish().await;
    let cell = shelf.total("acme");
    assert_eq!((cell.requests, cell.pairs(), cell.disagreements()), (1_000, 100, 2));
    assert_eq!(cell.undecided, 900);
    let degraded = records(&shelf);
    let degraded = degraded.iter().filter(|record| record.edge.basis == "degraded");
    assert!(degraded.clone().count() > 0);
    assert!(degraded.clone().all(|record| record.service_half == ServiceHalf::Undecided));
    assert!(degraded.clone().all(|r| r.edge.reason.as_deref() == Some("unreachable")));
}

#[tokio::test]
async fn a_denial_of_an_outage_counts_where_it_was_felt_only() {
    let closed =
        plan("closed", &json!({ "burst": { "capacity": 10, "refill": "0" }, "failure": "closed" }));
    let plane = Plane::new();
    plane.put_plan_value(closed.to_value(0));
    plane.put_client("acme", "closed");
    plane.put_key("key-a", "acme", KeyState::Active);
    plane.put_rollout(&[(None, Phase::Shadow)], 10_000);
    let world = without_store(plane.clone()).await;
    world.store.always(Fault::Unreachable);
    let orders: Arc<RouteTerms> = route("orders");
    assert_eq!(world.admitted("key-a", &orders, 3).await, 3, "shadow never refuses");
    let revision = plane.put_rollout(&[(None, Phase::Enforce)], 10_000);
    until("the rollout", || world.edge.revision() >= revision).await;
    assert_eq!(world.admitted("key-a", &orders, 4).await, 0);
    let shelf = world.finish().await;
    let cell = shelf.total("acme");
    assert_eq!((cell.requests, cell.undecided, cell.rejected), (7, 7, 0));
    assert_eq!(cell.edge_denied, 4);
}
