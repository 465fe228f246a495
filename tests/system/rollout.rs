//! Shadow changes nothing, the gate asks for evidence, enforcing refuses, rolling back is at once.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use system_tests::control::{ROLLOUT, plan, revision};
use system_tests::process::eventually;
use system_tests::traffic::{Callers, Sent};
use system_tests::world::{Said, World};

use crate::stage::{callers, count, small, world};

const ALMOST_NEVER: &str = "1/1000s";
const EVIDENCE_MAX: Duration = Duration::from_secs(20);
const NOISY: usize = 0;
const QUIET: usize = 1;

async fn shadow_world() -> anyhow::Result<(World, Callers)> {
    let world = world(small(2)).await?;
    let plans = [
        ("noisy", plan(5, ALMOST_NEVER, "coarse")),
        ("quiet", plan(100_000, "100000/s", "coarse")),
    ];
    let callers = callers(&world, &plans).await?;
    set_all_shadow(&world).await?;
    Ok((world, callers))
}

async fn set_all_shadow(world: &World) -> anyhow::Result<()> {
    let revision = revision(&world.control.set_all("shadow").await?)?;
    world.control.wait_applied(world.gateways.len(), revision).await
}

async fn enforce_all(world: &World) -> anyhow::Result<Said> {
    let args = ["rollout", "set", ROLLOUT, "enforce", "--all", "--reason", "test", "--yes"];
    world.weir(&args).await
}

/// The gate's report.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Evidence {
    pairs: u64,
    disagreements: u64,
    stricter: u64,
    undecided: u64,
    lost: u64,
}

/// The gate's report once it knows of all `requests`. A busy machine may leave a few of them
/// undecided; they are told, and never pairs.
async fn evidence(world: &World, requests: usize) -> anyhow::Result<Evidence> {
    let what = format!("{requests} requests in the gate's report");
    eventually(&what, EVIDENCE_MAX, || async {
        let gate = world.control.get(&format!("/v1/gates/{ROLLOUT}")).await?;
        let number = |name: &str| gate.pointer(&format!("/report/{name}")).and_then(Value::as_u64);
        let evidence = || {
            Some(Evidence {
                pairs: number("pairs")?,
                disagreements: number("disagreements")?,
                stricter: number("stricter")?,
                undecided: number("undecided")?,
                lost: number("lost")?,
            })
        };
        let evidence = evidence().with_context(|| format!("no report in {gate}"))?;
        Ok((evidence.pairs + evidence.undecided >= requests as u64).then_some(evidence))
    })
    .await
}

/// Sixteen at a time, so that the client's capacity is never in question.
async fn many(callers: &Callers, client: usize, requests: usize) -> anyhow::Result<Vec<Sent>> {
    let mut all = Vec::new();
    for _ in 0..requests.div_ceil(16) {
        all.extend(callers.at_once(client, 16).await?);
    }
    assert_eq!(count(&all, 200), all.len());
    Ok(all)
}

#[tokio::test]
async fn shadow_refuses_nobody_and_tells_nothing() -> anyhow::Result<()> {
    let (world, callers) = shadow_world().await?;
    world.services.forget_arrivals().await?;
    let sent = callers.in_turn(NOISY, 25).await;
    assert_eq!(count(&sent, 200), 25);
    assert!(sent.iter().all(|s| !s.limit_headers && s.retry_after.is_none() && !s.by_edge));
    assert_eq!(world.services.arrivals().await?.len(), 25);
    // What would have been is counted all the same.
    let counted = evidence(&world, 25).await?;
    assert_eq!((counted.pairs + counted.undecided, counted.lost), (25, 0), "{counted:?}");
    assert!(counted.undecided <= 2, "{counted:?}");
    assert!((18..=20).contains(&counted.stricter), "{counted:?}");
    Ok(())
}

#[tokio::test]
async fn enforcing_everybody_needs_evidence_and_rolling_back_needs_none() -> anyhow::Result<()> {
    let (world, callers) = shadow_world().await?;
    let said = enforce_all(&world).await?;
    assert_eq!(said.code, 4, "without pairs: {said:?}");
    let all = many(&callers, QUIET, 3_200).await?;
    let counted = evidence(&world, all.len()).await?;
    assert_eq!(counted.disagreements, 0, "{counted:?}");
    let said = enforce_all(&world).await?;
    assert_eq!(said.code, 0, "with pairs that agree: {said:?}");
    wait_for_head(&world).await?;
    let enforced = callers.in_turn(NOISY, 20).await;
    assert_eq!((count(&enforced, 200), count(&enforced, 429)), (5, 15));

    let back = ["rollout", "rollback", ROLLOUT, "--reason", "test", "--yes", "--wait=10s"];
    let said = world.weir(&back).await?;
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(count(&callers.in_turn(NOISY, 20).await, 200), 20);
    // Shadow was entered anew: the old evidence does not open the gate again.
    assert_eq!(enforce_all(&world).await?.code, 4);
    Ok(())
}

async fn wait_for_head(world: &World) -> anyhow::Result<()> {
    let rollout = world.control.get(&format!("/v1/rollouts/{ROLLOUT}")).await?;
    let revision = revision(&rollout)?;
    world.control.wait_applied(world.gateways.len(), revision).await
}

#[tokio::test]
async fn c33_decisions_without_a_store_are_no_agreements() -> anyhow::Result<()> {
    let (mut world, callers) = shadow_world().await?;
    // Real pairs: 3 200 that agree and 10 that do not.
    let agreeing = many(&callers, QUIET, 3_200).await?.len();
    let noisy = callers.in_turn(NOISY, 15).await;
    assert_eq!(count(&noisy, 200), 15);
    let real = evidence(&world, agreeing + noisy.len()).await?;
    assert!((8..=10).contains(&real.disagreements), "{real:?}");
    // Then the edge has no opinion, and says so.
    world.redis()?.freeze()?;
    let degraded = many(&callers, QUIET, 1_600).await?.len();
    let all = evidence(&world, agreeing + noisy.len() + degraded).await?;
    // What was lent before the store froze still pays for some, within a second.
    let paid = all.pairs - real.pairs;
    let expected = Evidence {
        pairs: real.pairs + paid,
        undecided: real.undecided + degraded as u64 - paid,
        ..real
    };
    assert_eq!(all, expected, "undecided decisions are pairs");
    assert!(paid <= 200, "only leases pay without a store: {paid}");
    assert_eq!(all.lost, 0);
    // 10 of 3 215 is 0.31 %. With enough of the undecided as agreements it would pass.
    let said = enforce_all(&world).await?;
    assert_eq!(said.code, 3, "{said:?}");
    let said = world.weir(&["gate", "status", ROLLOUT]).await?;
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.stdout.to_lowercase().contains("undecided"), "{said:?}");
    Ok(())
}
