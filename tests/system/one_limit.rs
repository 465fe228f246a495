//! A client's limit holds over three services with three replicas each and three gateways.

use system_tests::control::plan;
use system_tests::oracle::Origin;

use crate::stage::{callers, count, wide, worked_on, world};

/// So slow that nothing is earned during a test.
const ALMOST_NEVER: &str = "1/1000s";

#[tokio::test]
async fn ninety_requests_over_every_door_get_ten_tokens() -> anyhow::Result<()> {
    let world = world(wide(3)).await?;
    let acme = plan(10, ALMOST_NEVER, "coarse");
    let callers = callers(&world, &[("acme", acme.clone()), ("zeta", acme)]).await?;
    world.services.forget_arrivals().await?;

    let sent = callers.at_once(0, 90).await?;
    assert_eq!((count(&sent, 200), count(&sent, 429)), (10, 80), "{:?}", sent.first());
    for refused in sent.iter().filter(|sent| sent.status == 429) {
        assert!(refused.by_edge, "a service has refused: {refused:?}");
        assert!(refused.retry_after.is_some_and(|seconds| seconds >= 1), "{refused:?}");
        assert_eq!(refused.code.as_deref(), Some("quota_exceeded"), "{refused:?}");
        assert_eq!(refused.remaining, Some(0), "{refused:?}");
    }
    let arrivals = world.services.arrivals().await?;
    assert_eq!(worked_on(&sent, &arrivals), 10);
    let origin = Origin::new(&arrivals);
    assert_eq!((origin.refused_and_arrived(&sent), origin.twice), (0, 0));
    assert_eq!(arrivals.len(), 10);

    // Another client of the same size is not touched by that.
    let other = callers.at_once(1, 12).await?;
    assert_eq!(count(&other, 200), 10);
    Ok(())
}

#[tokio::test]
async fn c11_route_instance_and_revision_are_no_part_of_the_bucket() -> anyhow::Result<()> {
    let mut world = world(wide(1)).await?;
    let callers = callers(&world, &[("acme", plan(9, ALMOST_NEVER, "coarse"))]).await?;
    let buckets = async |world: &mut system_tests::world::World| {
        world.redis()?.query::<Vec<String>>("KEYS weir:{*").await
    };

    // Nine requests on each pair of gateway and route, with another revision half-way.
    let first = callers.in_turn(0, 40).await;
    assert_eq!(buckets(&mut world).await?.len(), 1);
    let revision = world.control.put_plan("unrelated", &plan(5, "1/s", "coarse")).await?;
    world.control.wait_applied(world.gateways.len(), revision).await?;
    let second = callers.in_turn(0, 41).await;

    let all: Vec<_> = first.into_iter().chain(second).collect();
    assert_eq!((count(&all, 200), count(&all, 429)), (9, 72));
    let keys = buckets(&mut world).await?;
    assert_eq!(keys.len(), 1, "{keys:?}");
    Ok(())
}
