//! One run: events in order of time, and what is judged about them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::arrivals;
use super::faults::{self, Fault};
use super::ideal::{Ideal, float};
use super::judge::Verdict;
use super::network::Network;
use super::scenario::Scenario;
use super::store::Store;
use crate::call::{PlanNumbers, PlanVersion, Reply};
use crate::degraded::FailurePolicy;
use crate::key::{BucketKey, ScopeId, VersionSource};
use crate::limiter::entry::Entry;
use crate::limiter::flight::{
    Ask, Care, Flight, Landing, Quick, Settled, Surroundings, hedge_after,
};
use crate::limiter::waiters::Waiting;
use crate::limiter::{Contract, TICK_EVERY};
use crate::store::StoreError;
use crate::time::Timestamp;

/// A request is decided after this long.
const DEADLINE_US: u64 = 5_000;
/// A call without an answer is lost then.
const LOST_AFTER_US: u64 = 250_000;
/// A gateway hears of a changed plan within this.
const HEARD_WITHIN_US: u64 = 200_000;
/// A store that has been away for this long is not called any more.
const TRIPPED_AFTER_US: u64 = 100_000;
/// Tokens granted to requests that waited for a reply longer than this may be admitted visibly
/// later than they were taken; of a full bucket that is an excess.
const STALLED_AFTER_US: u64 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Fault(usize),
    Arrive,
    AtStore(usize),
    Landed(usize),
    Check(usize),
    Tick(usize),
}

pub(super) struct Gateway {
    pub(super) entry: Entry,
    pub(super) life: u32,
    pub(super) offset_us: u64,
    pub(super) paused_until: u64,
    pub(super) hears_after_us: u64,
    pub(super) round_trip_us: u64,
    pub(super) out: usize,
}

pub(super) struct Call {
    pub(super) gateway: usize,
    pub(super) life: u32,
    pub(super) flight: Flight,
    pub(super) sent: Timestamp,
    pub(super) reply: Option<Reply>,
    pub(super) back_us: u64,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    Answered,
    Lost,
    Tripped,
}

pub(super) struct Pending {
    pub(super) gateway: usize,
    pub(super) life: u32,
    pub(super) waiting: Option<Waiting>,
    pub(super) cost: u64,
    pub(super) came_us: u64,
}

pub(super) struct Run<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) luck: fastrand::Rng,
    pub(super) now_us: u64,
    pub(super) events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub(super) sequence: u64,
    pub(super) network: Network,
    pub(super) lost_per_mille: u32,
    pub(super) gateways: Vec<Gateway>,
    pub(super) store: Store,
    pub(super) calls: Vec<Call>,
    pub(super) pending: Vec<Pending>,
    pub(super) open: Vec<usize>,
    pub(super) faults: Vec<(u64, Fault)>,
    pub(super) plans: Vec<(u64, PlanNumbers, PlanVersion)>,
    pub(super) adopted: u64,
    pub(super) exact: Ideal,
    pub(super) all: Ideal,
    pub(super) by_policy: Option<Ideal>,
    pub(super) policy_cost: u64,
    pub(super) paid: u64,
    pub(super) quiet_since: u64,
    pub(super) late_degraded: u64,
    pub(super) late_asked: u64,
    pub(super) stalled_need: u64,
    pub(super) verdict: Verdict,
}

/// Plays a scenario to its end.
pub fn play(scenario: &Scenario) -> Verdict {
    fastrand::seed(scenario.seed);
    let mut luck = fastrand::Rng::with_seed(scenario.seed ^ 0x5eed);
    let faults = faults::draw(scenario, &mut luck);
    let mut run = Run::new(scenario, luck, faults);
    run.begin();
    while let Some(Reverse((at, _, event))) = run.events.pop() {
        run.now_us = at;
        run.happen(event);
    }
    run.judge()
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, mut luck: fastrand::Rng, faults: Vec<(u64, Fault)>) -> Run<'a> {
        let gateways = (0..scenario.gateways).map(|_| {
            let offset_us = 1_000_000_000 + luck.u64(..1_000_000_000);
            Gateway {
                entry: Entry::new(Timestamp::from_us(offset_us)),
                life: 0,
                offset_us,
                paused_until: 0,
                hears_after_us: luck.u64(..HEARD_WITHIN_US),
                round_trip_us: 500,
                out: 0,
            }
        });
        let by_policy = match scenario.failure {
            FailurePolicy::Open => None,
            FailurePolicy::Share(share) => Some(Ideal::part(&scenario.limits, share)),
        };
        Run {
            gateways: gateways.collect(),
            store: Store::new(scenario),
            network: Network { median_us: scenario.round_trip_us, extra_us: 0 },
            exact: Ideal::full(&scenario.limits),
            all: Ideal::full(&scenario.limits),
            plans: vec![(0, scenario.numbers(2), PlanVersion(0))],
            adopted: 2,
            scenario,
            luck,
            now_us: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            lost_per_mille: 0,
            calls: Vec::new(),
            pending: Vec::new(),
            open: Vec::new(),
            faults,
            by_policy,
            policy_cost: 0,
            paid: 0,
            quiet_since: scenario.length_us * 3 / 4,
            late_degraded: 0,
            late_asked: 0,
            stalled_need: 0,
            verdict: Verdict::default(),
        }
    }

    fn begin(&mut self) {
        for index in 0..self.faults.len() {
            self.at(self.faults[index].0, Event::Fault(index));
        }
        for gateway in 0..self.gateways.len() {
            let first = self.luck.u64(..50_000);
            self.at(first, Event::Tick(gateway));
        }
        let first = arrivals::next(self.scenario, 0, &mut self.luck);
        self.at(first, Event::Arrive);
    }

    fn at(&mut self, us: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((us, self.sequence, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Fault(index) => self.fault(self.faults[index].1),
            Event::Arrive => self.arrive(),
            Event::AtStore(call) => self.at_store(call),
            Event::Landed(call) => self.landed(call),
            Event::Check(pending) => self.check(pending),
            Event::Tick(gateway) => self.tick(gateway),
        }
    }

    /// A gateway that stands still does everything later.
    pub(super) fn standing_until(&self, gateway: usize) -> Option<u64> {
        let until = self.gateways[gateway].paused_until;
        (self.now_us < until).then_some(until)
    }

    pub(super) fn local(&self, gateway: usize) -> Timestamp {
        Timestamp::from_us(self.gateways[gateway].offset_us + self.now_us)
    }

    fn around(&self, gateway: usize) -> Surroundings {
        Surroundings {
            gateways: u32::try_from(self.gateways.len()).unwrap_or(1),
            round_trip: Duration::from_micros(self.gateways[gateway].round_trip_us),
            leases: self.scenario.leases,
            extras: self.scenario.extras,
        }
    }

    fn contract(&self, gateway: usize) -> Contract {
        let heard = self.now_us.saturating_sub(self.gateways[gateway].hears_after_us);
        let known = self.plans.iter().rfind(|(at, ..)| *at == 0 || *at <= heard);
        let (_, plan, reset) = *known.expect("the first plan is there from the start");
        Contract {
            key: BucketKey::new(VersionSource::File, ScopeId::Client("one")),
            plan,
            reset,
            failure: self.scenario.failure,
        }
    }

    fn arrive(&mut self) {
        let scenario = self.scenario;
        if self.now_us >= scenario.length_us {
            return;
        }
        let next = arrivals::next(scenario, self.now_us, &mut self.luck);
        self.at(next, Event::Arrive);
        let gateway = arrivals::gateway(scenario, self.now_us, &mut self.luck);
        let cost = self.luck.u64(1..=scenario.cost_max);
        self.verdict.asked += 1;
        if self.all.take(cost, self.now_us) {
            self.verdict.ideal += cost;
        }
        if self.standing_until(gateway).is_some() {
            // Its callers go elsewhere, or away.
            return;
        }
        let contract = self.contract(gateway);
        let (now, around) = (self.local(gateway), self.around(gateway));
        let entry = &self.gateways[gateway].entry;
        entry.touch(now);
        if let Quick::Allowed { decision, low } = entry.quick(&contract, cost, now) {
            let prefetch = if low { entry.prefetch(&around, now) } else { None };
            self.decided(&decision, cost, self.now_us);
            if let Some(flight) = prefetch {
                self.send(gateway, flight);
            }
            return;
        }
        match entry.ask(&contract, cost, &around, now) {
            Ask::Decided(decision) => self.decided(&decision, cost, self.now_us),
            Ask::Wait(waiting) => self.wait(gateway, waiting, cost),
            Ask::Fly(flight, waiting) => {
                self.wait(gateway, waiting, cost);
                self.send(gateway, flight);
            }
        }
    }

    fn wait(&mut self, gateway: usize, waiting: Waiting, cost: u64) {
        let life = self.gateways[gateway].life;
        let came_us = self.now_us;
        self.open.push(self.pending.len());
        self.pending.push(Pending { gateway, life, waiting: Some(waiting), cost, came_us });
        self.check_later(self.pending.len() - 1);
    }

    fn check_later(&mut self, index: usize) {
        let Pending { gateway, came_us, .. } = self.pending[index];
        let hedge = hedge_after(self.around(gateway).round_trip);
        let hedge = u64::try_from(hedge.as_micros()).unwrap_or(DEADLINE_US);
        self.at((self.now_us + hedge).min(came_us + DEADLINE_US), Event::Check(index));
    }

    fn check(&mut self, index: usize) {
        let Pending { gateway, life, came_us, .. } = self.pending[index];
        if self.pending[index].waiting.is_none() {
            return;
        }
        if life != self.gateways[gateway].life {
            self.pending[index].waiting = None;
            return;
        }
        if let Some(until) = self.standing_until(gateway) {
            return self.at(until, Event::Check(index));
        }
        let (now, around) = (self.local(gateway), self.around(gateway));
        if self.now_us >= came_us + DEADLINE_US {
            let contract = self.contract(gateway);
            let Some(waiting) = self.pending[index].waiting.take() else { return };
            let cost = waiting.cost;
            let decision = self.gateways[gateway].entry.give_up(&contract, waiting, &around, now);
            self.decided(&decision, cost, came_us);
            return;
        }
        if let Some(flight) = self.gateways[gateway].entry.hedge(&around, now) {
            self.send(gateway, flight);
        }
        self.check_later(index);
    }

    fn send(&mut self, gateway: usize, flight: Flight) {
        self.gateways[gateway].out += 1;
        if self.gateways[gateway].out > 2 {
            self.broke("more than two calls of a key are out");
        }
        let sent = self.local(gateway);
        let round_trip = self.network.round_trip_us(&mut self.luck);
        let tripped = self.store.away_since.is_some_and(|since| {
            self.store.is_away(self.now_us) && self.now_us > since + TRIPPED_AFTER_US
        });
        let lost = |luck: &mut fastrand::Rng, share: u32| luck.u32(..1_000) < share;
        let request_lost =
            lost(&mut self.luck, self.lost_per_mille) || self.store.is_away(self.now_us);
        let reply_lost = lost(&mut self.luck, self.lost_per_mille) || round_trip > LOST_AFTER_US;
        let outcome = if tripped {
            Outcome::Tripped
        } else if request_lost || reply_lost {
            Outcome::Lost
        } else {
            Outcome::Answered
        };
        let index = self.calls.len();
        let life = self.gateways[gateway].life;
        let back_us = match outcome {
            Outcome::Answered => self.now_us + round_trip,
            Outcome::Lost => self.now_us + LOST_AFTER_US,
            Outcome::Tripped => self.now_us + 1,
        };
        self.calls.push(Call { gateway, life, flight, sent, reply: None, back_us, outcome });
        if outcome != Outcome::Tripped {
            self.verdict.calls += 1;
        }
        if !tripped && !request_lost {
            self.at(self.now_us + round_trip / 2, Event::AtStore(index));
        }
        self.at(back_us, Event::Landed(index));
    }

    fn at_store(&mut self, index: usize) {
        let request = self.calls[index].flight.request;
        if self.store.is_away(self.now_us) {
            // It went out before the store did.
            self.calls[index].outcome = Outcome::Lost;
            return;
        }
        let before = self.adopted;
        let (lent, _) = self.store.outstanding(self.now_us);
        let reply = self.store.call(&request, self.now_us);
        let version = self.store.version();
        if version > before {
            self.adopted = version;
            let new = self.plans.iter().find(|(_, plan, _)| plan.version.0 == version);
            if let Some((_, plan, reset)) = new.copied() {
                self.exact.adopt(&plan.limits, self.now_us);
                self.all.adopt(&plan.limits, self.now_us);
                if reset.0 > before {
                    self.exact.fill(self.now_us);
                    self.all.fill(self.now_us);
                }
                // What is lent or on its way was granted under the older plan.
                let on_its_way = self.scenario.cost_max * self.gateways.len() as u64;
                self.verdict.allowance += float(lent + on_its_way);
            }
        }
        self.calls[index].reply = Some(reply);
    }

    fn landed(&mut self, index: usize) {
        let Call { gateway, life, sent, back_us, outcome, .. } = self.calls[index];
        if life != self.gateways[gateway].life {
            return;
        }
        if let Some(until) = self.standing_until(gateway) {
            return self.at(until, Event::Landed(index));
        }
        self.gateways[gateway].out -= 1;
        let received = self.local(gateway);
        let result = match (outcome, self.calls[index].reply) {
            (Outcome::Answered, Some(reply)) => Ok(reply),
            (Outcome::Tripped, _) => {
                Err(StoreError::Tripped { probe_in: Duration::from_millis(250) })
            }
            (Outcome::Answered | Outcome::Lost, _) => {
                if outcome == Outcome::Answered && self.now_us < back_us + LOST_AFTER_US {
                    self.calls[index].outcome = Outcome::Lost;
                    self.gateways[gateway].out += 1;
                    return self.at(self.now_us + LOST_AFTER_US, Event::Landed(index));
                }
                Err(StoreError::Lost(std::io::Error::other("lost").into()))
            }
        };
        if result.is_ok() {
            let took = u64::try_from(received.since(sent).as_micros()).unwrap_or(u64::MAX);
            if took > STALLED_AFTER_US {
                let granted = self.calls[index].reply.map_or(0, |reply| reply.granted);
                self.stalled_need = self.stalled_need.max(granted);
            }
            let known = self.gateways[gateway].round_trip_us;
            self.gateways[gateway].round_trip_us = known - known / 8 + took.min(100_000) / 8;
        }
        let lane = self.calls[index].flight.lane;
        let landing = Landing { lane, sent, received, epoch: self.store.epoch, result };
        let around = self.around(gateway);
        let next = self.gateways[gateway].entry.land(landing, &around);
        self.collect(gateway);
        if let Some(flight) = next {
            self.send(gateway, flight);
        }
        self.hold_books();
    }

    /// Takes the answers that have come.
    fn collect(&mut self, gateway: usize) {
        let open = std::mem::take(&mut self.open);
        for index in open {
            if self.pending[index].gateway != gateway {
                if self.pending[index].waiting.is_some() {
                    self.open.push(index);
                }
                continue;
            }
            let Some(mut waiting) = self.pending[index].waiting.take() else { continue };
            let (cost, came_us) = (self.pending[index].cost, self.pending[index].came_us);
            match waiting.answer.try_recv() {
                Ok(Ok(decision)) => self.decided(&decision, cost, came_us),
                Ok(Err(reason)) => {
                    let (now, around) = (self.local(gateway), self.around(gateway));
                    let contract = self.contract(gateway);
                    let entry = &self.gateways[gateway].entry;
                    let decision = entry.decide_degraded(&contract, cost, &around, reason, now);
                    self.decided(&decision, cost, came_us);
                }
                Err(_) => {
                    self.pending[index].waiting = Some(waiting);
                    self.open.push(index);
                }
            }
        }
    }

    fn tick(&mut self, gateway: usize) {
        if let Some(until) = self.standing_until(gateway) {
            return self.at(until, Event::Tick(gateway));
        }
        let (now, around) = (self.local(gateway), self.around(gateway));
        let ends = self.now_us > self.scenario.length_us + 2_000_000;
        if ends {
            if let Settled::Fly(flight) = self.gateways[gateway].entry.settle(&around, now) {
                self.send(gateway, flight);
            }
            return;
        }
        if let Care::Fly(flight) = self.gateways[gateway].entry.tick(&around, now) {
            self.send(gateway, flight);
        }
        self.hold_books();
        let every = u64::try_from(TICK_EVERY.as_micros()).unwrap_or(50_000);
        self.at(self.now_us + every, Event::Tick(gateway));
    }

    pub(super) fn broke(&mut self, what: &str) {
        if self.verdict.broken.len() < 8 {
            self.verdict.broken.push(format!("{:.3} s: {what}", float(self.now_us) / 1e6));
        }
    }
}
