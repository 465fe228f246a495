//! What a Redis store counts, for whoever shows metrics. Plain atomics: nothing here knows a
//! metrics library.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Codes that are counted by name; a closed set, so that labels stay few.
const CODES: [&str; 14] = [
    "LOADING",
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "BUSY",
    "NOPERM",
    "NOAUTH",
    "ERR",
];

/// Counts since the store was made.
#[derive(Debug, Default)]
pub struct RedisCounters {
    /// Calls that were sent.
    pub calls: AtomicU64,
    /// Calls without an answer within the response time-out (also counted as lost).
    pub timeouts: AtomicU64,
    /// Calls whose outcome is unknown.
    pub lost: AtomicU64,
    /// Heartbeats without an answer in time.
    pub heartbeats_missed: AtomicU64,
    /// Dials that were tried, the first of each link included.
    pub dials: AtomicU64,
    /// Connections made after the first of each link.
    pub reconnects: AtomicU64,
    /// Times the script's text was sent because the server did not know it.
    pub script_loads: AtomicU64,
    /// Calls that were sent on because another node of the Cluster is in charge.
    pub redirects: AtomicU64,
    /// The server's memory is bounded and it drops keys when it is full: live buckets among them.
    pub may_evict: AtomicBool,
    /// Keys that the server has dropped so since it started.
    pub evicted: AtomicU64,
    refused: [AtomicU64; CODES.len()],
    refused_other: AtomicU64,
}

impl RedisCounters {
    /// Answers with an error, by code; `other` for any that has no name here.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let named = CODES.into_iter().zip(&self.refused);
        named
            .chain(std::iter::once(("other", &self.refused_other)))
            .map(|(code, count)| (code, count.load(Ordering::Relaxed)))
    }

    pub(super) fn count_refused(&self, code: &str) {
        let named = CODES.iter().zip(&self.refused).find(|(name, _)| **name == code);
        let counter = named.map_or(&self.refused_other, |(_, counter)| counter);
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
