//! What Redis says about itself: CPU time, calls, memory.

use anyhow::Context as _;
use redis::{Connection, FromRedisValue};

/// CPU time of Redis' main thread since its start, in microseconds.
pub fn redis_cpu_us(connection: &mut Connection) -> anyhow::Result<f64> {
    let info: String = redis::cmd("INFO").arg("cpu").query(connection)?;
    let user: f64 = field(&info, "used_cpu_user_main_thread")?.parse()?;
    let system: f64 = field(&info, "used_cpu_sys_main_thread")?.parse()?;
    Ok((user + system) * 1e6)
}

/// Script calls since its start.
pub fn script_calls(connection: &mut Connection) -> anyhow::Result<u64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query(connection)?;
    let calls = |name| -> anyhow::Result<u64> {
        let Ok(stats) = field(&info, name) else { return Ok(0) };
        let calls = stats.split(',').find_map(|part| part.strip_prefix("calls="));
        Ok(calls.context("calls=")?.parse()?)
    };
    Ok(calls("cmdstat_evalsha")? + calls("cmdstat_eval")?)
}

/// Memory in use, in bytes.
pub fn used_memory(connection: &mut Connection) -> anyhow::Result<u64> {
    let info: String = redis::cmd("INFO").arg("memory").query(connection)?;
    Ok(field(&info, "used_memory")?.parse()?)
}

/// Keys that it holds.
pub fn keys(connection: &mut Connection) -> anyhow::Result<u64> {
    ask(connection, "DBSIZE")
}

/// A command without arguments.
pub fn ask<T: FromRedisValue>(connection: &mut Connection, word: &str) -> anyhow::Result<T> {
    Ok(redis::cmd(word).query(connection)?)
}

fn field<'a>(info: &'a str, name: &str) -> anyhow::Result<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .with_context(|| format!("Redis does not tell {name}"))
}
