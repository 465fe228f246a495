//! The audit as a chain: whatever is done to it afterwards has a place with a name.

use daemon::sql::Step;
use serde_json::{Value, json};
use wire::audit::{AuditFaultKind, AuditHash, AuditPlace, AuditWalk, AuditWalked};
use wire::client::Call;
use wire::client::plans::{ApplyMode, AuditFilter};
use wire::key::Pepper;

use crate::api::{Api, told};
use crate::postgres::Postgres;

/// Does something to the database without the API.
async fn by_hand(api: &Api, sql: &str) {
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text(sql).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
}

async fn verified(api: &Api) -> AuditWalked {
    api.viewer.verify_audit(None).await.unwrap()
}

/// Where the first fault is and of which kind.
async fn fault(api: &Api) -> (u64, AuditFaultKind) {
    let fault = verified(api).await.fault.expect("a fault");
    assert!(fault.detail.contains(&fault.seq.to_string()), "{fault:?}");
    (fault.seq, fault.kind)
}

pub(crate) async fn whoever_writes_over_the_audit_is_found_at_the_first_bad_row(api: &Api) {
    for name in ["a", "b", "c"] {
        api.plan(name).await;
    }
    let sound = verified(api).await;
    assert_eq!((sound.fault.as_ref(), sound.unlinked), (None, 0));
    assert_eq!((sound.place, sound.checked), (sound.tip, sound.tip.seq));
    let last = sound.tip.seq;

    // Altered, in every column that says something, and back.
    for column in ["actor", "command", "reason", "kind", "id", "request_id", "via", "\"after\""] {
        let other = format!("update audit set {column} = {column} || 'x' where seq = 3");
        by_hand(api, &other).await;
        assert_eq!(fault(api).await, (3, AuditFaultKind::Altered), "{column}");
        let back = format!(
            "update audit set {column} = substr({column}, 1, length({column}) - 1) where seq = 3"
        );
        by_hand(api, &back).await;
    }
    by_hand(api, "update audit set at = at - 1 where seq = 2").await;
    assert_eq!(fault(api).await, (2, AuditFaultKind::Altered));
    by_hand(api, "update audit set at = at + 1 where seq = 2").await;

    // Dropped.
    by_hand(
        api,
        "create table away as select * from audit where seq = 4; delete from audit where seq = 4",
    )
    .await;
    assert_eq!(fault(api).await, (4, AuditFaultKind::Missing));
    by_hand(api, "insert into audit select * from away; drop table away").await;

    // Two rows change places.
    let swap = "update audit set seq = 1000003 where seq = 3; \
        update audit set seq = 3 where seq = 4; update audit set seq = 4 where seq = 1000003";
    by_hand(api, swap).await;
    assert_eq!(fault(api).await, (3, AuditFaultKind::Displaced));
    by_hand(api, swap).await;

    // The newest rows are cut off.
    by_hand(
        api,
        &format!(
            "create table away as select * from audit where seq > {}; \
             delete from audit where seq > {}",
            last - 2,
            last - 2
        ),
    )
    .await;
    assert_eq!(fault(api).await, (last - 1, AuditFaultKind::Cut));
    by_hand(api, "insert into audit select * from away; drop table away").await;

    // A row that no change made.
    let plant = format!(
        "insert into audit (seq, at, actor, via, command, reason, kind, id, request_id) \
         values ({}, 1, 'x', 'api', 'x', '', 'plan', 'x', '')",
        last + 1
    );
    by_hand(api, &plant).await;
    assert_eq!(fault(api).await, (last + 1, AuditFaultKind::Displaced));
    by_hand(api, &format!("delete from audit where seq = {}", last + 1)).await;
    assert_eq!(verified(api).await, sound, "it is as it was");
}

pub(crate) async fn a_tip_kept_elsewhere_shows_what_the_database_alone_cannot(api: &Api) {
    api.plan("a").await;
    let kept = verified(api).await.tip;
    api.plan("b").await;
    let passed = api.viewer.verify_audit(Some(kept)).await.unwrap();
    assert_eq!(passed.fault, None, "the chain passes the kept tip");

    // Everything after row 3 is forgotten, and the head is told so.
    let at_three = api.viewer.audit(500, None).await.unwrap().items;
    let at_three = at_three.iter().find(|row| row.seq == 3).unwrap().hash.unwrap();
    let old = verified(api).await.tip;
    by_hand(
        api,
        &format!(
            "create table away as select * from audit where seq > 3; \
             delete from audit where seq > 3; update head set audit_seq = 3, audit_linked = 3, \
             audit_hash = '{at_three}'"
        ),
    )
    .await;
    assert_eq!(verified(api).await.fault, None, "it looks sound");
    let cut = api.viewer.verify_audit(Some(kept)).await.unwrap().fault.unwrap();
    assert_eq!((cut.seq, cut.kind), (4, AuditFaultKind::Cut));
    by_hand(
        api,
        &format!(
            "insert into audit select * from away; drop table away; update head set \
             audit_seq = {}, audit_linked = {}, audit_hash = '{}'",
            old.seq, old.seq, old.hash
        ),
    )
    .await;

    // A row is altered and the whole chain made anew, as only a program can.
    by_hand(
        api,
        &format!(
            "update audit set reason = 'innocent' where seq = 2; \
             update audit set prev = null, hash = null; \
             update head set audit_linked = 0, audit_hash = '{}'",
            AuditHash::START
        ),
    )
    .await;
    let (_, drain, served) = api.second().await;
    assert_eq!(verified(api).await.fault, None, "it looks sound");
    let rewritten = api.viewer.verify_audit(Some(kept)).await.unwrap().fault.unwrap();
    assert_eq!((rewritten.seq, rewritten.kind), (kept.seq, AuditFaultKind::Rewritten));
    drain.start();
    served.await.unwrap().unwrap();
}

pub(crate) async fn a_long_chain_is_walked_in_parts(api: &Api) {
    let limit = json!({ "burst": { "capacity": 10, "refill": "1/s" } });
    let plans: serde_json::Map<String, Value> =
        (0..1_100).map(|number| (format!("p{number}"), limit.clone())).collect();
    api.operator.apply(&json!({ "plan": plans }), "many", ApplyMode::Apply).await.unwrap();
    let first = api.viewer.walk_audit(AuditWalk::default()).await.unwrap();
    assert_eq!((first.checked, first.done, first.fault), (1_000, false, None));
    let walk = AuditWalk { after: Some(first.place), kept: None };
    let second = api.viewer.walk_audit(walk).await.unwrap();
    assert_eq!((second.done, second.place), (true, second.tip));
    let whole = verified(api).await;
    assert_eq!((whole.checked, whole.tip.seq), (1_000 + second.checked, whole.checked));
    by_hand(api, "update audit set reason = 'x' where seq = 1050").await;
    assert_eq!(fault(api).await, (1_050, AuditFaultKind::Altered), "in the second part");
    // A place that was never there is no place to go on from.
    let elsewhere = AuditPlace { seq: 7, hash: AuditHash::START };
    let walk = AuditWalk { after: Some(elsewhere), kept: None };
    let fault = api.viewer.walk_audit(walk).await.unwrap().fault.unwrap();
    assert_eq!((fault.seq, fault.kind), (8, AuditFaultKind::Displaced));
}

pub(crate) async fn the_audit_is_found_by_actor_object_and_time(api: &Api) {
    api.plan("a").await;
    api.plan("b").await;
    api.client("a", "a").await;
    let found = async |filter: AuditFilter| {
        let page = api.viewer.audit_of(&filter, 500, None).await.unwrap();
        page.items.iter().map(|row| row.command.clone()).collect::<Vec<_>>()
    };
    let some = |text: &str| Some(text.to_owned());
    let plans = found(AuditFilter { kind: some("plan"), ..AuditFilter::default() }).await;
    assert_eq!(plans, ["plan set", "plan set"]);
    let called_a = found(AuditFilter { id: some("a"), ..AuditFilter::default() }).await;
    assert_eq!(called_a, ["client set", "plan set"]);
    let both = AuditFilter { kind: some("client"), id: some("a"), ..AuditFilter::default() };
    assert_eq!(found(both).await, ["client set"]);

    let newest = api.viewer.audit(1, None).await.unwrap().items.remove(0);
    let (name, id) = newest.actor.split_once(" (").unwrap();
    for actor in [name, id.trim_end_matches(')'), newest.actor.as_str()] {
        let by = found(AuditFilter { actor: some(actor), ..AuditFilter::default() }).await;
        assert_eq!(by, ["client set", "plan set", "plan set"], "{actor}");
    }
    for actor in ["operato", "", "%", "(", ")"] {
        let by = found(AuditFilter { actor: some(actor), ..AuditFilter::default() }).await;
        assert!(by.is_empty(), "{actor} is nobody: {by:?}");
    }
    let later = AuditFilter { since: Some(newest.at + 1), ..AuditFilter::default() };
    assert!(found(later).await.is_empty());
    let all = AuditFilter { since: Some(0), ..AuditFilter::default() };
    assert_eq!(found(all).await.len(), usize::try_from(newest.seq).unwrap());

    let wrong = async |query: &'static str, value: &'static str| {
        let call = Call::get("/v1/audit").query(query, value);
        told(api.viewer.http().send::<Value>(call).await)
    };
    for (name, value) in [("since", "-1"), ("since", "yesterday"), ("cursor", "x")] {
        assert_eq!(wrong(name, value).await, (422, "invalid_value"), "{name}={value}");
    }
    assert_eq!(wrong("actr", "x").await, (422, "unknown_field"));
    for body in [json!({ "after": 7 }), json!({ "kept": { "seq": 1, "hash": "AB" } })] {
        let call = Call::post("/v1/audit:verify", &body);
        let told = told(api.viewer.http().send::<Value>(call).await);
        assert_eq!(told, (422, "invalid_value"), "{body}");
    }
}

/// The schema as the release before had it.
const BEFORE: [Step; 2] = [
    Step {
        number: 1,
        name: "catalog",
        postgres: include_str!("../../../../migrations/postgres/0001_catalog.sql"),
        sqlite: include_str!("../../../../migrations/sqlite/0001_catalog.sql"),
    },
    Step {
        number: 2,
        name: "rollout",
        postgres: include_str!("../../../../migrations/postgres/0002_rollout.sql"),
        sqlite: include_str!("../../../../migrations/sqlite/0002_rollout.sql"),
    },
];
const OLD_ROWS: u64 = 1_234;

/// A row as a process of the release before writes it.
fn old_row(seq: u64) -> String {
    format!(
        "insert into audit (seq, at, actor, via, command, reason, kind, id, \"after\", request_id) \
         values ({seq}, {seq}, 'ana (x)', 'api', 'plan set', 'ü', 'plan', 'p', '{{}}', 'r')"
    )
}

/// A database of the release before, with an audit; then this one starts.
async fn starts_over_an_old_audit(url: String) {
    let folder = tempfile::tempdir().unwrap();
    let pepper = Pepper::generate().unwrap();
    std::fs::write(folder.path().join("pepper"), pepper.bytes()).unwrap();
    let url = if url.is_empty() { plans_api::Settings::database_in(folder.path()) } else { url };
    let database = daemon::sql::Database::open(&url).await.unwrap();
    database.migrate(&BEFORE).await.unwrap();
    let mut tx = database.write().await.unwrap();
    for seq in 1..=OLD_ROWS {
        tx.run_text(&old_row(seq)).await.unwrap();
    }
    let head = format!(
        "insert into head (one, history, pepper_id, revision, audit_seq) \
         values (1, 'h', '{}', 7, {OLD_ROWS})",
        pepper.id()
    );
    tx.run_text(&head).await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;

    let api = Api::start(folder, url, None, None).await;
    let linked = verified(&api).await;
    assert_eq!((linked.fault, linked.unlinked), (None, 0));
    assert!(OLD_ROWS < linked.tip.seq, "old rows and those of the start: {:?}", linked.tip);
    by_hand(&api, "update audit set reason = 'x' where seq = 600").await;
    assert_eq!(fault(&api).await, (600, AuditFaultKind::Altered));
    by_hand(&api, "update audit set reason = 'ü' where seq = 600").await;

    // A process of the release before is still running and writes one more.
    let next = linked.tip.seq + 1;
    by_hand(&api, &format!("{}; update head set audit_seq = {next}", old_row(next))).await;
    let behind = verified(&api).await;
    assert_eq!((behind.fault, behind.unlinked, behind.tip), (None, 1, linked.tip));
    api.plan("a").await;
    let caught_up = verified(&api).await;
    assert_eq!((caught_up.fault, caught_up.unlinked), (None, 0));
    assert_eq!(caught_up.checked, next + 1);
    api.stop().await;
}

#[tokio::test]
async fn an_audit_from_before_the_chain_is_linked_as_it_is_found() {
    starts_over_an_old_audit(String::new()).await;
    let postgres = Postgres::start().await;
    starts_over_an_old_audit(postgres.database("old")).await;
}
