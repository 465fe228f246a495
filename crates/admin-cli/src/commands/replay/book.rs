//! What became of every client: requests are put in order, given their cost, and played against
//! the client's plan. Memory is bounded by clients and by the window for order, never by the log.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use limiter_core::Timestamp;
use limiter_core::replay::{Between, Bounds, Demand, HeldBack};
use wire::plan::{PlanLimits, PlanSpec};

use super::lines::Line;
use crate::failure::Failure;
use crate::files::Desired;

/// Requests held back to be put in order: logs are written when requests end. What comes later
/// than this many lines counts at the time when it comes, and is counted.
const ORDER_WINDOW: usize = 16_384;
/// Clients that are told apart; requests of further ones are counted and not replayed.
pub(super) const CLIENTS_MAX: usize = 100_000;
const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;

/// Who has which plan.
#[derive(Debug)]
pub(super) struct Plans {
    plans: Vec<PlanSpec>,
    of_client: HashMap<String, usize>,
    default: Option<usize>,
}

impl Plans {
    /// Every client's plan must stand in the files.
    pub(super) fn new(desired: Desired, default: Option<&str>) -> Result<Plans, Failure> {
        let plans: Vec<PlanSpec> = desired.plans.into_values().collect();
        let find = |name: &str| plans.iter().position(|plan| plan.name.as_str() == name);
        let default = match default {
            None => None,
            Some(name) => Some(find(name).ok_or_else(|| {
                Failure::usage(format!("--default-plan: there is no plan `{name}` in the files"))
            })?),
        };
        let mut of_client = HashMap::new();
        for (id, client) in desired.clients {
            let plan = find(&client.plan).ok_or_else(|| {
                let plan = &client.plan;
                Failure::usage(format!("client {id}: its plan {plan} is in none of the files"))
            })?;
            of_client.insert(id, plan);
        }
        if of_client.is_empty() && default.is_none() {
            return Err(Failure::usage("there is no client in the files: say --default-plan PLAN"));
        }
        Ok(Plans { plans, of_client, default })
    }

    /// Plans of which this is true, by name.
    pub(super) fn names(&self, which: impl Fn(&PlanSpec) -> bool) -> Vec<String> {
        self.plans.iter().filter(|plan| which(plan)).map(|plan| plan.name.to_string()).collect()
    }
}

/// One client's part of the log.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) plan: String,
    pub(super) tally: Tally,
    index: usize,
    /// None: unlimited.
    bounds: Option<Bounds>,
    second: u64,
    waiting: Vec<Demand>,
}

/// What became of its requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    /// Refused if the requests of a second came evenly spread …
    pub(super) even: u64,
    /// … and if they came at one instant.
    pub(super) peak: u64,
    pub(super) first: Option<Timestamp>,
    /// Refused by the sustained limit, of those at the peak.
    pub(super) sustained: u64,
    pub(super) worst: Minute,
    now: Minute,
}

/// One minute of a client.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Minute {
    /// Minutes since 1970.
    pub(super) at: u64,
    pub(super) requests: u64,
    pub(super) refused: u64,
}

impl Tally {
    fn add(&mut self, at: Timestamp, requests: u64, between: Between) {
        let minute = at.us() / MINUTE_US;
        if minute != self.now.at {
            self.close_minute();
            self.now.at = minute;
        }
        let Between { even, peak } = between;
        self.requests += requests;
        self.now.requests += requests;
        self.now.refused += peak.requests;
        self.even += even.requests;
        self.peak += peak.requests;
        if peak.by == Some(HeldBack::Sustained) {
            self.sustained += peak.requests;
        }
        let first = [even.first, peak.first].into_iter().flatten().min();
        self.first = self.first.or(first);
    }

    fn close_minute(&mut self) {
        if self.now.refused > self.worst.refused {
            self.worst = self.now;
        }
        self.now = Minute::default();
    }

    /// Whether any request is refused.
    pub(super) fn is_hit(&self) -> bool {
        self.even > 0 || self.peak > 0
    }

    /// Least and most refused.
    pub(super) fn refused(&self) -> (u64, u64) {
        (self.even.min(self.peak), self.even.max(self.peak))
    }

    /// The limit that refuses most.
    pub(super) fn limit(&self) -> HeldBack {
        if self.sustained * 2 > self.peak { HeldBack::Sustained } else { HeldBack::Burst }
    }
}

impl Account {
    fn exact(&mut self, cost: u64, at: Timestamp) {
        self.play_second();
        let between =
            self.bounds.as_mut().map_or_else(Between::default, |bounds| bounds.exact(cost, at));
        self.tally.add(at, 1, between);
    }

    fn within_second(&mut self, cost: u64, at: Timestamp) {
        let second = at.us() / SECOND_US;
        if second != self.second {
            self.play_second();
            self.second = second;
        }
        // a plan has few costs; in which order they came within the second is not known
        match self.waiting.iter_mut().find(|part| part.cost == cost) {
            Some(part) => part.requests += 1,
            None => self.waiting.push(Demand { cost, requests: 1 }),
        }
    }

    fn play_second(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let from = Timestamp::from_us(self.second * SECOND_US);
        let between = self.bounds.as_mut().map_or_else(Between::default, |bounds| {
            bounds.slice(from, Duration::from_secs(1), &self.waiting)
        });
        let requests = self.waiting.iter().map(|part| part.requests).sum();
        self.waiting.clear();
        self.tally.add(from, requests, between);
    }
}

/// A request that waits for its turn; earlier ones first, then as they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    us: u64,
    number: u64,
    account: usize,
    cost: u64,
    whole_second: bool,
}

/// Everything that the log said.
#[derive(Debug)]
pub(super) struct Book {
    plans: Plans,
    index: HashMap<String, usize>,
    accounts: Vec<Account>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    played_until: u64,
    pub(super) counts: Counts,
}

/// Lines by what became of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Read, all in all.
    pub(super) requests: u64,
    /// Without a client.
    pub(super) anonymous: u64,
    /// Of clients that stand in no file, without a default plan.
    pub(super) without_plan: u64,
    /// Of clients beyond [`CLIENTS_MAX`].
    pub(super) crowded: u64,
    /// Came too late to be put in order.
    pub(super) late: u64,
    /// Known only to the second.
    pub(super) whole_seconds: u64,
    /// Without a route, where a plan has costs by route.
    pub(super) without_route: u64,
    /// Earliest and latest.
    pub(super) span: Option<(u64, u64)>,
}

impl Book {
    pub(super) fn new(plans: Plans) -> Book {
        Book {
            plans,
            index: HashMap::new(),
            accounts: Vec::new(),
            waiting: BinaryHeap::with_capacity(ORDER_WINDOW + 1),
            played_until: 0,
            counts: Counts::default(),
        }
    }

    /// Takes a line up.
    pub(super) fn add(&mut self, line: &Line<'_>) {
        let us = line.stamp.us;
        self.counts.requests += 1;
        self.counts.whole_seconds += u64::from(line.stamp.whole_second);
        let (first, last) = self.counts.span.unwrap_or((us, us));
        self.counts.span = Some((first.min(us), last.max(us)));
        let Some(client) = line.client.as_deref() else {
            self.counts.anonymous += 1;
            return;
        };
        let Some(account) = self.account(client) else { return };
        let cost = self.cost(account, line);
        self.waiting.push(Reverse(Waiting {
            us,
            number: self.counts.requests,
            account,
            cost,
            whole_second: line.stamp.whole_second,
        }));
        if self.waiting.len() > ORDER_WINDOW {
            self.play_next();
        }
    }

    fn account(&mut self, client: &str) -> Option<usize> {
        if let Some(account) = self.index.get(client) {
            return Some(*account);
        }
        let known = self.plans.of_client.get(client).copied();
        let Some(index) = known.or(self.plans.default) else {
            self.counts.without_plan += 1;
            return None;
        };
        if self.accounts.len() >= CLIENTS_MAX {
            self.counts.crowded += 1;
            return None;
        }
        let plan = self.plans.plans.get(index)?;
        let bounds = match plan.limits {
            PlanLimits::Unlimited => None,
            PlanLimits::Limited(limits) => Some(Bounds::new(limits)),
        };
        self.accounts.push(Account {
            name: client.to_owned(),
            plan: plan.name.to_string(),
            tally: Tally::default(),
            index,
            bounds,
            second: 0,
            waiting: Vec::new(),
        });
        self.index.insert(client.to_owned(), self.accounts.len() - 1);
        Some(self.accounts.len() - 1)
    }

    /// By the plan's first rule that fits; else 1, as routes are not known here.
    fn cost(&mut self, account: usize, line: &Line<'_>) -> u64 {
        let index = self.accounts.get(account).map(|account| account.index);
        let Some(plan) = index.and_then(|index| self.plans.plans.get(index)) else { return 1 };
        if plan.costs.is_empty() {
            return 1;
        }
        let Some(route) = line.route.as_deref() else {
            self.counts.without_route += 1;
            return 1;
        };
        let rule = plan.costs.iter().find(|rule| {
            let method = rule.method.as_deref();
            rule.route == route
                && method.is_none_or(|method| line.method.as_deref() == Some(method))
        });
        rule.map_or(1, |rule| rule.cost)
    }

    fn play_next(&mut self) {
        let Some(Reverse(next)) = self.waiting.pop() else { return };
        self.counts.late += u64::from(next.us < self.played_until);
        self.played_until = self.played_until.max(next.us);
        let Some(account) = self.accounts.get_mut(next.account) else { return };
        let at = Timestamp::from_us(next.us);
        if next.whole_second {
            account.within_second(next.cost, at);
        } else {
            account.exact(next.cost, at);
        }
    }

    /// Plays what still waits; the accounts with most refused first.
    pub(super) fn close(mut self) -> (Vec<Account>, Counts, Plans) {
        while !self.waiting.is_empty() {
            self.play_next();
        }
        for account in &mut self.accounts {
            account.play_second();
            account.tally.close_minute();
        }
        self.accounts.sort_by(|a, b| {
            let order = |account: &Account| Reverse((account.tally.peak, account.tally.even));
            order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name))
        });
        (self.accounts, self.counts, self.plans)
    }
}
