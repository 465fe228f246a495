//! One server that takes writes, whichever it is at present: its links, and a call over one of
//! them.
//!
//! Only a server that says that it does not know the script gets a call once more, since then
//! nothing was done.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::address::HostPort;
use super::counters::RedisCounters;
use super::dial::{self, Dialler, Wanted};
use super::link::{Closed, Entered, Link};
use super::supervisor::Supervisor;
use super::{command, script, slots};
use crate::breaker::Breaker;
use crate::call::{Reply, Request};
use crate::key::BucketKey;
use crate::store::StoreError;
use crate::time::Clock;

/// Calls out at a time in the first second after the node answers again.
const RECOVERING_CALLS_MAX: u32 = 8;
/// Longest code of an error answer that is passed on.
const CODE_MAX: usize = 32;

/// What all nodes of a store have in common.
pub(super) struct Shared {
    pub(super) counters: Arc<RedisCounters>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runtime: Handle,
    pub(super) connections: usize,
    /// The newest epoch that was given out.
    pub(super) epochs: AtomicU64,
}

impl Shared {
    pub(super) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// What supervisors have found out about the server.
pub(super) struct Presence {
    shared: Arc<Shared>,
    run_id: Mutex<Option<String>>,
    epoch: AtomicU64,
    /// Something is wrong: whoever chooses the server should look again.
    pub(super) wish: Arc<Notify>,
    /// A link came up.
    pub(super) linked: Arc<Notify>,
}

impl Presence {
    /// Notes which server answered. Another run than before may have forgotten something; one that
    /// does not tell may be another.
    pub(super) fn met(&self, run_id: Option<String>, dialled_before: bool) {
        let mut known = self.run_id.lock();
        let same = match (known.as_ref(), run_id.as_ref()) {
            (Some(known), Some(now)) => known == now,
            (None, _) => !dialled_before,
            (Some(_), None) => false,
        };
        if !same {
            self.epoch.store(self.shared.next_epoch(), Ordering::Relaxed);
        }
        *known = run_id.or_else(|| known.take());
    }
}

/// Links to one server.
pub(super) struct Node {
    links: Vec<Arc<Link>>,
    pub(super) presence: Arc<Presence>,
    target: watch::Sender<Option<HostPort>>,
    shared: Arc<Shared>,
    next_link: AtomicUsize,
    /// Held while the script's text is on its way to a server that did not know it.
    loading: tokio::sync::Mutex<()>,
    loads: AtomicU64,
    stop: watch::Sender<bool>,
    supervisors: Mutex<Vec<JoinHandle<()>>>,
}

/// One call over one connection.
#[derive(Clone, Copy)]
struct Call<'a> {
    key: &'a BucketKey,
    request: &'a Request,
    /// Tells it from the others that are out on its connection.
    tag: u16,
    /// The slot is on its way to this node.
    asking: bool,
}

impl Call<'_> {
    fn argument(&self) -> Vec<u8> {
        command::argument(self.request, self.tag)
    }
}

/// What came instead of a reply.
pub(super) enum Failed {
    Store(StoreError),
    /// Another node of the Cluster is in charge. Nothing was done.
    Redirected(Redirect),
}

/// Where a Cluster node sends a caller.
pub(super) struct Redirect {
    pub(super) to: Option<HostPort>,
    /// Only this once: the slot is on its way.
    pub(super) ask: bool,
    /// The node that said so.
    pub(super) by: Option<HostPort>,
}

impl Redirect {
    pub(super) fn refused(&self) -> StoreError {
        StoreError::Refused { code: if self.ask { "ASK" } else { "MOVED" }.to_owned() }
    }
}

impl Node {
    /// Starts to connect to `target`, as soon as there is one.
    pub(super) fn new(
        target: Option<HostPort>,
        dialler: &Arc<Dialler>,
        wanted: Wanted,
        (wish, linked): (Arc<Notify>, Arc<Notify>),
        shared: &Arc<Shared>,
    ) -> Node {
        let presence = Arc::new(Presence {
            shared: Arc::clone(shared),
            run_id: Mutex::new(None),
            epoch: AtomicU64::new(0),
            wish,
            linked,
        });
        let (target, targets) = watch::channel(target);
        let (stop, stopped) = watch::channel(false);
        let connections = u32::try_from(shared.connections).unwrap_or(1).max(1);
        let recovering = RECOVERING_CALLS_MAX / connections;
        let new_link = || {
            let breaker = Breaker::new(fastrand::u64(..), recovering);
            Arc::new(Link::new(breaker, Arc::clone(&shared.clock)))
        };
        let links: Vec<_> = (0..shared.connections).map(|_| new_link()).collect();
        let supervisors = links.iter().map(|link| {
            let supervisor = Supervisor {
                link: Arc::clone(link),
                presence: Arc::clone(&presence),
                dialler: Arc::clone(dialler),
                wanted,
                shared: Arc::clone(shared),
                target: targets.clone(),
                stop: stopped.clone(),
            };
            shared.runtime.spawn(supervisor.run())
        });
        let supervisors = Mutex::new(supervisors.collect());
        Node {
            links,
            presence,
            target,
            shared: Arc::clone(shared),
            next_link: AtomicUsize::new(0),
            loading: tokio::sync::Mutex::new(()),
            loads: AtomicU64::new(0),
            stop,
            supervisors,
        }
    }

    /// Names the server to be connected to; links to any other are closed.
    pub(super) fn aim(&self, target: &HostPort) {
        self.target.send_if_modified(|current| {
            let other = current.as_ref() != Some(target);
            if other {
                *current = Some(target.clone());
            }
            other
        });
    }

    pub(super) fn target(&self) -> Option<HostPort> {
        self.target.borrow().clone()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.presence.epoch.load(Ordering::Relaxed)
    }

    /// Whether at least one connection is there and its breaker closed.
    pub(super) fn is_answering(&self) -> bool {
        self.links.iter().any(|link| link.is_linked() && link.probe_in().is_none())
    }

    pub(super) fn trouble(&self) -> Option<Arc<String>> {
        self.links.iter().find_map(|link| link.trouble())
    }

    pub(super) fn openings(&self) -> u64 {
        self.links.iter().map(|link| link.openings()).sum()
    }

    /// Some connection, for questions that are no calls.
    pub(super) fn connection(&self) -> Option<MultiplexedConnection> {
        self.links.iter().find_map(|link| link.connection())
    }

    /// Tells its tasks to end.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Ends the connections and their tasks.
    pub(super) async fn shut_down(&self) {
        self.stop();
        let supervisors = std::mem::take(&mut *self.supervisors.lock());
        for supervisor in supervisors {
            if let Err(error) = supervisor.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// One call, answered or lost within `longest`. `asking`: the slot is on its way here.
    pub(super) async fn call(
        &self,
        key: &BucketKey,
        request: &Request,
        asking: bool,
        longest: Duration,
    ) -> Result<Reply, Failed> {
        let mut entered = self.enter(key).map_err(Failed::Store)?;
        self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
        let call = Call { key, request, tag: entered.dialled.next_tag(), asking };
        let connection = entered.dialled.connection.clone();
        let mut exchange = pin!(self.exchange(connection, call));
        let silence = Breaker::SILENCE.min(longest);
        let answer = match timeout(silence, exchange.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                entered.silent();
                match timeout(longest - silence, exchange).await {
                    Ok(answer) => answer,
                    Err(elapsed) => {
                        self.shared.counters.timeouts.fetch_add(1, Ordering::Relaxed);
                        let error = io::Error::new(io::ErrorKind::TimedOut, elapsed);
                        return Err(Failed::Store(self.lost(error)));
                    }
                }
            }
        };
        match answer {
            Ok(value) => match reply(&value, &call) {
                Ok(reply) => {
                    entered.answered();
                    Ok(reply)
                }
                Err(error) => {
                    entered.failed();
                    entered.abandon();
                    Err(Failed::Store(self.lost(error)))
                }
            },
            Err(error) => Err(self.failure(&mut entered, error)),
        }
    }

    /// The next link that carries a call now, and none of the same key if that can be.
    fn enter(&self, key: &BucketKey) -> Result<Entered<'_>, StoreError> {
        let count = self.links.len();
        let start = self.next_link.fetch_add(1, Ordering::Relaxed) % count.max(1);
        let mut tripped: Option<Duration> = None;
        let mut full = false;
        for beside_another in [false, true] {
            for link in self.links.iter().cycle().skip(start).take(count) {
                if link.carries(key) && !beside_another {
                    continue;
                }
                match link.enter(key) {
                    Ok(entered) => return Ok(entered),
                    Err(Closed::Tripped(wait)) => {
                        tripped = Some(tripped.map_or(wait, |other| other.min(wait)));
                    }
                    Err(Closed::Full) => full = true,
                    Err(Closed::Unlinked) => {}
                }
            }
        }
        Err(match tripped {
            Some(probe_in) => StoreError::Tripped { probe_in },
            None if full => StoreError::Unreachable("too many calls are out".into()),
            None => StoreError::Unreachable("no connection".into()),
        })
    }

    async fn exchange(
        &self,
        mut connection: MultiplexedConnection,
        call: Call<'_>,
    ) -> Result<Value, RedisError> {
        let loads = self.loads.load(Ordering::Acquire);
        let key = slots::spelled(call.key);
        let by_name = command("EVALSHA", script::digest(), &key, call.argument());
        let answer = send(&mut connection, &by_name, call.asking).await;
        if !says_no_script(&answer) {
            return answer;
        }
        {
            let _loading = self.loading.lock().await;
            if self.loads.load(Ordering::Acquire) == loads {
                let answer = self.teach(&mut connection, &key, &call).await;
                if answer.is_ok() {
                    self.loads.fetch_add(1, Ordering::Release);
                }
                return answer;
            }
        }
        let answer = send(&mut connection, &by_name, call.asking).await;
        if says_no_script(&answer) {
            return self.teach(&mut connection, &key, &call).await;
        }
        answer
    }

    /// The same call with the script's text, which the server keeps.
    async fn teach(
        &self,
        connection: &mut MultiplexedConnection,
        key: &str,
        call: &Call<'_>,
    ) -> Result<Value, RedisError> {
        self.shared.counters.script_loads.fetch_add(1, Ordering::Relaxed);
        send(connection, &command("EVAL", script::TEXT, key, call.argument()), call.asking).await
    }

    fn failure(&self, entered: &mut Entered<'_>, error: RedisError) -> Failed {
        let Some(code) = error.code() else {
            entered.failed();
            entered.abandon();
            return Failed::Store(self.lost(error));
        };
        self.shared.counters.count_refused(code);
        let is = |kind| error.kind() == ErrorKind::Server(kind);
        if let Some((to, _slot)) = error.redirect_node() {
            // The node is well; it is only the wrong one.
            entered.answered();
            let by = self.target();
            let to = by.as_ref().and_then(|by| HostPort::told_by(to, by));
            return Failed::Redirected(Redirect { to, ask: is(ServerErrorKind::Ask), by });
        }
        if concerns_one_slot(&error) {
            entered.answered();
        } else {
            entered.failed();
        }
        let demoted = is(ServerErrorKind::ReadOnly) || is(ServerErrorKind::MasterDown);
        if demoted {
            entered.unfit();
        } else if dial::lacks_permission(&error) {
            entered.forbidden(dial::no_permission(&error));
        }
        if demoted || is(ServerErrorKind::ClusterDown) {
            self.presence.wish.notify_one();
        }
        Failed::Store(StoreError::Refused { code: code.chars().take(CODE_MAX).collect() })
    }

    fn lost(&self, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        self.shared.counters.lost.fetch_add(1, Ordering::Relaxed);
        StoreError::Lost(Box::new(error))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Refusals that say nothing about the node's other slots.
fn concerns_one_slot(error: &RedisError) -> bool {
    let is = |kind| error.kind() == ErrorKind::Server(kind);
    let not_served = error.detail().is_some_and(|detail| detail.contains("not served"));
    is(ServerErrorKind::TryAgain) || (is(ServerErrorKind::ClusterDown) && not_served)
}

/// The command for a call: the script by its name (EVALSHA) or as a whole (EVAL).
pub(super) fn command(verb: &str, script: &str, key: &str, argument: Vec<u8>) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script).arg(1).arg(key).arg(argument);
    command
}

async fn send(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if !asking {
        return connection.send_packed_command(command).await?.extract_error();
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command.clone());
    let answers = connection.send_packed_commands(&both, 0, 2).await?;
    let last = answers.into_iter().last().unwrap_or(Value::Nil);
    last.extract_error()
}

fn says_no_script(answer: &Result<Value, RedisError>) -> bool {
    let no_script = ErrorKind::Server(ServerErrorKind::NoScript);
    matches!(answer, Err(error) if error.kind() == no_script)
}

fn reply(value: &Value, call: &Call<'_>) -> Result<Reply, command::BadReply> {
    let bytes = if let Value::BulkString(bytes) = value { bytes.as_slice() } else { &[] };
    command::reply(bytes, call.request, call.tag)
}
