//! Rows of CASES.md that need more than one process, named by their id.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row as _;
use system_tests::control::plan;
use system_tests::process::eventually;
use system_tests::traffic::{Callers, Sent};
use system_tests::world::{PLANS_DATABASE, Shape, World};
use wire::client::{Call, Method};

use crate::stage::{callers, count, small, world};

const ALMOST_NEVER: &str = "1/1000s";
const KNOWN_MAX: Duration = Duration::from_secs(10);

/// Capacity, tokens, period: what would mean unlimited, or an error, somewhere else.
const BAD_PLANS: [(i64, i64, i64); 4] =
    [(0, 0, 1), (0, 1, 1_000_000), (5, -1, 1_000_000), (-5, 1, 1)];

#[tokio::test]
async fn c08_a_bad_plan_in_the_database_is_refused_there_or_never_unlimited() -> anyhow::Result<()>
{
    let mut world = world(Shape { postgres: true, ..small(2) }).await?;
    let callers = callers(&world, &[("acme", plan(6, ALMOST_NEVER, "open"))]).await?;
    assert_eq!(count(&callers.in_turn(0, 2).await, 200), 2);
    for (capacity, tokens, per_us) in BAD_PLANS {
        let refused = update_plan(&world, "acme", capacity, tokens, per_us).await;
        assert!(refused.is_err(), "the database took {capacity}, {tokens}/{per_us}");
    }

    // A database whose constraints somebody has dropped: gateways look once more.
    let drop = "ALTER TABLE plan DROP CONSTRAINT plan_burst_capacity, \
                DROP CONSTRAINT plan_burst_refill, DROP CONSTRAINT plan_burst_resolution";
    world.postgres()?.execute(PLANS_DATABASE, drop).await?;
    for (capacity, tokens, per_us) in BAD_PLANS {
        update_plan(&world, "acme", capacity, tokens, per_us).await?;
        let value = json!({
            "name": "acme",
            "burst": { "capacity": capacity, "tokens": tokens, "per_us": per_us },
            "sustained": null, "costs": [], "scope": "client", "failure": "open",
            "unlimited": false, "revision": 1_000_000
        });
        poison(&world, "acme", &value).await?;
    }
    // Where the good plan was known it stays in force, and the bad one is told.
    let known = callers.in_turn(0, 7).await;
    assert_eq!((count(&known, 200), count(&known, 429)), (4, 3), "{:?}", known.first());
    let told = world.control.get("/v1/gateways").await?;
    for gateway in 0..2 {
        let rejected = told.pointer(&format!("/items/{gateway}/rejected/0/id"));
        assert_eq!(rejected, Some(&json!("acme")), "{told}");
    }

    // Where it was not, nothing is admitted: neither unlimited nor by the failure policy `open`.
    world.gateways.remove(1);
    world.add_gateway(|_| {}).await?;
    let gateways = [world.gateways.last().map(|gateway| gateway.traffic)];
    let gateways: Vec<_> = gateways.into_iter().flatten().collect();
    let (_, key) = world.control.create_key("acme").await?;
    let stranger = Callers::new(&gateways, &world.services.names(), &[("acme".to_owned(), key)])?;
    let denied = stranger.in_turn(0, 7).await;
    assert_eq!(count(&denied, 200), 0, "{:?}", denied.first());
    assert!(denied.iter().all(|sent| sent.by_edge && sent.status >= 400), "{:?}", denied.first());
    Ok(())
}

async fn update_plan(
    world: &World,
    name: &str,
    capacity: i64,
    tokens: i64,
    per_us: i64,
) -> anyhow::Result<u64> {
    let update = format!(
        "UPDATE plan SET burst_capacity = {capacity}, burst_tokens = {tokens}, \
         burst_per_us = {per_us} WHERE name = '{name}'"
    );
    world.postgres()?.execute(PLANS_DATABASE, &update).await
}

/// Writes a change past plans-api, and waits until every gateway has read past it.
async fn poison(world: &World, name: &str, value: &Value) -> anyhow::Result<()> {
    let mut connection = world.postgres()?.connect(PLANS_DATABASE).await?;
    let row = sqlx::query("UPDATE head SET revision = revision + 1 RETURNING revision")
        .fetch_one(&mut connection)
        .await?;
    let revision: i64 = row.try_get(0)?;
    sqlx::query(
        "INSERT INTO change (revision, at, kind, id, value) VALUES ($1, 0, 'plan', $2, $3)",
    )
    .bind(revision)
    .bind(name)
    .bind(value.to_string())
    .execute(&mut connection)
    .await?;
    world.control.wait_applied(world.gateways.len(), u64::try_from(revision)?).await
}

#[tokio::test]
async fn c13_a_flushed_script_or_store_is_no_fault() -> anyhow::Result<()> {
    // A crowd on a busy machine takes longer than a decision may; not what this is about.
    let mut world = world(Shape { deadline: "50ms", ..small(1) }).await?;
    let plans = [
        ("acme", plan(1_000, ALMOST_NEVER, "closed")),
        ("zeta", plan(1_000, ALMOST_NEVER, "closed")),
    ];
    let callers = callers(&world, &plans).await?;
    // A call that takes long is asked twice: what it took too much goes back a moment later.
    let about = |sent: &Sent, most: u64| {
        let left = sent.remaining.unwrap_or_default();
        sent.status == 200 && (most - 10..=most).contains(&left)
    };
    let first = callers.one(0, 0, 0).await;
    assert!(about(&first, 999), "{first:?}");
    let _: Value = value(world.redis()?.query::<String>("SCRIPT FLUSH").await?);
    let next = callers.one(0, 0, 0).await;
    // With the policy `closed` a decision without the store would be a 503.
    assert!(about(&next, 998), "{next:?}");

    let _: Value = value(world.redis()?.query::<String>("SCRIPT FLUSH").await?);
    let _: Value = value(world.redis()?.query::<String>("FLUSHALL").await?);
    let crowd = callers.at_once(1, 50).await?;
    assert_eq!(count(&crowd, 200), 50, "{:?}", crowd.iter().find(|sent| sent.status != 200));
    let last = callers.one(1, 0, 0).await;
    assert!(about(&last, 949), "{last:?}");
    Ok(())
}

fn value(text: String) -> Value {
    Value::String(text)
}

#[tokio::test]
async fn c25_a_lost_listener_loses_no_change() -> anyhow::Result<()> {
    let world = world(Shape { postgres: true, ..small(1) }).await?;
    let callers = callers(&world, &[("acme", plan(10, ALMOST_NEVER, "coarse"))]).await?;
    assert_eq!(callers.one(0, 0, 0).await.capacity_told(), Some(10));
    for capacity in [2, 3, 4] {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = 'plans' AND query ILIKE '%listen%' AND pid <> pg_backend_pid()";
        world.postgres()?.execute("postgres", sql).await?;
        world.control.put_plan("acme", &plan(capacity, ALMOST_NEVER, "coarse")).await?;
        eventually("the change made in the gap is in force", KNOWN_MAX, || async {
            Ok((callers.one(0, 0, 0).await.capacity_told() == Some(capacity)).then_some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn c26_a_key_that_was_refused_opens_as_soon_as_it_may() -> anyhow::Result<()> {
    let world = world(small(2)).await?;
    world.customer("acme", &plan(1_000, "1000/s", "coarse")).await?;
    let (id, key) = world.control.create_key("acme").await?;
    let move_key = async |verb: &str| -> anyhow::Result<()> {
        let path = format!("/v1/keys/{id}:{verb}");
        let call = Call::new(Method::POST, path).query("reason", "test").json(&json!({}));
        let revision = system_tests::control::revision(&world.control.call(call).await?)?;
        world.control.wait_applied(world.gateways.len(), revision).await
    };
    let gateways: Vec<_> = world.gateways.iter().map(|gateway| gateway.traffic).collect();
    let callers = Callers::new(&gateways, &world.services.names(), &[("acme".to_owned(), key)])?;
    move_key("disable").await?;
    // Both gateways now have it among the keys that open nothing.
    assert_eq!(count(&callers.in_turn(0, 6).await, 401), 6);
    let lookups = async || -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for gateway in &world.gateways {
            sum += gateway.counter("weir_key_lookups_total").await?;
        }
        Ok(sum)
    };
    let asked = lookups().await?;
    assert!(asked >= 1.0, "the counter does not count");
    // A crowd with one key that nobody knows is one question, not a thousand.
    let strange = [("nobody".to_owned(), "some-key-of-somebody-else".to_owned())];
    let strangers = Callers::new(&gateways, &world.services.names(), &strange)?;
    for _ in 0..10 {
        let refused = strangers.at_once(0, 100).await?;
        assert_eq!(count(&refused, 401), 100, "{:?}", refused.first());
    }
    let more = lookups().await? - asked;
    assert!(more <= 5.0, "{more} look-ups for one unknown key");
    move_key("enable").await?;
    for gateway in 0..2 {
        eventually("the enabled key opens", KNOWN_MAX, || async {
            Ok((callers.one(0, gateway, 0).await.status == 200).then_some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn c30_an_edit_of_another_plan_hands_out_no_bucket() -> anyhow::Result<()> {
    let mut world = world(Shape { redis: false, ..small(1) }).await?;
    let callers = callers(&world, &[("acme", plan(10, ALMOST_NEVER, "coarse"))]).await?;
    assert_eq!(count(&callers.in_turn(0, 12).await, 200), 10);
    for number in 1..=5 {
        let unrelated = plan(number, "1/s", "coarse");
        let revision = world.control.put_plan("unrelated", &unrelated).await?;
        world.control.wait_applied(1, revision).await?;
        assert_eq!(callers.one(0, 0, 0).await.status, 429, "after edit {number}");
    }
    // The control plane's own restart hands out nothing either.
    world.plans_api.kill()?;
    world.plans_api.restart().await?;
    assert_eq!(callers.one(0, 0, 0).await.status, 429);
    Ok(())
}
