//! `/v1/shadow`: reads of shadow-compare, passed on, so that people and tools need one address and
//! one token.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use wire::client::{Call, segment};

use super::ask::{Ask, Part};
use super::error::ApiError;
use super::{App, answer};
use crate::gate;
use crate::store::StoreError;

pub(super) async fn top(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["by", "n", "window_minutes"])?;
    let call = Call::get("/v1/clients/top")
        .maybe("by", ask.param("by"))
        .maybe("n", ask.param("n"))
        .maybe("window_minutes", ask.param("window_minutes"));
    let mut top = read(&app, call).await?;
    // shadow-compare knows no clients, only what gateways reported about them.
    for line in top.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(id) = line.get("client").and_then(Value::as_str) else { continue };
        let state = match app.store.client(id).await {
            Ok(client) => json!(client.state),
            Err(StoreError::NotFound { .. }) => Value::Null,
            Err(error) => return Err(error.into()),
        };
        if let Some(line) = line.as_object_mut() {
            line.insert("state".to_owned(), state);
        }
    }
    answer(&top, None)
}

pub(super) async fn explain(
    State(app): State<Arc<App>>,
    ask: Ask,
    Part(id): Part,
) -> Result<Response, ApiError> {
    ask.only(&[])?;
    answer(&read(&app, Call::get(format!("/v1/requests/{}", segment(&id)))).await?, None)
}

pub(super) async fn usage(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["client", "window_minutes"])?;
    let call = Call::get("/v1/usage")
        .maybe("client", ask.param("client"))
        .maybe("window_minutes", ask.param("window_minutes"));
    answer(&read(&app, call).await?, None)
}

async fn read(app: &App, call: Call) -> Result<Value, ApiError> {
    let evidence = app.evidence.as_ref().ok_or_else(gate::nobody)?;
    Ok(evidence.read(call).await?)
}
