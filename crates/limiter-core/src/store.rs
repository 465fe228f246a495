//! Where buckets live: a port of one method, and errors named by what the caller does next.
//!
//! A store owns the clock, so gateways' clocks never matter. To write your own: answer
//! [`Request`]s as [`crate::bucket::apply`] does, atomically for each key, and run the suite of
//! the `testkit` over it.

#[cfg(feature = "limiter")]
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use crate::call::{Reply, Request};
use crate::key::BucketKey;

/// Answers one call on one key, atomically.
pub trait BucketStore: Send + Sync + 'static {
    /// Applies `request` to the bucket pair of `key`.
    ///
    /// The future may be polled once and then moved to a task: what it does must not depend on
    /// who waits for it. It ends within the store's own response time-out.
    fn call(
        &self,
        key: &BucketKey,
        request: &Request,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// Drops buckets that have expired, where the store does not do so by itself. The limiter asks
    /// for it now and then: buckets of clients who never come again must not stay for ever.
    fn sweep(&self) {}

    /// Grows whenever the node in charge of `key` may have changed, or restarted, since it was
    /// asked before: what it knows of the bucket may be older than what callers remember, so they
    /// should testify. A store of one node that never loses anything stays at 0.
    fn epoch(&self, key: &BucketKey) -> u64 {
        let _one_node_for_all = key;
        0
    }
}

/// Why a store gave no reply. Only [`StoreError::Lost`] may have taken tokens.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The breaker keeps calls back: nothing was sent. Ask again after `probe_in`.
    #[error("the bucket store does not answer; it is asked again in {probe_in:?}")]
    Tripped {
        /// Until the next probe.
        probe_in: Duration,
    },
    /// Nothing was sent, so nothing was taken.
    #[error("the bucket store cannot be reached")]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
    /// The store answered with an error: nothing was taken.
    #[error("the bucket store refused the call ({code})")]
    Refused {
        /// First word of the answer, such as `LOADING`, `READONLY` or `OOM`.
        code: String,
    },
    /// The call went out and no usable answer came: its tokens may or may not be gone. Never
    /// repeated.
    #[error("the bucket store's answer was lost")]
    Lost(#[source] Box<dyn Error + Send + Sync>),
}
