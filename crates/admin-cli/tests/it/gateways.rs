//! What depends on gateways and on evidence: waiting, moving a rollout, the doctor.

use serde_json::json;
use wire::gate::PAIRS_MIN;

use crate::control::{Control, small_plan};

#[test]
fn wait_names_who_has_not_applied_it() {
    let control = Control::start();
    control.gateway_says("gw-stuck", 0);
    let args = ["plan", "set", "p", "--burst", "1@1/s", "--wait=300ms", "-o", "json"];
    let ran = control.weir(&args).ends(7);
    assert!(ran.stderr.contains("gw-stuck"), "{}", ran.stderr);
    let document = ran.json();
    assert_eq!(document["applied"]["missing"], json!(["gw-stuck"]));
    assert_eq!(document["object"]["name"], "p", "the change is made, and its answer not lost");
    assert_eq!(control.weir(&["plan", "list", "-o", "name"]).ends(0).stdout, "p\n");
}

#[test]
fn wait_ends_when_all_live_gateways_have_it() {
    let control = Control::start();
    control.gateway_follows("gw-1");
    let args = ["plan", "set", "p", "--burst", "1@1/s", "--wait", "-o", "json"];
    let document = control.weir(&args).ends(0).json();
    assert_eq!(document["applied"]["all"], true);
    assert_eq!(document["applied"]["live"], 1);
    let gateways = control.weir(&["gateway", "list", "-o", "json"]).ends(0).json();
    let applied = gateways["items"][0]["applied"].as_u64().unwrap();
    assert!(applied >= document["revision"].as_u64().unwrap(), "{gateways:#}");
}

#[test]
fn enforcing_all_passes_the_gate_or_ends_with_its_code() {
    let control = Control::start();
    let api = control.api();
    control.block_on(async {
        api.put_plan("p", &small_plan(), "test", None).await.unwrap();
        api.put_client("acme", &json!({ "plan": "p" }), "test", None).await.unwrap();
    });
    let set = |phase: &str| {
        control.weir(&[
            "rollout", "set", "edge", "--all", phase, "--reason", "x", "--yes", "-o", "json",
        ])
    };
    set("shadow").ends(0);
    let too_few = set("enforce").ends(4).json();
    assert_eq!(too_few["error"]["more"]["verdict"], "insufficient");
    control.weir(&["gate", "status", "edge"]).ends(4);

    let rollout = control.weir(&["rollout", "get", "edge", "-o", "json"]).ends(0).json();
    let since = rollout["rules"][0]["since_revision"].as_u64().unwrap();
    control.pairs("acme", since, PAIRS_MIN, PAIRS_MIN / 10);
    let failed = set("enforce").ends(3);
    assert_eq!(failed.json()["error"]["more"]["verdict"], "fail");
    assert!(failed.stderr.contains("pairs differ"), "{}", failed.stderr);
    control.weir(&["gate", "status", "edge"]).ends(3);

    // a client alone is free; the rule for all keeps its evidence
    let args = ["rollout", "set", "edge", "--client", "acme", "enforce", "--reason", "x", "--yes"];
    control.weir(&args).ends(0);
    control.pairs("zeta", since, 40 * PAIRS_MIN, 0);
    control.weir(&["gate", "status", "edge"]).ends(0);
    let passed = set("enforce").ends(0).json();
    assert_eq!(passed["replaced"], 1, "{passed:#}");

    control.weir(&["rollout", "rollback", "edge", "--reason", "INC-1"]).ends(0);
    let list = control.weir(&["rollout", "list"]).ends(0).stdout;
    assert!(list.contains("shadow"), "{list}");
    let top = control.weir(&["shadow", "top", "--by", "disagree", "-n", "1", "-o", "json"]).ends(0);
    assert_eq!(top.json()["items"].as_array().unwrap().len(), 1, "{top:#?}");
}

#[test]
fn the_doctor_names_the_fault_and_what_to_do() {
    let control = Control::start();
    let ran = control.weir(&["doctor", "-o", "json"]).ends(14);
    let parts = ran.json();
    let state = |part: &str| {
        let items = parts["items"].as_array().unwrap();
        items.iter().find(|item| item["part"] == part).map(|item| item["state"].clone())
    };
    assert_eq!(state("plans-api").unwrap(), "ok");
    assert_eq!(state("token").unwrap(), "ok");
    assert_eq!(state("gateways").unwrap(), "fail", "none is live");
    assert_eq!(state("shadow-compare").unwrap(), "ok");
    assert!(ran.stderr.contains("start weir-gateway"), "{}", ran.stderr);

    control.gateway_follows("gw-1");
    let warned = control.weir(&["doctor"]).ends(0).stderr;
    assert!(warned.contains(" warning") && !warned.contains("all well"), "{warned}");
    let denied = control.weir_as("weiro_wrong", &["doctor"]).ends(14);
    assert!(denied.stdout.contains("FAIL"), "{}", denied.stdout);
}
