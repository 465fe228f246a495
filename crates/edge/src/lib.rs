//! Who is calling, under which plan and phase, what may they do now, and what is recorded about
//! it: everything between a rim (an HTTP gateway, or an answerer for another proxy) and the
//! limiter.
//!
//! A rim gives a [`Call`]: a presented key, the terms of the route, the method. It gets an
//! [`Admission`]: forward, or refuse and why, with a [`Ticket`] that it hands back to
//! [`Edge::done`] once it knows how the request ended. There is no HTTP type in here, so a second
//! rim needs no second copy of any of it.
//!
//! What this crate never does: wait for a control plane on behalf of a key that was seen before,
//! let an absent or invalid object mean "unlimited", or let a record delay a request.

mod call; // what a rim gives and gets
mod edge; // start here: admit, done
mod enforce; // (phase, decision) → verdict
mod anonymous; // address → subject
mod identify; // presented key → subject
mod key_cache; // keys on demand, bounded
mod kill_switch; // nobody is in enforce
mod metrics; // every metric of the decisions
mod plan_book; // the policy of one revision
mod plan_source; // keeps the policy fresh
mod region; // a region's part of every plan
mod state; // what outlives the process
mod record; // what is kept about a request
mod ticket; // an admitted request, until it has ended

pub use anonymous::{anonymous_client, network_of, prefix_of};
pub use call::{
    Admission, AuthMode, Call, Observed, Presented, Refusal, RouteTerms, Seen, Told, ToldLimit,
    ToldTightest,
};
pub use edge::{Background, Edge, EdgeSettings, InspectError, Inspection};
pub use enforce::{Verdict, verdict};
pub use identify::Pass;
pub use key_cache::CacheBounds;
pub use kill_switch::{KillSwitch, ToldSwitch};
pub use metrics::EdgeMetrics;
pub use plan_book::{Offer, PhaseRule, PlanBook, PlanEntry};
pub use plan_source::file::{FileClient, FileKey, FilePolicy};
pub use plan_source::{ControlPlane, FeedError, LookupError, Pending, PolicySource, ReportError};
pub use record::sink::{Evidence, EvidenceError};
pub use region::RegionShare;
pub use ticket::Ticket;

/// The limiter's vocabulary, for rims that assemble an [`Edge`].
pub use limiter_core as limiter;
