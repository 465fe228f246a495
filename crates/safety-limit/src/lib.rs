//! What a service keeps once the gateway holds its clients to their contract: a coarse limit.
//!
//! ```
//! # use std::sync::Arc;
//! # use limiter_core::SystemClock;
//! # use safety_limit::{SafetyLimit, SafetyLimits};
//! # let fetched = SafetyLimits { revision: 1, multiple: 10, plans: Vec::new(), overrides: Vec::new() };
//! let safety = SafetyLimit::new(3, Arc::new(SystemClock::new())); // three instances of this service
//! let rejected = safety.update(&fetched);                         // GET /v1/safety-limits
//! let layer = safety.layer();                                     // .layer(layer) on the router
//! # assert!(rejected.is_empty()); drop(layer);
//! ```
//!
//! Promised: the n instances of a service together admit at most `multiple` times a client's plan
//! (from eleven instances on, n times: no instance keeps less than one plan); every answer carries
//! the service's own decision for the gateway to read; what came without the gateway is counted.
//!
//! Not promised: the contract itself, which is the gateway's; a limit for plans of scope `key`,
//! because a service is not told the key; remembering a client that has long been away.

mod bucket; // this instance's part of a plan
mod clients; // whose buckets are remembered
mod layer; // start here: what happens to a request

pub use bucket::{CoarseAnswer, CoarseBucket, CoarseLimit};
pub use clients::CLIENTS_MAX;
pub use layer::{Counts, SafetyLayer, SafetyLimit, SafetyService};
pub use wire::batch::Side;
pub use wire::decision_header::{NAME as DECISION_HEADER, ServiceDecision};
pub use wire::plan::{LimitValue, PlanValue};
pub use wire::policy::SafetyLimits;

/// Set by the gateway, last: the client that it identified.
pub const CLIENT_HEADER: &str = "x-weir-client";
/// Set by the gateway, last: the name of the client's plan.
pub const PLAN_HEADER: &str = "x-weir-plan";
