//! systemd's two protocols: what the service manager is told, and sockets that it has bound.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::Command;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::program::{Program, is_alive};
use crate::support::{KEY, PATIENCE, Service, file, get};

const PLAN: &str = "unlimited = true";
const PROGRAM: &str = env!("CARGO_BIN_EXE_weir-gateway");

#[tokio::test]
async fn the_manager_hears_ready_alive_and_stopping() {
    let service = Service::hello().await;
    let text = file(PLAN, "", service.address);
    let watched = |command: &mut Command| {
        command.env("WATCHDOG_USEC", "200000");
    };
    let mut program = Program::start_by(&text, PROGRAM, &[], watched).await;
    assert_eq!(get(program.operations, "/readyz", &[]).await.status, 200, "ready means ready");
    for _ in 0..3 {
        program.told("WATCHDOG=1").await;
    }
    program.signal(Signal::TERM);
    program.told("STOPPING=1").await;
    assert_eq!(program.ended(program.pid).await, Some(0));
}

#[tokio::test]
async fn the_watchdog_of_another_process_is_not_fed() {
    let service = Service::hello().await;
    let watched = |command: &mut Command| {
        command.env("WATCHDOG_USEC", "2000").env("WATCHDOG_PID", "1");
    };
    let text = file(PLAN, "", service.address);
    let mut program = Program::start_by(&text, PROGRAM, &[], watched).await;
    for _ in 0..20 {
        assert_eq!(get(program.traffic, "/", &[("x-api-key", KEY)]).await.status, 200);
    }
    program.signal(Signal::TERM);
    let told = program.every_word().await;
    assert!(told.iter().any(|lines| lines.starts_with("STOPPING=1")), "{told:?}");
    assert!(!told.iter().any(|lines| lines.contains("WATCHDOG=1")), "{told:?}");
}

#[tokio::test]
async fn the_manager_is_told_which_process_serves_and_not_that_the_service_stops() {
    let service = Service::hello().await;
    let mut program = Program::start(&file(PLAN, "", service.address)).await;
    program.signal(Signal::USR2);
    let reloading = program.told("RELOADING=1").await;
    assert!(reloading.contains("\nMONOTONIC_USEC="), "{reloading}");
    let told = program.told("MAINPID=").await;
    assert!(told.contains("\nREADY=1"), "{told}");
    let pid = told.lines().next().and_then(|line| line.strip_prefix("MAINPID=")).unwrap();
    let old = std::mem::replace(&mut program.pid, pid.parse().unwrap());
    assert_eq!(program.ended(old).await, Some(0));
    assert!(is_alive(program.pid));
    program.signal(Signal::TERM);
    let told = program.every_word().await;
    let stopping = told.iter().filter(|lines| lines.starts_with("STOPPING=1")).count();
    assert_eq!(stopping, 1, "only by the process that served last: {told:?}");
}

/// A manager's socket, with what a unit without `ReusePort=` sets.
fn socket() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    (socket, at)
}

#[tokio::test]
async fn sockets_of_the_manager_are_served_by_their_names() {
    let service = Service::hello().await;
    let ((main, main_at), (operations, operations_at)) = (socket(), socket());
    // Made before there is a gateway; it waits in the socket's queue.
    let mut early = tokio::net::TcpStream::connect(main_at).await.unwrap();
    let asked = "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: acme-key\r\nconnection: close\r\n\r\n";
    early.write_all(asked.as_bytes()).await.unwrap();
    let fds = [operations, main].map(OwnedFd::from).into_iter().zip(3..);
    let fds: Vec<_> = fds.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd }).collect();
    let given = |command: &mut Command| {
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "operations:main");
        command.fd_mappings(fds).unwrap();
    };
    let text = file(PLAN, "", service.address).replace("workers = 1", "workers = 3");
    // The shell's process becomes the gateway's, so that this names it.
    let words = ["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\"", PROGRAM];
    let mut program = Program::start_by(&text, "/bin/sh", &words, given).await;
    assert_eq!((program.traffic, program.operations), (main_at, operations_at));
    let mut reply = String::new();
    timeout(PATIENCE, early.read_to_string(&mut reply)).await.unwrap().unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    for _ in 0..2 {
        for _ in 0..10 {
            assert_eq!(get(main_at, "/", &[("x-api-key", KEY)]).await.status, 200);
        }
        assert_eq!(get(operations_at, "/readyz", &[]).await.status, 200);
        // A new process takes them over once more, though the file names another port.
        let text = text.replace("127.0.0.1:0", "127.0.0.1:9");
        std::fs::write(program.file(), text).unwrap();
        let old = program.succeed().await;
        program.ended(old).await;
    }
    assert_eq!(get(main_at, "/", &[("x-api-key", KEY)]).await.status, 200);
}

#[tokio::test]
async fn a_listener_of_several_sockets_keeps_them_and_its_rules_over_a_reload() {
    let service = Service::hello().await;
    let ((one, one_at), (other, other_at)) = (socket(), socket());
    let fds = [one, other].map(OwnedFd::from).into_iter().zip(3..);
    let fds: Vec<_> = fds.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd }).collect();
    let given = |command: &mut Command| {
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "main:main");
        command.fd_mappings(fds).unwrap();
    };
    // The rules of the second listener are not those of the first one's sockets.
    let second = "[listen.second]\naddress = \"127.0.0.1:0\"\nproxy_protocol = true\n\
        trusted_proxies = [\"127.0.0.0/8\"]\n";
    let text = file(PLAN, "", service.address) + second;
    let words = ["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\"", PROGRAM];
    let program = Program::start_by(&text, "/bin/sh", &words, given).await;
    let second_at = program.port("traffic2");
    for round in ["as it was started", "a new configuration is in force"] {
        for at in [one_at, other_at] {
            assert_eq!(get(at, "/", &[("x-api-key", KEY)]).await.status, 200, "{at}, {round}");
        }
        let mut told = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec();
        told.extend(
            b"GET / HTTP/1.1\r\nhost: a\r\nx-api-key: acme-key\r\nconnection: close\r\n\r\n",
        );
        let mut stream = tokio::net::TcpStream::connect(second_at).await.unwrap();
        stream.write_all(&told).await.unwrap();
        let mut reply = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut reply)).await.unwrap().unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}, {round}");
        std::fs::write(program.file(), format!("{text}# another one\n")).unwrap();
        program.logged("a new configuration is in force").await;
    }
}

#[tokio::test]
async fn sockets_for_another_process_and_sockets_without_use_are_left_alone() {
    let service = Service::hello().await;
    let (unknown, unknown_at) = socket();
    let fds = vec![FdMapping { parent_fd: unknown.into(), child_fd: 3 }];
    let given = |command: &mut Command| {
        command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "nobody");
        command.fd_mappings(fds).unwrap();
    };
    let text = file(PLAN, "", service.address);
    let program = Program::start_by(&text, PROGRAM, &[], given).await;
    assert_ne!(program.traffic, unknown_at);
    program.logged("no listener has use for a socket").await;
    program.logged("nobody").await;
    assert_eq!(get(program.traffic, "/", &[("x-api-key", KEY)]).await.status, 200);

    let (main, main_at) = socket();
    let fds = vec![FdMapping { parent_fd: main.into(), child_fd: 3 }];
    let given = |command: &mut Command| {
        command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "main").env("LISTEN_PID", "1");
        command.fd_mappings(fds).unwrap();
    };
    let program = Program::start_by(&text, PROGRAM, &[], given).await;
    assert_ne!(program.traffic, main_at, "that process is another one");
}
