//! audit verify and tip, backup create and restore.

use crate::control::Control;

#[test]
fn an_audit_that_was_written_over_ends_verify_with_14_and_names_the_row() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s", "--reason", "first"]).ends(0);
    let tip = control.weir(&["audit", "tip"]).ends(0).stdout.trim().to_owned();
    control.weir(&["plan", "set", "p", "--burst", "2@1/s", "--reason", "second"]).ends(0);
    let sound = control.weir(&["audit", "verify", "-o", "json"]).ends(0).json();
    assert_eq!((sound["ok"].as_bool(), sound["unlinked"].as_u64()), (Some(true), Some(0)));
    control.weir(&["audit", "verify", "--kept", &tip]).ends(0);
    control.weir(&["audit", "verify", "--kept", "7"]).ends(64);

    let listed = control.weir(&["audit", "list", "--kind", "plan", "-o", "json"]).ends(0).json();
    let reasons: Vec<&str> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons, ["first", "second"]);
    let none = control.weir(&["audit", "list", "--actor", "nobody", "-o", "name"]).ends(0);
    assert_eq!(none.stdout, "");
    let all = control.weir(&["audit", "list", "--since", "1h", "-o", "name"]).ends(0);
    assert_eq!(all.stdout.lines().count() as u64, sound["checked"].as_u64().unwrap());

    control.by_hand("update audit set reason = 'third' where reason = 'second'");
    let seq = sound["checked"].to_string();
    let found = control.weir(&["audit", "verify"]).ends(14);
    assert!(found.stdout.contains(&format!("row {seq}: ")), "{}", found.stdout);
    let found = control.weir(&["audit", "verify", "-o", "json"]).ends(14).json();
    assert_eq!(found["fault"]["kind"], "altered");
    assert_eq!(found["fault"]["seq"].to_string(), seq);
}

#[test]
fn a_backup_is_written_whole_or_not_at_all_and_comes_back() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    let file = control.path("backup");
    let name = file.to_str().unwrap();
    let made = control.weir(&["backup", "create", name, "-o", "json"]).ends(0).json();
    assert_eq!(made["backup"]["revision"], 1);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let again = control.weir(&["backup", "create", name]).ends(64);
    assert!(again.stderr.contains("there already"), "{}", again.stderr);
    // A file that others may read is not written into.
    let left = control.file("third.part", "left over");
    let third = control.path("third");
    let refused = control.weir(&["backup", "create", third.to_str().unwrap()]).ends(64);
    assert!(refused.stderr.contains("third.part is there already"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(&left).unwrap(), "left over");
    assert!(!third.exists());
    let viewer = control.token(wire::client::plans::Role::Viewer);
    let other = control.path("other");
    control.weir_as(&viewer, &["backup", "create", other.to_str().unwrap()]).ends(10);
    assert!(!other.exists() && !control.path("other.part").exists());

    control.weir(&["plan", "set", "q", "--burst", "1@1/s"]).ends(0);
    let asked = control.weir(&["backup", "restore", name]).ends(64);
    assert!(asked.stderr.contains("replace all") && asked.stderr.contains("revision 1"));
    control.weir(&["plan", "get", "q"]).ends(0);

    let whole = std::fs::read(&file).unwrap();
    let cut = control.path("cut");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let refused = control.weir(&["backup", "restore", cut.to_str().unwrap(), "--yes"]).ends(13);
    assert!(refused.stderr.contains("cut off"), "{}", refused.stderr);
    let foreign = control.file("plans.toml", "[plan.p]\n");
    let foreign = foreign.to_str().unwrap();
    let refused = control.weir(&["backup", "restore", foreign, "--yes"]).ends(13);
    assert!(refused.stderr.contains("no backup of Weir"), "{}", refused.stderr);
    control.weir(&["backup", "restore", "/nowhere/backup", "--yes"]).ends(1);
    control.weir_as(&viewer, &["backup", "restore", name, "--yes"]).ends(10);
    control.weir(&["plan", "get", "q"]).ends(0);

    let back = ["backup", "restore", name, "--reason", "drill", "--yes", "-o", "json"];
    let restored = control.weir(&back).ends(0).json();
    assert!(1_000_000 < restored["revision"].as_u64().unwrap(), "{restored}");
    control.weir(&["plan", "get", "p"]).ends(0);
    control.weir(&["plan", "get", "q"]).ends(9);
    control.weir(&["audit", "verify"]).ends(0);
}
