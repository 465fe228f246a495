//! Redis killed and Redis frozen under load, with one client for each failure policy at once.
//!
//! A round is one stretch: two healthy seconds (the control run of its latencies), the fault, the
//! return, and the time after it. Rounds whose control run is itself too noisy to compare with are
//! repeated and told.

use std::time::Duration;

use demo::Mode;
use serde_json::{Value, json};
use system_tests::oracle::{Origin, float, quantile};
use system_tests::traffic::{Sent, statuses};
use tokio::time::sleep;

use super::Sabotage;
use super::phases::ms;
use super::scene::{PROBES, Probe, Scene, Stretch, admitted_by_service, contract};
use crate::report::{Limit, Report};

const HEALTHY: Duration = Duration::from_secs(2);
const AWAY: Duration = Duration::from_millis(2_500);
/// Decisions are shared again this long after the return.
const BACK: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(2);
/// Waits are judged in this stretch after the fault.
const JUDGED: Duration = Duration::from_secs(2);
/// A local denial never lasts longer than the token that it waits for.
const SETTLED: Duration = Duration::from_millis(100);
/// A wait this much above the control run is late.
const LATE: Duration = Duration::from_millis(8);
/// A control run with more late waits than this says nothing.
const NOISE_MAX: f64 = 0.003;
const REPEATS_MAX: usize = 4;
/// Rounding of a share at each of three gateways or replicas, and one request in flight.
const SLACK: f64 = 4.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
}

/// The worst of all rounds, and the waits of those that can be judged.
#[derive(Default)]
struct Worst {
    wrong_5xx: usize,
    over_formula: f64,
    over_safety: f64,
    over_after: f64,
    /// By kind of fault: the late share of each round above its control run.
    late: [Vec<f64>; 2],
    repeated: usize,
}

impl Worst {
    /// The median round of the worse kind of fault: single rounds are at the mercy of whatever
    /// else the machine does. None if fewer than half of the rounds could be judged.
    fn late_share(&self, rounds: usize) -> Option<f64> {
        let median = |shares: &Vec<f64>| {
            let mut sorted = shares.clone();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() * 2 > rounds)
        };
        let medians: Option<Vec<f64>> = self.late.iter().map(median).collect();
        medians.map(|medians| medians.into_iter().fold(0.0, f64::max))
    }
}

/// Moments of a round, in microseconds since 1970.
struct Moments {
    gone: u64,
    returned: u64,
}

/// Kills and freezes Redis `rounds` times each.
pub async fn both_kinds(
    scene: &mut Scene,
    report: &mut Report,
    rounds: usize,
) -> anyhow::Result<()> {
    let safety_limit = scene.sabotage != Some(Sabotage::NoSafetyLimit);
    let mode = Mode {
        own_limit: false,
        safety_limit,
        service_us: [0, 0],
        concurrency: 1_000,
        ..Mode::default()
    };
    scene.world.services.set_mode(&mode).await?;
    let limits = scene.world.control.safety_limits().await?;
    scene.world.services.set_limits(&limits).await?;
    let mut worst = Worst::default();
    for _ in 0..rounds {
        for fault in [Fault::Kill, Fault::Freeze] {
            round(scene, report, fault, &mut worst).await?;
        }
    }
    report.require("redis_down_5xx", float(worst.wrong_5xx), Limit::Exactly(0.0));
    // Inconclusive is not false, and not ok: what is not a number keeps no limit.
    let share = worst.late_share(rounds).unwrap_or(f64::NAN);
    report.require("redis_down_late_share", share, Limit::AtMost(0.001));
    report.require("redis_down_admitted_over_formula", worst.over_formula, Limit::AtMost(1.0));
    report.require("safety_fleet_over_ten_plans", worst.over_safety, Limit::AtMost(1.0));
    report.require("after_return_over_contract", worst.over_after, Limit::AtMost(1.0));
    if worst.repeated > 0 {
        report.note(format!("{} rounds repeated: their control run was noisy", worst.repeated));
    }
    Ok(())
}

async fn round(
    scene: &mut Scene,
    report: &mut Report,
    fault: Fault,
    worst: &mut Worst,
) -> anyhow::Result<()> {
    for attempt in 0..=REPEATS_MAX {
        let (stretch, moments) = play(scene, report, fault).await?;
        let over = judge_amounts(scene, &stretch, &moments, worst)?;
        let waits = Waits::of(&stretch.sent, &moments);
        report.round(json!({
            "fault": format!("{fault:?}").to_lowercase(),
            "attempt": attempt,
            "waits": waits.json(),
            "answers_while_away": answers(scene, &stretch, &moments)?,
            "admitted_over_bound": over,
        }));
        // Amounts and statuses of a noisy round count; only its latencies say nothing.
        if waits.noise() <= NOISE_MAX {
            let [killed, frozen] = &mut worst.late;
            let shares = if fault == Fault::Kill { killed } else { frozen };
            shares.push(waits.late_share());
            return Ok(());
        }
        worst.repeated += 1;
    }
    Ok(())
}

async fn play(
    scene: &mut Scene,
    report: &mut Report,
    fault: Fault,
) -> anyhow::Result<(Stretch, Moments)> {
    let shots = scene.probe_shots(HEALTHY + AWAY + BACK + AFTER)?;
    scene.rest().await?;
    let callers = scene.callers.clone();
    let redis = scene.world.redis()?;
    let happening = async {
        sleep(HEALTHY).await;
        match fault {
            Fault::Kill => redis.kill()?,
            Fault::Freeze => redis.freeze()?,
        }
        let gone = callers.now_us();
        sleep(AWAY).await;
        let returned = callers.now_us();
        match fault {
            Fault::Kill => redis.restart().await?,
            Fault::Freeze => redis.thaw()?,
        }
        Ok::<_, anyhow::Error>(Moments { gone, returned })
    };
    let (sent, moments) = tokio::try_join!(callers.open_loop(&shots), happening)?;
    report.samples(sent.len() as u64);
    report.offered(system_tests::oracle::offered_achieved(&sent, shots.len(), 10 * LATE));
    let arrivals = scene.world.services.arrivals().await?;
    Ok((Stretch { sent, arrivals, ..Stretch::default() }, moments))
}

/// What each policy admitted and answered while Redis was away, what everybody got after its
/// return, and what reached each service. The figures by probe, for the report.
fn judge_amounts(
    scene: &Scene,
    stretch: &Stretch,
    moments: &Moments,
    worst: &mut Worst,
) -> anyhow::Result<Value> {
    let origin = Origin::new(&stretch.arrivals);
    let away = Duration::from_micros(moments.returned - moments.gone);
    let after = moments.returned + us(BACK);
    let last = stretch.sent.iter().map(Sent::done_us).max().unwrap_or(after);
    let mut figures = serde_json::Map::new();
    for probe in &PROBES {
        let client = scene.callers.client(probe.name)?;
        let ours: Vec<&Sent> = stretch.sent.iter().filter(|sent| sent.client == client).collect();
        let wrong: Vec<&Sent> =
            ours.iter().copied().filter(|sent| wrong_5xx(probe, sent)).collect();
        worst.wrong_5xx += wrong.len();

        // A denial from before the fault holds until its token would have come.
        let settled = moments.gone + us(SETTLED);
        let while_away = |from: u64| {
            let range = from..moments.returned;
            ours.iter().copied().filter(move |sent| range.contains(&sent.sent_us))
        };
        let admitted = origin.admitted_us(while_away(moments.gone)).len();
        let refused = while_away(settled).filter(|sent| sent.status != 200).count();
        let formula = over_formula(probe, admitted, refused, away);
        worst.over_formula = worst.over_formula.max(formula);

        let later = ours.iter().copied().filter(|sent| sent.sent_us >= after);
        let since = Duration::from_micros(last.saturating_sub(after));
        let back =
            float(origin.admitted_us(later).len()) / (contract(probe.line).over(since) + 2.0);
        worst.over_after = worst.over_after.max(back);
        let wrong: Vec<Value> = wrong.iter().take(3).map(|sent| told(sent, moments)).collect();
        let figure = json!({ "away": formula, "after": back, "wrong": wrong });
        figures.insert(probe.name.to_owned(), figure);

        // Ten plans at each service, whatever the gateways let through.
        if probe.per_s > 100 {
            let ten = 10.0 * contract(probe.line).over(away) + SLACK;
            for count in admitted_by_service(stretch, client, moments.gone, moments.returned) {
                worst.over_safety = worst.over_safety.max(float(count) / ten);
            }
        }
    }
    Ok(Value::Object(figures))
}

/// What somebody who looks for the reason wants to know.
fn told(sent: &Sent, moments: &Moments) -> Value {
    let after = i128::from(sent.sent_us) - i128::from(moments.gone);
    json!({
        "ms_after_fault": i64::try_from(after / 1_000).unwrap_or(0),
        "took_ms": ms(sent.took),
        "status": sent.status,
        "code": sent.code,
        "by_edge": sent.by_edge,
        "gateway": sent.gateway,
        "error": sent.error,
    })
}

/// A status of 500 and above or a broken answer; the policy closed has a 503 of its own.
fn wrong_5xx(probe: &Probe, sent: &Sent) -> bool {
    let own = probe.failure == "closed"
        && sent.by_edge
        && sent.status == 503
        && sent.code.as_deref() == Some("limiter_closed");
    (sent.status == 0 || sent.status >= 500) && !own
}

/// Above 1 the policy's formula is broken.
fn over_formula(probe: &Probe, admitted: usize, refused: usize, away: Duration) -> f64 {
    let plan = contract(probe.line).over(away);
    match probe.failure {
        // Nothing is admitted; what was in flight when Redis went was sent before.
        "closed" => 2.0 * (float(admitted) + f64::from(u8::from(refused == 0))),
        "local" => float(admitted) / (0.5 * plan + SLACK),
        "coarse" => float(admitted) / (10.0 * plan + SLACK),
        // Everything passes the gateway; the guarded client is refused by services only.
        _ if probe.name == "probe-open" => 2.0 * float(refused),
        _ => 0.0,
    }
}

/// How many answers each probe got with each status, from the fault until shared decisions.
fn answers(scene: &Scene, stretch: &Stretch, moments: &Moments) -> anyhow::Result<Value> {
    let mut all = serde_json::Map::new();
    let window = moments.gone..moments.returned + us(BACK);
    for probe in &PROBES {
        let client = scene.callers.client(probe.name)?;
        let ours = stretch.sent.iter().filter(|sent| sent.client == client);
        let ours: Vec<Sent> = ours.filter(|sent| window.contains(&sent.sent_us)).cloned().collect();
        all.insert(probe.name.to_owned(), json!(statuses(&ours)));
    }
    Ok(Value::Object(all))
}

struct Waits {
    judged: usize,
    late: usize,
    healthy: usize,
    noisy: usize,
    control: Duration,
    longest: Duration,
}

impl Waits {
    /// Late is what waits 8 ms longer than the median of the healthy stretch; the healthy
    /// stretch's own share of such waits is its noise.
    fn of(all: &[Sent], moments: &Moments) -> Waits {
        let healthy: Vec<_> = all.iter().filter(|sent| sent.done_us() < moments.gone).collect();
        let judged = moments.gone..moments.gone + us(JUDGED);
        let judged: Vec<_> = all.iter().filter(|sent| judged.contains(&sent.sent_us)).collect();
        let control = quantile(healthy.iter().map(|sent| sent.took), 0.5);
        let late = |sent: &&&Sent| sent.took > control + LATE;
        Waits {
            judged: judged.len(),
            late: judged.iter().filter(late).count(),
            healthy: healthy.len(),
            noisy: healthy.iter().filter(late).count(),
            control,
            longest: judged.iter().map(|sent| sent.took).max().unwrap_or_default(),
        }
    }

    /// Above the control run.
    fn late_share(&self) -> f64 {
        (float(self.late) / float(self.judged.max(1)) - self.noise()).max(0.0)
    }

    fn noise(&self) -> f64 {
        float(self.noisy) / float(self.healthy.max(1))
    }

    fn json(&self) -> Value {
        json!({
            "judged": self.judged,
            "late": self.late,
            "noise": self.noise(),
            "control_median_ms": ms(self.control),
            "longest_ms": ms(self.longest),
        })
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
