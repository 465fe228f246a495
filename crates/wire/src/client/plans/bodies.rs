//! The bodies that only people's tools and plans-api exchange: objects as the API shows them, and
//! its answers. What gateways exchange with plans-api is in [`crate::policy`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{OverrideBody, SecretObject};
use crate::audit::AuditHash;
use crate::gate::{GateReport, GateVerdict};
use crate::key::{KeyEnv, KeyHash};
use crate::plan::{CostRule, Scope};
use crate::policy::{ClientState, KeyState, Rejected};
use crate::rollout::{RolloutRule, RolloutValue};

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Page<T> {
    /// Its items, by id.
    pub items: Vec<T>,
    /// Where the next page begins; none after the last one.
    pub next: Option<String>,
}

/// Answer to a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Changed<T> {
    /// The newest revision after it.
    pub revision: u64,
    /// The object now; none if it was deleted.
    pub object: Option<T>,
}

/// A limit as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitBody {
    /// Tokens that fit.
    pub capacity: u64,
    /// Tokens earned, as `50/s`.
    pub refill: String,
}

/// A plan as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlanObject {
    /// Its name.
    pub name: String,
    /// No limits at all.
    #[serde(default)]
    pub unlimited: bool,
    /// Burst limit.
    #[serde(default)]
    pub burst: Option<LimitBody>,
    /// Sustained limit.
    #[serde(default)]
    pub sustained: Option<LimitBody>,
    /// Failure policy as text.
    pub failure: String,
    /// What shares a bucket.
    pub scope: Scope,
    /// Cost rules.
    #[serde(default)]
    pub costs: Vec<CostRule>,
    /// For selecting.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// For people.
    #[serde(default)]
    pub note: String,
    /// Revision of its last change.
    pub revision: u64,
}

/// A client as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientObject {
    /// Its id.
    pub id: String,
    /// For people.
    #[serde(default)]
    pub name: String,
    /// Its plan's name.
    pub plan: String,
    /// May it call?
    pub state: ClientState,
    /// Limits of its own, for a time; it may have ended.
    #[serde(rename = "override", default, skip_serializing_if = "Option::is_none")]
    pub overridden: Option<OverrideBody>,
    /// For selecting.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Revision of the last reset of its bucket.
    pub reset_revision: u64,
    /// Revision of its last change.
    pub revision: u64,
}

/// An API key as the API shows it: never a secret, never a hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyObject {
    /// Its public id.
    pub id: String,
    /// Whose it is.
    pub client: String,
    /// What it is for.
    pub env: KeyEnv,
    /// Whether it opens.
    pub state: KeyState,
    /// Until when, in milliseconds since 1970.
    pub expires_at: Option<u64>,
    /// When it was made.
    pub created_at: u64,
    /// Who made it.
    pub created_by: String,
    /// It was made elsewhere, so it has no tag that a gateway can check by itself.
    #[serde(default)]
    pub imported: bool,
    /// Revision of its last change.
    pub revision: u64,
}

/// Answer to the creation of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewKey {
    /// The newest revision after it.
    pub revision: u64,
    /// The key's public part.
    pub object: KeyObject,
    /// The key itself: shown here and never again. Absent if the call was only tried
    /// (`?dry_run=true`): no key was made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// After a rotation: the secret that this one replaces, if it still opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<SecretObject>,
}

/// What a token may do. Viewer ⊂ support ⊂ operator ⊂ admin; the others stand aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Resets a bucket, rotates and disables keys.
    Support,
    /// Changes plans, clients, keys and rollouts.
    Operator,
    /// Makes tokens.
    Admin,
    /// Reads, and accepts what others ask for.
    Approver,
    /// Feed, snapshot, look-up.
    Gateway,
    /// Safety limits.
    Service,
    /// One use: making an admin's token.
    Bootstrap,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 8] = [
        Role::Viewer,
        Role::Support,
        Role::Operator,
        Role::Admin,
        Role::Approver,
        Role::Gateway,
        Role::Service,
        Role::Bootstrap,
    ];

    /// As written in commands and bodies.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Support => "support",
            Role::Operator => "operator",
            Role::Admin => "admin",
            Role::Approver => "approver",
            Role::Gateway => "gateway",
            Role::Service => "service",
            Role::Bootstrap => "bootstrap",
        }
    }

    /// The role with this name.
    pub fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// An operator token as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenObject {
    /// Its public id.
    pub id: String,
    /// Whose it is or what it is for.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// A program's: it never accepts an approval.
    #[serde(default)]
    pub machine: bool,
    /// When it was made, in milliseconds since 1970.
    pub created_at: u64,
    /// Until when it opens; forever if absent.
    pub expires_at: Option<u64>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<u64>,
    /// When it was revoked.
    pub revoked_at: Option<u64>,
}

/// Answer to the creation of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewToken {
    /// The newest revision.
    pub revision: u64,
    /// The token's public part.
    pub object: TokenObject,
    /// The token itself: shown here and never again. Absent if the call was only tried
    /// (`?dry_run=true`): no token was made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// Its stored form, for shadow-compare's list of gateway tokens.
    pub hash: KeyHash,
}

/// What `apply` did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Applied {
    /// The newest revision after it.
    pub revision: u64,
    /// Nothing was changed: it was only asked for.
    pub dry_run: bool,
    /// One line for each object of the body.
    pub changes: Vec<AppliedChange>,
}

/// What becomes of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AppliedChange {
    /// `plan` or `client`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// What happens to it.
    pub action: AppliedAction,
    /// The differing fields, as `burst.refill: 50/s → 40/s`.
    #[serde(default)]
    pub fields: Vec<String>,
}

/// What happens to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AppliedAction {
    /// It is new.
    Create,
    /// It differs.
    Update,
    /// It is so already.
    Same,
    /// It stands in no file and carries the label that says it may go.
    Delete,
}

/// A rollout with its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RolloutObject {
    /// Its name.
    pub name: String,
    /// Its rules.
    pub rules: Vec<RolloutRule>,
    /// Share of clients with full decision records, in ten-thousandths.
    pub share_bp: u32,
    /// Revision of its last change.
    pub revision: u64,
    /// Its moves, oldest first.
    #[serde(default)]
    pub history: Vec<RolloutMove>,
}

impl RolloutObject {
    /// As gateways are told it.
    pub fn value(&self) -> RolloutValue {
        RolloutValue {
            name: self.name.clone(),
            rules: self.rules.clone(),
            share_bp: self.share_bp,
            revision: self.revision,
        }
    }
}

/// One move of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RolloutMove {
    /// Its revision.
    pub revision: u64,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// Who.
    pub actor: String,
    /// What, as `set all shadow`.
    pub command: String,
    /// Why.
    pub reason: String,
}

/// Answer to a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Moved {
    /// The newest revision after it.
    pub revision: u64,
    /// The rollout now.
    pub object: RolloutObject,
    /// Rules for single clients that a rule for all has replaced.
    pub replaced: u64,
}

/// Whom `set` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whom {
    /// Single clients.
    Clients(Vec<String>),
    /// Everybody.
    All,
}

/// `GET /v1/gates/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gate {
    /// The rollout.
    pub name: String,
    /// Whether `--all enforce` may go on.
    pub verdict: GateVerdict,
    /// The number.
    pub report: GateReport,
}

/// A gateway as the control plane saw it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GatewayObject {
    /// Its id.
    pub id: String,
    /// Random for each process.
    pub boot: String,
    /// Version of the program.
    pub build: String,
    /// Address of its operations port.
    pub ops_url: Option<String>,
    /// Names of its routes.
    pub routes: Vec<String>,
    /// Revision in force there.
    pub applied: u64,
    /// Objects that it would not take.
    pub rejected: Vec<Rejected>,
    /// The id of a kill switch that was set there by hand.
    #[serde(default)]
    pub killswitch: Option<String>,
    /// When it polled last, in milliseconds since 1970.
    pub seen_at: u64,
    /// It polled in the last 15 seconds.
    pub live: bool,
}

/// One change as the audit has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditRow {
    /// Counts changes from 1, without gaps.
    pub seq: u64,
    /// Revision that it made; none where gateways are not concerned.
    pub revision: Option<u64>,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// Whose token.
    pub actor: String,
    /// `api`, or `start` for what the program did itself.
    pub via: String,
    /// What.
    pub command: String,
    /// Why.
    pub reason: String,
    /// Kind of the object.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// The object before.
    pub before: Option<Value>,
    /// The object after.
    pub after: Option<Value>,
    /// Of the request.
    pub request_id: String,
    /// Hash of the row before it; none if an older process wrote it and no change came since.
    #[serde(default)]
    pub prev: Option<AuditHash>,
    /// Its own hash.
    #[serde(default)]
    pub hash: Option<AuditHash>,
}

/// Which rows of the audit are asked for; empty is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// A token's name, its id, or both as a row shows them.
    pub actor: Option<String>,
    /// Kind of the object.
    pub kind: Option<String>,
    /// Its id.
    pub id: Option<String>,
    /// Not older than this, in milliseconds since 1970.
    pub since: Option<u64>,
}

/// Answer to a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Restored {
    /// The newest revision, of every restored object.
    pub revision: u64,
    /// The new history.
    pub history: String,
    /// Rows of the backup.
    pub rows: u64,
    /// When the backup was made, in milliseconds since 1970.
    pub made_at: u64,
    /// Keys that the backup has as usable and that stay revoked.
    pub stay_revoked: u64,
    /// Secrets that the backup has as open, or open for longer, and that end as they do here.
    #[serde(default)]
    pub stay_ended: u64,
}

/// Order of the top list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopBy {
    /// Would-be denials.
    WouldDeny,
    /// Disagreements.
    Disagree,
    /// Requests.
    Requests,
}

impl TopBy {
    /// As in the query.
    pub const fn name(self) -> &'static str {
        match self {
            TopBy::WouldDeny => "would_deny",
            TopBy::Disagree => "disagree",
            TopBy::Requests => "requests",
        }
    }
}

/// A list of another part, passed on whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Items<T> {
    /// Its items.
    pub items: Vec<T>,
}

/// Whether `apply` changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyMode {
    /// Show what would change.
    DryRun,
    /// Make it so.
    Apply,
}
