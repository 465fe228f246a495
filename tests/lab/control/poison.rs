//! Damaged objects straight into the database, under load: nobody else may notice, nothing may end,
//! and every plan that no gateway takes is named.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use system_tests::control::plan;
use system_tests::oracle::float;
use system_tests::process::eventually;
use system_tests::world::PLANS_DATABASE;
use tokio::time::{Instant, sleep_until};

use super::mutations::{self, Mutation};
use super::scene::{BAD, FRESH, GREEDY, LOADED, SOUND, Scene, sound};
use super::{Extent, Sabotage};
use crate::report::{Limit, Report};

/// How soon a sound change must be seen while the database is poisoned: gateways that cannot be
/// told a change read the whole policy first.
const SEEN_MAX: Duration = Duration::from_secs(10);
/// How soon a new gateway must serve from a poisoned database.
const START_MAX: Duration = Duration::from_secs(10);
/// Fewest damaged objects.
const POISONED_MIN: f64 = 200.0;

/// Takes away every constraint that a hand-made row would fail.
const NO_DOORS: &str = "do $$ declare r record; begin \
    for r in select conrelid::regclass as of, conname from pg_constraint \
    where contype in ('c', 'f') and connamespace = 'public'::regnamespace loop \
    execute format('alter table %s drop constraint %I', r.of, r.conname); end loop; end $$";

/// What happened to those who had nothing to do with it.
#[derive(Debug, Default)]
struct Neighbours {
    checked: usize,
    touched: usize,
    examples: Vec<String>,
}

impl Neighbours {
    fn saw(&mut self, fine: bool, what: impl FnOnce() -> String) {
        self.checked += 1;
        if !fine {
            self.touched += 1;
            self.examples.push(what());
        }
    }
}

pub async fn play(
    scene: &mut Scene,
    extent: &Extent,
    sabotage: Option<Sabotage>,
    random: &mut fastrand::Rng,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut database = scene.world.postgres()?.connect(PLANS_DATABASE).await?;
    run(&mut database, NO_DOORS).await?;
    let mut all = mutations::all();
    random.shuffle(&mut all);
    // The last one is a change that cannot be told, so that every gateway reads the rows.
    all.push(Mutation {
        row: None,
        change: ("plan", super::scene::bad(0), Some("the last".to_owned())),
        breaks_plan: None,
    });
    let load = scene.load(extent.poison, random);
    let began = Instant::now();
    let mut neighbours = Neighbours::default();
    let count = u32::try_from(all.len())?;
    let beats = u32::try_from(FRESH)?;
    for (number, mutation) in (0_u32..).zip(&all) {
        // All in the first three quarters, so that what they lead to is under load too.
        sleep_until(began + extent.poison * 3 / 4 * number / count).await;
        let statement = mutation.transaction();
        run(&mut database, &statement).await.with_context(|| format!("{mutation:?}"))?;
        let beat = number * beats / count;
        if (number + 1) * beats / count > beat {
            neighbours_go_on(scene, usize::try_from(beat)?, &mut neighbours).await?;
        }
        if sabotage == Some(Sabotage::CarelessHand) && number == count / 2 {
            let careless = careless_hand();
            run(&mut database, &careless).await?;
        }
    }
    let sent = load.await??;
    database.close().await?;
    let stretch = scene.judge("poisoned", &sent, report).await?;
    a_new_gateway_serves(scene, &mut neighbours).await?;
    let unnamed = not_named(scene, &all).await?;

    report.require("poisoned", float(all.len()), Limit::AtLeast(POISONED_MIN));
    report.require("panics", float(ended_or_panicked(scene)?), Limit::Exactly(0.0));
    let touched = float(stretch.touched + neighbours.touched);
    report.require("other_clients_touched", touched, Limit::Exactly(0.0));
    report.require("poisoned_plans_not_named", float(unnamed.len()), Limit::Exactly(0.0));
    report.round(json!({ "neighbours": neighbours.checked, "touched": neighbours.examples,
        "requests": stretch.requests, "unnamed": unnamed }));
    Ok(())
}

async fn run(database: &mut PgConnection, sql: &str) -> anyhow::Result<()> {
    database.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await?;
    Ok(())
}

/// A client that nobody meant is suspended.
fn careless_hand() -> String {
    let id = sound(3);
    let value = format!(
        r#"{{"id":"{id}","plan":"{id}","state":"suspended","reset_revision":0,"revision":9000000}}"#
    );
    Mutation {
        row: Some(format!("update client set state = 'suspended' where id = '{id}'")),
        change: ("client", id, Some(value)),
        breaks_plan: None,
    }
    .transaction()
}

/// A change of a sound plan is seen, a key that no gateway knows opens at once, and a revoked one
/// closes.
async fn neighbours_go_on(
    scene: &Scene,
    beat: usize,
    neighbours: &mut Neighbours,
) -> anyhow::Result<()> {
    let client = 4 + beat % (SOUND - 4);
    let capacity = 2_000 + beat as u64;
    let fresh = GREEDY + 1 + BAD + beat;
    for gateway in 0..LOADED {
        let sent = scene.callers.one(fresh, gateway, 0).await;
        neighbours.saw(sent.status == 200, || format!("a key seen first: {sent:?}"));
    }
    let control = &scene.world.control;
    control.put_plan(&sound(client), &plan(capacity, "500/s", "coarse")).await?;
    let (id, _) = scene.keys.get(fresh).context("no such key")?;
    control.revoke_key(id).await?;
    for gateway in 0..LOADED {
        let changed = eventually("a sound change", SEEN_MAX, || async {
            let sent = scene.callers.one(client, gateway, 0).await;
            Ok((sent.capacity_told() == Some(capacity)).then_some(()))
        });
        let changed = changed.await.is_ok();
        neighbours.saw(changed, || format!("gateway {gateway} did not hear of {client}"));
        let closed = eventually("a revoked key", SEEN_MAX, || async {
            Ok((scene.callers.one(fresh, gateway, 0).await.status == 401).then_some(()))
        });
        let closed = closed.await.is_ok();
        neighbours.saw(closed, || format!("gateway {gateway} lets key {beat} in"));
    }
    Ok(())
}

/// One that has nothing but what the poisoned database tells.
async fn a_new_gateway_serves(
    scene: &mut Scene,
    neighbours: &mut Neighbours,
) -> anyhow::Result<()> {
    scene.world.add_gateway(|_same| {}).await?;
    let gateways: Vec<_> = scene.world.gateways.last().map(|new| new.traffic).into_iter().collect();
    let keys: Vec<(String, String)> =
        scene.keys.iter().take(SOUND).map(|(id, key)| (id.clone(), key.clone())).collect();
    let services = scene.world.services.names();
    let callers = system_tests::traffic::Callers::new(&gateways, &services, &keys)?;
    let deadline = Instant::now() + START_MAX;
    for client in 0..SOUND {
        let mut sent = callers.one(client, 0, 0).await;
        while sent.status == 503 && Instant::now() < deadline {
            sent = callers.one(client, 0, 0).await;
        }
        neighbours.saw(sent.status == 200, || format!("a new gateway: {sent:?}"));
    }
    Ok(())
}

/// Plans whose rows nobody takes, and that some gateway does not name.
async fn not_named(scene: &Scene, all: &[Mutation]) -> anyhow::Result<BTreeSet<String>> {
    let broken: BTreeSet<String> =
        all.iter().filter_map(|mutation| mutation.breaks_plan.clone()).collect();
    let missing = async || {
        let answer = scene.world.control.get("/v1/gateways").await?;
        let items = answer.get("items").and_then(Value::as_array).context("no items")?;
        let mut missing = BTreeSet::new();
        for item in items.iter().filter(|item| item.get("live") == Some(&json!(true))) {
            let rejected = item.get("rejected").and_then(Value::as_array);
            let named: BTreeSet<&str> = rejected
                .into_iter()
                .flatten()
                .filter(|object| object.get("kind") == Some(&json!("plan")))
                .filter_map(|object| object.get("id")?.as_str())
                .collect();
            missing.extend(broken.iter().filter(|name| !named.contains(name.as_str())).cloned());
        }
        anyhow::Ok(missing)
    };
    let named = eventually("all are named", SEEN_MAX, || async {
        Ok(missing().await?.is_empty().then_some(()))
    });
    if named.await.is_ok() {
        return Ok(BTreeSet::new());
    }
    missing().await
}

/// Programs that have ended, and panics in their logs.
fn ended_or_panicked(scene: &mut Scene) -> anyhow::Result<usize> {
    let mut ended = usize::from(!scene.world.plans_api.child()?.is_alive());
    for gateway in &mut scene.world.gateways {
        ended += usize::from(!gateway.child()?.is_alive());
    }
    let mut panics = 0;
    for entry in std::fs::read_dir(scene.world.dir())? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "log") {
            let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            panics += log.matches("panicked at").count();
        }
    }
    Ok(ended + panics)
}
