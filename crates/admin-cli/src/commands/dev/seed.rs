//! What a newcomer would have to make by hand: tokens, a plan, a client, a key. Made once; a later
//! start finds it and changes nothing, so a changed plan stays changed.

use std::time::Duration;

use daemon::Failure;
use limiter_core::{Clock, SystemClock};
use serde_json::json;
use wire::client::ClientError;
use wire::client::plans::{PlansClient, Role};
use wire::key::KeyEnv;
use wire::policy::KeyState;
use wire::rollout::Phase;

use super::state::{BOOTSTRAP, GATEWAY, GATEWAY_HASHES, KEY, OPERATOR, State};

/// Name of the plan.
pub(crate) const PLAN: &str = "demo";
/// Id of the client.
pub(crate) const CLIENT: &str = "demo";
/// Said in the audit.
const REASON: &str = "weir dev";
/// Tokens of a folder that is thrown away one day need no renewal.
const TOKEN_LIFE: Duration = Duration::from_secs(5 * 365 * 86_400);

/// What the printed lines need.
#[derive(Debug)]
pub(crate) struct Seeded {
    pub(crate) key: String,
}

/// Why the client is never refused: an earlier day's rollout keeps it from that.
#[derive(Debug)]
pub(crate) struct Spared {
    pub(crate) rollout: String,
    pub(crate) phase: Phase,
}

/// Finds or makes the operator's and the gateway's token; the client shows the operator's.
pub(crate) async fn tokens(state: &State, api: &str) -> Result<PlansClient, Failure> {
    let client = match state.read(OPERATOR) {
        Some(token) if accepted(api, &token).await? => connect(api, &token)?,
        Some(_) | None => {
            let token = first_token(state, api).await?;
            connect(api, &token)?
        }
    };
    if state.read(GATEWAY).is_none() || state.read(GATEWAY_HASHES).is_none() {
        let made = client.create_token("dev-gateway", Role::Gateway, ends(), REASON).await;
        let made = made.map_err(Failure::other)?;
        state.keep(GATEWAY, made.token.as_bytes())?;
        state.keep(GATEWAY_HASHES, format!("{}\n", made.hash.to_hex()).as_bytes())?;
    }
    Ok(client)
}

fn connect(api: &str, token: &str) -> Result<PlansClient, Failure> {
    PlansClient::new(api, Some(token)).map_err(Failure::other)
}

fn ends() -> Option<u64> {
    Some(SystemClock::new().now().after(TOKEN_LIFE).us() / 1_000)
}

async fn accepted(api: &str, token: &str) -> Result<bool, Failure> {
    match connect(api, token)?.tokens().await {
        Ok(_) => Ok(true),
        Err(ClientError::Refused(body)) if matches!(body.status, 401 | 403) => Ok(false),
        Err(error) => Err(Failure::other(error)),
    }
}

/// The bootstrap token of a new database, spent on an admin's token. The gateway's token belongs
/// to the same database, so an old one goes too.
async fn first_token(state: &State, api: &str) -> Result<String, Failure> {
    let Some(bootstrap) = state.read(BOOTSTRAP) else {
        let line = format!(
            "the database knows other tokens than {}; use the folder it was made with, or a new \
             database",
            state.folder().join(OPERATOR).display()
        );
        return Err(Failure::other(line));
    };
    let made = connect(api, &bootstrap)?.create_token("dev", Role::Admin, ends(), REASON).await;
    let made = made.map_err(Failure::other)?;
    state.keep(OPERATOR, made.token.as_bytes())?;
    for old in [BOOTSTRAP, GATEWAY, KEY] {
        match std::fs::remove_file(state.folder().join(old)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::other(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(made.token)
}

/// Finds or makes plan, client and key.
pub(crate) async fn objects(state: &State, client: &PlansClient) -> Result<Seeded, Failure> {
    if missing(client.plan(PLAN).await)? {
        // small enough that a loop of curl empties it, slow enough that it stays empty meanwhile
        let plan = json!({ "burst": { "capacity": 5, "refill": "1/s" } });
        client.put_plan(PLAN, &plan, REASON, None).await.map_err(Failure::other)?;
    }
    if missing(client.client(CLIENT).await)? {
        let body = json!({ "plan": PLAN });
        client.put_client(CLIENT, &body, REASON, None).await.map_err(Failure::other)?;
    }
    if let Some(key) = state.read(KEY)
        && opens(client, &key).await?
    {
        return Ok(Seeded { key });
    }
    let made = client.create_key(CLIENT, KeyEnv::Test, None, REASON).await;
    let made = made.map_err(Failure::other)?;
    state.keep(KEY, made.key.as_bytes())?;
    Ok(Seeded { key: made.key })
}

/// Whether the client is kept in another phase than enforce.
pub(crate) async fn spared(client: &PlansClient) -> Result<Option<Spared>, Failure> {
    let rollouts = client.rollouts().await.map_err(Failure::other)?;
    Ok(rollouts.into_iter().find_map(|rollout| {
        let phase = rollout.value().phase_of(CLIENT);
        (phase != Phase::Enforce).then_some(Spared { rollout: rollout.name, phase })
    }))
}

fn missing<T>(found: Result<T, ClientError>) -> Result<bool, Failure> {
    match found {
        Ok(_) => Ok(false),
        Err(ClientError::Refused(body)) if body.status == 404 => Ok(true),
        Err(error) => Err(Failure::other(error)),
    }
}

/// Whether a kept key is still good; a revoked one is replaced.
async fn opens(client: &PlansClient, key: &str) -> Result<bool, Failure> {
    let Some(id) = key.split('_').nth(2) else { return Ok(false) };
    match client.key(id).await {
        Ok(found) => Ok(found.state == KeyState::Active && found.client == CLIENT),
        Err(ClientError::Refused(body)) if body.status == 404 => Ok(false),
        Err(error) => Err(Failure::other(error)),
    }
}
