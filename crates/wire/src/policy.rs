//! How gateways learn the policy: a snapshot at first, then a feed of whole values by revision;
//! API keys are looked up on first use and kept current by the same feed.
//!
//! Times are milliseconds since 1970 (UTC). A revision never goes back within one history.

use serde::{Deserialize, Serialize};

use crate::key::{KeyEnv, KeyHash};
use crate::killswitch::KillswitchValue;
use crate::plan::{LimitValue, PlanValue};
use crate::rollout::RolloutValue;

mod door; // what a gateway checks once more
mod lenient; // one bad object spoils no other

/// Longest wait of a feed call, in milliseconds.
pub const FEED_WAIT_MS_MAX: u64 = 10_000;
/// Most changes in one feed answer.
pub const FEED_CHANGES_MAX: usize = 1_000;
/// Most hashes in one look-up.
pub const LOOKUP_HASHES_MAX: usize = 1_000;

/// `POST /v1/feed`: what a gateway has and wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FeedRequest {
    /// The gateway's id.
    pub gateway: String,
    /// Random for each process.
    pub boot: String,
    /// Version of the program.
    pub build: String,
    /// Address of its operations port, if it may be called.
    #[serde(default)]
    pub ops_url: Option<String>,
    /// Names of its routes.
    #[serde(default)]
    pub routes: Vec<String>,
    /// The history that `after` belongs to.
    pub history: String,
    /// Send what came after this revision.
    pub after: u64,
    /// Wait at most this long for it.
    pub wait_ms: u64,
    /// Revision in force here: the acknowledgement.
    pub applied: u64,
    /// Objects that failed the last door.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// The id of a kill switch that was set at the gateway itself.
    #[serde(default)]
    pub killswitch: Option<String>,
}

/// An object that a gateway would not take; its last valid version stays in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rejected {
    /// Kind of the object.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Revision that was refused.
    pub revision: u64,
    /// Why.
    pub reason: String,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FeedAnswer {
    /// The history of all revisions in it.
    pub history: String,
    /// The newest revision there is.
    pub head: u64,
    /// Gateways that polled lately: the largest number of the last ten minutes.
    pub live_gateways: u32,
    /// What changed, ascending by revision.
    pub changes: Vec<Change>,
}

/// One change of one object. An object that does not read is [`Object::Unreadable`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(!from))]
#[serde(from = "lenient::AnyChange")]
pub struct Change {
    /// Its revision.
    pub revision: u64,
    /// The object's kind and id, with its whole new value, or nothing if it was deleted.
    pub object: Object,
}

/// An object of the policy, or a key or client, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Object {
    /// A plan.
    Plan {
        /// Its name.
        id: String,
        /// The plan, or nothing if deleted.
        value: Option<PlanValue>,
    },
    /// A client.
    Client {
        /// Its id.
        id: String,
        /// The client, or nothing if deleted.
        value: Option<ClientValue>,
    },
    /// An API key.
    Key {
        /// Its id.
        id: String,
        /// The key, or nothing if deleted.
        value: Option<KeyValue>,
    },
    /// The rollout.
    Rollout {
        /// Its name.
        id: String,
        /// The rollout, or nothing if closed.
        value: Option<RolloutValue>,
    },
    /// The kill switch.
    Killswitch {
        /// Its id.
        id: String,
        /// The switch, or nothing if cleared.
        value: Option<KillswitchValue>,
    },
    /// Something happened to an object, but what cannot be read. Its last valid version stays.
    Unreadable {
        /// Kind of the object.
        of: String,
        /// Its id.
        id: String,
        /// What is wrong.
        reason: String,
    },
}

impl Object {
    /// Kind and id.
    pub fn name(&self) -> (&str, &str) {
        match self {
            Object::Plan { id, .. } => ("plan", id),
            Object::Client { id, .. } => ("client", id),
            Object::Key { id, .. } => ("key", id),
            Object::Rollout { id, .. } => ("rollout", id),
            Object::Killswitch { id, .. } => ("killswitch", id),
            Object::Unreadable { of, id, .. } => (of, id),
        }
    }
}

/// Whether a client may call at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClientState {
    /// It may.
    #[default]
    Active,
    /// 403 for every request.
    Suspended,
}

/// A client as gateways are told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientValue {
    /// Its id.
    pub id: String,
    /// Its plan's name.
    pub plan: String,
    /// May it call?
    pub state: ClientState,
    /// Limits of its own, for a time.
    #[serde(rename = "override", default, skip_serializing_if = "Option::is_none")]
    pub overridden: Option<OverrideValue>,
    /// Revision of the last reset of its bucket; 0 if there was none.
    #[serde(default)]
    pub reset_revision: u64,
    /// Revision of its last change.
    pub revision: u64,
}

/// Whole limits of one client in place of its plan's, until a time that gateways judge by their
/// own clocks. What is absent is the plan's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OverrideValue {
    /// Burst limit.
    #[serde(default)]
    pub burst: Option<LimitValue>,
    /// Sustained limit.
    #[serde(default)]
    pub sustained: Option<LimitValue>,
    /// Failure policy as text.
    #[serde(default)]
    pub failure: Option<String>,
    /// Until then.
    pub expires_at: u64,
}

/// Whether a key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// It does.
    #[default]
    Active,
    /// Not now.
    Disabled,
    /// Never again.
    Revoked,
}

/// An API key as gateways are told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyValue {
    /// Its public id.
    pub id: String,
    /// Whose it is.
    pub client: String,
    /// What it is for.
    pub env: KeyEnv,
    /// Whether it opens.
    pub state: KeyState,
    /// Until when, judged by the gateway.
    #[serde(default)]
    pub expires_at: Option<u64>,
    /// Its stored secrets, at most two.
    pub secrets: Vec<SecretValue>,
    /// Revision of its last change.
    pub revision: u64,
}

/// One secret of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretValue {
    /// Stored form.
    pub hash: KeyHash,
    /// Until when it opens; forever if absent.
    #[serde(default)]
    pub valid_until: Option<u64>,
}

/// `GET /v1/snapshot`: the whole policy at one revision. Keys and clients are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// The history of the revision.
    pub history: String,
    /// What it is as of.
    pub revision: u64,
    /// Which pepper keys are hashed with.
    pub pepper_id: String,
    /// As in [`FeedAnswer`].
    pub live_gateways: u32,
    /// All plans. One that does not read is one that no gateway takes.
    #[serde(deserialize_with = "lenient::plans")]
    pub plans: Vec<PlanValue>,
    /// The active rollout. As with plans.
    #[serde(deserialize_with = "lenient::rollout")]
    pub rollout: Option<RolloutValue>,
    /// The kill switch, if it is set.
    #[serde(default)]
    pub killswitch: Option<KillswitchValue>,
}

/// `POST /v1/keys:lookup`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LookupRequest {
    /// Stored forms of the presented keys.
    pub hashes: Vec<KeyHash>,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LookupAnswer {
    /// What it is as of.
    pub revision: u64,
    /// Known keys.
    pub found: Vec<FoundKey>,
    /// Unknown ones.
    pub missing: Vec<KeyHash>,
}

/// A known key with its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FoundKey {
    /// The hash that was asked for.
    pub hash: KeyHash,
    /// The key.
    pub key: KeyValue,
    /// Its client.
    pub client: ClientValue,
}

/// `GET /v1/safety-limits`: what services keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SafetyLimits {
    /// What it is as of.
    pub revision: u64,
    /// Times the plan.
    pub multiple: u32,
    /// All plans.
    pub plans: Vec<PlanValue>,
    /// Clients with limits of their own now.
    #[serde(default)]
    pub overrides: Vec<SafetyOverride>,
}

/// A client's own limits, as services are told them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SafetyOverride {
    /// The client.
    pub client: String,
    /// Its burst limit, if it is not the plan's.
    #[serde(default)]
    pub burst: Option<LimitValue>,
    /// Its sustained limit, if it is not the plan's.
    #[serde(default)]
    pub sustained: Option<LimitValue>,
}
