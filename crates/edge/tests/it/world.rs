//! An edge over a memory store and a clock that stands until it is moved.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use edge::limiter::store::BucketStore;
use edge::limiter::store::memory::MemoryStore;
use edge::limiter::testkit::ManualClock;
use edge::limiter::{Clock, Cost, Limiter, LimiterSettings};
use edge::{
    Admission, AuthMode, CacheBounds, Call, ControlPlane, Edge, EdgeMetrics, EdgeSettings,
    Evidence, EvidenceError, FileClient, FileKey, FilePolicy, Observed, Pending, PolicySource,
    Presented, Refusal, RegionShare, RouteTerms, Seen, Ticket,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wire::batch::{Batch, BatchAck, PairSource, Side, TallyCell};
use wire::key::{KeyHash, Pepper};
use wire::plan::PlanSpec;
use wire::policy::ClientState;
use wire::strict::Problems;

pub(crate) fn pepper() -> Pepper {
    Pepper::from_bytes(&[42; 32]).unwrap()
}

pub(crate) fn hash(key: &str) -> KeyHash {
    KeyHash::of_key(key, &pepper())
}

/// A plan with a burst bucket only.
pub(crate) fn burst(name: &str, capacity: u64, refill: &str) -> PlanSpec {
    plan(name, &json!({ "burst": { "capacity": capacity, "refill": refill } }))
}

pub(crate) fn plan(name: &str, value: &Value) -> PlanSpec {
    let mut problems = Problems::new();
    let spec = PlanSpec::parse(name, value, "plan", &mut problems);
    problems.none_or(spec).unwrap()
}

/// A file in which each key `(key, client)` belongs to a client `(client, plan)`.
pub(crate) fn file(
    revision: u64,
    plans: &[PlanSpec],
    clients: &[(&str, &str)],
    keys: &[(&str, &str)],
) -> FilePolicy {
    let client = |(id, plan): &(&str, &str)| FileClient {
        id: (*id).to_owned(),
        plan: (*plan).to_owned(),
        state: ClientState::Active,
    };
    let key = |(text, client): &(&str, &str)| FileKey {
        id: format!("id-{text}"),
        client: (*client).to_owned(),
        hash: hash(text),
        expires_at: None,
    };
    FilePolicy {
        revision,
        gateways: 1,
        plans: plans.to_vec(),
        clients: clients.iter().map(client).collect(),
        keys: keys.iter().map(key).collect(),
    }
}

pub(crate) fn route(name: &str) -> Arc<RouteTerms> {
    Arc::new(terms(name))
}

pub(crate) fn terms(name: &str) -> RouteTerms {
    RouteTerms {
        name: name.to_owned(),
        service: format!("{name}-service"),
        cost: Cost::ONE,
        auth: AuthMode::Key,
        failure: None,
        pairing: true,
    }
}

/// Keeps batches, or refuses to.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) batches: Mutex<Vec<Batch>>,
    pub(crate) away: AtomicBool,
}

impl Shelf {
    pub(crate) fn cells(&self) -> Vec<TallyCell> {
        self.batches.lock().iter().flat_map(|batch| batch.cells.clone()).collect()
    }

    /// All cells of a client as one.
    pub(crate) fn total(&self, client: &str) -> TallyCell {
        let mut total = TallyCell::default();
        let cells = self.cells();
        cells.iter().filter(|cell| cell.client == client).for_each(|cell| total.add(cell));
        total
    }
}

impl Evidence for Shelf {
    fn post<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Result<BatchAck, EvidenceError>> {
        Box::pin(async {
            if self.away.load(Ordering::SeqCst) {
                return Err(EvidenceError::Away("told to be".into()));
            }
            let mut batches = self.batches.lock();
            let duplicate = batches.iter().any(|known| known.seq == batch.seq);
            if !duplicate {
                batches.push(batch.clone());
            }
            Ok(BatchAck { acked_seq: batch.seq, duplicate })
        })
    }
}

/// An edge and everything around it.
pub(crate) struct World<S = MemoryStore> {
    pub(crate) edge: Arc<Edge<S>>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<S>,
    pub(crate) evidence: Arc<Shelf>,
    tasks: JoinSet<()>,
}

pub(crate) struct Setting {
    pub(crate) gateway: String,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) deadline: Duration,
    pub(crate) records_per_s: u32,
    pub(crate) keys: CacheBounds,
    pub(crate) region: RegionShare,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) bootstrap: Option<PathBuf>,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting {
            gateway: "gateway-1".to_owned(),
            clock: Arc::new(ManualClock::default()),
            // Nothing here tests how late a store may be: slow machines must not decide.
            deadline: Duration::from_secs(5),
            records_per_s: 1_000,
            keys: CacheBounds::default(),
            region: RegionShare::default(),
            state_dir: None,
            bootstrap: None,
        }
    }
}

impl World {
    pub(crate) fn of_file(policy: FilePolicy) -> World {
        World::new(Setting::default(), PolicySource::File(policy))
    }

    /// Follows a control plane; answers as soon as its policy is there.
    pub(crate) async fn of_plane(plane: Arc<dyn ControlPlane>) -> World {
        let world = World::new(Setting::default(), PolicySource::ControlPlane(plane));
        until("the policy", || world.edge.is_ready()).await;
        world
    }

    pub(crate) fn new(setting: Setting, source: PolicySource) -> World {
        let store = Arc::new(MemoryStore::new(setting.clock.clone()));
        World::over(store, setting, source)
    }
}

impl<S: BucketStore> World<S> {
    pub(crate) fn over(store: Arc<S>, setting: Setting, source: PolicySource) -> World<S> {
        let clock: Arc<dyn Clock> = setting.clock.clone();
        let limits = LimiterSettings {
            deadline: setting.deadline,
            leases: false,
            ..LimiterSettings::default()
        };
        let limiter = Limiter::new(Arc::clone(&store), Arc::clone(&clock), limits);
        let settings = EdgeSettings {
            gateway: setting.gateway,
            build: "test".to_owned(),
            ops_url: None,
            routes: vec!["orders".to_owned()],
            pepper: pepper(),
            records_per_s: setting.records_per_s,
            keys: setting.keys,
            region: setting.region,
            anonymous: None,
            state_dir: setting.state_dir,
            bootstrap: setting.bootstrap,
        };
        let evidence = Arc::new(Shelf::default());
        let metrics = EdgeMetrics::register(&mut prometheus_client::registry::Registry::default());
        let edge = Edge::new(
            settings,
            limiter,
            clock,
            source,
            Some(Arc::clone(&evidence) as Arc<dyn Evidence>),
            metrics,
        );
        let mut tasks = JoinSet::new();
        for (_name, task) in edge.background() {
            tasks.spawn(task);
        }
        World { edge, clock: setting.clock, store, evidence, tasks }
    }

    pub(crate) async fn admit(&self, key: &str, route: &Arc<RouteTerms>) -> Admission {
        self.admit_method(key, route, "GET").await
    }

    pub(crate) async fn admit_method(
        &self,
        key: &str,
        route: &Arc<RouteTerms>,
        method: &str,
    ) -> Admission {
        let call = Call { presented: Presented::Key(key), route, method, request_id: "request-1" };
        self.edge.admit(&call).await
    }

    /// One request whose service, if it gets there, allows it.
    pub(crate) async fn request(&self, key: &str, route: &Arc<RouteTerms>) -> Result<(), Refusal> {
        self.request_seen(key, route, service(Side::Allow)).await
    }

    pub(crate) async fn request_seen(
        &self,
        key: &str,
        route: &Arc<RouteTerms>,
        seen: Seen,
    ) -> Result<(), Refusal> {
        match self.admit(key, route).await {
            Admission::Forward(ticket) => {
                self.edge.done(ticket, observed(200, seen));
                Ok(())
            }
            Admission::Refuse(refusal, ticket) => {
                if let Some(ticket) = ticket {
                    self.edge.done(ticket, observed(429, Seen::Refused));
                }
                Err(refusal)
            }
        }
    }

    /// How many of `requests` get through.
    pub(crate) async fn admitted(
        &self,
        key: &str,
        route: &Arc<RouteTerms>,
        requests: usize,
    ) -> usize {
        let mut admitted = 0;
        for _request in 0..requests {
            admitted += usize::from(self.request(key, route).await.is_ok());
        }
        admitted
    }

    /// Ends the edge; everything that it recorded has arrived.
    pub(crate) async fn finish(mut self) -> Arc<Shelf> {
        assert!(self.edge.finish(Duration::from_secs(10)).await, "everything is sent");
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.evidence
    }
}

pub(crate) fn observed(status: u16, service: Seen) -> Observed {
    Observed { status, instance: Some(([127, 0, 0, 1], 8_081).into()), service }
}

pub(crate) fn service(outcome: Side) -> Seen {
    Seen::Decision {
        outcome,
        source: PairSource::Header,
        remaining: None,
        limit: None,
        client: None,
    }
}

pub(crate) fn forwarded(admission: Admission) -> Ticket {
    match admission {
        Admission::Forward(ticket) => ticket,
        Admission::Refuse(refusal, _) => panic!("refused: {refusal:?}"),
    }
}

/// Waits for something that must come about, for a bounded time.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    for _try in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("still waiting for {what}");
}
