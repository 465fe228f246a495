//! Restarts that nobody notices: new processes in the place of old ones, and gateways that are
//! restarted in turn behind a balancer, under load and with connections that live long.
//!
//! A request has failed unless its caller has a whole 200 and the service's log has its id, once.
//! Nothing is sent twice. A connection that is refused is a failed request too: the balancer goes
//! to no gateway that says that it is not ready, so within its grace a gateway refuses nobody.

mod balancer; // the callers' side, and the load
mod fleet; // gateways, the services behind them, signals
mod frames; // WebSockets
mod held; // what is under way at an end

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{getpid, set_child_subreaper};
use serde_json::json;
use system_tests::oracle::float;
use tokio::time::{sleep, timeout};

use crate::report::{Limit, Report};
use crate::standalone::Folder;
use balancer::{Balancer, Outcome};
use fleet::{Behind, Drain, Member};
use held::{End, Held, Size};

pub use frames::main as echo;

/// Fewest requests.
const SAMPLES_MIN: u64 = 200_000;
const QUICK_SAMPLES_MIN: u64 = 4_000;
/// Restarts of each kind.
const RESTARTS: u64 = 20;
const QUICK_RESTARTS: u64 = 3;
/// Requests a second.
const RATE: f64 = 2_000.0;
const QUICK_RATE: f64 = 400.0;
/// Gateways that are restarted in turn.
const FLEET: usize = 3;
/// How gateways end while requests flow.
const DRAIN: Drain = Drain { grace: Duration::from_millis(500), finish: Duration::from_secs(10) };
/// Longest wait for a process that was told to end.
const END_MAX: Duration = Duration::from_secs(30);
/// How often it is looked how many requests there were.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A planted defect; each makes other figures fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Listeners are closed at once, and handed to nobody.
    DeafDrain,
    /// Nothing that was begun may finish.
    Impatient,
}

impl Sabotage {
    const ALL: [(&'static str, Sabotage); 2] =
        [("deaf-drain", Sabotage::DeafDrain), ("impatient", Sabotage::Impatient)];

    fn drain(sabotage: Option<Sabotage>, honest: Drain) -> Drain {
        let moment = Duration::from_millis(1);
        match sabotage {
            Some(Sabotage::DeafDrain) => Drain { grace: moment, ..honest },
            Some(Sabotage::Impatient) => Drain { finish: moment, ..honest },
            None => honest,
        }
    }
}

/// How much of everything.
struct Extent {
    samples: u64,
    restarts: u64,
    rate: f64,
    held: Size,
    /// How long the late service takes.
    late: Duration,
}

impl Extent {
    fn of(quick: bool) -> Extent {
        let drain = |finish| Drain { finish: Duration::from_secs(finish), ..DRAIN };
        if quick {
            Extent {
                samples: QUICK_SAMPLES_MIN,
                restarts: QUICK_RESTARTS,
                rate: QUICK_RATE,
                held: Size { sockets: 200, left: 5, requests: 20, reloads: 3, promised: drain(6) },
                late: Duration::from_secs(2),
            }
        } else {
            Extent {
                samples: SAMPLES_MIN,
                restarts: RESTARTS,
                rate: RATE,
                held: Size {
                    sockets: 4_000,
                    left: 20,
                    requests: 200,
                    reloads: 20,
                    promised: drain(25),
                },
                late: Duration::from_secs(10),
            }
        }
    }
}

/// Runs all of it.
pub async fn run(quick: bool, seed: u64, sabotage: Option<&str>) -> anyhow::Result<Report> {
    let sabotage = sabotage.map(|name| crate::report::named(&Sabotage::ALL, name)).transpose()?;
    let extent = Extent::of(quick);
    let mut report = Report::new("restarts", seed);
    report.samples_needed(extent.samples);
    held::make_room(extent.held.sockets)?;
    set_child_subreaper(Some(getpid()))?;
    let folder = Folder::new()?;
    let behind = Behind::start(&folder.launcher, extent.late).await?;
    let drain = Sabotage::drain(sabotage, DRAIN);
    let mut sum = Sum::default();

    let mut one = vec![Member::start("alone", drain, &behind).await?];
    let balancer = Balancer::over(&one, &behind.key, 0)?;
    let in_place = in_place(&mut one, &balancer, sabotage, &extent);
    let (outcome, restarted) = tokio::join!(balancer.load(extent.rate), in_place);
    report.field("in_place_restarts", json!(restarted?));
    sum.add("in place", &outcome?, &one, &behind, &mut report).await?;
    drop(one);

    let mut fleet = Vec::new();
    for number in 1..=FLEET {
        fleet.push(Member::start(&format!("rolling-{number}"), drain, &behind).await?);
    }
    let balancer = Balancer::over(&fleet, &behind.key, sum.sent)?;
    let rolling = rolling(&mut fleet, &balancer, &extent);
    let (outcome, restarted) = tokio::join!(balancer.load(extent.rate), rolling);
    report.field("rolling_restarts", json!(restarted?));
    let spread = balancer.spread();
    sum.add("rolling", &outcome?, &fleet, &behind, &mut report).await?;
    drop(fleet);
    report.field("answers_by_gateway", json!(spread));

    let mut held = Held::default();
    let drain = Sabotage::drain(sabotage, extent.held.promised);
    for end in [End::InPlace, End::Terminated] {
        held.add(end, extent.held, drain, &behind, &mut report).await?;
    }
    judged(&sum, &held, &extent, &mut report);
    Ok(report)
}

/// One gateway, replaced by itself again and again while requests flow.
async fn in_place(
    one: &mut [Member],
    balancer: &Balancer,
    sabotage: Option<Sabotage>,
    extent: &Extent,
) -> anyhow::Result<u64> {
    let ran = async {
        for number in 1..=extent.restarts {
            enough(balancer, extent, number).await;
            for member in &mut *one {
                if sabotage == Some(Sabotage::DeafDrain) {
                    member.stop()?;
                    member.gone(END_MAX).await?;
                    member.begin().await?;
                } else {
                    member.succeed().await?;
                    member.gone(END_MAX).await?;
                }
            }
        }
        Ok(extent.restarts)
    };
    let ran = ran.await;
    balancer.stop();
    ran
}

/// Several gateways, each ended and started again in turn, all of them again and again.
async fn rolling(
    fleet: &mut [Member],
    balancer: &Balancer,
    extent: &Extent,
) -> anyhow::Result<u64> {
    let ran = async {
        for number in 1..=extent.restarts {
            enough(balancer, extent, number).await;
            for member in &mut *fleet {
                member.stop()?;
                member.gone(END_MAX).await?;
                member.begin().await?;
                timeout(END_MAX, balancer.all_in_service())
                    .await
                    .context("not in service again")?;
            }
        }
        Ok(extent.restarts)
    };
    let ran = ran.await;
    balancer.stop();
    ran
}

/// Waits until there were enough requests for so many restarts, with half of all for each kind.
async fn enough(balancer: &Balancer, extent: &Extent, restarts: u64) {
    let each = extent.samples / 2 / extent.restarts + 1;
    while balancer.done() < each * restarts {
        sleep(LOOK_EVERY).await;
    }
}

/// Sums over both kinds.
#[derive(Debug, Default)]
struct Sum {
    sent: u64,
    failed: u64,
    refused: u64,
    /// Answered, but not in the service's log.
    not_arrived: u64,
    /// In it more than once.
    doubled: u64,
    unclean: u64,
}

impl Sum {
    async fn add(
        &mut self,
        kind: &str,
        outcome: &Outcome,
        members: &[Member],
        behind: &Behind,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let mut arrived: BTreeMap<u64, u64> = BTreeMap::new();
        for arrival in behind.services.arrivals().await? {
            *arrived.entry(arrival.arrival.id.parse()?).or_default() += 1;
        }
        behind.services.forget_arrivals().await?;
        let sent = outcome.answered.len() as u64 + outcome.failed;
        let missing = outcome.answered.iter().filter(|id| !arrived.contains_key(id)).count() as u64;
        let doubled = arrived.values().filter(|count| **count > 1).count() as u64;
        report.offered(outcome.offered);
        report.samples(sent);
        report.round(json!({
            "kind": kind, "sent": sent, "failed": outcome.failed, "refused": outcome.refused,
            "not_arrived": missing, "doubled": doubled, "why": outcome.reasons,
        }));
        self.sent += sent;
        self.failed += outcome.failed + missing;
        self.refused += outcome.refused;
        self.not_arrived += missing;
        self.doubled += doubled;
        self.unclean += members.iter().map(|member| member.unclean).sum::<u64>();
        Ok(())
    }
}

fn judged(sum: &Sum, held: &Held, extent: &Extent, report: &mut Report) {
    let number = |count: u64| float(usize::try_from(count).unwrap_or(usize::MAX));
    let none = Limit::Exactly(0.0);
    report.require("failed", number(sum.failed), none);
    report.require("refused_connections", number(sum.refused), none);
    report.require("doubled", number(sum.doubled), none);
    report.require("websockets_cut", float(held.sockets_cut), none);
    report.require("websockets_cut_on_reload", float(held.sockets_cut_on_reload), none);
    report.require("long_requests_failed", float(held.requests_failed), none);
    report.require("outlived_finish", float(held.sockets_left), none);
    report.require("unclean_ends", number(sum.unclean + held.unclean), none);
    let restarts = Limit::AtLeast(number(extent.restarts));
    report.limit("in_place_restarts", restarts);
    report.limit("rolling_restarts", restarts);
    report.field("answered_but_not_arrived", json!(sum.not_arrived));
    report.field("reloads", json!(held.reloads));
    report.field("websockets", json!(held.sockets));
    report.field("long_requests", json!(held.requests));
    report.note(
        "websockets_cut: over reloads, then an in-place restart or a drain, looked at well before \
         the end of `finish`; those that nobody closes must end with it; _on_reload: before the end",
    );
}
