//! Buckets of a client: read them without taking, check them, or fill them.

use serde_json::Value;

use super::plans::done;
use super::verify;
use crate::args::LimitCommand;
use crate::failure::Failure;
use crate::output::{Report, Shown};
use crate::session::Session;

pub(crate) async fn run(command: LimitCommand, session: &Session<'_>) -> Result<Report, Failure> {
    match command {
        LimitCommand::Inspect { client } => {
            let limit = session.ask(session.api.inspect_limit(&client)).await?;
            let mut rows = Vec::new();
            flatten("", &limit, &mut rows);
            Ok(Report::new(limit, Shown::Rows(&["FIELD", "VALUE"], rows)).named(client))
        }
        LimitCommand::Try { client, cost } => verify::would(&client, cost, session).await,
        LimitCommand::Verify { client } => verify::verify(&client, session).await,
        LimitCommand::Reset { client, change } => {
            let danger = format!("fill the buckets of the client {client}");
            session.confirm_in_production(&change, &danger)?;
            let reason = session.reason(&change)?;
            let json = session.ask(session.api.reset_limit(&client, reason)).await?;
            let said = format!("buckets of {client} filled");
            Ok(session.finish(done(json, &client, said), &change).await)
        }
    }
}

/// Nested fields as lines; what a gateway tells may grow without a change here.
fn flatten(path: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&inner, value, rows);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                flatten(&format!("{path}[{index}]"), value, rows);
            }
        }
        Value::Null => {}
        Value::String(text) => rows.push(vec![path.to_owned(), text.clone()]),
        other @ (Value::Bool(_) | Value::Number(_)) => {
            rows.push(vec![path.to_owned(), other.to_string()]);
        }
    }
}
