//! The process is killed while it writes: of every change both the row and its audit are there, or
//! neither is.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use wire::client::plans::{PlansClient, Role};

use crate::postgres::Postgres;
use crate::program::address;
use crate::scenarios::until;

/// Writers at once.
const WRITERS: u64 = 4;
/// After so many answers the process is killed, with further changes under way.
const ANSWERS: [u64; 4] = [1, 7, 20, 43];

pub(crate) fn start(folder: &Path, database: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-plans-api"));
    command.args(["--listen", "127.0.0.1:0", "--database", database, "--state-dir"]).arg(folder);
    command.arg("--ports-file").arg(folder.join("ports"));
    command.arg("--bootstrap-token-file").arg(folder.join("bootstrap"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Kills at once: no handler runs, nothing is flushed.
fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Changes plans until nobody answers; the revisions that were promised.
async fn write(api: PlansClient, writer: u64, answered: Arc<AtomicU64>) -> Vec<u64> {
    let mut promised = Vec::new();
    for round in 1.. {
        let body = json!({ "burst": { "capacity": round, "refill": "1/s" } });
        match api.put_plan(&format!("w{writer}"), &body, "kill", None).await {
            Ok(changed) => promised.push(changed.revision),
            Err(_gone) => break,
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    promised
}

async fn survives(folder: &Path, database: &str) {
    let mut child = start(folder, database);
    let base = address(folder).await;
    let token = std::fs::read_to_string(folder.join("bootstrap")).unwrap();
    let first = PlansClient::new(&base, Some(token.trim())).unwrap();
    let admin = first.create_token("root", Role::Admin, None, "first").await.unwrap().token;
    let mut promised = Vec::new();
    for answers in ANSWERS {
        let api = PlansClient::new(&address(folder).await, Some(&admin)).unwrap();
        let answered = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let write = write(api.clone(), writer, Arc::clone(&answered));
                daemon::tasks::spawn("writer", write)
            })
            .collect();
        until("enough is answered", async || answered.load(Ordering::Relaxed) >= answers).await;
        kill(&mut child);
        for writer in writers {
            promised.extend(writer.await.unwrap());
        }
        std::fs::remove_file(folder.join("ports")).unwrap();
        child = start(folder, database);
        let api = PlansClient::new(&address(folder).await, Some(&admin)).unwrap();
        check(database, &api, &promised).await;
    }
    kill(&mut child);
}

async fn check(database: &str, api: &PlansClient, promised: &[u64]) {
    let walked = api.verify_audit(None).await.unwrap();
    assert_eq!((walked.fault, walked.unlinked), (None, 0));
    let database = daemon::sql::Database::open(database).await.unwrap();
    let mut tx = database.read().await.unwrap();
    let head = tx.row("select revision, audit_seq from head", []).await.unwrap().unwrap();
    assert_eq!(head.count("audit_seq").unwrap(), walked.checked);
    let revisions = async |tx: &mut daemon::sql::Transaction, sql: &'static str| {
        let rows = tx.rows(sql, []).await.unwrap();
        rows.iter().map(|row| row.count("revision").unwrap()).collect::<Vec<_>>()
    };
    let audited = "select revision from audit where revision is not null order by revision";
    let audited = revisions(&mut tx, audited).await;
    let all: Vec<u64> = (1..=head.count("revision").unwrap()).collect();
    assert_eq!(audited, all, "every revision has its audit row and no audit row is without one");
    let changes = revisions(&mut tx, "select revision from change order by revision").await;
    assert_eq!(changes, all, "and every one is told");
    let stray = "select revision from plan where revision not in \
        (select revision from audit where revision is not null and kind = 'plan')";
    assert!(revisions(&mut tx, stray).await.is_empty(), "no plan without its audit row");
    let newest = "select max(a.revision) as revision from audit a where a.kind = 'plan' \
        group by a.id order by 1";
    let plans = revisions(&mut tx, "select revision from plan order by revision").await;
    assert_eq!(plans, revisions(&mut tx, newest).await, "every plan is as the audit says");
    for revision in promised {
        assert!(all.contains(revision), "revision {revision} was answered and is gone");
    }
    drop(tx);
    database.close().await;
}

#[tokio::test]
async fn killed_while_it_writes_sqlite_has_both_row_and_audit_or_neither() {
    let folder = tempfile::tempdir().unwrap();
    survives(folder.path(), &plans_api::Settings::database_in(folder.path())).await;
}

#[tokio::test]
async fn killed_while_it_writes_postgres_has_both_row_and_audit_or_neither() {
    let (folder, postgres) = (tempfile::tempdir().unwrap(), Postgres::start().await);
    survives(folder.path(), &postgres.database("killed")).await;
}
