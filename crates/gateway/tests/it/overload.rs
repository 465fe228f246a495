//! More than a worker can handle: the surplus is told so at once, charged nothing, and nobody else
//! notices.

use std::net::SocketAddr;
use std::path::Path;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::support::{
    Gateway, KEY, PATIENCE, Service, eventually, file, mistakes, raw, standing, tally,
};

const PLAN: &str = "burst = { capacity = 100000, refill = \"1/d\" }";
/// Together they keep one worker busy for more than its target at every turn.
const CALLERS: usize = 150;
const REQUESTS_EACH: usize = 60;
const SOON: &str = "[overload]\ntarget = \"1ms\"\ninterval = \"10ms\"\n";

struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Requests in a row on one connection, all written before the first answer is read.
async fn caller(to: SocketAddr) -> Vec<Answer> {
    let (from, mut into) = TcpStream::connect(to).await.unwrap().into_split();
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    let all = request.repeat(REQUESTS_EACH);
    let writing = daemon::tasks::spawn("writer", async move {
        into.write_all(all.as_bytes()).await.unwrap();
        into
    });
    let mut from = BufReader::new(from);
    let mut answers = Vec::new();
    for _ in 0..REQUESTS_EACH {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            assert!(from.read_line(&mut line).await.unwrap() > 0, "closed after {head}");
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            head += &line;
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).await.unwrap();
        let status = head.get(9..12).unwrap().parse().unwrap();
        answers.push(Answer { status, head, body: String::from_utf8(body).unwrap() });
    }
    drop(writing.await.unwrap());
    answers
}

async fn crowd(gateway: &Gateway) -> Vec<Answer> {
    let callers = (0..CALLERS).map(|_| caller(gateway.traffic));
    let all = tokio::time::timeout(6 * PATIENCE, futures_util::future::join_all(callers)).await;
    all.expect("answers in time").into_iter().flatten().collect()
}

fn metric<T: std::str::FromStr<Err: std::fmt::Debug>>(gateway: &Gateway, name: &str) -> T {
    let text = gateway.context.metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
}

fn shed_so_far(gateway: &Gateway) -> usize {
    metric(gateway, "weir_gateway_shed_total")
}

#[tokio::test]
async fn the_surplus_is_told_to_come_back_and_is_charged_nothing() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let text = file(PLAN, "", service.address) + SOON;
    let gateway = Gateway::over(&text, store, clock).await;
    let answers = crowd(&gateway).await;
    let (served, shed): (Vec<_>, Vec<_>) = answers.iter().partition(|one| one.status == 200);
    assert!(!served.is_empty() && !shed.is_empty(), "{} and {}", served.len(), shed.len());
    for one in &shed {
        assert_eq!(one.status, 503, "{}{}", one.head, one.body);
        assert!(one.body.contains("\"code\":\"overloaded\""), "{}", one.body);
        assert!(one.head.contains("x-weir-source: edge"), "{}", one.head);
        let again = ["1", "2", "3"].map(|s| one.head.contains(&format!("retry-after: {s}\r\n")));
        assert!(again.contains(&true), "{}", one.head);
    }
    for seconds in ["1", "2", "3"] {
        let told = format!("retry-after: {seconds}\r\n");
        assert!(shed.len() < 100 || shed.iter().any(|one| one.head.contains(&told)), "{seconds}");
    }
    assert_eq!(service.requests(), served.len() as u64, "what is shed reaches nobody");
    assert_eq!(shed_so_far(&gateway), shed.len());
    let still = || metric::<u8>(&gateway, "weir_gateway_shedding{worker=\"0\"}");
    eventually("it is over", async || still() == 0).await;
    let after = &gateway.calls(1).await[0];
    assert_eq!(after.status, 200);
    let left = 100_000 - served.len() - 1;
    assert!(after.header("ratelimit").starts_with(&format!("\"burst\";r={left};")), "{after:?}");
    let waits = || metric::<f64>(&gateway, "weir_gateway_queue_delay_seconds{worker=\"0\"}");
    eventually("nobody waits", async || waits() < 0.001).await;
}

#[tokio::test]
async fn where_it_is_switched_off_everybody_waits() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let text = file(PLAN, "", service.address) + &format!("{SOON}shed = false\n");
    let gateway = Gateway::over(&text, store, clock).await;
    let answers = crowd(&gateway).await;
    assert!(answers.iter().all(|one| one.status == 200));
    assert_eq!(service.requests(), (CALLERS * REQUESTS_EACH) as u64);
}

#[tokio::test]
async fn the_operations_port_is_never_shed() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let text = file(PLAN, "", service.address) + SOON;
    let gateway = Gateway::over(&text, store, clock).await;
    let looking = async {
        let mut seen = 0;
        while shed_so_far(&gateway) == 0 || seen < 5 {
            for path in ["/livez", "/readyz"] {
                let request =
                    format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
                let answer = raw(gateway.operations, request.as_bytes()).await;
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            }
            seen += 1;
        }
    };
    tokio::join!(crowd(&gateway), looking);
}

#[tokio::test]
async fn a_few_callers_are_never_shed() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let gateway = Gateway::over(&file(PLAN, "", service.address), store, clock).await;
    let replies = gateway.calls(300).await;
    assert_eq!(tally(&replies), [(200, 300)]);
    assert_eq!(shed_so_far(&gateway), 0);
}

#[test]
fn its_mistakes_are_told_with_their_place() {
    let rest = "[[route]]\nupstream = \"up\"\n[upstream.up]\nendpoints = [\"127.0.0.1:1\"]\n";
    for (line, place, what) in [
        ("target = \"0ms\"", "overload.target", "0ms"),
        ("interval = 5", "overload.interval", "5"),
        ("shed = \"no\"", "overload.shed", "no"),
        ("targets = \"5ms\"", "overload.targets", "known"),
    ] {
        mistakes(&format!("[overload]\n{line}\n{rest}"), Path::new("."), place, what);
    }
}
