//! Who decides: Weir from leases that are there, its peers, and the bare floor.

use std::collections::HashMap;
use std::future::{self, Future};
use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures_util::FutureExt as _;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{
    Basis, BucketKey, Clock, Contract, Cost, Found, Limiter, LimiterSettings, Reply, Request,
    SystemClock, bucket,
};
use tokio::runtime::Handle;

use crate::store::{contract, key, plan, quotient};

/// Whether `limitador` is compiled in.
pub const HAS_LIMITADOR: bool = cfg!(feature = "peers");

/// A fault planted in Weir's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// The key is written as text for each decision.
    SpelledKey,
    /// The store lends nothing.
    NoLease,
}

impl Sabotage {
    /// The fault of that name.
    pub fn named(name: &str) -> anyhow::Result<Sabotage> {
        match name {
            "spelled-key" => Ok(Sabotage::SpelledKey),
            "no-lease" => Ok(Sabotage::NoLease),
            other => bail!("no sabotage `{other}`; there are: spelled-key, no-lease"),
        }
    }
}

/// Somebody who decides requests of one token.
pub trait Subject: Sync {
    /// In figures.
    fn name(&self) -> &'static str;

    /// Decides for the first `count` clients of `order`; all must be admitted.
    fn decide(&self, order: &mut dyn Iterator<Item = u32>, count: u32) -> anyhow::Result<()>;

    /// Decisions of a slice, where `usual` is what fast subjects make.
    fn decisions(&self, usual: u32) -> u32 {
        usual
    }

    /// Decisions made, and of those the ones that a lease paid; for Weir alone.
    fn leased(&self) -> Option<(u64, u64)> {
        None
    }
}

/// All of them, each with an entry for every key.
pub fn all(keys: u32, sabotage: Option<Sabotage>) -> anyhow::Result<Vec<Box<dyn Subject>>> {
    let keys: Vec<BucketKey> = (0..keys).map(key).collect();
    Ok(vec![
        Box::new(Floor::new(&keys)),
        Box::new(Governor::new(keys.clone())),
        Box::new(Weir::new(keys, sabotage)?),
        #[cfg(feature = "peers")]
        Box::new(super::limitador::Limitador::new()?),
    ])
}

/// Reads the clock, hashes the key, fetches its entry, takes one.
struct Floor {
    clock: SystemClock,
    keys: Vec<BucketKey>,
    entries: HashMap<BucketKey, AtomicU64, FirstBytes>,
}

impl Floor {
    fn new(keys: &[BucketKey]) -> Floor {
        let full = |key: &BucketKey| (*key, AtomicU64::new(u64::MAX));
        let entries = keys.iter().map(full).collect();
        Floor { clock: SystemClock::new(), keys: keys.to_vec(), entries }
    }
}

impl Subject for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn decide(&self, order: &mut dyn Iterator<Item = u32>, count: u32) -> anyhow::Result<()> {
        for client in order.take(count as usize) {
            let key = self.keys.get(client as usize).context("a key")?;
            black_box(self.clock.now());
            let entry = self.entries.get(key).context("an entry")?;
            ensure!(entry.fetch_sub(1, Ordering::AcqRel) > 0, "the floor refuses");
        }
        Ok(())
    }
}

/// Keys are digests: some of their bytes are a hash.
#[derive(Debug, Clone, Copy, Default)]
struct FirstBytes;

struct Taken(u64);

impl BuildHasher for FirstBytes {
    type Hasher = Taken;

    fn build_hasher(&self) -> Taken {
        Taken(0)
    }
}

impl Hasher for Taken {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A limiter in process, one quota for all keys.
struct Governor {
    limiter: DefaultKeyedRateLimiter<[u8; 16]>,
    keys: Vec<BucketKey>,
}

impl Governor {
    fn new(keys: Vec<BucketKey>) -> Governor {
        let limiter = RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
        for key in &keys {
            let _first = limiter.check_key(key.bytes());
        }
        Governor { limiter, keys }
    }
}

impl Subject for Governor {
    fn name(&self) -> &'static str {
        "governor"
    }

    fn decide(&self, order: &mut dyn Iterator<Item = u32>, count: u32) -> anyhow::Result<()> {
        for client in order.take(count as usize) {
            let key = self.keys.get(client as usize).context("a key")?;
            ensure!(self.limiter.check_key(key.bytes()).is_ok(), "governor refuses");
        }
        Ok(())
    }
}

/// Lends once, so much and for so long that no slice ends it.
#[derive(Debug)]
struct Generous {
    clock: SystemClock,
    lends: bool,
}

/// Tokens of a lease, and how long it lives.
const LENT: u64 = u32::MAX as u64;
const VALID: Duration = Duration::from_secs(7 * 86_400);
/// Where each decision is a call, one in so many is enough.
const SLOW_PART: u32 = 50;

impl BucketStore for Generous {
    fn call(
        &self,
        _key: &BucketKey,
        request: &Request,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        let mut reply = bucket::apply(None, Found::Nothing, request, self.clock.now()).reply;
        if self.lends {
            (reply.lent, reply.counted, reply.valid) = (LENT, LENT, VALID);
        } else {
            (reply.lent, reply.counted) = (0, 0);
        }
        future::ready(Ok(reply))
    }
}

/// The limiter with a lease for each key.
struct Weir {
    limiter: Limiter<Generous>,
    keys: Vec<BucketKey>,
    contract: Contract,
    spells_keys: bool,
    lends: bool,
    made: AtomicU64,
    leased: AtomicU64,
}

impl Weir {
    fn new(keys: Vec<BucketKey>, sabotage: Option<Sabotage>) -> anyhow::Result<Weir> {
        let clock = SystemClock::new();
        let own: Arc<dyn Clock> = Arc::new(clock);
        let lends = sabotage != Some(Sabotage::NoLease);
        let store = Generous { clock, lends };
        let limiter = Limiter::new(Arc::new(store), own, LimiterSettings::default());
        let plan = plan(1_000_000_000, "1000000/s", None)?;
        let contract = contract(*keys.first().context("no keys")?, plan);
        for key in &keys {
            let contract = Contract { key: *key, ..contract };
            for _request in 0..2 {
                let decision = limiter.decide(&contract, Cost::ONE).now_or_never();
                ensure!(decision.is_some_and(|decision| decision.is_allowed()), "refused");
            }
        }
        Ok(Weir {
            limiter,
            keys,
            contract,
            spells_keys: sabotage == Some(Sabotage::SpelledKey),
            lends,
            made: AtomicU64::new(0),
            leased: AtomicU64::new(0),
        })
    }
}

impl Subject for Weir {
    fn name(&self) -> &'static str {
        "weir"
    }

    fn decide(&self, order: &mut dyn Iterator<Item = u32>, count: u32) -> anyhow::Result<()> {
        let mut leased: u64 = 0;
        let mut context = Context::from_waker(Waker::noop());
        for client in order.take(count as usize) {
            let key = *self.keys.get(client as usize).context("a key")?;
            if self.spells_keys {
                black_box(key.to_string());
            }
            let contract = Contract { key, ..self.contract };
            // In place, as a caller's own future would hold it: moving it costs more than deciding.
            let mut decision = pin!(self.limiter.decide(&contract, Cost::ONE));
            let decision = match decision.as_mut().poll(&mut context) {
                Poll::Ready(decision) => decision,
                // For the call of another thread. It counts, as every step of a decision does.
                Poll::Pending => Handle::current().block_on(decision),
            };
            ensure!(decision.is_allowed(), "Weir refuses: {decision:?}");
            leased += u64::from(decision.basis == Basis::Lease);
        }
        self.made.fetch_add(u64::from(count), Ordering::Relaxed);
        self.leased.fetch_add(leased, Ordering::Relaxed);
        Ok(())
    }

    fn decisions(&self, usual: u32) -> u32 {
        if self.lends { usual } else { usual / SLOW_PART }
    }

    fn leased(&self) -> Option<(u64, u64)> {
        Some((self.made.load(Ordering::Relaxed), self.leased.load(Ordering::Relaxed)))
    }
}

/// Share of Weir's decisions that a lease paid.
pub fn lease_share(subjects: &[Box<dyn Subject>]) -> f64 {
    let counted = subjects.iter().find_map(|subject| subject.leased());
    counted.map_or(f64::NAN, |(made, leased)| quotient(leased, made))
}
