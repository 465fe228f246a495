//! An open loop of decisions: each at its moment, whatever became of those before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use limiter_core::{Basis, Cost, Decision, DegradedReason};
use system_tests::oracle::float;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::clients::Client;
use super::stage::Stage;

/// A request that is sent later than this is not the intended load.
const LATE_MAX: Duration = Duration::from_millis(50);

const NAP: Duration = Duration::from_millis(1);
/// Shorter ones are how timers are.
const STALL_MIN: Duration = Duration::from_millis(2);

/// One intended request.
#[derive(Debug, Clone, Copy)]
pub struct Shot {
    at: Duration,
    client: usize,
    gateway: usize,
}

/// One decision, as its caller saw it.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Place among the clients.
    pub client: usize,
    /// When it was asked, on the stage's clock.
    pub at_us: u64,
    /// How long it took.
    pub took: Duration,
    /// Whether it may pass.
    pub allowed: bool,
    /// Why the store did not decide, if it did not.
    pub degraded: Option<DegradedReason>,
}

/// Time in which a thread that only sleeps was not woken although it was due.
#[derive(Debug, Clone, Copy)]
pub struct Stall {
    /// When it was woken, on the stage's clock.
    pub at_us: u64,
    /// How much too late.
    pub length: Duration,
}

/// A stretch of load.
#[derive(Debug)]
pub struct Run {
    /// What the machine did besides.
    pub stalls: Vec<Stall>,
    /// In the order of their moments.
    pub asked: Vec<Asked>,
    /// Requests whose decision never came.
    pub broken: usize,
    /// Share of the intended load that was sent in time.
    pub offered: f64,
}

/// Every client at its rate with jitter, over gateways at random.
pub fn shots(
    clients: &[Client],
    gateways: usize,
    length: Duration,
    random: &mut fastrand::Rng,
) -> Vec<Shot> {
    let mut shots = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let pause = 1.0 / client.offers_per_s;
        let mut at = random.f64() * pause;
        while at < length.as_secs_f64() {
            let gateway = random.usize(..gateways);
            let moment = Duration::from_secs_f64(at + random.f64() * 0.5 * pause);
            shots.push(Shot { at: moment, client: number, gateway });
            at += pause;
        }
    }
    shots.sort_by_key(|shot| shot.at);
    shots
}

/// Sends shots until they end or `stopped` says so, and waits for all decisions.
pub async fn open_loop(
    stage: &Stage,
    clients: &[Client],
    shots: &[Shot],
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<Run> {
    let sleeper = Sleeper::start(stage);
    let start = Instant::now();
    let mut running = JoinSet::new();
    let mut run =
        Run { stalls: Vec::new(), asked: Vec::with_capacity(shots.len()), broken: 0, offered: 0.0 };
    let (mut sent, mut in_time) = (0, 0);
    for shot in shots {
        if *stopped.borrow() {
            break;
        }
        let moment = start + shot.at;
        if moment > Instant::now() {
            sleep_until(moment).await;
        }
        sent += 1;
        in_time += usize::from(moment.elapsed() <= LATE_MAX);
        let (Some(client), Some(gateway)) =
            (clients.get(shot.client), stage.gateways().get(shot.gateway))
        else {
            continue;
        };
        let (contract, limiter) = (client.contract, gateway.limiter.clone());
        let (client, at_us, began) = (shot.client, stage.now_us(), Instant::now());
        running.spawn(async move {
            let decision = limiter.decide(&contract, Cost::ONE).await;
            Asked {
                client,
                at_us,
                took: began.elapsed(),
                allowed: decision.is_allowed(),
                degraded: reason(&decision),
            }
        });
        while let Some(done) = running.try_join_next() {
            run.add(done);
        }
    }
    while let Some(done) = running.join_next().await {
        run.add(done);
    }
    run.asked.sort_by_key(|asked| asked.at_us);
    run.offered = float(in_time) / float(sent.max(1));
    run.stalls = sleeper.wake().await?;
    Ok(run)
}

/// A thread outside of the runtime: what it notices, the machine did, and not our code.
struct Sleeper {
    stop: Arc<AtomicBool>,
    stalls: JoinHandle<Vec<Stall>>,
}

impl Sleeper {
    fn start(stage: &Stage) -> Sleeper {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, clock) = (Arc::clone(&stop), stage.clock());
        let stalls = tokio::task::spawn_blocking(move || {
            let mut stalls = Vec::new();
            let mut before = clock.now();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(NAP);
                let now = clock.now();
                let length = now.since(before).saturating_sub(NAP);
                if length >= STALL_MIN {
                    stalls.push(Stall { at_us: now.us(), length });
                }
                before = now;
            }
            stalls
        });
        Sleeper { stop, stalls }
    }

    async fn wake(mut self) -> anyhow::Result<Vec<Stall>> {
        self.stop.store(true, Ordering::Relaxed);
        Ok((&mut self.stalls).await?)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Run {
    fn add(&mut self, done: Result<Asked, tokio::task::JoinError>) {
        match done {
            Ok(asked) => self.asked.push(asked),
            Err(_panicked) => self.broken += 1,
        }
    }
}

fn reason(decision: &Decision) -> Option<DegradedReason> {
    match decision.basis {
        Basis::Degraded(reason) => Some(reason),
        Basis::Store | Basis::Lease => None,
    }
}
