//! A plan change travels from the operator's command to every gateway, and no request sees half
//! of it.

use std::collections::BTreeSet;
use std::time::Duration;

use system_tests::control::plan;
use system_tests::process::eventually;
use system_tests::world::Shape;

use crate::stage::{callers, small, world};

/// The promise is a second; a test machine that does other things too gets more.
const APPLIED_MAX: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_command_changes_the_plan_on_every_gateway_and_nobody_sees_half_of_it()
-> anyhow::Result<()> {
    let world = world(Shape { postgres: true, ..small(3) }).await?;
    let callers = callers(&world, &[("acme", plan(1_000, "1000/s", "coarse"))]).await?;
    let told = async |gateway: usize| callers.one(0, gateway, 0).await;
    let before = told(0).await;
    assert_eq!((before.status, before.capacity_told()), (200, Some(1_000)), "{before:?}");

    // Both numbers change at once; a mixture would show as a third window.
    let args = ["plan", "set", "acme", "--burst", "500@5/s", "--reason", "test", "--yes"];
    let said = world.weir(&args).await?;
    assert_eq!(said.code, 0, "{said:?}");
    let mut policies = BTreeSet::from([before.policy.clone().unwrap_or_default()]);
    for gateway in 0..3 {
        let new = eventually("the new plan is told", APPLIED_MAX, || async {
            let sent = told(gateway).await;
            assert!(sent.status == 200 || sent.status == 429, "{sent:?}");
            Ok((sent.capacity_told() == Some(500)).then_some(sent))
        })
        .await?;
        policies.insert(new.policy.unwrap_or_default());
    }
    assert_eq!(policies.len(), 2, "{policies:?}");

    // The acknowledgement is what `--wait` waits for, and it names all gateways.
    let args =
        ["plan", "set", "acme", "--burst", "700@7/s", "--reason", "test", "--yes", "--wait=10s"];
    let said = world.weir(&args).await?;
    assert_eq!(said.code, 0, "{said:?}");
    for gateway in 0..3 {
        assert_eq!(told(gateway).await.capacity_told(), Some(700));
    }
    Ok(())
}

#[tokio::test]
async fn a_refused_plan_changes_nothing_and_the_command_fails() -> anyhow::Result<()> {
    let world = world(small(1)).await?;
    let callers = callers(&world, &[("acme", plan(30, "1/s", "coarse"))]).await?;
    let head = world.control.applied().await?;
    for burst in ["0@1/s", "10@-1/s", "10@10/mn", "0x10@1/s", "10@nan"] {
        let said = world
            .weir(&["plan", "set", "acme", "--burst", burst, "--reason", "test", "--yes"])
            .await?;
        assert!(matches!(said.code, 13 | 64), "{burst}: {said:?}");
        let value = burst.split('@').find(|part| said.stderr.contains(part));
        assert!(value.is_some(), "the value is not named: {said:?}");
    }
    assert_eq!(world.control.applied().await?, head);
    assert_eq!(callers.one(0, 0, 0).await.capacity_told(), Some(30));
    Ok(())
}
