//! What parts tell about themselves: plans-api in `/readyz`, gateways in their metrics, the store
//! by its clock. Pure: texts in, findings out.

use limiter_core::{Clock, SystemClock};
use serde_json::Value;

use super::{Finding, State, found};

/// Clocks of machines that differ by more than this are a fault.
const CLOCKS_MS: u64 = 2_000;

/// What a gateway counts as 1 while it is so, how bad that is, what it means and what to do.
const ALARMS: [(&str, State, &str, &str); 2] = [
    (
        "weir_store_may_evict",
        State::Warn,
        "Redis' maxmemory-policy lets it evict live buckets: limits are forgotten under pressure",
        "set Redis' maxmemory-policy to noeviction",
    ),
    (
        "weir_state_unsaved",
        State::Fail,
        "cannot write its state folder (full, read-only?): a restart begins with an older state",
        "make room in the gateway's state_dir, or let it write there",
    ),
];

/// The present, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    SystemClock::new().now().us() / 1_000
}

/// What plans-api tells about its database and its clock.
pub(super) fn by_plans_api(answer: &Value, now_ms: u64) -> Vec<Finding> {
    let told = |name: &str| answer.pointer(&format!("/detail/{name}"));
    let mut findings = Vec::new();
    if told("listening") == Some(&Value::Bool(false)) {
        let detail = "its listening connection is dead: changes made through another plans-api \
            arrive up to a second late";
        findings.push(found("database", State::Fail, detail).advise(
            "give plans-api a direct connection to Postgres (no transaction pooling): see its log",
        ));
    }
    if let Some(missing) = told("migrations_missing").and_then(Value::as_u64).filter(|n| *n > 0) {
        let detail = format!("lacks {missing} of the migrations that plans-api knows");
        findings.push(found("database", State::Fail, detail).advise(
            "restart weir-plans-api, it brings the database up to date; was an old copy put back?",
        ));
    }
    if let Some(theirs) = told("now_ms").and_then(Value::as_u64)
        && let Some(apart) = apart(now_ms, theirs)
    {
        let detail = format!("this machine's clock is {apart} of plans-api's");
        let advice = "keys and overrides end by these clocks: keep them by NTP";
        findings.push(found("clocks", State::Warn, detail).advise(advice));
    }
    findings
}

/// What a gateway's metrics tell.
pub(super) fn by_metrics(part: &str, metrics: &str) -> Vec<Finding> {
    let is_set = |name: &str| {
        let values = metrics.lines().filter_map(|line| line.split_once(' '));
        values.filter(|(metric, _)| *metric == name).any(|(_, value)| value.trim() == "1")
    };
    let set = ALARMS.iter().filter(|(metric, ..)| is_set(metric));
    set.map(|(_, state, detail, advice)| found(part, *state, *detail).advise(advice)).collect()
}

/// The store's clock against that of plans-api, which tells when keys end.
pub(super) fn by_store(standing: &Value, plans_now_ms: u64) -> Option<Finding> {
    let at = standing.get("at_ms")?.as_u64()?;
    let apart = apart(at, plans_now_ms)?;
    let gateway = standing.get("gateway").and_then(Value::as_str).unwrap_or("its");
    let detail = format!("the clock of the store of gateway {gateway} is {apart} of plans-api's");
    Some(found("clocks", State::Fail, detail).advise(
        "set the clock of the store's machine by NTP; buckets refill by that clock, whoever fails \
         over to it",
    ))
}

/// `11 s ahead`, if the first clock differs enough from the second one.
fn apart(one_ms: u64, other_ms: u64) -> Option<String> {
    let seconds = one_ms.abs_diff(other_ms).div_ceil(1_000);
    let way = if other_ms < one_ms { "ahead" } else { "behind" };
    (CLOCKS_MS < one_ms.abs_diff(other_ms)).then(|| format!("{seconds} s {way}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn small_differences_of_clocks_are_none() {
        assert_eq!(apart(10_000, 8_000), None);
        assert_eq!(apart(10_000, 7_999), Some("3 s ahead".to_owned()));
        assert_eq!(apart(10_000, 21_000), Some("11 s behind".to_owned()));
    }

    #[test]
    fn only_what_is_set_is_an_alarm() {
        let calm =
            "# HELP x\nweir_store_may_evict 0\nweir_state_unsaved 0\nweir_state_unsaved2 1\n";
        assert!(by_metrics("gateway a", calm).is_empty());
        let found = by_metrics("gateway a", "weir_state_unsaved 1\nweir_store_may_evict 1\n");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_plans_api_that_tells_nothing_is_not_blamed() {
        assert!(by_plans_api(&json!({ "detail": { "revision": 7 } }), 1).is_empty());
        assert!(by_store(&json!({}), 1).is_none());
    }
}
