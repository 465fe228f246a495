//! A client's own limits: put over its plan's until they end, by this gateway's clock.
//!
//! Ending is the one change that comes by time alone, so it alone makes the plan version odd: the
//! next change of plan or client is even and higher, and the version never goes back.

use std::sync::Arc;

use limiter_core::{FailurePolicy, Limit, Limits};
use wire::plan::PlanLimits;
use wire::policy::{ClientValue, OverrideValue};

use super::PlanEntry;

/// Whether a client has own limits that are over.
pub(super) fn has_ended(client: &ClientValue, now_ms: u64) -> bool {
    client.overridden.as_ref().is_some_and(|own| own.expires_at <= now_ms)
}

impl PlanEntry {
    /// The plan as it holds for one client now; `None` where its own limits cannot be right: what
    /// is invalid never means unlimited, nor the plan.
    pub fn for_client(
        self: &Arc<PlanEntry>,
        client: &ClientValue,
        now_ms: u64,
    ) -> Option<Arc<PlanEntry>> {
        match client.overridden.as_ref().filter(|own| now_ms < own.expires_at) {
            None => Some(Arc::clone(self)),
            Some(own) => self.under(own).map(Arc::new),
        }
    }

    fn under(&self, own: &OverrideValue) -> Option<PlanEntry> {
        let burst = own.burst.map(Limit::try_from).transpose().ok()?;
        let sustained = own.sustained.map(Limit::try_from).transpose().ok()?;
        let failure = own.failure.as_deref().map(str::parse::<FailurePolicy>).transpose().ok()?;
        let own = |limits| self.region.part_of(PlanLimits::Limited(limits));
        let limits = match (burst, sustained, self.limits) {
            (None, None, limits) => limits,
            (Some(burst), Some(_), _) => own(Limits { burst, sustained }),
            (Some(burst), None, PlanLimits::Unlimited) => own(Limits { burst, sustained: None }),
            // The only limit there is.
            (None, Some(only), PlanLimits::Unlimited) => {
                own(Limits { burst: only, sustained: None })
            }
            (burst, sustained, PlanLimits::Limited(plan)) => {
                self.partly_own(burst, sustained, plan)
            }
        };
        let failure = failure.unwrap_or(self.failure);
        Some(PlanEntry { limits, failure, ..self.clone() })
    }

    /// The plan's are this region's part already.
    fn partly_own(
        &self,
        burst: Option<Limit>,
        sustained: Option<Limit>,
        plan: Limits,
    ) -> PlanLimits {
        let part = |limit: Limit| match self
            .region
            .part_of(PlanLimits::Limited(Limits { burst: limit, sustained: None }))
        {
            PlanLimits::Limited(limits) => limits.burst,
            PlanLimits::Unlimited => limit,
        };
        PlanLimits::Limited(Limits {
            burst: burst.map_or(plan.burst, part),
            sustained: sustained.map(part).or(plan.sustained),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limiter_core::PlanVersion;
    use serde_json::json;
    use wire::plan::PlanSpec;
    use wire::policy::ClientState;
    use wire::strict::Problems;

    use crate::region::RegionShare;

    const END: u64 = 1_000;

    fn plan(body: &serde_json::Value, revision: u64, share: u64) -> Arc<PlanEntry> {
        let spec = PlanSpec::parse("pro", body, "", &mut Problems::new()).unwrap();
        Arc::new(PlanEntry::new(&spec, revision, RegionShare::of_ten_thousand(share).unwrap()))
    }

    fn limited() -> serde_json::Value {
        json!({
            "burst": { "capacity": 10, "refill": "1/s" },
            "sustained": { "capacity": 100, "refill": "100/d" },
            "failure": "closed",
        })
    }

    fn client(revision: u64, own: &serde_json::Value) -> ClientValue {
        ClientValue {
            id: "acme".to_owned(),
            plan: "pro".to_owned(),
            state: ClientState::Active,
            overridden: serde_json::from_value(own.clone()).unwrap(),
            reset_revision: 0,
            revision,
        }
    }

    fn capacities(plan: &PlanEntry) -> Option<(u64, Option<u64>)> {
        match plan.limits {
            PlanLimits::Unlimited => None,
            PlanLimits::Limited(limits) => {
                let sustained = limits.sustained.map(|limit| limit.capacity().get());
                Some((limits.burst.capacity().get(), sustained))
            }
        }
    }

    #[test]
    fn whole_limits_are_replaced_and_what_is_absent_is_the_plans() {
        let fifty = json!({ "capacity": 50, "tokens": 5, "per_us": 1_000_000 });
        let unlimited = json!({ "unlimited": true });
        for (body, own, expected) in [
            (limited(), json!({ "burst": fifty }), Some((50, Some(100)))),
            (limited(), json!({ "sustained": fifty }), Some((10, Some(50)))),
            (limited(), json!({ "burst": fifty, "sustained": fifty }), Some((50, Some(50)))),
            (limited(), json!({ "failure": "open" }), Some((10, Some(100)))),
            (unlimited.clone(), json!({ "burst": fifty }), Some((50, None))),
            (unlimited.clone(), json!({ "sustained": fifty }), Some((50, None))),
            (unlimited, json!({ "failure": "open" }), None),
        ] {
            let mut own = own;
            own["expires_at"] = json!(END);
            let client = client(1, &own);
            let plan = plan(&body, 1, 10_000);
            let now = plan.for_client(&client, END - 1).unwrap();
            assert_eq!(capacities(&now), expected, "{own}");
            assert_eq!(now.failure.to_string() == "open", own.get("failure").is_some(), "{own}");
            let after = plan.for_client(&client, END).unwrap();
            assert_eq!(after, plan, "it ends by itself: {own}");
        }
    }

    #[test]
    fn a_region_gives_its_part_of_own_limits_and_takes_none_of_the_plans_twice() {
        let fifty = json!({ "capacity": 50, "tokens": 5, "per_us": 1_000_000 });
        for (own, expected) in [
            (json!({ "burst": fifty, "expires_at": END }), (25, Some(50))),
            (json!({ "sustained": fifty, "expires_at": END }), (5, Some(25))),
            (json!({ "burst": fifty, "sustained": fifty, "expires_at": END }), (25, Some(25))),
        ] {
            let now = plan(&limited(), 1, 5_000).for_client(&client(1, &own), 0).unwrap();
            assert_eq!(capacities(&now), Some(expected), "{own}");
        }
    }

    #[test]
    fn the_version_grows_by_every_change_and_by_the_end_and_never_goes_back() {
        let own = json!({ "burst": null, "failure": "open", "expires_at": END });
        let (none, version) = (json!(null), |plan, client, now| {
            plan_version(&super::tests::plan(&limited(), plan, 10_000), client, now)
        });
        let steps = [
            version(7, &client(5, &none), 0),
            version(7, &client(8, &own), END - 1),
            version(7, &client(8, &own), END),
            version(7, &client(9, &none), END + 1),
            version(10, &client(9, &none), END + 1),
        ];
        assert_eq!(steps.map(|PlanVersion(version)| version), [14, 16, 17, 18, 20]);
    }

    fn plan_version(plan: &PlanEntry, client: &ClientValue, now_ms: u64) -> PlanVersion {
        plan.version_for(client, now_ms)
    }

    #[test]
    fn own_limits_that_cannot_be_right_leave_no_numbers_and_no_freedom() {
        for own in [
            json!({ "burst": { "capacity": 0, "tokens": 1, "per_us": 1 }, "expires_at": END }),
            json!({ "sustained": { "capacity": 5, "tokens": 1, "per_us": 0 }, "expires_at": END }),
            json!({ "failure": "often", "expires_at": END }),
        ] {
            let plan = plan(&json!({ "unlimited": true }), 1, 10_000);
            assert_eq!(plan.for_client(&client(1, &own), 0), None, "{own}");
        }
    }
}
