//! `weir limit try` and `weir limit verify`: would a request pass now, and did the last hour keep
//! to the limits? Both only read.

use std::time::Duration;

use limiter_core::{Capacity, Level, Limit};
use serde_json::{Value, json};
use wire::client::Call;
use wire::client::shadow::Usage;

use super::changes;
use super::keys::{in_ms, time};
use super::replay::grouped;
use crate::failure::{Exit, Failure};
use crate::output::{Report, Shown, text};
use crate::session::{Session, counted};

/// What a store may admit above the contract: so many tokens, or one in so many of the capacity.
const ABOVE_TOKENS: u64 = 2;
const ABOVE_ONE_IN: u64 = 500;
/// Minutes that are checked.
const MINUTES: u64 = 60;

/// A limit in force, and where its bucket stands.
struct Held {
    name: &'static str,
    limit: Limit,
    level: Level,
}

fn held(standing: &Value) -> Result<Vec<Held>, Failure> {
    let malformed = || {
        Failure::new(Exit::Failed, "malformed", "the gateway's answer has limits that do not read")
    };
    let mut all = Vec::new();
    for name in ["burst", "sustained"] {
        let Some(told) = standing.get(name).filter(|told| !told.is_null()) else { continue };
        let capacity = told.get("capacity").and_then(Value::as_u64).ok_or_else(malformed)?;
        let capacity = Capacity::new(capacity).map_err(|_error| malformed())?;
        let refill = text(told, "refill").parse().map_err(|_error| malformed())?;
        let limit = Limit::new(capacity, refill).map_err(|_error| malformed())?;
        let tokens = told.get("tokens").and_then(Value::as_i64).ok_or_else(malformed)?;
        all.push(Held { name, limit, level: Level { tokens, remainder: 0 } });
    }
    Ok(all)
}

/// Would a request of `cost` pass now?
pub(super) async fn would(
    client: &str,
    cost: u64,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let standing = session.ask(session.api.inspect_limit(client)).await?;
    let mut wait = Some(Duration::ZERO);
    let mut by = None;
    for held in held(&standing)? {
        let until = held.level.time_until(cost, held.limit);
        let longer = match (wait, until) {
            (Some(longest), Some(until)) => longest < until,
            (Some(_), None) => true,
            (None, Some(_) | None) => false,
        };
        if longer {
            (wait, by) = (until, Some(held.name));
        }
    }
    let passes = by.is_none();
    let line = match (by, wait) {
        (None, _) => format!("a request of cost {cost} would pass"),
        (Some(by), Some(wait)) => {
            format!(
                "a request of cost {cost} would be refused by {by}, for {} ms at most",
                wait.as_millis()
            )
        }
        (Some(by), None) => format!("a request of cost {cost} would be refused by {by}, for ever"),
    };
    let json = json!({
        "client": client, "cost": cost, "passes": passes, "by": by,
        "wait_ms": wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        "standing": standing,
    });
    let mut report = Report::new(json, Shown::Text(line)).named(client);
    if !matches!(text(&standing, "phase").as_str(), "enforce" | "–") {
        let phase = text(&standing, "phase");
        report.notes.push(format!("the client is in {phase}: no limit refuses it"));
    }
    Ok(report)
}

/// What may be admitted in `window`, at most.
fn bound(limit: Limit, window: Duration) -> u64 {
    let capacity = limit.capacity().get();
    let above = ABOVE_TOKENS.max(capacity.div_ceil(ABOVE_ONE_IN));
    let earned = window.as_micros() * u128::from(limit.refill().tokens())
        / u128::from(limit.refill().per_us());
    capacity.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX)).saturating_add(above)
}

/// Holds the last hour's minutes against the limits in force.
pub(super) async fn verify(client: &str, session: &Session<'_>) -> Result<Report, Failure> {
    let standing = session.ask(session.api.inspect_limit(client)).await?;
    let held = held(&standing)?;
    let call = Call::get("/v1/shadow/usage")
        .query("client", client)
        .query("window_minutes", MINUTES.to_string());
    let usage = session.ask(session.api.http().send::<Usage>(call)).await?;
    let usage: Usage = serde_json::from_value(usage)
        .map_err(|error| Failure::new(Exit::Failed, "malformed", error.to_string()))?;
    let since = changed_at(client, &text(&standing, "plan"), session).await;
    let checked: Vec<_> =
        usage.minutes.iter().filter(|minute| minute.minute * 60_000 > since).collect();
    let left_out = usage.minutes.len() - checked.len();
    let minute = Duration::from_secs(60);
    let most = held.iter().map(|held| bound(held.limit, minute)).min();
    let largest = checked.iter().max_by_key(|minute| minute.cost_allowed);
    let above: Vec<_> = checked
        .iter()
        .filter(|minute| most.is_some_and(|most| most < minute.cost_allowed))
        .collect();
    let at = |minute: u64| time(Some(&json!(minute * 60_000)));
    let mut lines = vec![bound_line(&held, &standing)];
    lines.push(match (largest, most) {
        (Some(largest), Some(most)) => format!(
            "checked {}: largest {} of {} at {}   {}",
            counted(checked.len(), "exact minute"),
            grouped(largest.cost_allowed),
            grouped(most),
            at(largest.minute),
            if above.is_empty() { "ok" } else { "ABOVE" }
        ),
        (None, _) => "checked 0 exact minutes: none is recorded".to_owned(),
        (Some(_), None) => "checked nothing: the client is unlimited".to_owned(),
    });
    let json = json!({
        "ok": above.is_empty(), "client": client, "most_per_minute": most,
        "minutes_checked": checked.len(), "minutes_left_out": left_out,
        "complete": usage.complete, "standing": standing,
        "above": above.iter().map(|minute| json!({
            "minute": at(minute.minute), "cost_allowed": minute.cost_allowed,
        })).collect::<Vec<Value>>(),
    });
    let mut report = Report::new(json, Shown::Text(lines.join("\n"))).named(client);
    if left_out > 0 {
        let told = counted(left_out, "minute");
        report.notes.push(format!("{told} before the last change of its limits are left out"));
    }
    if !usage.complete {
        report.notes.push("some minutes were lost on their way: they may hold more".to_owned());
    }
    for minute in &above {
        report.warnings.push(format!(
            "{}: admitted {}, {} more than the limits allow",
            at(minute.minute),
            grouped(minute.cost_allowed),
            grouped(minute.cost_allowed - most.unwrap_or(0)),
        ));
        report.exit = Exit::Fault;
    }
    Ok(report)
}

/// `bound   100 + 50/s · t + 2 tokens   0 tokens lent`
fn bound_line(held: &[Held], standing: &Value) -> String {
    if held.is_empty() {
        return "bound   none: the client is unlimited".to_owned();
    }
    let each = held.iter().map(|held| {
        let (capacity, refill) = (held.limit.capacity().get(), held.limit.refill());
        let above = ABOVE_TOKENS.max(capacity.div_ceil(ABOVE_ONE_IN));
        format!("{} {} + {refill} · t + {above} tokens", held.name, grouped(capacity))
    });
    let lent = text(standing, "outstanding");
    format!(
        "bound   {}   {lent} tokens lent, inside the bound",
        each.collect::<Vec<_>>().join(", ")
    )
}

/// When the limits of a client last changed, in milliseconds since 1970; 0 if that is long ago.
async fn changed_at(client: &str, plan: &str, session: &Session<'_>) -> u64 {
    let mut at = 0;
    for (kind, id) in [("plan", plan), ("client", client)] {
        let row = changes::last(kind, id, session).await;
        at = at.max(row.and_then(|row| row.get("at")?.as_u64()).unwrap_or(0));
    }
    // more than the window ago is the same as never
    if at < in_ms(Duration::ZERO).saturating_sub(2 * MINUTES * 60_000) { 0 } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(capacity: u64, refill: &str) -> Limit {
        Limit::new(Capacity::new(capacity).unwrap(), refill.parse().unwrap()).unwrap()
    }

    #[test]
    fn the_bound_is_the_contract_and_what_a_store_may_admit_above_it() {
        let minute = Duration::from_secs(60);
        assert_eq!(bound(limit(100, "50/s"), minute), 3_102);
        assert_eq!(bound(limit(10_000, "0"), minute), 10_020);
        assert_eq!(bound(limit(1, "1/d"), minute), 3);
    }
}
