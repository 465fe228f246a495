//! A Cluster: which node has which slot, kept up to date off the request path.
//!
//! A redirection means that nothing was done, so such a call is sent once more where it belongs;
//! nothing else ever is. What nodes say of the map is believed only as far as it works: a slot
//! stays with a node that answers until the one named instead of it answers too. Each node has its
//! own links and breakers, so a lost node costs its own keys only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::address::HostPort;
use super::dial::{DialError, Dialler, Wanted};
use super::node::{Failed, Node, Redirect, Shared};
use super::slot_map::SlotMap;
use super::slots::{self, Range};
use crate::call::{Reply, Request};
use crate::key::BucketKey;
use crate::store::StoreError;

/// Between two questions while all is well, before jitter.
const EASY: Duration = Duration::from_secs(10);
/// The same after something went wrong: doubles up to the second.
const URGENT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));
/// However many calls complain, questions are at least this far apart, at first and at last.
const APART: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// For a dial and an answer.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Nodes asked, one after the other, until one gives a map.
const ASKED_MAX: usize = 4;
/// Nodes that callers were sent to and nobody had told of yet.
const HINTS_MAX: usize = 16;

/// The nodes of a Cluster and their slots.
pub(super) struct Cluster {
    map: ArcSwap<SlotMap>,
    /// Taken to change the map; never by a call, but for the one slot that it was sent away from.
    changing: Mutex<()>,
    seeds: Vec<HostPort>,
    dialler: Arc<Dialler>,
    shared: Arc<Shared>,
    /// The map should be looked at again.
    wish: Arc<Notify>,
    /// A link came up.
    linked: Arc<Notify>,
    hints: Mutex<Vec<HostPort>>,
    trouble: ArcSwapOption<String>,
    retired_openings: AtomicU64,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<HostPort>, dialler: Arc<Dialler>, shared: Arc<Shared>) -> Cluster {
        Cluster {
            map: ArcSwap::from_pointee(SlotMap::default()),
            changing: Mutex::new(()),
            seeds,
            dialler,
            shared,
            wish: Arc::new(Notify::new()),
            linked: Arc::new(Notify::new()),
            hints: Mutex::new(Vec::new()),
            trouble: ArcSwapOption::empty(),
            retired_openings: AtomicU64::new(0),
        }
    }

    pub(super) async fn call(
        &self,
        key: &BucketKey,
        request: &Request,
        longest: Duration,
    ) -> Result<Reply, StoreError> {
        let slot = slots::slot_of(key);
        let Some(mut node) = self.map.load().owner(slot).cloned() else {
            self.wish.notify_one();
            return Err(StoreError::Unreachable("no node is known for this slot".into()));
        };
        let started = Instant::now();
        let (mut asking, mut moved) = (false, false);
        loop {
            let left = longest.saturating_sub(started.elapsed());
            let redirect = match node.call(key, request, asking, left).await {
                Ok(reply) => return Ok(reply),
                Err(Failed::Redirected(redirect)) => redirect,
                Err(Failed::Store(error)) => {
                    self.complain(&error);
                    return Err(error);
                }
            };
            // Once each, and never back: whoever is asked by such a word answers, or is wrong.
            if asking || (moved && !redirect.ask) {
                self.wish.notify_one();
                return Err(redirect.refused());
            }
            let Some(next) = self.follow(slot, &redirect) else { return Err(redirect.refused()) };
            self.shared.counters.redirects.fetch_add(1, Ordering::Relaxed);
            node = next;
            (asking, moved) = (redirect.ask, true);
        }
    }

    /// Grows when the slot's node changes, and when that node restarts.
    pub(super) fn epoch(&self, key: &BucketKey) -> u64 {
        let slot = slots::slot_of(key);
        let map = self.map.load();
        map.epoch(slot).max(map.owner(slot).map_or(0, |node| node.epoch()))
    }

    pub(super) fn is_answering(&self) -> bool {
        self.map.load().nodes().any(|(_, node)| node.is_answering())
    }

    pub(super) fn trouble(&self) -> Option<Arc<String>> {
        let of_nodes = self.map.load().nodes().find_map(|(_, node)| node.trouble());
        self.trouble.load_full().or(of_nodes)
    }

    pub(super) fn openings(&self) -> u64 {
        let present: u64 = self.map.load().nodes().map(|(_, node)| node.openings()).sum();
        present + self.retired_openings.load(Ordering::Relaxed)
    }

    pub(super) async fn shut_down(&self) {
        let map = self.map.swap(Arc::new(SlotMap::default()));
        for (_, node) in map.nodes() {
            node.shut_down().await;
        }
    }

    fn complain(&self, error: &StoreError) {
        match error {
            StoreError::Tripped { .. } | StoreError::Unreachable(_) | StoreError::Lost(_) => {
                self.wish.notify_one();
            }
            StoreError::Refused { .. } => {}
        }
    }

    /// The node that a call was sent to, if it is known. Whether it can be called now it tells
    /// itself: a redirection to a silent node is no refusal.
    fn follow(&self, slot: u16, redirect: &Redirect) -> Option<Arc<Node>> {
        self.wish.notify_one();
        let to = redirect.to.as_ref()?;
        let found = self.map.load().node(to).cloned();
        let Some(node) = found else {
            let mut hints = self.hints.lock();
            if hints.len() < HINTS_MAX && !hints.contains(to) {
                hints.push(to.clone());
            }
            return None;
        };
        if !redirect.ask && node.is_answering() {
            let _changing = self.changing.lock();
            let map = self.map.load_full();
            // Another call may have been told the same, or somebody newer something else.
            let is_of_speaker = map.owner_address(slot) == redirect.by.as_ref();
            if is_of_speaker && let Some(next) = map.moved(slot, to, self.shared.next_epoch()) {
                self.map.store(Arc::new(next));
            }
        }
        Some(node)
    }

    /// Keeps the map up to date.
    pub(super) async fn run(self: Arc<Cluster>) {
        let (mut apart, mut urgent) = (APART.0, URGENT.0);
        loop {
            let (settled, changed) = self.refresh().await;
            if settled {
                urgent = URGENT.0;
                // Complaints that no new map answers are heard less and less often.
                apart = if changed { APART.0 } else { (2 * apart).min(APART.1) };
                sleep(jittered(apart)).await;
                let _either = timeout(jittered(EASY), self.wish.notified()).await;
            } else {
                // Complaints are no news now; a link that comes up is.
                apart = APART.0;
                sleep(jittered(apart)).await;
                let _either = timeout(jittered(urgent), self.linked.notified()).await;
                urgent = (2 * urgent).min(URGENT.1);
            }
        }
    }

    /// Asks for the map and takes what is good of it: whether every slot has a node that answers
    /// now, and whether anything is new.
    async fn refresh(&self) -> (bool, bool) {
        let ranges = self.ask_somebody().await;
        let hints = std::mem::take(&mut *self.hints.lock());
        let new_node = |address: &HostPort| {
            let signals = (Arc::clone(&self.wish), Arc::clone(&self.linked));
            let target = Some(address.clone());
            Arc::new(Node::new(target, &self.dialler, Wanted::Any, signals, &self.shared))
        };
        let _changing = self.changing.lock();
        let old = self.map.load_full();
        let epoch = self.shared.next_epoch();
        let next = old.merged(&ranges.unwrap_or_default(), &hints, epoch, new_node);
        for (address, node) in old.nodes() {
            if next.node(address).is_none() {
                self.retired_openings.fetch_add(node.openings(), Ordering::Relaxed);
                node.stop();
            }
        }
        let outcome = (next.is_settled(), next.newest_epoch() == epoch);
        self.map.store(Arc::new(next));
        outcome
    }

    /// The first usable answer of a few nodes: linked ones in random order, then seeds.
    async fn ask_somebody(&self) -> Option<Vec<Range>> {
        let mut linked: Vec<_> = {
            let map = self.map.load();
            let nodes = map.nodes().filter(|(_, node)| node.is_answering());
            nodes.filter_map(|(at, node)| Some((at.clone(), Some(node.connection()?)))).collect()
        };
        fastrand::shuffle(&mut linked);
        linked.truncate(ASKED_MAX / 2);
        let mut seeds: Vec<_> = self.seeds.iter().map(|seed| (seed.clone(), None)).collect();
        fastrand::shuffle(&mut seeds);
        for (at, connection) in linked.into_iter().chain(seeds).take(ASKED_MAX) {
            let asked = async {
                let mut connection = match connection {
                    Some(connection) => connection,
                    None => self.dialler.open(&at).await?,
                };
                let mut words = redis::cmd("CLUSTER");
                Ok(words.arg("SLOTS").query_async::<redis::Value>(&mut connection).await?)
            };
            let answer = timeout(ANSWER_MAX, asked).await.unwrap_or(Err(DialError::TimedOut));
            let trouble = match answer {
                Ok(value) => match slots::read(&value, &at) {
                    Some(ranges) => {
                        self.trouble.store(None);
                        return Some(ranges);
                    }
                    None => "it knows no slots, or says nonsense".to_owned(),
                },
                Err(error) => error.to_string(),
            };
            self.trouble.store(Some(Arc::new(format!("{at}: {trouble}"))));
        }
        None
    }
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.7 + 0.6 * fastrand::f64())
}
