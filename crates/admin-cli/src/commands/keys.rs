//! API keys. A secret is seen once, on standard output, when it is made; nothing here can show it
//! again.

use std::time::Duration;

use limiter_core::{Clock, SystemClock};
use serde_json::Value;
use wire::client::ClientError;
use wire::client::plans::{Changed, KeyObject};

use super::plans::done;
use super::secrets;
use crate::args::{KeyCommand, Named};
use crate::failure::{Exit, Failure};
use crate::output::{Report, Shown, text};
use crate::session::Session;

const HEADINGS: &[&str] = &["KEY", "CLIENT", "ENV", "STATE", "EXPIRES", "CREATED", "BY"];
const FIELDS: &[&str] =
    &["id", "client", "env", "state", "expires_at", "created_at", "created_by", "revision"];

pub(crate) async fn run(command: KeyCommand, session: &Session<'_>) -> Result<Report, Failure> {
    no_whole_key(&command)?;
    match command {
        KeyCommand::Create { client, env, expires_in, change } => {
            let reason = session.reason(&change)?;
            session
                .confirm_in_production(&change, &format!("make a key of the client {client}"))?;
            let ends = expires_in.map(in_ms);
            let json = session.ask(session.api.create_key(&client, env, ends, reason)).await?;
            let report = secret(json, "key", session)?;
            Ok(session.finish(report, &change).await)
        }
        KeyCommand::List { client } => {
            let keys = session.items(session.api.keys(client.as_deref())).await?;
            Ok(Report::list(&keys, HEADINGS, "id", row))
        }
        KeyCommand::Get { id } => {
            let key = session.ask(session.api.key(&id)).await?;
            let fields = FIELDS.iter().map(|field| (*field, shown(&key, field))).collect();
            Ok(Report::new(key, Shown::Fields(fields)).named(id))
        }
        KeyCommand::Disable(named) => {
            let api = &session.api;
            verb(named, "disable", session, async |id, reason| api.disable_key(id, reason).await)
                .await
        }
        KeyCommand::Enable(named) => {
            let api = &session.api;
            verb(named, "enable", session, async |id, reason| api.enable_key(id, reason).await)
                .await
        }
        KeyCommand::Revoke(named) => {
            let key = session.ask(session.api.key(&named.id)).await?;
            let (id, client) = (&named.id, text(&key, "client"));
            let danger = format!("stop the key {id} of the client {client} for ever (1 key)");
            session.confirm(&named.change, &danger, None)?;
            let api = &session.api;
            verb(named, "revoke", session, async |id, reason| api.revoke_key(id, reason).await)
                .await
        }
        KeyCommand::Rotate { id, overlap, change } => {
            secrets::rotate(&id, overlap, &change, session).await
        }
        KeyCommand::Import { file, change } => secrets::import(&file, &change, session).await,
        KeyCommand::Usage { id } => secrets::usage(&id, session).await,
    }
}

fn row(key: &Value) -> Vec<String> {
    let fields = ["id", "client", "env", "state", "expires_at", "created_at", "created_by"];
    fields.iter().map(|field| shown(key, field)).collect()
}

fn shown(key: &Value, field: &str) -> String {
    if field.ends_with("_at") { time(key.get(field)) } else { text(key, field) }
}

/// Milliseconds since 1970 as people read them.
pub(super) fn time(value: Option<&Value>) -> String {
    let Some(ms) = value.and_then(Value::as_u64) else { return "–".to_owned() };
    let at = std::time::SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    at.map_or_else(|| ms.to_string(), |at| humantime::format_rfc3339_seconds(at).to_string())
}

/// The time after `after` from now, in milliseconds since 1970.
pub(super) fn in_ms(after: Duration) -> u64 {
    SystemClock::new().now().after(after).us() / 1_000
}

/// A report of a secret that was just made: the secret alone is the data.
pub(super) fn secret(json: Value, field: &str, session: &Session<'_>) -> Result<Report, Failure> {
    if session.trying {
        return Ok(Report::new(json, Shown::Nothing));
    }
    let Some(secret) = json.get(field).and_then(Value::as_str).map(ToOwned::to_owned) else {
        return Err(Failure::new(Exit::Failed, "malformed", format!("an answer without {field}")));
    };
    let id = text(&json, "/object/id");
    let note = format!("{field} {id} made; it is shown this once");
    Ok(Report::new(json, Shown::Text(secret)).named(id).note(note))
}

/// After a leak the whole key is what one has at hand. It is not sent on, nor shown once more.
fn no_whole_key(command: &KeyCommand) -> Result<(), Failure> {
    let id = match command {
        KeyCommand::Get { id } | KeyCommand::Rotate { id, .. } | KeyCommand::Usage { id } => id,
        KeyCommand::Disable(named) | KeyCommand::Enable(named) | KeyCommand::Revoke(named) => {
            &named.id
        }
        KeyCommand::Create { .. } | KeyCommand::List { .. } | KeyCommand::Import { .. } => {
            return Ok(());
        }
    };
    let mut parts = id.splitn(4, '_');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("weir"), Some(_env), Some(id), Some(_secret)) => {
            Err(Failure::usage(format!("that is a whole key; say its id alone: {id}")))
        }
        _ => Ok(()),
    }
}

/// A change of a key's state; all three go the same way.
async fn verb(
    named: Named,
    verb: &str,
    session: &Session<'_>,
    call: impl AsyncFnOnce(&str, &str) -> Result<Changed<KeyObject>, ClientError>,
) -> Result<Report, Failure> {
    let Named { id, change } = named;
    let reason = session.reason(&change)?;
    session.confirm_in_production(&change, &format!("{verb} the key {id}"))?;
    let json = session.ask(call(&id, reason)).await?;
    let past = format!("key {id} {verb}d");
    Ok(session.finish(done(json, &id, past), &change).await)
}
