//! Errors as callers read them: problem+json (RFC 9457) and the closed list of codes.
//!
//! The `code` is what programs match on; `detail` and `hint` are for people. A body lists every
//! mistake at once in `errors`.

use serde::{Deserialize, Serialize};

/// Media type of every refusal.
pub const PROBLEM_JSON: &str = "application/problem+json";

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $title:literal;)*) => {
        /// Every code that any part of Weir answers with. Programs may match on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum ErrorCode {
            $(#[doc = $title] #[serde(rename = $name)] $variant,)*
        }

        impl ErrorCode {
            /// All codes.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant),*];

            /// Its stable name.
            pub const fn name(self) -> &'static str {
                match self { $(ErrorCode::$variant => $name,)* }
            }

            /// The HTTP status it is sent with.
            pub const fn status(self) -> u16 {
                match self { $(ErrorCode::$variant => $status,)* }
            }

            /// One line for people; the same for every occurrence.
            pub const fn title(self) -> &'static str {
                match self { $(ErrorCode::$variant => $title,)* }
            }
        }
    };
}

codes! {
    BadRequest "bad_request" 400 "The request cannot be read";
    KeyMalformed "key_malformed" 400 "The API key has bytes that no key has";
    KeyAmbiguous "key_ambiguous" 400 "More than one API key was shown";
    KeyMissing "key_missing" 401 "An API key is needed";
    KeyInvalid "key_invalid" 401 "The API key is not valid";
    TokenMissing "token_missing" 401 "An operator token is needed";
    TokenInvalid "token_invalid" 401 "The operator token is not valid";
    ClientSuspended "client_suspended" 403 "The client is suspended";
    CostExceedsCapacity "cost_exceeds_capacity" 403 "The request costs more than the plan can ever hold";
    RoleTooSmall "role_too_small" 403 "The token's role does not allow this";
    OwnApproval "own_approval" 403 "Nobody accepts what they asked for themselves";
    RouteUnknown "route_unknown" 404 "No route leads there";
    NotFound "not_found" 404 "There is no such object";
    MethodNotAllowed "method_not_allowed" 405 "The method is not allowed here";
    RequestTimeout "request_timeout" 408 "The request did not arrive in time";
    InUse "in_use" 409 "The object is in use";
    AlreadyCreated "already_created" 409 "The object exists already";
    NotNextStep "not_next_step" 409 "This is not the next step of the rollout";
    GateRefused "gate_refused" 409 "The gate does not allow this step";
    HistoryGone "history_gone" 410 "The feed cannot be continued from there";
    LengthRequired "length_required" 411 "The length of the body must be said";
    Changed "changed" 412 "The object was changed by somebody else";
    BodyTooLarge "body_too_large" 413 "The body is too large";
    TargetTooLong "target_too_long" 414 "The request target is too long";
    CapacityOutOfRange "capacity_out_of_range" 422 "A capacity is out of range";
    RefillOutOfRange "refill_out_of_range" 422 "A refill rate is out of range";
    Resolution "resolution" 422 "Capacity and refill cannot be counted exactly together";
    CostOutOfRange "cost_out_of_range" 422 "A cost is out of range";
    FailureOutOfRange "failure_out_of_range" 422 "A failure policy is out of range";
    UnlimitedWithLimits "unlimited_with_limits" 422 "A plan is either unlimited or has limits";
    UnknownField "unknown_field" 422 "A field is not known";
    InvalidValue "invalid_value" 422 "A value is not valid";
    PolicyTooLarge "policy_too_large" 422 "The policy would be too large for a gateway";
    IdempotencyMismatch "idempotency_mismatch" 422 "The idempotency key was used for another call";
    PreconditionMissing "precondition_missing" 428 "Say which version you change (If-Match)";
    QuotaExceeded "quota_exceeded" 429 "The client's limit is used up";
    TooManyConnections "too_many_connections" 429 "Too many connections";
    TooManyAttempts "too_many_attempts" 429 "Too many failed attempts";
    HeadTooLarge "head_too_large" 431 "The request head is too large";
    Internal "internal" 500 "Something went wrong on our side";
    NotImplemented "not_implemented" 501 "This is not supported";
    UpstreamFailed "upstream_failed" 502 "The service could not be reached or answered badly";
    LimiterClosed "limiter_closed" 503 "The limit cannot be checked now, and the plan refuses then";
    KeyUnverified "key_unverified" 503 "The API key cannot be verified now";
    PlanInvalid "plan_invalid" 503 "The client's plan cannot be used";
    NoPolicy "no_policy" 503 "The gateway has no plans yet";
    Overloaded "overloaded" 503 "Too much at once";
    Draining "draining" 503 "The process is shutting down";
    UpstreamUnavailable "upstream_unavailable" 503 "No endpoint of the service is available";
    DatabaseUnavailable "database_unavailable" 503 "The database does not answer";
    EvidenceUnavailable "evidence_unavailable" 503 "The evidence cannot be read now";
    GatewayUnreachable "gateway_unreachable" 503 "No gateway can be asked";
    UpstreamTimeout "upstream_timeout" 504 "The service did not answer in time";
}

impl ErrorCode {
    /// Its `type`: a URN of ours, or the registered one for an exceeded quota.
    pub fn problem_type(self) -> String {
        if self == ErrorCode::QuotaExceeded {
            return "https://iana.org/assignments/http-problem-types#quota-exceeded".to_owned();
        }
        format!("urn:weir:problem:{}", self.name())
    }

    /// The code with this name.
    pub fn named(name: &str) -> Option<ErrorCode> {
        ErrorCode::ALL.iter().copied().find(|code| code.name() == name)
    }
}

/// One mistake in a body or file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FieldError {
    /// Where, as a path: `plan.pro.burst.capacity`.
    pub field: String,
    /// Which kind of mistake.
    pub code: ErrorCode,
    /// What is wrong and what would be right; names the value.
    pub detail: String,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.detail)
    }
}

/// The body of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// URI of the kind of problem.
    #[serde(rename = "type")]
    pub problem_type: String,
    /// Its one line.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Stable name; a code of a newer peer reads as `internal`.
    #[serde(deserialize_with = "known_or_internal")]
    pub code: ErrorCode,
    /// What happened this time.
    pub detail: String,
    /// What to do next, if there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The request's id, to find it in logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Every mistake of the body.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The object as it is now, where somebody else has changed or made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<serde_json::Value>,
    /// Of a refused gate: what the number says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<crate::gate::GateVerdict>,
    /// Of a refused gate: the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<crate::gate::GateReport>,
}

fn known_or_internal<'de, D: serde::Deserializer<'de>>(from: D) -> Result<ErrorCode, D::Error> {
    let name = String::deserialize(from)?;
    Ok(ErrorCode::named(&name).unwrap_or(ErrorCode::Internal))
}

impl ErrorBody {
    /// A problem with nothing but its code and what happened.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> ErrorBody {
        ErrorBody {
            problem_type: code.problem_type(),
            title: code.title().to_owned(),
            status: code.status(),
            code,
            detail: detail.into(),
            hint: None,
            request_id: None,
            errors: Vec::new(),
            object: None,
            verdict: None,
            report: None,
        }
    }

    /// A body with mistakes: the first gives the code, all are listed.
    pub fn of_fields(errors: Vec<FieldError>) -> ErrorBody {
        let first = errors.first().map_or(ErrorCode::InvalidValue, |e| e.code);
        let detail = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        ErrorBody { errors, ..ErrorBody::new(first, detail) }
    }

    /// Says what to do next.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> ErrorBody {
        ErrorBody { hint: Some(hint.into()), ..self }
    }
}
