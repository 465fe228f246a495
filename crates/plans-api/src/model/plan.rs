//! A plan as it is stored and shown. What a row says is passed on as it is: a row that somebody
//! damaged by hand is refused by the gateways alone and hides no other plan.

use std::collections::BTreeMap;

use limiter_core::RefillRate;
use wire::client::plans::{LimitBody, PlanObject};
use wire::plan::{CostRule, LimitValue, PlanLimits, PlanSpec, PlanValue, Scope};

/// Most plans.
pub(crate) const PLANS_MAX: u64 = 10_000;

/// A plan with its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanRow {
    pub(crate) name: String,
    pub(crate) burst: Option<LimitValue>,
    pub(crate) sustained: Option<LimitValue>,
    pub(crate) unlimited: bool,
    pub(crate) scope: Scope,
    pub(crate) failure: String,
    pub(crate) costs: Vec<CostRule>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) note: String,
    pub(crate) revision: u64,
}

impl PlanRow {
    /// A checked plan at a revision.
    pub(crate) fn of(spec: &PlanSpec, revision: u64) -> PlanRow {
        let (unlimited, burst, sustained) = match spec.limits {
            PlanLimits::Unlimited => (true, None, None),
            PlanLimits::Limited(limits) => {
                (false, Some(limits.burst.into()), limits.sustained.map(LimitValue::from))
            }
        };
        PlanRow {
            name: spec.name.to_string(),
            burst,
            sustained,
            unlimited,
            scope: spec.scope,
            failure: spec.failure.to_string(),
            costs: spec.costs.clone(),
            labels: spec.labels.clone(),
            note: spec.note.clone(),
            revision,
        }
    }

    /// Whether it says the same, whenever it was said.
    pub(crate) fn says(&self, other: &PlanRow) -> bool {
        PlanRow { revision: other.revision, ..self.clone() } == *other
    }

    /// As gateways are told it.
    pub(crate) fn value(&self) -> PlanValue {
        PlanValue {
            name: self.name.clone(),
            burst: self.burst,
            sustained: self.sustained,
            costs: self.costs.clone(),
            scope: self.scope,
            failure: self.failure.clone(),
            unlimited: self.unlimited,
            revision: self.revision,
        }
    }

    /// As the API shows it.
    pub(crate) fn object(&self) -> PlanObject {
        PlanObject {
            name: self.name.clone(),
            unlimited: self.unlimited,
            burst: self.burst.map(limit_body),
            sustained: self.sustained.map(limit_body),
            failure: self.failure.clone(),
            scope: self.scope,
            costs: self.costs.clone(),
            labels: self.labels.clone(),
            note: self.note.clone(),
            revision: self.revision,
        }
    }
}

/// A limit as people write it.
pub(crate) fn limit_body(limit: LimitValue) -> LimitBody {
    let refill = RefillRate::new(limit.tokens, limit.per_us)
        .map_or_else(|_| format!("{}/{}us", limit.tokens, limit.per_us), |rate| rate.to_string());
    LimitBody { capacity: limit.capacity, refill }
}
