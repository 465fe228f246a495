//! `weir client override`: limits of one client's own, for a time and with a reason.

use serde_json::{Map, Value, json};
use wire::client::{Call, Method, segment};
use wire::strict::Problems;

use super::keys::{in_ms, time};
use super::plans::{done, limit_value};
use crate::args::{Named, OverrideCommand, OverrideSet};
use crate::failure::Failure;
use crate::output::Report;
use crate::session::Session;

pub(super) async fn run(
    command: OverrideCommand,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    match command {
        OverrideCommand::Set(set) => self::set(set, session).await,
        OverrideCommand::Clear(Named { id, change }) => {
            let danger = format!("let the client {id} have its plan's limits again (1 client)");
            session.confirm(&change, &danger, None)?;
            let reason = session.reason(&change)?;
            let call = Call::new(Method::DELETE, path(&id)).query("reason", reason);
            let json = session.send(call.if_match_or_insist(None)).await?;
            let said = format!("client {id}: its plan's limits hold again");
            Ok(session.finish(done(json, &id, said), &change).await)
        }
    }
}

fn path(client: &str) -> String {
    format!("/v1/clients/{}/override", segment(client))
}

async fn set(set: OverrideSet, session: &Session<'_>) -> Result<Report, Failure> {
    let OverrideSet { id, burst, sustained, failure, lasting, change } = set;
    if burst.is_none() && sustained.is_none() && failure.is_none() {
        return Err(Failure::usage("say what to override, such as --burst 200@100/s"));
    }
    if change.reason.as_deref().unwrap_or_default().is_empty() {
        return Err(Failure::usage("an override needs --reason"));
    }
    let mut problems = Problems::new();
    let mut body = Map::new();
    for (field, text) in [("burst", burst), ("sustained", sustained)] {
        if let Some(text) = text {
            let place = format!("client.{id}.override.{field}");
            let value = limit_value(&place, &text, &mut problems);
            // judged here as well, so that all mistakes are told at once and nobody is asked
            wire::plan::parse_limit(&value, &place, &mut problems);
            body.insert(field.to_owned(), value);
        }
    }
    if let Some(failure) = failure {
        if let Err(error) = failure.parse::<limiter_core::FailurePolicy>() {
            let place = format!("client.{id}.override.failure");
            wire::plan::add_limit_error(&mut problems, place, &error);
        }
        body.insert("failure".to_owned(), json!(failure));
    }
    problems.none_or(Some(())).map_err(Failure::invalid)?;
    let until = in_ms(lasting);
    body.insert("expires_at".to_owned(), json!(until));
    session.confirm_in_production(&change, &format!("give the client {id} limits of its own"))?;
    let reason = session.reason(&change)?;
    let call = Call::new(Method::PUT, path(&id)).json(&Value::Object(body)).query("reason", reason);
    let json = session.send(call.if_match_or_insist(None)).await?;
    let said = format!("client {id} has limits of its own until {}", time(Some(&json!(until))));
    Ok(session.finish(done(json, &id, said), &change).await)
}
