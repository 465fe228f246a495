//! The kill switch: while it is set nobody is in enforce. Who may set it, and what remembers it, is
//! the rim's business; here it is one flag that every decision reads.
//!
//! It takes refusals away and gives nothing else: whoever is off stays off, and keys that do not
//! open and clients who may not call are refused as ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use wire::killswitch::KillswitchValue;
use wire::rollout::Phase;

use crate::plan_book::PhaseRule;

/// The switch of an edge. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct KillSwitch(Arc<Switch>);

#[derive(Debug, Default)]
struct Switch {
    set: AtomicBool,
    told: watch::Sender<ToldSwitch>,
    /// The id of a latch that was set here and not by the control plane.
    own: Mutex<Option<String>>,
}

/// What the control plane says about the kill switch of all gateways.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToldSwitch {
    /// Nothing yet.
    #[default]
    Nothing,
    /// It is not set.
    Clear,
    /// It is.
    Set(KillswitchValue),
}

impl KillSwitch {
    /// From now on nobody is in enforce.
    pub fn set(&self) {
        self.0.set.store(true, Ordering::SeqCst);
    }

    /// From now on phases are those of the policy.
    pub fn clear(&self) {
        self.0.set.store(false, Ordering::SeqCst);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        // A decision has nothing to do with any other memory of who flipped it.
        self.0.set.load(Ordering::Relaxed)
    }

    /// What the control plane says, now and whenever that changes.
    pub fn told(&self) -> watch::Receiver<ToldSwitch> {
        self.0.told.subscribe()
    }

    /// The control plane is told that this was set here, or that nothing is.
    pub fn set_own(&self, id: Option<String>) {
        *self.0.own.lock() = id;
    }

    pub(crate) fn own(&self) -> Option<String> {
        self.0.own.lock().clone()
    }

    /// The control plane says this about it.
    pub(crate) fn tell(&self, switch: Option<KillswitchValue>) {
        let says = switch.map_or(ToldSwitch::Clear, ToldSwitch::Set);
        self.0.told.send_if_modified(|told| {
            let differs = *told != says;
            *told = says;
            differs
        });
    }

    /// What becomes of a rule under it. No revision has put the client there, so what is counted
    /// meanwhile is evidence for no rollout.
    pub(crate) fn over(&self, rule: PhaseRule) -> PhaseRule {
        match (rule.phase, self.is_set()) {
            (Phase::Enforce, true) => PhaseRule { phase: Phase::Shadow, since_revision: 0 },
            (Phase::Enforce, false) | (Phase::Off | Phase::Shadow, _) => rule,
        }
    }
}
