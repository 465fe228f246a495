//! Which endpoint a request goes to: by weight and load, in turn, or by the client's name; and what
//! happens when all are full.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::support::scripted::{Act, OK, Scripted};
use crate::support::{Gateway, KEY, Service, eventually, file, get, key_table, tally};

const PLAN: &str = "unlimited = true";

async fn services(count: usize) -> Vec<Service> {
    let mut services = Vec::new();
    for _ in 0..count {
        services.push(Service::hello().await);
    }
    services
}

/// A file whose upstream has these endpoints, as they stand in the list, and more lines.
fn over(endpoints: &[String], lines: &str) -> String {
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    file(PLAN, "", nobody).replace("\"127.0.0.1:1\"", &endpoints.join(", ")) + lines
}

fn plain(services: &[Service]) -> Vec<String> {
    services.iter().map(|service| format!("\"{}\"", service.address)).collect()
}

fn weighted(services: &[Service], weights: &[u64]) -> Vec<String> {
    let entry = |(service, weight): (&Service, &u64)| {
        format!("{{ address = \"{}\", weight = {weight} }}", service.address)
    };
    services.iter().zip(weights).map(entry).collect()
}

fn counts(services: &[Service]) -> Vec<u64> {
    services.iter().map(Service::requests).collect()
}

#[tokio::test]
async fn in_turn_every_endpoint_gets_exactly_its_weight() {
    let services = services(3).await;
    let text = over(&weighted(&services, &[2, 1, 5]), "balance = \"round_robin\"\n");
    // The turn is one for all workers.
    let gateway = Gateway::start(&text.replace("workers = 1", "workers = 2")).await;
    assert_eq!(tally(&gateway.calls(80).await), [(200, 80)]);
    assert_eq!(counts(&services), [20, 10, 50]);
}

#[tokio::test]
async fn by_load_idle_endpoints_are_used_by_weight() {
    let services = services(2).await;
    let gateway = Gateway::start(&over(&weighted(&services, &[9, 1]), "")).await;
    assert_eq!(tally(&gateway.calls(300).await), [(200, 300)]);
    // 30 would be fair; five standard deviations to each side.
    assert!((4..=56).contains(&services[1].requests()), "{:?}", counts(&services));
}

/// Calls of ten clients, some each; for every client the endpoint that answered all of them.
async fn homes(gateway: &Gateway, services: &[Service]) -> Vec<usize> {
    let mut homes = Vec::new();
    for client in 0..10 {
        let before = counts(services);
        for key in ["first", "second"] {
            let key = format!("{key}-{client}");
            let reply = get(gateway.traffic, "/", &[("x-api-key", &key)]).await;
            assert_eq!(reply.status, 200);
        }
        let grown = counts(services).into_iter().zip(before).map(|(now, before)| now - before);
        let grown: Vec<u64> = grown.collect();
        let home = grown.iter().position(|count| *count == 2);
        homes.push(home.unwrap_or_else(|| panic!("one for both of its keys: {grown:?}")));
    }
    homes
}

#[tokio::test]
async fn a_client_has_one_endpoint_for_all_its_keys_and_only_the_leaver_moves_its_clients() {
    let services = services(4).await;
    let mut lines = "balance = { hash = \"key\" }\n".to_owned();
    for client in 0..10 {
        lines += &format!("[client.c{client}]\nplan = \"pro\"\n");
        for key in ["first", "second"] {
            let id = format!("{key}{client}");
            lines += &key_table(&id, &format!("c{client}"), &format!("{key}-{client}"));
        }
    }
    let endpoints = plain(&services);
    let gateway = Gateway::start(&over(&endpoints, &lines)).await;
    let before = homes(&gateway, &services).await;
    assert_eq!(homes(&gateway, &services).await, before, "they stay");
    let used =
        |homes: &[usize]| homes.iter().copied().collect::<std::collections::BTreeSet<_>>().len();
    assert!(used(&before) > 1, "{before:?}");
    // A gateway that does not know one of them sends the others' clients where this one does.
    let leaver = before[0];
    let mut fewer = endpoints;
    fewer.remove(leaver);
    let other = Gateway::start(&over(&fewer, &lines)).await;
    for (before, after) in before.iter().zip(homes(&other, &services).await) {
        assert!(*before == after || (*before == leaver && after != leaver), "{before} -> {after}");
    }
}

#[tokio::test]
async fn a_header_may_be_the_key_and_who_has_none_goes_by_load() {
    let services = services(3).await;
    let lines = "balance = { hash = \"header\", name = \"x-cart\" }\n";
    let gateway = Gateway::start(&over(&plain(&services), lines)).await;
    for _ in 0..30 {
        let headers = [("x-api-key", KEY), ("x-cart", "apples")];
        assert_eq!(get(gateway.traffic, "/", &headers).await.status, 200);
    }
    let mut with = counts(&services);
    with.sort_unstable();
    assert_eq!(with, [0, 0, 30]);
    gateway.calls(60).await;
    assert!(counts(&services).iter().all(|count| *count > 0));
}

#[tokio::test]
async fn a_clients_many_requests_at_once_spill_over_instead_of_piling_up() {
    let gate = Arc::new(Notify::new());
    let mut services = Vec::new();
    for _ in 0..2 {
        let gate = Arc::clone(&gate);
        services.push(Scripted::new(move |_| Act::SayAfter(Arc::clone(&gate), OK)).await);
    }
    let endpoints: Vec<String> =
        services.iter().map(|service| format!("\"{}\"", service.address)).collect();
    let gateway = Gateway::start(&over(&endpoints, "balance = { hash = \"key\" }\n")).await;
    let traffic = gateway.traffic;
    let call = || async move { get(traffic, "/", &[("x-api-key", KEY)]).await.status };
    let held: Vec<_> = (0..20).map(|_| daemon::tasks::spawn("held", call())).collect();
    let out = || services.iter().map(|service| service.arrived().len()).collect::<Vec<_>>();
    eventually("all have arrived", async || out().iter().sum::<usize>() == 20).await;
    // 1.25 times the half of twenty, rounded up.
    assert!(out().iter().all(|count| (7..=13).contains(count)), "{:?}", out());
    gate.notify_waiters();
    for call in held {
        assert_eq!(call.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn when_all_are_full_some_wait_a_little_and_the_rest_is_told() {
    let gate = Arc::new(Notify::new());
    let opens = Arc::clone(&gate);
    let service = Scripted::new(move |_| Act::SayAfter(Arc::clone(&opens), OK)).await;
    let endpoints = [format!("\"{}\"", service.address)];
    let lines = "max_connections = 1\nmax_pending = 1\nconnect_timeout = \"10s\"\n";
    let gateway = Gateway::start(&over(&endpoints, lines)).await;
    let traffic = gateway.traffic;
    let call = || async move { get(traffic, "/", &[("x-api-key", KEY)]).await };
    let held = daemon::tasks::spawn("held", call());
    eventually("it has arrived", async || service.arrived().len() == 1).await;
    // Of two more one waits and one is told at once.
    let mut more = [daemon::tasks::spawn("one", call()), daemon::tasks::spawn("two", call())];
    let [one, two] = &mut more;
    let (told, waiting) = tokio::select! {
        told = &mut *one => (told.unwrap(), two),
        told = &mut *two => (told.unwrap(), one),
    };
    assert_eq!((told.status, told.code().as_str()), (503, "overloaded"));
    assert_eq!(told.header("x-weir-source"), "edge");
    assert_eq!(service.arrived().len(), 1, "the other one waits");
    gate.notify_one();
    assert_eq!(held.await.unwrap().status, 200);
    eventually("the waiting one has arrived", async || service.arrived().len() == 2).await;
    gate.notify_one();
    assert_eq!(waiting.await.unwrap().status, 200);
    let shown = gateway.context.metrics.render();
    let line = "weir_gateway_upstream_errors_total{upstream=\"up\",reason=\"overloaded\"} 1\n";
    assert!(shown.contains(line), "{shown}");
}

#[tokio::test]
async fn a_wait_for_room_ends_in_time() {
    let service = Scripted::new(|_| Act::Keep).await;
    let endpoints = [format!("\"{}\"", service.address)];
    let lines = "max_connections = 1\nconnect_timeout = \"100ms\"\n";
    let gateway = Gateway::start(&over(&endpoints, lines)).await;
    let traffic = gateway.traffic;
    let call = || async move { get(traffic, "/", &[("x-api-key", KEY)]).await };
    let held = daemon::tasks::spawn("held", call());
    eventually("it has arrived", async || service.arrived().len() == 1).await;
    let told = call().await;
    assert_eq!((told.status, told.code().as_str()), (503, "overloaded"));
    held.abort();
    eventually("the place of who left is free", async || {
        // Told again, or held itself.
        let told = tokio::time::timeout(Duration::from_secs(1), call()).await;
        told.is_err() && service.arrived().len() == 2
    })
    .await;
}

#[tokio::test]
async fn waiting_requests_of_all_workers_are_served_one_after_the_other() {
    let service = Scripted::new(|_| Act::Say(OK)).await;
    let endpoints = [format!("\"{}\"", service.address)];
    let lines = "max_connections = 1\nconnect_timeout = \"10s\"\n";
    let text = over(&endpoints, lines).replace("workers = 1", "workers = 3");
    let gateway = Gateway::start(&text).await;
    let traffic = gateway.traffic;
    let call = || async move { get(traffic, "/", &[("x-api-key", KEY)]).await.status };
    let all: Vec<_> = (0..100).map(|_| daemon::tasks::spawn("call", call())).collect();
    for call in all {
        assert_eq!(call.await.unwrap(), 200);
    }
    assert_eq!(service.arrived().len(), 100);
}

#[tokio::test]
async fn a_full_endpoint_is_passed_over_while_another_has_room() {
    let full = Scripted::new(|_| Act::Keep).await;
    let free = Service::hello().await;
    let endpoints = [format!("\"{}\"", full.address), format!("\"{}\"", free.address)];
    let lines = "max_connections = 1\nmax_pending = 0\nbalance = \"round_robin\"\n";
    let gateway = Gateway::start(&over(&endpoints, lines)).await;
    let traffic = gateway.traffic;
    let call = || async move { get(traffic, "/", &[("x-api-key", KEY)]).await.status };
    let mut held = Vec::new();
    eventually("one is held", async || {
        held.push(daemon::tasks::spawn("held", call()));
        tokio::task::yield_now().await;
        full.arrived().len() == 1
    })
    .await;
    eventually("those that are served have ended", async || {
        held.iter().filter(|call| !call.is_finished()).count() == 1
    })
    .await;
    assert_eq!(tally(&gateway.calls(20).await), [(200, 20)]);
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn who_waits_for_room_is_served_by_an_endpoint_that_returns() {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let fails_once = Scripted::new(move |_| {
        let mut calls = counted.lock().unwrap();
        *calls += 1;
        if *calls == 1 { Act::Close } else { Act::Say(OK) }
    })
    .await;
    let full = Scripted::new(|_| Act::Keep).await;
    let endpoints = [format!("\"{}\"", fails_once.address), format!("\"{}\"", full.address)];
    let lines = "max_connections = 1\nconnect_timeout = \"5s\"\nbalance = \"round_robin\"\n\
                 retry = { attempts = 0 }\n\
                 ejection = { consecutive = 1, for = \"500ms\", max_share = 1.0 }\n";
    let gateway = Gateway::start(&over(&endpoints, lines)).await;
    let traffic = gateway.traffic;
    let call = || async move { get(traffic, "/", &[("x-api-key", KEY)]).await.status };
    let first = [daemon::tasks::spawn("one", call()), daemon::tasks::spawn("two", call())];
    eventually("one fails and one is held", async || {
        gateway.shown("ejections_total") == 1 && full.arrived().len() == 1
    })
    .await;
    assert_eq!(call().await, 200, "it waits until the first one is back");
    first.iter().for_each(tokio::task::JoinHandle::abort);
}
