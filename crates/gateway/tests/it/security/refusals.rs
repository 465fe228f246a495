//! Answers that the gateway gives by itself: all alike to who has no right to know more, with a
//! time to wait that can be kept, and cheap.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use edge::limiter::store::memory::MemoryStore;
use edge::limiter::{Clock, SystemClock};
use edge::{ControlPlane, FeedError, LookupError, Pending, PolicySource};
use gateway::upstream::names::SystemNames;
use gateway::{Evidently, Parts};
use limiter_core::testkit::{Fault, FaultyStore, ManualClock};
use serde_json::json;
use wire::key::{ApiKey, KeyEnv, KeyHash, Pepper};
use wire::policy::{
    ClientState, FeedAnswer, FeedRequest, FoundKey, KeyState, LookupAnswer, LookupRequest, Snapshot,
};
use wire::rollout::Phase;

use crate::support::plane::{self, Plane};
use crate::support::{
    Gateway, KEY, Reply, Service, eventually, file, get, parse, pepper, standing, tally,
};

/// A control plane that knows some keys, and counts what it is asked.
struct Keys {
    plane: Arc<Plane>,
    known: Vec<FoundKey>,
    asked: AtomicUsize,
}

impl ControlPlane for Keys {
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>> {
        self.plane.snapshot()
    }

    fn feed<'a>(&'a self, asked: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>> {
        self.plane.feed(asked)
    }

    fn lookup<'a>(
        &'a self,
        request: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>> {
        self.asked.fetch_add(request.hashes.len(), Ordering::SeqCst);
        let of = |hash: &KeyHash| self.known.iter().find(|known| known.hash == *hash).cloned();
        let found: Vec<FoundKey> = request.hashes.iter().filter_map(of).collect();
        let missing = request.hashes.iter().filter(|hash| of(hash).is_none()).copied().collect();
        Box::pin(async { Ok(LookupAnswer { revision: 5, found, missing }) })
    }
}

/// A gateway over such a control plane, which becomes ready.
async fn gateway(service: &Service, keys: &Arc<Keys>) -> Gateway {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let parts = Parts {
        leases: false,
        store: Arc::new(MemoryStore::new(Arc::clone(&clock))),
        clock,
        source: PolicySource::ControlPlane(Arc::clone(keys) as _),
        evidence: Evidently(None),
        names: Arc::new(SystemNames),
    };
    let config = parse(&file("unlimited = true", "", service.address));
    let gateway = Gateway::with(config, parts).await;
    eventually("the policy has arrived", async || {
        get(gateway.operations, "/readyz", &[]).await.status == 200
    })
    .await;
    gateway
}

fn keys(known: Vec<FoundKey>) -> Arc<Keys> {
    let plan = json!({ "burst": { "capacity": 100, "refill": "100/s" } });
    let plane = Plane::new(&plan, Phase::Enforce);
    Arc::new(Keys { plane, known, asked: AtomicUsize::new(0) })
}

#[tokio::test]
async fn s28_a_key_whose_tag_we_did_not_make_is_refused_without_asking_anybody() {
    let service = Service::hello().await;
    let known = keys(vec![plane::found(KeyHash::of_key(KEY, &pepper()))]);
    let gateway = gateway(&service, &known).await;
    let ours = ApiKey::generate(KeyEnv::Live, &pepper()).unwrap().text;
    let other = Pepper::from_bytes(&[7; 32]).unwrap();
    let without_pepper = ApiKey::generate(KeyEnv::Live, &other).unwrap().text;
    let wrong_tag = with_another_end(&ours);
    for key in [wrong_tag.as_str(), &without_pepper, "weir_live_x", "weir_test_", "weir_live_ab_cd"]
    {
        let reply = get(gateway.traffic, "/", &[("x-api-key", key)]).await;
        assert_eq!((reply.status, &*reply.code()), (401, "key_invalid"), "{key}");
    }
    assert_eq!(known.asked.load(Ordering::SeqCst), 0, "their text alone tells");
    // One with a right tag could exist: it is asked about.
    let reply = get(gateway.traffic, "/", &[("x-api-key", &ours)]).await;
    assert_eq!((reply.status, &*reply.code()), (401, "key_invalid"));
    assert_eq!(known.asked.load(Ordering::SeqCst), 1);
    assert_eq!(service.requests(), 0);
}

/// The key with another last character.
fn with_another_end(key: &str) -> String {
    let mut key = key.to_owned();
    let last = key.pop();
    key.push(if last == Some('0') { '1' } else { '0' });
    key
}

/// All that a caller sees of an answer, without what each answer has of its own.
fn seen(reply: &Reply) -> (u16, Vec<String>, String) {
    let own = ["x-request-id", "date"];
    let fields = reply.headers.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let fields = fields.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    let body = String::from_utf8(reply.body.to_vec()).unwrap();
    let id = reply.header("x-request-id");
    (reply.status, fields.collect(), body.replace(id, "ID"))
}

#[tokio::test]
async fn s29_a_key_that_does_not_open_tells_nobody_why() {
    let service = Service::hello().await;
    let made = |change: &dyn Fn(&mut FoundKey)| {
        let key = ApiKey::generate(KeyEnv::Live, &pepper()).unwrap();
        let mut found = plane::found(key.hash);
        found.key.id = key.id.clone();
        change(&mut found);
        (key.text, found)
    };
    let revoked = made(&|found| found.key.state = KeyState::Revoked);
    let disabled = made(&|found| found.key.state = KeyState::Disabled);
    let expired = made(&|found| found.key.expires_at = Some(1));
    let replaced = made(&|found| found.key.secrets[0].valid_until = Some(1));
    let suspended = made(&|found| {
        found.client.state = ClientState::Suspended;
        found.client.id = "late-payer".to_owned();
        found.key.client = "late-payer".to_owned();
    });
    let good = made(&|_| {});
    let unknown = ApiKey::generate(KeyEnv::Live, &pepper()).unwrap().text;
    let wrong_last = with_another_end(&good.0);
    let texts = [
        ("unknown", unknown),
        ("foreign", "somebody-elses".to_owned()),
        ("revoked", revoked.0.clone()),
        ("disabled", disabled.0.clone()),
        ("expired", expired.0.clone()),
        ("replaced", replaced.0.clone()),
        ("wrong last character", wrong_last),
    ];
    let (open, closed) = (good.0.clone(), suspended.0.clone());
    let known = [revoked, disabled, expired, replaced, suspended, good];
    let known = keys(known.map(|(_, found)| found).into());
    let gateway = gateway(&service, &known).await;
    assert_eq!(get(gateway.traffic, "/", &[("x-api-key", &open)]).await.status, 200);
    let mut first = None;
    for (what, key) in &texts {
        for _ in 0..2 {
            let reply = get(gateway.traffic, "/", &[("x-api-key", key)]).await;
            let seen = seen(&reply);
            assert_eq!(seen.0, 401, "{what}");
            assert_eq!(*first.get_or_insert_with(|| seen.clone()), seen, "{what}");
        }
    }
    let reply = get(gateway.traffic, "/", &[("x-api-key", &closed)]).await;
    assert_eq!((reply.status, &*reply.code()), (403, "client_suspended"));
    assert_eq!(service.requests(), 1);
}

/// Whole seconds, at least one, the same in header and body.
fn assert_can_wait(reply: &Reply) {
    let told = reply.header("retry-after");
    assert!(told.parse::<u64>().is_ok_and(|seconds| 1 <= seconds), "{reply:?}");
    assert_eq!(reply.json()["retry_after"].to_string(), told);
}

#[tokio::test]
async fn s40_every_refusal_for_now_says_for_how_long_in_whole_seconds() {
    let service = Service::hello().await;
    for (refill, waits) in [("1000/s", 1), ("1/s", 1), ("10/s", 1), ("1/9s", 9), ("1/d", 86_400)] {
        let (clock, store) = standing();
        let plan = format!("burst = {{ capacity = 1, refill = \"{refill}\" }}");
        let gateway = Gateway::over(&file(&plan, "", service.address), store, clock).await;
        let replies = gateway.calls(3).await;
        assert_eq!(tally(&replies), [(200, 1), (429, 2)], "{refill}");
        for denied in &replies[1..] {
            assert_can_wait(denied);
            assert_eq!(denied.header("retry-after"), waits.to_string(), "{refill}");
            assert!(denied.header("retry-after-ms").parse::<u64>().unwrap() >= 1);
        }
    }
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let store = Arc::new(FaultyStore::new(memory));
    store.always(Fault::Unreachable);
    let plan = "burst = { capacity = 10, refill = \"1/s\" }\nfailure = \"closed\"";
    let closed = Gateway::over(&file(plan, "", service.address), store, clock).await;
    let reply = &closed.calls(1).await[0];
    assert_eq!((reply.status, &*reply.code()), (503, "limiter_closed"));
    assert_can_wait(reply);
}

#[tokio::test]
async fn s40_who_retries_at_once_costs_the_service_nothing_and_starves_nobody() {
    let service = Service::hello().await;
    let (clock, store) = standing();
    let other = format!(
        "[client.other]\nplan = \"big\"\n[plan.big]\nburst = {{ capacity = 1000, refill = \"1/d\" }}\n{}",
        crate::support::key_table("k2", "other", "other")
    );
    let plan = "burst = { capacity = 2, refill = \"1/d\" }";
    let gateway = Gateway::over(&file(plan, &other, service.address), store, clock).await;
    let storm = async {
        let hasty = (0..20).map(|_| gateway.calls(50));
        futures_util::future::join_all(hasty).await.concat()
    };
    let patient = async {
        let mut replies = Vec::new();
        for _ in 0..100 {
            replies.push(get(gateway.traffic, "/", &[("x-api-key", "other")]).await);
        }
        replies
    };
    let (hasty, patient) = tokio::join!(storm, patient);
    assert_eq!(tally(&hasty), [(200, 2), (429, 998)]);
    assert_eq!(tally(&patient), [(200, 100)]);
    assert_eq!(service.requests(), 102, "a refusal reaches nobody");
}
