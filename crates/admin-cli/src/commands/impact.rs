//! Whom a change touches, and what it would have done to the last day's recorded demand.
//!
//! Shadow-compare knows requests by the minute; when inside of a minute they came nobody knows, so
//! the answer is a range: evenly spread … all at one instant. What the limits of then denied is
//! recorded exactly, and taken off; limits that only grow newly deny nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use limiter_core::replay::{Bounds, Demand};
use limiter_core::{Limit, Limits, Timestamp};
use serde_json::{Value, json};
use wire::batch::TopClient;
use wire::client::Call;
use wire::client::plans::Items;
use wire::client::shadow::{Usage, WINDOW_MINUTES_MAX};
use wire::plan::{PlanLimits, PlanSpec};
use wire::strict::Problems;

use super::plans::parsed;
use super::replay::share;
use crate::failure::Failure;
use crate::output::text;
use crate::session::{Session, counted};

/// Clients whose minutes are read, those with most requests first: one call each.
const REPLAYED_MAX: usize = 50;
/// Clients whose demand is known to be theirs.
const KNOWN_MAX: u32 = 500;
/// Newly hit clients that are named.
const NAMED_MAX: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_US: u64 = 60_000_000;

/// Whom a change touches.
#[derive(Debug, Default)]
pub(super) struct Impact {
    /// By kind and id of the changed object.
    touched: BTreeMap<(String, String), Touched>,
    replayed: Option<Replayed>,
    /// Why nothing was replayed, if that is worth a word.
    unknown: Option<String>,
}

#[derive(Debug, Default)]
struct Touched {
    clients: BTreeSet<String>,
    keys: usize,
    /// Recorded requests of these clients, and of all.
    traffic: Option<(u64, u64)>,
}

/// What the last day's demand would have met.
#[derive(Debug, Default)]
struct Replayed {
    clients: usize,
    of: usize,
    requests: u64,
    was_denied: u64,
    newly: Range,
    newly_hit: Vec<(String, Range, u64)>,
}

/// Evenly spread, and all at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Range {
    even: u64,
    peak: u64,
}

impl Range {
    fn sorted(self) -> (u64, u64) {
        (self.even.min(self.peak), self.even.max(self.peak))
    }

    fn add(&mut self, other: Range) {
        self.even += other.even;
        self.peak += other.peak;
    }
}

/// What a dry run of `body` would touch; `applied` is what plans-api said of it.
pub(super) async fn of(
    applied: &Value,
    body: &Value,
    session: &Session<'_>,
) -> Result<Impact, Failure> {
    let changes: Vec<&Value> = applied
        .get("changes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|change| change.get("action") != Some(&json!("same")))
        .collect();
    if changes.is_empty() {
        return Ok(Impact::default());
    }
    let clients = session.items(session.api.clients()).await?;
    let keys = session.items(session.api.keys(None)).await?;
    let mut impact = Impact::default();
    for change in changes {
        let (kind, id) = (text(change, "kind"), text(change, "id"));
        let has = |client: &&Value| match kind.as_str() {
            "plan" => text(client, "plan") == id,
            _ => text(client, "id") == id,
        };
        let names: BTreeSet<String> =
            clients.iter().filter(has).map(|client| text(client, "id")).collect();
        let opens = |key: &&Value| {
            key.get("state") != Some(&json!("revoked")) && names.contains(&text(key, "client"))
        };
        let keys = keys.iter().filter(opens).count();
        impact.touched.insert((kind, id), Touched { clients: names, keys, traffic: None });
    }
    impact.replay(&clients, body, session).await?;
    Ok(impact)
}

impl Impact {
    async fn replay(
        &mut self,
        clients: &[Value],
        body: &Value,
        session: &Session<'_>,
    ) -> Result<(), Failure> {
        let touched: BTreeSet<&str> = self
            .touched
            .values()
            .flat_map(|touched| touched.clients.iter().map(String::as_str))
            .collect();
        if touched.is_empty() {
            return Ok(());
        }
        let day = WINDOW_MINUTES_MAX.to_string();
        let call = Call::get("/v1/shadow/clients/top")
            .query("by", "requests")
            .query("n", KNOWN_MAX.to_string())
            .query("window_minutes", day.as_str());
        let top: Items<TopClient> = match session.api.http().send(call).await {
            Ok(top) => top,
            Err(error) => {
                self.unknown = Some(format!("no recorded demand to replay: {error}"));
                return Ok(());
            }
        };
        let all: u64 = top.items.iter().map(|client| client.requests).sum();
        let plans = plans_of(session).await?;
        let mut replayed = Replayed { of: touched.len(), ..Replayed::default() };
        let known = top.items.iter().filter(|client| touched.contains(client.client.as_str()));
        for client in known.clone().take(REPLAYED_MAX) {
            let Some(object) = clients.iter().find(|one| text(one, "id") == client.client) else {
                continue;
            };
            let Some((before, after)) = limits(object, body, &plans) else { continue };
            let call = Call::get("/v1/shadow/usage")
                .query("client", client.client.as_str())
                .query("window_minutes", day.as_str());
            let usage: Usage = match session.api.http().send(call).await {
                Ok(usage) => usage,
                Err(error) => {
                    self.unknown = Some(format!("recorded demand cannot be read: {error}"));
                    return Ok(());
                }
            };
            replayed.add(&usage, before, after);
        }
        let requests: BTreeMap<&str, u64> =
            known.map(|client| (client.client.as_str(), client.requests)).collect();
        let traffic: Vec<Option<(u64, u64)>> = self
            .touched
            .values()
            .map(|touched| {
                let sum = touched.clients.iter().filter_map(|id| requests.get(id.as_str())).sum();
                (all > 0).then_some((sum, all))
            })
            .collect();
        for (touched, traffic) in self.touched.values_mut().zip(traffic) {
            touched.traffic = traffic;
        }
        self.replayed = (replayed.requests > 0).then_some(replayed);
        if self.replayed.is_none() {
            self.unknown = Some("the last 24 h recorded no demand of these clients".to_owned());
        }
        Ok(())
    }

    /// Whom a change of this object touches: `312 clients, 298 keys, 18.0 % of traffic`.
    pub(super) fn touches(&self, kind: &str, id: &str) -> Option<String> {
        let touched = self.touched.get(&(kind.to_owned(), id.to_owned()))?;
        let mut told = format!(
            "{}, {}",
            counted(touched.clients.len(), "client"),
            counted(touched.keys, "key")
        );
        if let Some((part, all)) = touched.traffic {
            told = format!("{told}, {} of traffic", share((part, part), all, 1));
        }
        Some(told)
    }

    /// For people.
    pub(super) fn lines(&self) -> Vec<String> {
        let touched = self.touched.keys().filter_map(|(kind, id)| {
            Some(format!("{kind} {id} touches {}", self.touches(kind, id)?))
        });
        touched.chain(self.replay_line()).collect()
    }

    /// What the last day would have met.
    pub(super) fn replay_line(&self) -> Option<String> {
        let Some(replayed) = &self.replayed else { return self.unknown.clone() };
        let part = match replayed.clients < replayed.of {
            true => format!(" for {} of {} clients", replayed.clients, replayed.of),
            false => String::new(),
        };
        let was = (replayed.was_denied, replayed.was_denied);
        let mut line = format!(
            "last 24 h replayed{part}: newly denied {} (was {}); {} newly hit",
            share(replayed.newly.sorted(), replayed.requests, 2),
            share(was, replayed.requests, 2),
            counted(replayed.newly_hit.len(), "client"),
        );
        for (index, (client, hit, of)) in replayed.newly_hit.iter().enumerate().take(NAMED_MAX) {
            let before = if index == 0 { ": " } else { ", " };
            line = format!("{line}{before}{client} {}", share(hit.sorted(), *of, 1));
        }
        if replayed.newly_hit.len() > NAMED_MAX {
            line.push_str(", …");
        }
        Some(line)
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let touched: Vec<Value> = self
            .touched
            .iter()
            .map(|((kind, id), touched)| {
                json!({ "kind": kind, "id": id, "clients": touched.clients.len(),
                        "keys": touched.keys,
                        "requests": touched.traffic.map(|(part, _)| part),
                        "requests_of_all": touched.traffic.map(|(_, all)| all) })
            })
            .collect();
        let replayed = self.replayed.as_ref().map(|replayed| {
            let hit = replayed.newly_hit.iter().map(|(client, hit, requests)| {
                let (least, most) = hit.sorted();
                json!({ "client": client, "requests": requests, "least": least, "most": most })
            });
            let (least, most) = replayed.newly.sorted();
            json!({ "clients": replayed.clients, "clients_touched": replayed.of,
                    "requests": replayed.requests, "was_denied": replayed.was_denied,
                    "newly_denied": { "least": least, "most": most },
                    "newly_hit": hit.collect::<Vec<Value>>() })
        });
        json!({ "touched": touched, "replayed": replayed, "unknown": self.unknown })
    }
}

impl Replayed {
    fn add(&mut self, usage: &Usage, before: Option<Limits>, after: Option<Limits>) {
        let (requests, was_denied) = usage.minutes.iter().fold((0, 0), |(all, denied), minute| {
            (all + minute.requests, denied + minute.edge_denied)
        });
        let mut newly = Range::default();
        if is_stricter(before, after) {
            let new = denied(usage, after);
            newly.even = new.even.saturating_sub(was_denied);
            newly.peak = new.peak.saturating_sub(was_denied);
        }
        self.clients += 1;
        self.requests += requests;
        self.was_denied += was_denied;
        self.newly.add(newly);
        if was_denied == 0 && newly != Range::default() {
            self.newly_hit.push((usage.client.clone(), newly, requests));
            self.newly_hit.sort_by_key(|(_, hit, _)| std::cmp::Reverse(hit.sorted().1));
        }
    }
}

/// Whether limits refuse anything that those before would admit; none is unlimited.
fn is_stricter(before: Option<Limits>, after: Option<Limits>) -> bool {
    let smaller = |old: Option<Limit>, new: Option<Limit>| match (old, new) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(old), Some(new)) => {
            let earns = |limit: Limit, other: Limit| {
                u128::from(limit.refill().tokens()) * u128::from(other.refill().per_us())
            };
            new.capacity() < old.capacity() || earns(new, old) < earns(old, new)
        }
    };
    match (before, after) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(old), Some(new)) => {
            smaller(Some(old.burst), Some(new.burst)) || smaller(old.sustained, new.sustained)
        }
    }
}

fn denied(usage: &Usage, limits: Option<Limits>) -> Range {
    let mut range = Range::default();
    let Some(limits) = limits else { return range };
    let mut bounds = Bounds::new(limits);
    for minute in &usage.minutes {
        let allowed = minute.requests.saturating_sub(minute.edge_denied).max(1);
        let cost = minute.cost_allowed.div_ceil(allowed).max(1);
        let from = Timestamp::from_us(minute.minute.saturating_mul(MINUTE_US));
        let between = bounds.slice(from, MINUTE, &[Demand { cost, requests: minute.requests }]);
        range.even += between.even.requests;
        range.peak += between.peak.requests;
    }
    range
}

async fn plans_of(session: &Session<'_>) -> Result<BTreeMap<String, PlanSpec>, Failure> {
    let plans = session.items(session.api.plans()).await?;
    Ok(plans.iter().filter_map(parsed).map(|plan| (plan.name.to_string(), plan)).collect())
}

/// A client's limits before and after; none inside is unlimited. None at all: it has limits of its
/// own, or there is no telling.
fn limits(
    client: &Value,
    body: &Value,
    plans: &BTreeMap<String, PlanSpec>,
) -> Option<(Option<Limits>, Option<Limits>)> {
    if client.get("override").is_some_and(|own| !own.is_null()) {
        return None;
    }
    let old = client.get("plan")?.as_str()?;
    let new = body
        .get("client")
        .and_then(|clients| clients.get(text(client, "id"))?.get("plan")?.as_str())
        .unwrap_or(old);
    let written = body.get("plan").and_then(|plans| plans.get(new)).and_then(|value| {
        PlanSpec::parse(new, value, &format!("plan.{new}"), &mut Problems::new())
    });
    let limits = |plan: &PlanSpec| match plan.limits {
        PlanLimits::Unlimited => None,
        PlanLimits::Limited(limits) => Some(limits),
    };
    let after = written.as_ref().or_else(|| plans.get(new))?;
    Some((limits(plans.get(old)?), limits(after)))
}

#[cfg(test)]
mod tests {
    use wire::client::shadow::UsageMinute;

    use super::*;

    fn limits_of(capacity: u64, refill: &str) -> Option<Limits> {
        let body = json!({ "burst": { "capacity": capacity, "refill": refill } });
        let plan = PlanSpec::parse("p", &body, "p", &mut Problems::new()).unwrap();
        match plan.limits {
            PlanLimits::Limited(limits) => Some(limits),
            PlanLimits::Unlimited => None,
        }
    }

    fn usage(requests: u64, denied: u64, cost: u64) -> Usage {
        let minute = |minute| UsageMinute {
            minute,
            requests,
            edge_denied: denied,
            cost_allowed: cost,
            ..UsageMinute::default()
        };
        Usage { client: "acme".to_owned(), complete: true, minutes: (1..=10).map(minute).collect() }
    }

    #[test]
    fn a_smaller_plan_newly_denies_a_range_and_a_larger_one_nothing() {
        let mut smaller = Replayed { of: 1, ..Replayed::default() };
        smaller.add(&usage(300, 0, 300), limits_of(300, "300/m"), limits_of(100, "2/s"));
        // 120 of each 300 fit, and what the bucket held; at one instant only what it holds
        assert!(smaller.newly.even > 1_600 && smaller.newly.even < 1_800, "{smaller:?}");
        assert_eq!(smaller.newly.peak, 10 * 200, "{smaller:?}");
        let mut same = Replayed::default();
        same.add(&usage(300, 0, 300), limits_of(100, "2/s"), limits_of(100, "2/s"));
        assert_eq!(same.newly, Range::default(), "nothing changed");
        assert_eq!(smaller.newly_hit.len(), 1);
        let mut larger = Replayed::default();
        larger.add(&usage(300, 30, 270), limits_of(100, "2/s"), limits_of(3_000, "50/s"));
        assert_eq!((larger.newly, larger.was_denied), (Range::default(), 300));
        assert!(larger.newly_hit.is_empty());
        let mut unlimited = Replayed::default();
        unlimited.add(&usage(300, 0, 300), limits_of(1, "1/s"), None);
        assert_eq!(unlimited.newly, Range::default());
    }

    #[test]
    fn dear_requests_weigh_as_much_as_they_cost() {
        let (cheap, dear) = (usage(60, 0, 60), usage(60, 0, 600));
        let limits = limits_of(100, "1/s");
        assert_eq!(denied(&cheap, limits), Range::default());
        assert!(denied(&dear, limits).even > 400, "{:?}", denied(&dear, limits));
    }
}
