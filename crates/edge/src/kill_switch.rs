//! The kill switch: while it is set nobody is in enforce. Who may set it, and what remembers it, is
//! the rim's business; here it is one flag that every decision reads.
//!
//! It takes refusals away and gives nothing else: whoever is off stays off, and keys that do not
//! open and clients who may not call are refused as ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wire::rollout::Phase;

use crate::plan_book::PhaseRule;

/// The switch of an edge. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct KillSwitch(Arc<AtomicBool>);

impl KillSwitch {
    /// From now on nobody is in enforce.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// From now on phases are those of the policy.
    pub fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        // A decision has nothing to do with any other memory of who flipped it.
        self.0.load(Ordering::Relaxed)
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
