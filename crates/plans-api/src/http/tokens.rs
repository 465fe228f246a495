//! `/v1/tokens`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::Value;
use wire::client::plans::{NewToken, Role};
use wire::error::{ErrorBody, ErrorCode};
use wire::key::{OperatorToken, token_hash};
use wire::strict::{Fields, Problems};

use super::ask::{Ask, Json, Part, ReasonOnly, told_once};
use super::error::ApiError;
use super::{App, answer, secret};
use crate::model::api_key::expiry;
use crate::store::TokenSpec;

/// People's tokens end by themselves; those of programs when they are revoked.
const PEOPLE_MS: u64 = 90 * 86_400_000;
/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 128;

pub(super) async fn list(State(app): State<Arc<App>>, ask: Ask) -> Result<Response, ApiError> {
    ask.only(&["limit", "cursor"])?;
    let (cursor, limit) = ask.page()?;
    answer(&app.store.tokens(cursor, limit).await?, None)
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    ask: Ask,
    Json(body): Json,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let now = app.clock.now().us() / 1_000;
    let (spec, reason) = parse(&body, now)?;
    if ask.caller.role == Role::Bootstrap && spec.role != Role::Admin {
        let detail = "the bootstrap token makes an admin's token and nothing else";
        return Err(ErrorBody::new(ErrorCode::RoleTooSmall, detail).into());
    }
    let stamp = ask.stamp(reason.as_deref())?;
    let token = OperatorToken::generate().map_err(ApiError::internal)?;
    let (revision, object) = app.store.create_token(&spec, &token, &stamp).await?;
    let hash = token_hash(&token.text);
    let token = told_once(token.text, &stamp);
    answer(&NewToken { revision, object, token, hash }, None).map(secret)
}

fn parse(body: &Value, now: u64) -> Result<(TokenSpec, Option<String>), ApiError> {
    let mut problems = Problems::new();
    let mut fields = Fields::of(body, "", &mut problems);
    let name = fields.text("name", &mut problems);
    if name.is_none() {
        fields.missing("name", &mut problems);
    }
    if name.is_some_and(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
        let detail = format!("must have 1 to {NAME_BYTES_MAX} bytes");
        problems.add("name", ErrorCode::InvalidValue, detail);
    }
    let role = fields.text("role", &mut problems);
    let known = role.and_then(Role::named).filter(|role| *role != Role::Bootstrap);
    if known.is_none() {
        let given = role.unwrap_or_default();
        let detail = format!(
            "must be viewer, support, operator, admin, approver, gateway or service, not `{given}`"
        );
        problems.add("role", ErrorCode::InvalidValue, detail);
    }
    let expires_at = expiry(&mut fields, now, &mut problems);
    let machine = fields.flag("machine", &mut problems);
    let reason = fields.text("reason", &mut problems).map(ToOwned::to_owned);
    fields.finish(&mut problems);
    let (name, role) = problems.none_or(name.zip(known))?;
    let default = match role {
        Role::Viewer
        | Role::Support
        | Role::Operator
        | Role::Admin
        | Role::Approver
        | Role::Bootstrap => Some(now + PEOPLE_MS),
        Role::Gateway | Role::Service => None,
    };
    let (name, expires_at) = (name.to_owned(), expires_at.or(default));
    let spec = TokenSpec { name, role, machine, expires_at };
    Ok((spec, reason))
}

/// `:revoke`. It is final, so no version of the token is asked for.
pub(super) async fn verb(
    State(app): State<Arc<App>>,
    ask: Ask,
    part: Part,
    ReasonOnly(reason): ReasonOnly,
) -> Result<Response, ApiError> {
    ask.only(&["reason"])?;
    let (id, verb) = part.id_and_verb()?;
    if verb != "revoke" {
        return Err(ApiError::of(ErrorCode::NotFound));
    }
    answer(&app.store.revoke_token(id, &ask.stamp(reason.as_deref())?).await?, None)
}
