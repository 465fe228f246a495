//! The kill switch: set by a hand or an operator it ends all refusals by limits, at once and until
//! its id clears it, and it opens nothing else.

use std::net::SocketAddr;
use std::path::PathBuf;

use http_body_util::Full;
use tempfile::TempDir;

use crate::support::caller::request;
use crate::support::program::Program;
use crate::support::{Gateway, KEY, PATIENCE, Reply, Service, eventually, file, get, send, tally};

/// One request, and then no other for a long time.
const ONE: &str = "burst = { capacity = 1, refill = \"1/d\" }";
const TOKEN: [(&str, &str); 1] = [("authorization", "Bearer ops-token")];

/// A folder with a file, a token, and perhaps a state folder.
struct World {
    folder: TempDir,
    service: Service,
}

impl World {
    async fn new(table: &str) -> World {
        let (folder, service) = (tempfile::tempdir().unwrap(), Service::hello().await);
        std::fs::write(folder.path().join("token"), "ops-token\n").unwrap();
        let world = World { folder, service };
        std::fs::write(world.page(), world.text(table)).unwrap();
        world
    }

    fn text(&self, table: &str) -> String {
        let token = self.folder.path().join("token");
        let operations = format!("[operations]\ntoken_file = {token:?}\n");
        let text = file(ONE, "", self.service.address) + table;
        text.replace("[operations]\n", &operations).replace("workers = 1", "workers = 3")
    }

    fn page(&self) -> PathBuf {
        self.folder.path().join("gateway.toml")
    }

    /// What a hand makes.
    fn latch(&self) -> PathBuf {
        self.folder.path().join("state/killswitch")
    }

    async fn gateway(&self) -> Gateway {
        Gateway::of_file(&self.page()).await
    }
}

const STATE: &str = "[standalone]\nstate_dir = \"state\"\n";

async fn post(to: SocketAddr, body: &str) -> Reply {
    let mut request = request("POST", "/killswitch", &TOKEN);
    *request.body_mut() = Full::from(body.to_owned());
    send(to, request).await
}

async fn delete(to: SocketAddr, id: &str) -> Reply {
    send(to, request("DELETE", &format!("/killswitch/{id}"), &TOKEN)).await
}

fn shows(gateway: &Gateway, line: &str) -> bool {
    gateway.context.metrics.render().lines().any(|shown| shown == line)
}

/// The number behind the beginning of a line.
fn number(gateway: &Gateway, start: &str) -> u64 {
    let text = gateway.context.metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("no {start}in {text}")).trim().parse().unwrap()
}

#[tokio::test]
async fn a_file_made_by_hand_ends_all_refusals_by_limits_and_no_others() {
    let world = World::new(STATE).await;
    let gateway = world.gateway().await;
    assert_eq!(tally(&gateway.calls(3).await), [(200, 1), (429, 2)]);
    assert!(shows(&gateway, "weir_gateway_kill_switch 0"));
    std::fs::write(world.latch(), "").unwrap();
    eventually("nobody is refused", async || gateway.calls(1).await[0].status == 200).await;
    let denied = "weir_decisions_total{outcome=\"deny\",basis=\"store\",phase=\"shadow\"}";
    let before = number(&gateway, denied);
    let replies = gateway.calls(30).await;
    assert_eq!(tally(&replies), [(200, 30)]);
    assert!(replies.iter().all(|reply| reply.header("ratelimit").is_empty()), "{replies:?}");
    assert_eq!(number(&gateway, denied) - before, 30, "all are decided about");
    assert!(shows(&gateway, "weir_gateway_kill_switch 1"));
    let arrived = world.service.requests();
    for (key, status) in [("another-key", 401), ("two words", 400)] {
        assert_eq!(get(gateway.traffic, "/", &[("x-api-key", key)]).await.status, status, "{key}");
    }
    assert_eq!(get(gateway.traffic, "/", &[]).await.code(), "key_missing");
    assert_eq!(world.service.requests(), arrived, "nothing of that reached the service");
    let ready = get(gateway.operations, "/readyz", &[]).await;
    assert_eq!((ready.status, &ready.json()["detail"]["kill_switch"]), (200, &true.into()));
}

#[tokio::test]
async fn an_operators_word_is_in_force_on_every_worker_before_it_is_answered() {
    let world = World::new(STATE).await;
    let gateway = world.gateway().await;
    assert_eq!(tally(&gateway.calls(9).await), [(200, 1), (429, 8)]);
    for _again in 0..5 {
        let set = post(gateway.operations, "").await;
        assert_eq!(set.status, 200, "{set:?}");
        let set = set.json();
        assert_eq!((&set["set"], &set["survives_restart"]), (&true.into(), &true.into()), "{set}");
        // Connections of their own, so that all workers take part.
        assert_eq!(tally(&gateway.calls(24).await), [(200, 24)]);
        let id = set["id"].as_str().unwrap();
        assert_eq!(delete(gateway.operations, id).await.status, 200);
        assert_eq!(tally(&gateway.calls(24).await), [(429, 24)]);
        assert!(!world.latch().exists());
    }
}

#[tokio::test]
async fn only_its_id_clears_it_and_what_is_set_is_shown() {
    let world = World::new(STATE).await;
    let gateway = world.gateway().await;
    let shown = async || get(gateway.operations, "/killswitch", &TOKEN).await.json();
    assert_eq!(shown().await, serde_json::json!({ "set": false }));
    assert_eq!(delete(gateway.operations, "ks-1").await.status, 404, "there is nothing to clear");
    let set = post(gateway.operations, "{\"id\": \"incident-7\"}").await.json();
    assert_eq!(set["id"], "incident-7");
    let again = post(gateway.operations, "{\"id\": \"incident-8\"}").await.json();
    assert_eq!(again["id"], "incident-7", "the first one stays");
    for (other, status) in [("incident-8", 404), ("", 404), ("incident-7%20", 404)] {
        assert_eq!(delete(gateway.operations, other).await.status, status, "{other}");
    }
    std::fs::remove_file(world.latch()).unwrap();
    eventually("the file is there again", async || world.latch().exists()).await;
    assert_eq!(shown().await["id"], "incident-7");
    let configz = get(gateway.operations, "/configz", &TOKEN).await.json();
    assert_eq!(configz["kill_switch"]["id"], "incident-7");
    assert_eq!(tally(&gateway.calls(5).await), [(200, 5)]);
    assert_eq!(delete(gateway.operations, "incident-7").await.json()["cleared"], "incident-7");
    assert_eq!(shown().await["set"], false);
}

#[tokio::test]
async fn it_is_closed_without_the_token_and_what_cannot_be_read_sets_nothing() {
    let world = World::new(STATE).await;
    let gateway = world.gateway().await;
    for (method, path) in
        [("GET", "/killswitch"), ("POST", "/killswitch"), ("DELETE", "/killswitch/x")]
    {
        for wrong in [&[][..], &[("authorization", "Bearer other")]] {
            let refused = send(gateway.operations, request(method, path, wrong)).await;
            assert_eq!(refused.status, 401, "{method}");
        }
        let there = send(gateway.traffic, request(method, path, &TOKEN)).await;
        assert_eq!((there.status, there.header("x-weir-source")), (401, "edge"), "{method}");
    }
    for body in ["{", "[]", "{\"id\": 7}", "{\"id\": \"Seven of them\"}", "{\"name\": \"x\"}"] {
        assert_eq!(post(gateway.operations, body).await.code(), "invalid_value", "{body}");
    }
    assert_eq!(post(gateway.operations, &" ".repeat(2_000)).await.status, 413);
    assert!(shows(&gateway, "weir_gateway_kill_switch 0"));
    assert_eq!(tally(&gateway.calls(3).await), [(200, 1), (429, 2)]);
}

#[tokio::test]
async fn a_restart_keeps_it_from_the_first_request_on() {
    let world = World::new(STATE).await;
    let mut gateway = world.gateway().await;
    let id = post(gateway.operations, "").await.json()["id"].clone();
    gateway.drain.start();
    let ended = tokio::time::timeout(PATIENCE, &mut gateway.ended).await;
    ended.expect("in time").unwrap().unwrap();
    let next = world.gateway().await;
    assert_eq!(tally(&next.calls(5).await), [(200, 5)]);
    let shown = get(next.operations, "/killswitch", &TOKEN).await.json();
    assert_eq!((&shown["id"], &shown["survives_restart"]), (&id, &true.into()));
    assert!(shows(&next, "weir_gateway_kill_switch 1"));
}

#[tokio::test]
async fn a_restart_in_place_keeps_it_and_either_process_hears_of_its_end() {
    let world = World::new("").await;
    let text = world.text(STATE).replace("grace = \"1ms\"", "grace = \"400ms\"");
    let mut program = Program::start(&text).await;
    let call =
        async |program: &Program| get(program.traffic, "/", &[("x-api-key", KEY)]).await.status;
    let set = post(program.operations, "{\"id\": \"incident-7\"}").await;
    assert_eq!(set.json()["survives_restart"], true);
    for _again in 0..2 {
        let old = program.succeed().await;
        // Whichever of the two answers: both are in shadow.
        for _ in 0..12 {
            assert_eq!(call(&program).await, 200);
        }
        program.ended(old).await;
    }
    assert_eq!(call(&program).await, 200);
    let shown = get(program.operations, "/killswitch", &TOKEN).await.json();
    assert_eq!(shown["id"], "incident-7");
    assert_eq!(delete(program.operations, "incident-7").await.status, 200);
    assert_eq!(call(&program).await, 429);
    let old = program.succeed().await;
    program.ended(old).await;
    let statuses = [call(&program).await, call(&program).await];
    assert_eq!(statuses, [200, 429], "a full bucket, and its end");
}

#[tokio::test]
async fn without_a_state_folder_it_works_and_says_that_a_restart_forgets_it() {
    let world = World::new("").await;
    let gateway = world.gateway().await;
    assert_eq!(tally(&gateway.calls(2).await), [(200, 1), (429, 1)]);
    let set = post(gateway.operations, "").await.json();
    assert_eq!(set["survives_restart"], false);
    assert!(set["why_not"].as_str().unwrap().contains("state_dir"), "{set}");
    assert_eq!(tally(&gateway.calls(6).await), [(200, 6)]);
    assert_eq!(delete(gateway.operations, set["id"].as_str().unwrap()).await.status, 200);
    assert_eq!(tally(&gateway.calls(3).await), [(429, 3)]);
}

#[tokio::test]
async fn a_gateway_that_drains_still_hears_of_it() {
    let world = World::new("").await;
    let text = world.text(STATE).replace("grace = \"1ms\"", "grace = \"60s\"");
    std::fs::write(world.page(), text).unwrap();
    let gateway = world.gateway().await;
    gateway.calls(1).await;
    gateway.drain.start();
    assert_eq!(tally(&gateway.calls(2).await), [(429, 2)]);
    std::fs::write(world.latch(), "now").unwrap();
    eventually("nobody is refused", async || gateway.calls(1).await[0].status == 200).await;
}

#[tokio::test]
async fn a_state_folder_that_cannot_be_is_told_at_the_start() {
    let world = World::new("").await;
    let state = world.folder.path().join("state");
    std::fs::write(&state, "a file").unwrap();
    let text = world.text(&format!("[standalone]\nstate_dir = {state:?}\n"));
    let (context, _) = daemon::Context::in_process(daemon::Drain::new());
    let ended = gateway::serve(crate::support::parse(&text), context).await;
    let told = format!("{ended:?}");
    assert!(told.contains("state_dir") && ended.is_err(), "{told}");
}
