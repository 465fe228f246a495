//! How often gateways ask the store: on a mix of many clients of very different size, and for one
//! busy client below and far above its limit. On the mix also what a request costs Redis, beside
//! the design document's script called for each of the same requests.

use std::time::Duration;

use limiter_core::{Contract, PlanNumbers};
use redis::Connection;

use super::cpu::{redis_cpu_us, script_calls};
use super::fleet::{Fleet, GATEWAYS, Offered, offer};
use super::memory::{contract, key};
use super::script::plan;
use crate::crowd::Crowd;

/// Clients of the mix.
const CLIENTS: u32 = 100_000;
/// Requests a second of the mix.
const MIX_PER_S: f64 = 20_000.0;
/// Before anything is counted: leases find their sizes.
const WARM_UP: Duration = Duration::from_secs(2);

/// What was counted during a stretch of load.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// The load.
    pub offered: Offered,
    /// Script calls, as Redis counts them.
    pub calls: u64,
    /// Redis' CPU time in microseconds.
    pub cpu_us: f64,
    /// Length of the stretch.
    pub seconds: f64,
}

impl Counted {
    /// Script calls per request.
    pub fn calls_per_request(&self) -> f64 {
        super::quotient(self.calls, self.offered.requests)
    }

    /// Script calls per second.
    pub fn calls_per_s(&self) -> f64 {
        super::quotient(self.calls, 1) / self.seconds
    }

    /// Redis' CPU per request, in microseconds.
    pub fn us_per_request(&self) -> f64 {
        self.cpu_us / super::quotient(self.offered.requests, 1)
    }
}

/// The largest clients have the largest plan, the next ones the middle one.
const ENTERPRISE: u32 = 10;
const PRO: u32 = 200;

/// Clients by size. Their plans suit them, but for the largest, who asks for twice its plan.
pub struct Mix {
    crowd: Crowd,
    contracts: Vec<Contract>,
}

impl Mix {
    /// The mix of the experiment.
    pub fn new() -> anyhow::Result<Mix> {
        let enterprise = plan(4_000, "2000/s", Some((20_000, "1500/s")))?;
        let pro = plan(400, "200/s", Some((4_000, "150/s")))?;
        let free = plan(40, "20/s", Some((400, "15/s")))?;
        let plan_of = |rank| match rank {
            ..ENTERPRISE => enterprise,
            ENTERPRISE..PRO => pro,
            _ => free,
        };
        let contracts: Vec<Contract> =
            (0..CLIENTS).map(|rank| contract(key(rank), plan_of(rank))).collect();
        Ok(Mix { crowd: Crowd::of(contracts.len()), contracts })
    }

    fn pick(&self, random: &mut fastrand::Rng) -> Contract {
        let contract = self.contracts.get(self.crowd.one(random));
        *contract.expect("each client of the crowd has one")
    }

    /// A stretch of the mix.
    pub async fn play(
        &self,
        fleet: &Fleet,
        redis: &mut Connection,
        length: Duration,
        random: &mut fastrand::Rng,
    ) -> anyhow::Result<Counted> {
        count(fleet, redis, MIX_PER_S, length, random, |random| self.pick(random)).await
    }
}

/// One client with these limits, offered `per_s` over all gateways.
pub async fn hot_key(
    fleet: &Fleet,
    redis: &mut Connection,
    (capacity, rate, per_s): (u64, &str, f64),
    length: Duration,
    random: &mut fastrand::Rng,
) -> anyhow::Result<Counted> {
    let plan: PlanNumbers = plan(capacity, rate, None)?;
    let contract = contract(key(u32::try_from(capacity)? + CLIENTS), plan);
    count(fleet, redis, per_s, length, random, |_random| contract).await
}

async fn count(
    fleet: &Fleet,
    redis: &mut Connection,
    per_s: f64,
    length: Duration,
    random: &mut fastrand::Rng,
    mut pick: impl FnMut(&mut fastrand::Rng) -> Contract,
) -> anyhow::Result<Counted> {
    let _warm = offer(fleet, per_s, WARM_UP, random, &mut pick).await;
    let (calls, cpu_us) = (script_calls(redis)?, redis_cpu_us(redis)?);
    let offered = offer(fleet, per_s, length, random, &mut pick).await;
    let cpu_us = redis_cpu_us(redis)? - cpu_us;
    let calls = script_calls(redis)? - calls;
    Ok(Counted { offered, calls, cpu_us, seconds: length.as_secs_f64() })
}

/// Most calls a second that all gateways together may make for a client above its limit, to which
/// the measured ones are compared.
pub fn polls_per_s() -> f64 {
    f64::from((100 * GATEWAYS).min(5_000))
}
