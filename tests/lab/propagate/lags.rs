//! From the answer to an operator's call to its effect on a request, at every gateway.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use system_tests::control::{Control, plan};
use system_tests::oracle::{float, quantile};
use system_tests::traffic::{Callers, Sent};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::seed::Known;
use super::stage::{Stage, round};

/// What is not there this long after the call is not waited for.
const GIVE_UP: Duration = Duration::from_secs(8);
/// Between two requests that look for an effect …
const LOOK_EVERY: Duration = Duration::from_millis(8);
/// … and while there are so many changes that looking would be the load.
const LOOK_EVERY_BUSY: Duration = Duration::from_millis(40);
/// An operator's call that begins later than this was not offered as intended.
const LATE_MAX: Duration = Duration::from_millis(150);
/// Refill of every plan.
pub const REFILL: &str = "1000000/s";

/// What an operator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Gives the client's plan another capacity, which every answer tells.
    Plan(u64),
    /// Ends the client's key for good.
    Revoke,
}

/// Whether there is much to look for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    Single,
    Many,
}

impl Pressure {
    fn look_every(self) -> Duration {
        match self {
            Pressure::Single => LOOK_EVERY,
            Pressure::Many => LOOK_EVERY_BUSY,
        }
    }
}

impl Move {
    fn is_seen_in(self, sent: &Sent) -> bool {
        match self {
            Move::Plan(capacity) => sent.capacity_told() == Some(capacity),
            Move::Revoke => sent.status == 401,
        }
    }

    async fn make(self, control: &Control, known: &Known) -> anyhow::Result<u64> {
        match self {
            Move::Plan(capacity) => {
                control.put_plan(&known.plan, &plan(capacity, REFILL, "coarse")).await
            }
            Move::Revoke => control.revoke_key(&known.key_id).await,
        }
    }
}

/// Waits for effects, of one kind of move.
#[derive(Debug, Clone, Default)]
pub struct Lags {
    /// One for each move and gateway.
    pub all: Vec<Duration>,
    /// How many were given up.
    pub unseen: usize,
    /// Requests that looked.
    pub requests: u64,
    /// Moves, and those that began in time.
    pub moves: usize,
    pub in_time: usize,
}

impl Lags {
    pub fn add(&mut self, other: Lags) {
        self.all.extend(other.all);
        self.unseen += other.unseen;
        self.requests += other.requests;
        self.moves += other.moves;
        self.in_time += other.in_time;
    }

    pub fn seconds(&self, share: f64) -> f64 {
        round(quantile(self.all.iter().copied(), share))
    }

    pub fn offered(&self) -> f64 {
        float(self.in_time) / float(self.moves.max(1))
    }

    pub fn json(&self) -> Value {
        let mut seconds: Vec<f64> = self.all.iter().map(|lag| round(*lag)).collect();
        seconds.sort_by(f64::total_cmp);
        json!({ "moves": self.moves, "requests": self.requests, "unseen": self.unseen,
            "seconds": seconds })
    }
}

/// Makes a move at its moment and looks for its effect at `gateways` gateways.
pub async fn observe(
    callers: Callers,
    control: Control,
    (client, known): (usize, Known),
    gateways: usize,
    step: Move,
    (moment, pressure): (Instant, Pressure),
) -> anyhow::Result<Lags> {
    sleep_until(moment).await;
    let began = Instant::now();
    let making = async {
        let made = step.make(&control, &known).await;
        (made, Instant::now())
    };
    let watching =
        join_all((0..gateways).map(|gateway| {
            first_seen(&callers, (client, gateway), step, began + GIVE_UP, pressure)
        }));
    let ((made, answered), seen) = tokio::join!(making, watching);
    made?;
    let in_time = began.saturating_duration_since(moment) <= LATE_MAX;
    let mut lags = Lags { moves: 1, in_time: usize::from(in_time), ..Lags::default() };
    for (seen, requests) in seen {
        lags.requests += requests;
        lags.unseen += usize::from(seen.is_none());
        let lag = seen.map(|seen| seen.saturating_duration_since(answered));
        lags.all.push(lag.unwrap_or(GIVE_UP));
    }
    Ok(lags)
}

/// When an answer at this gateway first shows the effect, and how many requests that took.
async fn first_seen(
    callers: &Callers,
    (client, gateway): (usize, usize),
    step: Move,
    deadline: Instant,
    pressure: Pressure,
) -> (Option<Instant>, u64) {
    let mut requests = 0;
    loop {
        let sent = callers.one(client, gateway, 0).await;
        requests += 1;
        let now = Instant::now();
        if step.is_seen_in(&sent) {
            return (Some(now), requests);
        }
        if now > deadline {
            return (None, requests);
        }
        sleep(pressure.look_every()).await;
    }
}

/// Moves at random moments, `gap` apart on average, whether or not earlier ones are seen yet.
/// Lags by kind: plan changes, revocations.
pub async fn at_random(
    stage: &Stage,
    control: &Control,
    moves: &[(usize, Move)],
    gap: Duration,
    random: &mut fastrand::Rng,
) -> anyhow::Result<(Lags, Lags)> {
    let gateways = stage.world.gateways.len();
    let mut running = JoinSet::new();
    let mut moment = Instant::now();
    for (client, step) in moves {
        moment += gap.mul_f64(-(1.0 - random.f64()).ln());
        let Some(known) = stage.known.get(*client).cloned() else { continue };
        let (callers, control) = (stage.callers.clone(), control.clone());
        let step = *step;
        let at = (moment, Pressure::Single);
        let one = observe(callers, control, (*client, known), gateways, step, at);
        running.spawn(async move { anyhow::Ok((step, one.await?)) });
    }
    let (mut changes, mut revocations) = (Lags::default(), Lags::default());
    while let Some(done) = running.join_next().await {
        match done?? {
            (Move::Plan(_), lags) => changes.add(lags),
            (Move::Revoke, lags) => revocations.add(lags),
        }
    }
    Ok((changes, revocations))
}

/// Requests of revoked keys that are answered, at any gateway.
pub async fn came_back(stage: &Stage, clients: &[usize]) -> usize {
    let asked = (0..stage.world.gateways.len()).map(async |gateway| {
        let mut answered = 0;
        for client in clients {
            let sent = stage.callers.one(*client, gateway, 0).await;
            answered += usize::from(sent.status != 401);
        }
        answered
    });
    join_all(asked).await.into_iter().sum()
}
