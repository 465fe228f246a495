//! Start here: [`Edge::admit`] walks rooms ③ (identify), ④ (the limiter) and ⑤ (enforce) in
//! order, [`Edge::done`] is room ⑦.
//!
//! An edge spawns nothing itself: [`Edge::background`] gives its tasks to whoever owns the
//! process, [`Edge::finish`] ends them.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::BucketStore;
use limiter_core::{
    Basis, Clock, Contract, Cost, Decision, Limiter, Limits, PlanVersion, VersionSource, Wait,
};
use wire::key::Pepper;
use wire::plan::PlanLimits;
use wire::policy::ClientValue;
use wire::rollout::Phase;

use crate::anonymous::{self, Anonymous};
use crate::call::{Admission, AuthMode, Call, Observed, Presented, Refusal};
use crate::enforce::{self, Verdict};
use crate::identify::{self, Pass, Subject};
use crate::key_cache::{CacheBounds, KeyCache, Known};
use crate::metrics::EdgeMetrics;
use crate::plan_book::{Offer, PlanBook, PlanEntry, Shelf, version_at};
use crate::plan_source::{PolicySource, file, http};
use crate::record::sink::{Evidence, Outbox};
use crate::record::{Recorder, RecorderSettings};
use crate::region::RegionShare;
use crate::state::Keeper;
use crate::ticket::{Decided, Judged, Ticket};

mod background; // its tasks, and their end
mod renew; // what may change besides the policy
mod inspect; // how a client stands

pub use inspect::{InspectError, Inspection};

/// A background task of an edge: its name and what it does until the edge ends.
pub type Background = (&'static str, Pin<Box<dyn Future<Output = ()> + Send>>);

/// What an edge must know about itself.
#[derive(Debug, Clone)]
pub struct EdgeSettings {
    /// The gateway's id.
    pub gateway: String,
    /// Version of the program.
    pub build: String,
    /// Address of the operations port, if it may be called.
    pub ops_url: Option<String>,
    /// Names of the routes.
    pub routes: Vec<String>,
    /// What keys are hashed with.
    pub pepper: Pepper,
    /// Budget of full decision records.
    pub records_per_s: u32,
    /// Bounds of the key cache.
    pub keys: CacheBounds,
    /// The plan of callers that are known by their address alone.
    pub anonymous: Option<String>,
    /// The part of each plan that belongs to this region.
    pub region: RegionShare,
    /// Where the policy of a control plane is kept for the next start. Not kept without.
    pub state_dir: Option<PathBuf>,
    /// An exported policy, for when there is none at the start and no control plane answers.
    pub bootstrap: Option<PathBuf>,
}

/// Decides about requests and keeps what was decided.
#[derive(Debug)]
pub struct Edge<S> {
    limiter: Limiter<S>,
    clock: Arc<dyn Clock>,
    pepper: Pepper,
    versions: VersionSource,
    shelf: Arc<Shelf>,
    keys: Arc<KeyCache>,
    recorder: Arc<Recorder>,
    outbox: Option<Arc<Outbox>>,
    source: PolicySource,
    feed: Arc<http::Feed>,
    keeper: Option<Arc<Keeper>>,
    bootstrap: Option<PathBuf>,
    gateway: String,
    metrics: EdgeMetrics,
    stop: tokio::sync::watch::Sender<bool>,
}

impl<S: BucketStore> Edge<S> {
    /// An edge over a limiter. A file's policy is in force at once; a control plane's as soon as
    /// the background tasks run. Without `evidence` nothing is tallied or recorded.
    pub fn new(
        settings: EdgeSettings,
        limiter: Limiter<S>,
        clock: Arc<dyn Clock>,
        source: PolicySource,
        evidence: Option<Arc<dyn Evidence>>,
        metrics: EdgeMetrics,
    ) -> Arc<Edge<S>> {
        let versions = match source {
            PolicySource::ControlPlane(_) => VersionSource::ControlPlane,
            PolicySource::File(_) => file::VERSIONS,
        };
        let shelf = Arc::new(Shelf::new(settings.region));
        shelf.set_anonymous(settings.anonymous.clone().map(|plan| Anonymous::new(plan, versions)));
        let keys =
            Arc::new(KeyCache::new(settings.keys, versions, Arc::clone(&clock), metrics.clone()));
        let boot = format!("{:016x}", fastrand::u64(..));
        let records =
            RecorderSettings { active: evidence.is_some(), records_per_s: settings.records_per_s };
        let (recorder, records) =
            Recorder::new(records, Arc::clone(&clock), Arc::clone(&shelf), metrics.clone());
        let recorder = Arc::new(recorder);
        let outbox = evidence.map(|evidence| {
            let (gateway, boot) = (settings.gateway.clone(), boot.clone());
            Arc::new(Outbox::new(gateway, boot, evidence, Arc::clone(&recorder), records))
        });
        let edge = Arc::new(Edge {
            limiter,
            clock,
            versions,
            shelf,
            keys,
            recorder,
            outbox,
            feed: Arc::new(http::Feed::new(&settings, boot)),
            keeper: keeper(&settings, &source, &metrics),
            bootstrap: settings.bootstrap,
            gateway: settings.gateway,
            pepper: settings.pepper,
            source,
            metrics,
            stop: tokio::sync::watch::Sender::new(false),
        });
        if let PolicySource::File(policy) = &edge.source {
            edge.load_file(policy);
        }
        edge
    }

    /// Rooms ③, ④ and ⑤. Waits for the limiter, within its deadline; for an unknown key also for
    /// one look-up, within a second; for nothing else.
    pub async fn admit(&self, call: &Call<'_>) -> Admission {
        let holder = match call.route.auth {
            AuthMode::None => return Admission::Forward(self.ticket(None)),
            AuthMode::Anonymous => {
                anonymous::caller(self.shelf.anonymous().as_deref(), call.presented)
            }
            AuthMode::Key => self.key_holder(call.presented).await,
        };
        let subject = holder.and_then(|known| match self.shelf.current().as_ref() {
            Some(book) => {
                let now_ms = self.now_for(&known.client);
                Ok(Subject::new(known, book, &self.shelf, call.request_id, now_ms))
            }
            None => Err(Refusal::NoPolicy),
        });
        let subject = match subject {
            Ok(subject) => subject,
            Err(refusal) => return self.refused(refusal, None),
        };
        if let Err(refusal) = identify::may_call(&subject.known) {
            let decided = decided(subject, call, Cost::ONE, PlanVersion(0), Judged::NotAsked);
            return self.refused(refusal, Some(decided));
        }
        self.decide(call, subject).await
    }

    async fn key_holder(&self, presented: Presented<'_>) -> Result<Arc<Known>, Refusal> {
        if self.shelf.current().is_none() {
            // Whoever holds it, there are no terms: nobody needs to be asked, or to wait.
            return Err(Refusal::NoPolicy);
        }
        let now_ms = self.clock.now().us() / 1_000;
        match identify::holder(presented, &self.keys, &self.pepper, now_ms).await {
            // Ours is the mistake, so it is not told as the caller's.
            Err(Refusal::KeyInvalid) if self.feed.is_blind() => Err(Refusal::NoPolicy),
            holder => holder,
        }
    }

    /// The time in milliseconds, where a client's terms depend on it.
    fn now_for(&self, client: &ClientValue) -> u64 {
        client.overridden.as_ref().map_or(0, |_own| self.clock.now().us() / 1_000)
    }

    /// Rooms ④ and ⑤ for a known subject.
    async fn decide(&self, call: &Call<'_>, subject: Subject) -> Admission {
        let phase = subject.rule.phase;
        let (Phase::Shadow | Phase::Enforce, Some(plan)) = (phase, subject.plan.clone()) else {
            return self.without_numbers(call, subject);
        };
        let cost = plan.cost_of(&call.route.name, call.method, call.route.cost);
        let limits = match plan.limits {
            PlanLimits::Limited(limits) => limits,
            PlanLimits::Unlimited => {
                let version = plan.version_for(&subject.known.client, subject.now_ms);
                self.metrics.unlimited(phase);
                let decided = decided(subject, call, cost, version, Judged::Unlimited);
                return Admission::Forward(self.ticket(Some(decided)));
            }
        };
        let contract = contract(&subject, &plan, limits, call);
        let mut decision = self.limiter.decide(&contract, cost).await;
        self.metrics.decided(&decision, phase);
        let verdict = enforce::verdict(phase, &decision, &limits, cost, contract.failure);
        if phase == Phase::Enforce && decision.basis == Basis::Lease {
            decision.standing = decision.standing.or_else(|| self.limiter.standing(&contract.key));
        }
        let turn = self.turn(&contract, cost, &decision, verdict);
        let judged = Judged::Decided(decision);
        let decided = decided(subject, call, cost, contract.plan.version, judged);
        let decided = Decided { turn, ..decided };
        match verdict {
            Verdict::Forward => Admission::Forward(self.ticket(Some(decided))),
            Verdict::Refuse(refusal) => self.refused(refusal, Some(decided)),
        }
    }

    /// Only who is really refused stands in the queue: shadow changes nothing for others.
    fn turn(
        &self,
        contract: &Contract,
        cost: Cost,
        decision: &Decision,
        verdict: Verdict,
    ) -> Option<Duration> {
        match (verdict, decision.basis) {
            (
                Verdict::Refuse(Refusal::Denied { wait: Wait::Until(base) }),
                Basis::Store | Basis::Lease,
            ) => Some(self.limiter.turn(contract, cost, base)),
            (Verdict::Refuse(_) | Verdict::Forward, _) => None,
        }
    }

    /// Phase off is not evaluated. Without a valid plan there is no opinion: shadow stays
    /// invisible, enforce refuses, for absent never means unlimited.
    fn without_numbers(&self, call: &Call<'_>, subject: Subject) -> Admission {
        let (judged, refuse) = match subject.rule.phase {
            Phase::Off => (Judged::NotAsked, false),
            Phase::Shadow => (Judged::NoNumbers, false),
            Phase::Enforce => (Judged::NoNumbers, true),
        };
        let decided = decided(subject, call, call.route.cost, PlanVersion(0), judged);
        if refuse {
            self.refused(Refusal::PlanInvalid, Some(decided))
        } else {
            Admission::Forward(self.ticket(Some(decided)))
        }
    }

    fn refused(&self, refusal: Refusal, decided: Option<Decided>) -> Admission {
        self.metrics.refused(&refusal);
        let ticket = decided.map(|decided| self.ticket(Some(Decided { refused: true, ..decided })));
        Admission::Refuse(refusal, ticket)
    }

    fn ticket(&self, decided: Option<Decided>) -> Ticket {
        Ticket::new(decided, Arc::clone(&self.recorder))
    }

    /// What a connection that is to outlive its request came in with.
    pub fn pass(&self, presented: Presented<'_>) -> Pass {
        Pass::of(presented, &self.pepper)
    }

    /// Whether a connection may stay: its key still opens and its client may still call. Costs a
    /// look into the cache, and waits for at most one look-up if the key has left it.
    pub async fn may_stay(&self, pass: Pass) -> bool {
        // Where keys cannot be told from invented ones, what was good stays good.
        self.feed.is_blind() || pass.is_good(&self.keys, self.clock.now().us() / 1_000).await
    }

    /// Room ⑦: the request has ended. Never waits and cannot fail.
    pub fn done(&self, ticket: Ticket, observed: Observed) {
        ticket.finish(observed);
    }

    /// Puts another version of the file in force, whole. Older than the one in force: nothing.
    pub fn load_file(&self, policy: &file::FilePolicy) -> Offer {
        let book = {
            let before = self.shelf.current();
            PlanBook::from_specs(
                file::HISTORY,
                policy.revision,
                policy.gateways,
                self.shelf.region(),
                &policy.plans,
                before.as_deref(),
            )
        };
        let gateways = book.live_gateways();
        let found = policy.found(|id| self.keys.client(id));
        let offer = self.shelf.offer(book);
        if offer == Offer::Taken {
            self.limiter.set_fleet(gateways);
            self.keys.replace_all(found);
            self.metrics.revision.set(signed(policy.revision));
        }
        offer
    }

    /// Whether a policy has arrived, and keys can be told from invented ones.
    pub fn is_ready(&self) -> bool {
        self.shelf.current().is_some() && !self.feed.is_blind()
    }

    /// The policy revision in force; 0 before there is one.
    pub fn revision(&self) -> u64 {
        self.shelf.current().as_ref().map_or(0, |book| book.revision())
    }

    /// The policy in force.
    pub fn book(&self) -> Option<Arc<PlanBook>> {
        self.shelf.current().clone()
    }

    /// Time since the control plane was last heard; `None` for a file, and before the first word.
    pub fn policy_age(&self) -> Option<Duration> {
        match self.source {
            PolicySource::File(_) => None,
            PolicySource::ControlPlane(_) => self.feed.age(self.clock.now()),
        }
    }

    /// The metrics.
    pub fn metrics(&self) -> &EdgeMetrics {
        &self.metrics
    }
}

/// A folder that cannot be had is no reason not to serve.
fn keeper(
    settings: &EdgeSettings,
    source: &PolicySource,
    metrics: &EdgeMetrics,
) -> Option<Arc<Keeper>> {
    let folder = match source {
        PolicySource::ControlPlane(_) => settings.state_dir.as_deref()?,
        PolicySource::File(_) => return None,
    };
    let keeper = Keeper::at(folder, metrics.clone());
    keeper.map(Arc::new).inspect_err(|error| {
        let folder = folder.display().to_string();
        tracing::error!(folder, %error, "without a state folder a restart needs the control plane");
    }).ok()
}

fn contract(subject: &Subject, plan: &PlanEntry, limits: Limits, call: &Call<'_>) -> Contract {
    let client = &subject.known.client;
    Contract {
        key: subject.known.bucket(plan.scope),
        plan: plan.numbers_for(limits, client, subject.now_ms),
        reset: version_at(client.reset_revision),
        failure: call.route.failure.unwrap_or(plan.failure),
    }
}

fn decided(
    subject: Subject,
    call: &Call<'_>,
    cost: Cost,
    version: PlanVersion,
    judged: Judged,
) -> Decided {
    Decided {
        known: subject.known,
        plan: subject.plan,
        route: Arc::clone(call.route),
        rule: subject.rule,
        cost,
        version,
        judged,
        refused: false,
        turn: None,
        revision: subject.revision,
        record: subject.record,
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
