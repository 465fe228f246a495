//! Clients: who has which plan, and whether they may call.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wire::strict::Problems;

use super::keys::{in_ms, time};
use super::plans::{done, labels};
use super::{changes, explain, overrides};
use crate::args::{ClientCommand, ClientSet, Named};
use crate::failure::Failure;
use crate::files;
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted};

const HEADINGS: &[&str] = &["CLIENT", "NAME", "PLAN", "STATE", "REVISION"];
const WIDE: &[&str] =
    &["CLIENT", "NAME", "PLAN", "STATE", "REVISION", "LABELS", "OWN LIMITS UNTIL"];
const FIELDS: &[&str] = &["id", "name", "plan", "state", "labels", "reset_revision", "revision"];

pub(crate) async fn run(command: ClientCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        ClientCommand::List { plan, overridden } => {
            let mut clients = session.items(session.api.clients()).await?;
            if overridden {
                let now = in_ms(Duration::ZERO);
                clients.retain(|client| {
                    client.pointer("/override/expires_at").and_then(Value::as_u64) > Some(now)
                });
            }
            if let Some(plan) = &plan {
                clients.retain(|client| client.get("plan") == Some(&json!(plan)));
            }
            let report = Report::list(&clients, HEADINGS, "id", row);
            Ok(report.wide(&clients, WIDE, |client| {
                let mut wide = row(client);
                wide.extend([text(client, "labels"), time(client.pointer("/override/expires_at"))]);
                wide
            }))
        }
        ClientCommand::Get { id } => {
            let client = session.ask(session.api.client(&id)).await?;
            let fields = FIELDS.iter().map(|field| (*field, text(&client, field))).collect();
            Ok(Report::new(client, Shown::Fields(fields)).named(id))
        }
        ClientCommand::Set(set) => self::set(set, session).await,
        ClientCommand::Delete(Named { id, change }) => {
            let reason = session.reason(&change)?;
            let keys = keys_of(&id, session).await?;
            let keys_told = counted(keys, "key");
            let danger = format!("delete the client {id} and its {keys_told}, revoked before");
            session.confirm(&change, &danger, (keys > 0).then_some(id.as_str()))?;
            let json = session.ask(session.api.delete_client(&id, reason)).await?;
            Ok(session.finish(done(json, &id, format!("client {id} deleted")), &change).await)
        }
        ClientCommand::Suspend(named) => {
            let keys = keys_of(&named.id, session).await?;
            let danger = format!(
                "refuse every request of the client {} ({}) until it is resumed",
                named.id,
                counted(keys, "key")
            );
            session.confirm(&named.change, &danger, None)?;
            let Named { id, change } = named;
            let reason = session.reason(&change)?;
            let json = session.ask(session.api.suspend(&id, reason)).await?;
            let report = done(json, &id, format!("client {id} suspended"));
            Ok(session.finish(report, &change).await)
        }
        ClientCommand::Resume(Named { id, change }) => {
            let reason = session.reason(&change)?;
            session.confirm_in_production(&change, &format!("resume the client {id}"))?;
            let json = session.ask(session.api.resume(&id, reason)).await?;
            Ok(session.finish(done(json, &id, format!("client {id} resumed")), &change).await)
        }
        ClientCommand::Override(command) => overrides::run(command, session).await,
        ClientCommand::Explain { id } => explain::explain(&id, session).await,
        ClientCommand::Usage { id, since } => explain::usage(&id, since, session).await,
    }
}

fn row(client: &Value) -> Vec<String> {
    ["id", "name", "plan", "state", "revision"].iter().map(|field| text(client, field)).collect()
}

async fn keys_of(id: &str, session: &Session<'_>) -> Result<usize, Failure> {
    Ok(session.items(session.api.keys(Some(id))).await?.len())
}

async fn set(set: ClientSet, session: &Session<'_>) -> Result<Report, Failure> {
    let ClientSet { id, plan, name, labels: given, change } = set;
    if plan.is_none() && name.is_none() && given.is_empty() {
        return Err(Failure::usage("say what to set, such as --plan pro"));
    }
    let before = match wire::name::Name::new(&id) {
        Ok(_) => session.find(session.api.client(&id)).await?,
        Err(_) => None, // refused below, with the other mistakes
    };
    let kept = ["plan", "name", "labels"].iter().filter_map(|field| {
        let value = before.as_ref()?.get(*field)?;
        (!value.is_null()).then(|| ((*field).to_owned(), value.clone()))
    });
    let mut body: Map<String, Value> = kept.collect();
    for (field, text) in [("plan", plan), ("name", name)] {
        if let Some(text) = text {
            body.insert(field.to_owned(), json!(text));
        }
    }
    if !given.is_empty() {
        body.insert("labels".to_owned(), labels(&given));
    }
    let mut problems = Problems::new();
    let place = format!("client.{id}");
    let spec = files::parse_client(&id, &Value::Object(body), &place, &mut problems);
    let body = problems.none_or(spec).map_err(Failure::invalid)?.to_json();
    if change.dry_run {
        return super::apply::dry_run(&json!({ "client": { id: body } }), None, session).await;
    }
    session.confirm_in_production(&change, &format!("change the client {id}"))?;
    let revision = before.as_ref().and_then(|client| client.get("revision")?.as_u64());
    let reason = session.reason(&change)?;
    let json = match session.ask(session.api.put_client(&id, &body, reason, revision)).await {
        Ok(json) => json,
        Err(failure) => return Err(changes::explained(failure, "client", &id, session).await),
    };
    Ok(session.finish(done(json, &id, format!("client {id} set")), &change).await)
}
