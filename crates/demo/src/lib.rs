//! The world before Weir, to be limited: three services with a bucket in each replica, and the
//! incident that this led to.
//!
//! It shows why one contract copied nine times is nine contracts. It is no evidence: what is
//! measured about Weir is measured by the lab, over real processes.

mod services; // orders, billing, search: one replica of each kind
mod program; // one replica as a process
pub mod incident; // start here: who sends what, when

pub use program::main;
pub use safety_limit::{Counts, LimitValue, PlanValue, SafetyLimits};
pub use services::{
    ARRIVALS_MAX, Arrival, ID_HEADER, LIMITED_BY_HEADER, Mode, Replica, SERVICES, Verdict, serve,
};
