//! Before, shadow and enforce: the same script, judged from the services' side.

use std::time::Duration;

use demo::Verdict;
use serde_json::json;
use system_tests::oracle::{Origin, deepest_excess, float, quantile};
use system_tests::process::eventually;
use system_tests::traffic::Sent;
use wire::client::ClientError;

use super::Sabotage;
use super::scene::{Scene, Stretch, noisy_contract};
use crate::report::{Limit, Report};

/// How long tallies may take to be on disk.
const TALLIES_MAX: Duration = Duration::from_secs(15);

/// What later phases are compared with.
pub struct Before {
    others_p99: Duration,
}

/// A bucket in each replica, nothing at the edge: the world of the incident.
pub async fn before(scene: &mut Scene, report: &mut Report) -> anyhow::Result<Before> {
    let stretch = scene.play("before", report).await?;
    let times = stretch.admitted_over_contract();
    report.require("admitted_over_contract_before", times, Limit::AtLeast(8.0));
    let offered = float(stretch.noisy().count()) / stretch.noisy_contract();
    report.require("offered_over_contract", offered, Limit::AtLeast(9.0));
    let others_p99 = others_p99(&stretch);
    report.round(json!({ "phase": "off", "others_p99_ms": ms(others_p99), "admitted": times }));
    Ok(Before { others_p99 })
}

/// Decided and counted, but nothing may look different to anybody.
pub async fn shadow(scene: &mut Scene, report: &mut Report) -> anyhow::Result<()> {
    let answer = scene.world.control.set_all("shadow").await?;
    let revision = system_tests::control::revision(&answer)?;
    scene.world.control.wait_applied(scene.world.gateways.len(), revision).await?;
    let stretch = scene.play("shadow", report).await?;
    let origin = Origin::new(&stretch.arrivals);
    let changed = stretch.sent.iter().filter(|sent| !as_the_service_said(sent, &origin)).count();
    report.require("shadow_changed_responses", float(changed), Limit::Exactly(0.0));

    let offered = stretch.noisy().count();
    let arrived = stretch.noisy().filter(|sent| origin.arrival(sent).is_some()).count();
    let what = format!("{arrived} more requests of the noisy client in the tallies");
    let tallied = eventually(&what, TALLIES_MAX, || async {
        let now = scene.tallied().await?;
        let more = now.requests - stretch.tallied_before.requests;
        Ok((more >= arrived as u64).then_some(now))
    })
    .await?;
    let requests = float(usize::try_from(tallied.requests - stretch.tallied_before.requests)?);
    let would_deny = tallied.would_deny - stretch.tallied_before.would_deny;
    let expected = 1.0 - stretch.noisy_contract() / float(offered);
    let share = float(usize::try_from(would_deny)?) / requests;
    report.require("would_deny_share", share, Limit::Between(expected - 0.01, expected + 0.01));
    let differ = float(arrived) - requests;
    report.require("tally_minus_origin", differ, Limit::Exactly(0.0));
    report.round(json!({
        "phase": "shadow",
        "others_p99_ms": ms(others_p99(&stretch)),
        "admitted": stretch.admitted_over_contract(),
        "would_deny_expected": expected,
        "degraded_share": stretch.degraded,
    }));
    gate_refuses(scene, report).await
}

/// With a client far over its contract the number cannot be below the line.
async fn gate_refuses(scene: &Scene, report: &mut Report) -> anyhow::Result<()> {
    let refused = match scene.world.control.set_all("enforce").await {
        Err(ClientError::Refused(body)) => body.code.name() == "gate_refused",
        Err(error) => anyhow::bail!("enforcing everybody: {error}"),
        Ok(_) => false,
    };
    report.require("gate_refused_all", f64::from(u8::from(refused)), Limit::Exactly(1.0));
    Ok(())
}

/// One contract for each client, wherever its requests go.
pub async fn enforce(
    scene: &mut Scene,
    report: &mut Report,
    before: &Before,
) -> anyhow::Result<()> {
    scene.enforce_everybody().await?;
    let mut stretch = scene.play("enforce", report).await?;
    let differ = stretch.counted - float(stretch.sent.len());
    report.require("counters_minus_sent", differ, Limit::Exactly(0.0));
    if scene.sabotage == Some(Sabotage::SecondDoor) {
        open_second_door(scene, &mut stretch).await?;
    }
    let origin = Origin::new(&stretch.arrivals);
    let times = stretch.admitted_over_contract();
    report.require("admitted_over_contract_enforced", times, Limit::Between(0.99, 1.01));
    let reached = origin.refused_and_arrived(&stretch.sent);
    report.require("refused_reached_service", float(reached), Limit::Exactly(0.0));
    let refused = stretch.others().filter(|sent| sent.status != 200).count();
    report.require("others_refused", float(refused), Limit::Exactly(0.0));
    let blunt = stretch.noisy().filter(|sent| {
        sent.status != 200 && !(sent.status == 429 && sent.retry_after.is_some_and(|s| s >= 1))
    });
    report.require(
        "noisy_answers_other_than_200_or_429",
        float(blunt.count()),
        Limit::Exactly(0.0),
    );
    let p99 = others_p99(&stretch);
    let ratio = p99.as_secs_f64() / before.others_p99.as_secs_f64();
    report.require("others_p99_ratio", ratio, Limit::AtMost(0.5));
    let excess = deepest_excess(&origin.admitted_us(stretch.noisy()), noisy_contract());
    report.field("deepest_excess_tokens", json!((excess * 100.0).round() / 100.0));
    report.round(json!({
        "phase": "enforce",
        "others_p99_ms": ms(p99),
        "admitted": times,
        "degraded_share": stretch.degraded,
    }));
    Ok(())
}

/// Sabotage: what the gateway refused is sent straight to a service.
async fn open_second_door(scene: &Scene, stretch: &mut Stretch) -> anyhow::Result<()> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let doors = scene.world.services.endpoints("orders");
    let refused = stretch.sent.iter().filter(|sent| sent.by_edge && sent.status == 429);
    for sent in refused.take(20) {
        for door in doors.iter().take(1) {
            let request = client.get(format!("http://{door}/orders/item"));
            request.header(demo::ID_HEADER, &sent.id).send().await?;
        }
    }
    stretch.arrivals = scene.world.services.arrivals().await?;
    Ok(())
}

/// The answer is the one that the service gave, with nothing added.
fn as_the_service_said(sent: &Sent, origin: &Origin<'_>) -> bool {
    let said = match origin.arrival(sent).map(|arrived| arrived.arrival.verdict) {
        Some(Verdict::Admitted) => sent.status == 200 && sent.retry_after.is_none(),
        Some(Verdict::RefusedByOwnLimit) => sent.status == 429 && sent.by_service,
        Some(Verdict::RefusedBySafetyLimit) => sent.status == 429,
        Some(Verdict::Overloaded) => sent.status == 503,
        None => false,
    };
    said && !sent.by_edge && !sent.limit_headers
}

fn others_p99(stretch: &Stretch) -> Duration {
    quantile(stretch.others().map(|sent| sent.took), 0.99)
}

/// Whole tenths of a millisecond.
pub fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
