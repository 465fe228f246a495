//! Gateways: who is live, which revision is in force there, and what they would not take.

use serde_json::Value;
use wire::client::{Call, Method, segment};

use super::keys::time;
use super::plans::done;
use crate::args::{GatewayCommand, Named};
use crate::failure::{Exit, Failure};
use crate::output::{Report, Shown, text};
use crate::session::Session;

const HEADINGS: &[&str] = &["GATEWAY", "LIVE", "APPLIED", "REJECTED", "BUILD", "SEEN"];

pub(crate) async fn run(command: GatewayCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        GatewayCommand::List => list(session).await,
        GatewayCommand::Get { id } => get(&id, session).await,
        GatewayCommand::Forget(Named { id, change }) => {
            let gateway = find(&id, session).await?;
            let seen = time(gateway.get("seen_at"));
            let danger = format!("forget the gateway {id}, last seen {seen} (1 gateway)");
            session.confirm(&change, &danger, None)?;
            let reason = session.reason(&change)?;
            let path = format!("/v1/gateways/{}:forget", segment(&id));
            let call = Call::new(Method::POST, path).query("reason", reason);
            let json = session.send(call.if_match_or_insist(None)).await?;
            Ok(session.finish(done(json, &id, format!("gateway {id} forgotten")), &change).await)
        }
    }
}

async fn find(id: &str, session: &Session<'_>) -> Result<Value, Failure> {
    let gateways = session.items(session.api.gateways()).await?;
    gateways.into_iter().find(|gateway| text(gateway, "id") == id).ok_or_else(|| {
        Failure::new(Exit::NotFound, "not_found", format!("there is no gateway `{id}`"))
    })
}

async fn get(id: &str, session: &Session<'_>) -> Result<Report, Failure> {
    let gateway = find(id, session).await?;
    let mut fields: Vec<(&'static str, String)> =
        ["id", "live", "applied", "build", "boot", "ops_url"]
            .iter()
            .map(|field| (*field, text(&gateway, field)))
            .collect();
    fields.push(("seen", time(gateway.get("seen_at"))));
    let routes = gateway.get("routes").and_then(Value::as_array).into_iter().flatten();
    let routes: Vec<&str> = routes.filter_map(Value::as_str).collect();
    fields.push(("routes", routes.join(", ")));
    for object in gateway.get("rejected").and_then(Value::as_array).into_iter().flatten() {
        let told = format!(
            "{} {} at revision {}: {}",
            text(object, "kind"),
            text(object, "id"),
            text(object, "revision"),
            text(object, "reason")
        );
        fields.push(("rejected", told));
    }
    Ok(Report::new(gateway, Shown::Fields(fields)).named(id))
}

async fn list(session: &Session<'_>) -> Result<Report, Failure> {
    let gateways = session.items(session.api.gateways()).await?;
    Ok(Report::list(&gateways, HEADINGS, "id", row))
}

fn row(gateway: &Value) -> Vec<String> {
    let rejected = gateway.get("rejected").and_then(Value::as_array).map_or(0, Vec::len);
    vec![
        text(gateway, "id"),
        text(gateway, "live"),
        text(gateway, "applied"),
        rejected.to_string(),
        text(gateway, "build"),
        time(gateway.get("seen_at")),
    ]
}
