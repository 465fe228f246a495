//! One change of one object: taken if it passes the last door, else reported, and what was valid last
//! stays.

use std::sync::Arc;

use wire::killswitch::KillswitchValue;
use wire::policy::{Change, Object};

use super::PlanBook;

impl PlanBook {
    pub(super) fn take(&mut self, change: &Change) {
        let (kind, id) = change.object.name();
        if let Some(reason) = change.fault() {
            self.reject(kind, id, change.revision, &reason);
            return;
        }
        let was_rejected = self.rejected.remove(&(kind.to_owned(), id.to_owned())).is_some();
        match &change.object {
            Object::Plan { value: Some(plan), .. } => {
                let last_good = self.plans.get(plan.name.as_str()).cloned();
                self.put_plan(plan, last_good);
            }
            Object::Plan { id, value: None } => {
                if let Some((name, entry)) =
                    Arc::make_mut(&mut self.plans).remove_entry(id.as_str())
                {
                    self.leaving.insert(name, entry);
                }
            }
            Object::Rollout { value: Some(rollout), .. } => {
                let last_good = self.rollout.take();
                self.put_rollout(rollout, last_good);
            }
            Object::Rollout { id, value: None } => {
                self.rollout = self.rollout.take().filter(|kept| kept.value.name != *id);
            }
            Object::Killswitch { value: Some(switch), .. } => {
                self.killswitch = Some(switch.clone());
            }
            Object::Killswitch { id, value: None } => {
                self.killswitch = self.killswitch.take().filter(|kept| kept.id != *id);
            }
            Object::Client { .. } | Object::Key { .. } | Object::Unreadable { .. } => {
                if !was_rejected {
                    return;
                }
            }
        }
        self.changed_at = change.revision;
    }

    pub(super) fn put_killswitch(
        &mut self,
        switch: &KillswitchValue,
        revision: u64,
        last_good: Option<KillswitchValue>,
    ) {
        match switch.check() {
            Ok(()) => self.killswitch = Some(switch.clone()),
            Err(reason) => {
                self.reject("killswitch", &switch.id, revision, &reason);
                self.killswitch = last_good;
            }
        }
    }
}
