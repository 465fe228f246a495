//! Endpoints that are away: what is told, what is done when none is well, and how they come back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;

use crate::support::program::Program;
use crate::support::service::text;
use crate::support::{Gateway, KEY, Service, eventually, file, get, standing, tally};

const PLAN: &str = "unlimited = true";

/// What services answer with, by their place.
const NAMES: [&str; 3] = ["zero", "one", "two"];

/// Services that all say 503, everywhere, until they are well.
async fn patients(count: usize) -> (Arc<AtomicBool>, Vec<Service>) {
    let well = Arc::new(AtomicBool::new(false));
    let mut services = Vec::new();
    for name in NAMES.into_iter().take(count) {
        let well = Arc::clone(&well);
        let answer = move |_head: &http::request::Parts| {
            if well.load(Ordering::SeqCst) { text(200, name) } else { text(503, "sick") }
        };
        services.push(Service::answering(answer).await);
    }
    (well, services)
}

fn over(services: &[&Service], lines: &str) -> String {
    let first: SocketAddr = services[0].address;
    let all: Vec<String> =
        services.iter().map(|service| format!("\"{}\"", service.address)).collect();
    file(PLAN, "", first).replace(&format!("\"{first}\""), &all.join(", ")) + lines
}

async fn named(name: &'static str) -> Service {
    Service::answering(move |_| text(200, name)).await
}

/// How many of `count` calls each place answers; all have to be answered with 200.
async fn shares(gateway: &Gateway, count: usize) -> [usize; 3] {
    let replies = gateway.calls(count).await;
    assert_eq!(tally(&replies), [(200, count)]);
    NAMES.map(|name| replies.iter().filter(|reply| reply.body == name).count())
}

#[tokio::test]
async fn c22_when_all_are_unwell_all_are_used_it_shows_and_it_ends_when_they_are_well() {
    let (well, services) = patients(3).await;
    let refs: Vec<&Service> = services.iter().collect();
    // Probes and requests both find them unwell; requests would keep them away for a minute.
    let lines = "health = { every = \"50ms\", fall = 2, rise = 2 }\n\
        ejection = { consecutive = 3, for = \"60s\", max_share = 1.0 }\n\
        [[route]]\npath = \"/own\"\nupstream = \"full\"\n\
        [upstream.full]\nendpoints = [\"127.0.0.1:1\"]\nmax_pending = 0\nmax_connections = 1\n";
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_at = silent.local_addr().unwrap().to_string();
    let text = over(&refs, lines).replace("127.0.0.1:1\"", &format!("{silent_at}\""));
    let gateway = Gateway::start(&text).await;
    eventually("none is usable", async || {
        gateway.calls(1).await;
        gateway.shown("healthy_endpoints") == 0
    })
    .await;
    assert_eq!(gateway.shown("endpoints"), 3);
    let panics = gateway.shown("panic_total");
    let replies = gateway.calls(20).await;
    assert_eq!(tally(&replies), [(503, 20)], "still asked, and told what they say");
    assert_eq!(gateway.shown("panic_total"), panics + 20);
    assert!(replies.iter().all(|reply| reply.header("x-weir-source").is_empty()));

    let traffic = gateway.traffic;
    let own = || async move { get(traffic, "/own", &[("x-api-key", KEY)]).await };
    let held = daemon::tasks::spawn("held", own());
    let _held_there = silent.accept().await.unwrap();
    let ours = own().await;
    assert_eq!((ours.status, ours.header("x-weir-source")), (503, "edge"));
    held.abort();

    well.store(true, Ordering::SeqCst);
    eventually("all are usable", async || gateway.shown("healthy_endpoints") == 3).await;
    let panics = gateway.shown("panic_total");
    let shares = shares(&gateway, 300).await;
    assert!(shares.iter().all(|share| *share >= 60), "a fifth each: {shares:?}");
    assert_eq!(gateway.shown("panic_total"), panics, "the panic is over");
}

#[tokio::test]
async fn c22_without_probes_most_stay_and_who_was_set_aside_returns_by_itself() {
    let (well, services) = patients(3).await;
    let refs: Vec<&Service> = services.iter().collect();
    let lines = "ejection = { consecutive = 3, for = \"10s\" }\nslow_start = \"0s\"\n";
    let (clock, store) = standing();
    let gateway = Gateway::over(&over(&refs, lines), store, Arc::clone(&clock) as _).await;
    assert_eq!(tally(&gateway.calls(60).await), [(503, 60)]);
    assert_eq!(gateway.shown("ejections_total"), 1, "a third is away; two would be over half");
    assert_eq!((gateway.shown("healthy_endpoints"), gateway.shown("panic_total")), (2, 0));
    well.store(true, Ordering::SeqCst);
    let away = shares(&gateway, 50).await;
    assert_eq!(away.iter().filter(|share| **share == 0).count(), 1, "{away:?}");
    clock.advance(Duration::from_secs(10));
    let back = shares(&gateway, 300).await;
    assert!(back.iter().all(|share| *share >= 60), "a fifth each: {back:?}");
}

#[tokio::test]
async fn who_comes_back_begins_with_little_and_ends_with_its_whole_share() {
    let (well, mut services) = patients(1).await;
    services.push(named(NAMES[1]).await);
    let refs: Vec<&Service> = services.iter().collect();
    let lines = "ejection = { consecutive = 3, for = \"10s\" }\nslow_start = \"10s\"\n";
    let (clock, store) = standing();
    let gateway = Gateway::over(&over(&refs, lines), store, Arc::clone(&clock) as _).await;
    eventually("it is set aside", async || {
        gateway.calls(1).await;
        gateway.shown("ejections_total") == 1
    })
    .await;
    well.store(true, Ordering::SeqCst);
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(shares(&gateway, 300).await[0]);
        clock.advance(Duration::from_secs(10));
    }
    // Away; then a tenth beside a whole: 300 / 11; then half. Five standard deviations.
    assert_eq!(taken[0], 0);
    assert!((2..=53).contains(&taken[1]), "{taken:?}");
    assert!((106..=194).contains(&taken[2]), "{taken:?}");
}

#[tokio::test]
async fn f35_an_endpoint_that_flaps_is_set_aside_soon_and_tried_again_after_its_time() {
    let (well, mut services) = patients(1).await;
    services.extend([named(NAMES[1]).await, named(NAMES[2]).await]);
    let refs: Vec<&Service> = services.iter().collect();
    let (clock, store) = standing();
    let gateway =
        Gateway::over(&over(&refs, "slow_start = \"0s\"\n"), store, Arc::clone(&clock) as _).await;
    for round in 1..=3 {
        let replies = gateway.calls(100).await;
        let failed = replies.iter().filter(|reply| reply.status == 503).count();
        assert_eq!(failed, 5, "five in a row, then it is away");
        assert_eq!(gateway.shown("ejections_total"), round);
        assert_eq!(tally(&gateway.calls(50).await), [(200, 50)]);
        clock.advance(Duration::from_secs(10));
    }
    well.store(true, Ordering::SeqCst);
    let shares = shares(&gateway, 100).await;
    assert!(shares.iter().all(|share| *share > 10), "{shares:?}");
}

#[tokio::test]
async fn below_the_panic_share_all_are_used_above_it_the_well_ones() {
    for (share, panics) in [("0.4", true), ("0.3", false)] {
        let (_well, mut services) = patients(2).await;
        services.push(Service::hello().await);
        let refs: Vec<&Service> = services.iter().collect();
        let lines = format!(
            "health = {{ every = \"20ms\", fall = 2 }}\nejection = {{ consecutive = 0 }}\n\
             panic_share = {share}\n"
        );
        let gateway = Gateway::start(&over(&refs, &lines)).await;
        eventually("one of three is usable", async || gateway.shown("healthy_endpoints") == 1)
            .await;
        let before = gateway.shown("panic_total");
        let replies = gateway.calls(60).await;
        let well = replies.iter().filter(|reply| reply.status == 200).count();
        if panics {
            assert!((4..=36).contains(&well), "a third: {well}");
            assert_eq!(gateway.shown("panic_total"), before + 60);
        } else {
            assert_eq!((well, gateway.shown("panic_total")), (60, before));
        }
    }
}

#[tokio::test]
async fn the_log_says_why_an_endpoint_is_down() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (_well, sick) = patients(1).await;
    for (at, cause) in [(gone, "Connection refused"), (sick[0].address, "status 503")] {
        let health = "health = { every = \"20ms\", fall = 1 }\n";
        let program = Program::start(&(file(PLAN, "", at) + health)).await;
        program.logged("endpoint is down").await;
        let log = program.log();
        let line = log.lines().find(|line| line.contains("endpoint is down")).unwrap();
        assert!(line.contains(cause) && line.contains(&at.to_string()), "{line}");
    }
}
