//! How many connections the limit of open files has room for.
//!
//! Whoever accepts until there are none left cannot reach a service, a store or its own log any
//! more: those who are in would pay for those who come. So the rest waits in the kernel's queue.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// For listeners, stores, the control plane, the operations port, probes and logs.
const KEPT_BACK: u64 = 64;
/// A caller's, and one to a service for its request.
const EACH: u64 = 2;

/// Open files, once there are as many as this process may ask for: the usual 1,024 are there for
/// programs of the days of `select`.
fn files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    getrlimit(Resource::Nofile).current
}

/// Connections that each worker may have; fewer than the file says are told.
pub(crate) fn connections_of_each(config: &Config) -> usize {
    let Some(files) = files() else { return usize::MAX };
    let (most, wanted) = (room(files, config.workers), config.limits.connections_per_worker);
    if most < wanted {
        tracing::info!(
            files,
            most,
            wanted,
            "few open files: no worker has room for its connections"
        );
    }
    most
}

fn room(files: u64, workers: usize) -> usize {
    let connections = files.saturating_sub(KEPT_BACK) / EACH;
    let each = usize::try_from(connections).unwrap_or(usize::MAX) / workers.max(1);
    each.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_room_for_one_more_and_the_rest_is_kept_back() {
        assert_eq!(room(256, 1), 96);
        assert_eq!(room(256, 2), 48);
        assert_eq!(room(262_144, 4), 32_760);
        assert_eq!(room(10, 8), 1, "never none");
        assert_eq!(room(u64::MAX, 0), room(u64::MAX, 1));
    }
}
