//! A line for each answer that says what became of it, holds no secret, and delays nobody.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing::Level;

use crate::support::log::Kept;
use crate::support::service::{RawService, nobody, text};
use crate::support::{
    Gateway, HEAD, KEY, PATIENCE, Service, eventually, file, get, mistakes, raw, standing,
};

const PLAN: &str = "burst = { capacity = 100000, refill = \"100000/s\" }";

/// A log in a folder that goes with it.
struct Log {
    folder: tempfile::TempDir,
}

impl Log {
    fn new() -> Log {
        Log { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }

    /// The table that asks for it.
    fn table(&self, more: &str) -> String {
        format!("[access_log]\nto = {:?}\n{more}\n", self.path())
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_default()
    }

    fn lines(&self) -> Vec<Value> {
        let text = self.text();
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// All lines, once there are so many.
    async fn wait(&self, count: usize) -> Vec<Value> {
        let there = async || count <= self.text().lines().count();
        eventually(&format!("{count} lines"), there).await;
        self.lines()
    }
}

fn lost(gateway: &Gateway) -> usize {
    let text = gateway.context.metrics.render();
    let name = "weir_gateway_access_log_lost_total ";
    text.lines().find_map(|line| line.strip_prefix(name)).expect("the metric").parse().unwrap()
}

#[tokio::test]
async fn a_line_says_what_became_of_a_request() {
    let (log, service) = (
        Log::new(),
        Service::answering(|head| {
            text(if head.uri.path() == "/broken" { 500 } else { 201 }, "hello")
        })
        .await,
    );
    let (clock, store) = standing();
    let plan = "burst = { capacity = 2, refill = \"1/d\" }";
    let text = file(plan, "name = \"things\"", service.address) + &log.table("");
    let gateway = Gateway::over(&text, store, clock).await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let key = ("x-api-key", KEY);
    get(gateway.traffic, "/a?token=1", &[key, ("traceparent", &parent)]).await;
    get(gateway.traffic, "/broken", &[key]).await;
    let denied = get(gateway.traffic, "/", &[key]).await;
    get(gateway.traffic, "/", &[]).await;
    let lines = log.wait(4).await;
    let first = &lines[0];
    for (name, value) in [
        ("client", "acme"),
        ("route", "things"),
        ("method", "GET"),
        ("path", "/a"),
        ("by", "upstream"),
        ("endpoint", &service.address.to_string()),
        ("decision", "admitted"),
        ("trace", trace),
    ] {
        assert_eq!(first[name], value, "{name} in {first}");
    }
    assert_eq!((&first["status"], &first["bytes_out"]), (&201.into(), &5.into()));
    assert!(first["ms"].is_number() && first["upstream_ms"].is_number(), "{first}");
    for absent in ["query", "code", "retries", "end"] {
        assert!(first.get(absent).is_none(), "{absent} in {first}");
    }
    assert_eq!((&lines[1]["status"], &lines[1]["by"]), (&500.into(), &"upstream".into()));
    let third = &lines[2];
    assert_eq!((&third["status"], &third["by"]), (&429.into(), &"edge".into()));
    assert_eq!((&third["code"], &third["decision"]), (&"quota_exceeded".into(), &"denied".into()));
    assert_eq!(third["id"], denied.header("x-request-id"));
    assert_eq!(third["client"], "acme");
    assert_eq!(third["bytes_out"], denied.body.len());
    assert_eq!(lines[3]["code"], "key_missing");
    assert!(lines[3].get("client").is_none(), "{}", lines[3]);
}

#[tokio::test]
async fn a_line_counts_what_was_sent_again_and_the_bytes_of_both_bodies() {
    let (log, gone) = (Log::new(), nobody().await);
    let service = Service::hello().await;
    let text = format!(
        "{HEAD}{}[[route]]\nupstream = \"up\"\nauth = \"none\"\n[upstream.up]\n\
         endpoints = [\"{gone}\", \"{}\"]\nbalance = \"round_robin\"\n",
        log.table(""),
        service.address
    );
    let gateway = Gateway::start(&text).await;
    let request =
        "POST /up HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 7\r\n\r\nseven!!";
    for _ in 0..4 {
        assert!(raw(gateway.traffic, request.as_bytes()).await.contains("hello"));
    }
    let lines = log.wait(4).await;
    assert!(lines.iter().any(|line| line["retries"] == 1), "{lines:#?}");
    for line in &lines {
        assert_eq!((&line["bytes_in"], &line["bytes_out"]), (&7.into(), &5.into()), "{line}");
        assert!(line.get("decision").is_none(), "nobody was asked: {line}");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_told_by_who_ended_it() {
    let log = Log::new();
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
    let broken = RawService::answering(half, "\r\n\r\n").await;
    let endless = Service::answering(|_head| {
        let pieces =
            futures_util::stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![b'x'; 65_536]))));
        Response::new(StreamBody::new(pieces).boxed())
    })
    .await;
    let route = |path: &str, up: &str, at| {
        format!(
            "[[route]]\npath = \"{path}\"\nupstream = \"{up}\"\nauth = \"none\"\n\
             [upstream.{up}]\nendpoints = [\"{at}\"]\n"
        )
    };
    let routes = route("/broken", "b", broken.address) + &route("/endless", "e", endless.address);
    let gateway = Gateway::start(&format!("{HEAD}{}{routes}", log.table(""))).await;
    raw(gateway.traffic, b"GET /broken HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let lines = log.wait(1).await;
    assert_eq!((&lines[0]["end"], &lines[0]["bytes_out"]), (&"broken".into(), &4.into()));
    let mut caller = TcpStream::connect(gateway.traffic).await.unwrap();
    caller.write_all(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    caller.read_exact(&mut vec![0; 1_000_000]).await.unwrap();
    drop(caller);
    let lines = log.wait(2).await;
    assert_eq!((&lines[1]["end"], &lines[1]["status"]), (&"caller_gone".into(), &200.into()));
    assert!(lines[1]["bytes_out"].as_u64().unwrap() >= 900_000, "{}", lines[1]);
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_answer_is_told_too() {
    let log = Log::new();
    // It waits for bytes that never come.
    let silent = RawService::answering("", "no such end").await;
    let route = "auth = \"none\"";
    let text = file(PLAN, route, silent.address) + &log.table("sample = 0");
    let gateway = Gateway::start(&text).await;
    let mut caller = TcpStream::connect(gateway.traffic).await.unwrap();
    caller.write_all(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    eventually("the service is asked", async || {
        gateway.context.metrics.render().contains("weir_gateway_added_seconds_count 1")
    })
    .await;
    drop(caller);
    let lines = log.wait(1).await;
    assert_eq!(lines[0]["end"], "caller_gone");
    assert!(lines[0].get("status").is_none() && lines[0].get("by").is_none(), "{}", lines[0]);
}

#[tokio::test]
async fn no_line_holds_a_secret_and_a_query_only_where_it_is_asked_for() {
    let service = Service::hello().await;
    for (more, shown) in [("", false), ("format = \"text\"", false), ("query = true", true)] {
        let log = Log::new();
        let gateway = Gateway::start(&(file(PLAN, "", service.address) + &log.table(more))).await;
        let bearer = format!("Bearer {KEY}");
        let basic = [("authorization", "Basic c2VjcmV0"), ("cookie", "session=c2VjcmV0")];
        get(gateway.traffic, "/?sig=hidden", &[("x-api-key", KEY)]).await;
        get(gateway.traffic, "/?sig=hidden", &[("authorization", &bearer)]).await;
        get(gateway.traffic, "/?sig=hidden", &[("x-api-key", "wrong-key-of-somebody")]).await;
        get(gateway.traffic, "/?sig=hidden", &[("x-api-key", KEY), ("x-api-key", "other")]).await;
        get(gateway.traffic, "/?sig=hidden", &basic).await;
        eventually("five lines", async || log.text().lines().count() == 5).await;
        let text = log.text();
        for secret in [KEY, "wrong-key", "c2VjcmV0", "Bearer"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert_eq!(text.contains("hidden"), shown, "{more}: {text}");
    }
}

#[tokio::test]
async fn whatever_callers_send_a_line_is_one_line_of_plain_text() {
    let service = Service::hello().await;
    let targets: [&[u8]; 9] = [
        b"/\xc2\x9b31mred",
        b"/%1b[2J",
        b"/a\"b\\c",
        b"/{\"status\":200}",
        b"/x=1 status=200",
        b"/\xe2\x80\xae\xf0\x9f\x98\x80",
        b"/../../etc/passwd",
        b"http://other.example/%0a%0d",
        b"*",
    ];
    for format in ["json", "text"] {
        let log = Log::new();
        let more = format!("format = \"{format}\"\nquery = true");
        let gateway = Gateway::start(&(file(PLAN, "", service.address) + &log.table(&more))).await;
        let mut answered = 0;
        for target in targets {
            let mut request = b"GET ".to_vec();
            request.extend_from_slice(target);
            request.extend_from_slice(b"?q={1} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n");
            request.extend_from_slice(b"traceparent: 00-\x9b-\"-01\r\nx-api-key: \x9b\r\n\r\n");
            let answer = raw(gateway.traffic, &request).await;
            // What is no HTTP is answered by the engine, before there is a request.
            answered += usize::from(answer.contains("x-request-id"));
        }
        assert!(answered >= 5, "{answered}");
        eventually("its lines", async || log.text().lines().count() == answered).await;
        let text = log.text();
        assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text}");
        for line in text.lines() {
            match serde_json::from_str::<Value>(line) {
                Ok(line) => assert_eq!(line["by"], "edge", "{line}"),
                Err(_) => assert!(format == "text" && line.contains(" by=edge "), "{line}"),
            }
        }
    }
}

/// Writes the request again and again on one connection, and counts the answers.
async fn flood(gateway: &Gateway, request: &str, count: usize) -> usize {
    let stream = TcpStream::connect(gateway.traffic).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let requests = request.repeat(count);
    let writing = daemon::tasks::spawn("writer", async move {
        to.write_all(requests.as_bytes()).await.unwrap();
        to
    });
    const BEGIN: &[u8] = b"HTTP/1.1 ";
    let (mut answers, mut rest) = (0, Vec::new());
    let mut piece = vec![0; 65_536];
    while answers < count {
        let read = tokio::time::timeout(PATIENCE, from.read(&mut piece)).await.expect("in time");
        let bytes = read.unwrap();
        assert!(bytes > 0, "closed after {answers} answers");
        rest.extend_from_slice(&piece[..bytes]);
        while let Some(at) = rest.windows(BEGIN.len()).position(|window| window == BEGIN) {
            answers += 1;
            rest.drain(..at + BEGIN.len());
        }
        // What may be the beginning of the next one.
        rest.drain(..rest.len().saturating_sub(BEGIN.len() - 1));
    }
    drop(writing.await.unwrap());
    answers
}

#[tokio::test]
async fn an_unread_pipe_loses_lines_and_no_request() {
    const REQUESTS: usize = 10_000;
    let log = Log::new();
    let made = Command::new("mkfifo").arg(log.path()).status().unwrap();
    assert!(made.success());
    // Open at both ends, so that nobody waits for the other; nothing is read for now.
    let mut pipe = File::options().read(true).write(true).open(log.path()).unwrap();
    let text = file(PLAN, "path = \"/known\"", nobody().await).replacen("path = \"/\"\n", "", 1);
    let gateway = Gateway::start(&(text + &log.table(""))).await;
    let answers = flood(&gateway, "GET /unknown HTTP/1.1\r\nhost: a\r\n\r\n", REQUESTS).await;
    assert_eq!(answers, REQUESTS);
    let lost = lost(&gateway);
    assert!(0 < lost && lost < REQUESTS, "{lost} lost");
    // What was not lost is still there, and whole.
    let reading = std::thread::spawn(move || {
        let (mut text, mut piece) = (Vec::new(), vec![0; 65_536]);
        let ends = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
        while ends(&text) < REQUESTS - lost {
            let count = pipe.read(&mut piece).unwrap();
            text.extend_from_slice(&piece[..count]);
        }
        String::from_utf8(text).unwrap()
    });
    let read = tokio::task::spawn_blocking(move || reading.join().unwrap());
    let read = tokio::time::timeout(PATIENCE, read).await.expect("all lines come").unwrap();
    assert_eq!(read.lines().count(), REQUESTS - lost);
    assert!(read.lines().all(|line| line.contains("\"code\":\"route_unknown\"")));
}

/// The next line of a pipe that is open.
async fn next_line(pipe: &File) -> String {
    let mut pipe = pipe.try_clone().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while byte != [b'\n'] {
            pipe.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    });
    tokio::time::timeout(PATIENCE, reading).await.expect("a line comes").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_without_a_reader_holds_up_neither_the_start_nor_the_end() {
    let log = Log::new();
    assert!(Command::new("mkfifo").arg(log.path()).status().unwrap().success());
    let service = Service::hello().await;
    let text = file(PLAN, "auth = \"none\"", service.address) + &log.table("");
    let starting = daemon::tasks::spawn("start", async move { Gateway::start(&text).await });
    let started = tokio::time::timeout(PATIENCE, starting).await;
    let mut gateway = started.expect("nobody waits for a reader").unwrap();
    let count = async |so_many: usize| {
        let what = format!("{so_many} lines are lost");
        eventually(&what, async || lost(&gateway) == so_many).await;
    };
    gateway.calls(20).await;
    count(20).await;
    // Open at both ends, so that this side does not wait either.
    let open = || File::options().read(true).write(true).open(log.path()).unwrap();
    for so_far in [20, 25] {
        let reader = open();
        get(gateway.traffic, "/read", &[]).await;
        let line = next_line(&reader).await;
        assert!(line.contains("\"path\":\"/read\""), "{line}");
        count(so_far).await;
        drop(reader);
        gateway.calls(5).await;
        count(so_far + 5).await;
    }
    gateway.drain.start();
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await;
    ended.expect("in time").unwrap().unwrap();
}

#[tokio::test]
async fn a_sample_is_as_large_as_it_says_and_no_error_is_left_out() {
    const EACH: usize = 3_000;
    let log = Log::new();
    let service = Service::hello().await;
    let text = file(PLAN, "auth = \"none\"\nmethods = [\"GET\"]", service.address)
        + &log.table("sample = 0.25");
    let gateway = Gateway::start(&text).await;
    flood(&gateway, "GET / HTTP/1.1\r\nhost: a\r\n\r\n", EACH).await;
    flood(&gateway, "DELETE / HTTP/1.1\r\nhost: a\r\n\r\n", EACH).await;
    let refused = || log.lines().iter().filter(|line| line["status"] == 405).count();
    eventually("a line for each refusal", async || refused() == EACH).await;
    let sampled = log.lines().iter().filter(|line| line["status"] == 200).count();
    // Six standard deviations of a binomial around 750.
    assert!((608..=892).contains(&sampled), "{sampled} of {EACH}");
    assert_eq!(lost(&gateway), 0);
}

#[tokio::test]
async fn a_log_that_was_moved_away_goes_on_in_a_new_file() {
    let (log, service) = (Log::new(), Service::hello().await);
    let text = file(PLAN, "auth = \"none\"", service.address) + &log.table("");
    let gateway = Gateway::start(&text).await;
    gateway.calls(1).await;
    log.wait(1).await;
    let moved = log.folder.path().join("access.log.1");
    std::fs::rename(log.path(), &moved).unwrap();
    gateway.calls(2).await;
    log.wait(2).await;
    assert_eq!(std::fs::read_to_string(moved).unwrap().lines().count(), 1);
}

#[tokio::test]
async fn the_last_lines_are_written_before_the_end_and_nothing_else_is_claimed() {
    let (kept, logging) = Kept::new(Level::WARN);
    let _here = tracing::subscriber::set_default(logging);
    let (log, service) = (Log::new(), Service::hello().await);
    let text = file(PLAN, "auth = \"none\"", service.address) + &log.table("format = \"text\"");
    let mut gateway = Gateway::start(&text).await;
    gateway.calls(50).await;
    gateway.drain.start();
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await;
    ended.expect("in time").unwrap().unwrap();
    let text = log.text();
    assert_eq!(text.lines().count(), 50);
    assert!(text.lines().all(|line| line.contains(" status=200 by=upstream ")), "{text}");
    assert_eq!(kept.text(), "");
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_is_told_at_the_start() {
    let text = file(PLAN, "", nobody().await) + "[access_log]\nto = \"/nowhere/access.log\"\n";
    let config = crate::support::parse(&text);
    let (context, _) = daemon::Context::in_process(daemon::Drain::new());
    let ended = gateway::serve(config, context).await;
    let told = format!("{ended:?}");
    assert!(told.contains("access_log.to") && ended.is_err(), "{told}");
}

#[test]
fn its_mistakes_are_told_with_their_place() {
    let rest = "[[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = [\"127.0.0.1:1\"]\n";
    for (table, place, what) in [
        ("", "access_log.to", "missing"),
        ("to = \"\"", "access_log.to", "stdout"),
        ("to = \"stdout\"\nformat = \"xml\"", "access_log.format", "xml"),
        ("to = \"stdout\"\nsample = 1.5", "access_log.sample", "1.5"),
        ("to = \"stdout\"\nsample_errors = 0.00001", "access_log.sample_errors", "4 decimals"),
        ("to = \"stdout\"\nquery = 1", "access_log.query", "1"),
        ("to = \"stdout\"\nlevel = 1", "access_log.level", "known"),
    ] {
        let text = format!("[access_log]\n{table}\n{rest}");
        mistakes(&text, Path::new("."), place, what);
    }
}
