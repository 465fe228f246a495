//! Tokens that open nothing any more, or never did, at every route. Each route is asked from an
//! address of its own: ten failures close the door for an address, and would hide the rest.

use std::net::Ipv4Addr;

use plans_api::ROUTES;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use wire::client::plans::{PlansClient, Role};

use crate::api::Api;
use crate::scenarios::until;

/// Head and body of an answer to a caller at `from`.
async fn asked(api: &Api, from: Ipv4Addr, token: &str, method: &str, path: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(api.address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// An admin's token that is past its end.
async fn expired(api: &Api) -> String {
    let now = api.admin.tokens().await.unwrap().iter().map(|token| token.created_at).max().unwrap();
    // A moment that is not over when it is checked, and soon after.
    let made = api.admin.create_token("brief", Role::Admin, Some(now + 3_000), "test").await;
    let token = made.unwrap().token;
    let client = PlansClient::new(&api.base(), Some(&token)).unwrap();
    until("the token ends", async || client.plans().await.is_err()).await;
    token
}

#[tokio::test]
async fn every_route_refuses_a_wrong_an_expired_and_a_revoked_token() {
    let api = Api::sqlite().await;
    let expired = expired(&api).await;
    let revoked = api.admin.create_token("gone", Role::Admin, None, "test").await.unwrap();
    api.admin.revoke_token(&revoked.object.id, "test").await.unwrap();
    // The id of a token that opens, and another secret.
    let alive = api.admin.create_token("alive", Role::Admin, None, "test").await.unwrap().token;
    let (id, secret) = alive.rsplit_once('_').unwrap();
    let reversed: String = secret.chars().rev().collect();
    let dead = [
        ("wrong", format!("{id}_{reversed}")),
        ("unknown", "weiro_0000000000_000000000000000000000000000".to_owned()),
        ("no token at all", "secret".to_owned()),
        ("expired", expired),
        ("revoked", revoked.token),
        ("used up", api.bootstrap_token.clone()),
    ];
    for (index, route) in ROUTES.iter().enumerate() {
        let from = Ipv4Addr::new(127, 0, 7, u8::try_from(index + 1).unwrap());
        let path = route.path.replace("{name}", "x").replace("{id}", "x");
        for (what, token) in &dead {
            let answer = asked(&api, from, token, route.method, &path).await;
            let fits = answer.starts_with("HTTP/1.1 401 ") && answer.contains("\"token_invalid\"");
            assert!(fits, "{what} at {} {path}: {answer}", route.method);
        }
        let answer = asked(&api, from, &alive, route.method, &path).await;
        assert!(!answer.starts_with("HTTP/1.1 401 "), "the right one is known: {answer}");
    }
    api.stop().await;
}
