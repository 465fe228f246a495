//! The words between an entry and who drives it: questions, calls to make, and how they ended.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::settings::Extras;
use super::waiters::Waiting;
use crate::call::{Reply, Request};
use crate::decision::Decision;
use crate::limit::Limits;
use crate::store::StoreError;
use crate::time::Timestamp;

/// Shortest pause between two polls of an empty bucket.
const POLL_MIN_US: u64 = 10_000;
/// All gateways together poll an empty bucket at most so often a second.
const POLLS_PER_S_MAX: u64 = 5_000;

/// The two calls of a key that may be out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Settles and renews the lease.
    Main,
    /// A hedge, a return or a testimony: leaves the lease alone.
    Beside,
}

/// A hedge goes out this long after twice the usual round trip.
const HEDGE_MARGIN: Duration = Duration::from_micros(200);

/// What the keys of a limiter have in common, as of now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings {
    /// Gateways that share the plans, at least 1.
    pub(crate) gateways: u32,
    /// Smoothed round trip to the store.
    pub(crate) round_trip: Duration,
    /// Whether tokens are borrowed; not while draining.
    pub(crate) leases: bool,
    /// What pays beside the leases.
    pub(crate) extras: Extras,
}

/// How a request goes on.
#[derive(Debug)]
pub(crate) enum Ask {
    /// It is decided.
    Decided(Decision),
    /// It waits for a call that others make.
    Wait(Waiting),
    /// It waits, and its caller makes this call.
    Fly(Flight, Waiting),
}

/// From the sending of a call until it counts as slow.
pub(crate) fn hedge_after(round_trip: Duration) -> Duration {
    round_trip.saturating_mul(2).saturating_add(HEDGE_MARGIN)
}

/// A call to make at the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) lane: Lane,
    pub(crate) request: Request,
}

/// A call has ended.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) lane: Lane,
    pub(crate) sent: Timestamp,
    pub(crate) received: Timestamp,
    /// The store's epoch for the key.
    pub(crate) epoch: u64,
    pub(crate) result: Result<Reply, StoreError>,
}

/// What the lease alone could say.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quick {
    /// The lease paid; `low` asks for a prefetch.
    Allowed { decision: Decision, low: bool },
    /// Ask under the lock.
    Ask,
}

/// What the lease's word held when the books were made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    /// Tokens in it, spendable or dead.
    pub(crate) in_word: u32,
    /// Tokens that could be spent.
    pub(crate) held: u32,
}

/// What an entry gives back at the end.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "made once for each lease, and moved once")]
pub(crate) enum Settled {
    /// It holds nothing.
    Nothing,
    /// A call is out that may bring something.
    Later,
    /// This call returns it.
    Fly(Flight),
}

/// What an entry with a lease needs now.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "made twenty times a second, and moved once")]
pub(crate) enum Care {
    /// Nothing any more.
    Rest,
    /// To be looked at again.
    Watch,
    /// This call.
    Fly(Flight),
}

/// Pause between polls of an empty bucket: a quarter of its fill time at most.
pub(crate) fn poll_us(limits: &Limits, gateways: u32) -> u64 {
    let pause = POLL_MIN_US.max(u64::from(gateways) * 1_000_000 / POLLS_PER_S_MAX);
    let quarter = limits
        .iter()
        .filter_map(|limit| limit.window())
        .min()
        .map_or(u64::MAX, |fill| u64::try_from(fill.as_micros() / 4).unwrap_or(u64::MAX));
    pause.min(quarter)
}

/// One of some, until dropped.
pub(crate) struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    pub(crate) fn one_more(count: &AtomicUsize) -> Counted<'_> {
        count.fetch_add(1, Ordering::AcqRel);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
