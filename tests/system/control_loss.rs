//! The control plane's database is gone, frozen or holds what nobody can take: traffic does not
//! notice, gateways start all the same, and operators are told.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use system_tests::control::{Control, plan, revision};
use system_tests::process::eventually;
use system_tests::traffic::{Callers, Sent};
use system_tests::world::{Shape, World};
use tokio::time::Instant;
use wire::bootstrap::Bootstrap;
use wire::client::plans::PlansClient;
use wire::client::{Call, ClientError, Method};
use wire::key::{KeyHash, Pepper};
use wire::policy::Object;

use crate::stage::{callers, count, small, world};

const ALMOST_NEVER: &str = "1/1000s";
/// Told within this, whatever the database does: its own bound is three seconds.
const TOLD_MAX: Duration = Duration::from_secs(10);
const BACK_MAX: Duration = Duration::from_secs(20);

/// What an operator's read comes to.
async fn read(control: &Control) -> Result<Value, ClientError> {
    control.call(Call::get("/v1/plans").deadline(TOLD_MAX)).await
}

/// What an operator's change comes to.
async fn write(control: &Control, capacity: u64) -> Result<Value, ClientError> {
    let call = Call::new(Method::PUT, "/v1/plans/other").query("reason", "test");
    let body = plan(capacity, "1/s", "coarse");
    control.call(call.if_match_or_insist(None).json(&body).deadline(TOLD_MAX)).await
}

/// Refused as unavailable; a wait that ends without an answer is none.
fn is_told(what: &str, answer: &Result<Value, ClientError>) {
    let refused = answer.as_ref().err().and_then(ClientError::refused);
    let code = refused.map(|body| (body.status, body.code.name()));
    assert_eq!(code, Some((503, "database_unavailable")), "{what}: {answer:?}");
}

fn all_ok(what: &str, sent: &[Sent]) {
    assert_eq!(count(sent, 200), sent.len(), "{what}: {:?}", sent.iter().find(|s| s.status != 200));
}

#[tokio::test]
async fn f27_without_the_database_traffic_goes_on_restarts_too_and_operators_are_told()
-> anyhow::Result<()> {
    let mut world = world(Shape { postgres: true, ..small(2) }).await?;
    let callers = callers(&world, &[("acme", plan(100_000, "1000/s", "coarse"))]).await?;
    all_ok("before", &callers.in_turn(0, 20).await);
    let revision_before = acknowledged(&world).await?;
    // Ours does not wait for its disk: what is acknowledged is to be there after the kill.
    world.postgres()?.execute("postgres", "CHECKPOINT").await?;
    world.postgres.as_mut().context("Postgres")?.kill()?;
    all_ok("without it", &callers.in_turn(0, 100).await);
    is_told("a read", &read(&world.control).await);
    is_told("a change", &write(&world.control, 5).await);
    // Gateways that start now know what they knew, and so does the control plane's absence.
    world.gateways[0].restart().await?;
    world.wait_ready().await?;
    all_ok("after a restart", &callers.in_turn(0, 40).await);
    world.plans_api.kill()?;
    world.gateways[1].restart().await?;
    world.wait_ready().await?;
    all_ok("without plans-api", &callers.in_turn(0, 40).await);

    world.postgres.as_mut().context("Postgres")?.restart().await?;
    world.plans_api.restart().await?;
    let revision = eventually("changes again", BACK_MAX, || async {
        Ok(write(&world.control, 6).await.ok().map(|told| revision(&told)))
    })
    .await??;
    assert!(revision > revision_before);
    world.control.wait_applied(2, revision).await?;
    all_ok("afterwards", &callers.in_turn(0, 20).await);
    Ok(())
}

#[tokio::test]
async fn f31_a_gateway_without_state_starts_from_an_exported_file_or_refuses_everybody()
-> anyhow::Result<()> {
    let mut world = world(Shape { redis: false, ..small(1) }).await?;
    let key = world.customer("acme", &plan(1_000, "1000/s", "coarse")).await?;
    let token = std::fs::read_to_string(world.dir().join("gateway-token"))?;
    let pepper = Pepper::from_bytes(&std::fs::read(world.dir().join("plans-state/pepper"))?)?;
    let plans = PlansClient::new(world.control.base(), Some(token.trim()))?;
    let policy = plans.snapshot().await?;
    let keys = plans.lookup(vec![KeyHash::of_key(&key, &pepper)], TOLD_MAX).await?.found;
    let exported = Bootstrap { written_at: 1_000, policy, keys };
    let file = world.dir().join("bootstrap.json");
    std::fs::write(&file, exported.to_text())?;
    let state = world.dir().join("gw-1.state");
    let gateway = &mut world.gateways[0];
    let traffic = [gateway.traffic];
    let keys = [("acme".to_owned(), key)];
    let callers = Callers::new(&traffic, &world.services.names(), &keys)?;
    world.plans_api.kill()?;
    std::fs::remove_dir_all(&state)?;
    gateway.restart().await?;
    let refused = callers.one(0, 0, 0).await;
    assert_eq!((refused.status, refused.code.as_deref()), (503, Some("no_policy")));

    let text = std::fs::read_to_string(gateway.file())?;
    let text = text.replace("[control]\n", &format!("[control]\nbootstrap_file = {file:?}\n"));
    std::fs::write(gateway.file(), text)?;
    gateway.restart().await?;
    world.wait_ready().await?;
    all_ok("from the file", &callers.in_turn(0, 5).await);
    Ok(())
}

async fn acknowledged(world: &World) -> anyhow::Result<u64> {
    let applied = world.control.applied().await?;
    applied.into_iter().map(|(_, applied)| applied).max().context("no gateway")
}

#[tokio::test]
async fn f28_a_frozen_database_costs_operators_a_bounded_wait_and_traffic_nothing()
-> anyhow::Result<()> {
    let world = world(Shape { postgres: true, ..small(2) }).await?;
    let callers = callers(&world, &[("acme", plan(100_000, "1000/s", "coarse"))]).await?;
    all_ok("before", &callers.in_turn(0, 20).await);
    world.postgres()?.freeze()?;
    let asked = Instant::now();
    let mut all = tokio::task::JoinSet::new();
    for number in 0..60 {
        let control = world.control.clone();
        all.spawn(async move {
            if number % 2 == 0 { read(&control).await } else { write(&control, 7).await }
        });
    }
    all_ok("meanwhile", &callers.in_turn(0, 200).await);
    while let Some(answer) = all.join_next().await {
        is_told("one of sixty", &answer?);
    }
    assert!(asked.elapsed() < 2 * TOLD_MAX, "they wait side by side, not one after the other");
    world.postgres()?.thaw()?;
    let revision = eventually("changes again", BACK_MAX, || async {
        Ok(write(&world.control, 8).await.ok().map(|told| revision(&told)))
    })
    .await??;
    world.control.wait_applied(2, revision).await?;
    // A transaction that somebody left open holds what every change needs.
    let mut hand = world.postgres()?.connect("plans").await?;
    hand.execute("begin; lock table head in exclusive mode").await?;
    is_told("a change behind a lock", &write(&world.control, 9).await);
    assert!(read(&world.control).await.is_ok(), "who only reads is in nobody's way");
    all_ok("behind a lock", &callers.in_turn(0, 40).await);
    hand.execute("rollback").await?;
    eventually("changes after the lock", BACK_MAX, || async {
        Ok(write(&world.control, 10).await.ok().map(drop))
    })
    .await
}

#[tokio::test]
async fn one_switch_puts_all_gateways_in_shadow_and_survives_both_sides() -> anyhow::Result<()> {
    let mut world = world(Shape { redis: false, ..small(2) }).await?;
    let callers = callers(&world, &[("acme", plan(1, ALMOST_NEVER, "coarse"))]).await?;
    let limited = async |callers: &Callers, gateway: usize| {
        let mut refused = 0;
        for _ in 0..3 {
            refused += usize::from(callers.one(0, gateway, 0).await.status == 429);
        }
        refused
    };
    for gateway in 0..2 {
        assert!(limited(&callers, gateway).await >= 2);
    }
    let verb = async |verb: &str| {
        let path = format!("/v1/killswitch:{verb}");
        let call = Call::post(path, &json!({ "id": "inc-7" })).query("reason", "test");
        anyhow::Ok(revision(&world.control.call(call).await?)?)
    };
    let set = verb("set").await?;
    world.control.wait_applied(2, set).await?;
    for gateway in 0..2 {
        eventually("nobody is refused", BACK_MAX, || async {
            Ok((limited(&callers, gateway).await == 0).then_some(()))
        })
        .await?;
    }
    world.plans_api.kill()?;
    world.gateways[0].restart().await?;
    world.wait_ready().await?;
    assert_eq!(limited(&callers, 0).await, 0, "a restart without the control plane keeps it");
    world.plans_api.restart().await?;
    let verb = async |verb: &str| {
        let path = format!("/v1/killswitch:{verb}");
        let call = Call::post(path, &json!({ "id": "inc-7" })).query("reason", "test");
        anyhow::Ok(revision(&world.control.call(call).await?)?)
    };
    let cleared = verb("clear").await?;
    world.control.wait_applied(2, cleared).await?;
    for gateway in 0..2 {
        eventually("limits hold again", BACK_MAX, || async {
            Ok((limited(&callers, gateway).await > 0).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Values that a field may have been given by hand.
fn bad_values() -> Vec<Value> {
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    vec![
        json!(-1),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("18446744073709551616"),
        json!("nan"),
        Value::Null,
        json!([]),
        json!({ "a": 1 }),
        json!(true),
        json!("x".repeat(5_000)),
        deep,
    ]
}

/// Every field of an object in turn, with every bad value.
fn mutations(kind: &'static str, id: &str) -> Vec<(&'static str, Value)> {
    let whole = match kind {
        "plan" => json!({
            "name": id, "burst": { "capacity": 5, "tokens": 1, "per_us": 1000 },
            "sustained": null, "costs": [{ "route": "orders", "method": null, "cost": 1 }],
            "scope": "client", "failure": "open", "unlimited": false, "revision": 1,
        }),
        "client" => json!({
            "id": id, "plan": "acme", "state": "active", "reset_revision": 0, "revision": 1,
        }),
        _ => json!({
            "id": id, "client": "acme", "env": "live", "state": "active", "expires_at": null,
            "secrets": [{ "hash": "00".repeat(32), "valid_until": null }], "revision": 1,
        }),
    };
    let fields: Vec<String> =
        whole.as_object().into_iter().flat_map(|o| o.keys().cloned()).collect();
    let mut all = Vec::new();
    for field in fields {
        for bad in bad_values() {
            let mut mutated = whole.clone();
            if let Some(fields) = mutated.as_object_mut() {
                fields.insert(field.clone(), bad);
            }
            all.push((kind, mutated));
        }
    }
    all
}

/// Whether a gateway could go by it after all.
fn is_valid(kind: &str, id: &str, value: &Value) -> bool {
    let object = json!({ "kind": kind, "id": id, "value": value });
    let Ok(object) = serde_json::from_value::<Object>(object) else { return false };
    let is_bad_plan = match &object {
        Object::Plan { value: Some(plan), .. } => plan.check().is_err(),
        Object::Plan { .. }
        | Object::Client { .. }
        | Object::Key { .. }
        | Object::Rollout { .. }
        | Object::Killswitch { .. }
        | Object::Unreadable { .. } => false,
    };
    !is_bad_plan && object.fault().is_none()
}

#[tokio::test]
async fn two_hundred_poisoned_objects_hurt_nobody_and_are_named_by_every_gateway()
-> anyhow::Result<()> {
    let mut world = world(Shape { redis: false, ..small(3) }).await?;
    let good = [
        ("acme", plan(1_000_000, "1000/s", "coarse")),
        ("zeta", plan(1_000_000, "1000/s", "coarse")),
    ];
    let callers = callers(&world, &good).await?;
    for client in 0..2 {
        all_ok("before", &callers.in_turn(client, 9).await);
    }
    let file = world.dir().join("plans-state/plans.db");
    let mut hand = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await?;
    hand.execute("pragma ignore_check_constraints = on").await?;
    let mut poisoned = Vec::new();
    for kind in ["plan", "client", "key"] {
        for (number, (kind, value)) in mutations(kind, "bad").into_iter().enumerate() {
            let id = format!("bad-{kind}-{number}");
            let text = value.to_string().replace("\"bad\"", &format!("{id:?}"));
            let value: Value = serde_json::from_str(&text)?;
            if !is_valid(kind, &id, &value) {
                poisoned.push((kind, id, value));
            }
        }
    }
    assert!(poisoned.len() >= 200, "{} objects", poisoned.len());
    for some in poisoned.chunks(60) {
        let mut tx = hand.begin().await?;
        for (kind, id, value) in some {
            tx.execute("update head set revision = revision + 1").await?;
            let insert = sqlx::query(
                "insert into change (revision, at, kind, id, value) \
                 values ((select revision from head), 0, ?, ?, ?)",
            );
            insert.bind(*kind).bind(id).bind(value.to_string()).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        for client in 0..2 {
            all_ok("while it spreads", &callers.in_turn(client, 9).await);
        }
    }
    eventually("all are named by every gateway", BACK_MAX, || async {
        let told = world.control.get("/v1/gateways").await?;
        let named = |gateway: &Value| {
            let rejected = gateway["rejected"].as_array().cloned().unwrap_or_default();
            let is_named = |(kind, id, _): &(&str, String, Value)| {
                rejected.iter().any(|report| report["kind"] == *kind && report["id"] == *id)
            };
            poisoned.iter().all(is_named)
        };
        let gateways = told["items"].as_array().cloned().unwrap_or_default();
        Ok((gateways.len() == 3 && gateways.iter().all(named)).then_some(()))
    })
    .await?;
    for client in 0..2 {
        all_ok("afterwards", &callers.in_turn(client, 9).await);
    }
    only_its_own_plan_is_invalid(&mut world, &mut hand).await?;
    for gateway in &mut world.gateways {
        let child = gateway.child()?;
        assert!(child.is_alive() && !child.log().contains("panicked"), "{}", child.log_tail());
    }
    let child = world.plans_api.child()?;
    assert!(child.is_alive() && !child.log().contains("panicked"), "{}", child.log_tail());
    Ok(())
}

/// A gateway that never had a valid version of one plan refuses that plan's client alone; others go
/// on with the one they had.
async fn only_its_own_plan_is_invalid(
    world: &mut World,
    hand: &mut SqliteConnection,
) -> anyhow::Result<()> {
    let terms = plan(1_000_000, "1000/s", "coarse");
    let (poor, rich) =
        (world.customer("poor", &terms).await?, world.customer("rich", &terms).await?);
    let keys = [("poor".to_owned(), poor), ("rich".to_owned(), rich)];
    hand.execute("update plan set burst_capacity = 0 where name = 'poor'").await?;
    world.add_gateway(|_settings| {}).await?;
    let gateways: Vec<_> = world.gateways.iter().map(|gateway| gateway.traffic).collect();
    let callers = Callers::new(&gateways, &world.services.names(), &keys)?;
    for gateway in 0..4 {
        let (poor, rich) = (callers.one(0, gateway, 0).await, callers.one(1, gateway, 0).await);
        assert_eq!(rich.status, 200, "{rich:?}");
        let told = (poor.status, poor.code.as_deref());
        let expected = if gateway == 3 { (503, Some("plan_invalid")) } else { (200, None) };
        assert_eq!(told, expected, "gateway {gateway}");
    }
    Ok(())
}
