//! The bodies about keys, and which state may follow which: revoked is final, disabled can be undone.

use serde_json::Value;
use wire::error::ErrorCode;
use wire::key::KeyEnv;
use wire::name::Name;
use wire::policy::KeyState;
use wire::strict::{Fields, Problems};

/// A checked body: `{"client", "env"?, "expires_at"?}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeySpec {
    pub(crate) client: Name,
    pub(crate) env: KeyEnv,
    pub(crate) expires_at: Option<u64>,
    pub(crate) reason: Option<String>,
}

impl KeySpec {
    pub(crate) fn parse(value: &Value, now: u64, problems: &mut Problems) -> Option<KeySpec> {
        let mut fields = Fields::of(value, "", problems);
        let spec = parse_key(&mut fields, now, problems);
        let reason = fields.text("reason", problems).map(ToOwned::to_owned);
        fields.finish(problems);
        Some(KeySpec { reason, ..spec? })
    }
}

/// Reads `client`, `env` and `expires_at`.
fn parse_key(fields: &mut Fields<'_>, now: u64, problems: &mut Problems) -> Option<KeySpec> {
    let client = match fields.text("client", problems) {
        None => {
            fields.missing("client", problems);
            None
        }
        Some(text) => Name::new(text)
            .map_err(|error| {
                let place = fields.path("client");
                problems.add(place, ErrorCode::InvalidValue, error.to_string());
            })
            .ok(),
    };
    let env = match fields.text("env", problems) {
        None | Some("live") => KeyEnv::Live,
        Some("test") => KeyEnv::Test,
        Some(other) => {
            let detail = format!("must be live or test, not `{other}`");
            problems.add(fields.path("env"), ErrorCode::InvalidValue, detail);
            KeyEnv::Live
        }
    };
    let expires_at = expiry(fields, now, problems);
    Some(KeySpec { client: client?, env, expires_at, reason: None })
}

/// Most keys in one import.
pub(crate) const IMPORT_KEYS_MAX: usize = 1_000;

/// A key that was made elsewhere: `{"sha256", "client", "env"?, "expires_at"?}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImportSpec {
    pub(crate) sha256: [u8; 32],
    pub(crate) key: KeySpec,
}

/// Reads `{"keys": […], "reason"?}`.
pub(crate) fn parse_import(
    value: &Value,
    now: u64,
    problems: &mut Problems,
) -> (Vec<ImportSpec>, Option<String>) {
    let mut fields = Fields::of(value, "", problems);
    let mut specs = Vec::new();
    match fields.get("keys") {
        Some(Value::Array(keys)) if (1..=IMPORT_KEYS_MAX).contains(&keys.len()) => {
            for (index, key) in keys.iter().enumerate() {
                specs.extend(parse_imported(key, &format!("keys[{index}]"), now, problems));
            }
        }
        Some(_) => {
            let detail = format!("must be a list of 1 to {IMPORT_KEYS_MAX} keys");
            problems.add("keys", ErrorCode::InvalidValue, detail);
        }
        None => fields.missing("keys", problems),
    }
    let reason = fields.text("reason", problems).map(ToOwned::to_owned);
    fields.finish(problems);
    (specs, reason)
}

fn parse_imported(
    value: &Value,
    path: &str,
    now: u64,
    problems: &mut Problems,
) -> Option<ImportSpec> {
    let mut fields = Fields::of(value, path, problems);
    // The hash is as good as the key to whoever can try keys: no message shows it.
    let sha256 = match fields.get("sha256").map(Value::as_str) {
        None => {
            fields.missing("sha256", problems);
            None
        }
        Some(text) => {
            let bytes = text.and_then(wire::key::KeyHash::from_hex).map(|hash| *hash.bytes());
            if bytes.is_none() {
                let detail = "must be the key's SHA-256, 64 hexadecimal digits";
                problems.add(fields.path("sha256"), ErrorCode::InvalidValue, detail);
            }
            bytes
        }
    };
    let key = parse_key(&mut fields, now, problems);
    fields.finish(problems);
    Some(ImportSpec { sha256: sha256?, key: key? })
}

/// How long a replaced secret opens beside its successor, if nobody says: a day.
const OVERLAP_MS: u64 = 86_400_000;
/// Longest such time: a year.
const OVERLAP_MS_MAX: u64 = 366 * 86_400_000;

/// Reads `{"overlap_ms"?, "reason"?}`.
pub(crate) fn parse_rotation(value: &Value, problems: &mut Problems) -> (u64, Option<String>) {
    let mut fields = Fields::of(value, "", problems);
    let overlap = fields.whole("overlap_ms", ErrorCode::InvalidValue, problems);
    let overlap = overlap.unwrap_or(OVERLAP_MS);
    if overlap > OVERLAP_MS_MAX {
        let detail = format!("must be at most {OVERLAP_MS_MAX} (a year), not `{overlap}`");
        problems.add("overlap_ms", ErrorCode::InvalidValue, detail);
    }
    let reason = fields.text("reason", problems).map(ToOwned::to_owned);
    fields.finish(problems);
    (overlap, reason)
}

/// Reads `expires_at`: milliseconds since 1970, in the future.
pub(crate) fn expiry(fields: &mut Fields<'_>, now: u64, problems: &mut Problems) -> Option<u64> {
    let at = fields.whole("expires_at", ErrorCode::InvalidValue, problems)?;
    if at <= now || i64::try_from(at).is_err() {
        let detail = format!("must be milliseconds since 1970 in the future, not `{at}`");
        problems.add(fields.path("expires_at"), ErrorCode::InvalidValue, detail);
    }
    Some(at)
}

/// A move of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyMove {
    Revoke,
    Disable,
    Enable,
}

impl KeyMove {
    /// From the verb in the path.
    pub(crate) fn named(verb: &str) -> Option<KeyMove> {
        match verb {
            "revoke" => Some(KeyMove::Revoke),
            "disable" => Some(KeyMove::Disable),
            "enable" => Some(KeyMove::Enable),
            _ => None,
        }
    }

    pub(crate) const fn command(self) -> &'static str {
        match self {
            KeyMove::Revoke => "key revoke",
            KeyMove::Disable => "key disable",
            KeyMove::Enable => "key enable",
        }
    }

    /// The state after it; `None` if the move is not allowed from `state`.
    pub(crate) const fn from(self, state: KeyState) -> Option<KeyState> {
        match (self, state) {
            (KeyMove::Revoke, _) => Some(KeyState::Revoked),
            (KeyMove::Disable | KeyMove::Enable, KeyState::Revoked) => None,
            (KeyMove::Disable, KeyState::Active | KeyState::Disabled) => Some(KeyState::Disabled),
            (KeyMove::Enable, KeyState::Active | KeyState::Disabled) => Some(KeyState::Active),
        }
    }
}
