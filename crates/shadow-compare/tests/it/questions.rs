//! Top clients, usage, one request.

use wire::batch::{
    Batch, DecisionRecord, EdgeHalf, PairSource, ServiceHalf, Side, TallyCell, TopClient,
};
use wire::client::shadow::{TopBy, UsageMinute};
use wire::rollout::Phase;

use crate::world::{Backend, Gateway, World, on_both, pairs, this_minute};

on_both! {
    top_clients_are_ranked_over_memory_and_database
    usage_is_exact_by_minute
    one_request_is_explained_from_its_record
}

async fn top_clients_are_ranked_over_memory_and_database(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    let cells = vec![pairs("busy", 100, 1), pairs("noisy", 5, 20), pairs("quiet", 1, 0)];
    world.door.post(&gateway.batch(cells)).await;
    world.door.minute_write().await;
    let enforced = TallyCell {
        phase: Phase::Enforce,
        since_revision: 9,
        requests: 30,
        both_allow: 0,
        rejected: 30,
        edge_denied: 30,
        ..pairs("noisy", 0, 0)
    };
    let old = TallyCell { minute: this_minute() - 90, ..pairs("yesterday", 0, 1_000) };
    world.door.post(&gateway.batch(vec![enforced, old, pairs("", 500, 500)])).await;

    let ask = async |by, n| -> Vec<TopClient> {
        world.door.control.top_clients(by, n, 60).await.unwrap()
    };
    let names =
        |top: Vec<TopClient>| -> Vec<String> { top.into_iter().map(|t| t.client).collect() };
    assert_eq!(names(ask(TopBy::Requests, 10).await), ["busy", "noisy", "quiet"]);
    assert_eq!(names(ask(TopBy::Disagree, 1).await), ["noisy"]);
    let denied = ask(TopBy::WouldDeny, 10).await;
    let noisy = TopClient {
        client: "noisy".to_owned(),
        phase: Phase::Enforce,
        requests: 55,
        would_deny: 50,
        pairs: 25,
        disagreements: 20,
        state: None,
    };
    assert_eq!(denied[0], noisy);
    assert_eq!(names(denied), ["noisy", "busy"], "who has no denial is not ranked by denials");
    world.stop().await;
}

async fn usage_is_exact_by_minute(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    let now = this_minute();
    let at = |minute: u64, cell: TallyCell| TallyCell { minute, ..cell };
    let cells = vec![
        at(now - 2, pairs("c_1", 10, 2)),
        at(now - 2, TallyCell { service: "billing".to_owned(), ..pairs("c_1", 5, 0) }),
        at(now - 1, pairs("c_2", 50, 0)),
    ];
    world.door.post(&gateway.batch(cells)).await;
    world.door.minute_write().await;
    world
        .door
        .post(&gateway.batch(vec![at(now - 2, pairs("c_1", 1, 1)), at(now, pairs("c_1", 3, 0))]))
        .await;

    let usage = world.door.control.usage("c_1", 60).await.unwrap();
    let minute = |m: &UsageMinute| (m.minute, m.requests, m.edge_denied, m.cost_allowed);
    let seen: Vec<_> = usage.minutes.iter().map(minute).collect();
    assert_eq!(seen, [(now - 2, 19, 3, 16), (now, 3, 0, 3)]);
    assert!(usage.complete);

    gateway.batch(vec![pairs("c_2", 1, 0)]); // lost: nobody knows whose it was
    world.door.post(&gateway.batch(Vec::new())).await;
    assert!(!world.door.control.usage("c_1", 60).await.unwrap().complete);
    world.stop().await;
}

async fn one_request_is_explained_from_its_record(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    let with_record = Batch {
        records: vec![record("01JA-x/y")],
        cum_records: 1,
        ..gateway.batch(vec![pairs("c_1", 0, 1)])
    };
    world.door.post(&with_record).await;
    let explained = world.door.control.explain("01JA-x/y").await.unwrap();
    assert_eq!((explained.gateway.as_str(), &explained.record), ("gw-1", &with_record.records[0]));
    assert!(explained.conclusion.contains("the edge is stricter"), "{}", explained.conclusion);
    let unknown = world.door.control.explain("01JB").await.unwrap_err();
    assert_eq!(unknown.refused().unwrap().status, 404);
    world.stop().await;
}

fn record(request_id: &str) -> DecisionRecord {
    DecisionRecord {
        at_us: this_minute() * 60_000_000,
        seq: 1,
        request_id: request_id.to_owned(),
        client: "c_1".to_owned(),
        key_id: Some("AbCdEfGhIj".to_owned()),
        plan: "free".to_owned(),
        plan_version: 4,
        revision: 10,
        phase: Phase::Shadow,
        route: "orders".to_owned(),
        service: "orders".to_owned(),
        instance: Some("127.0.0.1:9001".to_owned()),
        cost: 1,
        edge: EdgeHalf {
            outcome: Side::Deny,
            basis: "store".to_owned(),
            reason: None,
            level_burst_mt: Some(0),
            level_sustained_mt: Some(12_000),
            retry_after_ms: Some(1_000),
            store_us: Some(210),
        },
        service_half: ServiceHalf::Paired {
            outcome: Side::Allow,
            source: PairSource::Status,
            remaining: None,
            limit: None,
            client: None,
        },
        status: 200,
    }
}
