//! The tower layer: counts what did not come through the gateway, refuses above the coarse limit,
//! writes the service's decision into the response.
//!
//! It believes the identity headers, because the gateway drops spoofed ones; whoever reaches the
//! service around the gateway is served and counted, since a service cannot tell who that is.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use limiter_core::{Clock, Limit, LimitError, Limits};
use parking_lot::{Mutex, RwLock};
use tower::{Layer, Service};
use wire::batch::Side;
use wire::decision_header::{self, ServiceDecision};
use wire::error::{ErrorBody, ErrorCode, FieldError, PROBLEM_JSON};
use wire::plan::{PlanLimits, Scope};
use wire::policy::{SafetyLimits, SafetyOverride};

use crate::bucket::{CoarseAnswer, CoarseLimit};
use crate::clients::Clients;
use crate::{CLIENT_HEADER, PLAN_HEADER};

/// The coarse limits of this instance. Clones share everything.
#[derive(Debug, Clone)]
pub struct SafetyLimit {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    instances: u32,
    clock: Arc<dyn Clock>,
    plans: RwLock<Arc<Plans>>,
    clients: Mutex<Clients>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Plans {
    revision: u64,
    kept: HashMap<String, Kept>,
    /// Clients with limits of their own.
    own: HashMap<String, Own>,
    multiple: u32,
}

/// A client's own limits; what is absent is the plan's.
#[derive(Debug, Clone, Copy)]
struct Own {
    burst: Option<Limit>,
    sustained: Option<Limit>,
}

impl Own {
    fn of(told: &SafetyOverride) -> Result<Own, LimitError> {
        Ok(Own {
            burst: told.burst.map(Limit::try_from).transpose()?,
            sustained: told.sustained.map(Limit::try_from).transpose()?,
        })
    }

    fn over(self, plan: Limits) -> Limits {
        Limits {
            burst: self.burst.unwrap_or(plan.burst),
            sustained: self.sustained.or(plan.sustained),
        }
    }
}

/// What is kept of a plan.
#[derive(Debug, Clone, Copy)]
enum Kept {
    Limit(CoarseLimit, Limits),
    /// Unlimited, or one bucket for each key.
    Nothing,
}

#[derive(Debug, Default)]
struct Counters {
    admitted: AtomicU64,
    refused: AtomicU64,
    bypassed: AtomicU64,
    unknown_plan: AtomicU64,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Requests within the coarse limit, or of a plan that has none.
    pub admitted: u64,
    /// Requests refused above it.
    pub refused: u64,
    /// Requests without the gateway's identity header. They were served.
    pub bypassed: u64,
    /// Requests of a plan that this instance was not told about. They were served.
    pub unknown_plan: u64,
    /// Clients remembered now.
    pub clients: u64,
    /// Revision of the limits in force; 0 before the first.
    pub revision: u64,
}

enum Verdict {
    /// Served, and the response carries this decision if it has none.
    Serve(Option<ServiceDecision>),
    Refuse(ServiceDecision, Option<u64>),
}

impl SafetyLimit {
    /// One of `instances` replicas of a service. Until the first [`SafetyLimit::update`] nothing
    /// is limited.
    pub fn new(instances: u32, clock: Arc<dyn Clock>) -> SafetyLimit {
        let shared = Shared {
            instances,
            clock,
            plans: RwLock::default(),
            clients: Mutex::default(),
            counters: Counters::default(),
        };
        SafetyLimit { shared: Arc::new(shared) }
    }

    /// Puts other plans in force. A plan that cannot be right keeps its last good limit, and is
    /// told here with every mistake; a client's own limits that cannot be right are not kept.
    pub fn update(&self, limits: &SafetyLimits) -> Vec<FieldError> {
        let before = self.shared.plans.read().clone();
        let mut problems = Vec::new();
        let mut kept = HashMap::with_capacity(limits.plans.len());
        for plan in &limits.plans {
            let now = match plan.check() {
                Ok(spec) => match (spec.limits, spec.scope) {
                    (PlanLimits::Limited(numbers), Scope::Client) => Some(Kept::Limit(
                        CoarseLimit::new(numbers, limits.multiple, self.shared.instances),
                        numbers,
                    )),
                    (PlanLimits::Limited(_), Scope::Key) | (PlanLimits::Unlimited, _) => {
                        Some(Kept::Nothing)
                    }
                },
                Err(mistakes) => {
                    problems.extend(mistakes);
                    before.kept.get(&plan.name).copied()
                }
            };
            kept.extend(now.map(|now| (plan.name.clone(), now)));
        }
        let mut own = HashMap::with_capacity(limits.overrides.len());
        for told in &limits.overrides {
            match Own::of(told) {
                Ok(limits) => drop(own.insert(told.client.clone(), limits)),
                Err(error) => problems.push(FieldError {
                    field: format!("client.{}.override", told.client),
                    code: ErrorCode::named(error.code()).unwrap_or(ErrorCode::InvalidValue),
                    detail: error.to_string(),
                }),
            }
        }
        let (revision, multiple) = (limits.revision, limits.multiple);
        *self.shared.plans.write() = Arc::new(Plans { revision, kept, own, multiple });
        problems
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        let counters = &self.shared.counters;
        Counts {
            admitted: counters.admitted.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            bypassed: counters.bypassed.load(Ordering::Relaxed),
            unknown_plan: counters.unknown_plan.load(Ordering::Relaxed),
            clients: self.shared.clients.lock().len() as u64,
            revision: self.shared.plans.read().revision,
        }
    }

    /// The layer to put around a service.
    pub fn layer(&self) -> SafetyLayer {
        SafetyLayer { safety: self.clone() }
    }

    fn judge(&self, headers: &HeaderMap) -> Verdict {
        let counters = &self.shared.counters;
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let Some(client) = text(CLIENT_HEADER) else {
            count(&counters.bypassed);
            return Verdict::Serve(None);
        };
        let plans = self.shared.plans.read().clone();
        let kept = text(PLAN_HEADER).and_then(|plan| plans.kept.get(plan).copied());
        let limit = match kept {
            Some(Kept::Limit(limit, numbers)) => match plans.own.get(client) {
                None => limit,
                Some(own) => {
                    let instances = self.shared.instances;
                    CoarseLimit::new(own.over(numbers), plans.multiple, instances)
                }
            },
            Some(Kept::Nothing) => {
                count(&counters.admitted);
                return Verdict::Serve(Some(decision(Side::Allow, client, None, None)));
            }
            None => {
                count(&counters.unknown_plan);
                return Verdict::Serve(Some(decision(Side::Allow, client, None, None)));
            }
        };
        let capacity = Some(limit.capacity());
        let now = self.shared.clock.now();
        let answer = self.shared.clients.lock().take(client, limit, now);
        match answer {
            CoarseAnswer::Admitted { remaining } => {
                count(&counters.admitted);
                Verdict::Serve(Some(decision(Side::Allow, client, Some(remaining), capacity)))
            }
            CoarseAnswer::Refused { retry_after_s } => {
                count(&counters.refused);
                Verdict::Refuse(decision(Side::Deny, client, Some(0), capacity), retry_after_s)
            }
        }
    }
}

fn decision(
    outcome: Side,
    client: &str,
    remaining: Option<u64>,
    limit: Option<u64>,
) -> ServiceDecision {
    let client = Some(client.to_owned());
    ServiceDecision { outcome, remaining, limit, cost: Some(1), client }
}

/// Makes [`SafetyService`]s.
#[derive(Debug, Clone)]
pub struct SafetyLayer {
    safety: SafetyLimit,
}

impl<S> Layer<S> for SafetyLayer {
    type Service = SafetyService<S>;

    fn layer(&self, inner: S) -> SafetyService<S> {
        SafetyService { inner, safety: self.safety.clone() }
    }
}

/// A service with a coarse limit around it.
#[derive(Debug, Clone)]
pub struct SafetyService<S> {
    inner: S,
    safety: SafetyLimit,
}

impl<S, B, R> Service<Request<B>> for SafetyService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.safety.judge(request.headers()) {
            Verdict::Serve(decision) => {
                let response = self.inner.call(request);
                Box::pin(async move {
                    let mut response = response.await?;
                    // A limiter inside may have refused; that is not for this layer to deny.
                    let refused_inside = response.status() == StatusCode::TOO_MANY_REQUESTS;
                    if let Some(decision) = decision.filter(|_| !refused_inside) {
                        write_decision(response.headers_mut(), &decision);
                    }
                    Ok(response)
                })
            }
            Verdict::Refuse(decision, retry_after_s) => {
                Box::pin(async move { Ok(refusal(&decision, retry_after_s)) })
            }
        }
    }
}

/// The service's own limiter, if it still has one, knows better: its header stays.
fn write_decision(headers: &mut HeaderMap, decision: &ServiceDecision) {
    if let Ok(value) = HeaderValue::from_str(&decision.to_string()) {
        headers.entry(decision_header::NAME).or_insert(value);
    }
}

fn refusal<R: From<String>>(decision: &ServiceDecision, retry_after_s: Option<u64>) -> Response<R> {
    let detail = "the safety limit of this instance is reached";
    let body = ErrorBody::new(ErrorCode::QuotaExceeded, detail);
    let mut response = Response::new(R::from(serde_json::to_string(&body).unwrap_or_default()));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if let Some(seconds) = retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    write_decision(headers, decision);
    response
}
