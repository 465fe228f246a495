//! A hundred plan changes a second, of which some are watched at every gateway.

use std::time::Duration;

use system_tests::control::plan;
use system_tests::oracle::float;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::lags::{Lags, Move, Pressure, REFILL, observe};
use super::seed::{CAPACITY, plan_name};
use super::stage::{Asked, Stage};

/// Changes a second.
pub const RATE: u32 = 100;
/// Every so many changes one is watched.
pub const WATCHED_EVERY: u32 = 25;
/// Calls are counted when the changes have gone on for so long: the first of them are still fetched
/// one by one.
const SETTLED: Duration = Duration::from_secs(2);
/// Operators' calls under way at once, at most.
const WRITERS: u32 = 8;

/// What a storm was.
#[derive(Debug)]
pub struct Storm {
    /// Waits for the effects of the watched changes.
    pub lags: Lags,
    /// Changes made in the time, over those intended.
    pub offered: f64,
    /// What gateways asked for meanwhile, and for how long it was looked.
    pub asked: Asked,
    pub length: Duration,
}

/// Changes plans for `length`. Each plan is changed once.
pub async fn rage(stage: &Stage, length: Duration) -> anyhow::Result<Storm> {
    let count = RATE * u32::try_from(length.as_secs())?;
    let start = Instant::now();
    let mut writing = JoinSet::new();
    let mut watching = JoinSet::new();
    for number in (0..count).filter(|number| number % WATCHED_EVERY == 0) {
        let name = plan_name(stage.storm_plans.start + number);
        let found = stage.known.iter().position(|known| known.plan == name);
        let Some((client, known)) = found.and_then(|at| Some((at, stage.known.get(at)?.clone())))
        else {
            anyhow::bail!("nobody known has the plan {name}");
        };
        let (callers, control) = (stage.callers.clone(), stage.world.control.clone());
        let gateways = stage.world.gateways.len();
        let step = Move::Plan(capacity(number));
        watching.spawn(observe(
            callers,
            control,
            (client, known),
            gateways,
            step,
            (moment(start, number), Pressure::Many),
        ));
    }
    for writer in 0..WRITERS {
        let control = stage.world.control.clone();
        let first = stage.storm_plans.start;
        writing.spawn(async move {
            let mut written = 0;
            let own = (0..count).filter(|n| n % WATCHED_EVERY != 0 && n % WRITERS == writer);
            for number in own {
                sleep_until(moment(start, number)).await;
                let body = plan(capacity(number), REFILL, "coarse");
                control.put_plan(&plan_name(first + number), &body).await?;
                written += usize::from(Instant::now() <= start + length);
            }
            anyhow::Ok(written)
        });
    }
    sleep_until(start + SETTLED).await;
    let (counted, before) = (Instant::now(), stage.asked().await?);
    sleep_until(start + length).await;
    let asked = stage.asked().await?.since(before);
    let measured = counted.elapsed();
    let (mut lags, mut written) = (Lags::default(), 0);
    while let Some(done) = writing.join_next().await {
        written += done??;
    }
    while let Some(done) = watching.join_next().await {
        lags.add(done??);
    }
    let offered = float(written + lags.in_time) / float(usize::try_from(count)?);
    Ok(Storm { lags, offered, asked, length: measured })
}

fn moment(start: Instant, number: u32) -> Instant {
    start + Duration::from_secs(1) / RATE * number
}

fn capacity(number: u32) -> u64 {
    CAPACITY * 2 + u64::from(number)
}
