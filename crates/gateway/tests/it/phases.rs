//! Shadow is invisible: the caller and the service see the same as in phase off.

use std::sync::Arc;

use edge::PolicySource;
use edge::limiter::Clock;
use gateway::upstream::names::SystemNames;
use gateway::{Evidently, Parts};
use http::Response;
use http_body_util::{BodyExt, Full};
use serde_json::json;
use wire::batch::TallyCell;
use wire::rollout::Phase;

use crate::support::plane::{Kept, Plane};
use crate::support::{Gateway, Service, eventually, file, parse, standing, tally};

/// A service with a limiter of its own, which denies every third request and says so.
async fn limiting_service() -> Service {
    let calls = std::sync::atomic::AtomicU64::new(0);
    Service::answering(move |_head| {
        let call = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let (status, decision) =
            if call % 3 == 2 { (429, "v1;d=deny;rem=0") } else { (200, "v1;d=allow;rem=9") };
        Response::builder()
            .status(status)
            .header("x-ratelimit-limit", "5")
            .header("retry-after", "9")
            .header("x-weir-decision", decision)
            .header("date", "Thu, 01 Jan 1970 00:00:00 GMT")
            .body(Full::from("body").boxed())
            .unwrap()
    })
    .await
}

/// Six calls against a plan of one, in `phase`; what the caller saw, what the service saw, tallies.
async fn six(phase: Phase) -> (Vec<String>, Vec<String>, Vec<TallyCell>) {
    let service = limiting_service().await;
    let text = file("unlimited = true", "", service.address)
        + "pairing = { decision_header = \"x-weir-decision\" }\n";
    let (clock, store) = standing();
    let plan = json!({ "burst": { "capacity": 1, "refill": "1/d" } });
    let (plane, kept) = (Plane::new(&plan, phase), Arc::new(Kept::default()));
    let parts = Parts {
        leases: false,
        store,
        clock: clock as Arc<dyn Clock>,
        source: PolicySource::ControlPlane(plane),
        evidence: Evidently(Some(Arc::clone(&kept) as _)),
        names: Arc::new(SystemNames),
    };
    let gateway = Gateway::with(parse(&text), parts).await;
    eventually("the policy has arrived", async || {
        crate::support::get(gateway.operations, "/readyz", &[]).await.status == 200
    })
    .await;
    let replies = gateway.calls(6).await;
    let seen = service.last();
    let served = seen
        .headers
        .iter()
        .filter(|(name, _)| *name != "x-request-id")
        .map(|(name, value)| format!("{name}: {value:?}"))
        .collect();
    let told = replies
        .iter()
        .map(|reply| {
            let mut headers = reply.headers.clone();
            headers.remove("x-request-id");
            format!("{} {headers:?} {:?}", reply.status, reply.body)
        })
        .collect();
    gateway.drain.start();
    eventually("the last batch is cut", async || {
        kept.0.lock().unwrap().iter().any(|batch| batch.last)
    })
    .await;
    let cells = kept.0.lock().unwrap().iter().flat_map(|batch| batch.cells.clone()).collect();
    (told, served, cells)
}

#[tokio::test]
async fn shadow_looks_like_off_to_caller_and_service() {
    let (off_told, off_served, off_cells) = six(Phase::Off).await;
    let (shadow_told, shadow_served, cells) = six(Phase::Shadow).await;
    assert_eq!(off_told, shadow_told);
    assert_eq!(off_served, shadow_served);
    assert!(off_told[0].contains("x-ratelimit-limit"), "the service's own headers pass");
    assert!(!off_told.iter().any(|told| told.contains("x-weir-")), "{off_told:?}");
    let mut sum = TallyCell::default();
    cells.iter().for_each(|cell| sum.add(cell));
    assert_eq!((sum.requests, sum.edge_denied, sum.service_denied), (6, 5, 2));
    assert_eq!((sum.both_allow, sum.both_deny, sum.stricter, sum.looser), (1, 2, 3, 0));
    assert_eq!(off_cells.iter().map(|cell| cell.requests).sum::<u64>(), 0, "off is not evaluated");
}

#[tokio::test]
async fn enforce_refuses_what_shadow_only_counted() {
    let (told, _, cells) = six(Phase::Enforce).await;
    let denied =
        told.iter().filter(|told| told.starts_with("429") && told.contains("x-weir-source"));
    assert_eq!(denied.count(), 5);
    let mut sum = TallyCell::default();
    cells.iter().for_each(|cell| sum.add(cell));
    assert_eq!((sum.requests, sum.rejected, sum.both_allow), (6, 5, 1));
}

#[tokio::test]
async fn before_any_policy_everybody_is_told_to_wait() {
    let service = Service::hello().await;
    let text = file("unlimited = true", "", service.address);
    let (clock, store) = standing();
    let parts = Parts {
        leases: false,
        store,
        clock: clock as Arc<dyn Clock>,
        source: PolicySource::ControlPlane(Arc::new(crate::support::plane::Away)),
        evidence: Evidently(None),
        names: Arc::new(SystemNames),
    };
    let gateway = Gateway::with(parse(&text), parts).await;
    let replies = gateway.calls(2).await;
    assert_eq!(tally(&replies), [(503, 2)]);
    assert!(replies.iter().all(|reply| !reply.header("retry-after").is_empty()));
    assert_eq!(crate::support::get(gateway.operations, "/readyz", &[]).await.status, 503);
    assert_eq!(crate::support::get(gateway.operations, "/livez", &[]).await.status, 200);
    assert_eq!(service.requests(), 0);
}
