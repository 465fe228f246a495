//! `/v1/killswitch`: puts everybody into shadow on every gateway, and back, by its id.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value};
use wire::error::ErrorCode;
use wire::name::Name;
use wire::strict::{Fields, Problems};

use super::ask::{Ask, Bytes, bad_request};
use super::error::ApiError;
use super::{App, answer};

pub(super) async fn show(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&[])?;
    answer(&app.store.killswitch().await?, None)
}

/// Under an id of the caller's choice, or one of its own.
pub(super) async fn set(
    State(app): State<Arc<App>>,
    ask: Ask,
    Bytes(bytes): Bytes,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let wanted = Wanted::read(&bytes)?;
    let id = match wanted.id {
        Some(id) => id,
        None => random().ok_or_else(|| ApiError::of(ErrorCode::Internal))?,
    };
    app.store.set_killswitch(&id, &ask.stamp(wanted.reason.as_deref())?).await?;
    answer(&app.store.killswitch().await?, None)
}

pub(super) async fn clear(
    State(app): State<Arc<App>>,
    ask: Ask,
    Bytes(bytes): Bytes,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let wanted = Wanted::read(&bytes)?;
    let Some(id) = wanted.id else {
        return Err(bad_request("say which one: {\"id\": …}; GET /v1/killswitch tells it"));
    };
    app.store.clear_killswitch(id.as_str(), &ask.stamp(wanted.reason.as_deref())?).await?;
    answer(&app.store.killswitch().await?, None)
}

struct Wanted {
    id: Option<Name>,
    reason: Option<String>,
}

impl Wanted {
    /// `{"id"?, "reason"?}`, or nothing.
    fn read(bytes: &[u8]) -> Result<Wanted, ApiError> {
        let body = match bytes {
            b"" => Value::Object(Map::new()),
            bytes => wire::strict::json(bytes)
                .map_err(|error| bad_request(format!("the body is not JSON: {error}")))?,
        };
        let mut problems = Problems::new();
        let mut fields = Fields::of(&body, "", &mut problems);
        let id = fields.text("id", &mut problems).map(Name::new).transpose();
        let reason = fields.text("reason", &mut problems).map(ToOwned::to_owned);
        if let Err(error) = &id {
            problems.add("id", ErrorCode::InvalidValue, error.to_string());
        }
        fields.finish(&mut problems);
        Ok(problems.none_or(id.ok().map(|id| Wanted { id, reason }))?)
    }
}

fn random() -> Option<Name> {
    let text = uuid::Uuid::now_v7().simple().to_string();
    Name::new(&format!("ks-{}", text.get(20..)?)).ok()
}
