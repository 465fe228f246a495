//! The callers' side: what a load balancer does, and a load that it spreads.
//!
//! It asks each gateway's `/readyz` and leaves one that is not ready, or that answers with
//! `Connection: close` while there are others. It keeps connections, but for less time than a
//! gateway's grace. Nothing is sent twice: what is not answered has failed.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use demo::ID_HEADER;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::fleet::{AT_ONCE, LATE, Member};

/// How often gateways are asked.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// A connection is not used again after this long: less than any grace here.
const KEEP: Duration = Duration::from_millis(150);
/// One request in so many has a connection of its own.
const FRESH_EVERY: u64 = 10;
/// A request that takes longer has failed.
const GIVE_UP: Duration = Duration::from_secs(15);
/// The same of one whose service takes its time.
const LATE_MAX: Duration = Duration::from_secs(60);
/// Requests are sent in small batches this often.
const TICK: Duration = Duration::from_millis(5);
/// So many reasons are kept.
const REASONS_MAX: usize = 20;

type Sender = SendRequest<Empty<Bytes>>;

/// One gateway as it is seen from outside.
struct Target {
    traffic: SocketAddr,
    operations: SocketAddr,
    in_service: AtomicBool,
    idle: Mutex<VecDeque<(Instant, Sender)>>,
    answered: AtomicU64,
}

/// What became of the requests.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Ids with a whole 200.
    pub answered: Vec<u64>,
    /// Others.
    pub failed: u64,
    /// Among them those to whom a connection was refused.
    pub refused: u64,
    /// Why, each with its count.
    pub reasons: BTreeMap<String, u64>,
    /// Sent ÷ intended.
    pub offered: f64,
}

/// Spreads requests. Clones share everything.
#[derive(Clone)]
pub struct Balancer(Arc<Shared>);

struct Shared {
    targets: Vec<Target>,
    key: HeaderValue,
    turn: AtomicUsize,
    next: AtomicU64,
    stop: AtomicBool,
    outcome: Mutex<Outcome>,
}

impl Balancer {
    /// Over these gateways; ids begin at `first`.
    pub fn over(members: &[Member], key: &str, first: u64) -> anyhow::Result<Balancer> {
        let targets = members.iter().map(|member| Target {
            traffic: member.traffic,
            operations: member.operations,
            in_service: AtomicBool::new(true),
            idle: Mutex::default(),
            answered: AtomicU64::new(0),
        });
        Ok(Balancer(Arc::new(Shared {
            targets: targets.collect(),
            key: HeaderValue::from_str(key)?,
            turn: AtomicUsize::new(0),
            next: AtomicU64::new(first),
            stop: AtomicBool::new(false),
            outcome: Mutex::default(),
        })))
    }

    /// Requests whose outcome is known.
    pub fn done(&self) -> u64 {
        let outcome = self.0.outcome.lock();
        outcome.answered.len() as u64 + outcome.failed
    }

    /// Answers by gateway.
    pub fn spread(&self) -> Vec<u64> {
        self.0.targets.iter().map(|target| target.answered.load(Ordering::Relaxed)).collect()
    }

    /// Whether each gateway is in service as seen from here.
    pub async fn all_in_service(&self) {
        while !self.0.targets.iter().all(|target| target.in_service.load(Ordering::Acquire)) {
            sleep(TICK).await;
        }
    }

    /// No new requests; [`Balancer::load`] ends when all are answered.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// Offers `rate` requests a second until it is stopped.
    pub async fn load(&self, rate: f64) -> anyhow::Result<Outcome> {
        let (mut running, mut asking) = (JoinSet::new(), JoinSet::new());
        for number in 0..self.0.targets.len() {
            let own = self.clone();
            asking.spawn(async move { own.keep_asking(number).await });
        }
        let (began, mut sent) = (Instant::now(), 0.0);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while !self.0.stop.load(Ordering::Acquire) {
            tick.tick().await;
            let due = began.elapsed().as_secs_f64() * rate;
            while sent < due {
                let own = self.clone();
                running.spawn(async move { own.one().await });
                sent += 1.0;
            }
            while let Some(ended) = running.try_join_next() {
                ended?;
            }
        }
        let intended = began.elapsed().as_secs_f64() * rate;
        while let Some(ended) = running.join_next().await {
            ended?;
        }
        asking.shutdown().await;
        let mut outcome = std::mem::take(&mut *self.0.outcome.lock());
        outcome.offered = (sent / intended.max(1.0)).min(1.0);
        Ok(outcome)
    }

    /// The health checks of one gateway.
    async fn keep_asking(&self, number: usize) {
        let Some(target) = self.0.targets.get(number) else { return };
        loop {
            let ready = timeout(GIVE_UP, ready(target.operations)).await;
            target.set(ready.is_ok_and(|ready| ready.unwrap_or(false)));
            sleep(ASK_EVERY).await;
        }
    }

    async fn one(&self) {
        let shared = &self.0;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let answer = match timeout(GIVE_UP, self.exchange(id)).await {
            Ok(answer) => answer,
            Err(_) => Err(anyhow::anyhow!("given up")),
        };
        let mut outcome = shared.outcome.lock();
        let reason = match answer {
            Ok(200) => return outcome.answered.push(id),
            Ok(status) => format!("status {status}"),
            Err(error) => {
                outcome.refused += u64::from(is_refused(&error));
                format!("{error:#}")
            }
        };
        outcome.failed += 1;
        if outcome.reasons.len() < REASONS_MAX || outcome.reasons.contains_key(&reason) {
            *outcome.reasons.entry(reason).or_default() += 1;
        }
    }

    async fn exchange(&self, id: u64) -> anyhow::Result<u16> {
        let target = self.choose().context("no gateway")?;
        let fresh = id.is_multiple_of(FRESH_EVERY);
        let kept = if fresh { None } else { target.kept() };
        let mut sender = match kept {
            Some(sender) => sender,
            None => connect(target.traffic).await?,
        };
        let request = Request::get(format!("/{AT_ONCE}/item"))
            .header(header::HOST, "lab.test")
            .header("x-api-key", self.0.key.clone())
            .header(ID_HEADER, id.to_string())
            .body(Empty::new())?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        body.collect().await?;
        target.answered.fetch_add(1, Ordering::Relaxed);
        let closes = head.headers.get(header::CONNECTION).is_some_and(|value| value == "close");
        if closes && self.0.targets.len() > 1 {
            target.set(false);
        } else if !closes && !fresh {
            target.idle.lock().push_back((Instant::now(), sender));
        }
        Ok(head.status.as_u16())
    }

    /// The next in turn that is in service; any, if none is.
    fn choose(&self) -> Option<&Target> {
        let targets = &self.0.targets;
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed);
        let from = |start| targets.iter().cycle().skip(start % targets.len().max(1));
        let in_service = |target: &&Target| target.in_service.load(Ordering::Acquire);
        from(turn).take(targets.len()).find(in_service).or_else(|| from(turn).next())
    }
}

impl Target {
    fn set(&self, in_service: bool) {
        self.in_service.store(in_service, Ordering::Release);
        if !in_service {
            self.idle.lock().clear();
        }
    }

    /// The connection that was used longest ago, if that is not too long.
    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.lock();
        while let Some((since, sender)) = idle.pop_front() {
            if since.elapsed() < KEEP && sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }
}

fn is_refused(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::ConnectionRefused)
}

async fn connect(to: SocketAddr) -> anyhow::Result<Sender> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    daemon::tasks::spawn("connection", async move {
        // Its requests say what they missed.
        drop(connection.await);
    });
    Ok(sender)
}

async fn ready(operations: SocketAddr) -> anyhow::Result<bool> {
    let stream = TcpStream::connect(operations).await?;
    let (mut sender, connection) = handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
    daemon::tasks::spawn("health check", async move { drop(connection.await) });
    let request = Request::get("/readyz").header(header::HOST, "lab.test");
    let request = request.header(header::CONNECTION, "close").body(Empty::new())?;
    Ok(sender.send_request(request).await?.status() == 200)
}

/// A request whose service takes its time.
pub struct Late {
    sender: Sender,
    key: HeaderValue,
}

impl Late {
    /// Connects, so that it is sent at once.
    pub async fn begin(gateway: SocketAddr, key: &str) -> anyhow::Result<Late> {
        Ok(Late { sender: connect(gateway).await?, key: HeaderValue::from_str(key)? })
    }

    /// Whether it has a whole answer.
    pub async fn answered(mut self) -> bool {
        let exchange = async {
            let request = Request::get(format!("/{LATE}/item"))
                .header(header::HOST, "lab.test")
                .header("x-api-key", self.key)
                .body(Empty::new())?;
            let (head, body) = self.sender.send_request(request).await?.into_parts();
            body.collect().await?;
            Ok::<_, anyhow::Error>(head.status == 200)
        };
        timeout(LATE_MAX, exchange).await.is_ok_and(|answered| answered.unwrap_or(false))
    }
}
