//! Whether a run kept what is promised.

use super::faults::Fault;
use super::ideal::float;
use super::play::Run;
use super::scenario::Kind;
use crate::decision::{Basis, Decision};

/// How a run ended.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Promises that were broken, in words.
    pub broken: Vec<String>,
    /// Requests.
    pub asked: u64,
    /// Tokens admitted.
    pub admitted: u64,
    /// Tokens that an exact bucket would have admitted of the same arrivals.
    pub ideal: u64,
    /// Deepest excess over the exact bucket, in tokens.
    pub deepest: f64,
    /// What the faults of the run may add to it.
    pub allowance: f64,
    /// Calls to the store.
    pub calls: u64,
    /// Requests decided without a wait.
    pub local: u64,
    /// Waits of requests, in microseconds, in order.
    pub waits_us: Vec<u32>,
    /// Requests that were decided by policy.
    pub degraded: u64,
}

/// Decisions are the store's again so long after the last fault.
const HEALED_WITHIN_US: u64 = 2_000_000;

impl Run<'_> {
    /// What gateways hold is never more than what the store has lent.
    pub(super) fn hold_books(&mut self) {
        if matches!(self.scenario.kind, Kind::Forgetful | Kind::Clock | Kind::Outage) {
            return;
        }
        let held: u64 = (0..self.gateways.len())
            .filter(|gateway| self.standing_until(*gateway).is_none())
            .map(|gateway| self.gateways[gateway].entry.held(self.local(gateway)))
            .sum();
        let (lent, _) = self.store.outstanding(self.now_us);
        if held > lent {
            let what = format!("gateways hold {held}, and {lent} are lent");
            self.broke(&what);
        }
    }

    pub(super) fn decided(&mut self, decision: &Decision, cost: u64, came_us: u64) {
        let waited = self.now_us - came_us;
        if waited == 0 {
            self.verdict.local += 1;
        }
        self.verdict.waits_us.push(u32::try_from(waited).unwrap_or(u32::MAX));
        let degraded = matches!(decision.basis, Basis::Degraded(_));
        self.verdict.degraded += u64::from(degraded);
        if came_us > self.quiet_since + HEALED_WITHIN_US {
            self.late_asked += 1;
            self.late_degraded += u64::from(degraded);
        }
        if !decision.is_allowed() {
            return;
        }
        self.verdict.admitted += cost;
        if degraded {
            self.policy_cost += cost;
            if let Some(ideal) = &mut self.by_policy {
                ideal.charge(cost, self.now_us);
            }
        } else {
            self.paid += cost;
            self.exact.charge(cost, self.now_us);
        }
    }

    pub(super) fn judge(mut self) -> Verdict {
        let capacity = float(self.scenario.limits.burst.capacity().get());
        let base = (2.0 * float(self.scenario.cost_max)).max(0.002 * capacity);
        self.verdict.deepest = self.exact.deepest();
        let slowed = self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Slow(1..)));
        let on_their_way = if slowed { self.gateways.len() as u64 } else { 0 };
        let on_their_way = on_their_way * self.scenario.cost_max + self.stalled_need;
        self.verdict.allowance += base + float(on_their_way);
        if self.verdict.deepest > self.verdict.allowance + 1e-6 {
            let (deepest, allowed) = (self.verdict.deepest, self.verdict.allowance);
            self.broke(&format!("{deepest:.2} tokens above the contract, {allowed:.2} allowed"));
        }
        if let Some(by_policy) = &self.by_policy {
            let each = float(self.scenario.cost_max * self.gateways.len() as u64);
            let deepest = by_policy.deepest();
            if deepest > each + 1.0 {
                self.broke(&format!("the policy admitted {deepest:.2} tokens above its share"));
            }
        }
        if let Some(what) = self.store.broken.take() {
            self.broke(&what);
        }
        if self.paid > self.store.taken {
            let what = format!("{} admitted of {} granted", self.paid, self.store.taken);
            self.broke(&what);
        }
        if self.store.owed > self.policy_cost {
            let what = format!("{} charged for {}", self.store.owed, self.policy_cost);
            self.broke(&what);
        }
        let unanswered = self.pending.iter().filter(|one| one.waiting.is_some()).count();
        if unanswered > 0 {
            self.broke(&format!("{unanswered} requests were never answered"));
        }
        if self.late_asked > 50 && self.late_degraded * 5 > self.late_asked {
            let what =
                format!("{} of {} by policy at the end", self.late_degraded, self.late_asked);
            self.broke(&what);
        }
        self.verdict
    }
}
