//! How much may this client do now? One question, one [`Decision`].
//!
//! A bucket pair (burst, and optionally sustained) lives in a store: in this process, or in Redis.
//! Three invariants hold whatever happens around it:
//! 1. tokens are whole numbers and time is whole microseconds: nothing drifts;
//! 2. while the store keeps its data, admissions never exceed capacity + rate · time;
//! 3. a denial says when it ends, and is never early.
//!
//! The pure part (no features) has no I/O and takes the time as an argument; `limiter` adds the
//! decision for live requests and the embedded store, `redis` the shared one.
//!
//! ```
//! use limiter_core::{bucket, Capacity, Found, Limit, Limits, PlanNumbers, PlanVersion, RefillRate};
//! use limiter_core::{Request, Timestamp};
//!
//! let limit = Limit::new(Capacity::new(3)?, RefillRate::per_second(1)?)?;
//! let plan = PlanNumbers { version: PlanVersion(1), limits: Limits::burst_only(limit) };
//! let now = Timestamp::from_us(1_000_000);
//! let applied = bucket::apply(None, Found::Nothing, &Request::take(plan, 2, 2), now);
//! assert_eq!((applied.reply.granted, applied.reply.levels.burst.tokens), (2, 1));
//! # Ok::<(), limiter_core::LimitError>(())
//! ```

mod units; // what is counted
mod limit; // what a plan promises
mod time; // when
mod key; // whose bucket
mod call; // what is said to a store
pub mod bucket; // refill, then take
pub mod replay; // the same over requests of the past
mod decision; // the answer
mod degraded; // the answer without a store
mod breaker; // when to stop asking a store
#[cfg(feature = "limiter")]
mod lease; // tokens to spend without asking
pub mod store; // where buckets live
#[cfg(feature = "limiter")]
mod limiter; // start here: one question in, one decision out
#[cfg(feature = "testkit")]
pub mod testkit; // for people who write their own store

pub use breaker::{Breaker, Pass};
pub use call::{
    Found, GENERATION_US, LeaseReport, Level, Levels, Owed, PlanNumbers, PlanVersion, Reply,
    Request, Witness,
};
pub use decision::{Basis, Decision, DegradedReason, Outcome, Standing, Wait};
pub use degraded::{FailurePolicy, LocalAnswer, LocalBucket, PlanPart};
pub use key::{BucketKey, ScopeId, VersionSource};
pub use limit::{Limit, LimitError, Limits};
#[cfg(feature = "limiter")]
pub use limiter::{Contract, Extras, Limiter, LimiterSettings, TICK_EVERY, Witnessing};
pub use time::{Clock, SystemClock, Timestamp};
pub use units::{
    CAPACITY_MAX, Capacity, Cost, EXACT_BOUND, REFILL_PERIOD_US_MAX, REFILL_TOKENS_MAX, RefillRate,
    Tokens,
};
