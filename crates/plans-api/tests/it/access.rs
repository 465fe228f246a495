//! Who may call what: the table is tried as a whole, so a route without a guard fails here.

use plans_api::{Needs, ROUTES};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::client::plans::Role;
use wire::client::{Call, Method};

use crate::api::{Api, refusal, told};

fn call(method: &str, path: &str) -> Call {
    let path = path.replace("{name}", "none").replace("{id}", "none");
    let call = Call::new(method.parse::<Method>().unwrap(), path);
    if method == "GET" { call } else { call.json(&json!({})) }
}

#[tokio::test]
async fn every_route_refuses_no_token_a_wrong_one_and_a_role_that_is_too_small() {
    let api = Api::sqlite().await;
    let by_role = [
        (Role::Viewer, &api.viewer),
        (Role::Operator, &api.operator),
        (Role::Admin, &api.admin),
        (Role::Gateway, &api.gateway),
        (Role::Service, &api.service),
    ];
    for route in ROUTES {
        let name = format!("{} {}", route.method, route.path);
        let nobody = api.raw(None).send::<Value>(call(route.method, route.path)).await;
        assert_eq!(told(nobody), (401, "token_missing"), "{name}");
        let mut refused = 0;
        for (role, client) in by_role {
            let answer = client.http().send::<Value>(call(route.method, route.path)).await;
            if route.needs.lets_in(role) {
                let let_in = answer.as_ref().err().and_then(|error| error.refused());
                let status = let_in.map_or(200, |body| body.status);
                assert!(![401, 403].contains(&status), "{name} shuts out {role:?}");
            } else {
                assert_eq!(told(answer), (403, "role_too_small"), "{name} lets {role:?} in");
                refused += 1;
            }
        }
        assert!(refused > 0, "{name} is open to everybody");
    }
    api.stop().await;
}

#[tokio::test]
async fn the_table_gives_programs_nothing_but_their_own_routes() {
    let of = |role: Role| {
        let routes = ROUTES.iter().filter(|route| route.needs.lets_in(role));
        routes.map(|route| route.path).collect::<Vec<_>>()
    };
    assert_eq!(of(Role::Gateway), ["/v1/keys:lookup", "/v1/feed", "/v1/snapshot"]);
    assert_eq!(of(Role::Service), ["/v1/safety-limits"]);
    assert_eq!(of(Role::Bootstrap), ["/v1/tokens"]);
    // A walk along the audit is asked for with a body, and changes nothing.
    let asks = |path: &str| path == "/v1/audit:verify";
    for route in ROUTES.iter().filter(|route| route.method != "GET" && !asks(route.path)) {
        assert!(!route.needs.lets_in(Role::Viewer), "a viewer changes nothing: {}", route.path);
    }
    let admins = ROUTES.iter().filter(|route| route.path.starts_with("/v1/tokens"));
    assert!(admins.clone().count() == 3);
    for route in admins {
        assert!(matches!(route.needs, Needs::Admin | Needs::AdminOrBootstrap), "{}", route.path);
    }
}

#[tokio::test]
async fn ten_failed_tokens_close_the_door_for_a_while() {
    let api = Api::sqlite().await;
    let plans = || Call::get("/v1/plans");
    let known = api.bootstrap_token.rsplit_once('_').unwrap().0;
    let mut told_to_wait = None;
    // A minute may end meanwhile, so more than ten may be let through to the check.
    for attempt in 0..25 {
        let guess = format!("{known}_{attempt}");
        let body = refusal(api.raw(Some(&guess)).send::<Value>(plans()).await);
        match body.status {
            401 => assert_eq!(body.code.name(), "token_invalid"),
            _ => {
                told_to_wait = Some((attempt, body));
                break;
            }
        }
    }
    let (attempt, body) = told_to_wait.expect("somebody who guesses is stopped");
    assert!(attempt >= 10, "stopped after {attempt}");
    assert_eq!((body.status, body.code.name()), (429, "too_many_attempts"));
    assert!(body.request_id.is_some_and(|id| !id.is_empty()));
    api.stop().await;
}

#[tokio::test]
async fn whoever_fails_does_not_lock_out_tokens_that_have_opened_from_the_same_address() {
    let api = Api::sqlite().await;
    let plans = || Call::get("/v1/plans");
    api.admin.http().send::<Value>(plans()).await.unwrap();
    let guesser = api.raw(Some("weiro_0000000000_guessed"));
    let mut closed = false;
    // A minute may end meanwhile.
    for _ in 0..100 {
        let guessed = refusal(guesser.send::<Value>(plans()).await);
        closed |= guessed.code.name() == "too_many_attempts";
        api.admin
            .http()
            .send::<Value>(plans())
            .await
            .expect("a token that is in use goes on opening");
    }
    assert!(closed, "whoever guesses is stopped");
    api.stop().await;
}

#[tokio::test]
async fn a_verb_takes_post_alone_and_what_it_is_a_verb_of_all_but_post() {
    let api = Api::sqlite().await;
    let token = api.admin.create_token("raw", Role::Admin, None, "test").await.unwrap().token;
    for (method, path, allow) in [
        ("GET", "/v1/keys/0000000000:revoke", "POST"),
        ("OPTIONS", "/v1/keys/0000000000%3Arevoke", "POST"),
        ("DELETE", "/v1/clients/acme:suspend", "POST"),
        ("POST", "/v1/clients/acme", "GET, PUT, DELETE, HEAD"),
        ("PATCH", "/v1/keys/0000000000", "GET, HEAD"),
        ("PUT", "/v1/keys:lookup", "POST"),
        ("POST", "/v1/audit", "GET, HEAD"),
        ("POST", "/v1/tokens/0000000000", ""),
    ] {
        let head = head_of(&api, &token, method, path).await;
        assert!(head.starts_with("HTTP/1.1 405 "), "{method} {path}: {head}");
        let told = head.lines().find_map(|line| line.strip_prefix("allow:")).map(str::trim);
        assert_eq!(told, Some(allow), "{method} {path}");
    }
    api.stop().await;
}

/// The head of an answer, as it comes.
async fn head_of(api: &Api, token: &str, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split("\r\n\r\n").next().unwrap().to_owned()
}
