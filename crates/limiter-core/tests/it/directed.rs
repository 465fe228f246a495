//! Short histories that random ones hardly find, each of which breaks the promise by a whole lease
//! if one step of the arithmetic, or of a gateway, is wrong.
//!
//! Each runs over the model and over the script, where the fleet must stay within the contract,
//! and with just that mistake planted, where it must not: so the histories themselves are known to
//! be sharp.

use limiter_core::bucket::{State, apply};
use limiter_core::testkit::differential::{Fault, Script, TimedRedis};
use limiter_core::testkit::mutants::{Apply, Mutant};
use limiter_core::{
    BucketKey, Capacity, Found, LeaseReport, Limit, Limits, PlanNumbers, PlanVersion, RefillRate,
    Reply, Request, ScopeId, Timestamp, VersionSource, Witness,
};

use crate::server::Server;

/// The start of a generation.
const START_US: u64 = 1_800_000_000_000_000;

enum Bed {
    Model { apply: Apply, state: Option<State> },
    Redis { redis: Box<TimedRedis>, _server: Server },
}

impl Bed {
    fn model() -> Bed {
        Bed::Model { apply, state: None }
    }

    fn mutant(name: &str) -> Bed {
        Bed::Model { apply: Mutant::named(name).unwrap().apply, state: None }
    }

    /// Both that must keep the promise.
    fn real() -> [Bed; 2] {
        [Bed::model(), Bed::redis(&Script::as_shipped())]
    }

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
            Bed::Model { apply, state } => {
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

/// A gateway stands still until its lease is dead everywhere and the bucket is full again. Then
/// everybody takes all, and the gateway reports what it believes to hold.
fn a_lease_that_slept(bed: &mut Bed) -> i64 {
    let lease = lend(bed);
    let all = bed.call(&Request::take(plan(), 2_000, 1), 1_600_000).granted;
    let LeaseReport { generation, counted, .. } = report(&lease);
    let report = LeaseReport { generation, counted, held: lease.lent, returned: 0 };
    let reply =
        bed.call(&Request { lease: Some(report), ..Request::take(plan(), 0, 0) }, 1_600_001);
    let spent = if reply.lease_dead { 0 } else { lease.lent };
    lowest(&[(1_600, all), (1_600, spent)])
}

fn report(reply: &Reply) -> LeaseReport {
    let Reply { generation, counted, .. } = *reply;
    LeaseReport { generation, counted, held: 0, returned: 0 }
}

/// What a gateway does with tokens that a hedge was granted and nobody needs.
#[derive(Clone, Copy)]
enum Surplus {
    GivenBackAtOnce,
    GivenBackLater,
    Spent,
}

fn a_surplus(bed: &mut Bed, surplus: Surplus) -> i64 {
    let unneeded = bed.call(&Request::take(plan(), 60, 60), 0).granted;
    let back = Request { unused_need: unneeded, ..Request::take(plan(), 0, 0) };
    if matches!(surplus, Surplus::GivenBackAtOnce) {
        bed.call(&back, 200);
    }
    let all = bed.call(&Request::take(plan(), 2_000, 1), 250_000).granted;
    let more = match surplus {
        Surplus::GivenBackAtOnce => 0,
        Surplus::GivenBackLater => {
            bed.call(&back, 250_000);
            bed.call(&Request::take(plan(), 2_000, 1), 250_000).granted
        }
        Surplus::Spent => unneeded,
    };
    lowest(&[(250, all), (250, more)])
}

/// Two gateways saw different states of a store that then returns to an older one; the one who saw
/// less speaks first, and a lease is lent and given back before the other speaks. The level after.
fn two_witnesses(bed: &mut Bed) -> (i64, i64) {
    let take = |tokens| Request::take(plan(), tokens, tokens);
    bed.call(&take(50), 0);
    let Bed::Model { state, .. } = bed else { panic!("only a model can be set back") };
    let saved = *state;
    let first = bed.call(&take(50), 0);
    let second = bed.call(&take(50), 0);
    let Bed::Model { state, .. } = bed else { panic!("only a model can be set back") };
    *state = saved;
    let says = |seen: &Reply| Witness {
        at: seen.at,
        burst: seen.levels.burst.tokens,
        sustained: seen.levels.sustained.tokens,
        granted_total: seen.granted_total,
        incarnation: seen.incarnation,
        version: seen.plan.version,
        force: false,
    };
    bed.call(&Request { witness: Some(says(&first)), ..take(0) }, 0);
    let lent = bed.call(&Request { demand_per_s: 600, ..take(0) }, 0);
    let returned = LeaseReport { returned: lent.lent, ..report(&lent) };
    bed.call(&Request { lease: Some(returned), ..take(0) }, 0);
    let heard = bed.call(&Request { witness: Some(says(&second)), ..take(0) }, 0);
    (heard.levels.burst.tokens, second.levels.burst.tokens)
}

#[test]
fn i01_a_lease_held_while_the_bucket_fills_adds_nothing_to_a_full_bucket() {
    for mut bed in Bed::real() {
        assert!(an_idle_lease(&mut bed) >= 0);
    }
    for mut bed in [Bed::with_fault("no-cap"), Bed::mutant("no-cap")] {
        let excess = an_idle_lease(&mut bed);
        assert!(excess <= -50, "the history does not notice a missing cap: {excess}");
    }
}

#[test]
fn i18_nothing_is_refilled_for_the_time_in_which_tokens_were_lent() {
    for mut bed in Bed::real() {
        assert!(a_lease_spent_before_settlement(&mut bed) >= 0);
    }
    for mut bed in [Bed::with_fault("settle-before-refill"), Bed::mutant("settle-first")] {
        let excess = a_lease_spent_before_settlement(&mut bed);
        assert!(excess <= -50, "the history does not notice the wrong order: {excess}");
    }
}

#[test]
fn i02_a_lease_that_died_while_its_gateway_slept_is_not_revived() {
    for mut bed in Bed::real() {
        assert!(a_lease_that_slept(&mut bed) >= 0);
    }
    let excess = a_lease_that_slept(&mut Bed::mutant("undead-lease"));
    assert!(excess <= -50, "the history does not notice a revived lease: {excess}");
}

#[test]
fn i03_tokens_that_nobody_needed_go_back_at_once_or_are_paid_twice() {
    for mut bed in Bed::real() {
        assert!(a_surplus(&mut bed, Surplus::GivenBackAtOnce) >= 0);
    }
    for surplus in [Surplus::GivenBackLater, Surplus::Spent] {
        let excess = a_surplus(&mut Bed::model(), surplus);
        assert!(excess <= -50, "the history does not notice a kept surplus: {excess}");
    }
}

#[test]
fn i10_each_witness_of_a_loss_is_heard_whoever_spoke_before() {
    let (level, seen) = two_witnesses(&mut Bed::model());
    assert!(level <= seen + 1, "{level} after a witness of {seen}");
    let (level, seen) = two_witnesses(&mut Bed::mutant("level-incarnation"));
    assert!(level > seen + 40, "the history does not notice an incarnation that stands still");
    let (level, seen) = two_witnesses(&mut Bed::mutant("deaf"));
    assert!(level > seen + 40, "the history does not notice a deaf store");
}

/// A call that gives a lease back arrives twice, as a repeating library would send it: level and
/// lent tokens stay within the capacity, and the excess within what was given back.
#[test]
fn i01_a_call_that_is_executed_twice_costs_no_more_than_what_it_gave_back() {
    for mut bed in Bed::real() {
        let lease = lend(&mut bed);
        let back = LeaseReport { returned: lease.lent, ..report(&lease) };
        let back = Request { lease: Some(back), ..Request::take(plan(), 0, 0) };
        let mut taken = bed.call(&Request::take(plan(), 2_000, 1), 250_000).granted;
        for _executed in 0..2 {
            let reply = bed.call(&back, 250_000);
            assert!(reply.levels.burst.tokens + reply.outstanding.cast_signed() <= 1_000);
            taken += bed.call(&Request::take(plan(), 2_000, 1), 250_000).granted;
        }
        let excess = lowest(&[(250, taken)]);
        assert!(excess < 0, "a repeated call does cost something: {excess}");
        assert!(-excess <= lease.lent.cast_signed(), "{excess} for {} given back", lease.lent);
    }
}
