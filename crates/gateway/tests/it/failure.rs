//! Without a store the plan's failure policy rules; without a service the caller hears it soon.

use std::sync::Arc;

use edge::limiter::Clock;
use edge::limiter::store::memory::MemoryStore;
use limiter_core::testkit::{Fault, FaultyStore, ManualClock};
use tokio::net::TcpListener;

use crate::support::scripted::{Act, OK, Scripted};
use crate::support::service::{nobody, text};
use crate::support::{
    Gateway, KEY, PATIENCE, Reply, Service, eventually, file, get, standing, tally,
};

/// Calls through a gateway whose store has just frozen, under a failure policy.
async fn frozen(policy: &str, calls: usize) -> (Vec<Reply>, u64) {
    let service = Service::hello().await;
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let store = Arc::new(FaultyStore::new(memory));
    let plan = format!("burst = {{ capacity = 10, refill = \"1/d\" }}\nfailure = \"{policy}\"");
    let gateway = Gateway::over(&file(&plan, "", service.address), Arc::clone(&store), clock).await;
    store.always(Fault::Hang);
    let whole = tokio::time::timeout(PATIENCE, gateway.calls(calls));
    (whole.await.expect("nobody hangs"), service.requests())
}

#[tokio::test]
async fn c15_a_frozen_store_means_the_plans_failure_policy() {
    let (replies, arrived) = frozen("open", 40).await;
    assert_eq!((tally(&replies), arrived), (vec![(200, 40)], 40));

    let (replies, arrived) = frozen("closed", 20).await;
    assert_eq!((tally(&replies), arrived), (vec![(503, 20)], 0));
    for reply in &replies {
        assert_eq!(reply.code(), "limiter_closed");
        assert!(reply.header("retry-after").parse::<u64>().unwrap() >= 1);
        assert_eq!(reply.header("x-weir-source"), "edge");
        assert_eq!(reply.header("ratelimit"), "", "a closed limiter knows no numbers");
    }

    let (replies, arrived) = frozen("local", 20).await;
    let admitted = replies.iter().filter(|reply| reply.status == 200).count();
    assert!((1..=5).contains(&admitted), "half of ten: {admitted}");
    assert_eq!(arrived, admitted as u64);
    assert!(replies.iter().all(|reply| matches!(reply.status, 200 | 429)), "no 5xx");

    let (replies, arrived) = frozen("coarse", 150).await;
    let admitted = replies.iter().filter(|reply| reply.status == 200).count();
    assert!((11..=100).contains(&admitted), "at most ten times ten: {admitted}");
    assert_eq!(arrived, admitted as u64);
}

#[tokio::test]
async fn a_routes_own_failure_policy_comes_before_the_plans() {
    let service = Service::hello().await;
    let (clock, _) = standing();
    let memory = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let store = Arc::new(FaultyStore::new(memory));
    store.always(Fault::Unreachable);
    let plan = "burst = { capacity = 10, refill = \"1/d\" }\nfailure = \"open\"";
    let route = "[[route]]\npath = \"/pay\"\nupstream = \"up\"\nfailure = \"closed\"\n";
    let gateway = Gateway::over(&file(plan, route, service.address), store, clock).await;
    let headers = [("x-api-key", KEY)];
    assert_eq!(get(gateway.traffic, "/", &headers).await.status, 200);
    assert_eq!(get(gateway.traffic, "/pay", &headers).await.status, 503);
    assert_eq!(service.requests(), 1);
}

#[tokio::test]
async fn a_gateway_starts_and_is_ready_without_its_store() {
    let service = Service::hello().await;
    let store = format!("[store]\nurl = \"redis://{}\"\n", nobody().await);
    let plan = "burst = { capacity = 10, refill = \"1/d\" }\nfailure = \"open\"";
    let gateway = Gateway::whole(&(file(plan, "", service.address) + &store)).await;
    assert_eq!(tally(&gateway.calls(20).await), [(200, 20)]);
    assert_eq!(get(gateway.operations, "/readyz", &[]).await.status, 200);
    let shown = get(gateway.operations, "/metrics", &[]).await.body;
    let shown = String::from_utf8(shown.to_vec()).unwrap();
    for line in [
        "weir_store_answering 0\n",
        "weir_store_calls_total 0\n",
        "weir_store_may_evict 0\n",
        "weir_store_evicted_total 0\n",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
}

const PLAN: &str = "burst = { capacity = 1000, refill = \"1000/s\" }";

#[tokio::test]
async fn a_service_that_is_down_is_a_502_at_once() {
    let gateway = Gateway::start(&file(PLAN, "", nobody().await)).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!((reply.status, reply.code().as_str()), (502, "upstream_failed"));
    assert_eq!(reply.header("x-weir-source"), "edge");
    assert_eq!(reply.json()["request_id"], reply.header("x-request-id"));
}

#[tokio::test]
async fn a_service_that_is_silent_is_a_504() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = file(PLAN, "", silent.local_addr().unwrap()) + "head_timeout = \"50ms\"\n";
    let gateway = Gateway::start(&text).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!((reply.status, reply.code().as_str()), (504, "upstream_timeout"));
}

#[tokio::test]
async fn what_could_not_be_sent_goes_to_another_endpoint() {
    let service = Service::hello().await;
    let endpoints = format!("\"{}\", \"{}\"", nobody().await, service.address);
    let text =
        file(PLAN, "", service.address).replace(&format!("\"{}\"", service.address), &endpoints);
    let gateway = Gateway::start(&text).await;
    assert_eq!(tally(&gateway.calls(40).await), [(200, 40)]);
    assert_eq!(service.requests(), 40);
}

#[tokio::test]
async fn connections_to_a_service_are_used_again_and_survive_its_restart() {
    let first = Service::hello().await;
    let address = first.address;
    let gateway = Gateway::start(&file(PLAN, "", address)).await;
    assert_eq!(tally(&gateway.calls(20).await), [(200, 20)]);
    drop(first);
    let mut listener = None;
    eventually("the port is free again", async || {
        listener = TcpListener::bind(address).await.ok();
        listener.is_some()
    })
    .await;
    let second = Service::on(listener.unwrap(), |_head| text(200, "second"));
    eventually("the new service answers", async || gateway.calls(1).await[0].body == "second")
        .await;
    assert_eq!(tally(&gateway.calls(20).await), [(200, 20)]);
    assert!(second.requests() >= 21);
}

#[tokio::test]
async fn probes_take_a_sick_endpoint_out_and_bring_it_back() {
    let well = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (sick, healthy) = (Arc::clone(&well), Service::hello().await);
    let patient = Service::answering(move |head| {
        let ok = sick.load(std::sync::atomic::Ordering::SeqCst);
        if head.uri.path() == "/healthz" && !ok { text(500, "sick") } else { text(200, "patient") }
    })
    .await;
    let endpoints = format!("\"{}\", \"{}\"", patient.address, healthy.address);
    let text = file(PLAN, "", healthy.address)
        .replace(&format!("\"{}\"", healthy.address), &endpoints)
        + "health = { every = \"20ms\", timeout = \"1s\", fall = 2, rise = 2 }\n";
    let gateway = Gateway::start(&text).await;
    let metrics = gateway.context.metrics.clone();
    let usable = |count: &str| {
        let line = format!("weir_gateway_upstream_healthy_endpoints{{upstream=\"up\"}} {count}\n");
        metrics.render().contains(&line)
    };
    eventually("one is down", async || usable("1")).await;
    assert!(gateway.calls(20).await.iter().all(|reply| reply.body == "hello"));
    well.store(true, std::sync::atomic::Ordering::SeqCst);
    eventually("it is up again", async || usable("2")).await;
    eventually("it is used again", async || gateway.calls(1).await[0].body == "patient").await;
}

#[tokio::test]
async fn an_endpoint_that_closes_after_each_probe_is_well() {
    let service = Scripted::new(|arrived| match arrived.head.starts_with("GET /healthz ") {
        true => Act::SayAndClose("HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"),
        false => Act::Say(OK),
    })
    .await;
    let text = file(PLAN, "", service.address)
        + "health = { every = \"5ms\", timeout = \"10s\", fall = 1, rise = 100 }\n";
    let gateway = Gateway::start(&text).await;
    eventually("it was probed often", async || service.arrived().len() > 20).await;
    assert_eq!(gateway.shown("healthy_endpoints"), 1);
    assert_eq!(gateway.shown("panic_total"), 0);
}

#[tokio::test]
async fn a_slow_upstream_does_not_slow_another_one() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = Service::hello().await;
    let route = "[[route]]\npath = \"/slow\"\nupstream = \"slow\"\n";
    let text = file(PLAN, route, service.address)
        + &format!(
            "[upstream.slow]\nendpoints = [\"{}\"]\nmax_connections = 3\n",
            silent.local_addr().unwrap()
        );
    let gateway = Gateway::start(&text).await;
    let traffic = gateway.traffic;
    let slow = || async move { get(traffic, "/slow", &[("x-api-key", KEY)]).await };
    let (mut held, mut arrived) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        held.push(daemon::tasks::spawn("held", slow()));
        arrived.push(silent.accept().await.unwrap());
    }
    let refused = slow().await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "overloaded"));
    assert_eq!(tally(&gateway.calls(20).await), [(200, 20)]);
    held.iter().for_each(tokio::task::JoinHandle::abort);
}
