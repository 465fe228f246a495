//! Replies that are cut, garbled, too long, foreign, reset or late: none of them is an answer, each
//! costs its own call alone, and no token is paid for twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fault_proxy::{FaultProxy, Moment, Rule, Rules, Toxic};
use limiter_core::store::redis::RedisStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{BucketKey, Reply, Request};
use test_servers::Server;
use tokio::task::JoinSet;

use crate::server::{Stalls, key, meanwhile, plan, store_at, until, until_answered};

const CAPACITY: u64 = 1_000_000;
/// Least bytes of a reply about one bucket, with what the protocol puts around it.
const REPLY_BYTES_MIN: usize = 40;

/// A server, a network before it that breaks on command, and a way around that.
struct Bed {
    direct: Arc<RedisStore>,
    proxy: FaultProxy,
    server: Server,
}

impl Bed {
    async fn start() -> Bed {
        let server = meanwhile(Server::start).unwrap();
        let proxy = FaultProxy::start(server.address()).unwrap();
        let direct = store_at(&server.url(), 1);
        until("the way around is linked", || direct.is_answering()).await;
        Bed { direct, proxy, server }
    }

    /// A new store over the network, before anything broke.
    async fn store(&self) -> Arc<RedisStore> {
        self.proxy.clear();
        let store = store_at(&self.proxy.url(), 1);
        until("the store is linked", || store.is_answering()).await;
        store
    }

    /// The next call of this bucket meets this.
    fn meets(&self, key: &BucketKey, toxic: Toxic) {
        self.proxy.set(Self::rule(key, toxic));
    }

    fn rule(key: &BucketKey, toxic: Toxic) -> Rule {
        Rule::new(toxic).on("EVALSHA").key(key.to_string()).times(1)
    }

    /// Tokens that the server has given out of the bucket.
    async fn taken(&self, key: &BucketKey) -> u64 {
        // Where the server itself was away, this way has to come back too.
        until("the way around is linked", || self.direct.is_answering()).await;
        let found = self.direct.call(key, &Request::peek(plan(CAPACITY))).await.unwrap();
        CAPACITY - u64::try_from(found.levels.burst.tokens).unwrap()
    }
}

async fn take(store: &RedisStore, key: &BucketKey) -> Result<Reply, StoreError> {
    store.call(key, &Request::take(plan(CAPACITY), 1, 1)).await
}

/// Pages of this process: all that it has asked for, and those that are there.
fn memory_bytes() -> (usize, usize) {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let mut pages = text.split_whitespace().map(|number| number.parse::<usize>().unwrap());
    let mut next = || pages.next().unwrap() * 4_096;
    (next(), next())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_reply_that_is_cut_after_any_byte_is_no_answer() {
    let bed = Bed::start().await;
    let key = key("cut");
    let (mut resident, mut executed) = (None, 0);
    for after in 0.. {
        let store = bed.store().await;
        bed.meets(&key, Toxic::Cut { after });
        let outcome = take(&store, &key).await;
        executed += 1;
        assert_eq!(bed.taken(&key).await, executed, "executed, whatever was heard of it");
        if let Ok(whole) = outcome {
            assert!(after >= REPLY_BYTES_MIN, "an answer of {after} bytes");
            let left = i64::try_from(CAPACITY - executed).unwrap();
            assert_eq!((whole.granted, whole.levels.burst.tokens), (1, left));
            break;
        }
        assert!(matches!(outcome, Err(StoreError::Lost(_))), "after {after}: {outcome:?}");
        if after % 16 == 0 {
            let (_, again) = until_answered(&store, &key, CAPACITY).await;
            assert_eq!(again.granted, 1, "over another connection");
            executed += 1;
        }
        store.shut_down().await;
        resident.get_or_insert(memory_bytes().1);
    }
    let grown = memory_bytes().1.saturating_sub(resident.unwrap());
    assert!(grown < 5 * 1024 * 1024, "memory grew by {grown} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_reply_that_claims_half_a_gigabyte_is_given_no_room() {
    let bed = Bed::start().await;
    let key = key("huge");
    let store = bed.store().await;
    take(&store, &key).await.unwrap();
    let (asked, there) = memory_bytes();
    bed.meets(&key, Toxic::HugeHeader);
    let calling = Arc::clone(&store);
    let mut calls = JoinSet::new();
    calls.spawn(async move { take(&calling, &key).await });
    let mut most = 0;
    while !calls.is_empty() {
        most = most.max(memory_bytes().0.saturating_sub(asked));
        if let Some(outcome) = calls.try_join_next() {
            let outcome = outcome.unwrap();
            assert!(matches!(outcome, Err(StoreError::Lost(_))), "{outcome:?}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Whoever believes the header asks for 512 MiB; threads ask for 64 each, perhaps.
    assert!(most < 400 * 1024 * 1024, "{most} bytes were asked for");
    let (_, again) = until_answered(&store, &key, CAPACITY).await;
    assert_eq!(again.granted, 1, "over another connection");
    assert_eq!(bed.taken(&key).await, 3);
    let grown = memory_bytes().1.saturating_sub(there);
    assert!(grown < 5 * 1024 * 1024, "memory grew by {grown} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_bytes_that_are_no_reply_are_no_answer() {
    let bed = Bed::start().await;
    for seed in 0..40 {
        let key = key(&format!("garbled {seed}"));
        let store = bed.store().await;
        // More than a reply has: every byte of it is another.
        let list = vec![Bed::rule(&key, Toxic::Garble { bytes: 1_000 })];
        bed.proxy.set(Rules { seed, list });
        let outcome = take(&store, &key).await;
        assert!(outcome.is_err(), "seed {seed}: {outcome:?}");
        assert_eq!(bed.taken(&key).await, 1, "seed {seed}");
        if seed % 10 == 0 {
            let (_, again) = until_answered(&store, &key, CAPACITY).await;
            assert_eq!((again.granted, again.levels.burst.tokens), (1, 999_998), "seed {seed}");
        }
        store.shut_down().await;
    }
    assert!(bed.server.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f08_a_reset_around_a_call_is_no_reason_to_send_it_again() {
    let bed = Bed::start().await;
    for (moment, executed) in [(Moment::Before, 0), (Moment::During, 0), (Moment::After, 1)] {
        for round in 0..20 {
            let key = key(&format!("reset {moment:?} {round}"));
            let store = bed.store().await;
            bed.meets(&key, Toxic::Reset(moment));
            let outcome = take(&store, &key).await;
            assert!(
                matches!(outcome, Err(StoreError::Lost(_) | StoreError::Unreachable(_))),
                "{moment:?}: {outcome:?}"
            );
            if round % 10 == 0 {
                let (_, again) = until_answered(&store, &key, CAPACITY).await;
                assert_eq!(again.granted, 1);
                assert_eq!(bed.taken(&key).await, executed + 1, "{moment:?}");
            } else {
                assert_eq!(bed.taken(&key).await, executed, "{moment:?}");
            }
            store.shut_down().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f08_calls_beside_a_reset_are_each_charged_once_or_not_at_all() {
    const CALLERS: usize = 40;
    let bed = Bed::start().await;
    let mut ends = [0; 2];
    for round in 0..15 {
        let moment = [Moment::Before, Moment::During, Moment::After][round % 3];
        let store = bed.store().await;
        let some = Rule::new(Toxic::Reset(moment)).on("EVALSHA").share(0.05);
        let seed = round as u64;
        bed.proxy.set(Rules { seed, list: vec![some] });
        let mut calls = JoinSet::new();
        for caller in 0..CALLERS {
            let store = Arc::clone(&store);
            let key = key(&format!("beside {round} {caller}"));
            calls.spawn(async move { (key, take(&store, &key).await.is_ok()) });
        }
        for (key, answered) in calls.join_all().await {
            let taken = bed.taken(&key).await;
            ends[usize::from(answered)] += 1;
            assert!(if answered { taken == 1 } else { taken <= 1 }, "{taken} for one call");
        }
        store.shut_down().await;
    }
    assert!(ends.iter().all(|count| *count > 0), "[failed, answered] is {ends:?}");
}

/// A bucket that is empty, and one that is not.
async fn opposites(bed: &Bed, store: &RedisStore, name: &str) -> [BucketKey; 2] {
    let keys = [key(&format!("{name}, empty")), key(&format!("{name}, full"))];
    let all = Request::take(plan(CAPACITY), CAPACITY, CAPACITY);
    assert_eq!(bed.direct.call(&keys[0], &all).await.unwrap().granted, CAPACITY);
    for (key, granted) in keys.iter().zip([0, 1]) {
        assert_eq!(take(store, key).await.unwrap().granted, granted);
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_what_nobody_asked_for_is_taken_for_nobodys_answer() {
    let bed = Bed::start().await;
    for toxic in [Toxic::Push, Toxic::Repeat] {
        let store = bed.store().await;
        let keys = opposites(&bed, &store, &format!("{toxic:?}")).await;
        bed.proxy.set(Rule::new(toxic.clone()).on("EVALSHA"));
        let mut answered = 0;
        for _ in 0..200 {
            for (key, granted) in keys.iter().zip([0, 1]) {
                // A connection in doubt may be given up instead.
                if let Ok(reply) = take(&store, key).await {
                    answered += 1;
                    assert_eq!(reply.granted, granted, "{toxic:?}: the other one's answer");
                }
            }
        }
        assert!(answered > 0, "{toxic:?}");
        store.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_replies_that_change_places_or_come_twice_decide_for_no_other_key() {
    let bed = Bed::start().await;
    for toxic in [Toxic::Swap, Toxic::Repeat] {
        let mut lost = 0;
        for round in 0..50 {
            let store = bed.store().await;
            let keys = opposites(&bed, &store, &format!("{toxic:?} {round}")).await;
            bed.proxy.set(Rule::new(toxic.clone()).on("EVALSHA").times(1));
            for _ in 0..3 {
                let (empty, full) = tokio::join!(take(&store, &keys[0]), take(&store, &keys[1]));
                for (outcome, granted) in [(empty, 0), (full, 1)] {
                    match outcome {
                        Ok(reply) => assert_eq!(reply.granted, granted, "{toxic:?} in {round}"),
                        Err(_) => lost += 1,
                    }
                }
            }
            store.shut_down().await;
        }
        assert!(lost > 0, "{toxic:?} was not there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f02_after_a_freeze_each_bucket_has_its_own_answers_and_pays_once() {
    let bed = Bed::start().await;
    let store = store_at(&bed.server.url(), 2);
    until("the store is linked", || store.is_answering()).await;
    let keys = opposites(&bed, &store, "freeze").await;
    let mut granted = 1;
    for _ in 0..3 {
        let sent = || store.counters().calls.load(Ordering::Relaxed);
        let before = sent();
        bed.server.freeze().unwrap();
        let mut calls = JoinSet::new();
        for number in 0..40 {
            let (store, key) = (Arc::clone(&store), keys[number % 2]);
            calls.spawn(async move { take(&store, &key).await.map(|reply| reply.granted) });
        }
        let frozen = calls.join_all().await;
        assert!(frozen.iter().all(Result::is_err), "nobody can have answered: {frozen:?}");
        let out = sent() - before;
        bed.server.thaw().unwrap();
        for (key, each) in keys.iter().zip([0, 1]) {
            let (_, reply) = until_answered(&store, key, CAPACITY).await;
            assert_eq!(reply.granted, each, "an answer to a call from before");
            granted += each;
        }
        for _ in 0..100 {
            for (key, each) in keys.iter().zip([0, 1]) {
                let reply = take(&store, key).await;
                // A busy machine may lose one more; then it is counted as out.
                if let Ok(reply) = reply {
                    assert_eq!(reply.granted, each, "the other one's answer");
                    granted += each;
                }
            }
        }
        let (taken, most) = (bed.taken(&keys[1]).await, granted + out + 10);
        assert!((granted..=most).contains(&taken), "{taken} taken, {granted} granted, {out} out");
        granted = taken;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f05_replies_after_five_seconds_are_lost_and_soon_nobody_asks() {
    // Five failures in a row, or one heartbeat, open the breaker of the one connection.
    const CALLS_MAX: u64 = 5;
    let bed = Bed::start().await;
    let key = key("late");
    let store = bed.store().await;
    take(&store, &key).await.unwrap();
    let sent = || store.counters().calls.load(Ordering::Relaxed);
    let before = sent();
    let resident = memory_bytes().1;
    bed.proxy.set(Toxic::delay(Duration::from_secs(5)));
    let mut tripped = 0;
    for _ in 0..2_000 {
        match take(&store, &key).await {
            Err(StoreError::Tripped { .. }) => tripped += 1,
            Err(StoreError::Lost(_) | StoreError::Unreachable(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(sent() - before <= CALLS_MAX, "{} calls were sent", sent() - before);
    assert!(tripped > 1_000, "{tripped} calls found a breaker open");
    assert!(store.breaker_openings() >= 1);
    bed.proxy.clear();
    let (_, reply) = until_answered(&store, &key, CAPACITY).await;
    assert_eq!(reply.granted, 1);
    let taken = bed.taken(&key).await;
    assert!(taken <= 1 + sent() - before, "{taken} taken: what was sent, each once");
    let grown = memory_bytes().1.saturating_sub(resident);
    assert!(grown < 20 * 1024 * 1024, "memory grew by {grown} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f03_replies_that_are_merely_slow_open_no_breaker_and_are_all_used() {
    let bed = Bed::start().await;
    let stalls = Stalls::watch();
    let key = key("slow");
    for by in [3, 6, 50].map(Duration::from_millis) {
        let store = bed.store().await;
        bed.proxy.set(Toxic::delay(by));
        let before = bed.taken(&key).await;
        let mut granted = 0;
        for _ in 0..60 {
            match take(&store, &key).await {
                Ok(reply) => granted += reply.granted,
                Err(error) => assert!(stalls.excuse(), "{by:?} more: {error:?}"),
            }
        }
        let taken = bed.taken(&key).await - before;
        assert!(granted <= taken && (granted == taken || stalls.excuse()), "{granted} of {taken}");
        assert!(store.breaker_openings() == 0 || stalls.excuse(), "{by:?} more opens a breaker");
        assert_eq!(store.counters().timeouts.load(Ordering::Relaxed), 0, "{by:?}");
        store.shut_down().await;
    }
}
