//! Endpoints that move: a name that points elsewhere is followed without a restart, and a resolver
//! that fails, says nothing or hangs changes nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edge::PolicySource;
use gateway::config::PolicyChoice;
use gateway::upstream::names::{Resolve, Resolving};
use gateway::{Evidently, Parts, file_policy};
use tokio::net::TcpListener;

use crate::support::service::text;
use crate::support::{Gateway, Service, eventually, file, parse, standing, tally};

const NAME: &str = "orders.test:1";
/// Nobody ever says anything about it.
const HANGS: &str = "hangs.test:1";

/// What a resolver says.
#[derive(Debug, Clone)]
enum Says {
    Addresses(Vec<SocketAddr>),
    Error,
    Nothing,
}

/// A resolver that says what it is told, and counts questions.
#[derive(Debug)]
struct Told {
    says: Mutex<Says>,
    asked: Mutex<u32>,
}

impl Told {
    fn new(address: SocketAddr) -> Arc<Told> {
        let says = Mutex::new(Says::Addresses(vec![address]));
        Arc::new(Told { says, asked: Mutex::new(0) })
    }

    fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }

    fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }
}

impl Resolve for Told {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        if name == HANGS {
            return Box::pin(std::future::pending());
        }
        assert_eq!(name, NAME);
        *self.asked.lock().unwrap() += 1;
        let says = self.says.lock().unwrap().clone();
        Box::pin(async move {
            match says {
                Says::Addresses(addresses) => Ok(addresses),
                Says::Error => Err(io::Error::other("told to fail")),
                Says::Nothing => std::future::pending().await,
            }
        })
    }
}

/// A gateway whose upstream is one name, asked for often.
async fn start(names: &Arc<Told>) -> Gateway {
    start_with(NAME, names).await
}

async fn start_with(endpoints: &str, names: &Arc<Told>) -> Gateway {
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let text = file("unlimited = true", "", nobody).replace("127.0.0.1:1", endpoints);
    start_text(&text, Arc::clone(names) as Arc<dyn Resolve>).await
}

async fn start_text(text: &str, names: Arc<dyn Resolve>) -> Gateway {
    let config = parse(&format!("{text}resolve_every = \"20ms\"\n"));
    let PolicyChoice::File(policy) = &config.policy else { panic!("a file policy is meant") };
    let source = PolicySource::File(file_policy(policy, 7));
    let (clock, store) = standing();
    let evidence = Evidently(None);
    Gateway::with(config, Parts { store, leases: false, clock, source, evidence, names }).await
}

/// Two services at one port of two addresses.
async fn moved() -> (Service, Service) {
    for _ in 0..20 {
        let from = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = from.local_addr().unwrap().port();
        if let Ok(to) = TcpListener::bind(("127.0.0.3", port)).await {
            let from = Service::on(from, |_| text(200, "two"));
            return (from, Service::on(to, |_| text(200, "three")));
        }
    }
    panic!("no port is free at both addresses");
}

#[tokio::test]
async fn c21_a_name_that_points_elsewhere_is_followed_without_a_restart() {
    let (two, three) = moved().await;
    let names = Told::new(two.address);
    let gateway = start(&names).await;
    assert!(gateway.calls(20).await.iter().all(|reply| reply.body == "two"));
    names.say(Says::Addresses(vec![three.address]));
    // Connections to the old address are there, and well; they are not used any more either.
    eventually("the name is followed", async || gateway.calls(1).await[0].body == "three").await;
    assert!(gateway.calls(20).await.iter().all(|reply| reply.body == "three"));
    let arrived = two.requests();
    drop(two);
    assert!(gateway.calls(20).await.iter().all(|reply| reply.body == "three"));
    assert!(three.requests() >= 41 && arrived >= 20);
    assert_eq!(gateway.shown("endpoints"), 1);
}

#[tokio::test]
async fn c21_after_the_old_address_is_gone_errors_end_when_the_name_is_followed() {
    let (two, three) = moved().await;
    let names = Told::new(two.address);
    let gateway = start(&names).await;
    assert_eq!(gateway.calls(1).await[0].body, "two");
    drop(two);
    eventually("the old one is gone", async || gateway.calls(1).await[0].status == 502).await;
    names.say(Says::Addresses(vec![three.address]));
    eventually("the new one answers", async || gateway.calls(1).await[0].status == 200).await;
    assert_eq!(tally(&gateway.calls(30).await), [(200, 30)]);
}

#[tokio::test]
async fn f46_a_resolver_that_fails_is_empty_or_hangs_leaves_the_last_good_addresses() {
    let (two, three) = moved().await;
    let names = Told::new(two.address);
    let gateway = start(&names).await;
    let mut unresolved = 0;
    for says in [Says::Error, Says::Addresses(Vec::new()), Says::Nothing] {
        let waits = matches!(says, Says::Nothing);
        names.say(says);
        let asked = names.asked();
        let more = if waits { 1 } else { 3 };
        eventually("it is asked", async || names.asked() >= asked + more).await;
        let replies = gateway.calls(20).await;
        assert!(replies.iter().all(|reply| reply.body == "two"));
        let now = gateway.shown("names_unresolved_total");
        assert!(waits || now > unresolved, "{unresolved} -> {now}");
        unresolved = now;
    }
    drop(three);
}

#[tokio::test]
async fn f46_a_gateway_starts_although_no_name_resolves_and_finds_them_later() {
    let service = Service::hello().await;
    let names = Told::new(service.address);
    names.say(Says::Error);
    let gateway = start(&names).await;
    let reply = &gateway.calls(1).await[0];
    assert_eq!((reply.status, reply.code().as_str()), (503, "upstream_unavailable"));
    assert_eq!(reply.header("x-weir-source"), "edge");
    names.say(Says::Addresses(vec![service.address]));
    eventually("it is found", async || gateway.calls(1).await[0].status == 200).await;
}

#[tokio::test]
async fn f46_a_name_that_hangs_keeps_no_other_from_being_found_and_followed() {
    let (two, three) = moved().await;
    let names = Told::new(two.address);
    let gateway = start_with(&format!("{HANGS}\", \"{NAME}"), &names).await;
    assert!(gateway.calls(20).await.iter().all(|reply| reply.body == "two"));
    names.say(Says::Addresses(vec![three.address]));
    eventually("the name is followed", async || gateway.calls(1).await[0].body == "three").await;
}

#[tokio::test]
async fn one_of_several_addresses_that_leaves_takes_nobody_with_it() {
    let (two, three) = moved().await;
    let names = Told::new(two.address);
    names.say(Says::Addresses(vec![three.address, two.address, three.address]));
    let gateway = start(&names).await;
    gateway.calls(40).await;
    assert!(two.requests() > 0 && three.requests() > 0, "both are used");
    assert_eq!(gateway.shown("endpoints"), 2);
    names.say(Says::Addresses(vec![three.address]));
    eventually("one has left", async || gateway.shown("endpoints") == 1).await;
    let before = two.requests();
    assert_eq!(tally(&gateway.calls(20).await), [(200, 20)]);
    assert_eq!(two.requests(), before);
}

#[test]
fn names_are_asked_again_every_five_seconds_unless_told_otherwise() {
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let config = parse(&file("unlimited = true", "", nobody));
    assert_eq!(config.upstreams[0].resolve_every, Duration::from_secs(5));
}

/// Two names that trade places.
#[derive(Debug)]
struct Pair(Mutex<[SocketAddr; 2]>);

impl Resolve for Pair {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        let address = self.0.lock().unwrap()[usize::from(name.starts_with("heavy"))];
        Box::pin(async move { Ok(vec![address]) })
    }
}

#[tokio::test]
async fn a_weight_goes_with_its_name() {
    let (one, two) = (Service::hello().await, Service::hello().await);
    let names = Arc::new(Pair(Mutex::new([one.address, two.address])));
    let endpoints = "{ address = \"light.test:1\", weight = 1 }, \
                     { address = \"heavy.test:1\", weight = 9 }";
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let text = file("unlimited = true", "", nobody).replace("\"127.0.0.1:1\"", endpoints);
    let text = text + "balance = \"round_robin\"\n";
    let gateway = start_text(&text, Arc::clone(&names) as Arc<dyn Resolve>).await;
    gateway.calls(20).await;
    assert_eq!((one.requests(), two.requests()), (2, 18));
    *names.0.lock().unwrap() = [two.address, one.address];
    eventually("the weights have traded places", async || {
        let before = one.requests();
        gateway.calls(20).await;
        one.requests() - before == 18
    })
    .await;
}
