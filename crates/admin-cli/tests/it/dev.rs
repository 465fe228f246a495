//! `weir dev` as a newcomer meets it: start, two lines, a change, a second day.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::run::{Ran, command, finish};

/// A running `weir dev`.
pub(crate) struct Dev {
    child: Child,
    told: Value,
}

impl Dev {
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Dev {
        Dev::start_with(folder, more, Path::new("/nonexistent/of-no-use"))
    }

    fn start_with(folder: &Path, more: &[&str], home: &Path) -> Dev {
        let port: &[&str] = if more.contains(&"--port") { &[] } else { &["--port", "0"] };
        let args = [&["dev", "-o", "json"], port, more].concat();
        let mut child = command(&args)
            .current_dir(folder)
            .env("XDG_CONFIG_HOME", home)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut text = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = loop {
            let line = lines.next().expect("weir dev ended early").unwrap();
            text.push_str(&line);
            if let Ok(told) = serde_json::from_str(&text) {
                break told;
            }
        };
        Dev { child, told }
    }

    fn key(&self) -> &str {
        self.told["key"].as_str().unwrap()
    }

    /// What the first printed line asks.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let addr = self.told["gateway"].as_str().unwrap().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(addr).unwrap();
        let key = self.key();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {addr}\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.to_lowercase())
    }

    /// What the second one does: asks until it is refused.
    fn until_refused(&self) -> String {
        for _ in 0..1_000 {
            let (status, answer) = self.get("/hello");
            match status {
                200 => {}
                429 => return answer,
                other => panic!("{other}: {answer}"),
            }
        }
        panic!("the bucket is never empty");
    }

    /// Ctrl-C.
    pub(crate) fn end(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "drained");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

/// Runs `weir` where it finds the context by itself.
fn weir(folder: &Path, args: &[&str]) -> Ran {
    let mut command = command(args);
    command.current_dir(folder);
    finish(command)
}

fn limit_of(answer: &str) -> &str {
    answer.lines().find(|line| line.starts_with("ratelimit-policy:")).unwrap_or("")
}

#[test]
fn a_restore_reaches_a_gateway_that_goes_on_serving() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(folder.path(), &[]);
    let serves = |limit: &str| {
        let (status, answer) = dev.get("/hello");
        assert!(status == 200 && limit_of(&answer).contains(limit), "{limit}: {answer}");
    };
    serves("q=5");
    weir(folder.path(), &["backup", "create", "kept"]).ends(0);
    let change = ["plan", "set", "demo", "--burst", "50@50/s", "--reason", "x", "--wait"];
    weir(folder.path(), &change).ends(0);
    serves("q=50");
    let back = ["backup", "restore", "kept", "--reason", "drill", "--yes", "--wait"];
    let restored = weir(folder.path(), &back).ends(0);
    assert!(restored.stderr.contains("in force on 1/1 gateways"), "{}", restored.stderr);
    serves("q=5");
    // A change in the new history arrives like any other.
    weir(folder.path(), &change).ends(0);
    serves("q=50");
    weir(folder.path(), &["audit", "verify"]).ends(0);
    dev.end();
}

#[test]
fn a_newcomer_sees_200_then_429_then_a_change_and_finds_it_all_again_tomorrow() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(folder.path(), &[]);
    let (status, answer) = dev.get("/hello");
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("\r\nratelimit:") && limit_of(&answer).contains("q=5"), "{answer}");
    assert!(answer.contains("\"client\":\"demo\"") && answer.contains("/hello"), "{answer}");
    assert!(!answer.contains(&dev.key().to_lowercase()), "the key is not forwarded: {answer}");
    let refused = dev.until_refused();
    assert!(refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    assert!(refused.contains("application/problem+json"), "{refused}");

    // the printed third line, without the program's name
    let change = dev.told["commands"]["change"].as_str().unwrap();
    let words: Vec<String> = change.replace('\'', "").split(' ').map(ToOwned::to_owned).collect();
    let at = words.iter().position(|word| word == "--reason").unwrap();
    let args: Vec<&str> = words[1..at].iter().map(String::as_str).collect();
    weir(folder.path(), &args).ends(0);
    // the promise is one second; a loaded machine gets more before it is called broken
    let in_force = (0..1_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        limit_of(&dev.get("/hello").1).contains("q=20")
    });
    assert!(in_force, "the changed plan does not come into force");
    let key = dev.key().to_owned();
    weir(folder.path(), &["plan", "set", "demo", "--note", "x", "--wait"]).ends(0);
    dev.end();

    let again = Dev::start(folder.path(), &[]);
    assert_eq!(again.key(), key, "the key is kept");
    let (status, answer) = again.get("/again");
    assert_eq!(status, 200, "{answer}");
    assert!(limit_of(&answer).contains("q=20"), "the changed plan is kept: {answer}");
    again.end();
}

/// Runs a printed line as a shell does, with this build of `weir`.
fn shell(folder: &Path, line: &str) -> Ran {
    let line = match line.strip_prefix("weir ") {
        Some(args) => format!("'{}' {args}", env!("CARGO_BIN_EXE_weir")),
        None => line.to_owned(),
    };
    let mut shell = Command::new("timeout");
    shell.args(["60", "sh", "-c", &line]).current_dir(folder);
    shell.env("XDG_CONFIG_HOME", "/nonexistent/of-no-use").stdin(Stdio::null());
    finish(shell)
}

#[test]
fn the_printed_loop_ends_with_a_429_also_after_a_day_in_shadow() {
    let folder = tempfile::tempdir().unwrap();
    let ends = |dev: &Dev| {
        let ran = shell(folder.path(), dev.told["commands"]["refused"].as_str().unwrap()).ends(0);
        let (before, last) = ran.stdout.rsplit_once("HTTP/1.1 429 ").unwrap();
        assert!(last.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{last}");
        assert!(last.contains("quota-exceeded"), "{last}");
        assert!(before.contains("}\n\nHTTP/1.1 200 "), "answers stand apart: {before}");
        assert!(!before.contains("HTTP/1.1 429"), "it ends with the first: {before}");
    };
    let dev = Dev::start(folder.path(), &[]);
    assert_eq!(dev.told["commands"]["enforce"], Value::Null);
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let printed = dev.told["commands"]["refused"].as_str().unwrap().split("weir_test_").next();
    assert!(readme.contains(printed.unwrap()), "the README shows another loop: {printed:?}");
    ends(&dev);
    let shadow = ["rollout", "set", "edge", "--all", "shadow", "--reason", "week 1"];
    weir(folder.path(), &shadow).ends(0);
    dev.end();

    let again = Dev::start(folder.path(), &[]);
    assert_eq!(
        again.told["commands"]["enforce"],
        "weir rollout set edge --client demo enforce --yes --reason 'see a 429'"
    );
    ends(&again);
    again.end();
    let third = Dev::start(folder.path(), &[]);
    assert_eq!(third.told["commands"]["enforce"], Value::Null, "demo is enforced again");
    third.end();
}

#[test]
fn the_printed_change_meets_this_system_also_beside_another_context() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let with_home = |args: &[&str]| {
        let mut command = command(args);
        command.current_dir(folder.path()).env("XDG_CONFIG_HOME", &home);
        finish(command)
    };
    with_home(&["context", "add", "prod", "--addr", "http://127.0.0.1:1", "--production"]).ends(0);
    let dev = Dev::start_with(folder.path(), &["--state-dir", "elsewhere"], &home);
    let change = dev.told["commands"]["change"].as_str().unwrap();
    let words: Vec<&str> = change.split('\'').map(str::trim).collect();
    assert_eq!(words[0], "weir --context", "{change}");
    with_home(&["--context", words[1], "plan", "set", "demo", "--burst", "20@10/s"]).ends(0);
    dev.end();
}

#[test]
fn the_printed_change_meets_this_system_also_where_another_left_the_same_address() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = free.port().min(60_000).to_string();
    Dev::start(folder.path(), &["--port", &port]).end();
    let dev = Dev::start(folder.path(), &["--port", &port, "--state-dir", "elsewhere"]);
    let change = dev.told["commands"]["change"].as_str().unwrap();
    assert!(change.starts_with("weir --context '"), "{change}");
    shell(folder.path(), change).ends(0);
    dev.end();
}

#[test]
fn what_is_kept_is_private_and_a_second_start_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(folder.path(), &[]);
    let state = folder.path().join(".weir");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    let mut seen = 0;
    for entry in std::fs::read_dir(&state).unwrap().map(Result::unwrap) {
        let wanted = if entry.file_type().unwrap().is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&entry.path()), wanted, "{entry:?}");
        seen += 1;
    }
    assert!(seen > 10, "only {seen} files");
    let second = weir(folder.path(), &["dev", "--port", "0"]).ends(11);
    assert!(second.stderr.contains(&format!("pid {}", dev.child.id())), "{}", second.stderr);
    dev.end();
}

#[test]
fn the_doctor_finds_a_fresh_dev_well_and_limits_can_be_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(folder.path(), &[]);
    assert_eq!(dev.get("/").0, 200);
    // ready is earlier than the first poll, in which the gateway says where it can be asked
    let inspect = || weir(folder.path(), &["limit", "inspect", "demo", "-o", "json"]);
    let inspected = (0..200).map(|_| inspect()).find(|ran| {
        std::thread::sleep(Duration::from_millis(if ran.code == 12 { 25 } else { 0 }));
        ran.code != 12
    });
    inspected.unwrap().ends(0).json();
    let ran = weir(folder.path(), &["doctor", "-o", "json"]).ends(0);
    let document = ran.json();
    for item in document["items"].as_array().unwrap() {
        assert_ne!(item["state"], "fail", "{item}");
    }
    let warned = document["warnings"] != 0;
    assert_eq!(ran.stderr.contains("all well"), !warned, "{}", ran.stderr);
    dev.end();
}

#[test]
fn the_doctor_names_a_store_that_does_not_answer() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("redis://{unused}");
    let dev = Dev::start(folder.path(), &["--store", &store, "--log-level", "error"]);
    let ran = weir(folder.path(), &["doctor", "-o", "json"]).ends(14);
    let document = ran.json();
    let items = document["items"].as_array().unwrap();
    for part in ["gateway", "limiter"] {
        let fault = items.iter().find(|item| {
            item["part"].as_str().unwrap().split(' ').next() == Some(part)
                && item["state"] == "fail"
        });
        let fault = fault.unwrap_or_else(|| panic!("{part}: {document:#}"));
        assert!(fault["advice"].as_str().unwrap().starts_with("the store"), "{fault}");
    }
    let first = ran.stderr.lines().next().unwrap();
    assert!(first.contains("the store (Redis) does not answer"), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("start it").count(), 1, "said once: {}", ran.stderr);
    assert!(!ran.stderr.contains("all well") && ran.stderr.contains("2 faults"), "{}", ran.stderr);
    let noise = |text: &str| text.split([' ', '"', ';', ',']).any(is_noise);
    assert!(!noise(&ran.stdout) && !noise(&ran.stderr), "{ran:#?}");
    dev.end();
}

/// A time as `{:?}` writes it: 145.693ms.
fn is_noise(word: &str) -> bool {
    let number = word.trim_end_matches(|c: char| c.is_alphabetic());
    word.ends_with('s') && number.contains('.') && number.parse::<f64>().is_ok()
}

#[test]
fn a_busy_port_takes_the_next_and_says_so() {
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let mut child = command(&["dev", "--port", &port.to_string()])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find(|line| line.contains("is busy"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.unwrap_or_default().contains(&format!("port {port} is busy")));
}

#[test]
fn wrong_flags_end_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = weir(folder.path(), &["dev", "--port", "0", "--upstream", "https://x"]).ends(64);
    assert!(wrong.stderr.contains("--upstream"), "{}", wrong.stderr);
    let level = weir(folder.path(), &["dev", "--log-level", "a=b=c"]).ends(64);
    assert!(level.stderr.contains("log-level"), "{}", level.stderr);
}

#[test]
fn the_demo_keeps_every_promise_that_it_shows() {
    let ran = finish(command(&["demo", "--selftest", "-o", "json"])).ends(0);
    let document = ran.json();
    assert_eq!(document["ok"], true);
    assert!(document["phases"].as_array().unwrap().len() >= 10, "{document:#}");
}
