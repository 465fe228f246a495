//! Restart, kill, a second instance, a database that goes away.

use std::time::Duration;

use daemon::sql::Database;
use wire::batch::Batch;
use wire::client::{Call, Client};
use wire::gate::GateReport;

use crate::world::{
    Backend, Door, Gateway, Home, Process, World, all_in_shadow, eventually, on_both, pairs,
    this_minute,
};

on_both! {
    a_restart_forgets_nothing_and_doubles_nothing
    kill_nine_at_any_moment_forgets_nothing_and_doubles_nothing
    a_second_instance_is_refused
    what_is_too_old_is_forgotten
}

async fn counted(door: &Door) -> (u64, u64, u64) {
    let GateReport { pairs, disagreements, lost, .. } =
        door.control.gate(&all_in_shadow(7)).await.unwrap();
    (pairs, disagreements, lost)
}

async fn a_restart_forgets_nothing_and_doubles_nothing(backend: Backend) {
    let mut world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    let mut made: Vec<Batch> = Vec::new();
    let mut missing = Vec::new();
    for round in 1..=3 {
        for _ in 0..3 {
            made.push(gateway.batch(vec![pairs("c_1", 10, 1)]));
            world.door.post(made.last().unwrap()).await;
        }
        missing.push(gateway.batch(vec![pairs("c_1", 4, 0)]));
        made.push(gateway.batch(vec![pairs("c_1", 10, 1)]));
        world.door.post(made.last().unwrap()).await;
        if round == 2 {
            world.door.minute_write().await;
        }
        world = World::start_at_home(&backend, world.stop().await).await;
        assert_eq!(counted(&world.door).await, (round * 44, round * 4, round * 4));
        for known in &made {
            assert!(world.door.post(known).await, "batch {} is known again", known.seq);
        }
    }
    for late in &missing {
        assert!(!world.door.post(late).await);
    }
    assert_eq!(counted(&world.door).await, (3 * 48, 12, 0));
    world.stop().await;
}

async fn kill_nine_at_any_moment_forgets_nothing_and_doubles_nothing(backend: Backend) {
    const ROUNDS: u64 = 4;
    let home = Home::new();
    let mut gateway = Gateway::new("boot-1");
    let mut made: Vec<Batch> = Vec::new();
    for round in 0..ROUNDS {
        let mut process = Process::start(&home, &backend.url()).await;
        // As a gateway does: what was not acknowledged is sent again, to the next instance.
        if let Some(unacknowledged) = made.last() {
            process.door.post_at_last(unacknowledged).await;
        }
        let kill_after = Duration::from_millis(300 + 450 * round);
        let posting = async {
            loop {
                made.push(gateway.batch(vec![pairs("c_1", 3, 1)]));
                if process.door.gateway.post_batch(made.last().unwrap(), kill_after).await.is_err()
                {
                    break; // never seen here: the kill comes from outside
                }
            }
        };
        tokio::time::timeout(kill_after, posting).await.ok();
        process.kill();
    }
    let process = Process::start(&home, &backend.url()).await;
    process.door.post_at_last(made.last().unwrap()).await;
    let batches = u64::try_from(made.len()).unwrap();
    assert!(ROUNDS < batches, "only {batches} batches were made");
    assert_eq!(counted(&process.door).await, (batches * 4, batches, 0));
}

async fn a_second_instance_is_refused(backend: Backend) {
    let world = World::start(&backend).await;
    let second = Home::new();
    let (code, said) = Process::refused(&second, &backend.url()).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another weir-shadow-compare is working on this database"), "{said}");
    let mut gateway = Gateway::new("boot-1");
    world.door.post(&gateway.batch(vec![pairs("c_1", 1, 0)])).await;
    assert_eq!(counted(&world.door).await, (1, 0, 0), "the first one works on");
    world.stop().await;
}

async fn what_is_too_old_is_forgotten(backend: Backend) {
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    world.door.post(&gateway.batch(vec![pairs("young", 10, 0)])).await;
    world.door.minute_write().await;
    let (now, day) = (this_minute(), 24 * 60);
    let database = Database::open(&backend.url()).await.unwrap();
    let mut tx = database.write().await.unwrap();
    for minute in [now - 20 * day, now - 15 * day, now - 13 * day] {
        tx.run_text(&format!(
            "insert into evidence_tally values
                 ({minute}, 'old', 'orders', 'shadow', 7, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1);
             insert into evidence_shadow values ({}, 'old', 7, 1, 0, 0, 0, 0, 0, 0, 0, 0);",
            minute / day
        ))
        .await
        .unwrap();
    }
    for (number, days, bytes) in [(1_001, 3, "null"), (1_002, 3, "'x'"), (1_003, 1, "null")] {
        let arrived_ms = (now - days * day) * 60_000;
        tx.run_text(&format!(
            "insert into evidence_batch values ({number}, 'g', 'b', {number}, {arrived_ms}, {bytes})"
        ))
        .await
        .unwrap();
    }
    tx.commit().await.unwrap();
    assert_eq!(counted(&world.door).await, (13, 0, 0));

    let numbers = async |sql: &'static str| -> Vec<u64> {
        let mut tx = database.read().await.unwrap();
        let rows = tx.rows(sql, []).await.unwrap();
        rows.iter().map(|row| row.count("n").unwrap()).collect()
    };
    eventually("old minutes are forgotten", async || {
        numbers("select minute as n from evidence_tally where client = 'old' order by minute").await
            == [now - 13 * day]
    })
    .await;
    eventually("old batches are forgotten, but not before they are in the sums", async || {
        numbers("select number as n from evidence_batch where number > 1000 order by number").await
            == [1_002, 1_003]
    })
    .await;
    assert_eq!(counted(&world.door).await, (11, 0, 0));
    assert_eq!(world.door.metric("weir_shadow_doubts_total").await, 0);
    let mut tx = database.write().await.unwrap();
    tx.run_text("delete from evidence_batch where number = 1002").await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    world.stop().await;
}

/// Makes new rows fail as a full disk does: the numbers of a table have run out, which SQLite tells
/// with the same code.
const NO_ROOM: &str = "create table room (n integer primary key autoincrement);
     insert into room values (9223372036854775807);
     create trigger no_batch before insert on evidence_batch begin
         insert into room values (null); end;
     create trigger no_boot before insert on evidence_boot begin
         insert into room values (null); end";

#[tokio::test]
async fn while_sqlite_is_full_it_is_not_ready_and_goes_on_when_there_is_room() {
    let backend = Backend::sqlite();
    let world = World::start(&backend).await;
    let database = Database::open(&backend.url()).await.unwrap();
    let by_hand = async |sql: &str| {
        let mut tx = database.write().await.unwrap();
        tx.run_text(sql).await.unwrap();
        tx.commit().await.unwrap();
    };
    let client = Client::new(&world.door.base, None).unwrap();
    let ready = async || client.send::<serde_json::Value>(Call::get("/readyz")).await;
    let mut gateway = Gateway::new("boot-1");
    world.door.post(&gateway.batch(vec![pairs("c_1", 10, 1)])).await;
    ready().await.unwrap();

    by_hand(NO_ROOM).await;
    let next = gateway.batch(vec![pairs("c_1", 10, 1)]);
    let refused = world.door.gateway.post_batch(&next, Duration::from_secs(30)).await.unwrap_err();
    assert_eq!(refused.refused().map(|body| body.status), Some(503), "{refused}");
    let told = ready().await.unwrap_err().to_string();
    let why = "not ready: writes fail: the database cannot write (database or disk is full)";
    assert!(told.ends_with(why), "{told}");

    by_hand("drop trigger no_batch; drop trigger no_boot").await;
    eventually("it is ready, unasked", async || ready().await.is_ok()).await;
    world.door.post_at_last(&next).await;
    assert_eq!(counted(&world.door).await, (22, 2, 0));
    database.close().await;
    world.stop().await;
}

#[tokio::test]
async fn a_postgres_that_crashes_loses_nothing_that_was_acknowledged() {
    let mut backend = Backend::postgres();
    let world = World::start(&backend).await;
    let mut gateway = Gateway::new("boot-1");
    for _ in 0..5 {
        world.door.post(&gateway.batch(vec![pairs("c_1", 10, 1)])).await;
    }
    world.door.minute_write().await;
    world.door.post(&gateway.batch(vec![pairs("c_1", 10, 1)])).await;

    let Backend::Postgres(server) = &mut backend else { panic!("it is Postgres") };
    server.crash();
    let next = gateway.batch(vec![pairs("c_1", 10, 1)]);
    let refused = world.door.gateway.post_batch(&next, Duration::from_secs(30)).await.unwrap_err();
    assert_eq!(refused.refused().map(|body| body.status), Some(503), "{refused}");
    server.start_again();

    world.door.post_at_last(&next).await;
    eventually("reports are given again", async || {
        world.door.control.gate(&all_in_shadow(7)).await.is_ok()
    })
    .await;
    assert_eq!(counted(&world.door).await, (7 * 11, 7, 0));
    world.stop().await;
}
