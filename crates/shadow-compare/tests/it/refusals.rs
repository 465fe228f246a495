//! Who is refused what, and how it is told.

use wire::batch::TallyCell;
use wire::client::shadow::ShadowClient;
use wire::client::{Call, Client, ClientError, Method};
use wire::error::{ErrorBody, ErrorCode};
use wire::key::token_hash;

use crate::world::{
    Backend, CONTROL_TOKEN, GATEWAY_TOKEN, Gateway, Home, PATIENCE, Process, World, all_in_shadow,
    eventually, pairs,
};

async fn refusal(world: &World, token: Option<&str>, call: Call) -> ErrorBody {
    let client = Client::new(&world.door.base, token).unwrap();
    match client.send_raw(call).await {
        Err(ClientError::Refused(body)) => *body,
        other => panic!("not refused: {other:?}"),
    }
}

fn gate() -> Call {
    Call::post("/v1/gate", &wire::client::shadow::GateRequest { rollout: all_in_shadow(1) })
}

fn batches(body: &str) -> Call {
    Call::new(Method::POST, "/v1/batches").bytes(body.as_bytes().to_vec())
}

#[tokio::test]
async fn each_token_may_do_its_own_thing_only() {
    let world = World::start(&Backend::sqlite()).await;
    let reads = || {
        [
            gate(),
            Call::get("/v1/clients/top"),
            Call::get("/v1/requests/r1"),
            Call::get("/v1/usage?client=c_1"),
        ]
    };
    for (token, code) in [
        (None, ErrorCode::TokenMissing),
        (Some("weiro_other"), ErrorCode::TokenInvalid),
        (Some(GATEWAY_TOKEN), ErrorCode::RoleTooSmall),
    ] {
        for call in reads() {
            assert_eq!(refusal(&world, token, call).await.code, code);
        }
    }
    for (token, code) in [
        (None, ErrorCode::TokenMissing),
        (Some("weiro_other"), ErrorCode::TokenInvalid),
        (Some(CONTROL_TOKEN), ErrorCode::RoleTooSmall),
    ] {
        assert_eq!(refusal(&world, token, batches("{}")).await.code, code);
    }
    let open = Client::new(&world.door.base, None).unwrap();
    for path in ["/livez", "/readyz", "/metrics", "/buildz"] {
        open.send_raw(Call::get(path)).await.unwrap();
    }
    world.stop().await;
}

#[tokio::test]
async fn a_gateway_is_let_in_and_out_without_a_restart() {
    let world = World::start(&Backend::sqlite()).await;
    let newcomer = ShadowClient::new(&world.door.base, "weiro_gateway_2").unwrap();
    let batch = Gateway::new("boot-1").batch(Vec::new());
    assert!(newcomer.post_batch(&batch, PATIENCE).await.is_err());
    let hash = token_hash("weiro_gateway_2").to_hex();
    std::fs::write(world.home.gateways(), format!("# gateways\n\n{hash}\n")).unwrap();
    eventually("the new one is in", async || newcomer.post_batch(&batch, PATIENCE).await.is_ok())
        .await;
    assert!(world.door.gateway.post_batch(&batch, PATIENCE).await.is_err(), "the old one is out");
    world.stop().await;
}

#[tokio::test]
async fn a_wrong_batch_is_refused_whole_with_every_mistake() {
    let world = World::start(&Backend::sqlite()).await;
    let mut gateway = Gateway::new("boot-1");
    let sound = gateway.batch(vec![pairs("c_1", 10, 0)]);
    let mut wrong = sound.clone();
    wrong.seq = 0;
    wrong.cells.push(TallyCell { requests: 3, ..pairs("c_2", 9, 0) });
    let body = refusal(&world, Some(GATEWAY_TOKEN), Call::post("/v1/batches", &wrong)).await;
    let fields: Vec<_> = body.errors.iter().map(|mistake| mistake.field.as_str()).collect();
    assert_eq!((body.status, fields), (422, vec!["seq", "cells[1].requests", "cum_decisions"]));

    world.door.post(&sound).await;
    let mut back = gateway.batch(Vec::new());
    back.cum_decisions = 9;
    let body = refusal(&world, Some(GATEWAY_TOKEN), Call::post("/v1/batches", &back)).await;
    assert_eq!((body.status, body.code), (422, ErrorCode::InvalidValue));
    for (text, code) in [
        ("", ErrorCode::BadRequest),
        ("{", ErrorCode::BadRequest),
        ("[]", ErrorCode::BadRequest),
        ("{\"gateway\":\"g\",\"gateway\":\"h\"}", ErrorCode::BadRequest),
    ] {
        assert_eq!(refusal(&world, Some(GATEWAY_TOKEN), batches(text)).await.code, code, "{text}");
    }
    let seen = world.door.control.gate(&all_in_shadow(7)).await.unwrap();
    assert_eq!((seen.pairs, seen.lost), (10, 0), "nothing of a refused batch is counted");
    world.stop().await;
}

#[tokio::test]
async fn unknown_fields_of_newer_gateways_are_ignored() {
    let world = World::start(&Backend::sqlite()).await;
    let batch = Gateway::new("boot-1").batch(vec![pairs("c_1", 10, 0)]);
    let mut newer = serde_json::to_value(&batch).unwrap();
    newer["fingerprint"] = "x".into();
    newer["cells"][0]["peak_1s"] = 4.into();
    let client = Client::new(&world.door.base, Some(GATEWAY_TOKEN)).unwrap();
    client.send_raw(Call::post("/v1/batches", &newer)).await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn bodies_are_bounded() {
    let world = World::start(&Backend::sqlite()).await;
    let question = Call::new(Method::POST, "/v1/gate").bytes(vec![b' '; (16 << 20) + 1]);
    let body = refusal(&world, Some(CONTROL_TOKEN), question).await;
    assert_eq!(body.code, ErrorCode::BodyTooLarge);
    let just_fits = Call::new(Method::POST, "/v1/batches").bytes(vec![b' '; 32 << 20]);
    let body = refusal(&world, Some(GATEWAY_TOKEN), just_fits).await;
    assert_eq!(body.code, ErrorCode::BadRequest, "read whole, and then not JSON");
    world.stop().await;
}

#[tokio::test]
async fn wrong_questions_are_told_with_every_mistake() {
    let world = World::start(&Backend::sqlite()).await;
    let ask = async |path: &str| refusal(&world, Some(CONTROL_TOKEN), Call::get(path)).await;
    let body = ask("/v1/clients/top?by=colour&n=0&window_minutes=x&frm=1").await;
    let fields: Vec<_> = body.errors.iter().map(|mistake| mistake.field.as_str()).collect();
    assert_eq!(fields, ["by", "n", "window_minutes", "frm"]);
    assert_eq!(ask("/v1/usage").await.errors[0].field, "client");
    assert_eq!(ask("/v1/nothing").await.code, ErrorCode::NotFound);
    assert_eq!(ask("/v1/gate").await.code, ErrorCode::MethodNotAllowed);
    let body = refusal(&world, Some(CONTROL_TOKEN), Call::post("/v1/gate", &"x")).await;
    assert_eq!(body.code, ErrorCode::BadRequest);
    world.stop().await;
}

#[test]
fn wrong_settings_are_told_all_at_once() {
    let home = Home::new();
    std::fs::write(home.gateways(), "abc\n# fine\nxyz\n").unwrap();
    std::fs::write(home.control(), "  \n").unwrap();
    let ended = Process::command(&home, "mysql://db").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(64), "{said}");
    for place in ["--database", "line 1 is not", "line 3 is not", "--control-token-file"] {
        assert!(said.contains(place), "{place} in: {said}");
    }
}
