//! The script in a real Redis, with the time given: for tests that need both.

use redis::{Connection, RedisResult};

use super::build::Script;
use crate::call::{Reply, Request};
use crate::key::BucketKey;
use crate::store::redis::command;
use crate::time::Timestamp;

/// Buckets in a Redis whose time the caller tells.
pub struct TimedRedis {
    connection: Connection,
    digest: String,
}

impl std::fmt::Debug for TimedRedis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TimedRedis")
    }
}

impl TimedRedis {
    /// Teaches `script` to the server behind `connection`.
    pub fn new(mut connection: Connection, script: &Script) -> RedisResult<TimedRedis> {
        let digest = super::load(&mut connection, script.plain())?;
        Ok(TimedRedis { connection, digest })
    }

    /// One call at `now`.
    ///
    /// # Panics
    /// If the script's reply is malformed.
    pub fn call(
        &mut self,
        key: &BucketKey,
        request: &Request,
        now: Timestamp,
    ) -> RedisResult<Reply> {
        let (seconds, us) = (now.us() / 1_000_000, now.us() % 1_000_000);
        let tag = fastrand::u16(..);
        let mut call = redis::cmd("EVALSHA");
        let name = key.to_string();
        let told = |number: u64| format!("{number}{name}");
        call.arg(&self.digest).arg(3).arg(&name).arg(told(seconds)).arg(told(us));
        call.arg(command::argument(request, tag));
        let text: Vec<u8> = call.query(&mut self.connection)?;
        Ok(command::reply(&text, request, tag).expect("the script's reply fits"))
    }

    /// How long the key lives on, in milliseconds, as Redis' `PTTL` tells it.
    pub fn lifetime_ms(&mut self, key: &BucketKey) -> RedisResult<i64> {
        redis::cmd("PTTL").arg(key.to_string()).query(&mut self.connection)
    }
}
