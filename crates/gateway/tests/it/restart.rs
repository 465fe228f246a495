//! A new process in the place of a running one: nobody is refused, cut or forgotten.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::caller::request;
use crate::support::program::{Program, is_alive};
use crate::support::service::{nobody, text};
use crate::support::socket::{Echo, field, handshake, head};
use crate::support::{HEAD, KEY, PATIENCE, Service, eventually, file, get, raw};

const PLAN: &str = "unlimited = true";
const ASKED: &str = "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: acme-key\r\nconnection: close\r\n\r\n";

/// The usual file with a grace in which connections in use hear that they shall close.
fn with_grace(service: SocketAddr) -> String {
    file(PLAN, "", service).replace("grace = \"1ms\"", "grace = \"400ms\"")
}

/// A caller that goes on until it is told to stop: over one connection for as long as that lasts,
/// then over the next. Nothing is sent twice.
async fn keep_calling(to: SocketAddr, stop: Arc<AtomicBool>, answered: Arc<AtomicU64>) {
    while !stop.load(Ordering::SeqCst) {
        let stream = TcpStream::connect(to).await.expect("nobody refuses a connection");
        stream.set_nodelay(true).unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
                .await
                .unwrap();
        daemon::tasks::spawn("connection", connection);
        loop {
            let sent = sender.send_request(request("GET", "/", &[("x-api-key", KEY)])).await;
            let (head, body) = sent.expect("every request has an answer").into_parts();
            assert_eq!(head.status, 200);
            assert_eq!(body.collect().await.expect("a whole one").to_bytes(), "hello");
            answered.fetch_add(1, Ordering::SeqCst);
            let closes = head.headers.get("connection").is_some_and(|value| value == "close");
            if closes || stop.load(Ordering::SeqCst) {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_no_request_fails_over_in_place_restarts() {
    let service = Service::hello().await;
    let mut program =
        Program::start(&with_grace(service.address).replace("workers = 1", "workers = 2")).await;
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..8)
        .map(|_| keep_calling(program.traffic, Arc::clone(&stop), Arc::clone(&answered)))
        .map(|caller| daemon::tasks::spawn("caller", caller))
        .collect();
    for _ in 0..3 {
        let before = answered.load(Ordering::SeqCst);
        eventually("requests flow", async || answered.load(Ordering::SeqCst) > before + 50).await;
        let old = program.succeed().await;
        let code = program.ended(old).await;
        assert!(code.is_none_or(|code| code == 0), "{code:?}\n{}", program.log());
        assert!(is_alive(program.pid));
    }
    let before = answered.load(Ordering::SeqCst);
    eventually("and flow on", async || answered.load(Ordering::SeqCst) > before + 50).await;
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        timeout(PATIENCE, caller).await.expect("callers end").unwrap();
    }
    assert_eq!(service.requests(), answered.load(Ordering::SeqCst), "each arrived once");
}

#[tokio::test]
async fn a_new_process_that_dies_leaves_the_old_one_serving_and_the_log_says_why() {
    let service = Service::hello().await;
    let text = with_grace(service.address);
    let mut program = Program::start(&text).await;
    std::fs::write(program.file(), text.replace("path = \"/\"", "path = \"nowhere\"")).unwrap();
    program.signal(Signal::USR2);
    program.told("RELOADING=1").await;
    program.told("READY=1").await;
    program.logged("route[0].path").await; // what the new one said
    program.logged("exit status: 64").await; // what the old one saw
    for _ in 0..3 {
        let reply = get(program.traffic, "/", &[("x-api-key", KEY)]).await;
        assert_eq!((reply.status, reply.header("connection")), (200, ""), "it does not drain");
    }
    assert_eq!(get(program.operations, "/readyz", &[]).await.status, 200);
    std::fs::write(program.file(), &text).unwrap();
    let old = program.succeed().await;
    assert_eq!(program.ended(old).await, Some(0), "a better file is taken over");
}

#[tokio::test]
async fn a_new_process_without_a_policy_answers_nobody_and_ends_with_the_old_one() {
    let service = Service::hello().await;
    let mut program = Program::start(&file(PLAN, "", service.address)).await;
    let beside = |name: &str| program.file().with_file_name(name);
    std::fs::write(beside("pepper"), [7; 32]).unwrap();
    std::fs::write(beside("token"), "a token of more than thirty-two bytes").unwrap();
    let (plane, at) = (nobody().await, service.address);
    let text = format!(
        "{HEAD}[control]\nplans_api = \"http://{plane}\"\ntoken_file = \"token\"\n\
         pepper_file = \"pepper\"\n[[route]]\npath = \"/\"\nupstream = \"up\"\n\
         [upstream.up]\nendpoints = [\"{at}\"]\n"
    );
    std::fs::write(program.file(), text).unwrap();
    program.signal(Signal::USR2);
    program.logged("taken over listener=\"main\"").await;
    // It has all sockets; whatever it accepted would wait, or be told that there is no policy.
    for _ in 0..30 {
        let reply = get(program.traffic, "/", &[("x-api-key", KEY)]).await;
        assert_eq!((reply.status, reply.header("connection")), (200, ""));
        assert_eq!(get(program.operations, "/readyz", &[]).await.status, 200);
    }
    let waiting = program.started();
    assert!(waiting.len() == 1 && is_alive(waiting[0]), "{waiting:?}\n{}", program.log());
    program.signal(Signal::TERM);
    assert_eq!(program.ended(program.pid).await, Some(0));
    assert!(!is_alive(waiting[0]), "it is not left behind");
}

#[tokio::test]
async fn the_program_that_is_at_its_path_by_then_is_what_runs_next() {
    let service = Service::hello().await;
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("weir-gateway");
    let programs = ["old", "new"].map(|name| folder.path().join(name));
    for program in &programs {
        std::fs::copy(env!("CARGO_BIN_EXE_weir-gateway"), program).unwrap();
    }
    std::os::unix::fs::symlink(&programs[0], &link).unwrap();
    let mut program = Program::start_by(&with_grace(service.address), &link, &[], |_| {}).await;
    std::fs::remove_file(&link).unwrap();
    program.signal(Signal::USR2);
    program.told("READY=1").await;
    program.logged("cannot start").await;
    assert!(is_alive(program.pid));
    std::os::unix::fs::symlink(&programs[1], &link).unwrap();
    program.succeed().await;
    let runs = std::fs::read_link(format!("/proc/{}/exe", program.pid)).unwrap();
    assert_eq!(runs, programs[1]);
    assert_eq!(get(program.traffic, "/", &[("x-api-key", KEY)]).await.status, 200);
}

#[tokio::test]
async fn a_request_under_way_is_answered_by_the_process_that_took_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut program = Program::start(&file(PLAN, "", listener.local_addr().unwrap())).await;
    let traffic = program.traffic;
    let call = daemon::tasks::spawn("call", async move { raw(traffic, ASKED.as_bytes()).await });
    let (mut held, _) = listener.accept().await.unwrap();
    assert!(head(&mut held).await.starts_with("GET / "));
    let old = program.succeed().await;
    let next = daemon::tasks::spawn("next", async move { raw(traffic, ASKED.as_bytes()).await });
    let (mut fresh, _) = listener.accept().await.unwrap();
    assert!(head(&mut fresh).await.starts_with("GET / "));
    let answer = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{body}");
    fresh.write_all(answer("new").as_bytes()).await.unwrap();
    assert!(next.await.unwrap().ends_with("new"), "the new process serves meanwhile");
    assert!(is_alive(old), "and the old one waits for its request");
    held.write_all(answer("old").as_bytes()).await.unwrap();
    assert!(call.await.unwrap().ends_with("old"));
    assert_eq!(program.ended(old).await, Some(0));
}

#[tokio::test]
async fn what_waits_in_the_kernel_is_accepted_by_the_new_process() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap());
    let mut program =
        Program::start(&format!("{text}[limits]\nconnections_per_worker = 1\n")).await;
    let traffic = program.traffic;
    // One connection is all that the old process takes.
    let call = daemon::tasks::spawn("call", async move { raw(traffic, ASKED.as_bytes()).await });
    let (mut held, _) = listener.accept().await.unwrap();
    head(&mut held).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(traffic).await.unwrap();
        stream.write_all(ASKED.as_bytes()).await.unwrap();
        waiting.push(stream);
    }
    let old = program.succeed().await;
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
    for stream in &mut waiting {
        let (mut fresh, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        head(&mut fresh).await;
        fresh.write_all(format!("{answer}hello").as_bytes()).await.unwrap();
        let mut reply = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut reply)).await.unwrap().unwrap();
        assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("hello"), "{reply}");
    }
    assert!(is_alive(old), "while the old one still waits for its service");
    held.write_all(format!("{answer}hello").as_bytes()).await.unwrap();
    assert!(call.await.unwrap().ends_with("hello"));
    assert_eq!(program.ended(old).await, Some(0));
}

#[tokio::test]
async fn open_connections_are_told_to_close_and_closed_when_they_stay_idle() {
    let service = Service::hello().await;
    let mut program = Program::start(&with_grace(service.address)).await;
    let open = "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: acme-key\r\n\r\n";
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(program.traffic).await.unwrap();
        stream.write_all(open.as_bytes()).await.unwrap();
        let told = head(&mut stream).await;
        assert_eq!(field(&told, "connection"), "", "{told}");
        stream.read_exact(&mut [0; 5]).await.unwrap();
        streams.push(stream);
    }
    let [mut used, mut idle] = <[TcpStream; 2]>::try_from(streams).unwrap();
    let old = program.succeed().await;
    used.write_all(open.as_bytes()).await.unwrap();
    let told = head(&mut used).await;
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert_eq!(field(&told, "connection"), "close");
    for stream in [&mut used, &mut idle] {
        let mut rest = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
        assert!(rest.is_empty() || rest == b"hello", "{rest:?}");
    }
    assert_eq!(program.ended(old).await, Some(0));
}

#[tokio::test]
async fn an_http2_connection_ends_when_its_requests_have_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut program = Program::start(&file(PLAN, "", listener.local_addr().unwrap())).await;
    let stream = TcpStream::connect(program.traffic).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(executor, TokioIo::new(stream))
            .await
            .unwrap();
    let connection = daemon::tasks::spawn("connection", connection);
    let asked = request("GET", "http://api.test/", &[("x-api-key", KEY)]);
    let call = daemon::tasks::spawn("call", async move {
        let sent = sender.send_request(asked).await.unwrap();
        (sent.status(), sent.into_body().collect().await.unwrap().to_bytes(), sender)
    });
    let (mut held, _) = listener.accept().await.unwrap();
    assert!(head(&mut held).await.starts_with("GET / "));
    let old = program.succeed().await;
    assert!(is_alive(old), "it waits for its request");
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    held.write_all(answer.as_bytes()).await.unwrap();
    // The caller would keep its connection: it is the gateway that ends it.
    let (status, body, _kept) = timeout(PATIENCE, call).await.unwrap().unwrap();
    assert_eq!((status.as_u16(), body.as_ref()), (200, &b"hello"[..]));
    let ended = timeout(PATIENCE, connection).await.expect("the connection ends").unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(program.ended(old).await, Some(0));
}

#[tokio::test]
async fn a_web_socket_outlives_a_restart_for_as_long_as_finish_says() {
    let echo = Echo::start().await;
    let mut program = Program::start(&file(PLAN, "", echo.address)).await;
    let mut stream = TcpStream::connect(program.traffic).await.unwrap();
    stream.write_all(handshake(KEY, "").as_bytes()).await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 101"));
    eventually("it is open", async || echo.opened() == 1).await;
    let old = program.succeed().await;
    assert!(is_alive(old));
    assert_eq!(echo.ended(), 0, "nobody has cut it");
    let closed = async { while stream.read_u8().await.is_ok() {} };
    timeout(PATIENCE, closed).await.expect("at the end of `finish` it is cut");
    assert_eq!(program.ended(old).await, Some(0));
}

#[tokio::test]
async fn another_number_of_workers_takes_over_all_sockets() {
    let service = Service::answering(|_| text(200, "hello")).await;
    let one = with_grace(service.address);
    let mut program = Program::start(&one).await;
    for workers in [3, 1, 2] {
        let text = one.replace("workers = 1", &format!("workers = {workers}"));
        std::fs::write(program.file(), text).unwrap();
        let old = program.succeed().await;
        // More than the sockets there are, so that each one is met.
        for _ in 0..60 {
            let reply = get(program.traffic, "/", &[("x-api-key", KEY)]).await;
            assert_eq!(reply.status, 200, "{workers} workers");
        }
        program.ended(old).await;
    }
}

#[tokio::test]
async fn a_listener_that_has_gone_is_drained_and_a_new_one_bound() {
    let service = Service::hello().await;
    let text = with_grace(service.address);
    let mut program = Program::start(&text).await;
    let (old_at, operations) = (program.traffic, program.operations);
    let moved = text.replacen("[listen.main]\naddress", "[listen.other]\naddress", 1);
    std::fs::write(program.file(), moved).unwrap();
    let old = program.succeed().await;
    program.read_ports();
    assert_ne!(program.traffic, old_at);
    assert_eq!(program.operations, operations, "what stays is taken over");
    let call = [("x-api-key", KEY)];
    // Nobody else has the old port, so the old process accepts there to the end of its grace.
    assert_eq!(get(old_at, "/", &call).await.status, 200);
    assert_eq!(get(program.traffic, "/", &call).await.status, 200);
    assert_eq!(program.ended(old).await, Some(0));
    assert!(TcpStream::connect(old_at).await.is_err(), "then it is closed");
    assert_eq!(get(program.operations, "/readyz", &[]).await.status, 200);
}
