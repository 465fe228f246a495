//! Asks the sentinels which server takes writes, and aims the node's links at it.
//!
//! All of them are asked, over connections that are kept, and the newest of their answers counts:
//! one that is cut off from the others may name a server that was replaced long ago. Whether the
//! named server really is a primary it is asked itself, at each dial.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::address::HostPort;
use super::dial::{DialError, Dialler};
use super::node::Node;

/// Between two questions while calls are answered, before jitter; a primary that was replaced but
/// goes on is left after at most so long.
const EASY: Duration = Duration::from_millis(1_000);
/// The same while they are not.
const URGENT: Duration = Duration::from_millis(200);
/// However many links complain, questions are at least this far apart.
const APART: Duration = Duration::from_millis(50);
/// For a dial and an answer of a sentinel.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// For the last few, once most have answered.
const STRAGGLER_MAX: Duration = Duration::from_millis(50);

/// The watch over one service.
pub(super) struct Lookout {
    pub(super) sentinels: Vec<HostPort>,
    pub(super) service: String,
    pub(super) dialler: Arc<Dialler>,
    pub(super) node: Arc<Node>,
    pub(super) trouble: Arc<ArcSwapOption<String>>,
}

/// What one sentinel says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    primary: HostPort,
    /// Grows with each failover; 0 if the account may not ask for it.
    epoch: u64,
}

type Kept = HashMap<HostPort, MultiplexedConnection>;

impl Lookout {
    pub(super) async fn run(self) {
        let mut kept = Kept::new();
        let mut newest = 0;
        loop {
            let (told, complaint) = self.ask_all(&mut kept).await;
            let best = choose(&told);
            self.note(best.as_ref(), complaint);
            // What is older than what was acted upon counts only if that does not work out.
            if let Some(best) = best.filter(|b| b.epoch >= newest || !self.node.is_answering()) {
                newest = best.epoch;
                self.node.aim(&best.primary);
            }
            sleep(APART).await;
            let pause = if self.node.is_answering() { EASY } else { URGENT };
            let pause = pause.mul_f64(0.7 + 0.6 * fastrand::f64());
            let _either = timeout(pause, self.node.presence.wish.notified()).await;
        }
    }

    fn note(&self, best: Option<&Told>, complaint: Option<String>) {
        let trouble = match (best, complaint) {
            (Some(_), _) => None,
            (None, Some(complaint)) => Some(complaint),
            (None, None) => Some(format!("the sentinels know no service named `{}`", self.service)),
        };
        self.trouble.store(trouble.map(Arc::new));
    }

    async fn ask_all(&self, kept: &mut Kept) -> (Vec<Told>, Option<String>) {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, dialler) = (sentinel.clone(), Arc::clone(&self.dialler));
            let (service, connection) = (self.service.clone(), kept.remove(&sentinel));
            asked.spawn(async move {
                let answer = ask(&sentinel, connection, &dialler, &service);
                let answer = timeout(ANSWER_MAX, answer).await;
                (sentinel, answer.unwrap_or(Err(DialError::TimedOut)))
            });
        }
        let (mut told, mut complaint) = (Vec::new(), None);
        loop {
            // A silent one does not hold up what most have said.
            let most = 2 * told.len() > self.sentinels.len();
            let wait = if most { STRAGGLER_MAX } else { 2 * ANSWER_MAX };
            let Ok(Some(answer)) = timeout(wait, asked.join_next()).await else { break };
            match answer {
                Ok((sentinel, Ok((connection, answer)))) => {
                    kept.insert(sentinel, connection);
                    told.extend(answer);
                }
                Ok((sentinel, Err(error))) => {
                    complaint = Some(format!("sentinel {sentinel}: {error}"));
                }
                Err(error) => complaint = Some(error.to_string()),
            }
        }
        (told, complaint)
    }
}

async fn ask(
    sentinel: &HostPort,
    connection: Option<MultiplexedConnection>,
    dialler: &Dialler,
    service: &str,
) -> Result<(MultiplexedConnection, Option<Told>), DialError> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => dialler.open(sentinel).await?,
    };
    let mut words = redis::pipe();
    words.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    words.cmd("SENTINEL").arg("MASTER").arg(service);
    let answers = connection.send_packed_commands(&words, 0, 2).await?;
    let [address, state] = <[Value; 2]>::try_from(answers).unwrap_or([Value::Nil, Value::Nil]);
    let address: Option<(String, u16)> =
        redis::from_redis_value(address.extract_error()?).map_err(redis::RedisError::from)?;
    let epoch = epoch(state).unwrap_or(0);
    let told = address.map(|(host, port)| Told { primary: HostPort { host, port }, epoch });
    Ok((connection, told))
}

fn epoch(state: Value) -> Option<u64> {
    let fields: HashMap<String, String> = redis::from_redis_value(state).ok()?;
    fields.get("config-epoch")?.parse().ok()
}

/// The newest answer; of several, what most say, and then what was heard first.
fn choose(told: &[Told]) -> Option<Told> {
    let votes = |one: &Told| told.iter().filter(|other| *other == one).count();
    let mut best: Option<&Told> = None;
    for one in told {
        let better = best.is_none_or(|best| (one.epoch, votes(one)) > (best.epoch, votes(best)));
        if better {
            best = Some(one);
        }
    }
    best.cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(port: u16, epoch: u64) -> Told {
        Told { primary: HostPort { host: "a".into(), port }, epoch }
    }

    #[test]
    fn the_newest_answer_counts_and_then_the_most_frequent() {
        assert_eq!(choose(&[]), None);
        let stale = [told(1, 3), told(1, 3), told(2, 4)];
        assert_eq!(choose(&stale), Some(told(2, 4)), "one that knows of the failover is enough");
        let without_epochs = [told(1, 0), told(2, 0), told(2, 0)];
        assert_eq!(choose(&without_epochs), Some(told(2, 0)));
    }
}
