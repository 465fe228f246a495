//! What a rim gives to the edge and what it gets back. Plain data; every choice is an enum, so a
//! rim that forgets an answer does not compile.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Cost, FailurePolicy, Wait};
use wire::batch::{PairSource, Side};

use crate::ticket::Ticket;

/// One request, as far as it concerns a limit.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What the caller shows.
    pub presented: Presented<'a>,
    /// The route it takes. Shared, so that nothing is copied for each request.
    pub route: &'a Arc<RouteTerms>,
    /// Its method, as in cost rules.
    pub method: &'a str,
    /// Its id, for records.
    pub request_id: &'a str,
}

/// What a caller shows of itself. The bytes are checked by the rim: 1 to 256 visible ASCII.
#[derive(Clone, Copy)]
pub enum Presented<'a> {
    /// An API key.
    Key(&'a str),
    /// Nothing at all.
    Nothing,
    /// Only where it comes from.
    Address(IpAddr),
}

impl std::fmt::Debug for Presented<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Presented::Key(_) => f.write_str("Key(…)"),
            Presented::Nothing => f.write_str("Nothing"),
            Presented::Address(_) => f.write_str("Address(…)"),
        }
    }
}

/// What a route asks of its callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTerms {
    /// Its name, as in cost rules.
    pub name: String,
    /// The upstream behind it.
    pub service: String,
    /// Tokens of a request for which the plan has no cost rule.
    pub cost: Cost,
    /// Who may come.
    pub auth: AuthMode,
    /// Replaces the plan's failure policy.
    pub failure: Option<FailurePolicy>,
    /// Whether the service's own decision can be known.
    pub pairing: bool,
}

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Holders of a valid API key, within their plan.
    Key,
    /// Everybody, each address within the plan of anonymous callers.
    Anonymous,
    /// Everybody: nobody is identified and nothing is limited.
    None,
}

/// The edge's answer to a call.
#[derive(Debug)]
pub enum Admission {
    /// Let it through; hand the ticket back when it has ended.
    Forward(Ticket),
    /// Answer it yourself. The ticket, where there is one, is handed back too.
    Refuse(Refusal, Option<Ticket>),
}

/// Why a request is not let through. One variant for each different answer to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No key was shown where one is needed.
    KeyMissing,
    /// The key is unknown, invented, disabled, expired or revoked: one answer for all of them.
    KeyInvalid,
    /// The key is good, but its client may not call.
    ClientSuspended,
    /// Nobody could be asked about this key now.
    KeyUnverified {
        /// Worth another try then.
        retry: Duration,
    },
    /// The client's plan is unknown here or none of its versions was valid.
    PlanInvalid,
    /// No policy has arrived since the start.
    NoPolicy,
    /// Over the limit.
    Denied {
        /// When it ends.
        wait: Wait,
    },
    /// Dearer than the plan's smallest bucket: no waiting helps.
    CostExceedsCapacity,
    /// The store is away and the failure policy admits nothing.
    LimiterClosed {
        /// Worth another try then.
        retry: Duration,
    },
}

impl Refusal {
    /// Its name in metrics and logs: a closed set.
    pub const fn name(&self) -> &'static str {
        match self {
            Refusal::KeyMissing => "key_missing",
            Refusal::KeyInvalid => "key_invalid",
            Refusal::ClientSuspended => "client_suspended",
            Refusal::KeyUnverified { .. } => "key_unverified",
            Refusal::PlanInvalid => "plan_invalid",
            Refusal::NoPolicy => "no_policy",
            Refusal::Denied { .. } => "denied",
            Refusal::CostExceedsCapacity => "cost_exceeds_capacity",
            Refusal::LimiterClosed { .. } => "limiter_closed",
        }
    }
}

/// How a request ended, as the rim saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// HTTP status that the caller got.
    pub status: u16,
    /// Address of the endpoint that answered.
    pub instance: Option<SocketAddr>,
    /// The service's own decision, or why it is not known.
    pub service: Seen,
}

/// The service's half of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It is known.
    Decision {
        /// Allow or deny.
        outcome: Side,
        /// How it was known.
        source: PairSource,
        /// Tokens that the service says are left.
        remaining: Option<u64>,
        /// Capacity that the service says it has.
        limit: Option<u64>,
        /// The client that the service saw.
        client: Option<String>,
    },
    /// A denial without the configured marker.
    Ambiguous,
    /// No response came.
    NoReply,
    /// The caller left before the response.
    CallerGone,
    /// Nobody said how this service tells its decision.
    NotConfigured,
    /// The edge or the rim refused: the service never saw it.
    Refused,
}

/// What a caller may be told about its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The burst limit.
    pub burst: ToldLimit,
    /// The sustained limit, if the plan has one.
    pub sustained: Option<ToldLimit>,
    /// The one that will be empty first.
    pub tightest: ToldTightest,
    /// When this refused caller's turn comes, behind others who were refused before it.
    pub turn: Option<Duration>,
}

impl Told {
    /// Both limits, burst first.
    pub fn limits(&self) -> impl Iterator<Item = ToldLimit> {
        std::iter::once(self.burst).chain(self.sustained)
    }
}

/// One limit of the plan in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldLimit {
    /// `burst` or `sustained`.
    pub name: &'static str,
    /// Tokens that it holds.
    pub capacity: u64,
    /// Seconds from empty to full, rounded up; absent for a fixed allowance.
    pub window_s: Option<u64>,
}

/// Where the caller stands with its tightest limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldTightest {
    /// `burst` or `sustained`.
    pub name: &'static str,
    /// Whole tokens left, the least over both limits.
    pub remaining: u64,
    /// Seconds until it is full again, rounded up; absent for a fixed allowance, and while the
    /// store is away.
    pub reset_s: Option<u64>,
}
