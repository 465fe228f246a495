//! `/v1/clients`, and how a client's bucket stands: that a live gateway is asked, because only
//! gateways talk to the bucket store.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use wire::client::plans::ClientObject;
use wire::client::{Call, Client, ClientError, segment};
use wire::error::{ErrorBody, ErrorCode};
use wire::strict::Problems;

use super::ask::{Ask, Json, Part, ReasonOnly};
use super::error::ApiError;
use super::{App, answer};
use crate::model::client::ClientSpec;
use crate::store::{ClientMove, Clients};

/// How long one gateway may take to answer.
const GATEWAY_DEADLINE: std::time::Duration = std::time::Duration::from_secs(2);
/// Gateways that are asked one after the other.
const GATEWAYS_ASKED_MAX: usize = 3;

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor", "plan", "overridden"])?;
    let (cursor, limit) = ask.page()?;
    let of = Clients { plan: ask.param("plan"), overridden: ask.flag("overridden")? };
    answer(&app.store.clients(of, cursor, limit).await?, None)
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    let client = app.store.client(&id).await?;
    answer(&client, Some(client.revision))
}

pub(super) async fn put(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let expect = ask.precondition()?;
    let mut problems = Problems::new();
    let spec = ClientSpec::parse(&id, &body, "", &mut problems);
    let spec = problems.none_or(spec)?;
    let changed = app.store.put_client(&spec, expect, &ask.stamp(None)?).await?;
    answer(&changed, changed.object.as_ref().map(|client| client.revision))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (expect, stamp) = (ask.precondition()?, ask.stamp(reason.as_deref())?);
    answer(&app.store.delete_client(&id, expect, &stamp).await?, None)
}

/// `:suspend` and `:resume`.
pub(super) async fn verb(
    State(app): State<Arc<App>>,
    ask: Ask,
    part: Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    let (id, verb) = part.id_and_verb()?;
    let step = match verb {
        "suspend" => ClientMove::Suspend,
        "resume" => ClientMove::Resume,
        _ => return Err(ApiError::of(ErrorCode::NotFound)),
    };
    moved(&app, &ask, id, step, reason.as_deref()).await
}

/// `/limit:reset`: fills the bucket.
pub(super) async fn reset(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    moved(&app, &ask, &id, ClientMove::ResetLimit, reason.as_deref()).await
}

async fn moved(
    app: &App,
    ask: &Ask,
    id: &str,
    step: ClientMove,
    reason: Option<&str>,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (expect, stamp) = (ask.precondition()?, ask.stamp(reason)?);
    let changed = app.store.move_client(id, step, expect, &stamp).await?;
    answer(&changed, changed.object.as_ref().map(|client| client.revision))
}

/// `/limit`: reads the bucket at a live gateway, taking nothing.
pub(super) async fn inspect(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
) -> Result<Response, ApiError> {
    ask.only(&["key"])?;
    let client = app.store.client(&id).await?;
    let Some(token) = &app.operations_token else {
        let detail = "plans-api was started without the gateways' operations token";
        return Err(ErrorBody::new(ErrorCode::GatewayUnreachable, detail)
            .with_hint("start it with --operations-token-file PATH")
            .into());
    };
    let mut reasons = Vec::new();
    for (gateway, url) in live_gateways(&app).await? {
        match ask_gateway(&url, token, &client, ask.param("key")).await {
            Ok(Value::Object(mut standing)) => {
                standing.insert("gateway".to_owned(), json!(gateway));
                return answer(&standing, None);
            }
            Ok(_) => reasons.push(format!("{gateway}: its answer is no object")),
            Err(ClientError::Refused(body)) if body.code == ErrorCode::NotFound => {
                return Err((*body).into());
            }
            Err(error) => reasons.push(format!("{gateway}: {error}")),
        }
    }
    let detail = if reasons.is_empty() {
        "no live gateway has said where its operations port is".to_owned()
    } else {
        reasons.join("; ")
    };
    Err(ErrorBody::new(ErrorCode::GatewayUnreachable, detail).into())
}

async fn live_gateways(app: &App) -> Result<Vec<(String, String)>, ApiError> {
    let mut live = Vec::new();
    let mut cursor = Some(String::new());
    while let Some(after) = cursor {
        let page = app.store.gateways(&after, 500).await?;
        let told = page.items.into_iter().filter(|gateway| gateway.live);
        live.extend(told.filter_map(|gateway| Some((gateway.id, gateway.ops_url?))));
        if live.len() >= GATEWAYS_ASKED_MAX {
            break;
        }
        cursor = page.next;
    }
    live.truncate(GATEWAYS_ASKED_MAX);
    Ok(live)
}

/// Tells the gateway the client's terms, so it need not have seen the client before.
async fn ask_gateway(
    url: &str,
    token: &str,
    client: &ClientObject,
    key: Option<&str>,
) -> Result<Value, ClientError> {
    let overridden = crate::model::client::value(client).overridden;
    let overridden = overridden.and_then(|own| serde_json::to_string(&own).ok());
    let call = Call::get(format!("/limits/{}", segment(&client.id)))
        .query("plan", client.plan.clone())
        .query("revision", client.revision.to_string())
        .query("reset_revision", client.reset_revision.to_string())
        .maybe("key", key)
        .maybe("override", overridden)
        .deadline(GATEWAY_DEADLINE);
    Client::new(url, Some(token))?.send(call).await
}
