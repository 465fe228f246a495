//! Rows that somebody's hand has made unreadable: they concern nobody but themselves. On both back
//! ends.

use std::time::Duration;

use daemon::sql::Database;
use serde_json::json;
use wire::client::plans::Whom;
use wire::key::{KeyEnv, KeyHash, Pepper};
use wire::rollout::Phase;

use crate::api::{Api, feed_request};

/// Writes what the second door would refuse.
async fn past_all_doors(api: &Api, constraint: (&str, &str), sql: &str) {
    let (table, name) = constraint;
    let database = api.by_hand().await;
    let open = match &database {
        Database::Postgres(..) => format!("alter table {table} drop constraint {name}"),
        Database::Sqlite { .. } => "pragma ignore_check_constraints = on".to_owned(),
    };
    let mut tx = database.write().await.unwrap();
    tx.run_text(&open).await.unwrap();
    tx.run_text(sql).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
}

pub(crate) async fn c08_a_damaged_key_client_or_rollout_holds_up_nobody_else(api: &Api) {
    const SECOND: Duration = Duration::from_secs(5);
    let pepper = std::fs::read(api.state_dir.path().join("pepper")).unwrap();
    let pepper = Pepper::from_bytes(&pepper).unwrap();
    api.plan("pro").await;
    let mut hashes = Vec::new();
    for client in ["sound", "odd-client", "odd-key"] {
        api.client(client, "pro").await;
        let made = api.operator.create_key(client, KeyEnv::Live, None, "test").await.unwrap();
        hashes.push(KeyHash::of_key(&made.key, &pepper));
    }
    let everybody = Whom::Clients(vec!["sound".to_owned()]);
    api.operator.set_rollout("edge", &everybody, Phase::Shadow, "CHG-1").await.unwrap();
    let whole = api.gateway.lookup(hashes.clone(), SECOND).await.unwrap();
    assert_eq!((whole.found.len(), whole.missing.len()), (3, 0));

    let odd = "update client set state = 'asleep' where id = 'odd-client'";
    past_all_doors(api, ("client", "client_state"), odd).await;
    let odd = "update api_key set state = 'lost' where client = 'odd-key'";
    past_all_doors(api, ("api_key", "api_key_state"), odd).await;
    let left = api.gateway.lookup(hashes.clone(), SECOND).await.unwrap();
    let found: Vec<KeyHash> = left.found.iter().map(|found| found.hash).collect();
    assert_eq!(found, [hashes[0]], "the sound one is told");
    assert_eq!(left.missing, [], "of the others nothing: that they are nobody's would be a lie");
    let listed = api.viewer.keys(None).await.unwrap();
    assert_eq!(listed.len(), 2, "one that cannot be read hides no other: {listed:?}");

    let odd = "update plan set burst_tokens = -5";
    past_all_doors(api, ("plan", "plan_burst_refill"), odd).await;
    let plan = api.gateway.snapshot().await.unwrap().plans.pop().unwrap();
    assert!(plan.check().is_err(), "a negative refill is no allowance without one: {plan:?}");

    let odd = "update rollout_rule set phase = 'maybe'";
    past_all_doors(api, ("rollout_rule", "rollout_rule_phase"), odd).await;
    let snapshot = api.gateway.snapshot().await.unwrap();
    assert_eq!(snapshot.plans.len(), 1, "its damage withholds no plan");
    let rollout = snapshot.rollout.expect("it is told, so that gateways can name it");
    assert_eq!((rollout.name.as_str(), rollout.rules.len()), ("edge", 0));
    assert!(rollout.share_bp > 10_000, "and every gateway refuses it: {rollout:?}");
}

pub(crate) async fn no_damaged_row_hides_the_rest_of_its_list(api: &Api) {
    api.plan("pro").await;
    let ends = crate::catalog::now() + crate::catalog::HOUR;
    for client in ["sound", "odd", "half"] {
        api.client(client, "pro").await;
        let own = json!({ "burst": { "capacity": 20, "refill": "1/s" }, "expires_at": ends });
        api.operator.put_override(client, &own, "test", None).await.unwrap();
    }
    let start = api.gateway.snapshot().await.unwrap();
    for id in ["gw-1", "gw-2"] {
        api.gateway.feed(&feed_request(id, &start.history, 0, 0)).await.unwrap();
    }
    let tokens = api.admin.tokens().await.unwrap().len();
    assert_eq!(api.service.safety_limits().await.unwrap().overrides.len(), 3);

    let odd = "update client set state = 'asleep' where id = 'odd'";
    past_all_doors(api, ("client", "client_state"), odd).await;
    let half = "update client_override set burst_per_us = null where client = 'half'";
    past_all_doors(api, ("client_override", "client_override_burst_whole"), half).await;
    let negative = "update client_override set burst_tokens = -1 where client = 'odd'";
    past_all_doors(api, ("client_override", "client_override_burst_refill"), negative).await;
    let role = "update operator_token set role = 'king' where name = 'support'";
    past_all_doors(api, ("operator_token", "operator_token_role"), role).await;
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text("update gateway set routes = 'x' where id = 'gw-1'").await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;

    let clients = api.viewer.clients().await.unwrap();
    let clients: Vec<&str> = clients.iter().map(|client| client.id.as_str()).collect();
    assert_eq!(clients, ["sound"], "half a limit is none with 0 in it");
    assert_eq!(api.admin.tokens().await.unwrap().len(), tokens - 1);
    let gateways = api.viewer.gateways().await.unwrap();
    assert_eq!(gateways.iter().map(|gateway| gateway.id.as_str()).collect::<Vec<_>>(), ["gw-2"]);
    let limits = api.service.safety_limits().await.unwrap().overrides;
    assert_eq!(limits.iter().map(|own| own.client.as_str()).collect::<Vec<_>>(), ["sound"]);
}
