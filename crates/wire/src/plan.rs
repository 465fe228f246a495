//! A plan as people write it (files, API, CLI) and as gateways are told it (feed, snapshot).
//!
//! [`PlanSpec::parse`] is the one reader for files and bodies, [`PlanValue::check`] the last door
//! at a gateway; both end in the checked constructors of `limiter-core`.

use std::collections::BTreeMap;

use limiter_core::{Capacity, Cost, FailurePolicy, Limit, LimitError, Limits, RefillRate};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{ErrorCode, FieldError};
use crate::name::Name;
use crate::strict::{Fields, Problems, is_printable, shown};

/// Most cost rules of a plan.
pub const COST_RULES_MAX: usize = 64;
/// Longest note, in bytes.
pub const NOTE_BYTES_MAX: usize = 1_024;

/// What a plan limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanLimits {
    /// Only by the explicit flag; no number means it.
    Unlimited,
    /// One or two buckets.
    Limited(Limits),
}

/// What shares one bucket pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// All keys of a client.
    #[default]
    Client,
    /// Each key alone.
    Key,
}

/// A route's cost under a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CostRule {
    /// Name of the route.
    pub route: String,
    /// Only this method, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Tokens a request takes.
    pub cost: u64,
}

/// A checked plan without its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanSpec {
    /// Its name.
    pub name: Name,
    /// What it limits.
    pub limits: PlanLimits,
    /// What shares a bucket.
    pub scope: Scope,
    /// What is admitted without a store.
    pub failure: FailurePolicy,
    /// Dearer and cheaper routes; first match.
    pub costs: Vec<CostRule>,
    /// For selecting.
    pub labels: BTreeMap<String, String>,
    /// For people.
    pub note: String,
}

impl PlanSpec {
    /// Reads a plan from an object (a TOML table or a JSON body without its name). Every mistake
    /// is added to `problems` with its path under `path`.
    pub fn parse(
        name: &str,
        value: &Value,
        path: &str,
        problems: &mut Problems,
    ) -> Option<PlanSpec> {
        let mut fields = Fields::of(value, path, problems);
        let name = Name::new(name)
            .map_err(|error| problems.add(path, ErrorCode::InvalidValue, error.to_string()))
            .ok();
        let limits = parse_limits(&mut fields, problems);
        let failure = match fields.text("failure", problems).map(str::parse) {
            None => FailurePolicy::default(),
            Some(Ok(failure)) => failure,
            Some(Err(error)) => {
                add_limit_error(problems, fields.path("failure"), &error);
                FailurePolicy::default()
            }
        };
        let scope = parse_scope(&mut fields, problems);
        let costs = parse_costs(&mut fields, limits, problems);
        let labels = parse_labels(&mut fields, problems);
        let note = fields.text("note", problems).unwrap_or_default().to_owned();
        if note.len() > NOTE_BYTES_MAX {
            let detail = format!("is {} bytes long, at most {NOTE_BYTES_MAX} fit", note.len());
            problems.add(fields.path("note"), ErrorCode::InvalidValue, detail);
        }
        fields.finish(problems);
        Some(PlanSpec { name: name?, limits: limits?, scope, failure, costs, labels, note })
    }

    /// The plan as an object, as [`PlanSpec::parse`] reads it.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        match self.limits {
            PlanLimits::Unlimited => {
                object.insert("unlimited".to_owned(), json!(true));
            }
            PlanLimits::Limited(limits) => {
                object.insert("burst".to_owned(), limit_text(limits.burst));
                if let Some(limit) = limits.sustained {
                    object.insert("sustained".to_owned(), limit_text(limit));
                }
            }
        }
        object.insert("failure".to_owned(), json!(self.failure.to_string()));
        object.insert("scope".to_owned(), json!(self.scope));
        if !self.costs.is_empty() {
            object.insert("costs".to_owned(), json!(self.costs));
        }
        if !self.labels.is_empty() {
            object.insert("labels".to_owned(), json!(self.labels));
        }
        if !self.note.is_empty() {
            object.insert("note".to_owned(), json!(self.note));
        }
        Value::Object(object)
    }

    /// What gateways are told.
    pub fn to_value(&self, revision: u64) -> PlanValue {
        let (unlimited, burst, sustained) = match self.limits {
            PlanLimits::Unlimited => (true, None, None),
            PlanLimits::Limited(limits) => (
                false,
                Some(LimitValue::from(limits.burst)),
                limits.sustained.map(LimitValue::from),
            ),
        };
        PlanValue {
            name: self.name.to_string(),
            burst,
            sustained,
            costs: self.costs.clone(),
            scope: self.scope,
            failure: self.failure.to_string(),
            unlimited,
            revision,
        }
    }
}

/// `{"capacity": 100, "refill": "50/s"}`.
pub fn limit_text(limit: Limit) -> Value {
    json!({ "capacity": limit.capacity().get(), "refill": limit.refill().to_string() })
}

/// Notes a refused number under its stable code.
pub fn add_limit_error(problems: &mut Problems, field: String, error: &LimitError) {
    let code = ErrorCode::named(error.code()).unwrap_or(ErrorCode::InvalidValue);
    problems.add(field, code, error.to_string());
}

fn parse_limits(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<PlanLimits> {
    let unlimited = fields.flag("unlimited", problems);
    let burst = fields.get("burst");
    let sustained = fields.get("sustained");
    if unlimited {
        if burst.is_some() || sustained.is_some() {
            let detail = "an unlimited plan has no burst and no sustained limit";
            problems.add(fields.path("unlimited"), ErrorCode::UnlimitedWithLimits, detail);
        }
        return Some(PlanLimits::Unlimited);
    }
    let Some(burst) = burst else {
        fields.missing("burst", problems);
        return None;
    };
    let burst = parse_limit(burst, &fields.path("burst"), problems);
    let sustained = match sustained {
        None => None,
        Some(value) => Some(parse_limit(value, &fields.path("sustained"), problems)?),
    };
    Some(PlanLimits::Limited(Limits { burst: burst?, sustained }))
}

/// Reads `{capacity, refill}`.
pub fn parse_limit(value: &Value, path: &str, problems: &mut Problems) -> Option<Limit> {
    if let Some(text) = value.as_str() {
        let (capacity, refill) = text
            .split_once('@')
            .filter(|(capacity, refill)| {
                capacity.parse::<u64>().is_ok() && refill.parse::<RefillRate>().is_ok()
            })
            .unwrap_or(("20", "5/s"));
        let detail = format!(
            "must be a capacity and a refill, such as {{ capacity = {capacity}, \
             refill = \"{refill}\" }}, not {}",
            shown(value)
        );
        problems.add(path, ErrorCode::InvalidValue, detail);
        return None;
    }
    let mut fields = Fields::of(value, path, problems);
    let capacity = fields.whole("capacity", ErrorCode::CapacityOutOfRange, problems);
    let capacity_given = fields.get("capacity").is_some();
    if !capacity_given {
        fields.missing("capacity", problems);
    }
    let capacity = capacity.and_then(|tokens| {
        Capacity::new(tokens)
            .map_err(|error| add_limit_error(problems, fields.path("capacity"), &error))
            .ok()
    });
    let refill = match fields.get("refill") {
        None => {
            fields.missing("refill", problems);
            None
        }
        Some(Value::String(text)) => text
            .parse::<RefillRate>()
            .map_err(|error| add_limit_error(problems, fields.path("refill"), &error))
            .ok(),
        Some(other) => {
            let detail = format!("must be a text like `50/s`, not {}", shown(other));
            problems.add(fields.path("refill"), ErrorCode::RefillOutOfRange, detail);
            None
        }
    };
    let place = fields.path("refill");
    fields.finish(problems);
    Limit::new(capacity?, refill?).map_err(|error| add_limit_error(problems, place, &error)).ok()
}

fn parse_scope(fields: &mut Fields<'_>, problems: &mut Problems) -> Scope {
    match fields.text("scope", problems) {
        None | Some("client") => Scope::Client,
        Some("key") => Scope::Key,
        Some(other) => {
            let detail = format!("must be client or key, not `{other}`");
            problems.add(fields.path("scope"), ErrorCode::InvalidValue, detail);
            Scope::Client
        }
    }
}

fn parse_costs(
    fields: &mut Fields<'_>,
    limits: Option<PlanLimits>,
    problems: &mut Problems,
) -> Vec<CostRule> {
    let path = fields.path("costs");
    let rules = match fields.get("costs") {
        None => return Vec::new(),
        Some(Value::Array(rules)) if rules.len() <= COST_RULES_MAX => rules,
        Some(_) => {
            let detail = format!("must be a list of at most {COST_RULES_MAX} rules");
            problems.add(path, ErrorCode::InvalidValue, detail);
            return Vec::new();
        }
    };
    let mut costs = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let mut fields = Fields::of(rule, &path, problems);
        let route = fields.text("route", problems).map(ToOwned::to_owned);
        let method = fields.text("method", problems).map(ToOwned::to_owned);
        let cost = fields.whole("cost", ErrorCode::CostOutOfRange, problems);
        if fields.get("cost").is_none() {
            fields.missing("cost", problems);
        }
        match &route {
            None => fields.missing("route", problems),
            Some(route) => {
                if let Err(error) = Name::new(route) {
                    problems.add(fields.path("route"), ErrorCode::InvalidValue, error.to_string());
                }
            }
        }
        let cost = cost.and_then(|cost| {
            check_cost(cost, limits)
                .map_err(|error| add_limit_error(problems, fields.path("cost"), &error))
                .ok()
        });
        fields.finish(problems);
        if let (Some(route), Some(cost)) = (route, cost) {
            costs.push(CostRule { route, method, cost });
        }
    }
    costs
}

fn check_cost(cost: u64, limits: Option<PlanLimits>) -> Result<u64, LimitError> {
    let cost = Cost::new(cost)?;
    match limits {
        Some(PlanLimits::Limited(limits)) => limits.check_cost(cost).map(Cost::get),
        Some(PlanLimits::Unlimited) | None => Ok(cost.get()),
    }
}

/// Reads labels: names to texts of at most 64 bytes.
pub fn parse_labels(fields: &mut Fields<'_>, problems: &mut Problems) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let Some(value) = fields.get("labels") else { return labels };
    let path = fields.path("labels");
    let Some(object) = value.as_object() else {
        problems.add(path, ErrorCode::InvalidValue, "must be an object of texts");
        return labels;
    };
    for (name, value) in object {
        match value.as_str() {
            Some(text) if Name::new(name).is_ok() && text.len() <= 64 && is_printable(text) => {
                labels.insert(name.clone(), text.to_owned());
            }
            _ => {
                let detail = "a label is a name with a text of at most 64 bytes";
                problems.add(format!("{path}.{name}"), ErrorCode::InvalidValue, detail);
            }
        }
    }
    labels
}

/// A limit as exact integers: `tokens` every `per_us` microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitValue {
    /// Capacity in tokens.
    pub capacity: u64,
    /// Tokens earned; 0 is the fixed allowance.
    pub tokens: u64,
    /// In this many microseconds.
    pub per_us: u64,
}

impl From<Limit> for LimitValue {
    fn from(limit: Limit) -> LimitValue {
        LimitValue {
            capacity: limit.capacity().get(),
            tokens: limit.refill().tokens(),
            per_us: limit.refill().per_us(),
        }
    }
}

impl TryFrom<LimitValue> for Limit {
    type Error = LimitError;

    fn try_from(value: LimitValue) -> Result<Limit, LimitError> {
        Limit::new(Capacity::new(value.capacity)?, RefillRate::new(value.tokens, value.per_us)?)
    }
}

/// A plan as gateways are told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlanValue {
    /// Its name.
    pub name: String,
    /// Burst limit; absent only if unlimited.
    pub burst: Option<LimitValue>,
    /// Sustained limit.
    pub sustained: Option<LimitValue>,
    /// Cost rules.
    #[serde(default)]
    pub costs: Vec<CostRule>,
    /// What shares a bucket.
    #[serde(default)]
    pub scope: Scope,
    /// Failure policy as text.
    pub failure: String,
    /// No limits at all.
    #[serde(default)]
    pub unlimited: bool,
    /// Revision of its last change.
    pub revision: u64,
}

impl PlanValue {
    /// The last door: what a gateway may rely on, or every mistake.
    pub fn check(&self) -> Result<PlanSpec, Vec<FieldError>> {
        let mut problems = Problems::new();
        let path = |field: &str| format!("plan.{}.{field}", self.name);
        let name = Name::new(&self.name)
            .map_err(|error| problems.add("plan.name", ErrorCode::InvalidValue, error.to_string()))
            .ok();
        let mut limit = |field: &str, value: Option<LimitValue>| {
            value.and_then(|value| {
                Limit::try_from(value)
                    .map_err(|error| add_limit_error(&mut problems, path(field), &error))
                    .ok()
            })
        };
        let burst = limit("burst", self.burst);
        let sustained = limit("sustained", self.sustained);
        let limits = match (self.unlimited, burst) {
            (true, _) if self.burst.is_some() || self.sustained.is_some() => {
                let detail = "an unlimited plan has no burst and no sustained limit";
                problems.add(path("unlimited"), ErrorCode::UnlimitedWithLimits, detail);
                None
            }
            (true, _) => Some(PlanLimits::Unlimited),
            (false, Some(burst)) if sustained.is_some() == self.sustained.is_some() => {
                Some(PlanLimits::Limited(Limits { burst, sustained }))
            }
            (false, Some(_)) => None,
            (false, None) => {
                if self.burst.is_none() {
                    problems.add(path("burst"), ErrorCode::InvalidValue, "is missing");
                }
                None
            }
        };
        let failure = self.failure.parse::<FailurePolicy>();
        if let Err(error) = &failure {
            add_limit_error(&mut problems, path("failure"), error);
        }
        for rule in &self.costs {
            if let Err(error) = check_cost(rule.cost, limits) {
                add_limit_error(&mut problems, path("costs"), &error);
            }
        }
        let spec = name.zip(limits).map(|(name, limits)| PlanSpec {
            name,
            limits,
            scope: self.scope,
            failure: failure.unwrap_or_default(),
            costs: self.costs.clone(),
            labels: BTreeMap::new(),
            note: String::new(),
        });
        problems.none_or(spec)
    }
}
