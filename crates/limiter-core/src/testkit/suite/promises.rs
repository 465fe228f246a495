//! What a store promises beside its arithmetic: several callers, several keys, callers who leave.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Advance, call, key, parse_limits};
use crate::call::{Found, PlanNumbers, PlanVersion, Request};
use crate::store::BucketStore;

/// Callers who come at the same moment.
const CROWD: u64 = 64;

/// All of them.
pub(super) async fn check<S: BucketStore>(store: &Arc<S>, time: &impl Advance, salt: &str) {
    nobody_takes_twice(store, salt).await;
    leases_and_takes_share_one_bucket(store, salt).await;
    keys_do_not_interfere(store, salt).await;
    a_look_changes_nothing(store, salt).await;
    a_full_bucket_is_forgotten(store, time, salt).await;
    a_call_goes_on_elsewhere(store, salt).await;
    an_epoch_never_goes_back(store, salt).await;
}

fn plan(limits: &str) -> PlanNumbers {
    PlanNumbers { version: PlanVersion(2), limits: parse_limits(limits) }
}

/// So many callers at once want what fewer can have.
async fn nobody_takes_twice<S: BucketStore>(store: &Arc<S>, salt: &str) {
    let (plan, key) = (plan("50@1/h"), key(salt, "all at once"));
    let granted = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CROWD {
        let (store, granted) = (Arc::clone(store), Arc::clone(&granted));
        callers.spawn(async move {
            let reply = call(&*store, &key, &Request::take(plan, 1, 1), "all at once").await;
            granted.fetch_add(reply.granted, Ordering::Relaxed);
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.expect("no caller panics");
    }
    let granted = granted.load(Ordering::Relaxed);
    assert_eq!(
        granted, 50,
        "{CROWD} callers took {granted} tokens at once of a bucket of 50: calls of one key must be \
         applied one after the other"
    );
}

/// What is lent to some is not there for others.
async fn leases_and_takes_share_one_bucket<S: BucketStore>(store: &Arc<S>, salt: &str) {
    let (plan, key) = (plan("1000@1000/s"), key(salt, "lent and taken"));
    let out = Arc::new(AtomicU64::new(0));
    let first = call(&**store, &key, &Request::take(plan, 0, 0), "the start of a crowd").await;
    let mut callers = JoinSet::new();
    for number in 0..CROWD {
        let (store, out) = (Arc::clone(store), Arc::clone(&out));
        callers.spawn(async move {
            let demand_per_s = 500 * (number % 2);
            let request = Request { demand_per_s, ..Request::take(plan, 20, 1) };
            let reply = call(&*store, &key, &request, "a crowd with leases").await;
            out.fetch_add(reply.granted + reply.lent, Ordering::Relaxed);
            reply.at
        });
    }
    let mut last = first.at;
    while let Some(caller) = callers.join_next().await {
        last = last.max(caller.expect("no caller panics"));
    }
    let out = out.load(Ordering::Relaxed);
    let earned = u64::try_from(last.since(first.at).as_millis()).unwrap_or(0) + 1;
    assert!(
        out <= 1_000 + earned,
        "{out} tokens were granted and lent of a bucket of 1000 that earned {earned}"
    );
}

/// What is done to one key is nothing to the others.
async fn keys_do_not_interfere<S: BucketStore>(store: &Arc<S>, salt: &str) {
    let plan = plan("10@1/h");
    let mut callers = JoinSet::new();
    for number in 0..CROWD {
        let (store, key) = (Arc::clone(store), key(salt, &format!("neighbour {number}")));
        callers.spawn(async move {
            for taken in 1..=number % 10 {
                let reply = call(&*store, &key, &Request::take(plan, 1, 1), "neighbours").await;
                let left = i64::try_from(10 - taken).unwrap_or(0);
                assert_eq!(
                    (reply.granted, reply.levels.burst.tokens),
                    (1, left),
                    "key {number} of {CROWD} was changed by calls of other keys"
                );
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.expect("every key has a bucket of its own");
    }
}

/// A peek leaves no bucket behind, and takes nothing from one that is there.
async fn a_look_changes_nothing<S: BucketStore>(store: &Arc<S>, salt: &str) {
    let (plan, key) = (plan("10@1/h"), key(salt, "looked at"));
    for _ in 0..3 {
        let reply = call(&**store, &key, &Request::peek(plan), "a look at nothing").await;
        assert_eq!(reply.found, Found::Nothing, "a peek must not store a bucket");
        assert_eq!(reply.levels.burst.tokens, 10, "a missing bucket is a full one");
    }
    call(&**store, &key, &Request::take(plan, 3, 3), "a take").await;
    for _ in 0..3 {
        let request = Request { need: 5, smallest_need: 1, ..Request::peek(plan) };
        call(&**store, &key, &request, "a look that wants something").await;
    }
    let reply = call(&**store, &key, &Request::peek(plan), "a look").await;
    assert_eq!(reply.levels.burst.tokens, 7, "a peek must not take, whatever its need says");
}

/// A bucket is kept until it is full and every lease of it has ended, and not for ever.
async fn a_full_bucket_is_forgotten<S: BucketStore>(
    store: &Arc<S>,
    time: &impl Advance,
    salt: &str,
) {
    let (plan, key) = (plan("2@20/s"), key(salt, "left alone"));
    call(&**store, &key, &Request::take(plan, 2, 2), "a take").await;
    time.advance(Duration::from_millis(60)).await;
    let reply = call(&**store, &key, &Request::peek(plan), "a look after 60 ms").await;
    assert_eq!(reply.found, Found::Known, "a bucket must be kept until it is full again");
    // Full after 100 ms, leases are dead after a second, and a quarter of one to spare.
    time.advance(Duration::from_millis(1_400)).await;
    let reply = call(&**store, &key, &Request::peek(plan), "a look after 1.4 s more").await;
    assert_eq!(reply.found, Found::Nothing, "a bucket that is full must be forgotten in the end");
    assert_eq!(reply.levels.burst.tokens, 2, "a forgotten bucket is a full one");
}

/// A caller may poll once and leave the rest to a task, or to nobody.
async fn a_call_goes_on_elsewhere<S: BucketStore>(store: &Arc<S>, salt: &str) {
    let (plan, key) = (plan("10@1/h"), key(salt, "moved"));
    let theirs = Arc::clone(store);
    let mut future = Box::pin(async move {
        call(&*theirs, &key, &Request::take(plan, 1, 1), "a call that is moved to a task").await
    });
    let reply = match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        Poll::Ready(reply) => reply,
        Poll::Pending => {
            let mut tasks = JoinSet::new();
            tasks.spawn(future);
            tasks.join_all().await.remove(0)
        }
    };
    let what = "a call that is polled here and ends in a task must take once";
    assert_eq!((reply.granted, reply.levels.burst.tokens), (1, 9), "{what}");
}

async fn an_epoch_never_goes_back<S: BucketStore>(store: &Arc<S>, salt: &str) {
    let (plan, key) = (plan("10@1/h"), key(salt, "epochs"));
    let before = store.epoch(&key);
    call(&**store, &key, &Request::take(plan, 1, 1), "a take").await;
    assert!(store.epoch(&key) >= before, "an epoch must only grow");
}
