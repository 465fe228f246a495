//! What is sent again and what never: an upstream sees a request twice only if that is the same as
//! once, a caller notices nothing of it, and a client pays once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Notify;

use crate::support::caller::request;
use crate::support::scripted::{Act, Arrived, OK, Scripted};
use crate::support::service::{nobody, text};
use crate::support::{Gateway, KEY, Reply, Service, file, get, send, standing, tally};

const PLAN: &str = "burst = { capacity = 10000, refill = \"1/d\" }";

async fn call(gateway: &Gateway, method: &str, id: usize) -> Reply {
    let id = id.to_string();
    send(gateway.traffic, request(method, "/", &[("x-api-key", KEY), ("x-id", &id)])).await
}

async fn calls(gateway: &Gateway, method: &str, ids: std::ops::Range<usize>) -> Vec<Reply> {
    let mut replies = Vec::new();
    for id in ids {
        replies.push(call(gateway, method, id).await);
    }
    replies
}

/// How often each of the ids arrived.
fn arrivals(arrived: &[Arrived], ids: std::ops::Range<usize>) -> Vec<usize> {
    let of = |id: usize| arrived.iter().filter(|one| one.header("x-id") == id.to_string()).count();
    ids.map(of).collect()
}

/// Two endpoints of the upstream, and more lines for it.
fn two(one: SocketAddr, other: SocketAddr, lines: &str) -> String {
    let endpoints = format!("\"{one}\", \"{other}\"");
    file(PLAN, "", one).replace(&format!("\"{one}\""), &endpoints) + lines
}

/// A gateway on a clock that stands: nothing refills and all is in the same second.
async fn over(text: &str) -> Gateway {
    let (clock, store) = standing();
    Gateway::over(text, store, clock).await
}

#[tokio::test]
async fn c20_a_connection_that_closes_at_its_reuse_costs_a_get_nothing_and_no_post_comes_twice() {
    // Every second request of a connection finds it closing: the worst that idle times can do.
    let service = Scripted::new(|arrived| match arrived.nth {
        0 => Act::Say(OK),
        _ => Act::Close,
    })
    .await;
    let plan = file("burst = { capacity = 1000, refill = \"1/d\" }", "", service.address);
    let gateway = over(&(plan + "retry = { budget = 1.0 }\n")).await;
    let posts = calls(&gateway, "POST", 0..200).await;
    assert_eq!(tally(&posts), [(200, 100), (502, 100)]);
    assert!(arrivals(&service.arrived(), 0..200).iter().all(|count| *count == 1));
    let gets = calls(&gateway, "GET", 200..400).await;
    assert_eq!(tally(&gets), [(200, 200)]);
    assert!(arrivals(&service.arrived(), 200..400).iter().all(|count| matches!(count, 1 | 2)));
    assert_eq!(gateway.shown("retries_total"), service.arrived().len() as u64 - 400);
    assert_eq!(gateway.shown("retries_total"), 199, "all but the first");
    let told = call(&gateway, "GET", 400).await;
    assert_eq!(told.header("ratelimit"), "\"burst\";r=599;t=34646400", "401 were paid");
}

#[tokio::test]
async fn c20_idle_times_that_meet_make_no_post_come_twice_and_shorter_ones_no_error() {
    let ten = Duration::from_millis(10);
    let meeting = Scripted::closing_after(Some(ten), |_| Act::Say(OK)).await;
    let text = file(PLAN, "", meeting.address) + "retry = { budget = 1.0 }\n";
    let gateway = over(&text).await;
    let mut every = tokio::time::interval(ten);
    for id in 0..200 {
        every.tick().await;
        let status = call(&gateway, "POST", id).await.status;
        assert!(matches!(status, 200 | 502), "{status}");
    }
    for id in 200..400 {
        every.tick().await;
        assert_eq!(call(&gateway, "GET", id).await.status, 200);
    }
    let arrived = meeting.arrived();
    assert!(arrivals(&arrived, 0..200).iter().all(|count| *count <= 1));
    assert!(arrivals(&arrived, 200..400).iter().all(|count| matches!(count, 1 | 2)));

    let patient = Scripted::closing_after(Some(40 * ten), |_| Act::Say(OK)).await;
    let text = file(PLAN, "", patient.address) + "keep_idle = \"10ms\"\n";
    let gateway = over(&text).await;
    for id in 0..200 {
        every.tick().await;
        assert_eq!(call(&gateway, "POST", id).await.status, 200);
    }
    assert_eq!(gateway.shown("retries_total"), 0);
}

#[tokio::test]
async fn what_a_broken_connection_may_have_swallowed_goes_elsewhere_if_twice_is_as_once() {
    for act in [Act::Close, Act::Reset] {
        let broken = Scripted::new(move |_| act.clone()).await;
        let well = Scripted::new(|_| Act::Say(OK)).await;
        let lines = "ejection = { consecutive = 0 }\nretry = { budget = 1.0 }\n";
        let gateway = over(&two(broken.address, well.address, lines)).await;
        let mut last = 0;
        for (method, again) in [
            ("GET", true),
            ("OPTIONS", true),
            ("PUT", true),
            ("DELETE", true),
            ("POST", false),
            ("PATCH", false),
        ] {
            let ids = last..last + 20;
            last += 20;
            let ok = tally(&calls(&gateway, method, ids.clone()).await);
            let seen = arrivals(&broken.arrived(), ids.clone()).iter().sum::<usize>();
            assert!(seen > 0, "the broken one was asked");
            let served = arrivals(&well.arrived(), ids).iter().sum::<usize>();
            if again {
                assert_eq!((ok, served), (vec![(200, 20)], 20), "{method}");
            } else {
                assert_eq!((ok, served), (vec![(200, 20 - seen), (502, seen)], 20 - seen));
            }
        }
    }
}

#[tokio::test]
async fn a_body_is_never_replayed() {
    let broken = Scripted::new(|_| Act::Close).await;
    let gateway = over(&file(PLAN, "", broken.address)).await;
    let with_body = Request::builder().method("PUT").uri("/").header("host", "a");
    let with_body = with_body.header("x-api-key", KEY).body(Full::new(Bytes::from_static(b"x")));
    assert_eq!(send(gateway.traffic, with_body.unwrap()).await.status, 502);
    assert_eq!(broken.arrived().len(), 1);
    assert_eq!(call(&gateway, "PUT", 0).await.status, 502);
    assert_eq!(broken.arrived().len(), 3, "without a body it was tried again");
}

#[tokio::test]
async fn a_body_that_nobody_took_goes_to_who_can_be_reached() {
    let service = Service::answering(|_head| text(200, "taken")).await;
    let lines = "ejection = { consecutive = 0 }\nretry = { budget = 1.0 }\n";
    let gateway = over(&two(nobody().await, service.address, lines)).await;
    for _ in 0..40 {
        let post = Request::builder().method("POST").uri("/").header("host", "a");
        let post = post.header("x-api-key", KEY).body(Full::new(Bytes::from_static(b"five!")));
        assert_eq!(send(gateway.traffic, post.unwrap()).await.status, 200);
    }
    assert_eq!((service.requests(), service.bytes()), (40, 200));
    assert!(gateway.shown("retries_total") > 0);
}

#[tokio::test]
async fn nothing_follows_a_response() {
    const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";
    const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
    let busy = Scripted::new(|_| Act::Say(BUSY)).await;
    let gateway = over(&two(busy.address, busy.address, "")).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!((reply.status, &reply.body[..]), (503, &b"busy"[..]));
    assert_eq!(busy.arrived().len(), 1);

    let half = Scripted::new(|_| Act::SayAndClose(HALF)).await;
    let gateway = over(&file(PLAN, "", half.address)).await;
    let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n\r\n");
    let seen = crate::support::raw(gateway.traffic, head.as_bytes()).await;
    assert!(seen.starts_with("HTTP/1.1 200") && seen.ends_with("half"), "{seen}");
    assert_eq!(half.arrived().len(), 1);

    let garbage = Scripted::new(|_| Act::SayAndClose("what?\r\n\r\n")).await;
    let gateway = over(&file(PLAN, "", garbage.address)).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!((reply.status, reply.header("x-weir-source")), (502, "edge"));
    assert_eq!(garbage.arrived().len(), 1, "what answers like that is not asked again");
}

#[tokio::test]
async fn attempts_are_bounded_and_can_be_none() {
    for attempts in [0, 1, 3] {
        let broken = Scripted::new(|_| Act::Close).await;
        let lines = format!("retry = {{ attempts = {attempts} }}\n");
        let gateway = over(&(file(PLAN, "", broken.address) + &lines)).await;
        assert_eq!(call(&gateway, "GET", 0).await.status, 502);
        assert_eq!(broken.arrived().len(), 1 + attempts);
    }
}

#[tokio::test]
async fn f35_an_upstream_that_fails_everything_is_sent_a_fifth_more_and_no_more() {
    let broken = Scripted::new(|_| Act::Close).await;
    let lines = "retry = { budget = 0.2, per_second_min = 0 }\n";
    let gateway = over(&(file(PLAN, "", broken.address) + lines)).await;
    assert_eq!(tally(&calls(&gateway, "GET", 0..200).await), [(502, 200)]);
    assert_eq!(broken.arrived().len(), 240);
    assert_eq!(gateway.shown("retries_total"), 40);
    assert_eq!(gateway.shown("retries_over_budget_total"), 160);
}

#[tokio::test]
async fn a_retry_is_one_request_in_every_count() {
    let flaky = Scripted::new(|arrived| if arrived.nth == 0 { Act::Say(OK) } else { Act::Close });
    let flaky = flaky.await;
    let gateway = over(&file(PLAN, "", flaky.address)).await;
    assert_eq!(tally(&calls(&gateway, "GET", 0..20).await), [(200, 20)]);
    assert_eq!(flaky.arrived().len(), 39);
    let shown = gateway.context.metrics.render();
    for line in [
        "weir_gateway_requests_total{route=\"up\",class=\"2xx\"} 20\n",
        "weir_gateway_requests_total{route=\"up\",class=\"5xx\"} 0\n",
        "weir_gateway_added_seconds_count 20\n",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    let told = get(gateway.traffic, "/", &[("x-api-key", KEY)]).await;
    assert!(told.header("ratelimit").starts_with("\"burst\";r=9979;"), "{:?}", told.headers);
}

#[tokio::test]
async fn over_http2_a_lost_connection_is_the_same_and_the_callers_host_stays() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap()) + "protocol = \"http2\"\n";
    let losing = std::sync::Arc::new(AtomicBool::new(true));
    let loses = std::sync::Arc::clone(&losing);
    let service = daemon::tasks::spawn("http2 service", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if loses.swap(false, Ordering::SeqCst) {
                // Preface, settings and the request arrive; then it is gone.
                let mut some = [0; 4_096];
                let _read = tokio::io::AsyncReadExt::read(&mut stream, &mut some).await;
                continue;
            }
            let echo = service_fn(async |request: Request<Incoming>| {
                let body = Full::new(Bytes::from(request.uri().to_string()));
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            });
            let engine = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            daemon::tasks::spawn("http2", engine.serve_connection(TokioIo::new(stream), echo));
        }
    });
    let gateway = over(&text).await;
    let reply = get(gateway.traffic, "/a", &[("x-api-key", KEY)]).await;
    assert_eq!((reply.status, &reply.body[..]), (200, &b"http://api.test/a"[..]));
    assert_eq!(gateway.shown("retries_total"), 1);
    service.abort();

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", listener.local_addr().unwrap()) + "protocol = \"http2\"\n";
    let accepted = std::sync::Arc::new(AtomicUsize::new(0));
    let counting = std::sync::Arc::clone(&accepted);
    let losing = daemon::tasks::spawn("losing service", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counting.fetch_add(1, Ordering::SeqCst);
            // Everything that is sent arrives, at least up to the request, which waits for nothing.
            let (mut seen, mut some) = (Vec::new(), [0; 4_096]);
            while seen.len() < 100 {
                match tokio::io::AsyncReadExt::read(&mut stream, &mut some).await {
                    Ok(count) if count > 0 => seen.extend_from_slice(&some[..count]),
                    Ok(_) | Err(_) => break,
                }
            }
        }
    });
    let gateway = over(&text).await;
    assert_eq!(call(&gateway, "POST", 0).await.status, 502);
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "sent once");
    losing.abort();
}

#[tokio::test]
async fn over_http2_too_a_connection_is_not_used_again_after_too_long_a_pause() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lines = "protocol = \"http2\"\nkeep_idle = \"200ms\"\n";
    let text = file(PLAN, "", listener.local_addr().unwrap()) + lines;
    let (accepted, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counting, waiting) = (Arc::clone(&accepted), Arc::clone(&go));
    let service = daemon::tasks::spawn("http2 service", async move {
        while let Ok((stream, _)) = listener.accept().await {
            counting.fetch_add(1, Ordering::SeqCst);
            let waiting = Arc::clone(&waiting);
            let answer = service_fn(move |request: Request<Incoming>| {
                let waiting = Arc::clone(&waiting);
                async move {
                    if request.uri().path() == "/held" {
                        waiting.notified().await;
                    }
                    Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default()))
                }
            });
            let engine = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            daemon::tasks::spawn("http2", engine.serve_connection(TokioIo::new(stream), answer));
        }
    });
    let gateway = over(&text).await;
    let pause = async || tokio::time::sleep(Duration::from_millis(400)).await;
    let held = get(gateway.traffic, "/held", &[("x-api-key", KEY)]);
    let others = async {
        pause().await;
        assert_eq!(call(&gateway, "GET", 0).await.status, 200);
        assert_eq!(accepted.load(Ordering::SeqCst), 1, "one that is in use is not idle");
        go.notify_one();
    };
    let (held, ()) = tokio::join!(held, others);
    assert_eq!(held.status, 200);
    pause().await;
    assert_eq!(call(&gateway, "GET", 1).await.status, 200);
    assert_eq!(accepted.load(Ordering::SeqCst), 2, "it was idle for too long");
    service.abort();
}

/// A service over HTTP/2 that answers, or resets each stream.
async fn over_http2(answers: bool) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    daemon::tasks::spawn("http2 service", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = service_fn(move |_request: Request<Incoming>| {
                let answer = http::Response::new(Full::<Bytes>::default());
                let answer = answers.then_some(answer).ok_or(std::io::Error::other("no answer"));
                std::future::ready(answer)
            });
            let engine = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            daemon::tasks::spawn("http2", engine.serve_connection(TokioIo::new(stream), answer));
        }
    });
    address
}

#[tokio::test]
async fn over_http2_an_endpoint_that_resets_every_stream_is_set_aside() {
    let (resetting, well) = (over_http2(false).await, over_http2(true).await);
    let lines = "protocol = \"http2\"\nretry = { attempts = 0 }\nbalance = \"round_robin\"\n\
        ejection = { consecutive = 3, for = \"1h\" }\n";
    let gateway = over(&two(resetting, well, lines)).await;
    assert_eq!(tally(&calls(&gateway, "POST", 0..20).await), [(200, 17), (502, 3)]);
    assert_eq!(gateway.shown("ejections_total"), 1);
}
