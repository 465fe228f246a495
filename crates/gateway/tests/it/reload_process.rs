//! The program: SIGHUP, a file that is replaced under it, logs that are told to say more.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::caller::request;
use crate::support::{KEY, Service, eventually, file, get, raw, send};

const PLAN: &str = "burst = { capacity = 10000, refill = \"1000/s\" }";

/// A running program; it is killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Program {
    fn start(folder: &Path) -> Program {
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_weir-gateway"))
            .arg("--config")
            .arg(folder.join("gateway.toml"))
            .arg("--ports-file")
            .arg(folder.join("ports"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Program(child)
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

async fn ports(folder: &Path) -> (SocketAddr, SocketAddr) {
    let read = || std::fs::read(folder.join("ports")).ok();
    eventually("it is ready", async || read().is_some()).await;
    let ports: serde_json::Value = serde_json::from_slice(&read().unwrap()).unwrap();
    let at = |name: &str| ports[name].as_str().unwrap().parse().unwrap();
    (at("traffic"), at("operations"))
}

#[tokio::test]
async fn a_sighup_and_a_replaced_file_are_heard_and_mistakes_are_logged_with_their_place() {
    let (one, two) = (Service::hello().await, Service::hello().await);
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("gateway.toml");
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    std::fs::write(&page, file(PLAN, "", one.address)).unwrap();
    let mut program = Program::start(folder.path());
    let (traffic, operations) = ports(folder.path()).await;
    let call = async || get(traffic, "/", &[("x-api-key", KEY)]).await.status;
    assert_eq!(call().await, 200);
    assert_eq!((one.requests(), two.requests()), (1, 0));

    // The file is as it was: only the signal makes it be read.
    program.send(Signal::HUP);
    eventually("the signal is heard", async || {
        log().lines().any(|line| line.contains("in force") && line.contains("by=\"signal\""))
    })
    .await;

    std::fs::write(&page, file(PLAN, "", two.address)).unwrap();
    eventually("the other service is called", async || {
        assert_eq!(call().await, 200);
        two.requests() > 0
    })
    .await;

    std::fs::write(&page, file("burst = 7", "cost = -1", one.address)).unwrap();
    eventually("both mistakes are logged", async || {
        let log = log();
        ["plan.pro.burst", "route[0].cost"].iter().all(|place| log.contains(place))
    })
    .await;
    let metrics = get(operations, "/metrics", &[]).await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(metrics.contains("weir_gateway_config_reload_failed 1"), "{metrics}");
    assert_eq!(call().await, 200, "what was in force stays");

    program.send(Signal::TERM);
    let ended =
        tokio::task::spawn_blocking(move || program.0.wait().map(|status| (status, program)));
    let (status, _program) = ended.await.unwrap().unwrap();
    assert!(status.success(), "{status}: {}", log());
}

#[tokio::test]
async fn the_level_of_logs_changes_while_the_program_runs() {
    let service = Service::hello().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "ops-token\n").unwrap();
    let text = file(PLAN, "", service.address);
    let text = text.replace("[operations]\n", "[operations]\ntoken_file = \"token\"\n");
    std::fs::write(folder.path().join("gateway.toml"), text).unwrap();
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    let _program = Program::start(folder.path());
    let (traffic, operations) = ports(folder.path()).await;
    let token = [("authorization", "Bearer ops-token")];
    let shown = get(operations, "/log-level", &token).await.json();
    assert_eq!(shown["level"], "info");
    raw(traffic, b"no http\r\n\r\n").await;
    let put = async |level: &'static str| {
        let mut request = request("PUT", "/log-level", &token);
        *request.body_mut() = level.into();
        send(operations, request).await
    };
    assert_eq!(put("debug").await.json()["before"], "info");
    eventually("what went unsaid before is said now", async || {
        raw(traffic, b"no http\r\n\r\n").await;
        log().contains(" DEBUG ")
    })
    .await;
    assert_eq!(get(operations, "/log-level", &token).await.json()["level"], "debug");
    assert_eq!(put("warn").await.status, 200);
    assert_eq!(get(operations, "/log-level", &token).await.json()["level"], "warn");
}
