//! Changes made by another process over the same Postgres.

use std::time::Duration;

use serde_json::json;
use wire::client::plans::PlansClient;

use crate::api::{Api, feed_request};
use crate::postgres::Postgres;
use crate::scenarios::until;

const LISTENERS: &str = "select count(*) as n from pg_stat_activity where application_name = 'weir doorbell' \
     and datname = current_database()";
const CUT: &str = "select count(pg_terminate_backend(pid)) as n from pg_stat_activity \
     where application_name = 'weir doorbell' and datname = current_database()";

#[tokio::test]
async fn c25_a_change_in_the_gap_of_a_lost_doorbell_is_delivered() {
    let postgres = Postgres::start().await;
    let api = Api::on(postgres.database("c25")).await;
    let (elsewhere, drain, served) = api.second().await;
    let database = api.by_hand().await;
    let count = async |sql: &'static str| {
        let mut tx = database.write().await.unwrap();
        tx.row(sql, []).await.unwrap().unwrap().int("n").unwrap()
    };
    until("both listen", async || count(LISTENERS).await == 2).await;
    // Whoever made the token for this process may also use the other one: tokens are stored.
    let gateway = api.gateway.clone();
    let start = gateway.snapshot().await.unwrap();
    let request = feed_request("gw", &start.history, start.revision, 10_000);
    let waiting = daemon::tasks::spawn("poll", async move { gateway.feed(&request).await });
    until("the poll waits", async || !api.viewer.gateways().await.unwrap().is_empty()).await;

    assert_eq!(count(CUT).await, 2);
    // In the gap, by a hand that rings nothing: row, change and head in one transaction.
    let mut tx = database.write().await.unwrap();
    let next = start.revision + 1;
    tx.run("update head set revision = $1", [next.into()]).await.unwrap();
    let insert =
        "insert into change (revision, at, kind, id, value) values ($1, 0, 'plan', 'x', null)";
    tx.run(insert, [next.into()]).await.unwrap();
    tx.commit().await.unwrap();
    let fed = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    let fed = fed.expect("within five seconds, with no further change").unwrap().unwrap();
    assert_eq!((fed.head, fed.changes.len()), (next, 1));

    // It listens again, and the loss was counted.
    until("both listen again", async || count(LISTENERS).await == 2).await;
    until("the loss is counted", async || {
        let text = api.raw(None).send_raw(wire::client::Call::get("/metrics")).await.unwrap();
        String::from_utf8(text).unwrap().contains("weir_plans_doorbell_lost_total 1")
    })
    .await;

    // And a change made through the other process wakes who waits here.
    let gateway = api.gateway.clone();
    let request = feed_request("gw", &start.history, next, 10_000);
    let waiting = daemon::tasks::spawn("poll", async move { gateway.feed(&request).await });
    let token = api.admin.create_token("b", wire::client::plans::Role::Operator, None, "x").await;
    let other =
        PlansClient::new(&format!("http://{elsewhere}"), Some(&token.unwrap().token)).unwrap();
    let body = json!({ "burst": { "capacity": 2, "refill": "1/s" } });
    other.put_plan("b", &body, "test", None).await.unwrap();
    let fed = waiting.await.unwrap().unwrap();
    assert_eq!(fed.changes[0].object.name(), ("plan", "b"));
    database.close().await;
    drain.start();
    served.await.unwrap().unwrap();
    api.stop().await;
}

#[tokio::test]
async fn a_second_process_with_another_pepper_is_refused() {
    let postgres = Postgres::start().await;
    let url = postgres.database("pepper");
    let api = Api::on(url.clone()).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = plans_api::Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        database: url,
        state_dir: folder.path().to_owned(),
        shadow_compare: None,
        operations_token: None,
        bootstrap_token_file: None,
    };
    let (context, _addresses) = daemon::Context::in_process(daemon::Drain::new());
    let failed = plans_api::serve(settings, context).await.unwrap_err();
    assert!(failed.to_string().contains("pepper"), "{failed}");
    api.stop().await;
}

#[tokio::test]
async fn without_its_database_it_says_so_in_time_and_is_not_ready() {
    let postgres = Postgres::start().await;
    let api = Api::on(postgres.database("gone")).await;
    api.plan("pro").await;
    assert!(api.viewer.ready().await.is_ok());
    drop(postgres);
    let asked = tokio::time::timeout(Duration::from_secs(5), api.viewer.plans()).await;
    let refused = crate::api::refusal(asked.expect("an answer within five seconds"));
    assert_eq!((refused.status, refused.code.name()), (503, "database_unavailable"));
    until("it is not ready", async || api.viewer.ready().await.is_err()).await;
    api.stop().await;
}
