//! One round's figures, for each policy: from the callers' log and the moments of the fault.

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_core::FailurePolicy;
use serde_json::{Value, json};
use system_tests::oracle::{deepest_excess, float, quantile};

use super::clients::{Client, POLICIES, Role};
use super::event::Event;
use super::load::{Asked, Run};

/// A wait this much above the control run is late.
const LATE: Duration = Duration::from_millis(8);
/// Decisions are exact again this long after the return.
pub const BACK_MAX: Duration = Duration::from_secs(2);
/// A gateway's part of a failure share is a whole token at least.
const ROUNDED_UP: f64 = 3.0;
/// Decisions are looked at in bins of this length to see when the last ones were degraded.
const BIN: Duration = Duration::from_millis(100);
/// With fewer degraded decisions, or a smaller share, a bin counts as exact: a request now and
/// then is late by the machine's own doing.
const BIN_DEGRADED_MIN: usize = 2;
const BIN_DEGRADED_SHARE: f64 = 0.02;
/// Decisions are exact again from the first bin after which no larger share of bins is degraded:
/// the machine may stall once more.
const BINS_DEGRADED_MAX: f64 = 0.1;
/// Largest share of late waits.
pub const LATE_SHARE_MAX: f64 = 0.001;
/// Longest 99th percentile above the control run's while requests do not wait for the store.
pub const OPEN_ADDED_MS_MAX: f64 = 1.0;
/// A control run with more late waits than this is too noisy.
const NOISE_MAX: f64 = 0.003;
/// So is a machine that stalls for a larger share of the judged time.
const STALLED_MAX: f64 = 0.002;
/// With fewer waits there is no 99th percentile.
const WAITS_MIN: usize = 100;

/// Moments of a round, on the stage's clock.
#[derive(Debug, Clone, Copy)]
pub struct Moments {
    /// The fault begins.
    pub gone: u64,
    /// The store is whole again.
    pub returned: u64,
}

/// A round, by policy.
#[derive(Debug)]
pub struct Round {
    /// In the order of [`POLICIES`].
    pub policies: Vec<Figures>,
    /// Breakers that opened.
    pub trips: u64,
    /// Share of the judged time in which the machine ran nothing of ours.
    pub stalled: f64,
    away_ms: f64,
}

/// One policy's figures in one round.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Share of late waits from the fault until decisions must be exact, above the control run's.
    pub late_share: f64,
    /// The control run's own share of late waits.
    pub noise: f64,
    /// The 99th percentile once requests must not wait any more, above the control run's.
    pub added_ms_p99_open: Option<f64>,
    /// The 99th percentile from the fault to the return, above the control run's.
    pub added_ms_p99: f64,
    /// Decisions that neither the policy nor the plan explains, and broken ones.
    pub errors: usize,
    /// Tokens beyond the plan, of the client that is closest to its bound.
    pub over: f64,
    /// What that client's policy and the event allow.
    pub bound: f64,
    /// Tokens beyond the plan after [`BACK_MAX`].
    pub over_after: f64,
    /// From the return to the end of the last stretch of degraded decisions.
    pub back_s: f64,
    /// Share of degraded decisions between fault and return.
    pub degraded_share: f64,
    reasons: BTreeMap<&'static str, usize>,
    longest_ms: f64,
}

impl Round {
    /// Computes all of it.
    pub fn judge(
        event: Event,
        clients: &[Client],
        run: &Run,
        moments: Moments,
        trips: u64,
    ) -> Round {
        let mut by_policy: Vec<Vec<&Asked>> = vec![Vec::new(); POLICIES.len()];
        for asked in &run.asked {
            let policy = clients.get(asked.client).map_or(0, |client| client.policy);
            if let Some(ours) = by_policy.get_mut(policy) {
                ours.push(asked);
            }
        }
        let mut policies: Vec<Figures> = by_policy
            .iter()
            .enumerate()
            .map(|(policy, asked)| Figures::of(event, policy, clients, asked, moments))
            .collect();
        // Nobody knows whose they were.
        if let Some(first) = policies.first_mut() {
            first.errors += run.broken;
        }
        let judged = moments.gone..moments.returned + us(BACK_MAX);
        let stalls = run.stalls.iter().filter(|stall| judged.contains(&stall.at_us));
        let stalled: Duration = stalls.map(|stall| stall.length).sum();
        let away = span(moments.gone, moments.returned);
        let stalled = stalled.as_secs_f64() / (away + BACK_MAX).as_secs_f64();
        Round { policies, trips, stalled, away_ms: ms(away) }
    }

    /// Whether its waits say something. Late ones say nothing in a round in which the machine
    /// itself stalled, by a thread that only sleeps; and nothing can be compared with a control
    /// run that was late itself.
    pub fn is_conclusive(&self) -> bool {
        let noise = self.policies.iter().map(|figures| figures.noise).fold(0.0, f64::max);
        let good = self.policies.iter().all(Figures::has_good_waits);
        noise <= NOISE_MAX && (good || self.stalled <= STALLED_MAX)
    }

    /// For the report.
    pub fn json(&self) -> Value {
        let mut all = serde_json::Map::new();
        all.insert("away_ms".to_owned(), json!(self.away_ms));
        all.insert("trips".to_owned(), json!(self.trips));
        all.insert("stalled".to_owned(), json!(self.stalled));
        for ((name, _), figures) in POLICIES.iter().zip(&self.policies) {
            all.insert((*name).to_owned(), figures.json());
        }
        Value::Object(all)
    }
}

impl Figures {
    fn of(
        event: Event,
        policy: usize,
        clients: &[Client],
        asked: &[&Asked],
        moments: Moments,
    ) -> Figures {
        let mut figures = Figures::default();
        figures.judge_waits(event, asked, moments);
        figures.judge_return(asked, moments);
        let ours = clients.iter().enumerate().filter(|(_, client)| client.policy == policy);
        for (number, client) in ours {
            let log: Vec<&Asked> =
                asked.iter().copied().filter(|asked| asked.client == number).collect();
            figures.judge_amount(event, client, &log, moments);
            figures.errors += log.iter().filter(|asked| is_wrong(client, asked)).count();
        }
        figures
    }

    fn has_good_waits(&self) -> bool {
        let added = self.added_ms_p99_open.unwrap_or(0.0);
        self.late_share <= LATE_SHARE_MAX && added <= OPEN_ADDED_MS_MAX
    }

    fn judge_waits(&mut self, event: Event, asked: &[&Asked], moments: Moments) {
        let within = |from: u64, to: u64| {
            asked.iter().filter(move |asked| (from..to).contains(&asked.at_us))
        };
        let waits = |from: u64, to: u64| within(from, to).map(|asked| asked.took);
        let control: Vec<Duration> = waits(0, moments.gone).collect();
        let usual = quantile(control.iter().copied(), 0.5);
        let usual_p99 = quantile(control.iter().copied(), 0.99);
        let late = |wait: &Duration| *wait > usual + LATE;
        let share = |waits: &[Duration]| {
            float(waits.iter().filter(|wait| late(wait)).count()) / float(waits.len().max(1))
        };
        self.noise = share(&control);
        let exact_from = moments.returned + us(BACK_MAX);
        let judged: Vec<Duration> = waits(moments.gone, exact_from).collect();
        self.late_share = (share(&judged) - self.noise).max(0.0);
        self.longest_ms = ms(judged.iter().copied().max().unwrap_or_default());
        let away: Vec<Duration> = waits(moments.gone, moments.returned).collect();
        self.added_ms_p99 = excess_ms(&away, usual_p99);
        self.added_ms_p99_open = event.settled_after().and_then(|settled| {
            let open: Vec<Duration> = waits(moments.gone + us(settled), moments.returned).collect();
            (open.len() >= WAITS_MIN).then(|| excess_ms(&open, usual_p99))
        });
        let away = within(moments.gone, moments.returned);
        self.degraded_share = float(away.clone().filter(|asked| asked.degraded.is_some()).count())
            / float(away.count().max(1));
        for reason in asked.iter().filter_map(|asked| asked.degraded) {
            *self.reasons.entry(reason.name()).or_default() += 1;
        }
    }

    fn judge_return(&mut self, asked: &[&Asked], moments: Moments) {
        let mut bins: Vec<(usize, usize)> = Vec::new();
        for asked in asked.iter().filter(|asked| asked.at_us >= moments.returned) {
            let bin = usize::try_from((asked.at_us - moments.returned) / us(BIN)).unwrap_or(0);
            bins.resize(bins.len().max(bin + 1), (0, 0));
            if let Some((all, degraded)) = bins.get_mut(bin) {
                *all += 1;
                *degraded += usize::from(asked.degraded.is_some());
            }
        }
        let degraded: Vec<bool> = bins
            .iter()
            .map(|(all, degraded)| {
                *degraded >= BIN_DEGRADED_MIN && float(*degraded) > BIN_DEGRADED_SHARE * float(*all)
            })
            .collect();
        let bins = u32::try_from(exact_from(&degraded)).unwrap_or(u32::MAX);
        self.back_s = (BIN * bins).as_secs_f64();
    }

    fn judge_amount(&mut self, event: Event, client: &Client, log: &[&Asked], moments: Moments) {
        let admitted = |from: u64| -> Vec<u64> {
            let passed = log.iter().filter(|asked| asked.allowed && asked.at_us >= from);
            passed.map(|asked| asked.at_us).collect()
        };
        let over = deepest_excess(&admitted(0), client.promised);
        let bound = bound(event, client, log, moments);
        if over / bound > self.over / self.bound.max(1.0) || self.bound <= 0.0 {
            (self.over, self.bound) = (over, bound);
        }
        let after = admitted(moments.returned + us(BACK_MAX));
        self.over_after = self.over_after.max(deepest_excess(&after, client.promised));
    }

    fn json(&self) -> Value {
        json!({
            "late_share": self.late_share,
            "noise": self.noise,
            "longest_ms": self.longest_ms,
            "added_ms_p99_open": self.added_ms_p99_open,
            "added_ms_p99": self.added_ms_p99,
            "errors_of_ours": self.errors,
            "over_tokens": self.over,
            "over_bound": self.bound,
            "over_after_tokens": self.over_after,
            "back_to_exact_seconds": self.back_s,
            "degraded_share": self.degraded_share,
            "degraded": self.reasons,
        })
    }
}

/// The first exact bin from which on hardly any is degraded; the end if there is none.
fn exact_from(degraded: &[bool]) -> usize {
    let holds = |from: &usize| {
        let rest = degraded.get(*from..).unwrap_or_default();
        let bad = rest.iter().filter(|bad| **bad).count();
        rest.first() == Some(&false) && float(bad) <= BINS_DEGRADED_MAX * float(rest.len())
    };
    (0..degraded.len()).find(holds).unwrap_or(degraded.len())
}

/// Tokens that one client may get beyond capacity + rate · time, over any stretch:
/// - healthy: two tokens, or a five-hundredth of the capacity;
/// - without the store, the failure share F of its plan: a bucket of F · capacity that refills at
///   F · rate. The plan's own refill of that time is not beyond the plan, so for F < 1 only the
///   bucket counts; each gateway's part is rounded up to a token;
/// - a request that was late before the fault, by the machine's own doing, is admitted by policy;
/// - what the event makes the store forget.
fn bound(event: Event, client: &Client, log: &[&Asked], moments: Moments) -> f64 {
    let (capacity, per_s) = (client.promised.capacity, client.promised.per_s);
    let slack = (capacity / 500.0).max(2.0);
    let forgotten = event.allowance().buckets * capacity;
    let degraded = |asked: &&&Asked| asked.degraded.is_some();
    let early = log.iter().filter(degraded).filter(|asked| asked.allowed);
    let early = float(early.filter(|asked| asked.at_us < moments.gone).count());
    let (first, last) = (
        log.iter().filter(degraded).find(|asked| asked.at_us >= moments.gone),
        log.iter().rfind(degraded),
    );
    let (Some(first), Some(last)) = (first, last) else { return slack + forgotten + early };
    let longest = span(moments.gone, moments.returned) + BACK_MAX;
    let seconds = span(first.at_us, last.at_us).min(longest).as_secs_f64();
    let by_policy = match POLICIES.get(client.policy).map(|(_, policy)| *policy) {
        Some(FailurePolicy::Share(0)) | None => 0.0,
        Some(FailurePolicy::Share(share)) => {
            let share = f64::from(share) / 10_000.0;
            share * capacity + (share - 1.0).max(0.0) * per_s * seconds + ROUNDED_UP
        }
        Some(FailurePolicy::Open) => {
            let until = moments.returned + us(BACK_MAX);
            let offered = log.iter().filter(|asked| (moments.gone..until).contains(&asked.at_us));
            float(offered.count())
        }
    };
    slack + forgotten + early + by_policy
}

/// Whether neither the policy nor the plan explains this decision.
fn is_wrong(client: &Client, asked: &Asked) -> bool {
    let without_store = asked.degraded.is_some();
    let keeps_its_plan = client.role != Role::Flood;
    match POLICIES.get(client.policy).map(|(_, policy)| *policy) {
        // Nothing is admitted without the store.
        Some(FailurePolicy::Share(0)) if without_store => asked.allowed,
        // Half a plan, cut in three, may be less than somebody needs within a moment.
        Some(FailurePolicy::Share(share)) if without_store => {
            share >= 10_000 && keeps_its_plan && !asked.allowed
        }
        Some(FailurePolicy::Open) if without_store => !asked.allowed,
        // The store refuses nobody who keeps to the plan.
        Some(FailurePolicy::Share(_) | FailurePolicy::Open) | None => {
            keeps_its_plan && !asked.allowed
        }
    }
}

fn excess_ms(waits: &[Duration], usual: Duration) -> f64 {
    ms(quantile(waits.iter().copied(), 0.99).saturating_sub(usual))
}

fn span(from: u64, to: u64) -> Duration {
    Duration::from_micros(to.saturating_sub(from))
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_long_after_the_return_is_not_the_outage_but_a_gateway_that_stays_away_is() {
        let bins = |text: &str| text.chars().map(|bin| bin == 'd').collect::<Vec<_>>();
        assert_eq!(exact_from(&bins("....................")), 0);
        assert_eq!(exact_from(&bins("ddd.................")), 3);
        assert_eq!(exact_from(&bins("dd..............d...")), 2);
        assert_eq!(exact_from(&bins("dd.d.d.d............")), 6);
        assert_eq!(exact_from(&bins("dddddddddddddddddddd")), 20);
        assert_eq!(exact_from(&bins("d.d.d.d.d.d.d.d.d.d.")), 19);
        assert_eq!(exact_from(&[]), 0);
    }
}
