//! Two short histories that random ones hardly find, and that break the promise by a whole lease
//! if levels refill past what is lent, or a lease is settled before the refill.
//!
//! Each runs over the model and over the script, where the fleet must stay within the contract,
//! and over the script with just that mistake planted, where it must not: so the histories
//! themselves are known to be sharp.

use limiter_core::bucket::{State, apply};
use limiter_core::testkit::differential::{Fault, Script, TimedRedis};
use limiter_core::{
    BucketKey, Capacity, Found, LeaseReport, Limit, Limits, PlanNumbers, PlanVersion, RefillRate,
    Reply, Request, ScopeId, Timestamp, VersionSource,
};

use crate::server::Server;

/// The start of a generation.
const START_US: u64 = 1_800_000_000_000_000;

enum Bed {
    Model(Option<State>),
    Redis { redis: Box<TimedRedis>, _server: Server },
}

impl Bed {
    fn redis(script: &Script) -> Bed {
        let server = Server::start();
        let redis = TimedRedis::new(server.connection(), script).unwrap();
        Bed::Redis { redis: Box::new(redis), _server: server }
    }

    fn with_fault(name: &str) -> Bed {
        Bed::redis(&Script::with_fault(Fault::named(name).unwrap()))
    }

    fn call(&mut self, request: &Request, at_us: u64) -> Reply {
        let now = Timestamp::from_us(START_US + at_us);
        match self {
            Bed::Model(state) => {
                let found = if state.is_some() { Found::Known } else { Found::Nothing };
                let applied = apply(*state, found, request, now);
                if applied.keep_ms.is_some() {
                    *state = Some(applied.state);
                }
                applied.reply
            }
            Bed::Redis { redis, .. } => {
                let key = BucketKey::new(VersionSource::File, ScopeId::Client("directed"));
                redis.call(&key, request, now).unwrap()
            }
        }
    }
}

/// 1,000 tokens, 1,000 a second: one token a millisecond, so whole numbers suffice.
fn plan() -> PlanNumbers {
    let limit = |capacity| {
        let rate = RefillRate::per_second(1_000).unwrap();
        Limit::new(Capacity::new(capacity).unwrap(), rate).unwrap()
    };
    let limits = Limits { burst: limit(1_000), sustained: Some(limit(5_000)) };
    PlanNumbers { version: PlanVersion(2), limits }
}

/// The exact bucket after each spending: `(at ms, tokens)`; its lowest level.
fn lowest(spendings: &[(u64, u64)]) -> i64 {
    let (mut level, mut at, mut lowest) = (1_000_i64, 0, 1_000);
    for &(now, tokens) in spendings {
        level = 1_000.min(level + (now - at).cast_signed()) - tokens.cast_signed();
        at = now;
        lowest = lowest.min(level);
    }
    lowest
}

fn lend(bed: &mut Bed) -> Reply {
    let reply = bed.call(&Request { demand_per_s: 600, ..Request::take(plan(), 0, 0) }, 0);
    assert!(reply.lent >= 50, "the history needs a lease: {reply:?}");
    reply
}

/// A lease is held while the bucket refills; then its holder and everybody else spend at once.
fn an_idle_lease(bed: &mut Bed) -> i64 {
    let lent = lend(bed).lent;
    let all = bed.call(&Request::take(plan(), 2_000, 1), 250_000).granted;
    lowest(&[(250, all), (250, lent)])
}

/// A lease is spent just before it is settled, long after the last refill.
fn a_lease_spent_before_settlement(bed: &mut Bed) -> i64 {
    let lease = lend(bed);
    let spent =
        LeaseReport { generation: lease.generation, counted: lease.counted, held: 0, returned: 0 };
    bed.call(&Request { lease: Some(spent), ..Request::take(plan(), 0, 0) }, 250_001);
    let all = bed.call(&Request::take(plan(), 2_000, 1), 250_002).granted;
    lowest(&[(250, lease.lent), (250, all)])
}

#[test]
fn a_lease_held_while_the_bucket_fills_adds_nothing_to_a_full_bucket() {
    assert!(an_idle_lease(&mut Bed::Model(None)) >= 0);
    assert!(an_idle_lease(&mut Bed::redis(&Script::as_shipped())) >= 0);
    let excess = an_idle_lease(&mut Bed::with_fault("no-cap"));
    assert!(excess <= -50, "the history does not notice a missing cap: {excess}");
}

#[test]
fn nothing_is_refilled_for_the_time_in_which_tokens_were_lent() {
    assert!(a_lease_spent_before_settlement(&mut Bed::Model(None)) >= 0);
    assert!(a_lease_spent_before_settlement(&mut Bed::redis(&Script::as_shipped())) >= 0);
    let excess = a_lease_spent_before_settlement(&mut Bed::with_fault("settle-before-refill"));
    assert!(excess <= -50, "the history does not notice the wrong order: {excess}");
}
