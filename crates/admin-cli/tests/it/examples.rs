//! Every help text ends with an example, and every example is run here against a whole system.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::dev::Dev;
use crate::run::{Ran, command, finish};

/// What the examples speak of.
const PLANS: &str = "\
[plan.pro]
burst = { capacity = 100, refill = \"50/s\" }
[plan.free]
burst = { capacity = 20, refill = \"5/s\" }
[plan.old]
burst = { capacity = 1, refill = \"1/s\" }
[client.acme]
plan = \"pro\"
state = \"active\"
[client.zeta]
plan = \"free\"
";
const GATEWAY: &str = "\
[upstream.orders]
endpoints = [\"127.0.0.1:9\"]
[[route]]
path = \"/orders\"
upstream = \"orders\"
[plan.free]
burst = { capacity = 20, refill = \"5/s\" }
[client.acme]
plan = \"free\"
";
/// Processes of their own, which the other tests here start.
const PROCESSES: [&str; 2] = ["weir dev", "weir demo"];
/// Asks a place that no test may reach; a test of its own speaks to one that is here.
const FAR_AWAY: &str = "weir login";

/// Splits a line as a shell would, as far as examples go.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(ToOwned::to_owned));
        }
    }
    words.into_iter().take_while(|word| word != ">").collect()
}

/// All examples by the command that they belong to, read from the help texts.
fn examples(path: &[String], into: &mut BTreeMap<String, Vec<String>>) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let help = finish(command(&args)).ends(0).stdout;
    let (body, lines) = help.rsplit_once("Example").unwrap_or_else(|| panic!("{path:?}: {help}"));
    // a long example is wrapped where the terminal ends
    let mut found: Vec<String> = Vec::new();
    for line in lines.lines().filter(|line| line.starts_with("  ")) {
        match line.trim_start() {
            begins if begins.starts_with("weir") => found.push(begins.to_owned()),
            goes_on => {
                if let Some(last) = found.last_mut() {
                    last.push(' ');
                    last.push_str(goes_on);
                }
            }
        }
    }
    assert!(!found.is_empty(), "{path:?} has no example");
    let name = format!("weir {}", path.join(" "));
    into.insert(name.trim_end().to_owned(), found);
    let Some((_, commands)) = body.split_once("Commands:\n") else { return };
    for line in commands.lines().take_while(|line| line.starts_with("  ")) {
        let Some(name) = line.split_whitespace().next().filter(|_| !line.starts_with("    "))
        else {
            continue;
        };
        if name != "help" {
            examples(&[path, &[name.to_owned()]].concat(), into);
        }
    }
}

struct World {
    folder: tempfile::TempDir,
    dev: Dev,
    request_id: String,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("plans.toml", PLANS);
        write("gateway.toml", GATEWAY);
        write("prod.token", "weiro_abcdefghij_of-nobody");
        let hash = "ab".repeat(32);
        write("keys.csv", &format!("sha256,client\n{hash},acme\n"));
        let line = "10.0.0.1 - - [28/Nov/2026:09:14:02 +0000] \"GET /a HTTP/1.1\" 200 1 \"-\" \"-\" acme\n";
        write("access.log", &line.repeat(200));
        let dev = Dev::start(folder.path(), &[]);
        let mut world = World { folder, dev, request_id: String::new() };
        world.weir(&["rollout", "set", "edge", "--all", "shadow", "--reason", "x"]).ends(0);
        world.request_id = world.recorded();
        world
    }

    fn home(&self) -> std::path::PathBuf {
        self.folder.path().join("home")
    }

    fn run(&self, args: &[&str], home: &Path) -> Ran {
        let mut command = command(args);
        command.current_dir(self.folder.path()).env("XDG_CONFIG_HOME", home);
        finish(command)
    }

    fn weir(&self, args: &[&str]) -> Ran {
        self.run(args, &self.home())
    }

    /// The id of a request whose record has arrived.
    fn recorded(&self) -> String {
        for _ in 0..200 {
            let (_, answer) = self.dev.get("/hello");
            let id = answer.lines().find_map(|line| line.strip_prefix("x-request-id: "));
            let id = id.unwrap_or_else(|| panic!("{answer}")).trim().to_owned();
            for _ in 0..20 {
                if self.weir(&["shadow", "explain", &id]).code == 0 {
                    return id;
                }
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
        panic!("no record arrives");
    }

    /// Makes what the examples speak of, again for each: they may take it away.
    fn restore(&self) -> (String, String) {
        let id_of = |made: Value| made["object"]["id"].as_str().unwrap().to_owned();
        self.weir(&["apply", "-f", "plans.toml"]).ends(0);
        let key = self.weir(&["key", "create", "acme", "-o", "json"]).ends(0).json();
        let token = ["token", "create", "x", "--role", "viewer", "-o", "json"];
        let token = self.weir(&token).ends(0).json();
        (id_of(key), id_of(token))
    }

    fn gateway(&self) -> String {
        self.weir(&["gateway", "list", "-o", "name"]).ends(0).stdout.trim().to_owned()
    }
}

/// How an example may end, when everything is as it should be.
fn ends(line: &str) -> &'static [i32] {
    let begins = |name: &str| line.starts_with(name);
    match line {
        // too little was compared; the system has more than the file; the only gateway is live
        _ if begins("weir gate status") => &[4],
        _ if begins("weir diff") => &[2],
        _ if begins("weir gateway forget") => &[0, 11],
        // deleting wants the keys revoked first
        _ if begins("weir client delete") => &[0, 11],
        // there is none of this name
        _ if begins("weir approvals accept") || begins("weir approvals refuse") => &[9],
        _ if begins("weir killswitch clear") => &[0, 9, 11],
        _ => &[0],
    }
}

#[test]
fn every_example_of_every_help_text_does_what_it_says() {
    let mut all = BTreeMap::new();
    examples(&[], &mut all);
    assert!(all.len() > 60, "only {} commands", all.len());
    let world = World::new();
    let gateway = world.gateway();
    let here = |of: &str| !PROCESSES.contains(&of) && of != FAR_AWAY;
    for (of, lines) in all.iter().filter(|(of, _)| here(of)) {
        for line in lines.iter().filter(|line| !PROCESSES.contains(&line.as_str())) {
            let (key, token) = world.restore();
            let id = if of.starts_with("weir token") { token } else { key };
            let line = line
                .replace("k7Q2f9xkda", &id)
                .replace("gw-1", &gateway)
                .replace("gw-9", &gateway)
                .replace("01JABCDEF0", &world.request_id);
            if line.starts_with("weir client override clear") {
                // there has to be one
                let set = ["client", "override", "set", "acme", "--burst", "2@1/s", "--for", "1d"];
                world.weir(&[&set[..], &["--reason", "x"]].concat()).ends(0);
            }
            let words = words(&line);
            if line.starts_with("weir backup create") {
                // the example may stand twice, and no file is written over
                drop(std::fs::remove_file(world.folder.path().join(&words[3])));
            }
            let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            let ran = if of.starts_with("weir context") {
                let home = tempfile::tempdir().unwrap();
                let add = ["context", "add", "prod", "--addr", "http://127.0.0.1:1"];
                if !of.ends_with("add") {
                    world.run(&add, home.path()).ends(0);
                }
                world.run(&args, home.path())
            } else {
                world.weir(&args)
            };
            let ended = ends(&line).contains(&ran.code);
            assert!(ended, "`{line}`: {ran:#?}");
        }
    }
    world.dev.end();
}

#[test]
fn a_page_is_written_for_every_command_and_has_its_example() {
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("man1");
    let ran = finish(command(&["man", man.to_str().unwrap(), "-o", "name"])).ends(0);
    let mut all = BTreeMap::new();
    examples(&[], &mut all);
    assert_eq!(ran.stdout.lines().count(), all.len());
    for of in all.keys() {
        let page =
            std::fs::read_to_string(man.join(format!("{}.1", of.replace(' ', "-")))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains("weir"), "{of}: {page}");
        assert!(page.contains("Example"), "{of}: {page}");
    }
}
