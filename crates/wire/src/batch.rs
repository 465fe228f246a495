//! What gateways report each second: exact tallies for all clients, full records for some, and
//! counters from which any loss can be computed exactly.
//!
//! A batch says how many decisions and records there were since the process began, dropped ones
//! included. Batches are numbered without gaps; resending one is harmless.

use serde::{Deserialize, Serialize};

use crate::policy::ClientState;
use crate::rollout::Phase;

/// Most cells of a batch; beyond it they are added to the service's cell without a client.
pub const CELLS_MAX: usize = 65_536;
/// Most records of a batch.
pub const RECORDS_MAX: usize = 8_192;

/// Most tokens that one cell of a batch reports as allowed: what is beyond it is not counted, so
/// that the sums of many cells fit in 63 bits.
pub const COST_ALLOWED_MAX: u64 = 1 << 50;

/// `POST /v1/batches`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Who reports.
    pub gateway: String,
    /// Random for each process.
    pub boot: String,
    /// Counts batches of a boot from 1, without gaps.
    pub seq: u64,
    /// Policy revision in force at the cut.
    pub revision: u64,
    /// The gateway is ending: nothing comes after this.
    #[serde(default)]
    pub last: bool,
    /// Decisions since boot, at the cut.
    pub cum_decisions: u64,
    /// Records since boot, dropped ones included, at the cut.
    pub cum_records: u64,
    /// What was decided since the last batch.
    pub cells: Vec<TallyCell>,
    /// Full records.
    pub records: Vec<DecisionRecord>,
}

/// Answer to a batch, after it is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchAck {
    /// The batch's number.
    pub acked_seq: u64,
    /// It was known already.
    pub duplicate: bool,
}

/// Exact counts for one client at one service in one minute and phase.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TallyCell {
    /// Minutes since 1970.
    pub minute: u64,
    /// The client; empty in the cell that takes what did not fit.
    pub client: String,
    /// The upstream.
    pub service: String,
    /// The client's phase then.
    pub phase: Phase,
    /// Revision at which the client entered that phase.
    pub since_revision: u64,
    /// Requests decided about. Each is in exactly one of the ten counts that follow.
    pub requests: u64,
    /// Pairs in which both allow.
    pub both_allow: u64,
    /// Pairs in which both deny.
    pub both_deny: u64,
    /// Pairs in which only the edge denies.
    pub stricter: u64,
    /// Pairs in which only the service denies.
    pub looser: u64,
    /// Decided degraded: the edge has no opinion, so there is no pair.
    pub undecided: u64,
    /// Unpaired: a denial without the marker.
    pub ambiguous: u64,
    /// Unpaired: no response from the service.
    pub no_reply: u64,
    /// Unpaired: the caller left before the response.
    pub caller_gone: u64,
    /// Unpaired: nobody said how this service tells its decision.
    pub not_configured: u64,
    /// Rejected at the edge (phase enforce): no service half exists.
    pub rejected: u64,
    /// Requests that the edge would deny or denied, in any phase.
    pub edge_denied: u64,
    /// Requests that the service denied.
    pub service_denied: u64,
    /// Tokens of the requests that the edge allowed.
    pub cost_allowed: u64,
}

impl TallyCell {
    /// Requests with both decisions known.
    pub const fn pairs(&self) -> u64 {
        self.both_allow + self.both_deny + self.stricter + self.looser
    }

    /// Pairs in which the two differ.
    pub const fn disagreements(&self) -> u64 {
        self.stricter + self.looser
    }

    /// Adds the counts of `other`; the identity of the cell stays.
    pub fn add(&mut self, other: &TallyCell) {
        self.requests += other.requests;
        self.both_allow += other.both_allow;
        self.both_deny += other.both_deny;
        self.stricter += other.stricter;
        self.looser += other.looser;
        self.undecided += other.undecided;
        self.ambiguous += other.ambiguous;
        self.no_reply += other.no_reply;
        self.caller_gone += other.caller_gone;
        self.not_configured += other.not_configured;
        self.rejected += other.rejected;
        self.edge_denied += other.edge_denied;
        self.service_denied += other.service_denied;
        self.cost_allowed += other.cost_allowed;
    }
}

/// Allowed or denied, on either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Let through.
    Allow,
    /// Refused, or would be.
    Deny,
}

/// One decided request. No secret, path, query, body or address, ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DecisionRecord {
    /// Store time, microseconds since 1970.
    pub at_us: u64,
    /// Counts records of a boot.
    pub seq: u64,
    /// Of the request.
    pub request_id: String,
    /// The client.
    pub client: String,
    /// The API key's public id, if there is one.
    #[serde(default)]
    pub key_id: Option<String>,
    /// Name of the plan.
    pub plan: String,
    /// Plan version that decided.
    pub plan_version: u64,
    /// Policy revision in force.
    pub revision: u64,
    /// The client's phase.
    pub phase: Phase,
    /// Name of the route.
    pub route: String,
    /// Name of the upstream.
    pub service: String,
    /// Address of the endpoint that answered.
    #[serde(default)]
    pub instance: Option<String>,
    /// Tokens asked for.
    pub cost: u64,
    /// The edge's half.
    pub edge: EdgeHalf,
    /// The service's half, or why there is none.
    pub service_half: ServiceHalf,
    /// HTTP status that the caller got.
    pub status: u16,
}

/// What the edge decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EdgeHalf {
    /// Allow or deny.
    pub outcome: Side,
    /// `store`, `lease` or `degraded`.
    pub basis: String,
    /// Why degraded.
    #[serde(default)]
    pub reason: Option<String>,
    /// Level of the burst bucket after the decision, in thousandths of a token.
    #[serde(default)]
    pub level_burst_mt: Option<i64>,
    /// Level of the sustained bucket after the decision, in thousandths of a token.
    #[serde(default)]
    pub level_sustained_mt: Option<i64>,
    /// Wait told (or that would be told), in milliseconds.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
    /// Round trip to the store in microseconds, if this request made one.
    #[serde(default)]
    pub store_us: Option<u64>,
}

/// What the service decided, as seen at the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "pair", rename_all = "snake_case")]
pub enum ServiceHalf {
    /// Both decisions are known.
    Paired {
        /// Allow or deny.
        outcome: Side,
        /// How it was known.
        source: PairSource,
        /// Tokens that the service says are left.
        #[serde(default)]
        remaining: Option<u64>,
        /// Capacity that the service says it has.
        #[serde(default)]
        limit: Option<u64>,
        /// The client that the service saw.
        #[serde(default)]
        client: Option<String>,
    },
    /// The edge decided degraded.
    Undecided,
    /// A denial without the marker.
    Ambiguous,
    /// No response.
    NoReply,
    /// The caller left.
    CallerGone,
    /// No pairing is configured.
    NotConfigured,
    /// Rejected at the edge: there is no service half.
    Rejected,
}

/// How the service's decision was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PairSource {
    /// Its decision header.
    Header,
    /// Status and marker of a denial.
    Marker,
    /// Any other response: it let the request through.
    Status,
}

/// One line of `GET /v1/clients/top`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopClient {
    /// The client.
    pub client: String,
    /// Phase it was last seen in.
    pub phase: Phase,
    /// Requests in the window.
    pub requests: u64,
    /// Would-be denials (edge denies, in any phase).
    pub would_deny: u64,
    /// Pairs.
    pub pairs: u64,
    /// Disagreements.
    pub disagreements: u64,
    /// Still known to the control plane; filled in there.
    #[serde(default)]
    pub state: Option<ClientState>,
}

/// `GET /v1/requests/{request_id}`: one decision explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// The gateway that decided.
    pub gateway: String,
    /// The record.
    pub record: DecisionRecord,
    /// What follows, in one sentence.
    pub conclusion: String,
}
