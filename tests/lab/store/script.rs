//! Redis' own CPU time per call, for the shipped script and for the design document's, each in
//! pipelines of sixteen: short slices in random order, one of each kind in a round, so that
//! whatever else the machine does meets all of them alike.

use anyhow::{Context as _, anyhow};
use limiter_core::testkit::differential::raw;
use limiter_core::{
    BucketKey, Capacity, Clock as _, LeaseReport, Limit, Limits, PlanNumbers, PlanVersion,
    RefillRate, Reply, Request, ScopeId, SystemClock, VersionSource, Witness,
};
use redis::{Connection, Pipeline, Value};

use super::cpu::redis_cpu_us;

/// The algorithm that ours is compared with.
pub const DESIGN: &str = include_str!("design.lua");
/// Calls that share a round trip.
const DEPTH: usize = 16;
/// Keys of each arm.
const KEYS: usize = 1_000;
/// A slice ends after this long.
const SLICE_US: u64 = 300_000;

/// What one arm has measured.
#[derive(Debug)]
pub struct Measured {
    /// Its name.
    pub name: &'static str,
    /// Redis' CPU per call in each round, in microseconds.
    pub us: Vec<f64>,
    /// Calls made in the rounds that count.
    pub calls: u64,
}

/// Runs `rounds` rounds; `text` is the script that is judged.
pub fn measure(
    connection: &mut Connection,
    text: &str,
    rounds: usize,
    random: &mut fastrand::Rng,
) -> anyhow::Result<Vec<Measured>> {
    let ours = load(connection, text)?;
    let design = load(connection, DESIGN)?;
    let mut arms = arms(&ours, &design)?;
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let arm = arms.get_mut(index).context("an arm")?;
            let (us, calls) = arm.slice(connection)?;
            // The first round fills the keys.
            if round > 0 {
                arm.measured.us.push(us);
                arm.measured.calls += calls;
            }
        }
    }
    Ok(arms.into_iter().map(|arm| arm.measured).collect())
}

fn load(connection: &mut Connection, text: &str) -> anyhow::Result<String> {
    Ok(redis::cmd("SCRIPT").arg("LOAD").arg(text).query(connection)?)
}

fn arms(ours: &str, design: &str) -> anyhow::Result<Vec<Arm>> {
    let burst = plan(1_000, "1000/s", None)?;
    let both = plan(1_000, "1000/s", Some((2_000, "500/s")))?;
    let spent = plan(1, "1/d", None)?;
    let published = |name| Arm::new(name, design, Caller::Published);
    let exact = |name, plan| Arm::new(name, ours, Caller::Exact(Request::take(plan, 1, 1)));
    let leased = |name, plan, testifies| {
        let held = vec![None; KEYS];
        Arm::new(name, ours, Caller::Leased { plan, testifies, held })
    };
    Ok(vec![
        published("design"),
        published("design_again"),
        exact("take", burst),
        exact("denial", spent),
        leased("lease_burst", burst, false),
        leased("lease", both, false),
        leased("lease_witness", both, true),
    ])
}

/// A plan of one or two limits.
pub fn plan(
    capacity: u64,
    rate: &str,
    sustained: Option<(u64, &str)>,
) -> anyhow::Result<PlanNumbers> {
    let limit = |capacity, rate: &str| -> anyhow::Result<Limit> {
        Ok(Limit::new(Capacity::new(capacity)?, rate.parse::<RefillRate>()?)?)
    };
    let burst = limit(capacity, rate)?;
    let sustained = sustained.map(|(capacity, rate)| limit(capacity, rate)).transpose()?;
    Ok(PlanNumbers { version: PlanVersion(2), limits: Limits { burst, sustained } })
}

struct Arm {
    digest: String,
    caller: Caller,
    next: usize,
    measured: Measured,
}

/// Who calls, and what it remembers.
enum Caller {
    /// The design document's script, one token.
    Published,
    /// One token, exactly.
    Exact(Request),
    /// Settles the lease of its last call, takes one token and asks for a lease.
    Leased { plan: PlanNumbers, testifies: bool, held: Vec<Option<Reply>> },
}

impl Arm {
    fn new(name: &'static str, digest: &str, caller: Caller) -> Arm {
        let measured = Measured { name, us: Vec::new(), calls: 0 };
        Arm { digest: digest.to_owned(), caller, next: 0, measured }
    }

    fn slice(&mut self, connection: &mut Connection) -> anyhow::Result<(f64, u64)> {
        let clock = SystemClock::new();
        let began = clock.now();
        let before = redis_cpu_us(connection)?;
        let mut calls = 0;
        while u64::try_from(clock.now().since(began).as_micros())? < SLICE_US {
            self.batch(connection, &clock)?;
            calls += DEPTH as u64;
        }
        let spent = redis_cpu_us(connection)? - before;
        let count = u32::try_from(calls)?;
        Ok((spent / f64::from(count), calls))
    }

    fn batch(&mut self, connection: &mut Connection, clock: &SystemClock) -> anyhow::Result<()> {
        let keys: Vec<usize> = (0..DEPTH).map(|at| (self.next + at) % KEYS).collect();
        self.next = (self.next + DEPTH) % KEYS;
        let mut pipeline = Pipeline::with_capacity(DEPTH);
        let mut asked = Vec::with_capacity(DEPTH);
        for key in &keys {
            let name = key_name(self.measured.name, *key);
            pipeline.cmd("EVALSHA").arg(&self.digest).arg(1).arg(name);
            match self.caller.request(*key) {
                None => {
                    let ms = clock.now().us() / 1_000;
                    pipeline.arg(1_000).arg(1_000).arg(ms).arg(1);
                }
                Some(request) => {
                    pipeline.arg(raw::argument(&request));
                    asked.push(request);
                }
            }
        }
        let answers: Vec<Value> = pipeline.query(connection)?;
        for ((key, request), answer) in keys.iter().zip(&asked).zip(&answers) {
            let Value::BulkString(text) = answer else {
                return Err(anyhow!("{}: {answer:?}", self.measured.name));
            };
            let reply = raw::reply(text, request).context("a reply that does not fit")?;
            self.caller.hear(*key, reply);
        }
        Ok(())
    }
}

fn key_name(arm: &str, key: usize) -> String {
    let client = format!("{arm}-{key}");
    BucketKey::new(VersionSource::File, ScopeId::Client(&client)).to_string()
}

impl Caller {
    fn request(&self, key: usize) -> Option<Request> {
        match self {
            Caller::Published => None,
            Caller::Exact(request) => Some(*request),
            Caller::Leased { plan, testifies, held } => {
                let last = held.get(key).copied().flatten();
                Some(Request {
                    demand_per_s: 1_000,
                    low_water: 3,
                    scarce_poll_us: 10_000,
                    lease: last.map(|reply| LeaseReport {
                        generation: reply.generation,
                        counted: reply.counted,
                        held: reply.counted.saturating_sub(1),
                        returned: 0,
                    }),
                    witness: last.filter(|_| *testifies).map(|reply| witness(&reply)),
                    ..Request::take(*plan, 1, 0)
                })
            }
        }
    }

    fn hear(&mut self, key: usize, reply: Reply) {
        if let Caller::Leased { held, .. } = self
            && let Some(slot) = held.get_mut(key)
        {
            *slot = Some(reply);
        }
    }
}

fn witness(reply: &Reply) -> Witness {
    Witness {
        at: reply.at,
        burst: reply.levels.burst.tokens,
        sustained: reply.levels.sustained.tokens,
        granted_total: reply.granted_total,
        incarnation: reply.incarnation,
        version: reply.plan.version,
        force: false,
    }
}
