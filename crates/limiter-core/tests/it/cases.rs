//! Faults that users of other limiters met, restated for this one. The list is in `tests/CASES.md`;
//! here are the cases that are a matter of arithmetic and of the script. Each runs on every store, at
//! times that the test tells, unless it says otherwise.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::BucketStore;
use limiter_core::store::memory::MemoryStore;
use limiter_core::testkit::ManualClock;
use limiter_core::testkit::differential::{Script, TimedRedis};
use limiter_core::{
    BucketKey, Capacity, Cost, Limit, LimitError, Limits, PlanNumbers, PlanVersion, RefillRate,
    Reply, Request, ScopeId, Timestamp, VersionSource, Wait,
};

use test_servers::{Cluster, SentinelSet, Server};

use crate::server::until;

const START_US: u64 = 1_800_000_000_000_000;

/// The stores of a test: this process, and real servers alone, under Sentinels and in a Cluster.
struct Stores {
    single: Server,
    sentinels: SentinelSet,
    cluster: Cluster,
    beds: Cell<usize>,
}

/// One store at a told time, with a bucket of its own.
struct Bed {
    store: Store,
    key: BucketKey,
}

#[expect(clippy::large_enum_variant, reason = "four of them, for a test")]
enum Store {
    Embedded { store: Box<MemoryStore>, clock: Arc<ManualClock> },
    Redis { redis: TimedRedis, admin: redis::Connection },
}

impl Stores {
    fn start() -> Stores {
        Stores {
            single: Server::start().unwrap(),
            sentinels: SentinelSet::start(1).unwrap(),
            cluster: Cluster::start().unwrap(),
            beds: Cell::new(0),
        }
    }

    /// Every store, with buckets that nobody has used.
    fn beds(&self) -> Vec<Bed> {
        self.beds.set(self.beds.get() + 1);
        let client = format!("client-{}", self.beds.get());
        let key = BucketKey::new(VersionSource::ControlPlane, ScopeId::Client(&client));
        let clock = Arc::new(ManualClock::default());
        let store = Box::new(MemoryStore::new(clock.clone()));
        let slot = self.cluster.slot(&key.to_string()).unwrap();
        let servers = [
            &self.single,
            self.sentinels.server(self.sentinels.primary().unwrap()),
            self.cluster.node(self.cluster.owner(slot).unwrap()),
        ];
        let redis = servers.into_iter().map(|server| Store::Redis {
            redis: TimedRedis::new(server.connection().unwrap(), &Script::as_shipped()).unwrap(),
            admin: server.connection().unwrap(),
        });
        std::iter::once(Store::Embedded { store, clock })
            .chain(redis)
            .map(|store| Bed { store, key })
            .collect()
    }
}

impl Bed {
    async fn call(&mut self, request: Request, at_us: u64) -> Reply {
        let now = Timestamp::from_us(START_US + at_us);
        match &mut self.store {
            Store::Embedded { store, clock } => {
                clock.set(now);
                store.call(&self.key, &request).await.unwrap()
            }
            Store::Redis { redis, .. } => redis.call(&self.key, &request, now).unwrap(),
        }
    }

    /// How long Redis keeps the bucket; nothing where it is not in Redis.
    fn lifetime_ms(&mut self) -> Option<i64> {
        match &mut self.store {
            Store::Embedded { .. } => None,
            Store::Redis { redis, .. } => Some(redis.lifetime_ms(&self.key).unwrap()),
        }
    }

    /// One request of `cost`.
    async fn take(&mut self, plan: PlanNumbers, cost: u64, at_us: u64) -> Reply {
        self.call(Request::take(plan, cost, cost), at_us).await
    }

    /// How many of `count` requests of one token are granted.
    async fn burst(&mut self, plan: PlanNumbers, count: usize, at_us: u64) -> usize {
        let mut granted = 0;
        for _ in 0..count {
            granted += usize::from(self.take(plan, 1, at_us).await.granted == 1);
        }
        granted
    }
}

fn limit(capacity: u64, rate: &str) -> Limit {
    Limit::new(Capacity::new(capacity).unwrap(), rate.parse().unwrap()).unwrap()
}

fn plan(version: u64, capacity: u64, rate: &str) -> PlanNumbers {
    let limits = Limits::burst_only(limit(capacity, rate));
    PlanNumbers { version: PlanVersion(version), limits }
}

/// Seconds as a header tells them.
fn retry_after(reply: &Reply, cost: u64) -> Option<u64> {
    match reply.wait(cost) {
        Wait::Until(wait) => {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            Some(seconds.max(1))
        }
        Wait::Never => None,
    }
}

const MS: u64 = 1_000;
const S: u64 = 1_000_000;

#[tokio::test]
async fn c01_waits_below_a_second_are_not_shown_as_zero_and_no_step_is_lost_to_rounding() {
    let stores = Stores::start();
    for mut bed in stores.beds() {
        let ten = plan(2, 10, "10/s");
        assert_eq!(bed.burst(ten, 10, 0).await, 10);
        let denied = bed.take(ten, 1, 0).await;
        assert_eq!((denied.granted, denied.levels.burst.tokens), (0, 0));
        assert_eq!(denied.wait(1), Wait::Until(Duration::from_millis(100)));
        assert_eq!(retry_after(&denied, 1), Some(1));
    }
    for mut bed in stores.beds() {
        let slow = plan(2, 1, "1/10s");
        assert_eq!(bed.take(slow, 1, 0).await.granted, 1);
        for second in 1..10 {
            let denied = bed.take(slow, 1, second * S).await;
            assert_eq!((denied.granted, denied.levels.burst.tokens), (0, 0), "{second} s");
            assert_eq!(denied.wait(1), Wait::Until(Duration::from_secs(10 - second)));
            assert_eq!(retry_after(&denied, 1), Some(10 - second));
        }
        assert_eq!(bed.take(slow, 1, 10 * S - 1).await.granted, 0);
        assert_eq!(bed.take(slow, 1, 10 * S).await.granted, 1);
    }
}

#[tokio::test]
async fn c02_rates_above_one_per_millisecond_are_exact() {
    let stores = Stores::start();
    for mut bed in stores.beds() {
        let fast = plan(2, 20, "1500/s");
        assert_eq!(bed.burst(fast, 21, 0).await, 20);
        let peek = bed.call(Request::peek(fast), 0).await;
        assert_eq!(peek.found, limiter_core::Found::Known, "the bucket is stored");
        assert_eq!(retry_after(&peek, 1), Some(1));
        assert_eq!(bed.burst(fast, 30, 10 * MS).await, 15);
    }
}

#[tokio::test]
async fn c03_the_largest_numbers_pass_the_store_exactly_and_larger_ones_are_refused() {
    let stores = Stores::start();
    for tokens in [1_000_000_000_000_000, 123_456_789_012_345, 1_000_000_000_001] {
        let refused = Capacity::new(tokens).unwrap_err();
        assert_eq!(refused.code(), "capacity_out_of_range");
        assert!(refused.to_string().contains("1000000000000"), "names the largest: {refused}");
    }
    for tokens in [1_000_000_000_000_000, 1_000_000_000_000] {
        let refused = RefillRate::per_second(tokens).unwrap_err();
        assert_eq!(refused.code(), "refill_out_of_range");
        assert!(refused.to_string().contains("1000000000 per second"), "{refused}");
    }
    for mut bed in stores.beds() {
        for (capacity, rate) in
            [(1_000_000_000_000, "1000000000/s"), (123_456_789_012, "1000000000/s")]
        {
            let version = capacity % 1_000;
            let largest = plan(2 + version, capacity, rate);
            let full =
                bed.call(Request { reset: largest.version, ..Request::take(largest, 0, 0) }, 0);
            let full = full.await.levels.burst.tokens;
            let reply = bed.take(largest, 1, 0).await;
            assert_eq!(reply.levels.burst.tokens, full - 1);
            assert_eq!(bed.take(largest, 2, 0).await.levels.burst.tokens, full - 3);
        }
    }
}

#[tokio::test]
async fn c04_a_bucket_lives_until_it_is_full_and_little_longer() {
    let stores = Stores::start();
    for mut bed in stores.beds() {
        let third = plan(2, 1, "3/s");
        assert_eq!(bed.take(third, 1, 0).await.granted, 1);
        let after_a_grant = bed.lifetime_ms();
        assert!(after_a_grant.is_none_or(|ms| (334..=2_000).contains(&ms)), "{after_a_grant:?}");
        assert_eq!(bed.take(third, 1, 0).await.granted, 0, "in the same microsecond");
        let after_a_denial = bed.lifetime_ms();
        assert!(after_a_denial.is_none_or(|ms| (334..=2_000).contains(&ms)), "{after_a_denial:?}");
        match bed.store {
            Store::Embedded { store, clock } => {
                clock.set(Timestamp::from_us(START_US + 5 * S));
                store.sweep();
                assert!(store.is_empty());
            }
            Store::Redis { admin, .. } => {
                let admin = std::cell::RefCell::new(admin);
                until("no key is left", || {
                    let keys: i64 = redis::cmd("DBSIZE").query(&mut *admin.borrow_mut()).unwrap();
                    keys == 0
                })
                .await;
            }
        }
    }
}

#[tokio::test]
async fn c05_a_denial_takes_nothing_and_what_can_never_fit_is_never_promised() {
    let stores = Stores::start();
    for mut bed in stores.beds() {
        let ten = plan(2, 10, "1/s");
        assert_eq!(bed.take(ten, 8, 0).await.granted, 8);
        let denied = bed.take(ten, 5, 0).await;
        assert_eq!((denied.granted, denied.levels.burst.tokens), (0, 2));
        assert_eq!(retry_after(&denied, 5), Some(3));
        if let Some(lifetime) = bed.lifetime_ms() {
            assert!((8_000..=12_000).contains(&lifetime), "{lifetime} ms");
        }
        assert_eq!(bed.take(ten, 2, 0).await.granted, 2, "the two are still there");
    }
    for mut bed in stores.beds() {
        let ten = plan(2, 10, "1/s");
        let never = bed.take(ten, 11, 0).await;
        assert_eq!((never.granted, never.wait(11)), (0, Wait::Never));
        assert_eq!(never.levels.burst.tokens, 10);
        assert_eq!(bed.take(ten, 10, 0).await.levels.burst.tokens, 0);
    }
    for mut bed in stores.beds() {
        let daily = plan(2, 1, "1/d");
        let never = bed.take(daily, 200_000_000, 0).await;
        assert_eq!((never.granted, never.wait(200_000_000)), (0, Wait::Never));
        assert_eq!(never.levels.burst.tokens, 1);
    }
    let limits = plan(2, 10, "1/s").limits;
    assert!(limits.check_cost(Cost::new(11).unwrap()).is_err());
}

#[tokio::test]
async fn c06_a_cut_plan_rules_at_once_and_neither_strands_nor_sinks_the_bucket() {
    let stores = Stores::start();
    for mut bed in stores.beds() {
        assert_eq!(bed.take(plan(2, 1_000, "1/s"), 100, 0).await.levels.burst.tokens, 900);
        let cut = plan(4, 10, "1/s");
        assert_eq!(bed.call(Request::peek(cut), 0).await.levels.burst.tokens, 10);
        for left in (0..10).rev() {
            let reply = bed.take(cut, 1, 0).await;
            assert_eq!((reply.granted, reply.levels.burst.tokens), (1, left));
        }
        assert_eq!(bed.burst(cut, 2, 0).await, 0);
        let old = bed.take(plan(2, 1_000, "1/s"), 1, 0).await;
        assert_eq!((old.granted, old.plan), (0, cut), "an older plan does not come back");
    }
    // Whether or not anybody asks between the change and the end of the second.
    for (mut bed, asked) in stores
        .beds()
        .into_iter()
        .map(|bed| (bed, true))
        .chain(stores.beds().into_iter().map(|bed| (bed, false)))
    {
        assert_eq!(bed.take(plan(2, 1_000, "1000/s"), 1_000, 0).await.granted, 1_000);
        let cut = plan(4, 10, "10/s");
        if asked {
            let denied = bed.take(cut, 1, 0).await;
            assert_eq!((denied.granted, denied.levels.burst.tokens), (0, 0));
            assert_eq!(retry_after(&denied, 1), Some(1), "and not the 99 s of a debt");
        }
        assert_eq!(bed.burst(cut, 10, S).await, 10);
        let denied = bed.take(cut, 1, S).await;
        assert_eq!((denied.granted, denied.levels.burst.tokens), (0, 0));
        assert_eq!(retry_after(&denied, 1), Some(1));
    }
}

#[tokio::test]
async fn c07_a_request_that_one_bucket_refuses_takes_from_neither() {
    let stores = Stores::start();
    let sustained = Some(limit(10, "10/3600s"));
    let limits = Limits { burst: limit(2, "2/s"), sustained };
    let both = PlanNumbers { version: PlanVersion(2), limits };
    for mut bed in stores.beds() {
        assert_eq!(bed.burst(both, 2, 0).await, 2);
        for _ in 0..8 {
            let denied = bed.take(both, 1, 0).await;
            assert_eq!(denied.granted, 0);
            assert_eq!((denied.levels.burst.tokens, denied.levels.sustained.tokens), (0, 8));
            assert_eq!(retry_after(&denied, 1), Some(1));
        }
        assert_eq!(bed.burst(both, 2, S).await, 2);
        let reply = bed.call(Request::peek(both), S).await;
        assert_eq!((reply.levels.burst.tokens, reply.levels.sustained.tokens), (0, 6));
        for pair in 2..5 {
            assert_eq!(bed.burst(both, 2, pair * S).await, 2);
        }
        let denied = bed.take(both, 1, 6 * S).await;
        assert_eq!((denied.granted, denied.levels.burst.tokens), (0, 2), "burst is untouched");
        let seconds = retry_after(&denied, 1).unwrap();
        assert!((1..=360).contains(&seconds), "{seconds}");
    }
}

#[tokio::test]
async fn c08_nothing_is_a_number_of_its_own_and_never_means_without_limit() {
    let stores = Stores::start();
    let refused: [(&str, Result<Limit, LimitError>); 3] = [
        ("capacity 0", Capacity::new(0).and_then(|c| Limit::new(c, "1/s".parse()?))),
        ("capacity 0, rate 0", Capacity::new(0).and_then(|c| Limit::new(c, "0".parse()?))),
        ("rate -1", Capacity::new(5).and_then(|c| Limit::new(c, "-1/s".parse()?))),
    ];
    for (what, limit) in refused {
        assert!(limit.is_err(), "{what}");
    }
    for mut bed in stores.beds() {
        let allowance = plan(2, 5, "0");
        assert_eq!(bed.burst(allowance, 7, 0).await, 5);
        let denied = bed.take(allowance, 1, 3_600 * S).await;
        assert_eq!((denied.granted, denied.wait(1)), (0, Wait::Never));
        if let Some(lifetime) = bed.lifetime_ms() {
            assert!(lifetime > 30 * 86_400_000, "{lifetime} ms: it must not live for ever");
            assert!(lifetime <= 32 * 86_400_000, "{lifetime} ms");
        }
    }
}

#[test]
fn c09_a_bucket_is_named_by_no_byte_of_an_identity() {
    let long = "A".repeat(256);
    let hostile = ["k{x}y", "{}", "{a}{b}", "two words", "ключ-7", "a\nb", "a\0b", "", &long];
    let sources = [VersionSource::ControlPlane, VersionSource::File];
    let mut names = std::collections::HashSet::new();
    let pairs = [("a", "b:c"), ("a:b", "c"), ("a:b:c", ""), ("", "a:b:c"), ("ab", ":c")];
    for source in sources {
        let scopes = pairs.map(|(client, key)| ScopeId::ApiKey { client, key });
        let addresses = pairs.map(|(plan, prefix)| ScopeId::Address { plan, prefix });
        let clients = hostile.map(ScopeId::Client);
        for scope in scopes.into_iter().chain(addresses).chain(clients) {
            let name = BucketKey::new(source, scope).to_string();
            assert_eq!(name.len(), 39, "whatever the identity: {name}");
            // Redis Cluster hashes what the first braces hold: all of our digest and nothing else.
            let digest = name.strip_prefix("weir:{").and_then(|name| name.strip_suffix('}'));
            assert!(digest.unwrap().bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
            assert!(names.insert(name), "{scope:?} shares a bucket");
        }
    }
}

#[tokio::test]
async fn c17_a_store_clock_that_runs_back_refills_no_second_twice() {
    let stores = Stores::start();
    for back_us in [1, MS, S, 2 * S] {
        for mut bed in stores.beds() {
            let fast = plan(2, 150, "150/s");
            let now = 10 * S;
            assert_eq!(bed.take(fast, 150, now).await.granted, 150);
            assert_eq!(bed.take(fast, 1, now - back_us).await.granted, 0, "{back_us} us back");
            assert_eq!(bed.take(fast, 150, now).await.granted, 0, "{back_us} us back, then again");
        }
    }
}

#[tokio::test]
async fn denied_attempts_change_nothing_when_the_limit_is_raised_later() {
    let stores = Stores::start();
    for mut bed in stores.beds() {
        let small = plan(2, 5, "1/h");
        assert_eq!(bed.burst(small, 45, 0).await, 5);
        assert_eq!(bed.burst(plan(4, 8, "1/h"), 10, 0).await, 3);
    }
}

/// Nothing here reads a calendar: the clocks of Europe go forward in the middle of this day.
#[tokio::test]
async fn a_day_has_86_400_seconds_wherever_and_whenever() {
    let stores = Stores::start();
    const BEFORE_THE_CHANGE: u64 = 6_195_600 - 3_600;
    for mut bed in stores.beds() {
        let daily = plan(2, 10, "10/d");
        let start = BEFORE_THE_CHANGE * S;
        assert_eq!(bed.burst(daily, 11, start).await, 10);
        for token in 1..=10 {
            let earned = start + token * 8_640 * S;
            assert_eq!(bed.burst(daily, 1, earned - 1).await, 0, "token {token} comes early");
            assert_eq!(bed.burst(daily, 2, earned).await, 1, "token {token}");
        }
    }
}

#[tokio::test]
async fn a_slower_plan_prolongs_the_life_of_the_bucket_it_finds() {
    let stores = Stores::start();
    for mut bed in stores.beds() {
        assert_eq!(bed.burst(plan(2, 10, "10/s"), 10, 0).await, 10);
        let slow = plan(4, 10, "1/100s");
        assert_eq!(bed.take(slow, 1, 0).await.granted, 0);
        assert!(bed.lifetime_ms().is_none_or(|lifetime| lifetime > 900_000));
        assert!(bed.burst(slow, 10, 5 * S).await <= 1);
    }
}
