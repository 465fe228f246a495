//! What streams of batches amount to.

use wire::batch::TallyCell;
use wire::gate::{GateReport, GateVerdict};
use wire::rollout::Phase;

use crate::world::{Backend, Gateway, World, all_in_shadow, on_both, pairs};

on_both! {
    nothing_seen_is_insufficient
    late_lost_doubled_and_reordered_batches_are_counted_exactly
    c31_shadow_decisions_are_counted_whatever_path_they_took
    c33_an_edge_that_was_degraded_has_no_opinion
    lost_decisions_close_the_gate
    a_full_batch_is_added_up_over_minute_writes
}

async fn report(world: &World) -> GateReport {
    world.door.control.gate(&all_in_shadow(7)).await.unwrap()
}

async fn nothing_seen_is_insufficient(backend: Backend) {
    let world = World::start(&backend).await;
    let report = report(&world).await;
    assert_eq!(report, GateReport::default());
    assert_eq!(report.verdict(), GateVerdict::Insufficient);
    world.stop().await;
}

async fn late_lost_doubled_and_reordered_batches_are_counted_exactly(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    let made: Vec<_> = (1..=6).map(|n| gateway.batch(vec![pairs("c_1", n * 10, n)])).collect();

    for (index, duplicate) in [(0, false), (0, true), (4, false), (2, false), (4, true)] {
        assert_eq!(world.door.post(&made[index]).await, duplicate, "batch {}", index + 1);
    }
    let seen = report(&world).await;
    assert_eq!((seen.pairs, seen.disagreements), ((1 + 5 + 3) * 11, 1 + 5 + 3));
    assert_eq!(seen.lost, (2 + 4) * 11, "batches 2 and 4 are missing, 6 is not known of");

    for index in [3, 1, 5] {
        assert!(!world.door.post(&made[index]).await);
    }
    world.door.post(&gateway.goodbye()).await;
    let seen = report(&world).await;
    assert_eq!((seen.pairs, seen.disagreements, seen.lost), (21 * 11, 21, 0));
    assert_eq!(seen.last_batch_seconds.map(|seconds| seconds < 60), Some(true));
    world.stop().await;
}

/// C31: burst 5, 20 requests in phase shadow; 15 of them would be denied, most of them answered by
/// the edge's memory of the denial. Every one is a decision, none is a refusal.
async fn c31_shadow_decisions_are_counted_whatever_path_they_took(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    for (asked, denied) in [(8, 3), (12, 12)] {
        let cell =
            TallyCell { service: "billing".to_owned(), ..pairs("c_31", asked - denied, denied) };
        world.door.post(&gateway.batch(vec![cell])).await;
    }
    assert_eq!(world.door.metric("weir_shadow_decisions_total").await, 20);
    for _place in ["in memory", "in the database"] {
        let by = wire::client::shadow::TopBy::WouldDeny;
        let top = world.door.control.top_clients(by, 10, 60).await.unwrap();
        assert_eq!((top.len(), top[0].requests, top[0].would_deny), (1, 20, 15));
        assert_eq!(top[0].phase, Phase::Shadow);
        let usage = world.door.control.usage("c_31", 60).await.unwrap();
        assert_eq!(usage.minutes.iter().map(|minute| minute.rejected).sum::<u64>(), 0);
        assert_eq!(usage.minutes.iter().map(|minute| minute.edge_denied).sum::<u64>(), 15);
        world.door.minute_write().await;
    }
    world.stop().await;
}

/// C33: 1,000 pairs of which 2 disagree, and 9,000 requests that the edge let through because its
/// store was down. The number is 2 ÷ 1,000, not 2 ÷ 10,000.
async fn c33_an_edge_that_was_degraded_has_no_opinion(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    let degraded = TallyCell { requests: 9_000, undecided: 9_000, ..pairs("c_33", 0, 0) };
    world.door.post(&gateway.batch(vec![pairs("c_33", 998, 2), degraded])).await;
    let seen = report(&world).await;
    assert_eq!(seen.number(), (2, 1_000));
    assert_eq!((seen.undecided, seen.unpaired, seen.lost), (9_000, 0, 0));
    assert_ne!(seen.verdict(), GateVerdict::Pass);

    // Three times as much of the same: enough pairs to fail, however many are undecided.
    for _ in 0..2 {
        let degraded = TallyCell { requests: 9_000, undecided: 9_000, ..pairs("c_33", 0, 0) };
        world.door.post(&gateway.batch(vec![pairs("c_33", 998, 2), degraded])).await;
    }
    let seen = report(&world).await;
    assert_eq!((seen.number(), seen.undecided), ((6, 3_000), 27_000));
    assert_eq!(seen.verdict(), GateVerdict::Fail);
    world.stop().await;
}

async fn lost_decisions_close_the_gate(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    world.door.post(&gateway.batch(vec![pairs("c_1", 5_000, 0)])).await;
    assert_eq!(report(&world).await.verdict(), GateVerdict::Pass);
    let lost = gateway.batch(vec![pairs("c_1", 10, 0)]);
    world.door.post(&gateway.batch(Vec::new())).await;
    let seen = report(&world).await;
    assert_eq!((seen.number(), seen.verdict()), ((10, 5_010), GateVerdict::Fail));
    world.door.post(&lost).await;
    assert_eq!(report(&world).await.verdict(), GateVerdict::Pass, "it came after all");
    world.stop().await;
}

async fn a_full_batch_is_added_up_over_minute_writes(backend: Backend) {
    const CLIENTS: u64 = 250;
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    for _ in 0..2 {
        let cells = (0..CLIENTS).map(|n| pairs(&format!("c_{n}"), n, 1)).collect();
        world.door.post(&gateway.batch(cells)).await;
        world.door.minute_write().await;
    }
    let enforced = TallyCell {
        phase: Phase::Enforce,
        requests: 4,
        both_allow: 0,
        rejected: 4,
        ..pairs("c_7", 0, 0)
    };
    world.door.post(&gateway.batch(vec![enforced])).await;
    let seen = report(&world).await;
    assert_eq!(seen.pairs, 2 * (CLIENTS * (CLIENTS - 1) / 2 + CLIENTS));
    assert_eq!(seen.disagreements, 2 * CLIENTS);
    assert_eq!(world.door.metric("weir_shadow_lost_decisions").await, 0);
    assert_eq!(world.door.metric("weir_shadow_doubts_total").await, 0);
    world.stop().await;
}
