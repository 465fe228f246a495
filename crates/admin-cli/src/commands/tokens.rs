//! Operator tokens: who may talk to plans-api, and how far.

use serde_json::Value;
use wire::client::plans::Role;

use super::keys::{in_ms, secret, time};
use super::plans::done;
use crate::args::{Named, TokenCommand};
use crate::failure::Failure;
use crate::output::{Report, text};
use crate::session::Session;

const HEADINGS: &[&str] = &["TOKEN", "NAME", "ROLE", "EXPIRES", "REVOKED"];

pub(crate) async fn run(command: TokenCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        TokenCommand::List => {
            let tokens = session.items(session.api.tokens()).await?;
            Ok(Report::list(&tokens, HEADINGS, "id", row))
        }
        TokenCommand::Create { name, role, expires_in, change } => {
            let reason = session.reason(&change)?;
            let danger = format!("make a token with the role {}", role.name());
            session.confirm_in_production(&change, &danger)?;
            let ends = expires_in.map(in_ms);
            let json = session.ask(session.api.create_token(&name, role, ends, reason)).await?;
            let hash = text(&json, "/hash");
            let mut report = secret(json, "token", session)?;
            if role == Role::Gateway {
                report = report.note(format!("for shadow-compare's --gateway-tokens-file: {hash}"));
            }
            Ok(session.finish(report, &change).await)
        }
        TokenCommand::Revoke(Named { id, change }) => {
            session.confirm(&change, &format!("end the operator token {id} (1 token)"), None)?;
            let reason = session.reason(&change)?;
            let json = session.ask(session.api.revoke_token(&id, reason)).await?;
            Ok(session.finish(done(json, &id, format!("token {id} revoked")), &change).await)
        }
    }
}

fn row(token: &Value) -> Vec<String> {
    vec![
        text(token, "id"),
        text(token, "name"),
        text(token, "role"),
        time(token.get("expires_at")),
        time(token.get("revoked_at")),
    ]
}
