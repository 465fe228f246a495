//! Files: all or nothing, every mistake at once, and back again.

use crate::control::Control;
use crate::run::alone;

const SAMPLE: &str = "\
[plan.free]
burst     = { capacity = 20, refill = \"5/s\" }
sustained = { capacity = 10000, refill = \"10000/d\" }
failure   = \"local\"

[plan.pro]
burst     = { capacity = 100, refill = \"50/s\" }
failure   = \"0.25\"
scope     = \"key\"
costs     = [{ route = \"reports\", cost = 5 }]
labels    = { team = \"x\" }
note      = \"for those who pay\"

[plan.inside]
unlimited = true

[client.acme]
plan = \"pro\"
name = \"Acme\"
";

#[test]
fn what_is_applied_is_exported_and_applies_again_without_a_change() {
    let control = Control::start();
    let file = control.file("plans.toml", SAMPLE);
    let first = control.weir(&["apply", "-f", file.to_str().unwrap(), "-o", "json"]).ends(0).json();
    assert_eq!(first["ok"], true);
    assert_eq!(first["changes"].as_array().unwrap().len(), 4);
    let exported = control.weir(&["export"]).ends(0).stdout;
    let again = control.file("again.toml", &exported);
    let args = ["apply", "-f", again.to_str().unwrap(), "--dry-run", "-o", "json"];
    let second = control.weir(&args).ends(0).json();
    for change in second["changes"].as_array().unwrap() {
        assert_eq!(change["action"], "same", "{change:#}");
    }
    assert_eq!(second["changes"].as_array().unwrap().len(), 4);
}

#[test]
fn validate_takes_files_with_and_without_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good.toml"), folder.path().join("bad.toml"));
    std::fs::write(&good, SAMPLE).unwrap();
    std::fs::write(&bad, "[plan.x]\nburst = 3\n").unwrap();
    let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());
    for args in [&["validate", good][..], &["validate", "-f", good]] {
        assert!(alone(args).ends(0).stderr.contains("3 plans and 1 client"));
    }
    for args in [&["validate", good, bad][..], &["validate", "-f", good, bad]] {
        assert!(alone(args).ends(13).stderr.contains("bad.toml:2"));
    }
    alone(&["validate"]).ends(64);
}

#[test]
fn the_plan_free_of_the_example_is_the_one_of_the_documents() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let example: toml::Table = toml::from_str(&read("deploy/config/gateway.toml")).unwrap();
    let limit = |name: &str| {
        let limit = &example["plan"]["free"][name];
        let refill = limit["refill"].as_str().unwrap();
        (limit["capacity"].as_integer().unwrap().to_string(), refill.to_owned())
    };
    let pages = read("docs/semantics.md").replace([',', '`'], "");
    let row = pages.lines().find(|line| line.starts_with("| free |")).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    for (cell, name) in [(cells[2], "burst"), (cells[3], "sustained")] {
        let (capacity, refill) = limit(name);
        assert_eq!(cell, format!("{capacity} {refill}"), "{row}");
    }
}

#[test]
fn c28_one_bad_plan_of_three_applies_none() {
    let control = Control::start();
    let text = "\
[plan.one]
burst = { capacity = 10, refill = \"1/s\" }
[plan.two]
burst = { capacity = 10, refill = \"-1/s\" }
[plan.three]
burst = { capacity = 10, refill = \"1/s\" }
";
    let file = control.file("three.toml", text);
    let ran = control.weir(&["apply", "-f", file.to_str().unwrap(), "-o", "json"]).ends(13);
    assert!(ran.stderr.contains("plan.two.burst.refill"), "{}", ran.stderr);
    assert!(ran.stderr.contains("three.toml:4"), "with file and line: {}", ran.stderr);
    assert_eq!(ran.json()["ok"], false);
    assert_eq!(control.weir(&["plan", "list", "-o", "name"]).ends(0).stdout, "");

    // the same when only plans-api can know: nothing stands of the first and the third either
    let text = "\
[plan.one]
burst = { capacity = 10, refill = \"1/s\" }
[client.acme]
plan = \"one\"
[client.zeta]
plan = \"nobody-has-it\"
";
    let file = control.file("clients.toml", text);
    let ran = control.weir(&["apply", "-f", file.to_str().unwrap(), "-o", "json"]).ends(13);
    assert!(ran.stderr.contains("client.zeta"), "{}", ran.stderr);
    assert_eq!(control.weir(&["plan", "list", "-o", "name"]).ends(0).stdout, "");
    assert_eq!(control.weir(&["client", "list", "-o", "name"]).ends(0).stdout, "");
}

#[test]
fn validate_asks_nobody_and_finds_everything() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.toml"), SAMPLE).unwrap();
    let path = folder.path().to_str().unwrap();
    alone(&["validate", "-f", path]).ends(0);
    std::fs::write(folder.path().join("b.toml"), "[plan.x]\nburst = 3\n[client.y]\n").unwrap();
    std::fs::write(folder.path().join("c.toml"), "[plan.free]\nunlimited = true\n").unwrap();
    let ran = alone(&["validate", "-f", path, "-o", "json"]).ends(13);
    for place in ["b.toml:2", "b.toml:3", "c.toml:1"] {
        assert!(ran.stderr.contains(place), "{place}: {}", ran.stderr);
    }
    assert_eq!(ran.json()["error"]["errors"].as_array().unwrap().len(), 3, "{}", ran.stderr);
}

#[test]
fn a_plan_is_set_from_a_file() {
    let control = Control::start();
    let file = control.file("plans.toml", SAMPLE);
    let file = file.to_str().unwrap();
    control.weir(&["plan", "set", "pro", "-f", file]).ends(0);
    assert_eq!(control.weir(&["plan", "list", "-o", "name"]).ends(0).stdout, "pro\n");
    control.weir(&["plan", "set", "nobody", "-f", file]).ends(9);
}
