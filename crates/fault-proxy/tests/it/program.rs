//! The program takes orders, refuses what it does not understand, and follows a script.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use test_servers::Server;

use crate::line::Line;

struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    proxy: SocketAddr,
    control: SocketAddr,
}

impl Program {
    fn start(server: &Server, more: &[&str]) -> Program {
        let upstream = server.address().to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir-fault-proxy"))
            .args(["--upstream", &upstream])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let proxy = word_after(&next_line(&mut output), "proxy");
        let control = word_after(&next_line(&mut output), "control");
        let control = control.strip_prefix("http://").unwrap().parse().unwrap();
        Program { child, output, proxy: proxy.parse().unwrap(), control }
    }

    fn order(&self, verb: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.control).unwrap();
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        (status, body.to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn next_line(output: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

fn word_after(line: &str, name: &str) -> String {
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some(name), "{line}");
    words.next().unwrap().to_owned()
}

#[test]
fn orders_take_effect_at_once_and_counters_tell_of_them() {
    let (server, other) = (Server::start().unwrap(), Server::start().unwrap());
    let program = Program::start(&server, &[]);
    let mut line = Line::to(program.proxy);
    let rules = r#"{"rules": [{"toxic": "inject", "error": "OOM no", "commands": ["PING"]}]}"#;
    assert_eq!(program.order("PUT", "/rules", rules).0, 204);
    line.send(&["PING", "ECHO a"]);
    line.expect("-OOM no\r\n$1\r\na\r\n");
    let (status, counters) = program.order("GET", "/counters", "");
    assert_eq!(status, 200);
    for part in [r#""PING":1"#, r#""inject":1"#, r#""connections":1"#] {
        assert!(counters.contains(part), "{part} is not in {counters}");
    }
    assert_eq!(program.order("DELETE", "/rules", "").0, 204);
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
    let target = format!(r#"{{"address": "{}"}}"#, other.address());
    assert_eq!(program.order("PUT", "/target", &target).0, 204);
    assert_eq!(program.order("DELETE", "/connections", "").0, 204);
    assert_eq!(line.rest().0, "");
    let mut line = Line::to(program.proxy);
    line.send(&["INCR n"]);
    line.expect(":1\r\n");
    let moved: u64 = other.query("GET n").unwrap();
    assert_eq!(moved, 1);
}

#[test]
fn an_order_with_mistakes_changes_nothing_and_is_told_all_of_them() {
    let server = Server::start().unwrap();
    let program = Program::start(&server, &[]);
    let wrong = r#"{"rules": [{"toxic": "dealy"}, {"toxic": "cut"}]}"#;
    let (status, told) = program.order("PUT", "/rules", wrong);
    assert_eq!(status, 422);
    assert!(told.contains("rules[0]") && told.contains("rules[1]"), "{told}");
    assert_eq!(program.order("PUT", "/target", "{}").0, 422);
    assert_eq!(program.order("POST", "/rules", "{}").0, 405);
    let mut line = Line::to(program.proxy);
    line.send(&["PING"]);
    line.expect("+PONG\r\n");
}

#[test]
fn a_script_is_followed_step_by_step() {
    let server = Server::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.json");
    let script = r#"{"steps": [
        {"at_ms": 1, "rules": [{"toxic": "inject", "error": "ERR one"}]},
        {"at_ms": 2, "do": "clear"}]}"#;
    std::fs::write(&file, script).unwrap();
    let mut program = Program::start(&server, &["--script", file.to_str().unwrap()]);
    assert!(next_line(&mut program.output).contains("1 ms: Set"));
    assert!(next_line(&mut program.output).contains("2 ms: Clear"));
    std::fs::write(&file, "{}").unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_weir-fault-proxy"))
        .args(["--script", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`steps` is missing"));
}
