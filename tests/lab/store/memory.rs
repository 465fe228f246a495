//! Bytes of an active key: in a gateway, as growth of the resident memory of this process under a
//! million keys that a store without memory answers for; in Redis, as it says itself.

use std::future::{self, Future};
use std::sync::Arc;

use anyhow::Context as _;
use limiter_core::store::{BucketStore, StoreError};
use limiter_core::testkit::differential::raw;
use limiter_core::{
    BucketKey, Clock, Contract, Cost, FailurePolicy, Found, Limiter, LimiterSettings, PlanNumbers,
    PlanVersion, Reply, Request, ScopeId, SystemClock, VersionSource, bucket,
};
use redis::{Connection, Pipeline, Value};

use super::cpu;
use super::script::plan;

/// Calls that share a round trip while Redis is filled.
const BATCH: u32 = 1_000;

/// The key of client number `client`.
pub fn key(client: u32) -> BucketKey {
    let client = format!("client-{client}");
    BucketKey::new(VersionSource::ControlPlane, ScopeId::Client(&client))
}

/// Answers every call as if its key had never been seen.
#[derive(Debug)]
struct Forgetful {
    clock: SystemClock,
}

impl BucketStore for Forgetful {
    fn call(
        &self,
        _key: &BucketKey,
        request: &Request,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        let applied = bucket::apply(None, Found::Nothing, request, self.clock.now());
        future::ready(Ok(applied.reply))
    }
}

/// Resident bytes per key of a limiter that has decided for `keys` clients, thrice for each; and
/// how many keys it remembers.
pub async fn of_a_gateway(keys: u32, padding: usize) -> anyhow::Result<(f64, usize)> {
    let clock = SystemClock::new();
    let own: Arc<dyn Clock> = Arc::new(clock);
    let limiter = Limiter::new(Arc::new(Forgetful { clock }), own, LimiterSettings::default());
    let plan = plan(1_000, "1000/s", Some((2_000, "500/s")))?;
    let before = resident_bytes()?;
    let mut padded = Vec::new();
    for client in 0..keys {
        let contract = contract(key(client), plan);
        for _request in 0..3 {
            let _decision = limiter.decide(&contract, Cost::ONE).await;
        }
        if padding > 0 {
            padded.push(vec![1_u8; padding]);
        }
    }
    let grown = resident_bytes()?.saturating_sub(before);
    let remembered = limiter.keys();
    drop((limiter, padded));
    Ok((per(grown, u64::from(keys))?, remembered))
}

/// A contract under `plan`.
pub fn contract(key: BucketKey, plan: PlanNumbers) -> Contract {
    Contract { key, plan, reset: PlanVersion(0), failure: FailurePolicy::Open }
}

fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1_024)
}

/// Redis' bytes per key after one call for each of `keys` clients, with a burst limit alone or with
/// both.
pub fn of_redis(
    connection: &mut Connection,
    text: &str,
    both: bool,
    keys: u32,
) -> anyhow::Result<f64> {
    cpu::ask::<()>(connection, "FLUSHALL")?;
    let digest: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(connection)?;
    // Slow plans, so that no key is gone before the last is there.
    let plan = plan(1_000, "1/s", both.then_some((100_000, "10/s")))?;
    let argument = raw::argument(&Request::take(plan, 500, 500));
    let before = cpu::used_memory(connection)?;
    for first in (0..keys).step_by(BATCH as usize) {
        let mut pipeline = Pipeline::with_capacity(BATCH as usize);
        for client in first..(first + BATCH).min(keys) {
            let name = key(client).to_string();
            pipeline.cmd("EVALSHA").arg(&digest).arg(1).arg(name).arg(argument.as_slice());
        }
        let _replies: Vec<Value> = pipeline.query(connection)?;
    }
    let used = cpu::used_memory(connection)?.saturating_sub(before);
    let there = cpu::keys(connection)?;
    anyhow::ensure!(there == u64::from(keys), "{there} of {keys} keys are there");
    cpu::ask::<()>(connection, "FLUSHALL")?;
    per(used, there)
}

#[expect(clippy::cast_precision_loss, reason = "a quotient for people, far below 2^53")]
fn per(bytes: u64, keys: u64) -> anyhow::Result<f64> {
    anyhow::ensure!(keys > 0, "no keys");
    Ok(bytes as f64 / keys as f64)
}
