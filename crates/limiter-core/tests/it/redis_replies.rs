//! Replies that are cut, garbled, mixed up or lost: none decides for another call, none is believed
//! in part, and what may have been done is not done again.

use std::sync::Arc;
use std::time::Duration;

use fault_proxy::{FaultProxy, Moment, Rule, Toxic};
use limiter_core::store::redis::RedisStore;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::{Reply, Request};
use rustix::process::Signal;

use crate::server::{Server, key, plan, store_at, until, until_answered};

const CAPACITY: u64 = 100_000;
/// A reply with one bucket, its header and its end.
const REPLY_BYTES: usize = 5 + 58 + 2;

struct World {
    server: Server,
    proxy: FaultProxy,
}

impl World {
    fn start() -> World {
        let server = Server::start();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.port));
        World { proxy: FaultProxy::start(address).unwrap(), server }
    }

    /// A store with one connection, which no fault has touched.
    async fn store(&self) -> Arc<RedisStore> {
        self.proxy.clear();
        let store = store_at(&self.proxy.url(), 1);
        until("the store is linked", || store.is_answering()).await;
        store
    }

    fn next_call(&self, toxic: Toxic) {
        self.proxy.set(Rule::new(toxic).on("EVALSHA").times(1));
    }

    /// Tokens that this client's calls have really taken.
    async fn taken(&self, client: &str) -> u64 {
        let store = self.server.store(1).await;
        let reply = store.call(&key(client), &Request::peek(plan(CAPACITY))).await.unwrap();
        CAPACITY - u64::try_from(reply.levels.burst.tokens).unwrap()
    }
}

async fn take(store: &RedisStore, client: &str, capacity: u64) -> Result<Reply, StoreError> {
    store.call(&key(client), &Request::take(plan(capacity), 1, 1)).await
}

/// Resident memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_reply_that_is_cut_after_any_byte_is_no_reply() {
    let world = World::start();
    let whole = take(&*world.store().await, "acme", CAPACITY).await.unwrap();
    assert_eq!(whole.granted, 1);
    for after in 0..REPLY_BYTES {
        let store = world.store().await;
        world.next_call(Toxic::Cut { after });
        let outcome = take(&store, "acme", CAPACITY).await;
        assert!(matches!(outcome, Err(StoreError::Lost(_))), "after {after} bytes: {outcome:?}");
    }
    let store = world.store().await;
    world.next_call(Toxic::Cut { after: REPLY_BYTES });
    take(&store, "acme", CAPACITY).await.expect("the whole of it came");
    // Each of them was executed, and none a second time.
    assert_eq!(world.taken("acme").await, 2 + REPLY_BYTES as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_garbage_ends_the_connection_and_takes_no_memory() {
    let world = World::start();
    take(&*world.store().await, "acme", CAPACITY).await.unwrap();
    let before = resident_kib();
    for bytes in [1, 2, 4, 8, 64] {
        for seed in 0..40 {
            let store = world.store().await;
            let rule = Rule::new(Toxic::Garble { bytes }).on("EVALSHA").times(1);
            world.proxy.set(fault_proxy::Rules { seed, list: vec![rule] });
            // A number that is only another number cannot be told; more than was asked for can.
            if let Ok(reply) = take(&store, "acme", CAPACITY).await {
                assert!(reply.granted <= 1 && reply.lent == 0, "{bytes} bytes of seed {seed}");
            }
        }
    }
    for _ in 0..10 {
        let store = world.store().await;
        world.next_call(Toxic::HugeHeader);
        let outcome = take(&store, "acme", CAPACITY).await;
        assert!(matches!(outcome, Err(StoreError::Lost(_))), "{outcome:?}");
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(grown <= 5 * 1_024, "{grown} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f08_a_call_that_a_reset_cut_off_is_not_made_again() {
    let world = World::start();
    for (moment, executed) in [(Moment::Before, 0), (Moment::During, 0), (Moment::After, 1)] {
        let client = format!("{moment:?}");
        let rounds = 60;
        for _ in 0..rounds {
            let store = world.store().await;
            world.next_call(Toxic::Reset(moment));
            let outcome = take(&store, &client, CAPACITY).await;
            assert!(matches!(outcome, Err(StoreError::Lost(_))), "{moment:?}: {outcome:?}");
        }
        assert_eq!(world.taken(&client).await, rounds * executed, "{moment:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_a_reply_never_decides_for_another_key() {
    let world = World::start();
    let store = world.store().await;
    // One may have what it wants, the other nothing at all. Both replies look alike.
    let empty = store.call(&key("empty"), &Request::take(plan(1), 1, 1)).await.unwrap();
    assert_eq!(empty.granted, 1);
    for toxic in [Toxic::Swap, Toxic::Repeat, Toxic::Push] {
        let mut lost = 0;
        for round in 0..50 {
            let store = world.store().await;
            world.next_call(toxic.clone());
            for _ in 0..3 {
                let (full, empty) =
                    tokio::join!(take(&store, "full", CAPACITY), take(&store, "empty", 1));
                for (outcome, right) in [(full, 1), (empty, 0)] {
                    match outcome {
                        Ok(reply) => {
                            assert_eq!(reply.granted, right, "{toxic:?} in round {round}");
                        }
                        Err(_) => lost += 1,
                    }
                }
            }
        }
        assert!(lost > 0 || toxic == Toxic::Push, "{toxic:?} was not there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f02_answers_after_a_long_silence_are_their_own_keys_or_nobodys() {
    for silence_ms in [50, 1_500] {
        answers_after_a_silence(Duration::from_millis(silence_ms)).await;
    }
}

async fn answers_after_a_silence(silence: Duration) {
    let server = Server::start();
    let store = server.store(2).await;
    take(&store, "empty", 1).await.unwrap();
    take(&store, "full", CAPACITY).await.unwrap();
    server.signal(Signal::STOP);
    let out: Vec<_> = (0..20)
        .map(|number| {
            let store = Arc::clone(&store);
            #[expect(clippy::disallowed_methods, reason = "a test's task ends with its runtime")]
            tokio::spawn(async move {
                let client = if number % 2 == 0 { "full" } else { "empty" };
                let capacity = if number % 2 == 0 { CAPACITY } else { 1 };
                (client, take(&store, client, capacity).await)
            })
        })
        .collect();
    tokio::time::sleep(silence).await;
    server.signal(Signal::CONT);
    let mut granted = 1;
    for call in out {
        let (client, outcome) = call.await.unwrap();
        if let Ok(reply) = outcome {
            assert_eq!(reply.granted, u64::from(client == "full"));
            granted += reply.granted;
        }
    }
    let (_, reply) = until_answered(&store, &key("full"), CAPACITY).await;
    for _ in 0..100 {
        assert_eq!(take(&store, "full", CAPACITY).await.unwrap().granted, 1);
        assert_eq!(take(&store, "empty", 1).await.unwrap().granted, 0);
    }
    let taken = CAPACITY - u64::try_from(reply.levels.burst.tokens).unwrap();
    assert!(taken <= granted + 1 + 10, "{taken} taken for {granted} granted");
}
