//! A replica over real HTTP: what it refuses, what it tells, what it logs.

use demo::{Arrival, LimitValue, Mode, PlanValue, Replica, SafetyLimits, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn limits(capacity: u64) -> SafetyLimits {
    let plan: PlanValue = serde_json::from_value(serde_json::json!({
        "name": "pro",
        "burst": LimitValue { capacity, tokens: 0, per_us: 1 },
        "failure": "coarse",
        "revision": 1,
    }))
    .expect("this is a plan");
    SafetyLimits { revision: 1, multiple: 10, plans: vec![plan], overrides: Vec::new() }
}

fn quick() -> Mode {
    Mode { service_us: [0, 0], concurrency: 100, ..Mode::default() }
}

async fn start(mode: Mode) -> (Replica, std::net::SocketAddr) {
    let replica = Replica::new("orders", 1, 3, mode);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("its address");
    let served = replica.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let listener = listener.into_std().expect("a socket");
        runtime.expect("a runtime").block_on(async {
            let listener = TcpListener::from_std(listener).expect("a socket");
            demo::serve(listener, served).await
        })
    });
    (replica, at)
}

async fn get(at: std::net::SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(at).await.expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}

fn named(client: &str, id: u32) -> String {
    format!("x-weir-client: {client}\r\nx-weir-plan: pro\r\nx-demo-id: {id}\r\n")
}

#[tokio::test]
async fn a_replica_refuses_above_its_own_bucket_with_its_marker_and_logs_every_arrival_once() {
    let (replica, at) = start(Mode { decision_header: true, ..quick() }).await;
    assert_eq!(replica.set_limits(&limits(2)), Vec::<String>::new());
    let first = get(at, "/orders/1", &named("acme", 1)).await;
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    assert!(first.contains("x-weir-decision: v1;d=allow;rem=1;cost=1;client=acme"), "{first}");
    get(at, "/orders/1", &named("acme", 2)).await;
    let third = get(at, "/orders/1", &named("acme", 3)).await;
    assert!(third.starts_with("HTTP/1.1 429"), "{third}");
    assert!(third.contains("x-limited-by: orders"), "{third}");
    assert!(third.contains("d=deny"), "{third}");
    get(at, "/orders/1", &named("zeta", 4)).await;

    let log = get(at, "/-/arrivals?from=1", "").await;
    assert!(log.contains("own-limit acme 3\n"), "{log}");
    assert!(!log.contains("acme 1\n"), "{log}");
    let (arrivals, lost) = replica.arrivals(0);
    let seen: Vec<_> = arrivals.iter().map(|a| (a.verdict, a.id.as_str())).collect();
    let admitted = Verdict::Admitted;
    let expected =
        [(admitted, "1"), (admitted, "2"), (Verdict::RefusedByOwnLimit, "3"), (admitted, "4")];
    assert_eq!((seen.as_slice(), lost), (expected.as_slice(), 0));
    for arrival in arrivals {
        assert_eq!(arrival.to_string().parse::<Arrival>(), Ok(arrival));
    }
}

#[tokio::test]
async fn with_its_own_limit_off_only_the_safety_limit_is_left() {
    let mode = Mode { own_limit: false, safety_limit: true, ..quick() };
    let (replica, at) = start(mode).await;
    replica.set_limits(&limits(3)); // a third of ten times three
    let mut statuses = Vec::new();
    for id in 0..12 {
        let answer = get(at, "/", &named("acme", id)).await;
        assert!(!answer.contains("x-weir-decision"), "{answer}");
        statuses.push(answer.split(' ').nth(1).map(ToOwned::to_owned));
    }
    assert_eq!(statuses.iter().filter(|status| status.as_deref() == Some("200")).count(), 10);
    let (arrivals, _) = replica.arrivals(0);
    let refused = arrivals.iter().filter(|a| a.verdict == Verdict::RefusedBySafetyLimit);
    assert_eq!((arrivals.len(), refused.count()), (12, 2));
    replica.set_mode(Mode { safety_limit: false, ..replica.mode() });
    assert!(get(at, "/", &named("acme", 99)).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn overload_queues_behind_the_concurrency() {
    let mode = Mode { service_us: [20_000, 20_000], concurrency: 1, ..quick() };
    let (replica, at) = start(mode).await;
    let before = tokio::time::Instant::now();
    let headers = named("acme", 1);
    let (a, b, c) =
        tokio::join!(get(at, "/", &headers), get(at, "/", &headers), get(at, "/", &headers));
    for answer in [a, b, c] {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(before.elapsed() >= std::time::Duration::from_millis(60), "they were served at once");
    assert_eq!(replica.arrivals(0).0.len(), 3);
}
