//! Commands against answers that are told: a lost race, and calls of parts that run elsewhere.

use serde_json::{Value, json};

use crate::stub::{Stub, problem};

fn client() -> Value {
    json!({ "id": "acme", "name": "", "plan": "pro", "state": "active", "labels": {},
            "reset_revision": 0, "revision": 7 })
}

fn key() -> Value {
    json!({ "id": "k7Q2f9xkda", "client": "acme", "env": "live", "state": "active",
            "expires_at": null, "created_at": 1, "created_by": "ana", "revision": 8 })
}

#[test]
fn a_lost_race_shows_what_the_other_change_did() {
    let plan = json!({ "name": "p", "burst": { "capacity": 10, "refill": "1/s" },
                       "failure": "coarse", "scope": "client", "revision": 5 });
    let row = |after: u64| {
        json!({ "seq": 9, "revision": 6, "at": 1_795_857_242_000_u64, "actor": "ana", "via": "api",
                "command": "plan set", "reason": "more for all", "kind": "plan", "id": "p",
                "before": { "burst": { "capacity": 10 } },
                "after": { "burst": { "capacity": after } }, "request_id": "r" })
    };
    let stub = Stub::start(vec![
        ("GET /v1/plans/p", 200, plan),
        (
            "PUT /v1/plans/p",
            412,
            problem("changed", 412, "the plan `p` is at revision 6, not at 5"),
        ),
        ("GET /v1/audit", 200, json!({ "items": [row(30)], "next": null })),
    ]);
    let ran = stub.weir(&["plan", "set", "p", "--burst", "20@1/s", "-o", "json"]).ends(11);
    for told in ["ana did `plan set` at revision 6", "more for all", "burst.capacity 10 → 30"] {
        assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
    }
    assert_eq!(ran.json()["error"]["more"]["other_change"]["actor"], "ana");
    assert!(stub.asked("PUT")[0].head.contains("if-match: \"5\""), "{:?}", stub.asked("PUT"));
}

#[test]
fn an_override_has_an_end_and_a_reason() {
    let stub = Stub::start(vec![
        ("PUT /v1/clients/acme/override", 200, json!({ "revision": 9, "object": client() })),
        ("DELETE /v1/clients/acme/override", 200, json!({ "revision": 10, "object": client() })),
    ]);
    let set = ["client", "override", "set", "acme", "--burst", "200@100/s", "--for", "7d"];
    assert!(stub.weir(&set).ends(64).stderr.contains("--reason"));
    let nothing = ["client", "override", "set", "acme", "--for", "7d", "--reason", "x"];
    stub.weir(&nothing).ends(64);
    let wrong = [
        "client",
        "override",
        "set",
        "acme",
        "--burst",
        "0@x/s",
        "--failure",
        "2x",
        "--for",
        "7d",
        "--reason",
        "x",
    ];
    let told = stub.weir(&wrong).ends(13).stderr;
    for field in ["override.burst.capacity", "override.burst.refill", "override.failure"] {
        assert!(told.contains(field), "{field}: {told}");
    }
    assert!(stub.asked("").is_empty(), "nobody was asked: {:?}", stub.asked(""));
    let told = stub.weir(&[&set[..], &["--reason", "launch"]].concat()).ends(0).stderr;
    assert!(told.contains("has limits of its own until 20"), "{told}");
    let asked = stub.asked("PUT").remove(0);
    assert_eq!(asked.body["burst"], json!({ "capacity": 200, "refill": "100/s" }));
    assert!(asked.body["expires_at"].as_u64().unwrap() > 1_700_000_000_000);
    assert!(
        asked.line.contains("reason=launch") && asked.head.contains("if-match: *"),
        "{asked:?}"
    );

    let clear = ["client", "override", "clear", "acme"];
    assert!(stub.weir(&clear).ends(64).stderr.contains("1 client"));
    stub.weir(&[&clear[..], &["--yes"]].concat()).ends(0);
    assert_eq!(stub.asked("DELETE").len(), 1);
}

#[test]
fn a_key_is_rotated_shown_once_and_the_old_secret_is_told() {
    let new = json!({ "revision": 9, "object": key(), "key": "weir_live_k7Q2f9xkda_new" });
    let usage = json!({ "id": "k7Q2f9xkda", "secrets": [
        { "algorithm": "weir", "created_at": 2, "valid_until": null, "last_used_at": null },
        { "algorithm": "weir", "created_at": 1, "valid_until": 1_795_857_242_000_u64,
          "last_used_at": 1_795_857_000_000_u64 },
    ] });
    let stub = Stub::start(vec![
        ("GET /v1/keys/k7Q2f9xkda", 200, key()),
        ("POST /v1/keys/k7Q2f9xkda:rotate", 200, new),
        ("GET /v1/keys/k7Q2f9xkda/usage", 200, usage),
    ]);
    let ran = stub.weir(&["key", "rotate", "k7Q2f9xkda", "--overlap", "24h"]).ends(0);
    assert_eq!(ran.stdout, "weir_live_k7Q2f9xkda_new\n");
    assert!(ran.stderr.contains("the old secret ends 2026-11-28T09:14:02Z"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("_new"), "the secret is data, and only data");
    assert_eq!(stub.asked("POST")[0].body, json!({ "overlap_ms": 86_400_000 }));
    let at_once = ["key", "rotate", "k7Q2f9xkda", "--overlap", "0s"];
    assert!(stub.weir(&at_once).ends(64).stderr.contains("client acme at once (1 key)"));
    let tried = stub.weir(&["key", "rotate", "k7Q2f9xkda", "--dry-run", "-o", "json"]).ends(0);
    assert!(!tried.stdout.contains("_new"), "a secret that was not kept: {}", tried.stdout);
    let sent = stub.asked("POST").pop().unwrap().line;
    assert!(sent.contains("dry_run=true"), "{sent}");
    let table = stub.weir(&["key", "usage", "k7Q2f9xkda"]).ends(0).stdout;
    assert!(table.contains("LAST USED") && table.contains("2026-11-28T09:10:00Z"), "{table}");
}

#[test]
fn keys_are_imported_by_their_hash_all_or_none() {
    let stub = Stub::start(vec![(
        "POST /v1/keys:import",
        200,
        json!({ "revision": 9, "items": [key()] }),
    )]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.csv");
    std::fs::write(&file, format!("{},acme,2027-01-01T00:00:00Z\n", "a".repeat(64))).unwrap();
    let file = file.to_str().unwrap();
    let ran = stub.weir(&["key", "import", file, "-o", "name"]).ends(0);
    assert_eq!(ran.stdout, "k7Q2f9xkda\n");
    let keys = stub.asked("POST").remove(0).body["keys"].clone();
    assert_eq!(keys[0]["expires_at"], 1_798_761_600_000_u64);
    std::fs::write(file, "weir_live_secret,acme\n").unwrap();
    let told = stub.weir(&["key", "import", file]).ends(13).stderr;
    assert!(told.contains("keys.csv:1") && !told.contains("secret"), "{told}");
    assert_eq!(stub.asked("POST").len(), 1);
}

#[test]
fn the_kill_switch_names_its_radius_and_how_to_clear_it() {
    let set = json!({ "revision": 9, "killswitch": { "id": "ks-1", "set_at": 1_795_857_242_000_u64 },
                      "own": [{ "gateway": "gw-1", "id": "by-hand" }] });
    let stub = Stub::start(vec![
        ("GET /v1/killswitch", 200, set.clone()),
        ("POST /v1/killswitch:set", 200, set),
        (
            "POST /v1/killswitch:clear",
            200,
            json!({ "revision": 10, "killswitch": null, "own": [] }),
        ),
    ]);
    assert!(stub.weir(&["killswitch", "set"]).ends(64).stderr.contains("everybody"));
    assert!(stub.asked("").is_empty(), "one call has to be enough: {:?}", stub.asked(""));
    let ran = stub.weir(&["killswitch", "set", "--yes", "--reason", "INC-1"]).ends(0);
    assert!(ran.stderr.contains("back: weir killswitch clear ks-1"), "{}", ran.stderr);
    let status = stub.weir(&["killswitch", "status"]).ends(0).stdout;
    assert!(
        status.contains("set as ks-1 since 2026") && status.contains("gw-1: set by hand"),
        "{status}"
    );
    stub.weir(&["killswitch", "clear", "ks-1", "--yes"]).ends(0);
    assert!(stub.asked("GET /v1/clients").is_empty());
    assert_eq!(stub.asked("POST /v1/killswitch:clear")[0].body, json!({ "id": "ks-1" }));
}

#[test]
fn an_approval_says_what_would_be_done_before_it_is_done() {
    let approval = json!({ "id": "a1", "command": "set all enforce", "kind": "rollout",
                           "subject": "edge", "reason": "week 4", "evidence": {},
                           "requested_by": "ana", "requested_at": 1, "expires_at": 2,
                           "state": "open" });
    let stub = Stub::start(vec![
        ("GET /v1/approvals", 200, json!({ "items": [approval], "next": null })),
        ("GET /v1/approvals/a1", 200, approval.clone()),
        ("POST /v1/approvals/a1:accept", 200, approval.clone()),
        ("POST /v1/approvals/a1:refuse", 403, problem("role_too_small", 403, "it is your own")),
    ]);
    let list = stub.weir(&["approvals", "list"]).ends(0).stdout;
    assert!(list.contains("set all enforce") && list.contains("rollout edge"), "{list}");
    let asked = stub.weir(&["approvals", "accept", "a1"]).ends(64).stderr;
    assert!(asked.contains("`set all enforce` of edge, which ana asked for"), "{asked}");
    stub.weir(&["approvals", "accept", "a1", "--yes"]).ends(0);
    stub.weir(&["approvals", "refuse", "a1"]).ends(10);
}

#[test]
fn an_hour_above_the_limits_is_a_fault_and_one_below_is_none() {
    let minute = crate::control::Control::minute() - 1;
    let world = |cost: u64| {
        let usage = json!({ "client": "acme", "complete": true, "minutes": [
            { "minute": minute, "requests": cost, "cost_allowed": cost },
            { "minute": minute - 1, "requests": 5, "cost_allowed": 5 },
        ] });
        let standing = json!({ "client": "acme", "plan": "pro", "phase": "enforce", "remaining": 41,
            "burst": { "tokens": 41, "capacity": 100, "refill": "50/s", "full_in_ms": 1 },
            "sustained": null, "outstanding": 4, "gateway": "gw-1" });
        Stub::start(vec![
            ("GET /v1/clients/acme/limit", 200, standing),
            ("GET /v1/shadow/usage", 200, usage),
            ("GET /v1/audit", 200, json!({ "items": [], "next": null })),
        ])
    };
    let ran = world(3_094).weir(&["limit", "verify", "acme"]).ends(0);
    assert!(
        ran.stdout.contains("burst 100 + 50/s · t + 2 tokens   4 tokens lent"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout.contains("checked 2 exact minutes: largest 3 094 of 3 102"),
        "{}",
        ran.stdout
    );
    let above = world(3_103).weir(&["limit", "verify", "acme", "-o", "json"]).ends(14);
    assert_eq!(above.json()["above"].as_array().unwrap().len(), 1);
    assert!(above.stderr.contains("1 more than the limits allow"), "{}", above.stderr);

    let fits = world(1).weir(&["limit", "try", "acme", "--cost", "41"]).ends(0).stdout;
    assert_eq!(fits, "a request of cost 41 would pass\n");
    let not_yet =
        world(1).weir(&["limit", "try", "acme", "--cost", "46", "-o", "json"]).ends(0).json();
    assert_eq!((&not_yet["passes"], &not_yet["wait_ms"]), (&json!(false), &json!(100)));
    let never = world(1).weir(&["limit", "try", "acme", "--cost", "101"]).ends(0).stdout;
    assert!(never.contains("refused by burst, for ever"), "{never}");
}
