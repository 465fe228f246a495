//! What holds for every command: formats, dry runs, production, addresses.

use serde_json::{Value, json};

use crate::control::{Control, plan_lines};
use crate::run::{command, finish};

#[test]
fn a_list_has_five_forms_and_only_data_on_standard_output() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    for id in ["a", "b"] {
        control.weir(&["client", "set", id, "--plan", "p", "--label", "team=x"]).ends(0);
    }
    let list = |form: &str| control.weir(&["client", "list", "-o", form]).ends(0).stdout;
    assert_eq!(list("name"), "a\nb\n");
    assert_eq!(list("json").parse::<Value>().unwrap()["items"].as_array().unwrap().len(), 2);
    let lines: Vec<Value> =
        list("ndjson").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[1]["id"], &lines[1]["apiVersion"]), (&json!("b"), &json!("weir/v1")));
    assert!(!list("table").contains("LABELS") && list("wide").contains("LABELS"));
    assert!(list("wide").contains("{\"team\":\"x\"}"));
    let one = control.weir(&["client", "get", "a", "-o", "ndjson"]).ends(0).stdout;
    assert_eq!(one.lines().count(), 1, "{one}");
    let failed = control.weir(&["client", "get", "nobody", "-o", "ndjson"]).ends(9);
    assert_eq!(failed.stdout.lines().count(), 1);
    assert_eq!(failed.json()["exit"], 9);
    assert!(failed.stderr.contains("nobody"), "people are told too: {}", failed.stderr);
}

#[test]
fn a_dry_run_of_any_change_leaves_no_trace_and_ends_as_the_change_would() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    control.weir(&["plan", "set", "unused", "--burst", "1@1/s"]).ends(0);
    control.weir(&["client", "set", "a", "--plan", "p"]).ends(0);
    control.weir(&["client", "set", "bare", "--plan", "p"]).ends(0);
    let made = control.weir(&["key", "create", "a", "-o", "json"]).ends(0).json();
    let key = made["object"]["id"].as_str().unwrap();
    let made = control.weir(&["token", "create", "x", "--role", "viewer", "-o", "json"]);
    let token = made.ends(0).json()["object"]["id"].as_str().unwrap().to_owned();
    let file = control.file("many.toml", &plan_lines(3));
    let file = file.to_str().unwrap();
    let changes: &[(&[&str], i32)] = &[
        (&["plan", "set", "p", "--burst", "2@1/s"], 0),
        (&["plan", "delete", "unused"], 0),
        (&["plan", "delete", "p"], 11),
        (&["plan", "delete", "nobody"], 9),
        (&["client", "set", "a", "--name", "x"], 0),
        (&["client", "set", "a", "--plan", "nobody"], 13),
        (&["client", "suspend", "a"], 0),
        (&["client", "resume", "a"], 0),
        (&["client", "delete", "bare"], 0),
        (&["client", "delete", "a"], 11),
        (&["key", "create", "a"], 0),
        (&["key", "create", "nobody"], 9),
        (&["key", "disable", key], 0),
        (&["key", "revoke", key], 0),
        (&["limit", "reset", "a"], 0),
        (&["limit", "reset", "nobody"], 9),
        (&["apply", "-f", file], 0),
        (&["rollout", "set", "edge", "--all", "shadow", "--reason", "x"], 0),
        (&["token", "create", "y", "--role", "admin"], 0),
        (&["token", "revoke", &token], 0),
    ];
    leave_no_trace(&control, changes);
    let viewer = control.token(wire::client::plans::Role::Viewer);
    control.weir_as(&viewer, &["client", "suspend", "a", "--dry-run"]).ends(10);
}

#[test]
fn a_dry_run_of_what_is_hard_to_undo_leaves_no_trace_either() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    for id in ["a", "bare"] {
        control.weir(&["client", "set", id, "--plan", "p"]).ends(0);
    }
    let made = control.weir(&["key", "create", "a", "-o", "json"]).ends(0).json();
    let key = made["object"]["id"].as_str().unwrap();
    let keys = control.file("keys.csv", &format!("{},a\n", "ab".repeat(32)));
    let keys = keys.to_str().unwrap();
    let backup = control.path("backup");
    let backup = backup.to_str().unwrap();
    control.weir(&["backup", "create", backup]).ends(0);
    let own = ["--burst", "9@1/s", "--for", "1d", "--reason", "x", "--yes"];
    control.weir(&[&["client", "override", "set", "bare"], &own[..]].concat()).ends(0);
    control.weir(&["killswitch", "set", "--yes"]).ends(0);
    let set = control.weir(&["killswitch", "status", "-o", "name"]).ends(0).stdout;
    let set = set.trim().to_owned();
    control.weir(&["rollout", "set", "edge", "--all", "shadow", "--reason", "x", "--yes"]).ends(0);
    let against = json!({ "all": true, "phase": "enforce", "override": true, "reason": "x" });
    let ask = wire::client::Call::post("/v1/rollouts/edge:set", &against).if_match_or_insist(None);
    let api = control.api();
    let asked: Value = control.block_on(api.http().send(ask)).unwrap();
    let approval = asked["id"].as_str().unwrap();
    control.gateway_says("gw-1", 0);
    control.by_hand("update gateway set seen_at = 1");
    let changes: &[(&[&str], i32)] = &[
        (&["key", "rotate", key], 0),
        (&["key", "rotate", key, "--overlap", "0s"], 0),
        (&["key", "import", keys], 0),
        (
            &["client", "override", "set", "a", "--burst", "9@1/s", "--for", "1d", "--reason", "x"],
            0,
        ),
        (&["client", "override", "clear", "bare"], 0),
        (&["client", "override", "clear", "a"], 9),
        (&["killswitch", "set"], 0),
        (&["killswitch", "clear", &set], 0),
        (&["killswitch", "clear", "other"], 9),
        (&["approvals", "accept", approval], 10),
        (&["approvals", "refuse", approval], 0),
        (&["gateway", "forget", "gw-1"], 0),
        (&["backup", "restore", backup], 0),
    ];
    leave_no_trace(&control, changes);
}

/// Tries each of these; all that operators see is as before, and no secret is shown.
fn leave_no_trace(control: &Control, changes: &[(&[&str], i32)]) {
    let state = || {
        let lists: &[&[&str]] = &[
            &["audit", "list", "-o", "json"],
            &["export"],
            &["killswitch", "status", "-o", "json"],
            &["approvals", "list", "-o", "json"],
            &["gateway", "list", "-o", "json"],
            &["key", "list", "-o", "json"],
        ];
        lists.iter().map(|list| control.weir(list).ends(0).stdout).collect::<Vec<String>>()
    };
    let before = state();
    for (args, code) in changes {
        let ran = control.weir(&[args, &["--dry-run"][..]].concat()).ends(*code);
        assert_eq!(state(), before, "{args:?}");
        if *code == 0 {
            assert!(ran.stderr.contains("nothing was changed (--dry-run)"), "{args:?}: {ran:#?}");
        }
        assert!(!ran.stdout.contains("weir_live_") && !ran.stdout.contains("weiro_"), "{args:?}");
    }
}

#[test]
fn a_flag_wins_over_the_environment_and_what_counts_for_nothing_is_said() {
    let (control, other) = (Control::start(), Control::start());
    other.weir(&["plan", "set", "of-the-other", "--burst", "1@1/s"]).ends(0);
    let home = tempfile::tempdir().unwrap();
    let weir = |args: &[&str], addr: Option<&Control>| {
        let mut command = command(args);
        command.env("XDG_CONFIG_HOME", home.path());
        if let Some(at) = addr {
            command.env("WEIR_ADDR", &at.addr).env("WEIR_TOKEN", &at.token);
        }
        finish(command)
    };
    weir(&["context", "add", "other", "--addr", &other.addr], Some(&other)).ends(0);
    let list = ["plan", "list", "-o", "name"];
    let by_env = weir(&list, Some(&control)).ends(0);
    assert_eq!((by_env.stdout.as_str(), by_env.stderr.as_str()), ("", ""));
    let by_flag = weir(&[&list[..], &["--context", "other"]].concat(), Some(&control)).ends(0);
    assert_eq!(by_flag.stdout, "of-the-other\n");
    assert!(by_flag.stderr.contains("WEIR_ADDR"), "{}", by_flag.stderr);
    let mut token = command(&[&list[..], &["--context", "other"]].concat());
    token.env("XDG_CONFIG_HOME", home.path()).env("WEIR_TOKEN", "weiro_of_another-place");
    let ran = finish(token).ends(0);
    assert!(ran.stdout == "of-the-other\n" && ran.stderr.contains("WEIR_TOKEN"), "{ran:#?}");
    let both = [&list[..], &["--context", "other", "--addr", &control.addr]].concat();
    weir(&both, None).ends(64);
    let mut env = command(&list);
    env.env("XDG_CONFIG_HOME", home.path()).env("WEIR_CONTEXT", "other");
    env.env("WEIR_ADDR", &control.addr).env("WEIR_TOKEN", &control.token);
    let ran = finish(env).ends(0);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("WEIR_CONTEXT"), "{ran:#?}");
}

#[test]
fn production_wants_a_reason_and_a_yes_for_every_change() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    control.weir(&["client", "set", "a", "--plan", "p"]).ends(0);
    let home = tempfile::tempdir().unwrap();
    let weir = |args: &[&str]| {
        let mut command = command(args);
        command.env("XDG_CONFIG_HOME", home.path());
        finish(command)
    };
    let mut add = command(&["context", "add", "prod", "--addr", &control.addr, "--production"]);
    add.env("XDG_CONFIG_HOME", home.path()).env("WEIR_TOKEN", &control.token);
    finish(add).ends(0);
    let changes: &[&[&str]] = &[
        &["plan", "set", "p", "--burst", "2@1/s"],
        &["client", "set", "a", "--name", "x"],
        &["client", "suspend", "a"],
        &["client", "resume", "a"],
        &["key", "create", "a"],
        &["limit", "reset", "a"],
        &["token", "create", "x", "--role", "viewer"],
    ];
    for change in changes {
        assert!(weir(change).ends(64).stderr.contains("--reason"), "{change:?}");
        let reasoned = [change, &["--reason", "x"][..]].concat();
        assert!(weir(&reasoned).ends(64).stderr.contains("--yes"), "{change:?}");
        weir(&[change, &["--dry-run"][..]].concat()).ends(0);
        weir(&[&reasoned[..], &["--yes"]].concat()).ends(0);
    }
    weir(&["plan", "list"]).ends(0);
}

#[test]
fn a_plans_history_is_told_by_what_each_change_changed() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s", "--reason", "new"]).ends(0);
    control.weir(&["plan", "set", "p", "--burst", "9@1/s", "--reason", "more"]).ends(0);
    let table = control.weir(&["plan", "history", "p"]).ends(0).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].ends_with("made") && lines[1].contains("new"), "{table}");
    assert!(lines[2].ends_with("burst.capacity 1 → 9") && lines[2].contains("more"), "{table}");
    control.weir(&["plan", "history", "nobody"]).ends(9);
}

#[test]
fn routes_are_listed_as_live_gateways_have_them_and_a_file_is_asked() {
    let control = Control::start();
    control.gateway_says("gw-1", 0);
    control.weir(&["route", "list", "-o", "json"]).ends(0);
    let text = "[upstream.orders]\nendpoints = [\"127.0.0.1:9\"]\n\
        [[route]]\npath = \"/orders\"\nupstream = \"orders\"\nmethods = [\"GET\"]\ncost = 3\n\
        [plan.p]\nburst = { capacity = 9, refill = \"1/s\" }\n";
    let file = control.file("gateway.toml", text);
    let test = |method: &str, url: &str| {
        let args = ["route", "test", method, url, "--config", file.to_str().unwrap()];
        control.weir(&[&args[..], &["-o", "json"]].concat())
    };
    let found = test("GET", "https://api.example.com/orders/7?x=1").ends(0).json();
    assert_eq!(
        (&found["route"], &found["upstream"], &found["cost"]),
        (&json!("orders"), &json!("orders"), &json!(3))
    );
    assert!(test("POST", "/orders/7").ends(9).stderr.contains("for GET only"));
    test("GET", "http://x/other").ends(9);
    test("GET", "nothing").ends(64);
}

#[test]
fn a_client_is_explained_with_what_is_known_and_what_is_not() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "7@1/s"]).ends(0);
    control.weir(&["client", "set", "a", "--plan", "p"]).ends(0);
    let ran = control.weir(&["client", "explain", "a"]).ends(0);
    assert!(ran.stdout.contains("7@1/s (plan p)"), "{}", ran.stdout);
    assert!(ran.stdout.contains("it has no active key"), "{}", ran.stdout);
    assert!(ran.stderr.contains("not known, buckets"), "{}", ran.stderr);
    control.weir(&["client", "suspend", "a", "--yes"]).ends(0);
    let json = control.weir(&["client", "explain", "a", "-o", "json"]).ends(0).json();
    assert!(json["so"].as_str().unwrap().contains("suspended"), "{json:#}");
    control.weir(&["client", "explain", "nobody"]).ends(9);
}

#[test]
fn a_login_tries_the_token_before_it_keeps_it() {
    use std::io::Write;
    let control = Control::start();
    let home = tempfile::tempdir().unwrap();
    let login = |token: &str| {
        let mut command = command(&["login", "here", "--addr", &control.addr]);
        command.env("XDG_CONFIG_HOME", home.path()).stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{token}\n").as_bytes()).unwrap();
        child.wait_with_output().unwrap().status.code().unwrap()
    };
    assert_eq!(login("weiro_wrong_token"), 10);
    assert_eq!(login(""), 64);
    assert!(!home.path().join("weir/contexts.toml").exists(), "nothing was kept");
    assert_eq!(login(&control.token), 0);
    let mut list = command(&["plan", "list"]);
    list.env("XDG_CONFIG_HOME", home.path());
    finish(list).ends(0);
}

#[test]
fn a_cost_for_a_route_that_no_gateway_has_is_a_finding() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "9@1/s", "--cost", "reports=5"]).ends(0);
    control.weir(&["plan", "lint"]).ends(0);
    control.gateway_has("gw-1", &["orders"]);
    let told = control.weir(&["plan", "lint"]).ends(13).stdout;
    assert!(told.contains("route reports, which no gateway has"), "{told}");
    control.gateway_has("gw-1", &["orders", "reports"]);
    control.weir(&["plan", "lint"]).ends(0);
    assert_eq!(control.weir(&["route", "list", "-o", "name"]).stdout, "orders\nreports\n");
}

#[test]
fn a_gateway_is_shown_with_what_it_would_not_take() {
    let control = Control::start();
    let rejected = wire::policy::Rejected {
        kind: "plan".to_owned(),
        id: "odd".to_owned(),
        revision: 1,
        reason: "capacity 0".to_owned(),
    };
    control.gateway_refuses("gw-1", vec![rejected]);
    let shown = control.weir(&["gateway", "get", "gw-1"]).ends(0).stdout;
    assert!(shown.contains("plan odd at revision 1: capacity 0"), "{shown}");
    control.weir(&["gateway", "get", "nobody"]).ends(9);
    let live = control.weir(&["gateway", "forget", "gw-1", "--yes"]).ends(11).stderr;
    assert!(live.contains("still calls"), "{live}");
    assert!(control.weir(&["gateway", "forget", "gw-1"]).ends(64).stderr.contains("1 gateway"));
}

#[test]
fn daily_commands_give_one_document_too() {
    let control = Control::start();
    control.weir(&["plan", "set", "pro", "--burst", "100@50/s"]).ends(0);
    control.weir(&["client", "set", "acme", "--plan", "pro"]).ends(0);
    let file = control.file("p.toml", &plan_lines(2));
    let file = file.to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["plan", "history", "pro"],
        &["client", "explain", "acme"],
        &["client", "usage", "acme"],
        &["client", "override", "set", "acme", "--for", "1d", "--burst", "x", "--reason", "x"],
        &["client", "override", "clear", "acme", "--yes"],
        &["key", "rotate", "nobody"],
        &["key", "usage", "nobody"],
        &["key", "import", file],
        &["limit", "try", "acme"],
        &["limit", "verify", "acme"],
        &["diff", "-f", file],
        &["export", "--bootstrap"],
        &["replay", file, "--plans", file, "--default-plan", "p000"],
        &["route", "list"],
        &["top"],
        &["gateway", "get", "nobody"],
        &["gateway", "forget", "nobody", "--yes"],
        &["killswitch", "status"],
        &["approvals", "list"],
    ];
    crate::nouns::each_gives_one_document(&control, commands);
}
