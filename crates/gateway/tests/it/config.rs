//! The file: every mistake is named with its place and value, none becomes a default.

use std::path::Path;
use std::process::Command;

use gateway::config;

use crate::support::{KEY, key_table};

fn errors(text: &str) -> Vec<String> {
    match config::parse(text, Path::new(".")) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

const REST: &str = "[[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = [\"127.0.0.1:1\"]\n";

#[test]
fn c29_a_value_that_cannot_be_read_is_named_and_never_a_default() {
    let refill = |value: &str| format!("[plan.p]\nburst = {{ capacity = 10, refill = {value} }}\n");
    let capacity =
        |value: &str| format!("[plan.p]\nburst = {{ capacity = {value}, refill = \"1/s\" }}\n");
    let time = |value: &str| format!("[store]\ndeadline = {value}\n");
    let cases = [
        (refill("\"10/mn\""), "plan.p.burst.refill", "10/mn"),
        (refill("\"nan\""), "plan.p.burst.refill", "nan"),
        (refill("\"inf\""), "plan.p.burst.refill", "inf"),
        (refill("\"1e400\""), "plan.p.burst.refill", "1e400"),
        (refill("\"\""), "plan.p.burst.refill", "``"),
        (refill("\"-1/s\""), "plan.p.burst.refill", "-1/s"),
        (refill("nan"), "plan.p.burst.refill", "NaN"),
        (refill("inf"), "plan.p.burst.refill", "inf"),
        (refill("5"), "plan.p.burst.refill", "5"),
        (capacity("\"0x10\""), "plan.p.burst.capacity", "0x10"),
        (capacity("0"), "plan.p.burst.capacity", "0"),
        (capacity("-1"), "plan.p.burst.capacity", "-1"),
        (capacity("1.5"), "plan.p.burst.capacity", "1.5"),
        (capacity("nan"), "plan.p.burst.capacity", "NaN"),
        (capacity("\"\""), "plan.p.burst.capacity", "\"\""),
        (time("\"5x\""), "store.deadline", "5x"),
        (time("\"-5s\""), "store.deadline", "-5s"),
        (time("\"\""), "store.deadline", "``"),
        (time("5"), "store.deadline", "5"),
        (time("\"5\""), "store.deadline", "5"),
        (time("\"0s\""), "store.deadline", "0s"),
        ("[limits]\nhead_bytes = 0x10\n".to_owned(), "limits.head_bytes", "16"),
        ("[listen.main]\naddress = \"8080\"\n".to_owned(), "listen.main.address", "8080"),
    ];
    let words = ["10/mn", "5x", "-5s", "", "0x10", "nan", "inf", "1e400"];
    let everywhere = words.into_iter().flat_map(|word| {
        let failure = format!("[plan.p]\nunlimited = true\nfailure = \"{word}\"\n");
        let quoted = format!("\"{word}\"");
        [
            (refill(&quoted), "plan.p.burst.refill", word),
            (capacity(&quoted), "plan.p.burst.capacity", word),
            (failure, "plan.p.failure", word),
            (time(&quoted), "store.deadline", word),
        ]
    });
    for (part, field, value) in cases.into_iter().chain(everywhere) {
        let found = errors(&format!("{part}{REST}"));
        let named = found.iter().any(|line| line.starts_with(field) && line.contains(value));
        assert!(named, "{field} and {value} in {found:?}");
    }
}

#[test]
fn c29_the_program_refuses_a_bad_file_with_64_and_every_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let text = "wrokers = 2\n[plan.p]\nburst = { capacity = \"0x10\", refill = \"10/mn\" }\n\
        [client.c]\nplan = \"q\"\n[[key]]\nid = \"k\"\nclient = \"d\"\nhash = \"zz\"\n\
        [[route]]\nupstream = \"nowhere\"\npath = \"/a/../b\"\nauth = \"maybe\"\ncost = -1\n";
    std::fs::write(&file, text).unwrap();
    for command in [&["check"][..], &[]] {
        let ran = Command::new(env!("CARGO_BIN_EXE_weir-gateway"))
            .args(command)
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(64), "{stderr}");
        for place in [
            "wrokers",
            "plan.p.burst.capacity",
            "plan.p.burst.refill",
            "client.c.plan",
            "key[0].client",
            "key[0].hash",
            "route[0].upstream",
            "route[0].path",
            "route[0].auth",
            "route[0].cost",
        ] {
            assert!(
                stderr.lines().any(|line| line.contains(&format!("{place}:"))),
                "{place}: {stderr}"
            );
        }
    }
}

#[test]
fn a_broken_file_is_told_with_its_line() {
    let found = errors("workers = 1\n[plan.p\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("line 2"), "{found:?}");
    let found = errors("workers = 1\nworkers = 2\n");
    assert!(found[0].contains("line 2"), "{found:?}");
}

#[test]
fn the_usual_slips_are_told_with_what_is_right() {
    let found = errors("[listen.main]\naddress = 127.0.0.1:8080\n");
    assert!(found[0].contains("line 2") && found[0].contains("a text needs quotes: address = \""));
    let found = errors("[store]\nurl = redis://me:s3cret@127.0.0.1\n");
    assert!(found[0].contains("a text needs quotes: url"), "{found:?}");
    assert!(!found[0].contains("s3cret"), "it may be a password: {found:?}");
    let found = errors("workers = 1\nworkers = 2\n");
    assert!(found[0].contains("`workers` stands twice"), "{found:?}");
    let found = errors("workers = 9223372036854775808\n");
    assert!(!found[0].contains("quotes"), "{found:?}");
    let found = errors(&format!("[limits]\nidle = 60\n{REST}"));
    assert_eq!(found, ["limits.idle: must be a time in quotes, with a unit: \"60s\", not 60"]);
    for (written, meant) in [("30@7/m", "30, refill = \"7/m\""), ("much", "20, refill = \"5/s\"")] {
        let found = errors(&format!("[plan.p]\nburst = \"{written}\"\n{REST}"));
        let told = format!("{{ capacity = {meant} }}");
        assert!(found[0].starts_with("plan.p.burst: ") && found[0].contains(&told), "{found:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_as_toml_is_told_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, "workers = 1\n[plan.p\n").unwrap();
    let found = config::load(&file).unwrap_err();
    assert!(found[0].starts_with(&format!("{}: line 2", file.display())), "{found:?}");
}

#[test]
fn check_names_what_is_valid_and_most_likely_not_meant() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let checked = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_weir-gateway"));
        let ran = program.arg("check").arg("--config").arg(&file).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (ran.status.code(), text(ran.stdout), text(ran.stderr))
    };
    let again = "[[route]]\nupstream = \"up\"\npath = \"/a\"\nmethods = [\"GET\", \"PUT\"]\n\
        [[route]]\nupstream = \"up\"\npath = \"/a/\"\nmethods = [\"PUT\", \"GET\"]\n\
        [[route]]\nupstream = \"up\"\npath = \"/a\"\n";
    let (code, stdout, stderr) = checked(&format!("{again}{REST}"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.ends_with("is valid\n"), "{stdout}");
    let warned: Vec<&str> = stderr.lines().collect();
    assert_eq!(warned.len(), 2, "{stderr}");
    assert!(
        warned[0].contains("warning: route[0] wants a key") && warned[0].contains("[client.ID]")
    );
    assert!(warned[1].contains("route[1] never serves a request: route[0] has"), "{stderr}");
    let own = "[plan.p]\nunlimited = true\n[client.c]\nplan = \"p\"\n";
    let (_, _, stderr) = checked(&format!("{own}{REST}"));
    assert!(stderr.contains("has no [[key]]"), "{stderr}");
    let (_, _, stderr) = checked(&format!("{own}{}{REST}", key_table("k", "c", KEY)));
    assert_eq!(stderr, "");
    let open = REST.replace("upstream = \"up\"", "upstream = \"up\"\nauth = \"none\"");
    assert_eq!(checked(&open).2, "");
    // Where callers need no key, an open failure policy lets everybody in.
    let own = "[plan.p]\nunlimited = true\n[anonymous]\nplan = \"p\"\n";
    for (failure, found) in [("open", true), ("coarse", false)] {
        let auth = format!("upstream = \"up\"\nauth = \"anonymous\"\nfailure = \"{failure}\"");
        let (code, _, stderr) =
            checked(&format!("{own}{}", REST.replacen("upstream = \"up\"", &auth, 1)));
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(stderr.contains("route[0] is for callers without a key"), found, "{stderr}");
    }
}

#[test]
fn a_file_is_either_standalone_or_has_a_control_plane() {
    let text =
        format!("[control]\nplans_api = \"127.0.0.1:8081\"\n[plan.p]\nunlimited = true\n{REST}");
    let found = errors(&text);
    for place in
        ["control: ", "control.plans_api: ", "control.token_file: ", "control.pepper_file: "]
    {
        assert!(found.iter().any(|line| line.starts_with(place)), "{place} in {found:?}");
    }
}

#[test]
fn the_gateways_own_operations_port_is_no_upstream() {
    let text = "[operations]\naddress = \"127.0.0.1:9080\"\n[[route]]\nupstream = \"up\"\n\
        [upstream.up]\nendpoints = [\"127.0.0.1:9080\"]\n";
    assert!(errors(text)[0].starts_with("upstream.up.endpoints[0]"));
}

#[test]
fn a_key_is_made_for_the_file_and_then_opens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let text = format!(
        "[plan.p]\nunlimited = true\n[client.acme]\nplan = \"p\"\n{}{REST}",
        key_table("k1", "acme", KEY)
    );
    std::fs::write(&file, &text).unwrap();
    let run = |args: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_weir-gateway"))
            .args(args)
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let made = run(&["key", "--client", "acme"]);
    let (key, table) = made.split_once('\n').unwrap();
    assert!(key.starts_with("weir_live_"), "{made}");
    std::fs::write(&file, format!("{text}{table}")).unwrap();
    assert!(run(&["check"]).contains("is valid"));
}

#[test]
fn the_example_that_ships_is_valid() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config/gateway.toml");
    let config = config::load(&file).unwrap_or_else(|lines| panic!("{lines:#?}"));
    assert!(config.upstreams.len() >= 2 && config.routes.iter().count() >= 2);
}

#[test]
fn the_program_prints_its_schema_and_an_example_without_a_file() {
    let run = |word: &str| {
        let ran = Command::new(env!("CARGO_BIN_EXE_weir-gateway")).arg(word).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let schema: serde_json::Value = serde_json::from_str(&run("schema")).unwrap();
    assert_eq!(schema["properties"]["limits"]["properties"]["head_bytes"]["default"], 16_384);
    assert_eq!(schema["additionalProperties"], false);
    assert!(config::parse(&run("example"), Path::new(".")).is_ok());
}

#[test]
fn a_password_in_a_url_is_shown_by_no_mistake() {
    for url in ["reddis://:hunter2@h", "u:hunter2@h:6379", "REDIS://u:hunter2@h"] {
        let found = errors(&format!("[store]\nurl = \"{url}\"\n{REST}"));
        assert!(found[0].starts_with("store.url: must be "), "{found:?}");
        assert!(!found.concat().contains("hunter2"), "{found:?}");
    }
    let unclosed = errors(&format!("[store]\nurl = \"redis://:hunter2@h\n{REST}"));
    assert!(!unclosed.concat().contains("hunter2"), "{unclosed:?}");
}

#[test]
fn every_topology_of_redis_has_its_url_and_every_mistake_is_told() {
    for url in [
        "redis://127.0.0.1:6379/1",
        "rediss://u:p@cache.example",
        "redis+sentinel://s1,s2:26380/weir",
        "rediss+cluster://:p@n1:7000,n2:7000",
    ] {
        let text = format!("[store]\nurl = \"{url}\"\nconnections = 4\n{REST}");
        let config = config::parse(&text, Path::new("."));
        assert!(config.is_ok(), "{url}: {config:?}");
    }
    let found = errors(&format!(
        "[store]\nurl = \"redis+sentinel://s1:x,s2/\"\nusername = \"u\"\nconnections = 5\n\
         password_file = \"no-such-file\"\ntrusted_roots_file = \"no-such-file\"\n{REST}"
    ));
    for (path, what) in [
        ("store.url", "address 1 of 2"),
        ("store.url", "which service"),
        ("store.connections", "5"),
        ("store.password_file", "no-such-file"),
        ("store.trusted_roots_file", "no-such-file"),
    ] {
        let told = |line: &&String| line.starts_with(path) && line.contains(what);
        assert!(found.iter().any(|line| told(&line)), "{path}, {what}: {found:#?}");
    }
    let found = errors(&format!("[store]\nurl = \"redis://h\"\nusername = \"u\"\n{REST}"));
    assert_eq!(found, ["store.url: a username needs a password"]);
}

#[test]
fn a_regions_share_is_a_part_of_a_plan() {
    for (share, good) in [
        ("1", true),
        ("0.25", true),
        ("0.3333", true),
        ("0", false),
        ("1.1", false),
        ("-1", false),
        ("0.33333", false),
        ("\"0.5\"", false),
        ("nan", false),
    ] {
        let text = format!("[limits]\nregion_share = {share}\n{REST}");
        let config = config::parse(&text, Path::new("."));
        assert_eq!(config.is_ok(), good, "{share}: {config:?}");
    }
}

#[test]
fn anonymous_callers_need_a_plan_and_proxies_are_networks() {
    let route = "[[route]]\nupstream = \"up\"\nauth = \"anonymous\"\n\
        [upstream.up]\nendpoints = [\"127.0.0.1:1\"]\n";
    let plan = "[anonymous]\nplan = \"free\"\n";
    assert_eq!(
        errors(route),
        ["route[0].auth: anonymous callers need a plan: set plan under [anonymous]"]
    );
    let found = errors(&format!("{plan}{route}"));
    assert_eq!(found, ["anonymous.plan: there is no valid [plan.free]"]);
    let named = "[plan.free]\nunlimited = true\n[client.\"anonymous.free\"]\nplan = \"free\"\n";
    let found = errors(&format!("{plan}{named}{route}"));
    assert_eq!(found, ["client.anonymous.free: is how anonymous callers are counted"]);
    let listen = "[listen.main]\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\", \"10.0.0.0/33\"]\n";
    let found = errors(&format!("{listen}{REST}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("listen.main.trusted_proxies[2]: must be a network"), "{found:?}");
}

#[test]
fn a_pages_origin_is_spelled_as_browsers_do() {
    let cors = |table: &str| {
        format!(
            "[[route]]\nupstream = \"up\"\ncors = {table}\n\
        [upstream.up]\nendpoints = [\"127.0.0.1:1\"]\n"
        )
    };
    for (table, place) in [
        ("{ origins = [] }", "route[0].cors.origins"),
        ("{ origins = [\"https://a.example/\"] }", "route[0].cors.origins[0]"),
        ("{ origins = [\"*\"], credentials = true }", "route[0].cors.origins"),
        ("{ origins = [\"*\"], methods = [\"get\"] }", "route[0].cors.methods[0]"),
        ("{ origins = [\"*\"], headers = [\"a b\"] }", "route[0].cors.headers[0]"),
        ("{ origins = [\"*\"], expose = [\"\"] }", "route[0].cors.expose[0]"),
        ("{ origins = [\"*\"], max_age = \"5\" }", "route[0].cors.max_age"),
        ("{ origins = [\"*\"], origin = [] }", "route[0].cors.origin"),
    ] {
        let found = errors(&cors(table));
        assert!(found.len() == 1 && found[0].starts_with(&format!("{place}: ")), "{found:?}");
    }
}
