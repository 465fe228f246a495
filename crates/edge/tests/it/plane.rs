//! A control plane made of a few maps, behind the same port as the real one. It can hold answers
//! back, be away, forget its change log, and come back with another history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use edge::{ControlPlane, FeedError, LookupError, Pending, ReportError};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use wire::bootstrap::Bootstrap;
use wire::key::KeyEnv;
use wire::killswitch::KillswitchValue;
use wire::plan::PlanValue;
use wire::policy::{
    Change, ClientState, ClientValue, FEED_CHANGES_MAX, FeedAnswer, FeedRequest, FoundKey,
    KeyState, KeyValue, LookupAnswer, LookupRequest, Object, OverrideValue, SecretValue, Snapshot,
};
use wire::rollout::{Phase, RolloutRule, RolloutValue, RuleSubject};
use wire::usage::UsageReport;

use super::world::{burst, hash, pepper};

/// Plans by name with their revision, and whether that version is valid.
pub(crate) type Committed = BTreeMap<String, (u64, bool)>;

#[derive(Debug, Default, Clone)]
struct State {
    history: String,
    head: u64,
    plans: BTreeMap<String, PlanValue>,
    clients: BTreeMap<String, ClientValue>,
    keys: BTreeMap<String, KeyValue>,
    rollout: Option<RolloutValue>,
    killswitch: Option<KillswitchValue>,
    log: Vec<Change>,
    /// Changes up to this revision are not in the log any more.
    forgotten: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Plane {
    state: Mutex<State>,
    /// What was committed at each revision of each history.
    pub(crate) committed: Mutex<BTreeMap<(String, u64), Committed>>,
    pub(crate) lookups: AtomicUsize,
    pub(crate) snapshots: AtomicUsize,
    asked: AtomicUsize,
    feed_is_cut: AtomicBool,
    cut_was_noticed: AtomicBool,
    cut_twice: AtomicUsize,
    pub(crate) usage: Mutex<Vec<UsageReport>>,
    pub(crate) away: AtomicBool,
    pub(crate) other_pepper: AtomicBool,
    pub(crate) requests: Mutex<Vec<FeedRequest>>,
    changed: Notify,
    /// Look-ups read their answer, then wait for a permit while this is there.
    pub(crate) hold: Mutex<Option<Arc<Semaphore>>>,
    pub(crate) held: AtomicUsize,
}

impl Plane {
    pub(crate) fn new() -> Arc<Plane> {
        let plane = Plane::default();
        plane.state.lock().history = "history-0".to_owned();
        plane.commit(|_| None);
        Arc::new(plane)
    }

    /// One write: its change, or none.
    fn commit(&self, write: impl FnOnce(&mut State) -> Option<Object>) -> u64 {
        let mut state = self.state.lock();
        state.head += 1;
        let revision = state.head;
        if let Some(object) = write(&mut state) {
            state.log.push(Change { revision, object });
        }
        self.remember(&state);
        drop(state);
        self.changed.notify_waiters();
        revision
    }

    fn remember(&self, state: &State) {
        let plans = state.plans.values();
        let plans = plans.map(|plan| (plan.name.clone(), (plan.revision, plan.check().is_ok())));
        self.committed.lock().insert((state.history.clone(), state.head), plans.collect());
    }

    pub(crate) fn put_plan(&self, name: &str, capacity: u64, refill: &str) -> u64 {
        let value = burst(name, capacity, refill).to_value(0);
        self.put_plan_value(value)
    }

    pub(crate) fn put_plan_value(&self, value: PlanValue) -> u64 {
        self.commit(|state| {
            let value = PlanValue { revision: state.head, ..value };
            state.plans.insert(value.name.clone(), value.clone());
            Some(Object::Plan { id: value.name.clone(), value: Some(value) })
        })
    }

    /// No capacity: nothing that a gateway may take.
    pub(crate) fn put_broken_plan(&self, name: &str) -> u64 {
        let mut value = burst(name, 1, "1/s").to_value(0);
        value.burst.as_mut().unwrap().capacity = 0;
        self.put_plan_value(value)
    }

    pub(crate) fn delete_plan(&self, name: &str) -> u64 {
        self.commit(|state| {
            state.plans.remove(name);
            Some(Object::Plan { id: name.to_owned(), value: None })
        })
    }

    pub(crate) fn put_client(&self, id: &str, plan: &str) -> u64 {
        self.put_client_state(id, plan, ClientState::Active)
    }

    pub(crate) fn put_client_state(&self, id: &str, plan: &str, client: ClientState) -> u64 {
        self.commit(|state| {
            let value = ClientValue {
                id: id.to_owned(),
                plan: plan.to_owned(),
                state: client,
                overridden: None,
                reset_revision: 0,
                revision: state.head,
            };
            state.clients.insert(id.to_owned(), value.clone());
            Some(Object::Client { id: id.to_owned(), value: Some(value) })
        })
    }

    pub(crate) fn put_override(&self, id: &str, own: Option<OverrideValue>) -> u64 {
        self.commit(|state| {
            let head = state.head;
            let value = state.clients.get_mut(id).unwrap();
            value.overridden = own;
            value.revision = head;
            Some(Object::Client { id: id.to_owned(), value: Some(value.clone()) })
        })
    }

    pub(crate) fn reset_client(&self, id: &str) -> u64 {
        self.commit(|state| {
            let head = state.head;
            let value = state.clients.get_mut(id).unwrap();
            value.reset_revision = head;
            value.revision = head;
            Some(Object::Client { id: id.to_owned(), value: Some(value.clone()) })
        })
    }

    pub(crate) fn put_key(&self, text: &str, client: &str, state: KeyState) -> u64 {
        let key = KeyValue {
            id: format!("id-{text}").chars().take(40).collect(),
            client: client.to_owned(),
            env: KeyEnv::Live,
            state,
            expires_at: None,
            secrets: vec![SecretValue { hash: hash(text), valid_until: None }],
            revision: 0,
        };
        self.put_key_value(key)
    }

    pub(crate) fn put_key_value(&self, key: KeyValue) -> u64 {
        self.commit(|state| {
            let key = KeyValue { revision: state.head, ..key };
            state.keys.insert(key.id.clone(), key.clone());
            Some(Object::Key { id: key.id.clone(), value: Some(key) })
        })
    }

    pub(crate) fn delete_key(&self, text: &str) -> u64 {
        self.commit(|state| {
            let id = format!("id-{text}");
            state.keys.remove(&id);
            Some(Object::Key { id, value: None })
        })
    }

    pub(crate) fn put_rollout(&self, rules: &[(Option<&str>, Phase)], share_bp: u32) -> u64 {
        self.commit(|state| {
            let rule = |(client, phase): &(Option<&str>, Phase)| RolloutRule {
                subject: match client {
                    Some(client) => RuleSubject::Client { client: (*client).to_owned() },
                    None => RuleSubject::All,
                },
                phase: *phase,
                since_revision: state.head,
            };
            let value = RolloutValue {
                name: "edge".to_owned(),
                rules: rules.iter().map(rule).collect(),
                share_bp,
                revision: state.head,
            };
            state.rollout = Some(value.clone());
            Some(Object::Rollout { id: value.name.clone(), value: Some(value) })
        })
    }

    /// A key under an id of somebody's choice.
    pub(crate) fn put_key_of(&self, text: &str, client: &str, id: &str) -> u64 {
        self.put_key_value(KeyValue {
            id: id.to_owned(),
            client: client.to_owned(),
            env: KeyEnv::Live,
            state: KeyState::Active,
            expires_at: None,
            secrets: vec![SecretValue { hash: hash(text), valid_until: None }],
            revision: 0,
        })
    }

    /// A row as somebody's hand may leave it.
    pub(crate) fn set_key_revision(&self, text: &str, revision: u64) {
        let mut state = self.state.lock();
        state.keys.get_mut(&format!("id-{text}")).unwrap().revision = revision;
    }

    /// Writes of which nobody is told.
    pub(crate) fn quietly(&self, write: impl FnOnce() -> u64) -> u64 {
        let before = self.state.lock().log.len();
        let revision = write();
        self.state.lock().log.truncate(before);
        revision
    }

    /// From now on the feed alone fails.
    pub(crate) fn cut_feed(&self, cut: bool) {
        self.feed_is_cut.store(cut, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Whether somebody noticed that it is.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut_was_noticed.load(Ordering::SeqCst)
    }

    /// Something that gateways are told of an object, as it stands.
    pub(crate) fn put_anything(&self, object: impl FnOnce(u64) -> Object) -> u64 {
        self.commit(|state| Some(object(state.head)))
    }

    pub(crate) fn set_killswitch(&self, id: Option<&str>) -> u64 {
        self.commit(|state| {
            let before = state.killswitch.take();
            state.killswitch = id.map(|id| KillswitchValue { id: id.to_owned(), set_at: 1_000 });
            let now = state.killswitch.clone();
            let id = now.as_ref().or(before.as_ref())?.id.clone();
            Some(Object::Killswitch { id, value: now })
        })
    }

    /// Everything, as an export would write it.
    pub(crate) fn export(&self) -> Bootstrap {
        let state = self.state.lock();
        let keys = state.keys.values().flat_map(|key| {
            let client = state.clients.get(&key.client);
            let found = |client: &ClientValue, hash| FoundKey {
                hash,
                key: key.clone(),
                client: client.clone(),
            };
            client.into_iter().flat_map(move |client| {
                key.secrets.iter().map(move |secret| found(client, secret.hash))
            })
        });
        let keys = keys.collect();
        Bootstrap { written_at: 1_000, policy: snapshot_of(&state, pepper().id()), keys }
    }

    /// A revision that concerns no gateway.
    pub(crate) fn other_write(&self) -> u64 {
        self.commit(|_| None)
    }

    /// The change log no longer reaches back.
    pub(crate) fn forget_log(&self) {
        let mut state = self.state.lock();
        state.log.clear();
        state.forgotten = state.head;
    }

    /// Comes back with what an older backup holds, as a new history far above the old one.
    pub(crate) fn restore(&self, history: &str, without_plan: &str) {
        let mut state = self.state.lock();
        state.history = history.to_owned();
        state.head += 1_000_000;
        state.plans.remove(without_plan);
        state.log.clear();
        state.forgotten = state.head;
        self.remember(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn head(&self) -> (String, u64) {
        let state = self.state.lock();
        (state.history.clone(), state.head)
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }

    /// How often somebody wanted a snapshot, whether he got it or not.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// As after a restore that kept the history, which no restore of ours does.
    pub(crate) fn go_back(&self, revision: u64) {
        let mut state = self.state.lock();
        state.head = revision;
        state.log.clear();
    }

    /// The newest revision that a gateway said it has in force.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.requests.lock().last().map_or(0, |request| request.applied)
    }

    fn is_away(&self) -> bool {
        self.away.load(Ordering::SeqCst)
    }

    fn answer(&self, request: &FeedRequest) -> Result<Option<FeedAnswer>, FeedError> {
        let state = self.state.lock();
        let reaches_back = state.forgotten <= request.after;
        let is_ahead = request.after > state.head;
        if request.history != state.history || !reaches_back || is_ahead {
            return Err(FeedError::HistoryGone);
        }
        if request.after >= state.head {
            return Ok(None);
        }
        let newer = state.log.iter().filter(|change| change.revision > request.after);
        let changes: Vec<Change> = newer.take(FEED_CHANGES_MAX).cloned().collect();
        Ok(Some(FeedAnswer {
            history: state.history.clone(),
            head: state.head,
            live_gateways: 1,
            changes,
        }))
    }
}

fn snapshot_of(state: &State, pepper_id: String) -> Snapshot {
    Snapshot {
        history: state.history.clone(),
        revision: state.head,
        pepper_id,
        live_gateways: 1,
        plans: state.plans.values().cloned().collect(),
        rollout: state.rollout.clone(),
        killswitch: state.killswitch.clone(),
    }
}

fn gone<T>(what: T) -> Box<dyn std::error::Error + Send + Sync>
where
    T: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    what.into()
}

impl ControlPlane for Plane {
    fn snapshot(&self) -> Pending<'_, Result<Snapshot, FeedError>> {
        Box::pin(async {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.is_away() {
                return Err(FeedError::Away(gone("away")));
            }
            self.snapshots.fetch_add(1, Ordering::SeqCst);
            let state = self.state.lock();
            let pepper_id = match self.other_pepper.load(Ordering::Relaxed) {
                true => "another".to_owned(),
                false => pepper().id(),
            };
            Ok(snapshot_of(&state, pepper_id))
        })
    }

    fn feed<'a>(&'a self, request: &'a FeedRequest) -> Pending<'a, Result<FeedAnswer, FeedError>> {
        Box::pin(async {
            self.requests.lock().push(request.clone());
            let wait = std::time::Duration::from_millis(request.wait_ms);
            let ends = tokio::time::Instant::now() + wait;
            loop {
                let changed = self.changed.notified();
                if self.is_away() {
                    return Err(FeedError::Away(gone("away")));
                }
                if self.feed_is_cut.load(Ordering::SeqCst) {
                    // The second failure comes after the first one was heard.
                    let again = self.cut_twice.fetch_add(1, Ordering::SeqCst) > 0;
                    self.cut_was_noticed.store(again, Ordering::SeqCst);
                    return Err(FeedError::Away(gone("cut")));
                }
                if let Some(answer) = self.answer(request)? {
                    return Ok(answer);
                }
                if tokio::time::timeout_at(ends, changed).await.is_err() {
                    let (history, head) = self.head();
                    return Ok(FeedAnswer { history, head, live_gateways: 1, changes: Vec::new() });
                }
            }
        })
    }

    fn lookup<'a>(
        &'a self,
        request: &'a LookupRequest,
    ) -> Pending<'a, Result<LookupAnswer, LookupError>> {
        Box::pin(async {
            self.lookups.fetch_add(1, Ordering::SeqCst);
            if self.is_away() {
                return Err(LookupError(gone("away")));
            }
            let answer = {
                let state = self.state.lock();
                let found = |hash: &wire::key::KeyHash| {
                    let holds = |key: &&KeyValue| key.secrets.iter().any(|s| s.hash == *hash);
                    let key = state.keys.values().find(holds)?;
                    let client = state.clients.get(&key.client)?;
                    Some(FoundKey { hash: *hash, key: key.clone(), client: client.clone() })
                };
                let missing = request.hashes.iter().filter(|hash| found(hash).is_none());
                LookupAnswer {
                    revision: state.head,
                    found: request.hashes.iter().filter_map(found).collect(),
                    missing: missing.copied().collect(),
                }
            };
            let hold = self.hold.lock().clone();
            if let Some(hold) = hold {
                self.held.fetch_add(1, Ordering::SeqCst);
                hold.acquire().await.unwrap().forget();
            }
            Ok(answer)
        })
    }

    fn usage<'a>(&'a self, report: &'a UsageReport) -> Pending<'a, Result<(), ReportError>> {
        Box::pin(async {
            if self.is_away() {
                return Err(ReportError(gone("away")));
            }
            self.usage.lock().push(report.clone());
            Ok(())
        })
    }
}
