//! Plans, clients and keys in the gateway's own file: `[plan.NAME]`, `[client.ID]`, `[[key]]`.
//!
//! The same reader as for the API judges plans. Keys stand here as hashes only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use edge::{FileClient, FileKey};
use serde_json::Value;
use wire::error::ErrorCode;
use wire::key::{KeyHash, Pepper};
use wire::name::Name;
use wire::plan::PlanSpec;
use wire::policy::ClientState;
use wire::strict::{Fields, Problems};

use super::FileChoice;
use super::read::{count, list, must_have, named, needed, parsed, path, table, wrong};

/// Hashes the keys of a file that names no pepper. Known to everybody, so only the 160 random bits
/// of a generated key protect its hash; enough for those, not for keys that people thought up.
const NO_PEPPER: &[u8; 32] = b"weir: keys of a file, no pepper.";

/// Whether the file has a policy of its own.
pub(super) fn is_given(fields: &mut Fields<'_>) -> bool {
    ["plan", "client", "key", "standalone"]
        .into_iter()
        .filter(|name| fields.get(name).is_some())
        .count()
        > 0
}

/// Reads the policy of the file.
pub(super) fn read(fields: &mut Fields<'_>, beside: &Path, problems: &mut Problems) -> FileChoice {
    let Own { pepper, gateways, state_dir } =
        standalone(table(fields, "standalone"), beside, problems);
    let plans: Vec<PlanSpec> = named(fields, "plan", problems)
        .into_iter()
        .filter_map(|(name, value)| PlanSpec::parse(name, value, &format!("plan.{name}"), problems))
        .collect();
    let plan_names: BTreeSet<&str> =
        named(fields, "plan", problems).into_iter().map(|(name, _)| name).collect();
    let clients: Vec<FileClient> = named(fields, "client", problems)
        .into_iter()
        .filter_map(|(id, value)| client(id, value, &plan_names, problems))
        .collect();
    let client_ids: BTreeSet<&str> =
        named(fields, "client", problems).into_iter().map(|(id, _)| id).collect();
    let mut keys: Vec<FileKey> = Vec::new();
    for (index, value) in list(fields, "key", problems).iter().enumerate() {
        let place = format!("key[{index}]");
        if let Some(key) = key(value, &place, &client_ids, problems) {
            if keys.iter().any(|other| other.id == key.id || other.hash == key.hash) {
                wrong(problems, place, "has the id or hash of a key above");
            } else {
                keys.push(key);
            }
        }
    }
    FileChoice { pepper, gateways, state_dir, plans, clients, keys }
}

/// The table `[standalone]`.
struct Own {
    pepper: Pepper,
    gateways: u32,
    state_dir: Option<PathBuf>,
}

fn standalone(value: Option<&Value>, beside: &Path, problems: &mut Problems) -> Own {
    let none = || Pepper::from_bytes(NO_PEPPER).expect("the constant has 32 bytes");
    let Some(value) = value else {
        return Own { pepper: none(), gateways: 1, state_dir: None };
    };
    let mut fields = Fields::of(value, "standalone", problems);
    let pepper = pepper_file(&mut fields, beside, problems);
    let gateways = count(&mut fields, "gateways", problems, 1..=10_000, 1);
    let state_dir = path(&mut fields, "state_dir", problems, beside);
    fields.finish(problems);
    Own { pepper: pepper.unwrap_or_else(none), gateways, state_dir }
}

/// Reads `pepper_file`.
pub(super) fn pepper_file(
    fields: &mut Fields<'_>,
    beside: &Path,
    problems: &mut Problems,
) -> Option<Pepper> {
    let file = path(fields, "pepper_file", problems, beside)?;
    let pepper = std::fs::read(&file)
        .map_err(|error| format!("{}: {error}", file.display()))
        .and_then(|bytes| Pepper::from_bytes(&bytes).map_err(|error| error.to_string()));
    pepper.map_err(|error| wrong(problems, fields.path("pepper_file"), error)).ok()
}

fn client(
    id: &str,
    value: &Value,
    plans: &BTreeSet<&str>,
    problems: &mut Problems,
) -> Option<FileClient> {
    let place = format!("client.{id}");
    if let Err(error) = Name::new(id) {
        wrong(problems, place.clone(), error);
    }
    let mut fields = Fields::of(value, &place, problems);
    let plan = needed(&mut fields, "plan", problems);
    if let Some(plan) = plan.filter(|plan| !plans.contains(plan)) {
        wrong(problems, fields.path("plan"), format!("there is no [plan.{plan}]"));
    }
    let state = parsed(&mut fields, "state", problems, |text| match text {
        "active" => Ok(ClientState::Active),
        "suspended" => Ok(ClientState::Suspended),
        _ => Err("must be active or suspended"),
    });
    // For people, as in the control plane.
    fields.text("name", problems);
    wire::plan::parse_labels(&mut fields, problems);
    fields.finish(problems);
    Some(FileClient { id: id.to_owned(), plan: plan?.to_owned(), state: state.unwrap_or_default() })
}

fn key(
    value: &Value,
    place: &str,
    clients: &BTreeSet<&str>,
    problems: &mut Problems,
) -> Option<FileKey> {
    let mut fields = Fields::of(value, place, problems);
    let id = needed(&mut fields, "id", problems);
    let client = needed(&mut fields, "client", problems);
    if let Some(client) = client.filter(|client| !clients.contains(client)) {
        wrong(problems, fields.path("client"), format!("there is no [client.{client}]"));
    }
    if id.is_some_and(|id| {
        id.is_empty() || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_graphic())
    }) {
        wrong(problems, fields.path("id"), "must be 1 to 64 visible ASCII characters");
    }
    must_have(&mut fields, "hash", problems);
    let hash = parsed(&mut fields, "hash", problems, |text| {
        KeyHash::from_hex(text).ok_or("must be 64 hexadecimal digits (`weir-gateway key` makes it)")
    });
    let expires_at = parsed(&mut fields, "expires_at", problems, |text| {
        humantime::parse_rfc3339_weak(text)
            .map_err(|error| error.to_string())
            .and_then(|time| millis(time).ok_or_else(|| "lies before 1970".to_owned()))
    });
    if fields.get("secret").is_some() || fields.get("key").is_some() {
        let what = "an API key never stands in a file; give its hash";
        problems.add(place, ErrorCode::InvalidValue, what);
    }
    fields.finish(problems);
    Some(FileKey { id: id?.to_owned(), client: client?.to_owned(), hash: hash?, expires_at })
}

fn millis(time: std::time::SystemTime) -> Option<u64> {
    let since = time.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}
