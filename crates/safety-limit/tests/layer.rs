//! The layer around a small service, as a service's author would use it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Request, Response, StatusCode};
use limiter_core::{Clock, Timestamp};
use safety_limit::{DECISION_HEADER, LimitValue, PlanValue, SafetyLimit, SafetyLimits};
use tower::{Layer, Service, service_fn};

#[derive(Debug, Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_us(self.0.load(Ordering::Relaxed))
    }
}

fn plan(name: &str, capacity: u64) -> PlanValue {
    PlanValue {
        name: name.to_owned(),
        burst: Some(LimitValue { capacity, tokens: 1, per_us: 1_000_000 }),
        sustained: None,
        costs: Vec::new(),
        scope: wire::plan::Scope::Client,
        failure: "coarse".to_owned(),
        unlimited: false,
        revision: 1,
    }
}

fn limits(plans: Vec<PlanValue>) -> SafetyLimits {
    SafetyLimits { revision: 7, multiple: 10, plans, overrides: Vec::new() }
}

fn safety(instances: u32, plans: Vec<PlanValue>) -> (SafetyLimit, Arc<Hand>) {
    let hand = Arc::new(Hand::default());
    let safety = SafetyLimit::new(instances, hand.clone());
    assert_eq!(safety.update(&limits(plans)), []);
    (safety, hand)
}

async fn send(safety: &SafetyLimit, headers: &[(&str, &str)]) -> Response<String> {
    let inner = service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new("served".to_owned()))
    });
    let mut service = safety.layer().layer(inner);
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("the headers of these tests are well formed");
    service.call(request).await.unwrap_or_else(|never| match never {})
}

const ACME: [(&str, &str); 2] = [("x-weir-client", "acme"), ("x-weir-plan", "pro")];

#[tokio::test]
async fn above_the_coarse_limit_the_service_is_not_called() {
    let (safety, hand) = safety(10, vec![plan("pro", 3)]);
    for remaining in [2, 1, 0] {
        let response = send(&safety, &ACME).await;
        assert_eq!(response.status(), StatusCode::OK);
        let told = format!("v1;d=allow;rem={remaining};lim=3;cost=1;client=acme");
        assert_eq!(response.headers()[DECISION_HEADER], told.as_str());
    }
    let refused = send(&safety, &ACME).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(refused.headers()[DECISION_HEADER], "v1;d=deny;rem=0;lim=3;cost=1;client=acme");
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert!(refused.body().contains("quota_exceeded"), "{}", refused.body());
    let other = [("x-weir-client", "zeta"), ("x-weir-plan", "pro")];
    assert_eq!(send(&safety, &other).await.status(), StatusCode::OK);
    hand.0.store(1_000_000, Ordering::Relaxed);
    assert_eq!(send(&safety, &ACME).await.status(), StatusCode::OK);
    let counts = safety.counts();
    assert_eq!((counts.admitted, counts.refused, counts.clients), (5, 1, 2));
}

#[tokio::test]
async fn what_bypassed_the_gateway_is_served_and_counted() {
    let (safety, _) = safety(10, vec![plan("pro", 1)]);
    for _ in 0..5 {
        let response = send(&safety, &[("x-weir-plan", "pro")]).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key(DECISION_HEADER));
    }
    assert_eq!(safety.counts().bypassed, 5);
    assert_eq!(safety.counts().admitted, 0);
}

#[tokio::test]
async fn an_unknown_plan_is_served_and_counted() {
    let (safety, _) = safety(10, vec![plan("pro", 1)]);
    let headers = [("x-weir-client", "acme"), ("x-weir-plan", "brand-new")];
    for _ in 0..3 {
        assert_eq!(send(&safety, &headers).await.status(), StatusCode::OK);
    }
    assert_eq!(safety.counts().unknown_plan, 3);
}

#[tokio::test]
async fn a_bad_plan_keeps_its_last_good_limit_and_touches_no_other() {
    let (safety, _) = safety(10, vec![plan("pro", 1), plan("free", 1)]);
    let mut bad = plan("pro", 0);
    bad.failure = "sometimes".to_owned();
    let problems = safety.update(&limits(vec![bad, plan("free", 2)]));
    assert_eq!(problems.len(), 2, "{problems:?}");
    let statuses = |client: &'static str, plan: &'static str| {
        let safety = safety.clone();
        async move {
            let headers = [("x-weir-client", client), ("x-weir-plan", plan)];
            let mut statuses = Vec::new();
            for _ in 0..3 {
                statuses.push(send(&safety, &headers).await.status().as_u16());
            }
            statuses
        }
    };
    assert_eq!(statuses("acme", "pro").await, [200, 429, 429]);
    assert_eq!(statuses("zeta", "free").await, [200, 200, 429]);
}

#[tokio::test]
async fn unlimited_plans_and_plans_by_key_are_not_limited_here() {
    let unlimited = PlanValue { unlimited: true, burst: None, ..plan("big", 1) };
    let by_key = PlanValue { scope: wire::plan::Scope::Key, ..plan("by-key", 1) };
    let (safety, _) = safety(10, vec![unlimited, by_key]);
    for plan in ["big", "by-key"] {
        for _ in 0..20 {
            let headers = [("x-weir-client", "acme"), ("x-weir-plan", plan)];
            assert_eq!(send(&safety, &headers).await.status(), StatusCode::OK);
        }
    }
    assert_eq!(safety.counts().admitted, 40);
}

#[tokio::test]
async fn the_services_own_decision_is_not_overwritten() {
    let (safety, _) = safety(1, vec![plan("pro", 5)]);
    let inner = service_fn(|_: Request<()>| async {
        let response = Response::builder().header(DECISION_HEADER, "v1;d=deny;rem=0");
        Ok::<_, Infallible>(response.body(String::new()).unwrap())
    });
    let mut service = safety.layer().layer(inner);
    let request = Request::builder().header("x-weir-client", "acme").header("x-weir-plan", "pro");
    let response = service.call(request.body(()).unwrap()).await.unwrap();
    assert_eq!(response.headers()[DECISION_HEADER], "v1;d=deny;rem=0");
}

#[tokio::test]
async fn a_refusal_of_the_service_itself_is_never_told_as_an_allowance() {
    let (safety, _) = safety(1, vec![plan("pro", 5)]);
    let inner = service_fn(|_: Request<()>| async {
        let response = Response::builder().status(429).header("x-limited-by", "orders");
        Ok::<_, Infallible>(response.body(String::new()).unwrap())
    });
    let mut service = safety.layer().layer(inner);
    let request = Request::builder().header("x-weir-client", "acme").header("x-weir-plan", "pro");
    let response = service.call(request.body(()).unwrap()).await.unwrap();
    assert!(!response.headers().contains_key(DECISION_HEADER), "{response:?}");
}

#[tokio::test]
async fn a_client_with_limits_of_its_own_has_ten_times_those() {
    let (safety, _hand) = safety(1, vec![plan("pro", 3)]);
    let burst = |capacity| Some(LimitValue { capacity, tokens: 1, per_us: 1_000_000 });
    let own = |client: &str, capacity| wire::policy::SafetyOverride {
        client: client.to_owned(),
        burst: burst(capacity),
        sustained: None,
    };
    let told = SafetyLimits {
        overrides: vec![own("acme", 5), own("zeta", 0)],
        ..limits(vec![plan("pro", 3)])
    };
    let problems = safety.update(&told);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].field, "client.zeta.override");
    for (client, capacity) in [("acme", 50), ("zeta", 30), ("other", 30)] {
        let headers = [("x-weir-client", client), ("x-weir-plan", "pro")];
        let response = send(&safety, &headers).await;
        let said = response.headers()[DECISION_HEADER].to_str().unwrap().to_owned();
        assert!(said.contains(&format!("lim={capacity};")), "{client}: {said}");
    }
    assert_eq!(safety.update(&limits(vec![plan("pro", 3)])), []);
    let said = send(&safety, &ACME).await.headers()[DECISION_HEADER].to_str().unwrap().to_owned();
    assert!(said.contains("lim=30;"), "it is over: {said}");
}
