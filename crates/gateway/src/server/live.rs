//! What may change while workers run, swapped whole by one pointer for each worker.
//!
//! A request goes by what is in force when it begins, a connection by the bounds of when it was
//! accepted; neither looks again, so neither sees half of a change and neither is disturbed by
//! one. A request pays one load of a pointer that no other core writes. Ways to upstreams that
//! stay the same keep their connections.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use edge::limiter::store::BucketStore;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;

use super::Shared;
use super::opening::Opening;
use super::room::{Room, Taken};
use crate::config::{Bounds, DrainRules, Listener};
use crate::metrics::Metrics;
use crate::overload::Gate;
use crate::peer::Proxies;
use crate::pipeline::Pipeline;
use crate::route::RouteTable;
use crate::top::Top;
use crate::upstream::{Upstream, Way};

/// An HTTP/2 connection that is silent for this long is asked whether it lives.
const H2_PING_EVERY: Duration = Duration::from_secs(20);
/// And is closed if it does not answer.
const H2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// What a configuration says to all workers.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where requests go.
    pub routes: RouteTable,
    /// Routes name them by index.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Of connections and requests.
    pub bounds: Bounds,
    /// How it ends.
    pub drain_rules: DrainRules,
    /// What each listener accepts, in the order of the bound ones.
    pub listeners: Vec<Listener>,
    /// With a counter for each of the routes.
    pub metrics: Arc<Metrics>,
}

/// The settings in force, and the workers that go by them.
#[derive(Debug)]
pub(crate) struct InForce<S>(Mutex<Force<S>>);

#[derive(Debug)]
struct Force<S> {
    settings: Settings,
    workers: Vec<Arc<Live<S>>>,
}

impl<S> InForce<S> {
    /// For workers to come.
    pub(crate) fn new(settings: Settings) -> InForce<S> {
        InForce(Mutex::new(Force { settings, workers: Vec::new() }))
    }

    /// How the gateway ends.
    pub(crate) fn drain_rules(&self) -> DrainRules {
        self.lock().settings.drain_rules
    }

    fn lock(&self) -> MutexGuard<'_, Force<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: BucketStore> Shared<S> {
    /// The part of the worker with this number, behind these doors.
    pub(super) fn live(
        &self,
        number: usize,
        doors: impl FnOnce(&Bounds) -> Vec<Arc<Door>>,
    ) -> Arc<Live<S>> {
        let mut force = self.in_force.lock();
        let doors = doors(&force.settings.bounds);
        let gate = Arc::new(Gate::new(self.overload, &self.metrics.overload, number));
        let own = Own { gate, top: Top::default() };
        let current = self.current(&force.settings, &own, &[], doors);
        let current = ArcSwap::from_pointee(current);
        let live = Arc::new(Live { current, own, room: Arc::default() });
        force.workers.push(Arc::clone(&live));
        live
    }

    /// Puts `settings` in force for all that begins from now on; those that were before.
    pub(crate) fn put_in_force(&self, settings: Settings) -> Settings {
        let mut force = self.in_force.lock();
        self.addresses.set_most(settings.bounds.connections_per_address);
        for live in &force.workers {
            let before = live.current.load_full();
            let doors = before.doors.iter().map(|door| door.after(&settings));
            let ways = &before.pipeline.ways;
            let next = self.current(&settings, &live.own, ways, doors.collect());
            live.current.store(Arc::new(next));
            live.room.look_again();
        }
        std::mem::replace(&mut force.settings, settings)
    }

    /// What each worker has seen of who asks most.
    pub(crate) fn tops(&self) -> Vec<Top> {
        self.in_force.lock().workers.iter().map(|live| live.own.top.clone()).collect()
    }

    fn current(
        &self,
        settings: &Settings,
        own: &Own,
        before: &[Way],
        doors: Vec<Arc<Door>>,
    ) -> Current<S> {
        let way = |upstream: &Arc<Upstream>| {
            let kept = before.iter().find(|way| Arc::ptr_eq(&way.upstream, upstream));
            kept.cloned().unwrap_or_else(|| Way::new(Arc::clone(upstream)))
        };
        let pipeline = Pipeline {
            edge: Arc::clone(&self.edge),
            routes: settings.routes.clone(),
            ways: settings.upstreams.iter().map(way).collect(),
            metrics: Arc::clone(&settings.metrics),
            clock: Arc::clone(&self.clock),
            body_bound: settings.bounds.body_bytes,
            head_fields: settings.bounds.head_fields,
            x_ratelimit: settings.bounds.x_ratelimit,
            drain: self.drain.clone(),
            upgrades: self.upgrades.under(settings.bounds.upgrades),
            gate: Arc::clone(&own.gate),
            access_log: self.access_log.clone(),
            top: own.top.clone(),
        };
        let connections_max = settings.bounds.connections_per_worker.min(self.connections_most);
        Current { pipeline, doors, connections_max }
    }
}

/// What one worker goes by.
pub(crate) struct Live<S> {
    current: ArcSwap<Current<S>>,
    pub(super) own: Own,
    room: Arc<Room>,
}

/// What outlives a change.
pub(super) struct Own {
    /// Refuses what the worker cannot handle in time.
    pub(super) gate: Arc<Gate>,
    /// Who asks most.
    top: Top,
}

impl<S> fmt::Debug for Live<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("room", &self.room).finish_non_exhaustive()
    }
}

impl<S> Live<S> {
    /// What a request that begins now goes by.
    pub(super) fn current(&self) -> Arc<Current<S>> {
        self.current.load_full()
    }

    /// Waits for a place among the worker's connections.
    pub(super) async fn place(&self) -> Taken {
        self.room.enter(|| self.current.load().connections_max).await
    }

    /// What a connection meets that comes in now at this port.
    pub(super) fn door(&self, port: usize) -> Option<Arc<Door>> {
        self.current.load().doors.get(port).cloned()
    }
}

/// A whole configuration, as one worker uses it.
pub(super) struct Current<S> {
    pub(super) pipeline: Pipeline<S>,
    doors: Vec<Arc<Door>>,
    connections_max: usize,
}

/// What the connections of a listener meet.
pub(super) struct Door {
    /// Its listener's number: a worker may have several sockets of one.
    listener: usize,
    pub(super) proxies: Proxies,
    pub(super) opening: Opening,
    pub(super) engine: auto::Builder<TokioExecutor>,
    pub(super) bounds: Bounds,
}

impl Door {
    /// Within these bounds.
    pub(super) fn new(
        listener: usize,
        proxies: Proxies,
        opening: Opening,
        http2: bool,
        bounds: &Bounds,
    ) -> Arc<Door> {
        let (engine, bounds) = (engine(bounds, http2), bounds.clone());
        Arc::new(Door { listener, proxies, opening, engine, bounds })
    }

    /// The same with other rules; what TLS shows is not among them.
    fn after(self: &Arc<Self>, settings: &Settings) -> Arc<Door> {
        // Listeners stay, or the configuration would not have been taken.
        let Some(rules) = settings.listeners.get(self.listener) else { return Arc::clone(self) };
        let proxies: Proxies = rules.trusted_proxies.as_slice().into();
        let trusted = rules.proxy_protocol.then(|| Arc::clone(&proxies));
        let opening = Opening { trusted, tls: self.opening.tls.clone() };
        Door::new(self.listener, proxies, opening, rules.http2, &settings.bounds)
    }
}

/// The HTTP engine with its bounds. Without a timer its deadlines would silently be off.
fn engine(bounds: &Bounds, http2: bool) -> auto::Builder<TokioExecutor> {
    let mut engine = auto::Builder::new(TokioExecutor::new());
    if !http2 {
        engine = engine.http1_only();
    }
    let mut http1 = engine.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_time.max(bounds.idle)) // it counts idleness as a head
        .max_buf_size(bounds.head_bytes)
        .keep_alive(true);
    if bounds.head_fields != 100 {
        http1.max_headers(bounds.head_fields); // 100 is the engine's own, and cheaper
    }
    engine
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.h2_streams)
        .max_header_list_size(u32::try_from(bounds.head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(H2_PING_EVERY)
        .keep_alive_timeout(H2_PING_TIMEOUT);
    engine
}
