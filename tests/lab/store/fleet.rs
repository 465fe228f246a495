//! Three gateways' limiters in this process over one real Redis, and requests for them in an open
//! loop: at their moments, whatever the answers do.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::{Clock, Contract, Cost, Limiter, LimiterSettings, SystemClock, TICK_EVERY};
use redis::aio::MultiplexedConnection;
use system_tests::process::{START_MAX, eventually};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::script::DESIGN;

/// Gateways.
pub const GATEWAYS: u32 = 3;
/// Connections of each gateway.
const CONNECTIONS: usize = 2;
/// A request sent later than this was not offered as intended.
const LATE_MAX: Duration = Duration::from_millis(10);
/// A sleep ends up to this late.
const NAP: Duration = Duration::from_millis(2);
/// Ticks between two sweeps.
const SWEEP_EVERY: u32 = 40;

/// Somebody who decides requests by asking Redis.
pub enum Deciders {
    /// Weir's limiters.
    Weir(Vec<Limiter<RedisStore>>),
    /// The design document's script, called for each request.
    Published { connections: Vec<MultiplexedConnection>, digest: String },
}

/// Limiters that are looked after, until this is dropped.
pub struct Fleet {
    /// The deciders.
    pub limiters: Deciders,
    _ticking: JoinSet<()>,
}

impl Fleet {
    /// Links three gateways.
    pub async fn weir(url: &str, leases: bool) -> anyhow::Result<Fleet> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut ticking = JoinSet::new();
        let mut limiters = Vec::new();
        for _gateway in 0..GATEWAYS {
            let settings = RedisSettings { connections: CONNECTIONS, ..RedisSettings::new(url) };
            let store = RedisStore::connect(&settings, &Handle::current(), &clock)?;
            let store = Arc::new(store);
            let settings = LimiterSettings { leases, ..LimiterSettings::default() };
            let limiter = Limiter::new(Arc::clone(&store), Arc::clone(&clock), settings);
            limiter.set_fleet(GATEWAYS);
            let linked = || async { Ok(store.is_answering().then_some(())) };
            eventually("the store is linked", START_MAX, linked).await?;
            ticking.spawn(look_after(limiter.clone()));
            limiters.push(limiter);
        }
        Ok(Fleet { limiters: Deciders::Weir(limiters), _ticking: ticking })
    }

    /// As many connections for the design document's script.
    pub async fn published(url: &str) -> anyhow::Result<Fleet> {
        let client = redis::Client::open(url)?;
        let mut connections = Vec::new();
        for _connection in 0..usize::try_from(GATEWAYS)? * CONNECTIONS {
            connections.push(client.get_multiplexed_async_connection().await?);
        }
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(DESIGN);
        let mut first = client.get_multiplexed_async_connection().await?;
        let digest = load.query_async(&mut first).await?;
        let limiters = Deciders::Published { connections, digest };
        Ok(Fleet { limiters, _ticking: JoinSet::new() })
    }
}

async fn look_after(limiter: Limiter<RedisStore>) {
    let mut ticks = tokio::time::interval(TICK_EVERY);
    for tick in 0_u32.. {
        ticks.tick().await;
        limiter.tick();
        if tick.is_multiple_of(SWEEP_EVERY) {
            limiter.sweep();
        }
    }
}

/// What was offered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offered {
    /// Requests sent.
    pub requests: u64,
    /// Of those, requests sent in time.
    pub in_time: u64,
    /// Requests admitted.
    pub admitted: u64,
}

impl Offered {
    /// Share of the intended load that was really offered.
    pub fn achieved(self) -> f64 {
        super::quotient(self.in_time, self.requests)
    }
}

/// Offers requests at `per_s` for `length`; `pick` says whose each is.
pub async fn offer(
    fleet: &Fleet,
    per_s: f64,
    length: Duration,
    random: &mut fastrand::Rng,
    mut pick: impl FnMut(&mut fastrand::Rng) -> Contract,
) -> Offered {
    let mut offered = Offered::default();
    let mut running = JoinSet::new();
    let began = Instant::now();
    let mut due = Duration::ZERO;
    while due < length {
        let ahead = due.saturating_sub(began.elapsed());
        // Sleeps end at whole milliseconds. Requests that were sent together at each end would be
        // cheaper for Redis than those of a real crowd, which come one by one.
        if ahead > NAP {
            sleep(ahead - NAP).await;
        } else if !ahead.is_zero() {
            tokio::task::yield_now().await;
        }
        let elapsed = began.elapsed();
        while due < length && due <= elapsed {
            offered.requests += 1;
            offered.in_time += u64::from(elapsed - due <= LATE_MAX);
            let contract = pick(random);
            running.spawn(decide(&fleet.limiters, contract, random.usize(..)));
            due += Duration::from_secs_f64(-(1.0 - random.f64()).ln() / per_s);
        }
        while let Some(done) = running.try_join_next() {
            offered.admitted += u64::from(done.unwrap_or(false));
        }
    }
    while let Some(done) = running.join_next().await {
        offered.admitted += u64::from(done.unwrap_or(false));
    }
    offered
}

/// One request, and whom it is for.
enum Asked {
    Weir(Limiter<RedisStore>, Contract),
    Published(MultiplexedConnection, redis::Cmd),
}

fn decide(
    deciders: &Deciders,
    contract: Contract,
    number: usize,
) -> impl Future<Output = bool> + Send + use<> {
    let one_of = |count: usize| number % count.max(1);
    let asked = match deciders {
        Deciders::Weir(limiters) => {
            let limiter = limiters.get(one_of(limiters.len())).cloned();
            limiter.map(|limiter| Asked::Weir(limiter, contract))
        }
        Deciders::Published { connections, digest } => {
            let connection = connections.get(one_of(connections.len())).cloned();
            connection.map(|connection| Asked::Published(connection, published(digest, &contract)))
        }
    };
    async move {
        match asked {
            Some(Asked::Weir(limiter, contract)) => {
                limiter.decide(&contract, Cost::ONE).await.is_allowed()
            }
            Some(Asked::Published(mut connection, call)) => {
                let answer: Result<(i64, String), _> = call.query_async(&mut connection).await;
                answer.is_ok_and(|(allowed, _left)| allowed == 1)
            }
            None => false,
        }
    }
}

fn published(digest: &str, contract: &Contract) -> redis::Cmd {
    let burst = contract.plan.limits.burst;
    let rate = burst.refill().tokens() * 1_000_000 / burst.refill().per_us();
    let present_ms = SystemClock::new().now().us() / 1_000;
    let mut call = redis::cmd("EVALSHA");
    call.arg(digest).arg(1).arg(format!("design:{}", contract.key));
    call.arg(burst.capacity().get()).arg(rate).arg(present_ms).arg(1);
    call
}
