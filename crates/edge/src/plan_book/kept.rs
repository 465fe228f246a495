//! What of a book outlives the process: the last valid version of everything, as it was told, and
//! the reports of what is not valid.

use wire::policy::Snapshot;

use super::PlanBook;
use crate::region::RegionShare;
use crate::state::KeptPolicy;

/// Two books with the same stamp hold the same, whatever their revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    history: String,
    changed_at: u64,
    live_gateways: u32,
}

impl PlanBook {
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            history: self.history.clone(),
            changed_at: self.changed_at,
            live_gateways: self.live_gateways,
        }
    }

    /// For the disk.
    pub(crate) fn kept(&self) -> KeptPolicy {
        let told = self.plans.values().filter_map(|plan| plan.told.as_deref());
        KeptPolicy {
            policy: Snapshot {
                history: self.history.clone(),
                revision: self.revision,
                pepper_id: self.pepper_id.clone(),
                live_gateways: self.live_gateways,
                plans: told.cloned().collect(),
                rollout: self.rollout.as_ref().map(|rollout| rollout.value.clone()),
                killswitch: self.killswitch.clone(),
            },
            rejected: self.rejected(),
        }
    }

    /// From the disk. It may be known to hold for a later revision than it was written at.
    pub(crate) fn from_kept(kept: KeptPolicy, region: RegionShare, holds_at: u64) -> PlanBook {
        let mut book = PlanBook::from_snapshot(&kept.policy, region, None);
        book.revision = book.revision.max(holds_at);
        for report in kept.rejected {
            book.rejected.insert((report.kind.clone(), report.id.clone()), report);
        }
        book
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;
    use wire::policy::FeedAnswer;

    fn same(one: &PlanBook, other: &PlanBook) -> bool {
        let versions = |book: &PlanBook| {
            let mut plans: Vec<_> = book.plans.values().map(Arc::clone).collect();
            plans.sort_by(|one, other| one.name.cmp(&other.name));
            plans
        };
        versions(one) == versions(other) && one.rejected() == other.rejected()
    }

    #[test]
    fn the_last_valid_versions_come_back_with_the_reports_of_the_others() {
        let snapshot = json!({
            "history": "h", "revision": 3, "pepper_id": "p", "live_gateways": 2,
            "plans": [
                { "name": "pro", "burst": { "capacity": 9, "tokens": 1, "per_us": 1000 },
                  "sustained": null, "failure": "open", "revision": 2 },
            ],
            "rollout": null, "killswitch": { "id": "ks-1", "set_at": 5 },
        });
        let change = |revision: u64, kind: &str, id: &str, value: serde_json::Value| json!({ "revision": revision, "object": { "kind": kind, "id": id, "value": value } });
        let changes = json!({
            "history": "h", "head": 6, "live_gateways": 2,
            "changes": [
                change(4, "plan", "pro", json!({ "name": "pro", "failure": "open", "revision": 4,
                    "burst": { "capacity": 0, "tokens": 1, "per_us": 1 }, "sustained": null })),
                change(5, "key", "k1", json!("no key")),
            ],
        });
        let region = RegionShare::default();
        let first =
            PlanBook::from_snapshot(&serde_json::from_value(snapshot).unwrap(), region, None);
        let answer: FeedAnswer = serde_json::from_value(changes).unwrap();
        let book = first.applied(&answer);
        assert_ne!(first.stamp(), book.stamp());
        assert_eq!(book.rejected().len(), 2, "{:?}", book.rejected());
        let again = PlanBook::from_kept(book.kept(), region, 0);
        assert!(same(&book, &again), "{book:?} is not {again:?}");
        assert_eq!((again.revision(), again.plan("pro").unwrap().revision), (6, 2));
        assert_eq!(again.killswitch().unwrap().id, "ks-1");
        assert_eq!(PlanBook::from_kept(book.kept(), region, 9).revision(), 9);
    }
}
