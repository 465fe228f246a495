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
async fn every_route_lets_in_the_roles_of_the_table_and_no_other() {
    let api = Api::sqlite().await;
    let by_role = [
        (Role::Viewer, &api.viewer),
        (Role::Support, &api.support),
        (Role::Operator, &api.operator),
        (Role::Admin, &api.admin),
        (Role::Approver, &api.approver),
        (Role::Gateway, &api.gateway),
        (Role::Service, &api.service),
    ];
    assert_eq!(by_role.len() + 1, Role::ALL.len(), "the bootstrap token has its own test");
    for route in ROUTES {
        let name = format!("{} {}", route.method, route.path);
        let mut refused = 0;
        for (role, client) in by_role {
            let answer = client.http().send::<Value>(call(route.method, route.path)).await;
            if route.needs.lets_in(role) {
                let let_in = answer.as_ref().err().and_then(|error| error.refused());
                let status = let_in.map_or(200, |body| body.status);
                assert!(![401, 403, 405].contains(&status), "{name} shuts out {role:?}");
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
async fn every_route_refuses_a_token_that_is_missing_wrong_expired_or_revoked() {
    let api = Api::sqlite().await;
    let soon = crate::catalog::now() + 60_000;
    let mut ended = Vec::new();
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Bootstrap) {
        for ends in [Some(soon), None] {
            let made = api.admin.create_token("ending", role, ends, "test").await.unwrap();
            let client = api.raw(Some(&made.token));
            // Once let in it is listened to in whatever minute this is.
            let known = client.send::<Value>(Call::get("/v1/tokens")).await;
            assert!(known.err().is_none_or(|error| error.refused().unwrap().status == 403));
            if ends.is_none() {
                api.admin.revoke_token(&made.object.id, "test").await.unwrap();
            }
            ended.push((role, client));
        }
    }
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run("update operator_token set expires_at = 1 where expires_at = $1", [soon.into()])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    for route in ROUTES {
        let name = format!("{} {}", route.method, route.path);
        let send = async |client: &wire::client::Client| {
            told(client.send::<Value>(call(route.method, route.path)).await)
        };
        assert_eq!(send(&api.raw(None)).await, (401, "token_missing"), "{name}");
    }
    for route in ROUTES {
        let name = format!("{} {}", route.method, route.path);
        for (role, client) in &ended {
            let refused = told(client.send::<Value>(call(route.method, route.path)).await);
            assert_eq!(refused, (401, "token_invalid"), "{name} for an ended {role:?}");
        }
        let wrong = api.raw(Some("weiro_0000000000_wrong"));
        let refused = told(wrong.send::<Value>(call(route.method, route.path)).await);
        // By now this address has failed often enough.
        let either = [(401, "token_invalid"), (429, "too_many_attempts")];
        assert!(either.contains(&refused), "{name}: {refused:?}");
    }
    api.stop().await;
}

#[tokio::test]
async fn who_helps_clients_changes_no_terms_and_who_approves_changes_nothing_else() {
    let of = |role: Role| {
        // Walking along the audit only reads.
        let reads = |path| path == "/v1/audit:verify";
        let writes = ROUTES.iter().filter(|r| r.method != "GET" && !reads(r.path));
        let writes = writes.filter(|route| route.needs.lets_in(role));
        writes.map(|route| route.path).collect::<Vec<_>>()
    };
    let support = ["/v1/clients/{id}/limit:reset", "/v1/keys/{id}:rotate", "/v1/keys/{id}:disable"];
    assert_eq!(of(Role::Support), support);
    assert_eq!(of(Role::Approver), ["/v1/approvals/{id}:accept", "/v1/approvals/{id}:refuse"]);
    for (smaller, larger) in [
        (Role::Viewer, Role::Support),
        (Role::Support, Role::Operator),
        (Role::Operator, Role::Admin),
    ] {
        for route in ROUTES.iter().filter(|route| route.needs.lets_in(smaller)) {
            assert!(route.needs.lets_in(larger), "{larger:?} may all that {smaller:?} may");
        }
    }
}

#[tokio::test]
async fn the_use_of_a_token_is_noted_and_its_end_is_told() {
    let api = Api::sqlite().await;
    let before = crate::catalog::now();
    let made = api.admin.create_token("ci", Role::Viewer, None, "test").await.unwrap();
    let ends = made.object.expires_at.unwrap();
    let quarter = 90 * 86_400_000;
    assert!((before + quarter..=crate::catalog::now() + quarter).contains(&ends));
    assert_eq!((made.object.last_used_at, made.object.machine), (None, false));
    api.raw(Some(&made.token)).send::<Value>(Call::get("/v1/plans")).await.unwrap();
    let tokens = api.admin.tokens().await.unwrap();
    let token = tokens.iter().find(|token| token.id == made.object.id).unwrap();
    assert!(token.last_used_at.is_some_and(|at| before <= at && at <= crate::catalog::now()));
    api.stop().await;
}

#[tokio::test]
async fn the_table_gives_programs_nothing_but_their_own_routes() {
    let of = |role: Role| {
        let routes = ROUTES.iter().filter(|route| route.needs.lets_in(role));
        routes.map(|route| route.path).collect::<Vec<_>>()
    };
    assert_eq!(of(Role::Gateway), ["/v1/keys:lookup", "/v1/usage", "/v1/feed", "/v1/snapshot"]);
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
