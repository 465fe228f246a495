//! The program as it is started: flags, files, signals, exit codes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use wire::client::plans::{PlansClient, Role};

use crate::scenarios::until;

fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-plans-api"));
    command.args(["--listen", "127.0.0.1:0", "--state-dir"]).arg(folder);
    command.arg("--ports-file").arg(folder.join("ports"));
    command.arg("--bootstrap-token-file").arg(folder.join("bootstrap"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

pub(crate) async fn address(folder: &Path) -> String {
    let ports = folder.join("ports");
    until("the ports file is written", async || ports.exists()).await;
    let ports: Value = serde_json::from_slice(&std::fs::read(&ports).unwrap()).unwrap();
    format!("http://{}", ports["api"].as_str().unwrap())
}

#[tokio::test]
async fn it_starts_from_nothing_keeps_what_it_was_told_and_ends_on_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = program(folder.path()).spawn().unwrap();
    let base = address(folder.path()).await;
    for file in ["pepper", "bootstrap"] {
        assert_eq!(mode(&folder.path().join(file)), 0o600, "{file}");
    }
    let token = std::fs::read_to_string(folder.path().join("bootstrap")).unwrap();
    let first = PlansClient::new(&base, Some(token.trim())).unwrap();
    assert!(first.ready().await.is_ok());
    let admin = first.create_token("root", Role::Admin, None, "first").await.unwrap().token;
    // A gateway that waits does not hold up the end.
    let admin_client = PlansClient::new(&base, Some(&admin)).unwrap();
    let gateway = admin_client.create_token("gw", Role::Gateway, None, "first").await.unwrap();
    let gateway = PlansClient::new(&base, Some(&gateway.token)).unwrap();
    let history = gateway.snapshot().await.unwrap().history;
    let request = crate::api::feed_request("gw", &history, 0, 10_000);
    let waiting = daemon::tasks::spawn("poll", async move { gateway.feed(&request).await });
    let seen = async || admin_client.gateways().await.is_ok_and(|all| !all.is_empty());
    until("the poll waits", seen).await;
    terminate(&child);
    assert!(waiting.await.unwrap().is_ok(), "it gets its answer");
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap();
    let ended = ended.unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{told}");
    assert_eq!(told.matches("weiro_").count(), 1, "the token is printed once: {told}");

    std::fs::remove_file(folder.path().join("ports")).unwrap();
    child = program(folder.path()).spawn().unwrap();
    let base = address(folder.path()).await;
    let admin = PlansClient::new(&base, Some(&admin)).unwrap();
    assert_eq!(admin.tokens().await.unwrap().len(), 3, "it is all still there");
    terminate(&child);
    let ended = child.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && !told.contains("weiro_"), "{told}");
}

#[test]
fn wrong_settings_are_all_named_and_exit_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_weir-plans-api"))
        .args(["--listen", "0.0.0.0:0", "--database", "mysql://x", "--shadow-compare"])
        .args(["http://127.0.0.1:1", "--control-token-file", "/nowhere/control"])
        .arg("--state-dir")
        .arg(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(64), "{told}");
    for place in ["--listen", "--database", "--control-token-file"] {
        assert!(told.contains(place), "{place} is not named: {told}");
    }
    let unknown = Command::new(env!("CARGO_BIN_EXE_weir-plans-api")).arg("--lisen").output();
    assert_eq!(unknown.unwrap().status.code(), Some(64));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_weir-plans-api"))
        .args(["--listen", &taken.local_addr().unwrap().to_string(), "--state-dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(64));
    assert!(String::from_utf8(ended.stderr).unwrap().contains("cannot bind"));
}
