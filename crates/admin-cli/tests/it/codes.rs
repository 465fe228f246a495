//! The table of exit codes, each met once. 2 (`whole`), 3, 4 and 7 (`gateways`) have tests of their
//! own beside.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;

use wire::client::plans::Role;

use crate::control::Control;
use crate::run::{alone, command};

#[test]
fn codes_of_refusals() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    control.weir(&["client", "set", "c", "--plan", "p"]).ends(0);
    control.weir(&["plan", "get", "nobody"]).ends(9);
    control.weir_as("weiro_nobody_knows", &["plan", "list"]).ends(10);
    let viewer = control.token(Role::Viewer);
    control.weir_as(&viewer, &["plan", "list"]).ends(0);
    control.weir_as(&viewer, &["plan", "set", "q", "--burst", "1@1/s"]).ends(10);
    control.weir(&["plan", "delete", "p", "--yes"]).ends(11);
    control.weir(&["plan", "set", "p", "--burst", "x"]).ends(13);
    control.weir(&["plan", "set", "Bad Name", "--burst", "1@1/s"]).ends(13);
    control.weir(&["doctor"]).ends(14);
    control.weir(&["plan", "delete", "p"]).ends(64);
    control.weir(&["rollout", "set", "edge", "--all", "enforce", "--reason", "x"]).ends(64);
    control.weir(&["rollout", "set", "edge", "--all", "shadow"]).ends(64);
    control.weir(&["rollout", "set", "edge", "shadow", "--reason", "x"]).ends(64);
    control.weir(&["plan", "set", "p"]).ends(64);
}

#[test]
fn a_question_that_nobody_can_answer_names_the_blast_radius() {
    let control = Control::start();
    control.weir(&["plan", "set", "p", "--burst", "1@1/s"]).ends(0);
    for client in ["a", "b", "c"] {
        control.weir(&["client", "set", client, "--plan", "p"]).ends(0);
    }
    let ran = control.weir(&["rollout", "set", "e", "--all", "enforce", "--reason", "x"]).ends(64);
    assert!(
        ran.stderr.contains("would enforce") && ran.stderr.contains("3 clients"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("nothing was done"), "{}", ran.stderr);
    control.weir(&["key", "create", "a"]).ends(0);
    let ran = control.weir(&["client", "delete", "a"]).ends(64);
    assert!(ran.stderr.contains("1 key"), "{}", ran.stderr);
}

/// Listens, and answers with `answer` or never; tells when somebody comes.
fn peer(answer: Option<&'static str>) -> (String, Receiver<()>) {
    let (comes, came) = std::sync::mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _nobody_waits = comes.send(());
            if let Some(answer) = answer {
                let mut head = [0; 1_024];
                let _read = stream.read(&mut head);
                let _written = stream.write_all(answer.as_bytes());
            }
            open.push(stream);
        }
    });
    (addr, came)
}

#[test]
fn codes_of_a_bad_connection() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = alone(&["plan", "list", "--addr", &format!("http://{unused}")]).ends(12);
    assert!(nobody.stderr.contains("--addr"), "says where the address is from: {}", nobody.stderr);
    let (junk, _) = peer(Some("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\njunk"));
    alone(&["plan", "list", "--addr", &junk]).ends(1);
    let (bad, _) = peer(Some("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"));
    alone(&["plan", "list", "--addr", &bad]).ends(12);
    alone(&["plan", "list", "--addr", "no address"]).ends(64);
    for command in [&["plan", "list"][..], &["doctor"], &["context", "add", "x"]] {
        let bare = alone(&[command, &["--addr", "127.0.0.1:8081"]].concat()).ends(64);
        assert!(bare.stderr.contains("say http://127.0.0.1:8081"), "{}", bare.stderr);
    }
    let strange = alone(&["plan", "list", "--addr", "ftp://a"]).ends(64);
    assert!(!strange.stderr.contains("say http://"), "{}", strange.stderr);
}

#[test]
fn an_interrupted_change_says_so_and_ends_with_130() {
    let (silent, came) = peer(None);
    let mut child =
        command(&["plan", "set", "p", "--burst", "1@1/s", "--addr", &silent, "-o", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    came.recv().unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("look before you repeat"), "{stderr}");
}
