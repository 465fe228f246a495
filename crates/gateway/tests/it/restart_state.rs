//! A gateway that has nobody to ask, over its lives: it begins with an exported file, goes on with
//! its own folder, and hands that to the process in its place.

use std::path::Path;

use edge::ControlPlane as _;
use serde_json::json;
use wire::bootstrap::Bootstrap;
use wire::key::KeyHash;
use wire::rollout::Phase;

use crate::support::plane::{Plane, found};
use crate::support::program::Program;
use crate::support::service::nobody;
use crate::support::{HEAD, KEY, Service, eventually, get, pepper};

/// What an export holds: the plan `pro`, the client `acme` and its key.
async fn exported() -> Bootstrap {
    let plan = json!({ "burst": { "capacity": 1_000_000, "refill": "1/s" } });
    let policy = Plane::new(&plan, Phase::Enforce).snapshot().await.expect("a fake answers");
    Bootstrap { written_at: 1_000, policy, keys: vec![found(KeyHash::of_key(KEY, &pepper()))] }
}

/// The id of the log of keys: each process that writes there begins one of its own.
fn log_id(state: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(state.join("keys.log")).ok()?;
    text.lines().next()?.strip_prefix("weir-keys/1 ")?.parse().ok()
}

#[tokio::test]
async fn the_state_folder_is_handed_over_in_a_restart_in_place() {
    let (service, plane) = (Service::hello().await, nobody().await);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("pepper"), pepper().bytes()).unwrap();
    std::fs::write(at("token"), "a token of more than thirty-two bytes").unwrap();
    std::fs::write(at("bootstrap.json"), exported().await.to_text()).unwrap();
    let (pepper, token, state) = (at("pepper"), at("token"), at("state"));
    let text = format!(
        "{HEAD}[control]\nplans_api = \"http://{plane}\"\ntoken_file = {token:?}\n\
         pepper_file = {pepper:?}\nstate_dir = {state:?}\nbootstrap_file = {:?}\n\
         [[route]]\npath = \"/\"\nupstream = \"up\"\nauth = \"key\"\n\
         [upstream.up]\nendpoints = [\"{}\"]\n",
        at("bootstrap.json"),
        service.address
    );
    let mut program = Program::start(&text).await;
    let answers =
        async |program: &Program| get(program.traffic, "/", &[("x-api-key", KEY)]).await.status;
    assert_eq!(answers(&program).await, 200, "{}", program.log());
    eventually("a state on disk", async || log_id(&state).is_some()).await;
    // From here on there is nothing but that.
    std::fs::remove_file(at("bootstrap.json")).unwrap();
    for _restart in 0..2 {
        let before = log_id(&state).unwrap();
        let old = program.succeed().await;
        assert_eq!(answers(&program).await, 200, "{}", program.log());
        let code = program.ended(old).await;
        assert!(code.is_none_or(|code| code == 0), "{code:?}\n{}", program.log());
        eventually("a log of the new one", async || log_id(&state) > Some(before)).await;
        assert_eq!(answers(&program).await, 200, "{}", program.log());
    }
    let detail = async || -> serde_json::Value {
        let ready = get(program.operations, "/readyz", &[]).await;
        serde_json::from_slice(&ready.body).unwrap()
    };
    eventually("a state that is saved", async || {
        detail().await["detail"]["state_unsaved"] == false
    })
    .await;
    let detail = detail().await;
    assert!(detail["detail"]["policy_age_seconds"].as_u64() > Some(0), "its age is told: {detail}");
}
