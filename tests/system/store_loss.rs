//! The shared store stops answering: each policy does what it says, nobody hangs, and afterwards
//! decisions are shared again. The control plane stops: traffic does not notice.

use std::time::Duration;

use rustix::process::Signal;
use system_tests::control::plan;
use system_tests::process::eventually;
use system_tests::traffic::{Callers, Sent};
use system_tests::world::World;

use crate::stage::{callers, count, small, worked_on, world};

const ALMOST_NEVER: &str = "1/1000s";
/// Shorter than any time-out of a store client that would be waited for, longer than any pause
/// of a busy test machine.
const HANGS: Duration = Duration::from_secs(1);
const BACK_MAX: Duration = Duration::from_secs(10);

const OPEN: usize = 0;
const COARSE: usize = 1;
const LOCAL: usize = 2;
const CLOSED: usize = 3;
const FRESH: usize = 4;

async fn one_client_for_each_policy(world: &World) -> anyhow::Result<Callers> {
    let plans = [
        ("open", plan(4, ALMOST_NEVER, "open")),
        ("coarse", plan(3, ALMOST_NEVER, "coarse")),
        ("local", plan(12, ALMOST_NEVER, "local")),
        ("closed", plan(4, "100/s", "closed")),
        ("fresh", plan(10, ALMOST_NEVER, "local")),
    ];
    let callers = callers(world, &plans).await?;
    // Every key is known everywhere before anything fails.
    for client in [OPEN, COARSE, LOCAL, CLOSED] {
        for gateway in 0..world.gateways.len() {
            let sent = callers.one(client, gateway, 0).await;
            assert!(sent.status == 200 || sent.status == 429, "{sent:?}");
        }
    }
    world.services.forget_arrivals().await?;
    Ok(callers)
}

fn nobody_hung(all: &[Sent]) {
    let longest = all.iter().max_by_key(|sent| sent.took);
    assert!(longest.is_some_and(|sent| sent.took < HANGS), "{longest:?}");
    assert!(all.iter().all(|sent| sent.status != 0 && sent.status != 500), "{:?}", all.last());
}

#[tokio::test]
async fn c15_a_frozen_redis_costs_nobody_a_timeout_and_each_policy_keeps_its_share()
-> anyhow::Result<()> {
    let mut world = world(small(3)).await?;
    let callers = one_client_for_each_policy(&world).await?;
    world.redis()?.freeze()?;

    let before = degraded(&world).await?;
    let open = callers.in_turn(OPEN, 200).await;
    let told = degraded(&world).await? - before;
    assert!((told - 200.0).abs() < 0.5, "{told} of 200 decisions are told as degraded");
    let closed = callers.in_turn(CLOSED, 200).await;
    let coarse = callers.in_turn(COARSE, 200).await;
    let local = callers.in_turn(LOCAL, 200).await;
    for all in [&open, &closed, &coarse, &local] {
        nobody_hung(all);
    }
    let arrivals = world.services.arrivals().await?;
    assert_eq!(count(&open, 200), 200);
    assert_eq!(count(&closed, 503), 200, "{:?}", closed.first());
    assert!(closed.iter().all(|sent| sent.code.as_deref() == Some("limiter_closed")));
    assert!(closed.iter().all(|sent| sent.by_edge && sent.retry_after.is_some()));
    assert_eq!(worked_on(&closed, &arrivals), 0);
    // Ten times three over three gateways; half of twelve over three gateways.
    let coarse_admitted = worked_on(&coarse, &arrivals);
    assert!((10..=30).contains(&coarse_admitted), "coarse admitted {coarse_admitted}");
    let local_admitted = worked_on(&local, &arrivals);
    assert!(local_admitted <= 6, "local admitted {local_admitted}");
    for refused in coarse.iter().chain(&local).filter(|sent| sent.status != 200) {
        assert_eq!(refused.status, 429, "{refused:?}");
    }

    world.redis()?.thaw()?;
    shared_again(&world, &callers).await?;
    // A bucket that nobody has touched: exact over all gateways.
    let fresh = callers.in_turn(FRESH, 30).await;
    assert_eq!((count(&fresh, 200), count(&fresh, 429)), (10, 20));
    Ok(())
}

/// What an orchestrator hears from each gateway; an answer after [`HANGS`] is none.
async fn probed(world: &World, path: &str) -> anyhow::Result<Vec<u16>> {
    let client = reqwest::Client::builder().no_proxy().timeout(HANGS).build()?;
    let mut statuses = Vec::new();
    for gateway in &world.gateways {
        let url = format!("http://{}{path}", gateway.operations);
        statuses.push(client.get(&url).send().await?.status().as_u16());
    }
    Ok(statuses)
}

#[tokio::test]
async fn c24_probes_cost_no_token_and_need_neither_redis_nor_the_control_plane()
-> anyhow::Result<()> {
    let mut world = world(small(2)).await?;
    let plans =
        [("acme", plan(4, ALMOST_NEVER, "closed")), ("zeta", plan(1_000, "100/s", "closed"))];
    let callers = callers(&world, &plans).await?;
    let probes = async |world: &World| {
        for path in ["/livez", "/readyz"] {
            for _ in 0..50 {
                assert_eq!(probed(world, path).await?, [200, 200], "{path}");
            }
        }
        anyhow::Ok(())
    };
    probes(&world).await?;
    let keys = world.redis()?.query::<Vec<String>>("KEYS weir:{*").await?;
    assert!(keys.is_empty(), "a probe has made {keys:?}");
    assert_eq!(count(&callers.in_turn(0, 6).await, 200), 4, "all tokens are there");
    assert_eq!(count(&callers.in_turn(1, 2).await, 200), 2, "known everywhere");

    world.plans_api.child()?.signal(Signal::STOP)?;
    world.shadow_compare.child()?.signal(Signal::STOP)?;
    probes(&world).await?;
    world.redis()?.freeze()?;
    // Gateways have met it: what they refuse is no reason to restart them.
    let refused = callers.in_turn(1, 100).await;
    assert!(count(&refused, 503) >= 50, "{:?}", refused.first());
    probes(&world).await?;
    world.redis()?.kill()?;
    probes(&world).await
}

/// Decisions without the store, as the gateways count them.
async fn degraded(world: &World) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for gateway in &world.gateways {
        sum += gateway.counter("weir_degraded_decisions_total").await?;
    }
    Ok(sum)
}

/// With `closed` a gateway tells by itself when it decides with the store again.
async fn shared_again(world: &World, callers: &Callers) -> anyhow::Result<()> {
    for gateway in 0..world.gateways.len() {
        eventually("the gateway asks Redis again", BACK_MAX, || async {
            let sent = callers.one(CLOSED, gateway, 0).await;
            Ok((sent.status != 503).then_some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn f01_a_killed_redis_comes_back_empty_and_limits_are_exact_again() -> anyhow::Result<()> {
    let mut world = world(small(2)).await?;
    let callers = one_client_for_each_policy(&world).await?;
    world.redis()?.kill()?;
    let open = callers.in_turn(OPEN, 50).await;
    let closed = callers.in_turn(CLOSED, 50).await;
    nobody_hung(&open);
    nobody_hung(&closed);
    assert_eq!((count(&open, 200), count(&closed, 503)), (50, 50));
    world.redis()?.restart().await?;
    shared_again(&world, &callers).await?;
    let fresh = callers.in_turn(FRESH, 30).await;
    assert_eq!((count(&fresh, 200), count(&fresh, 429)), (10, 20));
    Ok(())
}

#[tokio::test]
async fn the_control_plane_may_stop_and_known_clients_do_not_notice() -> anyhow::Result<()> {
    let mut world = world(small(2)).await?;
    let callers = callers(&world, &[("acme", plan(20, ALMOST_NEVER, "coarse"))]).await?;
    let known = callers.in_turn(0, 4).await;
    assert_eq!(count(&known, 200), 4);
    world.plans_api.child()?.signal(Signal::STOP)?;
    world.shadow_compare.child()?.signal(Signal::STOP)?;
    let frozen = callers.in_turn(0, 10).await;
    assert_eq!(count(&frozen, 200), 10, "{:?}", frozen.first());
    nobody_hung(&frozen);
    world.plans_api.kill()?;
    world.shadow_compare.kill()?;
    let gone = callers.in_turn(0, 10).await;
    assert_eq!((count(&gone, 200), count(&gone, 429)), (6, 4));
    nobody_hung(&gone);
    Ok(())
}

/// What it had borrowed is nobody's until it runs out, and then no more than it was.
#[tokio::test]
async fn f38_a_gateway_that_is_killed_with_borrowed_tokens_mints_none() -> anyhow::Result<()> {
    const CAPACITY: u64 = 300;
    const LEASES_END: Duration = Duration::from_secs(3);
    let mut world = world(small(2)).await?;
    let callers = callers(&world, &[("acme", plan(CAPACITY, ALMOST_NEVER, "closed"))]).await?;
    // Enough in a row that the first gateway borrows ahead.
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += u64::from(callers.one(0, 0, 0).await.status == 200);
    }
    world.gateways[0].child()?.signal(Signal::KILL)?;
    // Until the other one has had nothing for longer than any lease lasts.
    let mut last = tokio::time::Instant::now();
    while last.elapsed() < LEASES_END {
        let sent = callers.one(0, 1, 0).await;
        if sent.status == 200 {
            admitted += 1;
            last = tokio::time::Instant::now();
        } else {
            assert_eq!(sent.status, 429, "{sent:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(admitted <= CAPACITY, "{admitted} of {CAPACITY}");
    assert!(admitted >= CAPACITY * 3 / 4, "{admitted}: a lease is a part of the bucket");
    Ok(())
}
