//! One noun after the other, as documents for programs and as tables for people.

use serde_json::{Value, json};
use wire::client::Call;

use crate::control::{Control, plan_lines};
use crate::run::{alone, command, finish, within};

#[test]
fn a_plan_is_made_shown_changed_and_deleted() {
    let control = Control::start();
    let made = control
        .weir(&["plan", "set", "pro", "--burst", "100@50/s", "--failure", "closed", "-o", "json"])
        .ends(0)
        .json();
    assert_eq!(made["apiVersion"], "weir/v1");
    assert_eq!(made["object"]["burst"], json!({ "capacity": 100, "refill": "50/s" }));
    let args = ["plan", "set", "pro", "--sustained", "2000000@2000000/d", "--cost", "reports=5"];
    control.weir(&args).ends(0);
    let plan = control.weir(&["plan", "get", "pro", "-o", "json"]).ends(0).json();
    assert_eq!(plan["failure"], "closed", "what was not named is kept");
    assert_eq!(plan["burst"]["capacity"], 100);
    assert_eq!(plan["costs"], json!([{ "route": "reports", "cost": 5 }]));
    let table = control.weir(&["plan", "list"]).ends(0).stdout;
    let mut lines = table.lines();
    assert!(lines.next().unwrap().starts_with("PLAN"), "{table}");
    let line = lines.next().unwrap();
    assert!(line.contains("100@50/s") && line.contains("2000000@2000000/d"), "{table}");
    assert_eq!(control.weir(&["plan", "list", "-o", "name"]).ends(0).stdout, "pro\n");
    control.weir(&["plan", "delete", "pro", "--yes"]).ends(0);
    control.weir(&["plan", "get", "pro"]).ends(9);
}

#[test]
fn a_plan_whose_burst_can_never_be_used_up_is_made_with_a_warning() {
    let control = Control::start();
    let set = |sustained: &str, more: &[&str]| {
        let args = ["plan", "set", "pro", "--burst", "100@50/s", "--sustained", sustained];
        control.weir(&[&args[..], more].concat()).ends(0).stderr
    };
    let held_back = "warning: plan pro: sustained holds less than burst";
    assert!(set("50@1/s", &["--dry-run"]).contains(held_back));
    assert!(set("50@1/s", &[]).contains(held_back));
    let well = set("100@1/s", &[]);
    assert!(!well.contains("warning"), "{well}");
}

#[test]
fn a_dry_run_changes_nothing_and_exits_as_the_change_would() {
    let control = Control::start();
    let args = ["plan", "set", "pro", "--burst", "100@50/s", "--dry-run", "-o", "json"];
    let tried = control.weir(&args).ends(0).json();
    assert_eq!(tried["dry_run"], true);
    assert_eq!(tried["changes"][0]["action"], "create");
    control.weir(&["plan", "get", "pro"]).ends(9);
    let args = ["client", "set", "acme", "--plan", "nobody-has-it", "--dry-run"];
    let refused = control.weir(&args);
    let made = control.weir(&["client", "set", "acme", "--plan", "nobody-has-it"]);
    assert_eq!(refused.code, made.code, "{refused:#?}{made:#?}");
    assert_ne!(refused.code, 0);
}

#[test]
fn a_client_and_its_key_live_and_end() {
    let control = Control::start();
    control.weir(&["plan", "set", "pro", "--burst", "100@50/s"]).ends(0);
    let args = ["client", "set", "acme", "--plan", "pro", "--name", "Acme", "--label", "team=x"];
    control.weir(&args).ends(0);
    control.weir(&["client", "suspend", "acme", "--yes", "--reason", "abuse"]).ends(0);
    let client = control.weir(&["client", "get", "acme", "-o", "json"]).ends(0).json();
    assert_eq!((&client["state"], &client["name"]), (&json!("suspended"), &json!("Acme")));
    control.weir(&["client", "resume", "acme"]).ends(0);

    let key = control.weir(&["key", "create", "acme", "--env", "test"]).ends(0);
    let secret = key.stdout.trim();
    assert!(secret.starts_with("weir_test_") && !secret.contains('\n'), "{key:#?}");
    assert!(!key.stderr.contains(secret), "the secret is data, and only data");
    let id = secret.split('_').nth(2).unwrap();
    let keys = control.weir(&["key", "list", "--client", "acme", "-o", "json"]).ends(0);
    assert_eq!(keys.json()["items"][0]["id"], id);
    assert!(!keys.stdout.contains(secret));
    let state = || control.weir(&["key", "get", id, "-o", "json"]).ends(0).json()["state"].clone();
    control.weir(&["key", "disable", id]).ends(0);
    assert_eq!(state(), "disabled");
    control.weir(&["key", "enable", id]).ends(0);
    assert_eq!(state(), "active");
    control.weir(&["key", "revoke", id, "--yes", "--reason", "leak"]).ends(0);
    assert_eq!(state(), "revoked");
    control.weir(&["limit", "reset", "acme", "--reason", "our fault"]).ends(0);
    let audit = control.weir(&["audit", "list", "-o", "json"]).ends(0).json();
    let rows = audit["items"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["reason"] == "leak"), "{audit:#}");
    let order: Vec<u64> = rows.iter().map(|row| row["seq"].as_u64().unwrap()).collect();
    assert!(order.is_sorted(), "oldest first: {order:?}");
}

#[test]
fn a_token_is_shown_once_and_ends() {
    let control = Control::start();
    let args = ["token", "create", "ana", "--role", "viewer", "--expires-in", "1h", "-o", "json"];
    let made = control.weir(&args).ends(0).json();
    let (token, id) = (made["token"].as_str().unwrap(), made["object"]["id"].as_str().unwrap());
    control.weir_as(token, &["plan", "list"]).ends(0);
    let tokens = control.weir(&["token", "list"]).ends(0).stdout;
    assert!(tokens.contains("ana") && !tokens.contains(token), "{tokens}");
    control.weir(&["token", "revoke", id, "--yes"]).ends(0);
    control.weir_as(token, &["plan", "list"]).ends(10);
}

#[test]
fn c27_a_list_over_pages_is_complete_and_one_document() {
    let control = Control::start();
    let file = control.file("many.toml", &plan_lines(250));
    control.weir(&["apply", "-f", file.to_str().unwrap()]).ends(0);

    // pages of 100; between the first and the second one plan comes and one that was seen goes
    let api = control.api();
    let mut seen: Vec<String> = Vec::new();
    let mut cursors: Vec<String> = Vec::new();
    loop {
        let call = Call::get("/v1/plans").query("limit", "100").maybe("cursor", cursors.last());
        let page: Value = control.block_on(api.http().send(call)).unwrap();
        let names = page["items"].as_array().unwrap().iter().map(|plan| plan["name"].clone());
        seen.extend(names.map(|name| name.as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            None => break,
            Some(next) => {
                assert!(!cursors.contains(&next.to_owned()), "the cursor came back: {next}");
                cursors.push(next.to_owned());
            }
        }
        if cursors.len() == 1 {
            control.weir(&["plan", "set", "zz-new", "--burst", "1@1/s"]).ends(0);
            control.weir(&["plan", "delete", "p000", "--yes"]).ends(0);
        }
        assert!(cursors.len() < 5, "does not end");
    }
    for n in 1..250 {
        let name = format!("p{n:03}");
        assert_eq!(seen.iter().filter(|seen| **seen == name).count(), 1, "{name}");
    }
    assert!(cursors.len() <= 3, "{} calls", cursors.len() + 1);

    let ran = control.weir(&["plan", "list", "-o", "json"]).ends(0);
    let document = ran.json();
    assert_eq!(document["items"].as_array().unwrap().len(), 250);
    assert_eq!(ran.stderr, "", "nothing to say");
}

#[test]
fn a_list_longer_than_a_page_of_the_program_is_whole() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    let clients: String = (0..620).map(|n| format!("[client.c{n:03}]\nplan = \"p\"\n")).collect();
    let file = control.file("clients.toml", &clients);
    control.weir(&["apply", "-f", file.to_str().unwrap()]).ends(0);
    let names = control.weir(&["client", "list", "-o", "name"]).ends(0).stdout;
    let wanted: Vec<String> = (0..620).map(|n| format!("c{n:03}")).collect();
    assert_eq!(names.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn c29_no_bad_rate_becomes_a_number() {
    let control = Control::start();
    let bad = [
        ("10@10/mn", "`10/mn`"),
        ("10@5x", "`5x`"),
        ("10@-5s", "`-5s`"),
        ("10@", "``"),
        ("10@nan", "`nan`"),
        ("10@inf", "`inf`"),
        ("10@1e400", "`1e400`"),
        ("0x10@1/s", "0x10"),
        ("inf@1/s", "inf"),
        ("5x@1/s", "5x"),
        ("1e400@1/s", "1e400"),
        ("nan@1/s", "nan"),
        ("10", "10"),
        ("-1@1/s", "-1"),
        ("1.5@1/s", "1.5"),
        ("10@1e3/s", "`1e3/s`"),
        ("@1/s", "\"\""),
        ("10@0x10/s", "`0x10/s`"),
        ("10@1/0s", "`1/0s`"),
    ];
    for (burst, value) in bad {
        let ran = control.weir(&["plan", "set", "p", "--burst", burst, "-o", "json"]).ends(13);
        let field = &ran.json()["error"]["errors"][0]["field"];
        assert!(field.as_str().unwrap().starts_with("plan.p.burst"), "{burst}: {field}");
        assert!(ran.stderr.contains(value), "{value} is not named: {}", ran.stderr);
    }
    let args =
        ["plan", "set", "p", "--burst", "10@10/mn", "--sustained", "0x10@1/s", "--failure", "2x"];
    let all = control.weir(&args).ends(13).stderr;
    for field in ["plan.p.burst.refill", "plan.p.sustained.capacity", "plan.p.failure"] {
        assert!(all.contains(field), "all mistakes at once: {all}");
    }
    assert_eq!(control.weir(&["plan", "list", "-o", "name"]).ends(0).stdout, "");
    for (burst, value) in bad {
        let args =
            ["client", "override", "set", "a", "--for", "1d", "--reason", "x", "--burst", burst];
        let told = control.weir(&args).ends(13).stderr;
        assert!(
            told.contains("client.a.override.burst") && told.contains(value),
            "{value}: {told}"
        );
    }
}

#[test]
fn every_command_with_json_gives_one_document() {
    let control = Control::start();
    control.weir(&["plan", "set", "pro", "--burst", "100@50/s"]).ends(0);
    control.weir(&["client", "set", "acme", "--plan", "pro"]).ends(0);
    let file = control.file("p.toml", &plan_lines(2));
    let file = file.to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["version"],
        &["completion", "bash"],
        &["doctor"],
        &["plan", "list"],
        &["plan", "get", "pro"],
        &["plan", "get", "nobody"],
        &["plan", "set", "pro", "--note", "x", "--wait=10ms"],
        &["plan", "set", "pro"],
        &["plan", "lint"],
        &["plan", "lint", "-f", file],
        &["plan", "delete", "pro"],
        &["plan", "delete", "pro", "--yes"],
        &["client", "list"],
        &["client", "get", "acme"],
        &["client", "set", "acme", "--name", "x"],
        &["client", "suspend", "acme", "--yes"],
        &["client", "resume", "acme"],
        &["key", "create", "acme"],
        &["key", "create", "nobody"],
        &["key", "list"],
        &["key", "get", "nobody"],
        &["key", "revoke", "nobody", "--yes"],
        &["limit", "inspect", "acme"],
        &["limit", "reset", "acme"],
        &["apply", "-f", file],
        &["apply", "-f", file, "--dry-run"],
        &["apply", "-f", "/nowhere.toml"],
        &["validate", "-f", file],
        &["export"],
        &["rollout", "list"],
        &["rollout", "get", "edge"],
        &["rollout", "set", "edge", "--all", "shadow", "--reason", "x"],
        &["rollout", "set", "edge", "--all", "enforce", "--reason", "x", "--yes"],
        &["rollout", "get", "edge"],
        &["rollout", "rollback", "edge", "--reason", "x"],
        &["gate", "status", "edge"],
        &["shadow", "top"],
        &["shadow", "explain", "nobody"],
        &["gateway", "list"],
        &["token", "list"],
        &["token", "create", "x", "--role", "viewer"],
        &["token", "revoke", "nobody", "--yes"],
        &["audit", "list"],
        &["context", "list"],
        &["context", "show"],
    ];
    each_gives_one_document(&control, commands);
}

/// Runs them for programs.
pub(crate) fn each_gives_one_document(control: &Control, commands: &[&[&str]]) {
    for args in commands {
        let mut args = args.to_vec();
        args.extend(["-o", "json"]);
        let ran = control.weir(&args);
        let document = ran.json();
        assert_eq!(document["apiVersion"], "weir/v1", "{args:?}: {document:#}");
        let failed = document["ok"] == false && document.get("error").is_some();
        if failed {
            assert_eq!(document["exit"], ran.code, "{args:?}");
            assert_ne!(ran.stderr, "", "{args:?} says nothing to people");
        }
        let report = [["gate"], ["doctor"], ["diff"]].iter().any(|name| args.starts_with(name));
        let reports = report || ran.code == 0;
        assert_eq!(failed, !reports, "{args:?}: {ran:#?}");
    }
}

#[test]
fn quiet_says_only_what_went_wrong() {
    let control = Control::start();
    let ran = control.weir(&["plan", "set", "p", "--burst", "1@1/s", "-q"]).ends(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    assert_ne!(control.weir(&["plan", "get", "x", "-q"]).ends(9).stderr, "");
}

#[test]
fn a_whole_key_is_not_sent_on_and_not_shown_again() {
    let control = Control::start();
    for verb in ["get", "revoke", "rotate", "usage"] {
        let ran = control.weir(&["key", verb, "weir_live_k7Q2f9xkda_secretsecret"]).ends(64);
        assert!(ran.stderr.contains("k7Q2f9xkda"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("secretsecret"), "{}", ran.stderr);
    }
}

#[test]
fn contexts_are_kept_private_and_used() {
    let control = Control::start();
    let home = tempfile::tempdir().unwrap();
    let weir = |args: &[&str], token: Option<&str>| {
        let mut command = command(args);
        command.env("XDG_CONFIG_HOME", home.path());
        if let Some(token) = token {
            command.env("WEIR_TOKEN", token);
        }
        finish(command)
    };
    let addr = control.addr.as_str();
    weir(&["context", "add", "here", "--addr", addr], Some(&control.token)).ends(0);
    weir(&["context", "add", "prod", "--addr", addr, "--production"], Some(&control.token)).ends(0);
    weir(&["plan", "set", "p", "--burst", "1@1/s"], None).ends(0);
    let list = weir(&["context", "list", "-o", "json"], None).ends(0);
    assert!(!list.stdout.contains(&control.token), "a token is never shown");
    assert_eq!(list.json()["items"][0]["current"], true);

    weir(&["context", "use", "prod"], None).ends(0);
    let change = ["plan", "set", "p", "--burst", "2@1/s"];
    assert!(weir(&change, None).ends(64).stderr.contains("--reason"));
    let reasoned = [&change[..], &["--reason", "x"]].concat();
    assert!(weir(&reasoned, None).ends(64).stderr.contains("--yes"));
    weir(&[&reasoned[..], &["--yes"]].concat(), None).ends(0);
    weir(&["context", "use", "nobody"], None).ends(9);
    weir(&["context", "remove", "prod"], None).ends(0);
    weir(&["--context", "prod", "plan", "list"], None).ends(9);

    // A mistake in the file is told by its line, which may hold the token and is not shown.
    let file = home.path().join("weir/contexts.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("token = \"", "token = ")).unwrap();
    let told = weir(&["plan", "list"], None).ends(64).stderr;
    assert!(told.contains("contexts.toml: line ") && !told.contains(&control.token), "{told}");
}

#[test]
fn what_dev_left_is_found_from_folders_below_and_listed_while_in_use() {
    let control = Control::start();
    let folder = tempfile::tempdir().unwrap();
    let (left, below) = (folder.path().join(".weir"), folder.path().join("a/b"));
    std::fs::create_dir_all(&below).unwrap();
    let weir = |args: &[&str]| {
        let mut command = command(args);
        command.current_dir(&below).env("XDG_CONFIG_HOME", folder.path().join("home"));
        finish(command)
    };
    assert_eq!(weir(&["context", "list", "-o", "name"]).ends(0).stdout, "");
    let made = ["context", "add", "dev", "--addr", control.addr.as_str()];
    let mut add = command(&made);
    add.env("XDG_CONFIG_HOME", folder.path()).env("WEIR_TOKEN", &control.token);
    finish(add).ends(0);
    std::fs::rename(folder.path().join("weir"), &left).unwrap();

    weir(&["plan", "list"]).ends(0);
    let list = weir(&["context", "list", "-o", "json"]).ends(0);
    assert!(!list.stdout.contains(&control.token), "a token is never shown");
    let item = &list.json()["items"][0];
    assert_eq!((&item["current"], &item["addr"]), (&json!(true), &json!(control.addr)));
    let name = item["name"].as_str().unwrap();
    assert!(name.ends_with("/.weir/contexts.toml"), "{name}");
    weir(&["--context", name, "plan", "list"]).ends(0);

    weir(&["context", "add", "own", "--addr", "http://127.0.0.1:1"]).ends(0);
    assert_eq!(weir(&["context", "list", "-o", "name"]).ends(0).stdout, "own\n");
}

#[test]
fn help_and_version_are_data_and_mistakes_are_not() {
    let help = alone(&["plan", "set", "--help"]).ends(0);
    assert!(help.stdout.contains("Example:") && help.stderr.is_empty());
    assert!(alone(&["--version"]).ends(0).stdout.starts_with("weir "));
    let mistake = alone(&["plan", "lst"]).ends(64);
    assert!(mistake.stdout.is_empty() && mistake.stderr.contains("list"), "{mistake:#?}");
    let script = within(&std::env::temp_dir(), &["completion", "zsh"]).ends(0).stdout;
    assert!(script.starts_with("#compdef weir"), "{script}");
}
