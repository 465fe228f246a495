//! Rows of CASES.md that need more than one process, named by their id.

use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sqlx::Row as _;
use system_tests::control::plan;
use system_tests::oracle::float;
use system_tests::process::eventually;
use system_tests::traffic::{Callers, Sent};
use system_tests::world::{PLANS_DATABASE, Shape, World};
use wire::client::{Call, Method};

use crate::stage::{callers, count, small, world};

const ALMOST_NEVER: &str = "1/1000s";
const KNOWN_MAX: Duration = Duration::from_secs(10);
const THOUSAND: u64 = 1_000;
/// Crowds that a busy machine may spoil.
const CROWDS_MAX: usize = 6;
/// Of a gateway to its store.
const CONNECTIONS: f64 = 2.0;

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
    let mut world = world(small(1)).await?;
    // With the policy `closed` a decision without the store is a 503.
    let thousand = plan(THOUSAND, ALMOST_NEVER, "closed");
    let names: Vec<String> = (0..=CROWDS_MAX).map(|number| format!("crowd-{number}")).collect();
    let plans: Vec<_> = names.iter().map(|name| (name.as_str(), thousand.clone())).collect();
    let callers = callers(&world, &plans).await?;
    // Something for the store to forget.
    let _decided = callers.one(0, 0, 0).await;
    // A machine on which two hundred take longer than a decision may wait is no fault of a script.
    // What holds then is demanded of every crowd, and of one of them that all are admitted.
    let mut told = String::new();
    for client in 1..=CROWDS_MAX {
        let before = Counted::at(&world).await?;
        for command in ["FLUSHALL", "SCRIPT FLUSH"] {
            let _ok: String = world.redis()?.query(command).await?;
        }
        let mut all = vec![callers.one(client, 0, 0).await];
        let _ok: String = world.redis()?.query("SCRIPT FLUSH").await?;
        all.push(callers.one(client, 0, 0).await);
        let _ok: String = world.redis()?.query("SCRIPT FLUSH").await?;
        all.extend(callers.at_once(client, 200).await?);
        let late = all.len() - count(&all, 200);
        let exact = until_exact(&callers, client, &mut all).await;
        let now = Counted::at(&world).await?;
        told = format!("{late} waited for too long; {before:?}, then {now:?}");
        // Nobody knows what became of a call without an answer.
        if now.lost > before.lost {
            continue;
        }
        exact.context(told.clone())?;
        assert_none_is_promised_twice(&all);
        assert!(now.script_loads - before.script_loads <= 3.0 * CONNECTIONS, "{told}");
        assert!(now.refused <= before.refused, "an error decided: {told}");
        // Whoever was not admitted had waited for too long: nothing else was a reason.
        let refused = all.iter().filter(|sent| sent.status != 200);
        assert!(refused.clone().all(|sent| sent.code.as_deref() == Some("limiter_closed")));
        for counted in [now.degraded - before.degraded, now.late - before.late] {
            assert!((counted - float(refused.clone().count())).abs() < 0.5, "{told}");
        }
        if late == 0 {
            return Ok(());
        }
    }
    anyhow::bail!("no crowd was admitted as a whole; of the last one {told}")
}

/// Asks until what is told to be left is just what was not taken: tokens that were granted twice, or
/// too late, are on their way back for a moment.
async fn until_exact(callers: &Callers, client: usize, all: &mut Vec<Sent>) -> anyhow::Result<()> {
    let all = Mutex::new(all);
    eventually("all that nobody took is back", KNOWN_MAX, || async {
        let sent = callers.one(client, 0, 0).await;
        let mut all = all.lock();
        let left = sent.remaining;
        all.push(sent);
        Ok((left == THOUSAND.checked_sub(count(&all, 200) as u64)).then_some(()))
    })
    .await
}

/// Whoever was admitted as the n-th left room for so many at most.
fn assert_none_is_promised_twice(all: &[Sent]) {
    let admitted = all.iter().filter(|sent| sent.status == 200);
    let mut told: Vec<u64> = admitted.map(|sent| sent.remaining.unwrap_or(u64::MAX)).collect();
    told.sort_unstable_by(|a, b| b.cmp(a));
    for (number, told) in (1..).zip(&told) {
        assert!(*told <= THOUSAND - number, "{told} told to one of the first {number}");
    }
}

/// What a gateway has counted of its store.
#[derive(Debug)]
struct Counted {
    degraded: f64,
    late: f64,
    refused: f64,
    lost: f64,
    script_loads: f64,
}

impl Counted {
    async fn at(world: &World) -> anyhow::Result<Counted> {
        let gateway = world.gateways.first().context("a gateway")?;
        Ok(Counted {
            degraded: gateway.counter("weir_degraded_decisions_total").await?,
            late: gateway.counter("weir_degraded_decisions_total{reason=\"deadline\"}").await?,
            refused: gateway.counter("weir_store_refused_total").await?,
            lost: gateway.counter("weir_store_lost_total").await?,
            script_loads: gateway.counter("weir_store_script_loads_total").await?,
        })
    }
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
        let call = call.if_match_or_insist(None);
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
            sum += gateway.counter("weir_key_lookups_total{result=\"call\"}").await?;
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
