//! What is valid in a plan and most likely not meant (pure). Nothing is refused for it.

use std::collections::BTreeSet;

use wire::client::plans::{PlanFinding, PlanObject};

use super::overrides::limit_value;

/// The label that says whose plan it is: `public` or `internal`.
pub(crate) const AUDIENCE: &str = "audience";

/// Findings about a plan, given the routes that gateways have; `None` if no gateway has told any.
pub(crate) fn lint(plan: &PlanObject, routes: Option<&BTreeSet<String>>) -> Vec<PlanFinding> {
    let mut found = Vec::new();
    let mut add = |field: &str, finding: String| {
        found.push(PlanFinding { plan: plan.name.clone(), field: field.to_owned(), finding });
    };
    if plan.unlimited {
        add("unlimited", "is unlimited: nothing holds its clients".to_owned());
    }
    for (field, limit) in [("burst", &plan.burst), ("sustained", &plan.sustained)] {
        if limit.as_ref().is_some_and(|limit| limit_value(limit).tokens == 0) {
            let finding = "is a fixed allowance: once used it never comes back";
            add(&format!("{field}.refill"), finding.to_owned());
        }
    }
    if let (Some(burst), Some(sustained)) = (&plan.burst, &plan.sustained) {
        if sustained.capacity < burst.capacity {
            let finding = "is smaller than the burst capacity, which is never reached";
            add("sustained.capacity", finding.to_owned());
        }
        let (fast, slow) = (limit_value(burst), limit_value(sustained));
        let (fast, slow) = (
            u128::from(fast.tokens) * u128::from(slow.per_us),
            u128::from(slow.tokens) * u128::from(fast.per_us),
        );
        if slow > fast {
            add("sustained.refill", "is faster than the burst's: it never binds".to_owned());
        }
    }
    match (plan.labels.get(AUDIENCE).map(String::as_str), plan.failure.as_str()) {
        (Some("public"), "open") => add(
            "failure",
            "is open, and the plan is for the public: without a store nothing holds anybody; \
             take coarse or a share"
                .to_owned(),
        ),
        (Some("internal"), "closed") => add(
            "failure",
            "is closed, and the plan is for services of your own: without a store they stop each \
             other; take coarse or open"
                .to_owned(),
        ),
        (Some("public" | "internal") | None, _) => {}
        (Some(other), _) => {
            add(&format!("labels.{AUDIENCE}"), format!("is `{other}`, not public or internal"));
        }
    }
    let unknown = |route: &str| routes.is_some_and(|routes| !routes.contains(route));
    for (index, rule) in plan.costs.iter().enumerate().filter(|(_, rule)| unknown(&rule.route)) {
        let finding = format!("no gateway has a route `{}`: the rule never holds", rule.route);
        add(&format!("costs[{index}].route"), finding);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::plan::PlanRow;
    use serde_json::{Value, json};
    use wire::plan::PlanSpec;
    use wire::strict::Problems;

    fn fields(body: &Value, routes: Option<&[&str]>) -> Vec<String> {
        let spec = PlanSpec::parse("pro", body, "", &mut Problems::new()).unwrap();
        let routes = routes.map(|routes| routes.iter().map(|r| (*r).to_owned()).collect());
        let found = lint(&PlanRow::of(&spec, 1).object(), routes.as_ref());
        found.into_iter().map(|finding| finding.field).collect()
    }

    #[test]
    fn what_is_most_likely_not_meant_is_found_and_a_usual_plan_is_not() {
        let limit = |capacity: u64, refill: &str| json!({ "capacity": capacity, "refill": refill });
        let usual = json!({
            "burst": limit(10, "1/s"), "sustained": limit(1_000, "1000/d"), "failure": "coarse",
            "costs": [{ "route": "reports", "cost": 5 }], "labels": { "audience": "public" },
        });
        assert_eq!(fields(&usual, Some(&["reports", "orders"])), [""; 0]);
        assert_eq!(fields(&usual, None), [""; 0], "nobody has told routes yet");
        assert_eq!(fields(&usual, Some(&["orders"])), ["costs[0].route"]);
        for (change, field) in [
            (json!({ "burst": limit(10, "0") }), "burst.refill"),
            (json!({ "sustained": limit(1_000, "0") }), "sustained.refill"),
            (json!({ "sustained": limit(9, "1/d") }), "sustained.capacity"),
            (json!({ "sustained": limit(1_000, "2/s") }), "sustained.refill"),
            (json!({ "failure": "open" }), "failure"),
            (json!({ "failure": "closed", "labels": { "audience": "internal" } }), "failure"),
            (json!({ "labels": { "audience": "pubic" } }), "labels.audience"),
        ] {
            let mut body = usual.clone();
            for (name, value) in change.as_object().unwrap() {
                body[name.as_str()] = value.clone();
            }
            let found = fields(&body, None);
            assert!(found.iter().any(|named| named == field), "{change}: {found:?}");
        }
        let unlimited = json!({ "unlimited": true, "failure": "closed" });
        assert_eq!(fields(&unlimited, None), ["unlimited"]);
    }
}
