//! Plays a group of cells: limiters with stores of their own, and requests at their moments,
//! whatever became of those before.
//!
//! One thread does all of it and looks at the clock without pause, so requests are asked within
//! microseconds of their moments and answers cross the distance in exactly its time. The other
//! core is left to Redis.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, Stream};
use limiter_core::store::redis::{RedisSettings, RedisStore};
use limiter_core::{
    Basis, BucketKey, Clock, Contract, Cost, FailurePolicy, Limiter, LimiterSettings, PlanNumbers,
    PlanVersion, ScopeId, SystemClock, TICK_EVERY, VersionSource,
};
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::Sabotage;
use super::cells::{Cell, Pattern};
use super::distant::{Defect, Distance, DistantStore};
use super::offer::{Arrival, FLEET_CORE, Offer};

/// The round trip that is added to Redis's own.
pub const ROUND_TRIP: Duration = Duration::from_micros(500);
const SLOW_ROUND_TRIP: Duration = Duration::from_millis(3);
/// Linking may take so long.
const LINK_MAX: Duration = Duration::from_secs(10);
/// With nothing to do for longer, the thread sleeps until so long before.
const AWAKE_BEFORE_US: u64 = 2_500;
/// How often the machine itself is measured.
const CONTROL_EVERY_US: u64 = 5_000;
/// Time for answers that are still out at the end.
const END_MAX_US: u64 = 1_000_000;

/// One request, asked and answered; times from the start of the cell.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// When it was asked.
    pub at_us: u64,
    /// Until the answer.
    pub took_us: u64,
    /// How much later than intended it was asked.
    pub late_us: u64,
    /// Whether it may pass.
    pub allowed: bool,
    /// Decided without the store.
    pub degraded: bool,
}

/// A cell that was played.
#[derive(Debug)]
pub struct Played {
    /// The cell.
    pub cell: Cell,
    /// Its contract.
    pub plan: PlanNumbers,
    /// From the first intended moment to the last.
    pub length: Duration,
    /// All requests, in the order in which they were asked.
    pub asked: Vec<Asked>,
    /// Requests that should have been asked.
    pub intended: u64,
    /// Calls to the store meanwhile.
    pub calls: u64,
    /// How much longer than usual a bare question to Redis took, each time it was asked: what the
    /// machine adds by itself.
    pub control_us: Vec<u64>,
}

/// What a group is played with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The real Redis.
    pub redis_url: String,
    /// Where chance begins.
    pub seed: u64,
    /// Short cells.
    pub quick: bool,
    /// A planted defect.
    pub sabotage: Option<Sabotage>,
    /// Set to end early.
    pub stop: Arc<AtomicBool>,
}

/// Plays `group` on the present thread.
pub fn play(group: &[Cell], settings: &Settings) -> anyhow::Result<Vec<Played>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stage = Stage::set(group, settings).await?;
        stage.link().await?;
        stage.run().await?;
        Ok(stage.finish())
    })
}

/// One cell being played.
struct Playing {
    cell: Cell,
    contract: Contract,
    length: Duration,
    gateways: Vec<Limiter<DistantStore>>,
    contracts: Vec<Contract>,
    stores: Vec<Arc<DistantStore>>,
    offer: Offer,
    next: Option<Arrival>,
    leaving_us: Option<u64>,
    asked: Vec<Asked>,
    intended: u64,
}

enum Done {
    /// Of the cell with this number.
    Asked(usize, Asked),
    Drained,
    /// A bare question took so long.
    Heard(u64),
}

type Doing = Pin<Box<dyn Future<Output = Done>>>;

struct Stage {
    clock: SystemClock,
    distance: Distance,
    playing: Vec<Playing>,
    doing: FuturesUnordered<Doing>,
    control_us: Vec<u64>,
    bare: MultiplexedConnection,
    stop: Arc<AtomicBool>,
}

impl Stage {
    async fn set(group: &[Cell], settings: &Settings) -> anyhow::Result<Stage> {
        let clock = SystemClock::new();
        let far = settings.sabotage == Some(Sabotage::FarStore);
        let distance = Distance::new(if far { SLOW_ROUND_TRIP } else { ROUND_TRIP }, clock);
        let playing = group
            .iter()
            .enumerate()
            .map(|(number, cell)| Playing::new(*cell, number, settings, clock, &distance))
            .collect::<anyhow::Result<_>>()?;
        let (doing, control_us) = (FuturesUnordered::new(), Vec::new());
        let bare = redis::Client::open(settings.redis_url.as_str())?;
        let bare = bare.get_multiplexed_async_connection().await?;
        let stop = Arc::clone(&settings.stop);
        Ok(Stage { clock, distance, playing, doing, control_us, bare, stop })
    }

    /// Waits for every connection, so that no cell begins without its store.
    async fn link(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LINK_MAX;
        for store in self.playing.iter().flat_map(|playing| &playing.stores) {
            while !store.near().is_answering() {
                if Instant::now() > deadline {
                    bail!("a limiter did not reach Redis: {:?}", store.near().trouble());
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Ok(())
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        let begin_us = self.clock.now().us();
        let length_us = self.playing.iter().map(|playing| us(playing.length)).max().unwrap_or(0);
        let (mut control_at, mut tick_at, mut ticked) = (0, 0, 0);
        let gateways = self.playing.iter().map(|playing| playing.gateways.len()).sum::<usize>();
        let tick_every = us(TICK_EVERY) / gateways.max(1) as u64;
        loop {
            let now_us = self.clock.now().us();
            let at_us = now_us - begin_us;
            let crossing = self.distance.pass_on(now_us);
            self.gather();
            self.ask(begin_us, at_us);
            if at_us >= tick_at {
                // One limiter after another, as if each gateway had its own timer.
                self.tick(ticked % gateways);
                ticked += 1;
                tick_at = (tick_at + tick_every).max(at_us.saturating_sub(us(TICK_EVERY)));
            }
            if at_us >= control_at {
                control_at = at_us + CONTROL_EVERY_US;
                self.ask_bare();
            }
            if self.stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            if at_us > length_us && (self.doing.is_empty() || at_us > length_us + END_MAX_US) {
                break;
            }
            let next = self.playing.iter().filter_map(|playing| playing.next.map(|a| a.at_us));
            let next_us = next.chain([tick_at, control_at]).min().unwrap_or(0);
            if crossing || !self.doing.is_empty() || next_us < at_us + AWAKE_BEFORE_US {
                tokio::task::yield_now().await;
            } else {
                let wake = Duration::from_micros(next_us - at_us - AWAKE_BEFORE_US / 2);
                let wake = sleep_until(Instant::now() + wake);
                tokio::select! { () = wake => {} () = self.distance.news() => {} }
            }
        }
        let never = self.doing.len();
        ensure!(never == 0, "{never} decisions never ended");
        Ok(())
    }

    /// Asks what is due.
    fn ask(&mut self, begin_us: u64, at_us: u64) {
        for (number, playing) in self.playing.iter_mut().enumerate() {
            if playing.leaving_us.is_some_and(|leaving| at_us >= leaving) {
                playing.leaving_us = None;
                for gateway in playing.gateways.iter().skip(FLEET_CORE) {
                    let gateway = gateway.clone();
                    self.doing.push(Box::pin(async move {
                        gateway.drain().await;
                        Done::Drained
                    }));
                }
            }
            while let Some(arrival) = playing.next.filter(|arrival| arrival.at_us <= at_us) {
                playing.next = playing.offer.next();
                playing.intended += 1;
                let Some(question) = playing.question(number, arrival, begin_us, self.clock) else {
                    continue;
                };
                let mut question: Doing = Box::pin(question);
                match (&mut question).now_or_never() {
                    Some(Done::Asked(_, asked)) => playing.asked.push(asked),
                    Some(Done::Drained | Done::Heard(_)) => {}
                    None => self.doing.push(question),
                }
            }
        }
    }

    /// Takes the answers that have come.
    fn gather(&mut self) {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while let std::task::Poll::Ready(Some(done)) =
            Pin::new(&mut self.doing).poll_next(&mut context)
        {
            match done {
                Done::Asked(number, asked) => {
                    if let Some(playing) = self.playing.get_mut(number) {
                        playing.asked.push(asked);
                    }
                }
                Done::Drained => {}
                Done::Heard(took_us) => self.control_us.push(took_us),
            }
        }
    }

    fn tick(&self, number: usize) {
        if let Some(gateway) = self.playing.iter().flat_map(|p| &p.gateways).nth(number) {
            gateway.tick();
        }
    }

    /// Asks Redis for nothing, at the same distance and without a limiter.
    fn ask_bare(&self) {
        let (clock, distance, mut bare) = (self.clock, self.distance.clone(), self.bare.clone());
        self.doing.push(Box::pin(async move {
            let begin = clock.now();
            // A server that is gone shows in every cell.
            let _pong: Result<(), _> = redis::cmd("PING").query_async(&mut bare).await;
            distance.cross().await;
            Done::Heard(us(clock.now().since(begin)))
        }));
    }

    fn finish(self) -> Vec<Played> {
        let control_us = beyond_median(self.control_us);
        let finish = |playing: Playing| {
            let mut asked = playing.asked;
            asked.sort_by_key(|asked| asked.at_us);
            Played {
                cell: playing.cell,
                plan: playing.contract.plan,
                length: playing.length,
                asked,
                intended: playing.intended,
                calls: playing.stores.iter().map(|store| store.calls()).sum(),
                control_us: control_us.clone(),
            }
        };
        self.playing.into_iter().map(finish).collect()
    }
}

impl Playing {
    fn new(
        cell: Cell,
        number: usize,
        settings: &Settings,
        clock: SystemClock,
        distance: &Distance,
    ) -> anyhow::Result<Playing> {
        let length = cell.length(settings.quick);
        let plan = PlanNumbers { version: PlanVersion(1), limits: cell.limits()? };
        let apart = settings.sabotage == Some(Sabotage::PerGatewayBuckets);
        // A bucket of its own for each time that a cell is played.
        let run: u64 = fastrand::u64(..);
        let contract = |gateway: usize| {
            let name = format!("{} {run} {}", cell.name(), if apart { gateway } else { 0 });
            let key = BucketKey::new(VersionSource::File, ScopeId::Client(&name));
            // What is admitted is then the limiter's doing alone, not a policy's.
            Contract { key, plan, reset: PlanVersion(0), failure: FailurePolicy::CLOSED }
        };
        let mut offer = Offer::new(cell, length, settings.seed ^ ((number as u64) << 32));
        let stores = (0..cell.gateways)
            .map(|_| store(settings, clock, distance).map(Arc::new))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let leases = settings.sabotage != Some(Sabotage::NoLeases);
        let gateways = stores.iter().map(|store| {
            let settings = LimiterSettings { leases, ..LimiterSettings::default() };
            let limiter = Limiter::new(Arc::clone(store), Arc::new(clock), settings);
            let active = if cell.pattern == Pattern::Fleet { 9 } else { cell.gateways };
            limiter.set_fleet(u32::try_from(active).unwrap_or(u32::MAX));
            limiter
        });
        Ok(Playing {
            cell,
            contract: contract(0),
            length,
            gateways: gateways.collect(),
            contracts: (0..cell.gateways).map(contract).collect(),
            stores,
            next: offer.next(),
            leaving_us: offer.leaving_us(),
            offer,
            asked: Vec::new(),
            intended: 0,
        })
    }

    fn question(
        &self,
        number: usize,
        arrival: Arrival,
        begin_us: u64,
        clock: SystemClock,
    ) -> Option<impl Future<Output = Done> + use<>> {
        let gateway = self.gateways.get(arrival.gateway)?.clone();
        let contract = *self.contracts.get(arrival.gateway)?;
        let cost = Cost::new(1).ok()?;
        Some(async move {
            let asked = clock.now();
            let decision = gateway.decide(&contract, cost).await;
            let took = clock.now().since(asked);
            let at_us = asked.us() - begin_us;
            Done::Asked(
                number,
                Asked {
                    at_us,
                    took_us: us(took),
                    late_us: at_us.saturating_sub(arrival.at_us),
                    allowed: decision.is_allowed(),
                    degraded: matches!(decision.basis, Basis::Degraded(_)),
                },
            )
        })
    }
}

fn store(
    settings: &Settings,
    clock: SystemClock,
    distance: &Distance,
) -> anyhow::Result<DistantStore> {
    let clock: Arc<dyn Clock> = Arc::new(clock);
    let redis = RedisSettings::new(&settings.redis_url);
    let near = RedisStore::connect(&redis, &Handle::current(), &clock).context("the store")?;
    let defect = match settings.sabotage {
        Some(Sabotage::GenerousStore) => Defect::Generous,
        Some(Sabotage::DeafStore) => Defect::Deaf,
        Some(Sabotage::PerGatewayBuckets | Sabotage::NoLeases | Sabotage::FarStore) | None => {
            Defect::Sound
        }
    };
    Ok(DistantStore::new(near, distance.clone(), defect))
}

/// How much more each of them is than the middle one.
fn beyond_median(mut times_us: Vec<u64>) -> Vec<u64> {
    times_us.sort_unstable();
    let median = times_us.get(times_us.len() / 2).copied().unwrap_or(0);
    times_us.into_iter().map(|time| time.saturating_sub(median)).collect()
}

/// Whole microseconds.
pub fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
