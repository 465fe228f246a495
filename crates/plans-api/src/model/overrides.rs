//! A client's own limits: whole ones in place of its plan's, for at most a year.

use limiter_core::{Cost, FailurePolicy, Limit, Limits, RefillRate};
use serde_json::Value;
use wire::client::plans::{LimitBody, OverrideBody};
use wire::error::{ErrorCode, FieldError};
use wire::plan::{CostRule, LimitValue, add_limit_error, parse_limit};
use wire::policy::OverrideValue;
use wire::strict::{Fields, Problems};

use super::api_key::expiry;
use super::plan::limit_body;

/// Longest time that an override holds, in milliseconds: a year.
pub(crate) const OVERRIDE_MS_MAX: u64 = 366 * 86_400_000;

/// A checked body: any of `burst`, `sustained`, `failure`; `expires_at`, `reason`?.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OverrideSpec {
    pub(crate) burst: Option<Limit>,
    pub(crate) sustained: Option<Limit>,
    pub(crate) failure: Option<FailurePolicy>,
    pub(crate) expires_at: u64,
    pub(crate) reason: Option<String>,
}

impl OverrideSpec {
    pub(crate) fn parse(value: &Value, now: u64, problems: &mut Problems) -> Option<OverrideSpec> {
        let mut fields = Fields::of(value, "", problems);
        let mut limit = |name: &'static str, problems: &mut Problems| {
            fields.get(name).and_then(|value| parse_limit(value, name, problems))
        };
        let (burst, sustained) = (limit("burst", problems), limit("sustained", problems));
        let failure = match fields.text("failure", problems).map(str::parse) {
            None => None,
            Some(Ok(failure)) => Some(failure),
            Some(Err(error)) => {
                add_limit_error(problems, "failure".to_owned(), &error);
                None
            }
        };
        let says = ["burst", "sustained", "failure"]
            .iter()
            .any(|name| value.get(name).is_some_and(|given| !given.is_null()));
        if !says {
            let detail = "say at least one of burst, sustained and failure";
            problems.add("burst", ErrorCode::InvalidValue, detail);
        }
        let expires_at = expiry(&mut fields, now, problems);
        match expires_at {
            None if fields.get("expires_at").is_none() => fields.missing("expires_at", problems),
            Some(at) if at > now.saturating_add(OVERRIDE_MS_MAX) => {
                let detail = format!("must be within a year, not `{at}`");
                problems.add("expires_at", ErrorCode::InvalidValue, detail);
            }
            None | Some(_) => {}
        }
        let reason = fields.text("reason", problems).map(ToOwned::to_owned);
        fields.finish(problems);
        Some(OverrideSpec { burst, sustained, failure, expires_at: expires_at?, reason })
    }

    /// Cost rules of the plan that could never be paid under these limits.
    pub(crate) fn unpayable(&self, plan: Option<Limits>, costs: &[CostRule]) -> Vec<FieldError> {
        let burst = self.burst.or(plan.map(|plan| plan.burst)).or(self.sustained);
        let sustained = self.sustained.or(plan.and_then(|plan| plan.sustained));
        let Some(burst) = burst else { return Vec::new() };
        let limits = Limits { burst, sustained };
        let (most, field) = (limits.smallest_capacity(), self.smallest_field());
        let too_dear = costs
            .iter()
            .filter(|rule| Cost::new(rule.cost).is_ok_and(|cost| limits.check_cost(cost).is_err()));
        too_dear
            .map(|rule| FieldError {
                field: field.to_owned(),
                code: ErrorCode::CostOutOfRange,
                detail: format!(
                    "{most} tokens are the most there would be, and the plan's rule for the route \
                     `{}` costs {}",
                    rule.route, rule.cost
                ),
            })
            .collect()
    }

    fn smallest_field(&self) -> &'static str {
        match (self.burst, self.sustained) {
            (Some(burst), Some(sustained)) if sustained.capacity() < burst.capacity() => {
                "sustained.capacity"
            }
            (None, Some(_)) => "sustained.capacity",
            (Some(_) | None, _) => "burst.capacity",
        }
    }

    /// As the API shows it.
    pub(crate) fn body(&self, reason: &str) -> OverrideBody {
        OverrideBody {
            burst: self.burst.map(|limit| limit_body(limit.into())),
            sustained: self.sustained.map(|limit| limit_body(limit.into())),
            failure: self.failure.map(|failure| failure.to_string()),
            reason: reason.to_owned(),
            expires_at: self.expires_at,
        }
    }
}

/// As gateways are told it. What cannot be read becomes a limit that no gateway takes: it never
/// means unlimited.
pub(crate) fn value(own: &OverrideBody) -> OverrideValue {
    OverrideValue {
        burst: own.burst.as_ref().map(limit_value),
        sustained: own.sustained.as_ref().map(limit_value),
        failure: own.failure.clone(),
        expires_at: own.expires_at,
    }
}

/// The exact integers of a limit as people write it.
pub(crate) fn limit_value(limit: &LimitBody) -> LimitValue {
    match limit.refill.parse::<RefillRate>() {
        Ok(rate) => {
            LimitValue { capacity: limit.capacity, tokens: rate.tokens(), per_us: rate.per_us() }
        }
        Err(_damaged) => LimitValue { capacity: 0, tokens: 0, per_us: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(body: &Value) -> Vec<(String, ErrorCode)> {
        let mut problems = Problems::new();
        let spec = OverrideSpec::parse(body, 1_000, &mut problems);
        let errors = problems.none_or(spec).unwrap_err();
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    #[test]
    fn all_mistakes_of_an_override_are_named_at_once() {
        let bad = json!({
            "burst": { "capacity": 0, "refill": "1/s" },
            "sustained": { "capacity": 1 },
            "failure": "often",
            "expires_at": 1_000,
            "why": "x",
        });
        let fields: Vec<String> = refused(&bad).into_iter().map(|(field, _)| field).collect();
        for field in ["burst.capacity", "sustained.refill", "failure", "expires_at", "why"] {
            assert!(fields.iter().any(|named| named == field), "{field} is missing in {fields:?}");
        }
        assert_eq!(fields.len(), 5, "{fields:?}");
    }

    #[test]
    fn an_override_says_something_and_ends_within_a_year() {
        let fifty = json!({ "capacity": 50, "refill": "5/s" });
        for (body, field) in [
            (json!({ "expires_at": 2_000 }), "burst"),
            (json!({ "burst": fifty }), "expires_at"),
            (json!({ "burst": fifty, "expires_at": 1_001 + OVERRIDE_MS_MAX }), "expires_at"),
        ] {
            let errors = refused(&body);
            assert_eq!(errors, [(field.to_owned(), ErrorCode::InvalidValue)], "{body}");
        }
        let last = json!({ "failure": "open", "expires_at": 1_000 + OVERRIDE_MS_MAX });
        let mut problems = Problems::new();
        let spec = OverrideSpec::parse(&last, 1_000, &mut problems);
        assert!(problems.none_or(spec).is_ok());
    }

    #[test]
    fn what_is_written_is_what_gateways_are_told() {
        for refill in ["50/s", "6/m", "2000000/d", "30/10s", "0"] {
            let rate: RefillRate = refill.parse().unwrap();
            let body = LimitBody { capacity: 7, refill: rate.to_string() };
            let told = limit_value(&body);
            assert_eq!((told.tokens, told.per_us), (rate.tokens(), rate.per_us()), "{refill}");
        }
        let damaged = LimitBody { capacity: 7, refill: "often".to_owned() };
        assert!(Limit::try_from(limit_value(&damaged)).is_err(), "no gateway takes it");
    }
}
