//! The policy of one revision: plans and the rollout, immutable once made.
//!
//! A book is built whole and swapped whole, so no request sees half of a change. The shelf never
//! goes back within a history: an older book is refused, whoever brings it. An object that fails
//! its check is left out alone and reported; its last valid version stays in force, and where
//! there never was one the plan is simply absent, which is a refusal and not "unlimited".

mod overrides; // a client's own limits, and their end

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use limiter_core::{Cost, FailurePolicy, Limits, PlanNumbers, PlanVersion};
use parking_lot::Mutex;
use wire::killswitch::KillswitchValue;
use wire::plan::{CostRule, PlanLimits, PlanSpec, PlanValue, Scope};
use wire::policy::{ClientValue, FEED_CHANGES_MAX, FeedAnswer, Rejected, Snapshot};
use wire::rollout::{Phase, RolloutValue, RuleSubject};

use crate::anonymous::Anonymous;
use crate::kill_switch::KillSwitch;
use crate::region::RegionShare;

mod change; // one object of another version
mod kept; // what of it outlives the process

pub(crate) use kept::Stamp;

/// Reports of refused objects that are kept; beyond it the newest are not reported.
const REJECTED_MAX: usize = 1_000;
/// Longest name and longest reason in a report, in characters: all of them have to fit in a call.
const REPORT_NAME_MAX: usize = 128;
const REPORT_REASON_MAX: usize = 256;
/// Shares are counted in ten-thousandths.
const WHOLE_SHARE_BP: u32 = 10_000;

/// A plan in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanEntry {
    /// Its name.
    pub name: String,
    /// What it limits.
    pub limits: PlanLimits,
    /// What shares a bucket.
    pub scope: Scope,
    /// What is admitted without a store.
    pub failure: FailurePolicy,
    /// Revision of its last valid change.
    pub revision: u64,
    region: RegionShare,
    costs: Arc<[(CostRule, Cost)]>,
    /// As a control plane told it.
    told: Option<Arc<PlanValue>>,
}

impl PlanEntry {
    /// A checked plan at a revision, as far as it is this region's.
    pub fn new(spec: &PlanSpec, revision: u64, region: RegionShare) -> PlanEntry {
        let priced = |rule: &CostRule| Cost::new(rule.cost).ok().map(|cost| (rule.clone(), cost));
        PlanEntry {
            name: spec.name.to_string(),
            limits: region.part_of(spec.limits),
            scope: spec.scope,
            failure: spec.failure,
            revision,
            region,
            costs: spec.costs.iter().filter_map(priced).collect(),
            told: None,
        }
    }

    /// Tokens that a request takes: the first rule that names route and method, else `otherwise`.
    pub fn cost_of(&self, route: &str, method: &str, otherwise: Cost) -> Cost {
        let names = |rule: &CostRule| {
            rule.route == route && rule.method.as_deref().is_none_or(|named| named == method)
        };
        self.costs.iter().find(|(rule, _)| names(rule)).map_or(otherwise, |(_, cost)| *cost)
    }

    /// The numbers for one client. Their version grows with every change of plan or client.
    pub fn numbers_for(&self, limits: Limits, client: &ClientValue, now_ms: u64) -> PlanNumbers {
        PlanNumbers { version: self.version_for(client, now_ms), limits }
    }

    pub(crate) fn version_for(&self, client: &ClientValue, now_ms: u64) -> PlanVersion {
        let PlanVersion(version) = version_at(self.revision.max(client.revision));
        PlanVersion(version.saturating_add(u64::from(overrides::has_ended(client, now_ms))))
    }

    fn same_terms(&self, other: &PlanEntry) -> bool {
        *self == PlanEntry { revision: self.revision, ..other.clone() }
    }
}

/// The plan version of a revision. The odd numbers are free for changes that come by time alone.
pub(crate) fn version_at(revision: u64) -> PlanVersion {
    PlanVersion(revision.saturating_mul(2))
}

/// A client's phase and when it entered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseRule {
    /// The phase.
    pub phase: Phase,
    /// Revision at which the rule's subject entered it; 0 without a rule.
    pub since_revision: u64,
}

impl PhaseRule {
    /// Without a rollout, and where no rule says otherwise.
    const DEFAULT: PhaseRule = PhaseRule { phase: Phase::Enforce, since_revision: 0 };
}

/// The rollout with its rules found by client in one step.
#[derive(Debug)]
struct Rollout {
    value: RolloutValue,
    clients: HashMap<String, PhaseRule>,
    all: PhaseRule,
}

impl Rollout {
    fn new(value: RolloutValue) -> Rollout {
        let mut clients = HashMap::new();
        let mut all = None;
        for rule in &value.rules {
            let entry = PhaseRule { phase: rule.phase, since_revision: rule.since_revision };
            match &rule.subject {
                RuleSubject::Client { client } => {
                    clients.entry(client.clone()).or_insert(entry);
                }
                RuleSubject::All => all = all.or(Some(entry)),
            }
        }
        Rollout { value, clients, all: all.unwrap_or(PhaseRule::DEFAULT) }
    }
}

/// Plans by name. The next book shares what did not change.
type Plans = HashMap<Arc<str>, Arc<PlanEntry>>;

/// The policy of one revision.
#[derive(Debug, Clone, Default)]
pub struct PlanBook {
    history: String,
    revision: u64,
    live_gateways: u32,
    region: RegionShare,
    plans: Arc<Plans>,
    /// Plans deleted by the last changes: still found until the next ones, so that a client that
    /// was moved off a plan in the same breath never falls between the two.
    leaving: Plans,
    rollout: Option<Arc<Rollout>>,
    killswitch: Option<KillswitchValue>,
    pepper_id: String,
    rejected: BTreeMap<(String, String), Rejected>,
    /// Revision of the last change of what is kept here.
    changed_at: u64,
}

impl PlanBook {
    /// The book of a snapshot. Where one of its objects is not valid, `before`'s version stays.
    pub fn from_snapshot(
        snapshot: &Snapshot,
        region: RegionShare,
        before: Option<&PlanBook>,
    ) -> PlanBook {
        let mut book = PlanBook {
            history: snapshot.history.clone(),
            revision: snapshot.revision,
            live_gateways: snapshot.live_gateways,
            region,
            pepper_id: snapshot.pepper_id.clone(),
            changed_at: snapshot.revision,
            ..PlanBook::default()
        };
        for plan in &snapshot.plans {
            let last_good = before.and_then(|before| before.plans.get(plan.name.as_str())).cloned();
            book.put_plan(plan, last_good);
        }
        if let Some(rollout) = &snapshot.rollout {
            book.put_rollout(rollout, before.and_then(|before| before.rollout.clone()));
        }
        if let Some(switch) = &snapshot.killswitch {
            let last_good = before.and_then(|before| before.killswitch.clone());
            book.put_killswitch(switch, snapshot.revision, last_good);
        }
        book.let_leave(before);
        book
    }

    /// The book of a file: valid as a whole, or the file would not have been taken. A plan whose
    /// terms are the same as `before` keeps its revision, so that a reload is no change of it.
    pub fn from_specs(
        history: &str,
        revision: u64,
        gateways: u32,
        region: RegionShare,
        plans: &[PlanSpec],
        before: Option<&PlanBook>,
    ) -> PlanBook {
        let kept = |spec: &PlanSpec| {
            let entry = PlanEntry::new(spec, revision, region);
            let last = before.and_then(|before| before.plans.get(entry.name.as_str()));
            match last.filter(|last| last.same_terms(&entry)) {
                Some(last) => (Arc::from(entry.name), Arc::clone(last)),
                None => (Arc::from(entry.name.as_str()), Arc::new(entry)),
            }
        };
        let mut book = PlanBook {
            history: history.to_owned(),
            revision,
            live_gateways: gateways,
            region,
            plans: Arc::new(plans.iter().map(kept).collect()),
            ..PlanBook::default()
        };
        book.let_leave(before);
        book
    }

    fn let_leave(&mut self, before: Option<&PlanBook>) {
        let gone = before.into_iter().flat_map(|before| before.plans.iter());
        let gone = gone.filter(|(name, _)| !self.plans.contains_key(*name));
        self.leaving = gone.map(|(name, entry)| (Arc::clone(name), Arc::clone(entry))).collect();
    }

    /// This book with an answer of the feed applied. Changes at or below its revision are known
    /// already and pass by; keys and clients are not kept here.
    pub fn applied(&self, answer: &FeedAnswer) -> PlanBook {
        let mut book = self.clone();
        book.leaving.clear();
        book.live_gateways = answer.live_gateways;
        for change in answer.changes.iter().filter(|change| change.revision > self.revision) {
            book.revision = book.revision.max(change.revision);
            book.take(change);
        }
        if answer.changes.len() < FEED_CHANGES_MAX {
            book.revision = book.revision.max(answer.head);
        }
        book
    }

    /// The history of its revision.
    pub fn history(&self) -> &str {
        &self.history
    }

    /// What it is as of.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Gateways that share the plans; at least 1.
    pub fn live_gateways(&self) -> u32 {
        self.live_gateways.max(1)
    }

    /// A plan by name.
    pub fn plan(&self, name: &str) -> Option<&Arc<PlanEntry>> {
        self.plans.get(name).or_else(|| self.leaving.get(name))
    }

    /// Names and revisions of the plans in force, by name.
    pub fn plans(&self) -> BTreeMap<&str, u64> {
        self.plans.values().map(|plan| (plan.name.as_str(), plan.revision)).collect()
    }

    /// The active rollout.
    pub fn rollout(&self) -> Option<&RolloutValue> {
        self.rollout.as_ref().map(|rollout| &rollout.value)
    }

    /// The kill switch of the control plane, if it is set.
    pub fn killswitch(&self) -> Option<&KillswitchValue> {
        self.killswitch.as_ref()
    }

    /// The phase of a client.
    pub fn phase_of(&self, client: &str) -> PhaseRule {
        match &self.rollout {
            None => PhaseRule::DEFAULT,
            Some(rollout) => *rollout.clients.get(client).unwrap_or(&rollout.all),
        }
    }

    /// The phase of everybody whom no own rule names.
    pub fn phase_of_all(&self) -> PhaseRule {
        self.rollout.as_ref().map_or(PhaseRule::DEFAULT, |rollout| rollout.all)
    }

    /// Whether full records are kept for every request of a client.
    pub fn samples(&self, client: &str) -> bool {
        self.rollout.as_ref().is_some_and(|rollout| {
            rollout.value.share_bp >= WHOLE_SHARE_BP || rollout.value.samples(client)
        })
    }

    /// Objects of which not the newest version is in force, because that one is not valid.
    pub fn rejected(&self) -> Vec<Rejected> {
        self.rejected.values().cloned().collect()
    }

    fn put_plan(&mut self, plan: &PlanValue, last_good: Option<Arc<PlanEntry>>) {
        match plan.check() {
            Ok(spec) => {
                let entry = PlanEntry {
                    told: Some(Arc::new(plan.clone())),
                    ..PlanEntry::new(&spec, plan.revision, self.region)
                };
                self.insert(&plan.name, Arc::new(entry));
            }
            Err(mistakes) => {
                let reason =
                    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                self.reject("plan", &plan.name, plan.revision, &reason);
                if let Some(entry) = last_good {
                    self.insert(&plan.name, entry);
                }
            }
        }
    }

    fn insert(&mut self, name: &str, entry: Arc<PlanEntry>) {
        Arc::make_mut(&mut self.plans).insert(Arc::from(name), entry);
    }

    fn put_rollout(&mut self, rollout: &RolloutValue, last_good: Option<Arc<Rollout>>) {
        match rollout.check() {
            Ok(()) => {
                self.rollout = Some(Arc::new(Rollout::new(rollout.clone())));
            }
            Err(reason) => {
                self.reject("rollout", &rollout.name, rollout.revision, &reason);
                self.rollout = last_good;
            }
        }
    }

    fn reject(&mut self, kind: &str, id: &str, revision: u64, reason: &str) {
        let first = |text: &str, most| text.chars().take(most).collect::<String>();
        let report = Rejected {
            kind: kind.to_owned(),
            id: first(id, REPORT_NAME_MAX),
            revision,
            reason: first(reason, REPORT_REASON_MAX),
        };
        let Rejected { id: named, reason, .. } = &report;
        let what = "object skipped, its last valid version stays";
        tracing::warn!(kind, id = named, revision, reason, "{what}");
        let subject = (kind.to_owned(), id.to_owned());
        if self.rejected.contains_key(&subject) || self.rejected.len() < REJECTED_MAX {
            self.rejected.insert(subject, report);
        }
        self.changed_at = self.changed_at.max(revision);
    }
}

/// What became of an offered book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is in force.
    Taken,
    /// It is older than the one in force.
    Stale,
}

/// Where the book in force stands.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    region: RegionShare,
    book: ArcSwapOption<PlanBook>,
    anonymous: ArcSwapOption<Anonymous>,
    kill_switch: KillSwitch,
    writing: Mutex<()>,
}

impl Shelf {
    /// For books at this region's share.
    pub(crate) fn new(region: RegionShare) -> Shelf {
        Shelf { region, ..Shelf::default() }
    }

    pub(crate) fn region(&self) -> RegionShare {
        self.region
    }

    /// Callers that are known by their address alone, if there may be any.
    pub(crate) fn anonymous(&self) -> Guard<Option<Arc<Anonymous>>> {
        self.anonymous.load()
    }

    pub(crate) fn set_anonymous(&self, anonymous: Option<Anonymous>) {
        self.anonymous.store(anonymous.map(Arc::new));
    }

    pub(crate) fn kill_switch(&self) -> &KillSwitch {
        &self.kill_switch
    }

    /// The phase of a client under a book, and under the kill switch.
    pub(crate) fn rule_of(&self, book: &PlanBook, client: &str) -> PhaseRule {
        self.kill_switch.over(book.phase_of(client))
    }

    /// The book in force, if any has arrived. Short-lived: never held over a wait.
    pub(crate) fn current(&self) -> Guard<Option<Arc<PlanBook>>> {
        self.book.load()
    }

    /// The same, to be held for longer.
    pub(crate) fn book(&self) -> Option<Arc<PlanBook>> {
        self.book.load_full()
    }

    /// Puts `next` in force, unless that would go back in the same history.
    pub(crate) fn offer(&self, next: PlanBook) -> Offer {
        let _one_writer = self.writing.lock();
        if let Some(current) = self.book.load().as_ref() {
            if current.history == next.history && next.revision < current.revision {
                return Offer::Stale;
            }
            if current.history != next.history {
                tracing::warn!(
                    from = current.history,
                    to = next.history,
                    revision = next.revision,
                    "the policy has a new history"
                );
            }
        }
        self.book.store(Some(Arc::new(next)));
        Offer::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::policy::Object;

    fn book(history: &str, revision: u64) -> PlanBook {
        PlanBook::from_specs(history, revision, 1, RegionShare::default(), &[], None)
    }

    #[test]
    fn the_shelf_never_goes_back_within_a_history() {
        let shelf = Shelf::default();
        assert_eq!(shelf.offer(book("a", 5)), Offer::Taken);
        assert_eq!(shelf.offer(book("a", 4)), Offer::Stale);
        assert_eq!(shelf.current().as_ref().unwrap().revision(), 5);
        assert_eq!(shelf.offer(book("b", 4)), Offer::Taken);
        assert_eq!(shelf.current().as_ref().unwrap().history(), "b");
    }

    fn answer(revision: u64, object: Object) -> FeedAnswer {
        FeedAnswer {
            history: "a".to_owned(),
            head: revision,
            live_gateways: 1,
            changes: vec![wire::policy::Change { revision, object }],
        }
    }

    #[test]
    fn a_deleted_plan_is_found_until_the_next_changes_so_that_its_clients_can_move() {
        let value = PlanValue {
            name: "pro".to_owned(),
            burst: None,
            sustained: None,
            costs: Vec::new(),
            scope: Scope::Client,
            failure: "open".to_owned(),
            unlimited: true,
            revision: 6,
        };
        let plan = |value| Object::Plan { id: "pro".to_owned(), value };
        let with = book("a", 5).applied(&answer(6, plan(Some(value))));
        let leaving = with.applied(&answer(7, plan(None)));
        assert!(leaving.plan("pro").is_some());
        assert!(leaving.plans().is_empty());
        let client = Object::Client { id: "acme".to_owned(), value: None };
        assert!(leaving.applied(&answer(8, client.clone())).plan("pro").is_none());
        let next = with.applied(&answer(7, client));
        assert!(Arc::ptr_eq(&with.plans, &next.plans), "what did not change is not copied");
    }
}
