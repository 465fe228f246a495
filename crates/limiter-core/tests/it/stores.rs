//! One suite over every store.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::memory::MemoryStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::testkit::{
    Advance, Fault, FaultyStore, ManualClock, check_damaged_state, check_store,
};
use limiter_core::{
    BucketKey, Capacity, Limit, Limiter, LimiterSettings, Limits, PlanNumbers, PlanVersion, Reply,
    Request, ScopeId, VersionSource,
};

use test_servers::{Cluster, SentinelSet};

use crate::server::{Server, meanwhile};

/// A server's time passes by itself.
pub(crate) struct RealTime;

impl Advance for RealTime {
    async fn advance(&self, by: Duration) {
        tokio::time::sleep(by).await;
    }
}

#[tokio::test]
async fn the_embedded_store_passes_the_suite() {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(MemoryStore::new(clock.clone()));
    check_store(&store, clock.as_ref(), "memory").await;
}

#[tokio::test]
async fn idle_buckets_go_without_another_write() {
    const CLIENTS: usize = 100_000;
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(MemoryStore::new(clock.clone()));
    let limiter = Limiter::new(Arc::clone(&store), clock.clone(), LimiterSettings::default());
    let plan = PlanNumbers {
        version: PlanVersion(2),
        limits: Limits::burst_only(
            Limit::new(Capacity::new(10).unwrap(), "1/s".parse().unwrap()).unwrap(),
        ),
    };
    for client in 0..CLIENTS {
        let key = BucketKey::new(VersionSource::File, ScopeId::Client(client.to_string().as_str()));
        store.call(&key, &Request::take(plan, 1, 1)).await.unwrap();
    }
    assert_eq!(store.len(), CLIENTS);
    limiter.sweep();
    assert_eq!(store.len(), CLIENTS, "they are not full yet");
    clock.advance(Duration::from_secs(4));
    limiter.sweep();
    assert!(store.is_empty(), "{} stay", store.len());
}

#[tokio::test]
async fn redis_passes_the_suite() {
    let server = Server::start();
    let store = server.store(2).await;
    check_store(&store, &RealTime, "redis").await;
    store.shut_down().await;
}

#[tokio::test]
async fn redis_repairs_what_is_no_bucket() {
    let server = Server::start();
    let store = server.store(2).await;
    for (number, garbage) in ["", "0", "{\"tokens\": 7}", "\u{1}\u{1}\u{1}"].iter().enumerate() {
        let damage = async |key: &BucketKey| {
            redis::cmd("SET")
                .arg(key.to_string())
                .arg(garbage)
                .exec(&mut server.connection())
                .unwrap();
        };
        check_damaged_state(&store, &format!("damage {number}"), damage).await;
    }
    let damage = async |key: &BucketKey| {
        let mut admin = server.connection();
        redis::cmd("DEL").arg(key.to_string()).exec(&mut admin).unwrap();
        redis::cmd("LPUSH").arg(key.to_string()).arg("a list").exec(&mut admin).unwrap();
    };
    check_damaged_state(&store, "another type", damage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_under_sentinel_passes_the_suite() {
    let set = meanwhile(|| SentinelSet::start(1)).unwrap();
    let store = crate::sentinel::store(&set).await;
    check_store(&store, &RealTime, "sentinel").await;
    store.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_cluster_passes_the_suite() {
    let cluster = meanwhile(Cluster::start).unwrap();
    let store = crate::cluster::store(&cluster).await;
    check_store(&store, &RealTime, "cluster").await;
    store.shut_down().await;
}

#[tokio::test]
async fn a_faulty_store_without_faults_passes_the_suite() {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(clock.clone())));
    check_store(&store, clock.as_ref(), "faulty").await;
}

#[tokio::test]
#[should_panic(expected = "a store knows only what was written to it")]
async fn the_suite_finds_a_store_that_executes_calls_twice() {
    struct Twice(MemoryStore);
    impl limiter_core::store::BucketStore for Twice {
        async fn call(
            &self,
            key: &limiter_core::BucketKey,
            request: &limiter_core::Request,
        ) -> Result<limiter_core::Reply, limiter_core::store::StoreError> {
            self.0.call(key, request).await?;
            self.0.call(key, request).await
        }
    }
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(Twice(MemoryStore::new(clock.clone())));
    check_store(&store, clock.as_ref(), "twice").await;
}

/// A store with one mistake, over the embedded one.
struct Wrong<F>(MemoryStore, F);

impl<F> BucketStore for Wrong<F>
where
    F: Fn(&BucketKey, &Request) -> (BucketKey, Request) + Send + Sync + 'static,
{
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        let (key, request) = (self.1)(key, request);
        self.0.call(&key, &request).await
    }
}

async fn suite_over(
    mistake: impl Fn(&BucketKey, &Request) -> (BucketKey, Request) + Send + Sync + 'static,
) {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(Wrong(MemoryStore::new(clock.clone()), mistake));
    check_store(&store, clock.as_ref(), "wrong").await;
}

#[tokio::test]
#[should_panic(expected = "was changed by calls of other keys")]
async fn the_suite_finds_a_store_that_mixes_keys_up() {
    let one = BucketKey::new(VersionSource::File, ScopeId::Client("all of them"));
    let crowd: Vec<BucketKey> = (0..64)
        .map(|number| {
            let name = format!("neighbour {number}");
            let scope = ScopeId::ApiKey { client: "wrong", key: &name };
            BucketKey::new(VersionSource::File, scope)
        })
        .collect();
    suite_over(move |key, request| (if crowd.contains(key) { one } else { *key }, *request)).await;
}

#[tokio::test]
#[should_panic(expected = "`levels` is")]
async fn the_suite_finds_a_store_that_hears_no_witness() {
    suite_over(|key, request| (*key, Request { witness: None, ..*request })).await;
}

#[tokio::test]
#[should_panic(expected = "the reply differs from `bucket::apply`: `levels` is")]
async fn the_suite_finds_a_store_that_writes_when_it_should_look() {
    suite_over(|key, request| {
        let looks = request.peek && request.need == 0;
        let owed = limiter_core::Owed { burst: u64::from(looks), ..request.owed };
        (*key, Request { peek: false, owed, ..*request })
    })
    .await;
}

#[tokio::test]
#[should_panic(expected = "a healthy store answers")]
async fn the_suite_does_not_take_errors_for_answers() {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(clock.clone())));
    store.then([Fault::LostAfter]);
    check_store(&store, clock.as_ref(), "lossy").await;
}
