//! What a server says of itself: its role, which run it is, settings with which it can lose live
//! buckets, and what it has lost. A server that does not tell (an account may not be allowed to
//! ask) is taken as it was.

use std::sync::atomic::Ordering;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::counters::RedisCounters;

/// Asks once and notes the answer; false if the server says that it is a replica. Whatever else
/// goes wrong here is no reason to lose the connection.
pub(super) async fn look(connection: &mut MultiplexedConnection, counters: &RedisCounters) -> bool {
    let mut asked = redis::pipe();
    asked.cmd("ROLE").cmd("INFO").arg("memory").cmd("INFO").arg("stats");
    let Ok(answers) = connection.send_packed_commands(&asked, 0, 3).await else { return true };
    let [role, memory, stats] = answers.as_slice() else { return true };
    if let (Some(memory), Some(stats)) = (text(memory), text(stats)) {
        note(memory, stats, counters);
    }
    !matches!(role, Value::Array(_)) || is_primary(role)
}

/// Whether an answer to ROLE is that of a primary.
pub(super) fn is_primary(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    parts.first().and_then(text) == Some("master")
}

/// The name of this run, from the section `server` of INFO.
pub(super) fn run_id(server: &Value) -> Option<String> {
    field(text(server)?, "run_id").map(str::to_owned)
}

pub(super) fn text(value: &Value) -> Option<&str> {
    if let Value::BulkString(bytes) = value {
        return std::str::from_utf8(bytes).ok();
    }
    if let Value::SimpleString(text) | Value::VerbatimString { text, .. } = value {
        return Some(text);
    }
    None
}

fn note(memory: &str, stats: &str, counters: &RedisCounters) {
    if let (Some(bytes), Some(policy)) =
        (field(memory, "maxmemory"), field(memory, "maxmemory_policy"))
    {
        let may_evict = bytes != "0" && policy != "noeviction";
        counters.may_evict.store(may_evict, Ordering::Relaxed);
    }
    if let Some(evicted) = field(stats, "evicted_keys").and_then(|text| text.parse().ok()) {
        counters.evicted.store(evicted, Ordering::Relaxed);
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bounded_memory_with_an_eviction_policy_can_lose_buckets() {
        for (bytes, policy, told) in [
            ("0", "allkeys-lru", false),
            ("1048576", "noeviction", false),
            ("1048576", "allkeys-lru", true),
            ("1048576", "volatile-ttl", true),
        ] {
            let counters = RedisCounters::default();
            let memory =
                format!("maxmemory_human:1M\r\nmaxmemory:{bytes}\r\nmaxmemory_policy:{policy}\r\n");
            note(&memory, "evicted_keys:7\r\n", &counters);
            assert_eq!(counters.may_evict.load(Ordering::Relaxed), told, "{bytes} {policy}");
            assert_eq!(counters.evicted.load(Ordering::Relaxed), 7);
            note("", "", &counters);
            assert_eq!(counters.may_evict.load(Ordering::Relaxed), told, "no answer, no change");
        }
    }
}
