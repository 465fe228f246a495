//! A key's body, and which state may follow which: revoked is final, disabled can be undone.

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
        let client = match fields.text("client", problems) {
            None => {
                fields.missing("client", problems);
                None
            }
            Some(text) => Name::new(text)
                .map_err(|error| {
                    problems.add("client", ErrorCode::InvalidValue, error.to_string());
                })
                .ok(),
        };
        let env = match fields.text("env", problems) {
            None | Some("live") => KeyEnv::Live,
            Some("test") => KeyEnv::Test,
            Some(other) => {
                let detail = format!("must be live or test, not `{other}`");
                problems.add("env", ErrorCode::InvalidValue, detail);
                KeyEnv::Live
            }
        };
        let expires_at = expiry(&mut fields, now, problems);
        let reason = fields.text("reason", problems).map(ToOwned::to_owned);
        fields.finish(problems);
        Some(KeySpec { client: client?, env, expires_at, reason })
    }
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
