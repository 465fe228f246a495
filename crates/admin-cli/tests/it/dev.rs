//! `weir dev` as a newcomer meets it: start, two lines, a change, a second day.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::run::{Ran, command, finish};

/// A running `weir dev`.
struct Dev {
    child: Child,
    told: Value,
}

impl Dev {
    fn start(folder: &Path, more: &[&str]) -> Dev {
        Dev::start_with(folder, more, Path::new("/nonexistent/of-no-use"))
    }

    fn start_with(folder: &Path, more: &[&str], home: &Path) -> Dev {
        let args = [&["dev", "--port", "0", "-o", "json"], more].concat();
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
    fn get(&self, path: &str) -> (u16, String) {
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
    fn end(mut self) {
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
    let inspected = weir(folder.path(), &["limit", "inspect", "demo", "-o", "json"]).ends(0);
    inspected.json();
    let ran = weir(folder.path(), &["doctor", "-o", "json"]).ends(0);
    let document = ran.json();
    for item in document["items"].as_array().unwrap() {
        assert_ne!(item["state"], "fail", "{item}");
    }
    dev.end();
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
