//! What a fault does to a run, and what it may add to the contract.

use super::faults::Fault;
use super::ideal::float;
use super::play::Run;
use super::scenario::{self, Routing, Shape};
use crate::call::{PlanNumbers, PlanVersion};
use crate::limiter::entry::Entry;

impl Run<'_> {
    pub(super) fn fault(&mut self, fault: Fault) {
        let capacities = self.scenario.limits.iter().map(|limit| limit.capacity().get());
        let capacity = float(capacities.max().unwrap_or(0));
        match fault {
            Fault::Lose(per_mille) => self.lost_per_mille = per_mille,
            Fault::Slow(us) => self.network.extra_us = us,
            Fault::Crash(index) => {
                let now = self.local(index);
                let gateway = &mut self.gateways[index];
                gateway.entry = Entry::new(now);
                gateway.life += 1;
                gateway.out = 0;
            }
            Fault::Pause(index, until) => {
                let paused = &mut self.gateways[index].paused_until;
                *paused = (*paused).max(until);
                // Requests that were granted before it stood still are admitted after it.
                self.verdict.allowance += float(self.scenario.cost_max) * 4.0;
            }
            Fault::Forget | Fault::Rollback(_) => {
                if let Fault::Rollback(by) = fault {
                    self.store.roll_back(self.now_us.saturating_sub(by));
                } else {
                    self.store.forget();
                }
                self.verdict.allowance += self.forgotten(capacity);
            }
            Fault::Away(until) => {
                if !self.store.is_away(self.now_us) {
                    self.store.away_since = Some(self.now_us);
                }
                self.store.away_until = self.store.away_until.max(until);
                self.quiet_since = self.quiet_since.max(until);
            }
            Fault::Step(by) => {
                let scenario = self.scenario;
                self.verdict.allowance += self.store.step(by, scenario);
            }
            Fault::Plan(percent) => self.change(percent, false),
            Fault::Reset => self.change(100, true),
        }
    }

    /// Where every gateway that knows a recent state keeps asking, the store is told before it has
    /// lent more than it may lend at all; elsewhere a loss costs a full bucket.
    fn forgotten(&self, capacity: f64) -> f64 {
        let asks_on = self.scenario.routing != Routing::Hopping;
        if asks_on && self.scenario.shape == Shape::Poisson {
            let each = float(self.scenario.cost_max * (self.gateways.len() as u64 + 2));
            (0.25 * capacity + 2.0 * each).min(capacity)
        } else {
            capacity
        }
    }

    fn change(&mut self, percent: u64, reset: bool) {
        let (_, last, reset_before) = *self.plans.last().expect("there is a first plan");
        let version = PlanVersion(last.version.0 + 2);
        let times = |number: u64| (number * percent / 100).max(5);
        let burst = last.limits.burst;
        let sustained = last.limits.sustained.map(|limit| {
            let rate = limit.refill().per_second_ceil();
            (times(limit.capacity().get()), times(rate))
        });
        let rate = times(burst.refill().per_second_ceil());
        let limits = if reset {
            last.limits
        } else {
            scenario::plan(times(burst.capacity().get()), rate, sustained)
        };
        let reset = if reset { version } else { reset_before };
        self.plans.push((self.now_us.max(1), PlanNumbers { version, limits }, reset));
    }
}
