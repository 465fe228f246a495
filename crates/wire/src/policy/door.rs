//! The last door for clients, keys, rollouts and the kill switch: what a gateway may rely on,
//! whoever wrote it. Plans have theirs in [`crate::plan::PlanValue::check`].

use limiter_core::{FailurePolicy, Limit};

use super::{Change, ClientValue, FoundKey, KeyValue, Object, OverrideValue};
use crate::killswitch::KillswitchValue;
use crate::name::{Name, NameError};
use crate::plan::LimitValue;
use crate::rollout::RolloutValue;

/// Longest id of a key, in bytes.
const KEY_ID_BYTES_MAX: usize = 64;
/// Most secrets of a key.
const SECRETS_MAX: usize = 2;
/// Shares are counted in ten-thousandths.
const WHOLE_SHARE_BP: u32 = 10_000;

impl Object {
    /// Why a gateway may not rely on it, if it may not. Plans have a door of their own.
    pub fn fault(&self) -> Option<String> {
        let checked = match self {
            Object::Client { id, value: Some(value) } => value.check().and(same(id, &value.id)),
            Object::Key { id, value: Some(value) } => value.check().and(same(id, &value.id)),
            Object::Rollout { id, value: Some(value) } => value.check().and(same(id, &value.name)),
            Object::Killswitch { id, value: Some(value) } => value.check().and(same(id, &value.id)),
            Object::Plan { id, value: Some(value) } => same(id, &value.name),
            Object::Unreadable { reason, .. } => Err(reason.clone()),
            Object::Plan { value: None, .. }
            | Object::Client { value: None, .. }
            | Object::Key { value: None, .. }
            | Object::Rollout { value: None, .. }
            | Object::Killswitch { value: None, .. } => Ok(()),
        };
        checked.err()
    }
}

impl Change {
    /// The same. A key or client whose value bears another revision than the change would outlast
    /// what is told of it later, or be outlasted by what was told before.
    pub fn fault(&self) -> Option<String> {
        let own = match &self.object {
            Object::Client { value: Some(value), .. } => Some(value.revision),
            Object::Key { value: Some(value), .. } => Some(value.revision),
            Object::Client { value: None, .. }
            | Object::Key { value: None, .. }
            | Object::Plan { .. }
            | Object::Rollout { .. }
            | Object::Killswitch { .. }
            | Object::Unreadable { .. } => None,
        };
        let other = own.filter(|own| *own != self.revision);
        let differs = |own| format!("revision: {own}, told at {}", self.revision);
        self.object.fault().or_else(|| other.map(differs))
    }
}

impl FoundKey {
    /// The last door for what an answer as of a revision tells: nothing in it can be newer.
    pub fn check(&self, as_of: u64) -> Result<(), String> {
        let told = |of: &str, revision: u64| match revision <= as_of {
            true => Ok(()),
            false => Err(format!("{of}.revision: {revision}, told as of {as_of}")),
        };
        let newest = told("key", self.key.revision).and(told("client", self.client.revision));
        let own = self.key.check().and(self.client.check());
        own.and(same(&self.key.client, &self.client.id)).and(newest)
    }
}

fn same(told: &str, own: &str) -> Result<(), String> {
    if told == own { Ok(()) } else { Err(format!("it calls itself `{own}`")) }
}

fn name(field: &str, text: &str) -> Result<(), String> {
    Name::new(text).map(drop).map_err(|error: NameError| format!("{field}: {error}"))
}

impl ClientValue {
    /// The last door.
    pub fn check(&self) -> Result<(), String> {
        let own = self.overridden.as_ref().map_or(Ok(()), OverrideValue::check);
        name("id", &self.id).and(name("plan", &self.plan)).and(own)
    }
}

impl OverrideValue {
    /// The last door.
    pub fn check(&self) -> Result<(), String> {
        let limit = |field: &str, value: Option<LimitValue>| match value.map(Limit::try_from) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(format!("override.{field}: {error}")),
        };
        let failure = match self.failure.as_deref().map(str::parse::<FailurePolicy>) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(format!("override.failure: {error}")),
        };
        limit("burst", self.burst).and(limit("sustained", self.sustained)).and(failure)
    }
}

impl KeyValue {
    /// The last door.
    pub fn check(&self) -> Result<(), String> {
        let id = &self.id;
        if !(1..=KEY_ID_BYTES_MAX).contains(&id.len()) || !id.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(format!("id: 1 to {KEY_ID_BYTES_MAX} visible ASCII bytes"));
        }
        if self.secrets.len() > SECRETS_MAX {
            let given = self.secrets.len();
            return Err(format!("secrets: at most {SECRETS_MAX}, not {given}"));
        }
        name("client", &self.client)
    }
}

impl RolloutValue {
    /// The last door.
    pub fn check(&self) -> Result<(), String> {
        if self.share_bp > WHOLE_SHARE_BP {
            return Err(format!("share_bp: at most {WHOLE_SHARE_BP}, not {}", self.share_bp));
        }
        name("name", &self.name)
    }
}

impl KillswitchValue {
    /// The last door.
    pub fn check(&self) -> Result<(), String> {
        name("id", &self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fault(object: serde_json::Value) -> Option<String> {
        serde_json::from_value::<Object>(object).unwrap().fault()
    }

    #[test]
    fn what_no_gateway_may_rely_on_is_named() {
        let client = |id: &str, plan: &str| {
            let value = json!({ "id": id, "plan": plan, "state": "active", "revision": 1 });
            fault(json!({ "kind": "client", "id": "acme", "value": value }))
        };
        assert_eq!(client("acme", "pro"), None);
        assert!(client("acme", "Pro!").unwrap().starts_with("plan: "));
        assert!(client("ACME", "pro").unwrap().starts_with("id: "));
        assert_eq!(client("zeta", "pro").unwrap(), "it calls itself `zeta`");
        let key = |id: &str, secrets: usize| {
            let secret = json!({ "hash": "00".repeat(32) });
            let value = json!({
                "id": id, "client": "acme", "env": "live", "state": "active", "revision": 1,
                "secrets": vec![secret; secrets],
            });
            fault(json!({ "kind": "key", "id": id, "value": value }))
        };
        assert_eq!(key("k7Q2f9xkda", 2), None);
        assert!(key("k7Q2f9xkda", 3).unwrap().contains("at most 2, not 3"));
        assert!(key("", 1).unwrap().starts_with("id: "));
        assert!(key("with space", 1).unwrap().starts_with("id: "));
        assert_eq!(fault(json!({ "kind": "key", "id": "anything", "value": null })), None);
    }

    #[test]
    fn a_value_of_another_revision_than_it_is_told_at_is_none_to_rely_on() {
        let key = json!({
            "id": "k7Q2f9xkda", "client": "acme", "env": "live", "state": "active",
            "revision": 7, "secrets": [],
        });
        let client = json!({ "id": "acme", "plan": "pro", "state": "active", "revision": 7 });
        for (kind, value) in [("key", &key), ("client", &client)] {
            let fault = |revision: u64| {
                let object = json!({ "kind": kind, "id": value["id"], "value": value });
                let change = json!({ "revision": revision, "object": object });
                serde_json::from_value::<Change>(change).unwrap().fault()
            };
            assert_eq!(fault(7), None);
            assert_eq!(fault(6).unwrap(), "revision: 7, told at 6");
            assert!(fault(8).is_some(), "{kind}");
        }
        let mut newer = client.clone();
        newer["revision"] = json!(8);
        for (client, expected) in [(&client, None), (&newer, Some("client.revision: 8"))] {
            let found = json!({ "hash": "00".repeat(32), "key": key, "client": client });
            let found: FoundKey = serde_json::from_value(found).unwrap();
            assert!(found.check(6).unwrap_err().starts_with("key.revision: 7"));
            let told = found.check(7).err();
            assert_eq!(told.is_some(), expected.is_some(), "{told:?}");
            assert!(told.unwrap_or_default().starts_with(expected.unwrap_or_default()));
            assert_eq!(found.check(8), Ok(()));
        }
    }
}
