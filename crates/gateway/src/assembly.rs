//! Puts a gateway together: the only file that knows which store, policy source and sink there are.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use daemon::{Context, Failure};
use edge::limiter::store::memory::MemoryStore;
use edge::limiter::store::redis::RedisStore;
use edge::limiter::store::{BucketStore, StoreError};
use edge::limiter::{BucketKey, Clock, Limiter, LimiterSettings, Reply, Request, SystemClock};
use edge::{CacheBounds, Edge, EdgeMetrics, EdgeSettings, Evidence, FilePolicy, PolicySource};
use wire::client::plans::PlansClient;
use wire::client::shadow::ShadowClient;
use wire::key::{KeyHash, Pepper, token_hash};

use crate::access_log::{AccessLog, Ended};
use crate::config::{Config, ControlConfig, FileChoice, PolicyChoice, StoreChoice};
use crate::kill_switch::{self, KillSwitch};
use crate::metrics::{Metrics, StoreCounts};
use crate::ops;
use crate::reload::{self, Reloader};
use crate::route::RouteTable;
use crate::server::live::InForce;
use crate::server::{self, Bound, PerAddress, Shared, descriptors};
use crate::store_watch;
use crate::upgrade::Upgrades;
use crate::upstream::fleet::Fleet;
use crate::upstream::names::{Resolve, SystemNames};
use crate::upstream::own_ports::NotOwn;

/// Longest wait for records to leave at the end.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether there is a policy.
const READY_LOOK_EVERY: Duration = Duration::from_millis(10);
/// What listeners are announced as.
const ANNOUNCED: [&str; 4] = ["traffic", "traffic2", "traffic3", "traffic4"];

/// The stores there are.
#[derive(Debug)]
enum Store {
    /// In this process.
    Memory(Box<MemoryStore>),
    /// Shared by gateways.
    Redis(Arc<RedisStore>),
}

impl BucketStore for Store {
    async fn call(&self, key: &BucketKey, request: &Request) -> Result<Reply, StoreError> {
        match self {
            Store::Memory(store) => store.call(key, request).await,
            Store::Redis(store) => store.call(key, request).await,
        }
    }

    fn epoch(&self, key: &BucketKey) -> u64 {
        match self {
            Store::Memory(store) => store.epoch(key),
            Store::Redis(store) => store.epoch(key),
        }
    }

    fn sweep(&self) {
        match self {
            Store::Memory(store) => store.sweep(),
            Store::Redis(store) => store.sweep(),
        }
    }
}

/// What a gateway stands on, if it is not to come from the configuration: for tests, and for
/// several gateways in one process that share a store.
#[derive(Debug)]
pub struct Parts<S> {
    /// Where buckets live.
    pub store: Arc<S>,
    /// Whether hot keys borrow tokens; a store in this process is asked each time.
    pub leases: bool,
    /// The gateway's clock.
    pub clock: Arc<dyn Clock>,
    /// Where the policy comes from.
    pub source: PolicySource,
    /// Where records go.
    pub evidence: Evidently,
    /// Where the names of endpoints point.
    pub names: Arc<dyn Resolve>,
}

/// Where records go, if anywhere.
#[derive(Clone)]
pub struct Evidently(pub Option<Arc<dyn Evidence>>);

impl std::fmt::Debug for Evidently {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Evidently").field(&self.0.is_some()).finish()
    }
}

/// Runs a gateway until the drain has ended.
pub async fn serve(config: Config, context: Context) -> Result<(), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = Arc::new(store(&config.store, &clock)?);
    if let Store::Redis(redis) = store.as_ref() {
        let counts = StoreCounts(Arc::clone(redis));
        context.metrics.register(|registry| registry.register_collector(Box::new(counts)));
        let watch = store_watch::run(Arc::clone(redis), context.drain.clone());
        context.tasks.spawn("store watch", watch);
    }
    let (source, evidence) = policy(&config.policy, clock.as_ref())?;
    let leases = matches!(store.as_ref(), Store::Redis(_));
    let evidence = Evidently(evidence);
    let names = Arc::new(SystemNames);
    let parts = Parts { store: Arc::clone(&store), leases, clock, source, evidence, names };
    let ended = serve_with(config, parts, context).await;
    if let Store::Redis(store) = store.as_ref() {
        store.shut_down().await;
    }
    ended
}

fn store(choice: &StoreChoice, clock: &Arc<dyn Clock>) -> Result<Store, Failure> {
    match choice {
        StoreChoice::Memory => Ok(Store::Memory(Box::new(MemoryStore::new(Arc::clone(clock))))),
        StoreChoice::Redis { settings } => {
            let runtime = tokio::runtime::Handle::current();
            RedisStore::connect(settings, &runtime, clock)
                .map(|store| Store::Redis(Arc::new(store)))
                .map_err(|error| Failure::Settings(vec![format!("store.url: {error}")]))
        }
    }
}

type Policy = (PolicySource, Option<Arc<dyn Evidence>>);

fn policy(choice: &PolicyChoice, clock: &dyn Clock) -> Result<Policy, Failure> {
    match choice {
        PolicyChoice::Control(control) => control_plane(control),
        PolicyChoice::File(file) => {
            Ok((PolicySource::File(file_policy(file, clock.now().us() / 1_000)), None))
        }
    }
}

fn control_plane(control: &ControlConfig) -> Result<Policy, Failure> {
    let wrong = |field: &str, error: wire::client::ClientError| {
        Failure::Settings(vec![format!("control.{field}: {error}")])
    };
    let token = control.token.expose();
    let plans = PlansClient::new(&control.plans_api, Some(token))
        .map_err(|error| wrong("plans_api", error))?;
    let mut evidence: Option<Arc<dyn Evidence>> = None;
    if let Some(url) = &control.shadow_compare {
        let shadow =
            ShadowClient::new(url, token).map_err(|error| wrong("shadow_compare", error))?;
        evidence = Some(Arc::new(shadow));
    }
    Ok((PolicySource::ControlPlane(Arc::new(plans)), evidence))
}

/// The file's policy under a revision higher than that of any start before.
pub fn file_policy(file: &FileChoice, revision: u64) -> FilePolicy {
    FilePolicy {
        revision,
        gateways: file.gateways,
        plans: file.plans.clone(),
        clients: file.clients.clone(),
        keys: file.keys.clone(),
    }
}

/// As [`serve`], over given parts.
pub async fn serve_with<S: BucketStore>(
    config: Config,
    parts: Parts<S>,
    context: Context,
) -> Result<(), Failure> {
    let (operations_at, operations) =
        server::sockets::operations(config.operations.address, &context.sockets)
            .map_err(Failure::other)?;
    let mut bound = Vec::new();
    for listener in &config.listeners {
        let own = server::bind(listener, config.workers, &context.sockets);
        bound.push(own.map_err(Failure::other)?);
    }
    let settings = edge_settings(&config, operations_at)?;
    let (deadline, leases) = (config.deadline, parts.leases);
    let limits = LimiterSettings { deadline, leases, ..LimiterSettings::default() };
    let limiter = Limiter::new(parts.store, Arc::clone(&parts.clock), limits);
    let (edge_metrics, metrics) = context.metrics.register(|registry| {
        (EdgeMetrics::register(registry), Arc::new(Metrics::register(registry, &config)))
    });
    let clock = Arc::clone(&parts.clock);
    let Evidently(evidence) = parts.evidence;
    let edge = Edge::new(settings, limiter, clock, parts.source, evidence, edge_metrics);
    for (name, task) in edge.background() {
        context.tasks.spawn(name, task);
    }
    let names = NotOwn::new(parts.names, operations_at, control_urls(&config.policy));
    let fleet = Fleet {
        names: Arc::new(names),
        clock: Arc::clone(&parts.clock),
        tasks: context.tasks.clone(),
        drain: context.drain.clone(),
        metrics: metrics.upstreams.clone(),
    };
    let made = fleet.make(&config.upstreams, &[]).await;
    fleet.take_over(&made, &[]);
    let kill_switch = kill_switch(&config, edge.kill_switch(), &parts.clock, &metrics, &context)?;
    let (access_log, last_lines) = access_log(&config, &parts.clock, &metrics)?.unzip();
    keep_certificates(&mut bound, &metrics, &context);
    let shared = Arc::new(Shared {
        addresses: PerAddress::new(config.limits.connections_per_address),
        connections_most: descriptors::connections_of_each(&config),
        upgrades: Upgrades::new(config.limits.upgrades, Arc::clone(&metrics)),
        overload: config.overload,
        access_log,
        kill_switch: Arc::clone(&kill_switch),
        edge: Arc::clone(&edge),
        in_force: InForce::new(reload::settings(&config, &made, Arc::clone(&metrics))),
        metrics,
        clock: parts.clock,
        drain: context.drain.clone(),
    });
    let (workers, token) = (config.workers, token(&config));
    let reloader = Reloader::new(config, made.all, Arc::clone(&shared), fleet).map(Arc::new);
    let reloader = keep_reloading(reloader, &context)?;
    let (registry, drain) = (context.metrics.clone(), context.drain.clone());
    let router = ops::router(Arc::clone(&shared), token, registry, drain, reloader);
    announce(&context, &bound, operations_at);
    get_ready(&edge, &context).await;
    let state = Arc::clone(&edge);
    let operations_drain = ops::serve(operations, router, &context, move || state.leave_state())
        .map_err(Failure::other)?;
    let ended = server::run(shared, bound, workers).await;
    if !edge.finish(FLUSH_MAX).await {
        tracing::warn!("not all records could be handed over before the end");
    }
    kill_switch.end();
    // The operations port holds the log too, whose last line is known when nobody does.
    operations_drain.start();
    if let Some(last_lines) = last_lines {
        last_lines.wait().await;
    }
    ended.map_err(Failure::other)
}

/// Looks after the configuration, if it came from a file.
fn keep_reloading<S: BucketStore>(
    reloader: Option<Arc<Reloader<S>>>,
    context: &Context,
) -> Result<Option<Arc<Reloader<S>>>, Failure> {
    if let Some(reloader) = &reloader {
        let hangups = context.hangups().map_err(Failure::other)?;
        let (manager, drain) = (context.manager.clone(), context.drain.clone());
        let reloads = Arc::clone(reloader).run(hangups, manager, drain);
        context.tasks.spawn("configuration", reloads);
    }
    Ok(reloader)
}

fn token(config: &Config) -> Option<KeyHash> {
    config.operations.token.as_ref().map(|token| token_hash(token.expose()))
}

/// The access log, if there is one, and the end of its last lines.
fn access_log(
    config: &Config,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Option<(Arc<AccessLog>, Ended)>, Failure> {
    let Some(rules) = config.access_log.clone() else { return Ok(None) };
    AccessLog::start(rules, Arc::clone(clock), metrics.access_log.clone())
        .map(Some)
        .map_err(|error| Failure::Settings(vec![format!("access_log.to: {error}")]))
}

/// The kill switch as it was left, and as it is found from now on.
fn kill_switch(
    config: &Config,
    switch: &edge::KillSwitch,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
    context: &Context,
) -> Result<Arc<KillSwitch>, Failure> {
    let (state_dir, metrics) = (config.state_dir(), metrics.kill_switch.clone());
    let restored = KillSwitch::restore(state_dir, switch.clone(), Arc::clone(clock), metrics);
    let kill_switch =
        restored.map_err(|error| Failure::Settings(vec![format!("state_dir: {error}")]))?;
    let kill_switch = Arc::new(kill_switch);
    context.tasks.spawn("kill switch", kill_switch::watch(Arc::clone(&kill_switch)));
    Ok(kill_switch)
}

fn control_urls(policy: &PolicyChoice) -> impl Iterator<Item = &str> {
    let control = match policy {
        PolicyChoice::Control(control) => Some(control),
        PolicyChoice::File(_) => None,
    };
    control.into_iter().flat_map(|control| {
        [Some(control.plans_api.as_str()), control.shadow_compare.as_deref()].into_iter().flatten()
    })
}

/// Looks after the files of all listeners with TLS, if there are any.
fn keep_certificates(bound: &mut [Bound], metrics: &Metrics, context: &Context) {
    let taken = bound.iter_mut().filter_map(|bound| bound.certificates.take());
    let all: Vec<_> = taken.map(|(name, own)| (own, metrics.listen.tls(&name))).collect();
    if !all.is_empty() {
        let drain = context.drain.clone();
        context.tasks.spawn("certificates", server::tls::keep_current(all, drain));
    }
}

fn edge_settings(config: &Config, operations_at: SocketAddr) -> Result<EdgeSettings, Failure> {
    let mut bootstrap = None;
    let (gateway, pepper, records_per_s) = match &config.policy {
        PolicyChoice::Control(control) => {
            bootstrap.clone_from(&control.bootstrap_file);
            (gateway_id(control)?, control.pepper.clone(), control.records_per_s)
        }
        PolicyChoice::File(file) => ("file".to_owned(), file.pepper.clone(), 0),
    };
    Ok(EdgeSettings {
        gateway,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        ops_url: ops_url(operations_at),
        routes: route_names(&config.routes),
        pepper,
        records_per_s,
        keys: CacheBounds::default(),
        anonymous: config.anonymous.clone(),
        region: config.limits.region_share,
        state_dir: config.state_dir().map(Path::to_owned),
        bootstrap,
    })
}

/// Names of the routes, each once.
pub(crate) fn route_names(routes: &RouteTable) -> Vec<String> {
    let mut names: Vec<String> = routes.iter().map(|route| route.terms.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The configured id; else the one that the state folder remembers, so that a restart is not
/// another gateway; else a random one.
fn gateway_id(control: &ControlConfig) -> Result<String, Failure> {
    if let Some(id) = &control.gateway {
        return Ok(id.clone());
    }
    let random = format!("gw-{:08x}", fastrand::u32(..));
    let Some(folder) = &control.state_dir else { return Ok(random) };
    let file = folder.join("gateway-id");
    if let Ok(known) = daemon::settings::secret_file(&file) {
        return Ok(known);
    }
    std::fs::create_dir_all(folder).map_err(Failure::other)?;
    daemon::settings::write_private(&file, random.as_bytes()).map_err(Failure::other)?;
    Ok(random)
}

/// Where the operations port can be called. Bound to every address, it has no single one.
fn ops_url(at: SocketAddr) -> Option<String> {
    (!at.ip().is_unspecified()).then(|| format!("http://{at}"))
}

fn announce(context: &Context, bound: &[Bound], operations_at: SocketAddr) {
    for (what, bound) in ANNOUNCED.iter().zip(bound) {
        context.announce(what, bound.address);
    }
    context.announce("operations", operations_at);
    context.all_announced();
}

/// Says that the gateway is ready once it has a policy. A predecessor answers until then, so a
/// successor waits for that before it answers anybody; without one there is nobody better.
async fn get_ready<S: BucketStore>(edge: &Arc<Edge<S>>, context: &Context) {
    let (edge, own) = (Arc::clone(edge), context.clone());
    let ready = async move {
        while !edge.is_ready() {
            tokio::time::sleep(READY_LOOK_EVERY).await;
        }
        own.ready();
    };
    let drain = context.drain.clone();
    let ready = async move {
        tokio::select! {
            () = ready => {}
            () = drain.started() => {}
        }
    };
    if context.sockets.has_predecessor() {
        ready.await;
    } else {
        context.tasks.spawn("readiness", ready);
    }
}

/// The pepper that keys of this configuration are hashed with.
pub(crate) fn pepper(config: &Config) -> &Pepper {
    match &config.policy {
        PolicyChoice::Control(control) => &control.pepper,
        PolicyChoice::File(file) => &file.pepper,
    }
}
