//! What an operator says about one client and its keys, as real gateways understand it.

use std::time::Duration;

use limiter_core::{Clock as _, SystemClock};
use serde_json::{Value, json};
use system_tests::control::{plan, revision};
use system_tests::process::eventually;
use system_tests::traffic::Callers;
use system_tests::world::World;
use wire::client::{Call, Method};

use crate::stage::{callers, count, small, world};

const ALMOST_NEVER: &str = "1/1000s";
/// Until a change or an end is in force.
const KNOWN_MAX: Duration = Duration::from_secs(10);

/// A key of another system, and what that system gives away: its SHA-256.
const KEY: &str = "sk_test_made_elsewhere";
const SHA256: &str = "d9a1ce2cf602d3c8a994b0b3bd3cec6ec6593826f1ee6fce01f83252e00d121c";

fn now_ms() -> u64 {
    SystemClock::new().now().us() / 1_000
}

fn with_key(world: &World, key: &str) -> anyhow::Result<Callers> {
    let gateways: Vec<_> = world.gateways.iter().map(|gateway| gateway.traffic).collect();
    let keys = [("acme".to_owned(), key.to_owned())];
    Callers::new(&gateways, &world.services.names(), &keys)
}

async fn post(world: &World, path: &str, body: &Value) -> anyhow::Result<Value> {
    let call = Call::post(path, body).if_match_or_insist(None);
    let said = world.control.call(call).await?;
    world.control.wait_applied(world.gateways.len(), revision(&said)?).await?;
    Ok(said)
}

#[tokio::test]
async fn a_key_made_elsewhere_opens_every_gateway_and_rotates_into_one_of_ours()
-> anyhow::Result<()> {
    let world = world(small(2)).await?;
    world.customer("acme", &plan(20, ALMOST_NEVER, "coarse")).await?;
    let imported = with_key(&world, KEY)?;
    assert_eq!(count(&imported.in_turn(0, 2).await, 401), 2, "nobody has it yet");
    let body = json!({ "keys": [{ "sha256": SHA256, "client": "acme" }] });
    let said = post(&world, "/v1/keys:import", &body).await?;
    let id = said.pointer("/items/0/id").and_then(Value::as_str).unwrap_or_default().to_owned();
    for gateway in 0..2 {
        eventually("the imported key opens", KNOWN_MAX, || async {
            Ok((imported.one(0, gateway, 0).await.status == 200).then_some(()))
        })
        .await?;
    }
    let said = post(&world, &format!("/v1/keys/{id}:rotate"), &json!({})).await?;
    let key = said.get("key").and_then(Value::as_str).unwrap_or_default();
    let ours = with_key(&world, key)?;
    assert_eq!(count(&ours.in_turn(0, 8).await, 200), 8);
    let rest = imported.in_turn(0, 20).await;
    assert_eq!((count(&rest, 200), count(&rest, 429)), (10, 10), "one bucket: {:?}", rest.first());
    // A leak: both end, and what is shown now opens.
    let said = post(&world, &format!("/v1/keys/{id}:rotate"), &json!({ "overlap_ms": 0 })).await?;
    let last = with_key(&world, said.get("key").and_then(Value::as_str).unwrap_or_default())?;
    assert_eq!(count(&ours.in_turn(0, 2).await, 401), 2);
    assert_eq!(count(&imported.in_turn(0, 2).await, 401), 2);
    assert_eq!(count(&last.in_turn(0, 2).await, 429), 2, "still the same bucket");
    Ok(())
}

#[tokio::test]
async fn limits_of_one_clients_own_hold_at_every_gateway_until_their_end() -> anyhow::Result<()> {
    let world = world(small(2)).await?;
    let plans = [("acme", plan(30, ALMOST_NEVER, "coarse"))];
    let callers = callers(&world, &plans).await?;
    assert_eq!(callers.one(0, 0, 0).await.capacity_told(), Some(30));
    let put = async |own: Value| -> anyhow::Result<()> {
        let call = Call::new(Method::PUT, "/v1/clients/acme/override").json(&own);
        let said = world.control.call(call.if_match_or_insist(None)).await?;
        world.control.wait_applied(2, revision(&said)?).await
    };
    let burst = json!({ "capacity": 50, "refill": ALMOST_NEVER });
    let hour = now_ms() + 3_600_000;
    put(json!({ "burst": burst, "expires_at": hour })).await?;
    for gateway in 0..2 {
        assert_eq!(callers.one(0, gateway, 0).await.capacity_told(), Some(50));
    }
    put(json!({ "burst": burst, "expires_at": now_ms() + 5_000 })).await?;
    for gateway in 0..2 {
        eventually("its end, which nobody tells", KNOWN_MAX, || async {
            Ok((callers.one(0, gateway, 0).await.capacity_told() == Some(30)).then_some(()))
        })
        .await?;
    }
    Ok(())
}
