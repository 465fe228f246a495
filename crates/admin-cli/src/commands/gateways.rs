//! Gateways: who is live, and which revision is in force there.

use serde_json::Value;

use super::keys::time;
use crate::failure::Failure;
use crate::output::{Report, text};
use crate::session::Session;

const HEADINGS: &[&str] = &["GATEWAY", "LIVE", "APPLIED", "REJECTED", "BUILD", "SEEN"];

pub(crate) async fn list(session: &Session<'_>) -> Result<Report, Failure> {
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
