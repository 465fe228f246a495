//! Follows a control plane: the snapshot at first and whenever changes may have been missed, then
//! the feed, one call after the other, each saying which revision is in force here.
//!
//! The other side holds a call back until something has changed, so an idle gateway costs one call
//! in ten seconds and a change arrives at once; many changes cost one call a second, and a backlog is
//! fetched call after call. Nothing here is
//! on the path of a request: while the other side is away the last good policy stays, however old
//! it gets.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::{Clock, Timestamp};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use wire::key::KeyHash;
use wire::policy::{
    FEED_CHANGES_MAX, FEED_WAIT_MS_MAX, FeedAnswer, FeedRequest, LOOKUP_HASHES_MAX, LookupAnswer,
    LookupRequest, Rejected, Snapshot,
};

use super::pace::{BACKOFF, Pace, jittered};
use super::{ControlPlane, FeedError};
use crate::edge::EdgeSettings;
use crate::key_cache::{AsOf, KeyCache};
use crate::metrics::EdgeMetrics;
use crate::plan_book::{Offer, PlanBook, Shelf};
use crate::state::Keeper;

/// A call that is not answered this long after it should have been is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A gateway's side of the conversation.
#[derive(Debug)]
pub(crate) struct Feed {
    introduction: Mutex<FeedRequest>,
    /// Own clock, when the other side was last heard; 0 before that.
    heard_us: AtomicU64,
    wrong_pepper: Mutex<Option<Rejected>>,
    /// There was a time when the pepper was right.
    knew_keys: AtomicBool,
    /// Keys of which something was told that does not read: what holds is asked for.
    unclear: Mutex<Vec<KeyHash>>,
}

/// Where news is put in force.
pub(crate) struct Target<'a> {
    pub(crate) shelf: &'a Arc<Shelf>,
    pub(crate) keys: &'a Arc<KeyCache>,
    /// Without one everything is forgotten at the end.
    pub(crate) keeper: Option<&'a Arc<Keeper>>,
    /// A policy for when there is no other.
    pub(crate) bootstrap: Option<&'a Path>,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) pepper_id: String,
    pub(crate) metrics: &'a EdgeMetrics,
    pub(crate) set_fleet: &'a (dyn Fn(u32) + Send + Sync),
}

/// How a book that comes into force stands to what the control plane says now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It is just that.
    Newest,
    /// It is from a disk or a file, or more is waiting: what has been said since is not known.
    Older,
}

/// What one round of the conversation came to.
enum Round {
    /// Go on with the feed at once.
    Feed,
    /// Changes may be missed: after a moment, read the snapshot.
    Snapshot,
    /// It failed: the same again, after a while.
    Pause,
}

impl Feed {
    pub(crate) fn new(settings: &EdgeSettings, boot: String) -> Feed {
        let introduction = FeedRequest {
            gateway: settings.gateway.clone(),
            boot,
            build: settings.build.clone(),
            ops_url: settings.ops_url.clone(),
            routes: settings.routes.clone(),
            history: String::new(),
            after: 0,
            wait_ms: FEED_WAIT_MS_MAX,
            applied: 0,
            rejected: Vec::new(),
            killswitch: None,
        };
        Feed {
            introduction: Mutex::new(introduction),
            heard_us: AtomicU64::new(0),
            wrong_pepper: Mutex::default(),
            knew_keys: AtomicBool::new(false),
            unclear: Mutex::default(),
        }
    }

    /// The next call names these routes.
    pub(crate) fn set_routes(&self, routes: Vec<String>) {
        self.introduction.lock().routes = routes;
    }

    /// What a restart begins with was heard at this time, and its keys can be told from others.
    pub(super) fn was_heard(&self, at_ms: u64, target: &Target<'_>) {
        if let Some(keeper) = target.keeper {
            keeper.heard(at_ms);
        }
        self.heard_us.store(at_ms.saturating_mul(1_000), Ordering::Relaxed);
        self.knew_keys.store(true, Ordering::Relaxed);
    }

    /// Time since the other side was last heard.
    pub(crate) fn age(&self, now: Timestamp) -> Option<Duration> {
        let heard = self.heard_us.load(Ordering::Relaxed);
        (heard > 0).then(|| now.since(Timestamp::from_us(heard)))
    }

    /// Whether every key looks invented, because of the pepper, and has from the start. One that
    /// became wrong later is another matter: the keys known by then are still good.
    pub(crate) fn is_blind(&self) -> bool {
        !self.knew_keys.load(Ordering::Relaxed) && self.wrong_pepper.lock().is_some()
    }

    /// Keeps `target` current until `stop`.
    pub(crate) async fn follow(
        &self,
        plane: &dyn ControlPlane,
        target: &Target<'_>,
        mut stop: watch::Receiver<bool>,
    ) {
        tokio::select! {
            _ended = stop.wait_for(|stopped| *stopped) => {}
            () = self.converse(plane, target) => {}
        }
    }

    async fn converse(&self, plane: &dyn ControlPlane, target: &Target<'_>) {
        let mut resync = !self.restore(target).await;
        let mut bootstrap = target.bootstrap;
        let mut pause = *BACKOFF.start();
        let mut pace = Pace::new(Instant::now());
        loop {
            let round = if resync {
                self.resync(plane, target).await
            } else {
                self.one_feed(plane, target, &mut pace).await
            };
            match round {
                Round::Feed => {
                    // Snapshots that lead nowhere are to become rare.
                    if !resync {
                        pause = *BACKOFF.start();
                    }
                    resync = false;
                    continue;
                }
                Round::Snapshot => resync = true,
                Round::Pause => {
                    target.keys.set_feed_alive(false);
                    if target.shelf.current().is_none()
                        && let Some(file) = bootstrap.take()
                    {
                        self.bootstrap(file, target).await;
                    }
                }
            }
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(*BACKOFF.end());
        }
    }

    /// The snapshot, and then every key that was known before it, asked for again.
    async fn resync(&self, plane: &dyn ControlPlane, target: &Target<'_>) -> Round {
        let snapshot = match timeout(PATIENCE, plane.snapshot()).await {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(error)) => {
                tracing::warn!(%error, cause = ?std::error::Error::source(&error), "no snapshot");
                return Round::Pause;
            }
            Err(_elapsed) => {
                tracing::warn!("the snapshot was not answered in time");
                return Round::Pause;
            }
        };
        self.check_pepper(&snapshot, target);
        let shelf = target.shelf;
        let book = PlanBook::from_snapshot(&snapshot, shelf.region(), shelf.current().as_deref());
        if self.put_in_force(book, News::Newest, target) == Offer::Stale {
            tracing::warn!(revision = snapshot.revision, "a snapshot of the past was not taken");
            return Round::Pause;
        }
        target.keys.begin_after(snapshot.revision);
        let known = target.keys.hashes();
        let asked = self.ask_again(plane, target, &known, |answer, _| {
            // An answer from before the snapshot would bring back what has ended since.
            let current = snapshot.revision <= answer.revision;
            if current {
                target.keys.reconcile(answer);
            }
            current
        });
        if !asked.await {
            return Round::Pause;
        }
        self.unclear.lock().clear();
        let (history, revision) = (snapshot.history, snapshot.revision);
        tracing::info!(revision, history, "policy in force");
        target.keys.in_step(AsOf { history, revision });
        self.heard(target);
        self.save(target).await;
        Round::Feed
    }

    /// Asks who holds these keys, some at a time; whether all of it was answered and taken.
    async fn ask_again(
        &self,
        plane: &dyn ControlPlane,
        target: &Target<'_>,
        hashes: &[KeyHash],
        take: impl Fn(LookupAnswer, &[KeyHash]) -> bool,
    ) -> bool {
        for hashes in hashes.chunks(LOOKUP_HASHES_MAX) {
            let request = LookupRequest { hashes: hashes.to_vec() };
            target.keys.look_up_in_turn().await;
            let taken = match timeout(PATIENCE, plane.lookup(&request)).await {
                Ok(Ok(answer)) => take(answer, hashes),
                Ok(Err(_)) | Err(_) => false,
            };
            if !taken {
                tracing::warn!("known keys could not be asked for again");
                return false;
            }
        }
        true
    }

    /// What is told of keys that something unreadable was said about.
    async fn clear_up(&self, plane: &dyn ControlPlane, target: &Target<'_>) {
        let unclear = self.unclear.lock().clone();
        let take = |answer, asked: &[KeyHash]| target.keys.take_again(answer, asked);
        if !unclear.is_empty() && self.ask_again(plane, target, &unclear, take).await {
            self.unclear.lock().retain(|hash| !unclear.contains(hash));
        }
    }

    /// Has what is in force written down, so that it can be acknowledged.
    async fn save(&self, target: &Target<'_>) {
        if let (Some(keeper), Some(book)) = (target.keeper, target.shelf.book()) {
            keeper.save_now(&book).await;
        }
    }

    async fn one_feed(
        &self,
        plane: &dyn ControlPlane,
        target: &Target<'_>,
        pace: &mut Pace,
    ) -> Round {
        sleep_until(pace.next(Instant::now())).await;
        let Some(book) = target.shelf.book() else { return Round::Snapshot };
        self.clear_up(plane, target).await;
        let wait = jittered(Duration::from_millis(FEED_WAIT_MS_MAX * 9 / 10));
        let request = self.request(&book, wait, target);
        let asked = Instant::now();
        pace.begin(asked);
        let answer = tokio::select! {
            answer = timeout(wait + PATIENCE, plane.feed(&request)) => answer,
            // What was not on disk is now: say so at once.
            () = saved(target, &book), if request.applied < book.revision() => return Round::Feed,
        };
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(FeedError::HistoryGone)) => {
                pace.took(FEED_CHANGES_MAX, Instant::now(), fastrand::f64());
                return Round::Snapshot;
            }
            Ok(Err(FeedError::Away(error))) => {
                tracing::warn!(%error, "no answer from the feed");
                return Round::Pause;
            }
            Err(_elapsed) => {
                tracing::warn!("the feed was not answered in time");
                return Round::Pause;
            }
        };
        if answer.history != book.history() {
            return Round::Snapshot;
        }
        if answer.head < book.revision() {
            tracing::warn!(head = answer.head, ours = book.revision(), "the feed went back");
            return Round::Pause;
        }
        self.heard(target);
        let revision = self.apply(&book, &answer, target);
        let left = answer.head.saturating_sub(revision);
        if left > 0 && book.revision() < revision {
            // The rest first: it is acknowledged with that.
            pace.took_full(left, Instant::now(), fastrand::f64());
            return Round::Feed;
        }
        self.save(target).await;
        pace.took(answer.changes.len(), Instant::now(), fastrand::f64());
        if answer.changes.is_empty() && asked.elapsed() < *BACKOFF.start() {
            // The other side does not hold calls back: do not let it spin.
            sleep(jittered(*BACKOFF.start())).await;
        }
        Round::Feed
    }

    fn request(&self, book: &PlanBook, wait: Duration, target: &Target<'_>) -> FeedRequest {
        FeedRequest {
            history: book.history().to_owned(),
            after: book.revision(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(FEED_WAIT_MS_MAX),
            applied: match target.keeper {
                Some(keeper) => keeper.acknowledged(book),
                None => book.revision(),
            },
            rejected: self.rejected(book),
            killswitch: target.shelf.kill_switch().own(),
            ..self.introduction.lock().clone()
        }
    }

    /// Plans first, then keys and clients: a client never meets a plan that is not there yet. Which
    /// revision is in force then.
    fn apply(&self, book: &PlanBook, answer: &FeedAnswer, target: &Target<'_>) -> u64 {
        debug_assert!(answer.changes.len() <= FEED_CHANGES_MAX, "the bound of one answer");
        let next = book.applied(answer);
        let revision = next.revision();
        let news = if revision < answer.head { News::Older } else { News::Newest };
        self.put_in_force(next, news, target);
        let unclear = target.keys.apply(&answer.changes, revision);
        self.unclear.lock().extend(unclear);
        revision
    }

    pub(super) fn put_in_force(&self, book: PlanBook, news: News, target: &Target<'_>) -> Offer {
        let (revision, gateways) = (book.revision(), book.live_gateways());
        let switch = book.killswitch().cloned();
        let rejected = self.rejected(&book);
        let before = target.shelf.book().map(|book| self.rejected(&book)).unwrap_or_default();
        let before: HashSet<_> = before.iter().map(parts).collect();
        let skipped = rejected.iter().filter(|report| !before.contains(&parts(report))).count();
        let offer = target.shelf.offer(book);
        if offer == Offer::Taken {
            target.metrics.objects_skipped.inc_by(skipped as u64);
            (target.set_fleet)(gateways);
            // It may have been set since; that it was cleared since is safe not to know.
            if news == News::Newest || switch.is_some() {
                target.shelf.kill_switch().tell(switch);
            }
            target.metrics.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
            let rejected = i64::try_from(rejected.len()).unwrap_or(i64::MAX);
            target.metrics.objects_rejected.set(rejected);
        }
        offer
    }

    fn heard(&self, target: &Target<'_>) {
        let now_us = target.clock.now().us().max(1);
        self.heard_us.store(now_us, Ordering::Relaxed);
        if let Some(keeper) = target.keeper {
            keeper.heard(now_us / 1_000);
        }
        target.metrics.policy_age_seconds.set(0);
        target.keys.set_feed_alive(true);
    }

    /// A copy of another pepper makes every key look invented: say so where operators look.
    fn check_pepper(&self, snapshot: &Snapshot, target: &Target<'_>) {
        let theirs = &snapshot.pepper_id;
        let wrong = *theirs != target.pepper_id;
        if wrong {
            tracing::error!(
                ours = target.pepper_id,
                theirs,
                "the pepper differs from the control plane's: no key will be recognised"
            );
        }
        self.knew_keys.fetch_or(!wrong, Ordering::Relaxed);
        *self.wrong_pepper.lock() = wrong.then(|| Rejected {
            kind: "pepper".to_owned(),
            id: theirs.clone(),
            revision: snapshot.revision,
            reason: format!("this gateway's pepper is {}", target.pepper_id),
        });
    }

    fn rejected(&self, book: &PlanBook) -> Vec<Rejected> {
        let mut rejected = book.rejected();
        rejected.extend(self.wrong_pepper.lock().clone());
        rejected
    }
}

fn parts(report: &Rejected) -> (&str, &str, u64, &str) {
    (&report.kind, &report.id, report.revision, &report.reason)
}

/// Waits until a book is on disk.
async fn saved(target: &Target<'_>, book: &PlanBook) {
    match target.keeper {
        Some(keeper) => keeper.saved_at(book).await,
        None => std::future::pending().await,
    }
}
