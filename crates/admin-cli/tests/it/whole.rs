//! Whole states: diff, prune, export and back, and whom a change touches.

use serde_json::{Value, json};
use wire::batch::{Batch, BatchAck, TallyCell};
use wire::client::{Call, Client};
use wire::rollout::Phase;

use crate::control::Control;
use crate::run::{Ran, alone};

const FILE: &str = "\
[plan.free]
burst = { capacity = 20, refill = \"5/s\" }
failure = \"local\"
labels = { team = \"x\" }
scope = \"client\"

[plan.\"pro.eu\"]
burst = { capacity = 100, refill = \"3/s\" }
costs = [{ cost = 5, method = \"POST\", route = \"reports\" }, { cost = 0, route = \"health\" }]
failure = \"0.25\"
note = 'for those \"who\" pay'
scope = \"key\"
sustained = { capacity = 2000000, refill = \"2000000/d\" }

[client.acme]
labels = { team = \"x\" }
name = \"Acme Ltd\"
plan = \"pro.eu\"

[client.zeta]
plan = \"free\"
state = \"suspended\"
";

fn apply(control: &Control, text: &str, more: &[&str]) -> Ran {
    let file = control.file("whole.toml", text);
    control.weir(&[&["apply", "-f", file.to_str().unwrap()], more].concat())
}

fn diff(control: &Control, text: &str, more: &[&str]) -> Ran {
    let file = control.file("wanted.toml", text);
    control.weir(&[&["diff", "-f", file.to_str().unwrap()], more].concat())
}

#[test]
fn an_export_is_the_file_that_was_applied_to_the_byte() {
    let control = Control::start();
    apply(&control, FILE, &[]).ends(0);
    let exported = control.weir(&["export"]).ends(0).stdout;
    assert_eq!(exported, FILE);
    diff(&control, &exported, &[]).ends(0);
    let other = Control::start();
    apply(&other, &exported, &[]).ends(0);
    assert_eq!(other.weir(&["export"]).ends(0).stdout, exported);
    let client = other.weir(&["client", "get", "zeta", "-o", "json"]).ends(0).json();
    assert_eq!(client["state"], "suspended");
}

#[test]
fn diff_says_what_would_change_and_what_stays_and_ends_with_2() {
    let control = Control::start();
    apply(&control, FILE, &[]).ends(0);
    let same = diff(&control, FILE, &["-o", "json"]).ends(0);
    assert_eq!(same.json()["same"], true);
    assert!(same.stderr.contains("no difference"), "{}", same.stderr);

    let before = control.weir(&["export"]).stdout;
    let wanted = FILE
        .replace("5/s", "4/s")
        .replace("[client.zeta]\nplan = \"free\"\nstate = \"suspended\"\n", "")
        + "[plan.new]\nburst = { capacity = 1, refill = \"1/s\" }\n";
    let ran = diff(&control, &wanted, &[]).ends(2);
    assert!(ran.stdout.contains("~ plan free    burst.refill 5/s → 4/s"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 client, 0 keys"), "whom it touches: {}", ran.stdout);
    assert!(ran.stdout.contains("+ plan new"), "{}", ran.stdout);
    assert!(ran.stdout.contains("- client zeta    in no file; stays (needs --prune)"));
    assert!(ran.stderr.contains("2 changes, 1 deletion withheld"), "{}", ran.stderr);
    assert_eq!(control.weir(&["export"]).stdout, before, "nothing was changed");
    let names = diff(&control, &wanted, &["-o", "name"]).ends(2).stdout;
    assert_eq!(names, "free\nnew\nzeta\n");
    // of what is in no file, only what carries the label counts
    let mine = FILE.replace("[client.zeta]\nplan = \"free\"\nstate = \"suspended\"\n", "");
    diff(&control, &mine, &["--selector", "team=x"]).ends(0);
    diff(&control, &mine, &["--selector", "team"]).ends(64);
    diff(&control, "[plan.x]\nburst = 3\n", &[]).ends(13);
}

/// Clients of team x, each with a table.
fn team(clients: usize) -> String {
    let client = |n| format!("[client.c{n:02}]\nplan = \"p\"\nlabels = {{ team = \"x\" }}\n");
    let plan = "[plan.p]\nburst = { capacity = 1, refill = \"1/s\" }\n".to_owned();
    (0..clients).map(client).fold(plan, |text, client| text + &client)
}

#[test]
fn prune_names_what_goes_asks_and_takes_no_more_than_a_tenth() {
    let control = Control::start();
    apply(&control, &team(20), &[]).ends(0);
    let prune = ["--prune", "--selector", "team=x"];
    apply(&control, &team(19), &["--prune"]).ends(64);

    let asked = apply(&control, &team(19), &prune).ends(64);
    assert!(asked.stderr.contains("delete 1 object"), "{}", asked.stderr);
    assert!(asked.stderr.contains("client c19"), "{}", asked.stderr);
    let tried = apply(&control, &team(19), &[&prune[..], &["--dry-run", "-o", "json"]].concat());
    let deletes = |document: &Value| {
        let changes = document["changes"].as_array().unwrap();
        changes.iter().filter(|change| change["action"] == "delete").count()
    };
    assert_eq!(deletes(&tried.ends(0).json()), 1);
    control.weir(&["client", "get", "c19"]).ends(0);

    let done = apply(&control, &team(19), &[&prune[..], &["--yes"]].concat()).ends(0);
    assert!(done.stderr.contains("1 object with team=x deleted"), "{}", done.stderr);
    control.weir(&["client", "get", "c19"]).ends(9);

    let many = apply(&control, &team(10), &[&prune[..], &["--yes"]].concat()).ends(13);
    assert!(many.stderr.contains("9 of 19"), "{}", many.stderr);
    let allowed = [&prune[..], &["--yes", "--allow-deletes", "9"]].concat();
    apply(&control, &team(10), &allowed).ends(0);
    let left = control.weir(&["client", "list", "-o", "name"]).ends(0).stdout;
    assert_eq!(left.lines().count(), 10);
}

#[test]
fn a_gateways_own_file_is_read_and_what_is_left_out_is_said() {
    let control = Control::start();
    let file = control.file(
        "gateway.toml",
        "[listen.main]\naddress = \"127.0.0.1:8080\"\n[standalone]\ngateways = 2\n\
         [plan.free]\nburst = { capacity = 20, refill = \"5/s\" }\n\
         [client.acme]\nplan = \"free\"\nstate = \"suspended\"\n\
         [[key]]\nid = \"k\"\nclient = \"acme\"\nhash = \"00\"\n",
    );
    let file = file.to_str().unwrap();
    for args in [["validate", "-f", file], ["apply", "-f", file]] {
        let told = control.weir(&args).ends(0).stderr;
        for part in ["[listen]", "[standalone]", "[key]"] {
            assert!(told.contains(&format!("gateway.toml: {part}")), "{part}: {told}");
        }
    }
    let client = control.weir(&["client", "get", "acme", "-o", "json"]).ends(0).json();
    assert_eq!(client["state"], "suspended");
    let wrong = control.file("wrong.toml", "[client.a]\nplan = \"p\"\nstate = \"asleep\"\n");
    let told = alone(&["validate", wrong.to_str().unwrap()]).ends(13).stderr;
    assert!(told.contains("wrong.toml:3") && told.contains("`asleep`"), "{told}");
}

/// A gateway reports demand of the last full minute.
fn demand(control: &Control, client: &str, requests: u64, denied: u64, cost: u64) {
    let cell = TallyCell {
        minute: Control::minute() - 1,
        client: client.to_owned(),
        service: "orders".to_owned(),
        phase: Phase::Shadow,
        requests,
        both_allow: requests - denied,
        stricter: denied,
        edge_denied: denied,
        cost_allowed: cost,
        ..TallyCell::default()
    };
    let batch = Batch {
        gateway: "gw-1".to_owned(),
        boot: format!("boot-{client}"),
        seq: 1,
        revision: 1,
        last: false,
        cum_decisions: requests,
        cum_records: 0,
        cells: vec![cell],
        records: Vec::new(),
    };
    let shadow = Client::new(control.shadow_addr(), Some(crate::control::GATEWAY_TOKEN)).unwrap();
    let ack: BatchAck = control.block_on(shadow.send(Call::post("/v1/batches", &batch))).unwrap();
    assert!(!ack.duplicate);
}

#[test]
fn a_change_is_played_over_the_recorded_demand_before_it_is_made() {
    let control = Control::start();
    apply(&control, FILE, &[]).ends(0);
    control.weir(&["client", "set", "small", "--plan", "free"]).ends(0);
    demand(&control, "small", 300, 0, 300);
    demand(&control, "acme", 900, 9, 891);
    let usage = control.weir(&["client", "usage", "small", "-o", "json"]).ends(0).json();
    assert_eq!(usage["items"][0]["cost"], 300, "{usage:#}");

    let args = ["plan", "set", "free", "--burst", "20@1/s", "--dry-run", "-o", "json"];
    let tried = control.weir(&args).ends(0);
    let impact = &tried.json()["impact"];
    assert_eq!(impact["touched"][0]["clients"], 2, "{impact:#}");
    assert_eq!(
        (&impact["touched"][0]["requests"], &impact["touched"][0]["requests_of_all"]),
        (&json!(300), &json!(1200))
    );
    let newly = &impact["replayed"]["newly_denied"];
    let (least, most) = (newly["least"].as_u64().unwrap(), newly["most"].as_u64().unwrap());
    // 5/s lets 300 a minute pass if they come evenly; 1/s lets 60 and the bucket pass
    assert!((215..=225).contains(&least) && most == 280, "{impact:#}");
    assert_eq!(impact["replayed"]["newly_hit"][0]["client"], "small");
    assert!(tried.stderr.contains("25.0 % of traffic"), "{}", tried.stderr);
    assert!(tried.stderr.contains("last 24 h replayed for 1 of 2 clients: newly denied "));

    let ran = diff(&control, &FILE.replace("20, refill = \"5/s\"", "20, refill = \"1/s\""), &[]);
    let told = ran.ends(2).stdout;
    assert!(told.contains("    last 24 h replayed") && told.contains("small "), "{told}");
}

#[test]
fn a_bootstrap_file_has_the_policy_and_every_key_that_may_open() {
    let control = Control::start();
    apply(&control, FILE, &[]).ends(0);
    let key = |client: &str| {
        let made = control.weir(&["key", "create", client, "-o", "json"]).ends(0).json();
        (
            made["key"].as_str().unwrap().to_owned(),
            made["object"]["id"].as_str().unwrap().to_owned(),
        )
    };
    let ((secret, open), (_, revoked)) = (key("acme"), key("zeta"));
    control.weir(&["key", "revoke", &revoked, "--yes"]).ends(0);
    let ran = control.weir(&["export", "--bootstrap"]).ends(0);
    assert!(!ran.stdout.contains(&secret), "keys stand in it by hash");
    let file = wire::bootstrap::Bootstrap::parse(ran.stdout.as_bytes()).unwrap();
    assert_eq!(file.policy.plans.len(), 2);
    let ids: Vec<&str> = file.keys.iter().map(|found| found.key.id.as_str()).collect();
    assert_eq!(ids, [open.as_str()], "the revoked one is not in it");
    assert_eq!(file.keys[0].client.plan, "pro.eu");
    assert!(ran.stderr.contains("2 plans and 1 secret"), "{}", ran.stderr);
    let operator = control.token(wire::client::plans::Role::Operator);
    control.weir_as(&operator, &["export", "--bootstrap"]).ends(10);
    control.weir_as(&operator, &["export"]).ends(0);
}

#[test]
fn top_shows_limits_and_shares_of_the_clients_that_matter() {
    let control = Control::start();
    apply(&control, FILE, &[]).ends(0);
    demand(&control, "acme", 600, 60, 540);
    demand(&control, "zeta", 300, 0, 300);
    let top = control.weir(&["top", "-n", "1", "-o", "json"]).ends(0).json();
    let items = top["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["client"]), (1, &json!("acme")), "{top:#}");
    assert_eq!((&items[0]["rps"], &items[0]["limit"]), (&json!("2.0"), &json!("3/s")), "{top:#}");
    assert_eq!(items[0]["would_deny_share"], "10.0 %");
    let table = control.weir(&["top", "--by", "would-deny"]).ends(0).stdout;
    assert!(table.lines().next().unwrap().starts_with("CLIENT"), "{table}");
}
