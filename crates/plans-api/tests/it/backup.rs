//! Backup and restore: out of one database and into another, on both back ends and across them.

use std::io::Write;
use std::time::Duration;

use daemon::sql::Database;
use serde_json::{Value, json};
use tempfile::TempDir;
use wire::backup::{AuditEnd, BackupHead, BackupRow, FORM, Writer};
use wire::client::ClientError;
use wire::client::plans::{PlansClient, Restored, Role, Whom};
use wire::error::ErrorBody;
use wire::key::{KeyEnv, KeyHash, Pepper};
use wire::policy::KeyState;
use wire::rollout::Phase;

use crate::api::{Api, feed_request, refusal, told};
use crate::postgres::Postgres;

/// What a restored catalog is ahead by.
const AHEAD: u64 = 1_000_000;

/// The whole backup.
pub(crate) async fn backup_of(api: &Api) -> Vec<u8> {
    let mut bytes = Vec::new();
    let sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    api.admin.backup(sink).await.unwrap();
    bytes
}

async fn restore(api: &Api, bytes: &[u8]) -> Result<Restored, ClientError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    api.admin.restore(file, "test").await
}

/// Keys of a filled catalog: one that opens, and one that is revoked.
struct Keys {
    open: String,
    revoked: String,
}

/// Something of everything.
async fn fill(api: &Api) -> Keys {
    let plan = json!({
        "burst": { "capacity": 100, "refill": "50/s" },
        "sustained": { "capacity": 2_000_000, "refill": "2000000/d" },
        "failure": "0.25", "scope": "key", "costs": [{ "route": "reports", "cost": 5 }],
        "labels": { "team": "ü" }, "note": "two\nlines",
    });
    api.operator.put_plan("pro", &plan, "test", None).await.unwrap();
    api.operator.put_plan("inside", &json!({ "unlimited": true }), "test", None).await.unwrap();
    for client in ["acme", "zeta"] {
        api.client(client, "pro").await;
    }
    api.operator.suspend("zeta", "abuse").await.unwrap();
    let open = api.operator.create_key("acme", KeyEnv::Live, None, "test").await.unwrap();
    let revoked = api.operator.create_key("acme", KeyEnv::Test, None, "test").await.unwrap();
    api.operator.revoke_key(&revoked.object.id, "test").await.unwrap();
    let whom = Whom::Clients(vec!["acme".to_owned()]);
    api.operator.set_rollout("edge", &whom, Phase::Enforce, "canary").await.unwrap();
    api.operator.set_rollout("edge", &Whom::All, Phase::Shadow, "all").await.unwrap();
    api.operator.set_rollout("edge", &whom, Phase::Enforce, "canary").await.unwrap();
    Keys { open: open.key, revoked: revoked.key }
}

/// Everything that operators see but the revisions of objects.
async fn seen(api: &PlansClient) -> Value {
    fn without_revision(mut value: Value) -> Value {
        for object in value.as_array_mut().unwrap() {
            object.as_object_mut().unwrap().remove("revision");
            object.as_object_mut().unwrap().remove("history");
        }
        value
    }
    let (plans, clients) = (api.plans().await.unwrap(), api.clients().await.unwrap());
    let (keys, rollouts) = (api.keys(None).await.unwrap(), api.rollouts().await.unwrap());
    json!({
        "plans": without_revision(json!(plans)), "clients": without_revision(json!(clients)),
        "keys": without_revision(json!(keys)), "rollouts": without_revision(json!(rollouts)),
    })
}

/// A control plane with this pepper over an empty database.
pub(crate) async fn with_pepper(of: &Api, database: Option<String>) -> Api {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(of.state_dir.path().join("pepper"), folder.path().join("pepper")).unwrap();
    let database = database.unwrap_or_else(|| plans_api::Settings::database_in(folder.path()));
    Api::start(folder, database, None, None).await
}

async fn comes_back(from: &Api, into: &Api) {
    let keys = fill(from).await;
    let backup = backup_of(from).await;
    let before = seen(&from.viewer).await;
    let there = from.viewer.verify_audit(None).await.unwrap();

    // Into a catalog that has other things, and a gateway far ahead of both.
    into.plan("other").await;
    into.client("stranger", "other").await;
    into.operator.create_key("stranger", KeyEnv::Live, None, "test").await.unwrap();
    let old = into.gateway.snapshot().await.unwrap();
    let mut poll = feed_request("gw", &old.history, old.revision, 10_000);
    poll.applied = 5_000_000;
    let gateway = into.gateway.clone();
    let waiting = daemon::tasks::spawn("poll", async move { gateway.feed(&poll).await });
    crate::scenarios::until("the poll waits", async || {
        !into.viewer.gateways().await.unwrap().is_empty()
    })
    .await;
    let old_tip = into.viewer.verify_audit(None).await.unwrap().tip;

    let restored = restore(into, &backup).await.unwrap();
    assert_eq!(restored.revision, 5_000_000 + AHEAD, "above every gateway");
    assert_eq!(seen(&into.viewer).await, before);
    let waited = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    let gone = waited.expect("a waiting gateway is told at once").unwrap();
    assert_eq!(told(gone), (410, "history_gone"));

    let snapshot = into.gateway.snapshot().await.unwrap();
    assert_eq!((snapshot.revision, &snapshot.history), (restored.revision, &restored.history));
    assert_ne!(snapshot.history, old.history);
    assert!(snapshot.plans.iter().all(|plan| plan.revision == restored.revision), "{snapshot:?}");
    assert!(snapshot.plans.iter().all(|plan| plan.check().is_ok()));
    assert_eq!(snapshot.rollout.unwrap().revision, restored.revision);

    // The same keys open, and those alone.
    let pepper = std::fs::read(into.state_dir.path().join("pepper")).unwrap();
    let pepper = Pepper::from_bytes(&pepper).unwrap();
    let hash = |key: &str| KeyHash::of_key(key, &pepper);
    let hashes = vec![hash(&keys.open), hash(&keys.revoked)];
    let found = into.gateway.lookup(hashes, Duration::from_secs(5)).await.unwrap().found;
    let states: Vec<KeyState> = found.iter().map(|found| found.key.state).collect();
    assert_eq!(states, [KeyState::Active, KeyState::Revoked]);
    assert!(found.iter().all(|found| found.key.revision == restored.revision));

    // Tokens of both sides open; the audit goes on behind that of the backup.
    let came_along = PlansClient::new(&into.base(), Some(&token_of(from))).unwrap();
    came_along.plans().await.unwrap();
    let walked = into.viewer.verify_audit(None).await.unwrap();
    assert_eq!((walked.fault, walked.unlinked), (None, 0));
    assert_eq!(walked.tip.seq, there.tip.seq + 1);
    let passed = into.viewer.verify_audit(Some(there.tip)).await.unwrap();
    assert_eq!(passed.fault, None, "it is the audit of the backup");
    let row = into.viewer.audit(1, None).await.unwrap().items.remove(0);
    assert_eq!((row.command.as_str(), row.reason.as_str()), ("backup restore", "test"));
    assert_eq!(row.before.unwrap()["audit"], json!(old_tip), "the tip of what was replaced");

    // The next change is the next revision, and the feed tells it.
    let changed = into.operator.suspend("acme", "test").await.unwrap();
    assert_eq!(changed.revision, restored.revision + 1);
    let poll = feed_request("gw", &restored.history, restored.revision, 0);
    let fed = into.gateway.feed(&poll).await.unwrap();
    assert_eq!((fed.history, fed.changes.len()), (restored.history, 1));

    // What was restored is backed up as it was, but for revisions and the audit.
    into.operator.resume("acme", "test").await.unwrap();
    let again = restore(into, &backup_of(into).await).await.unwrap();
    assert_eq!(again.revision, changed.revision + 1 + AHEAD);
    assert_eq!(seen(&into.viewer).await, before);
}

/// The token of an operator, as the client sends it.
fn token_of(api: &Api) -> String {
    std::fs::read_to_string(api.state_dir.path().join("operator")).unwrap()
}

/// Keeps a token of this control plane where [`token_of`] finds it.
async fn keep_token(api: &Api) {
    let made = api.admin.create_token("kept", Role::Operator, None, "test").await.unwrap();
    std::fs::write(api.state_dir.path().join("operator"), made.token).unwrap();
}

#[tokio::test]
async fn a_backup_of_sqlite_comes_back_in_sqlite() {
    let from = Api::sqlite().await;
    keep_token(&from).await;
    let into = with_pepper(&from, None).await;
    comes_back(&from, &into).await;
    from.stop().await;
    into.stop().await;
}

#[tokio::test]
async fn a_backup_comes_back_in_postgres_and_out_of_it_on_either_side() {
    let postgres = Postgres::start().await;
    for (index, (from_postgres, into_postgres)) in
        [(false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        let database =
            |here: bool, name: &str| here.then(|| postgres.database(&format!("{name}{index}")));
        let from = match database(from_postgres, "from") {
            Some(database) => Api::on(database).await,
            None => Api::sqlite().await,
        };
        keep_token(&from).await;
        let into = with_pepper(&from, database(into_postgres, "into")).await;
        comes_back(&from, &into).await;
        from.stop().await;
        into.stop().await;
    }
}

#[tokio::test]
async fn another_process_over_the_same_database_follows_the_new_history() {
    let postgres = Postgres::start().await;
    let api = Api::on(postgres.database("two")).await;
    let (elsewhere, drain, served) = api.second().await;
    fill(&api).await;
    let token = api.admin.create_token("gw2", Role::Gateway, None, "test").await.unwrap().token;
    let gateway = PlansClient::new(&format!("http://{elsewhere}"), Some(&token)).unwrap();
    let old = gateway.snapshot().await.unwrap();
    let restored = restore(&api, &backup_of(&api).await).await.unwrap();
    let poll = feed_request("gw", &old.history, old.revision, 0);
    assert_eq!(told(gateway.feed(&poll).await), (410, "history_gone"));
    let new = gateway.snapshot().await.unwrap();
    assert_eq!((new.history, new.revision), (restored.history, restored.revision));
    drain.start();
    served.await.unwrap().unwrap();
    api.stop().await;
}

pub(crate) async fn what_was_revoked_after_a_backup_stays_revoked(api: &Api) {
    let keys = fill(api).await;
    let token = api.admin.create_token("leaked", Role::Operator, None, "test").await.unwrap();
    let backup = backup_of(api).await;
    let id = keys.open.split('_').nth(2).unwrap();
    api.operator.revoke_key(id, "leak").await.unwrap();
    api.admin.revoke_token(&token.object.id, "leak").await.unwrap();
    let later = api.admin.create_token("later", Role::Viewer, None, "test").await.unwrap();
    let restored = restore(api, &backup).await.unwrap();
    assert_eq!(restored.stay_revoked, 1);
    assert_eq!(api.viewer.key(id).await.unwrap().state, KeyState::Revoked);
    let leaked = PlansClient::new(&api.base(), Some(&token.token)).unwrap();
    assert_eq!(told(leaked.plans().await), (401, "token_invalid"));
    let later = PlansClient::new(&api.base(), Some(&later.token)).unwrap();
    later.plans().await.unwrap();
}

/// A file of these rows that is whole.
fn crafted(api_pepper: &str, rows: &[(&str, Value)], audit: AuditEnd) -> Vec<u8> {
    let mut writer = Writer::default();
    let mut file = writer.head(&BackupHead {
        weir_backup: FORM,
        build: "0.1.0".to_owned(),
        made_at: 1,
        history: "h".to_owned(),
        revision: 3,
        pepper_id: api_pepper.to_owned(),
        audit,
    });
    for (table, row) in rows {
        let row = row.as_object().unwrap().clone();
        file.extend(writer.row(&BackupRow { table: (*table).to_owned(), row }));
    }
    file.extend(writer.end());
    file
}

pub(crate) async fn a_file_that_cannot_be_used_says_why_and_changes_nothing(api: &Api) {
    fill(api).await;
    let backup = backup_of(api).await;
    let (before, snapshot) = (seen(&api.viewer).await, api.gateway.snapshot().await.unwrap());
    let audit = api.viewer.verify_audit(None).await.unwrap();
    let pepper = std::fs::read(api.state_dir.path().join("pepper")).unwrap();
    let pepper = Pepper::from_bytes(&pepper).unwrap().id();
    let none = AuditEnd { seq: 0, linked: 0, hash: wire::audit::AuditHash::START };
    let plan = |capacity: i64| {
        json!({
            "name": "p", "burst_capacity": capacity, "burst_tokens": 1, "burst_per_us": 1_000_000,
            "unlimited": 0, "scope": "client", "failure": "coarse", "costs": "[]", "labels": "{}",
            "note": "", "revision": 1,
        })
    };
    let mut unknown = plan(1);
    unknown["colour"] = json!("red");
    let middle = backup.len() / 2;
    let mut flipped = backup.clone();
    let digit = flipped[middle..].iter().position(u8::is_ascii_digit).unwrap() + middle;
    flipped[digit] ^= 1;
    let audit_row = json!({
        "seq": 9, "at": 1, "actor": "x", "via": "api", "command": "x", "reason": "", "kind": "x",
        "id": "x", "request_id": "",
    });
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", Vec::new(), "no backup of Weir"),
        ("another file", b"[plan.pro]\nburst = 1\n".to_vec(), "no backup of Weir"),
        ("cut in the middle", backup[..middle].to_vec(), "cut off"),
        ("cut by a byte", backup[..backup.len() - 1].to_vec(), "cut off"),
        ("one bit", flipped, "damaged"),
        ("more behind it", [backup.as_slice(), b"{}\n"].concat(), "damaged"),
        ("a later form", b"{\"weir_backup\":2}\n".to_vec(), "form 2"),
        ("another pepper", crafted("00", &[], none), "pepper"),
        ("an unknown table", crafted(&pepper, &[("ghost", json!({}))], none), "no table ghost"),
        ("an unknown column", crafted(&pepper, &[("plan", unknown)], none), "no column colour"),
        ("a wrong kind", crafted(&pepper, &[("plan", json!({ "name": 7 }))], none), "name is no"),
        ("a limit of nothing", crafted(&pepper, &[("plan", plan(0))], none), "line 2"),
        (
            "one name twice",
            crafted(&pepper, &[("plan", plan(1)), ("plan", plan(1))], none),
            "line 3",
        ),
        ("more audit than it says", crafted(&pepper, &[("audit", audit_row)], none), "audit rows"),
    ];
    for (what, file, word) in cases {
        let refused: ErrorBody = refusal(restore(api, &file).await);
        assert_eq!((refused.status, refused.code.name()), (422, "invalid_value"), "{what}");
        assert!(refused.detail.contains(word), "{what}: {}", refused.detail);
        assert_eq!(api.gateway.snapshot().await.unwrap(), snapshot, "{what} changed something");
    }
    assert_eq!(seen(&api.viewer).await, before);
    assert_eq!(api.viewer.verify_audit(None).await.unwrap(), audit);
    restore(api, &backup).await.unwrap();
    assert_eq!(seen(&api.viewer).await, before, "the same file, whole");

    // A backup from before a column: it reads as nothing, or as 0.
    let client = json!({
        "id": "c", "name": "", "plan": "p", "state": "active", "labels": "{}", "revision": 2,
    });
    let older = crafted(&pepper, &[("plan", plan(1)), ("client", client)], none);
    restore(api, &older).await.unwrap();
    assert_eq!(api.viewer.client("c").await.unwrap().reset_revision, 0);
}

#[tokio::test]
async fn every_table_and_column_of_the_schema_is_in_a_backup_or_left_out_for_a_reason() {
    let api = Api::sqlite().await;
    let database = api.by_hand().await;
    let sql = "select m.name as name, group_concat(c.name, ', ') as columns \
        from sqlite_schema m, pragma_table_info(m.name) c \
        where m.type = 'table' and m.name not like 'sqlite_%' and m.name not like '_sqlx%' \
        group by m.name order by m.name";
    let mut tx = database.read().await.unwrap();
    let mut kept = plans_api::store::tables::kept();
    for row in tx.rows(sql, []).await.unwrap() {
        let (name, columns) = (row.text("name").unwrap(), row.text("columns").unwrap());
        if plans_api::store::tables::LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        let place = kept.iter().position(|(table, _)| *table == name);
        let place = place.unwrap_or_else(|| {
            panic!("table {name} is in no backup: say so in store/tables.rs, one way or the other")
        });
        let (_, mut known) = kept.remove(place);
        let mut there: Vec<&str> = columns.split(", ").collect();
        there.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, there, "columns of {name} in store/tables.rs and in the schema");
    }
    assert!(kept.is_empty(), "tables that are not there: {kept:?}");
    drop(tx);
    database.close().await;
    api.stop().await;
}

/// Peak memory of a process, in bytes.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1_024
}

#[tokio::test]
async fn a_long_backup_passes_through_little_memory() {
    /// Rows of 16 KiB.
    const ROWS: u64 = 6_000;
    let folder: TempDir = tempfile::tempdir().unwrap();
    let url = plans_api::Settings::database_in(folder.path());
    let mut child = crate::killed::start(folder.path(), &url);
    let base = crate::program::address(folder.path()).await;
    let token = std::fs::read_to_string(folder.path().join("bootstrap")).unwrap();
    let first = PlansClient::new(&base, Some(token.trim())).unwrap();
    let admin = first.create_token("root", Role::Admin, None, "first").await.unwrap().token;
    let admin = PlansClient::new(&base, Some(&admin)).unwrap();
    let seq = admin.audit(1, None).await.unwrap().items[0].seq;
    let database = Database::open(&url).await.unwrap();
    let mut tx = database.write().await.unwrap();
    let text = json!("x".repeat(16 << 10)).to_string();
    for row in 1..=ROWS {
        let values = [(seq + row).into(), text.as_str().into()];
        let insert = "insert into audit (seq, at, actor, via, command, reason, kind, id, \
            \"after\", request_id) values ($1, 1, 'x', 'api', 'x', '', 'x', 'x', $2, '')";
        tx.run(insert, values).await.unwrap();
    }
    tx.run("update head set audit_seq = $1", [(seq + ROWS).into()]).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    admin.create_token("links them", Role::Viewer, None, "test").await.unwrap();

    let before = peak(child.id());
    let mut file = tempfile::tempfile().unwrap();
    admin.backup(|piece| file.write_all(piece)).await.unwrap();
    let length = file.metadata().unwrap().len();
    std::io::Seek::rewind(&mut file).unwrap();
    let restored = admin.restore(file, "test").await.unwrap();
    assert!(ROWS < restored.rows && ROWS * (16 << 10) < length);
    let grown = peak(child.id()) - before;
    assert!(grown < length / 3, "{grown} bytes more for a backup of {length}");
    child.kill().unwrap();
    child.wait().unwrap();
}
