//! A client's body.

use std::collections::BTreeMap;

use serde_json::Value;
use wire::client::plans::ClientObject;
use wire::error::ErrorCode;
use wire::name::Name;
use wire::plan::parse_labels;
use wire::policy::ClientValue;
use wire::strict::{Fields, Problems};

/// Longest name for people, in bytes.
const DISPLAY_BYTES_MAX: usize = 256;

/// A checked body: `{"plan", "name"?, "labels"?}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientSpec {
    pub(crate) id: Name,
    pub(crate) name: String,
    pub(crate) plan: Name,
    pub(crate) labels: BTreeMap<String, String>,
}

impl ClientSpec {
    /// Reads a client from an object; every mistake is added with its path under `path`.
    pub(crate) fn parse(
        id: &str,
        value: &Value,
        path: &str,
        problems: &mut Problems,
    ) -> Option<ClientSpec> {
        let id = Name::new(id)
            .map_err(|error| problems.add(path, ErrorCode::InvalidValue, error.to_string()))
            .ok();
        let mut fields = Fields::of(value, path, problems);
        let has_plan = fields.get("plan").is_some();
        if !has_plan {
            fields.missing("plan", problems);
        }
        let plan = fields.text("plan", problems).and_then(|text| {
            let place = fields.path("plan");
            Name::new(text)
                .map_err(|error| problems.add(place, ErrorCode::InvalidValue, error.to_string()))
                .ok()
        });
        let name = fields.text("name", problems).unwrap_or_default().to_owned();
        if name.len() > DISPLAY_BYTES_MAX {
            let detail = format!("is {} bytes long, at most {DISPLAY_BYTES_MAX} fit", name.len());
            problems.add(fields.path("name"), ErrorCode::InvalidValue, detail);
        }
        let labels = parse_labels(&mut fields, problems);
        fields.finish(problems);
        Some(ClientSpec { id: id?, name, plan: plan?, labels })
    }
}

/// As gateways are told it.
pub(crate) fn value(client: &ClientObject) -> ClientValue {
    ClientValue {
        id: client.id.clone(),
        plan: client.plan.clone(),
        state: client.state,
        overridden: client.overridden.as_ref().map(super::overrides::value),
        reset_revision: client.reset_revision,
        revision: client.revision,
    }
}
