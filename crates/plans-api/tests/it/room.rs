//! A SQLite file that runs out of room, as often as one likes and without a small disk.

use daemon::sql::{Database, SqlError};
use serde_json::json;

use crate::api::{Api, feed_request, refusal};
use crate::scenarios::until;

async fn database(folder: &tempfile::TempDir) -> Database {
    let url = format!("sqlite://{}", folder.path().join("a.db").display());
    let database = Database::open(&url).await.unwrap();
    let mut tx = database.write().await.unwrap();
    tx.run_text("create table kept (bytes blob)").await.unwrap();
    tx.commit().await.unwrap();
    database
}

async fn put(database: &Database, bytes: usize) -> Result<(), SqlError> {
    let mut tx = database.write().await?;
    tx.run("insert into kept values ($1)", [vec![1_u8; bytes].into()]).await?;
    tx.commit().await
}

async fn kept(database: &Database) -> i64 {
    let mut tx = database.read().await.unwrap();
    tx.row("select count(*) as n from kept", []).await.unwrap().unwrap().int("n").unwrap()
}

/// The connection that writes may use no more pages; another one may.
async fn fill_up(database: &Database) {
    let mut tx = database.write().await.unwrap();
    tx.run_text("pragma max_page_count = 1").await.unwrap(); // raised to what there is
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_full_database_refuses_one_write_and_takes_the_next_that_has_room() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(&folder).await;
    for round in 1..=3 {
        fill_up(&database).await;
        let refused = put(&database, 100_000).await.unwrap_err();
        assert!(matches!(refused, SqlError::Unwritable(..)), "{refused:?}");
        assert_eq!(
            database.writes().failure().as_deref(),
            Some("the database cannot write (database or disk is full)")
        );
        put(&database, 100_000).await.unwrap();
        assert_eq!(database.writes().failure(), None);
        assert_eq!(kept(&database).await, round, "refused is refused, taken is taken");
    }
    database.close().await;
}

#[tokio::test]
async fn a_refused_row_says_nothing_about_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(&folder).await;
    let mut tx = database.write().await.unwrap();
    tx.run_text("create unique index once on kept (bytes)").await.unwrap();
    tx.commit().await.unwrap();
    put(&database, 1).await.unwrap();
    let refused = put(&database, 1).await.unwrap_err();
    assert!(matches!(refused, SqlError::Constraint(..)), "{refused:?}");
    assert_eq!(database.writes().failure(), None);
    put(&database, 2).await.unwrap();
    database.close().await;
}

/// Makes every new row of gateways seen fail as a full disk does: the numbers of a table have run
/// out, which SQLite tells with the same code. From another connection, so that it lasts.
const NO_ROOM: &str = "create table room (n integer primary key autoincrement);
     insert into room values (9223372036854775807);
     create trigger no_room before insert on gateway begin insert into room values (null); end";

#[tokio::test]
async fn while_writes_fail_it_is_not_ready_and_says_why_and_comes_back_by_itself() {
    let api = Api::sqlite().await;
    let start = api.gateway.snapshot().await.unwrap();
    let poll = feed_request("gw", &start.history, start.revision, 0);
    by_hand(&api, NO_ROOM).await;
    let refused = refusal(api.gateway.feed(&poll).await);
    assert_eq!((refused.status, refused.code.name()), (503, "database_unavailable"));
    // A write that is tried meanwhile fails too, so this lasts.
    let told = api.viewer.ready().await.unwrap_err().to_string();
    let why = "not ready: writes fail: the database cannot write (database or disk is full)";
    assert!(told.ends_with(why), "{told}");

    by_hand(&api, "drop trigger no_room").await;
    until("it is ready", async || api.viewer.ready().await.is_ok()).await;
    api.gateway.feed(&poll).await.unwrap();
    assert_eq!(api.viewer.gateways().await.unwrap().len(), 1, "trying leaves no row");
    api.stop().await;
}

#[tokio::test]
async fn a_transaction_that_the_database_ended_by_itself_stops_no_later_write() {
    let api = Api::sqlite().await;
    api.plan("before").await;
    let ends =
        "create trigger ends before insert on plan begin select raise(rollback, 'ended'); end";
    by_hand(&api, ends).await;
    let body = json!({ "burst": { "capacity": 10, "refill": "1/s" } });
    for _ in 0..3 {
        let refused = refusal(api.operator.put_plan("lost", &body, "test", None).await);
        assert_eq!(refused.code.name(), "invalid_value", "{refused:?}");
    }
    by_hand(&api, "drop trigger ends").await;
    api.plan("after").await;
    api.stop().await;
}

async fn by_hand(api: &Api, sql: &str) {
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text(sql).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
}
